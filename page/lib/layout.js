// Asks the worker for layouts and keeps the newest. One is computed at a time, the others wait: a page may show several graphs. A graph
// that nobody waits for any more gives way, and the worker is ended if it is at it. An idle worker is ended after a while.

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

/** A layout that is wanted. */
class Task {
  /** How many wait for it. */
  wanted = 0;
  /** @type {(layout: Layout) => void} */
  resolve = () => {};
  /** @type {(error: Error) => void} */
  reject = () => {};
  /** @type {Promise<Layout>} */
  settled = new Promise((resolve, reject) => {
    this.resolve = resolve;
    this.reject = reject;
  });

  /**
   * @param {string} key
   * @param {LayoutRequest} request
   */
  constructor(key, request) {
    this.key = key;
    this.request = request;
  }
}

/** What is wanted, by key; the first is the one that is computed. @type {Map<string, Task>} */
const tasks = new Map();
/** @type {Task | undefined} */
let now;
/** @type {Worker | undefined} */
let worker;
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
    if (!now || event.data.id !== last) return;
    const { key, resolve, reject } = now;
    if (event.data.error) reject(new Error(event.data.error));
    else {
      done.set(key, event.data.layout);
      if (done.size > KEPT) done.delete(/** @type {string} */ (done.keys().next().value));
      resolve(event.data.layout);
    }
    forget(now);
  });
  made.addEventListener('error', (event) => {
    end();
    if (!now) return;
    now.reject(new Error(event.message || 'the layout failed'));
    forget(now);
  });
  return made;
}

/** @param {Task} task */
function forget(task) {
  tasks.delete(task.key);
  if (now === task) now = undefined;
  next();
}

function next() {
  if (now) return;
  clearTimeout(idle);
  now = tasks.values().next().value;
  if (!now) {
    idle = setTimeout(end, IDLE);
    return;
  }
  worker ??= start();
  last += 1;
  worker.postMessage({ id: last, request: now.request });
}

/** Ends what is computed for nobody, if another graph waits for it. */
function makeWay() {
  if (!now || now.wanted > 0 || tasks.size < 2) return;
  end();
  forget(now);
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
 * @returns {{ layout: Promise<Layout>, leave: () => void }} `leave`: this one does not wait for it any more
 */
export function layOut(key, request) {
  const before = done.get(key);
  if (before) return { layout: Promise.resolve(before), leave() {} };
  let task = tasks.get(key);
  if (!task) {
    task = new Task(key, request);
    tasks.set(key, task);
    makeWay();
    next();
  }
  const wanted = task;
  wanted.wanted += 1;
  let waits = true;
  return {
    layout: wanted.settled,
    leave() {
      if (!waits) return;
      waits = false;
      wanted.wanted -= 1;
      if (wanted.wanted > 0 || tasks.get(key) !== wanted) return;
      if (now !== wanted) tasks.delete(key);
      else makeWay();
    },
  };
}
