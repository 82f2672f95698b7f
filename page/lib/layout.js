// Asks the worker for layouts and keeps the newest. A worker that is idle is ended after a while; one that is asked for another graph
// while it computes is ended at once.

/**
 * @typedef {{ x: number, y: number }} Point
 * @typedef {{ name: string, width: number, height: number }} Box
 * @typedef {{ nodes: Box[], edges: { from: string, to: string }[], down: boolean }} LayoutRequest
 * @typedef {{ width: number, height: number, nodes: (Box & Point)[], edges: { from: string, to: string, points: Point[] }[] }} Layout
 */

const IDLE = 20_000;
const KEPT = 24;

const address = new URL('layout-worker.js', import.meta.url).href;

/** The only script address that the page ever makes. @type {{ createScriptURL(url: string): any } | undefined} */
const policy = /** @type {any} */ (globalThis).trustedTypes?.createPolicy('page', {
  createScriptURL(/** @type {string} */ url) {
    if (url !== address) throw new TypeError('no such script');
    return url;
  },
});

/** @type {Map<string, Layout>} */
const done = new Map();
/** @type {Worker | undefined} */
let worker;
/** @type {{ id: number, key: string, resolve: (layout: Layout) => void, reject: (error: Error) => void } | undefined} */
let waiting;
let last = 0;
/** @type {number | undefined} */
let idle;

function end() {
  worker?.terminate();
  worker = undefined;
}

function start() {
  const made = new Worker(policy ? policy.createScriptURL(address) : address, { type: 'module' });
  made.addEventListener('message', (event) => {
    if (!waiting || event.data.id !== waiting.id) return;
    const { key, resolve, reject } = waiting;
    waiting = undefined;
    idle = setTimeout(end, IDLE);
    if (event.data.error) {
      reject(new Error(event.data.error));
      return;
    }
    done.set(key, event.data.layout);
    if (done.size > KEPT) done.delete(/** @type {string} */ (done.keys().next().value));
    resolve(event.data.layout);
  });
  made.addEventListener('error', (event) => {
    waiting?.reject(new Error(event.message || 'the layout failed'));
    waiting = undefined;
    end();
  });
  return made;
}

/**
 * @param {string} key what the layout is kept under
 * @returns {Layout | undefined}
 */
export function laidOut(key) {
  return done.get(key);
}

/**
 * @param {string} key
 * @param {LayoutRequest} request
 * @returns {Promise<Layout>}
 */
export function layOut(key, request) {
  const before = done.get(key);
  if (before) return Promise.resolve(before);
  if (waiting) {
    waiting.reject(new Error('another graph is wanted'));
    waiting = undefined;
    end();
  }
  clearTimeout(idle);
  worker ??= start();
  const id = ++last;
  return new Promise((resolve, reject) => {
    waiting = { id, key, resolve, reject };
    worker?.postMessage({ id, request });
  });
}
