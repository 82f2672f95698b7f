// The API of the manager, from the page's own origin. The token stays in this tab and is never part of an address.

const TOKEN = 'workflow-manager.token';

/** What went wrong with a call: a problem detail (RFC 9457), or that there was no answer (status 0). */
export class Problem extends Error {
  /**
   * @param {number} status
   * @param {string} detail
   */
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }

  /** Whether this build of the manager does not have the call or the parameter. */
  get notHere() {
    return (this.status === 404 && this.message.startsWith('there is nothing at')) || (this.status === 400 && /^(unknown parameter|invalid uuid ".*\/)/.test(this.message)) || this.status === 405;
  }
}

/** Where the API is: beside the page, whatever a proxy puts before it. */
export const base = new URL('api/', globalThis.document?.baseURI?.replace(/#.*/, '') ?? 'http://localhost/');

/** @typedef {Record<string, string | number | boolean | null | undefined> | [string, string][]} Query */

/**
 * @param {string[]} path
 * @param {Query} [query]
 */
export function address(path, query = {}) {
  const url = new URL(path.map((part) => encodeURIComponent(part)).join('/'), base);
  for (const [key, value] of Array.isArray(query) ? query : Object.entries(query)) {
    // An empty status is one of a step that waits.
    if (value !== undefined && value !== null && (value !== '' || key.startsWith('step.'))) url.searchParams.append(key, String(value));
  }
  return url;
}

export const token = {
  get() {
    try {
      return sessionStorage.getItem(TOKEN) ?? '';
    } catch {
      return '';
    }
  },
  /** @param {string} value */
  set(value) {
    if (value) sessionStorage.setItem(TOKEN, value);
    else sessionStorage.removeItem(TOKEN);
  },
};

/** What the page knows of the connection. `main.js` sets `changed`. */
export const connection = {
  /** @type {'unknown' | 'good' | 'lost' | 'refused'} */
  state: 'unknown',
  /** @type {string} */
  detail: '',
  changed: () => {},
  /** The token is good, but not for this call. */
  forbidden: () => {},
};

/**
 * @param {typeof connection.state} state
 * @param {string} [detail]
 */
function connected(state, detail = '') {
  if (connection.state === state && connection.detail === detail) return;
  connection.state = state;
  connection.detail = detail;
  connection.changed();
}

/**
 * @param {URL} url
 * @param {RequestInit & { headers?: Record<string, string> }} [options]
 */
export async function send(url, options = {}) {
  /** @type {Record<string, string>} */
  const headers = { ...options.headers };
  const secret = token.get();
  if (secret) headers.Authorization = `Bearer ${secret}`;
  let response;
  try {
    response = await fetch(url, { ...options, headers, credentials: 'same-origin', cache: 'no-store', redirect: 'error' });
  } catch (error) {
    if (options.signal?.aborted) throw error;
    connected('lost', 'the manager does not answer');
    throw new Problem(0, 'the manager does not answer');
  }
  if (response.status === 401) {
    connected('refused', secret ? 'the token is not the right one' : 'a token is needed');
  } else {
    connected('good');
    if (response.status === 403) connection.forbidden();
  }
  if (response.ok || response.status === 304) return response;
  throw await problemOf(response);
}

/** @param {Response} response */
async function problemOf(response) {
  let detail = `${response.status} ${response.statusText}`.trim();
  try {
    const body = await response.json();
    if (typeof body?.detail === 'string') detail = body.detail;
  } catch {
    // A proxy may answer anything.
  }
  return new Problem(response.status, detail);
}

/** @type {Map<string, { etag: string, data: unknown }>} */
const known = new Map();
const KNOWN_MOST = 40;

/**
 * @template T
 * @param {string[]} path
 * @param {Query} [query]
 * @param {AbortSignal} [signal]
 * @returns {Promise<T>} the same object as before if nothing has changed
 */
export async function get(path, query = {}, signal = undefined) {
  const url = address(path, query);
  const before = known.get(url.href);
  const response = await send(url, { signal, headers: before ? { 'If-None-Match': before.etag } : {} });
  if (response.status === 304 && before) return /** @type {T} */ (before.data);
  const data = await response.json();
  const etag = response.headers.get('ETag');
  known.delete(url.href);
  if (etag) {
    known.set(url.href, { etag, data });
    if (known.size > KNOWN_MOST) known.delete(/** @type {string} */ (known.keys().next().value));
  }
  return data;
}

/**
 * @template T
 * @param {string} method
 * @param {string[]} path
 * @param {Query} [query]
 * @param {string} [body]
 * @returns {Promise<T>}
 */
export async function act(method, path, query = {}, body = undefined) {
  const response = await send(address(path, query), { method, body, headers: body === undefined ? {} : { 'Content-Type': 'application/json' } });
  return response.json();
}

/**
 * The raw text of a payload, or its first part. A part may end within a sign: what is cut of it is left out.
 * @param {string[]} path
 * @param {{ most?: number, query?: Query, signal?: AbortSignal }} [options]
 * @returns {Promise<{ text: string, size: number, whole: boolean }>}
 */
export async function raw(path, { most, query, signal } = {}) {
  const response = await send(address(path, query), { signal, headers: most ? { Range: `bytes=0-${most - 1}` } : {} });
  const range = /^bytes \d+-\d+\/(\d+)$/.exec(response.headers.get('Content-Range') ?? '');
  const buffer = new Uint8Array(await response.arrayBuffer());
  const partial = response.status === 206 && range !== null && Number(range[1]) > buffer.length;
  if (partial) return { text: new TextDecoder().decode(buffer, { stream: true }), size: Number(range[1]), whole: false };
  // A manager without ranges sends all: show the first part of it all the same.
  if (most && buffer.length > most) return { text: new TextDecoder().decode(buffer.subarray(0, most), { stream: true }), size: buffer.length, whole: false };
  return { text: new TextDecoder().decode(buffer), size: buffer.length, whole: true };
}

/**
 * Saves what a call answers as a file. The token goes in a header, so a plain link would not do.
 * @param {string[]} path
 * @param {string} name
 * @param {{ query?: Query, accept?: string }} [options]
 */
export async function download(path, name, { query, accept } = {}) {
  const response = await send(address(path, query), { headers: accept ? { Accept: accept } : {} });
  const link = document.createElement('a');
  link.href = URL.createObjectURL(await response.blob());
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

/** @param {string} word */
const quoted = (word) => (/^[A-Za-z0-9_./:=?&%-]+$/.test(word) && !/[?&]/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`);

/**
 * The same call for a shell. The token is named, not told.
 * @param {string} method
 * @param {string[]} path
 * @param {Query} [query]
 */
export function curl(method, path, query = {}) {
  const secret = token.get() ? ` -H "Authorization: Bearer $WORKFLOW_MANAGER_TOKEN"` : '';
  return `curl${method === 'GET' ? '' : ` -X ${method}`}${secret} ${quoted(address(path, query).href)}`;
}

/** @param {string[]} words */
export function command(...words) {
  return ['workflow-manager', ...words].map(quoted).join(' ');
}
