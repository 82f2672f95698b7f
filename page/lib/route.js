// Addresses within the page: `#/job/ID?step=S&at=N`. Everything that is shown follows from them.

/**
 * @typedef {object} Route
 * @property {string[]} path the parts between slashes, decoded
 * @property {Map<string, string>} query decoded, in the order of the address
 */

/** @param {string} text */
function decode(text) {
  try {
    return decodeURIComponent(text.replaceAll('+', ' '));
  } catch {
    return text;
  }
}

/** What stays readable in an address need not be encoded. @param {string} text */
function encode(text) {
  return encodeURIComponent(text).replaceAll('%2F', '/').replaceAll('%2C', ',').replaceAll('%3A', ':').replaceAll('%20', '+');
}

/**
 * @param {string} hash with or without the `#`
 * @returns {Route}
 */
export function parseRoute(hash) {
  const text = hash.replace(/^#?\/?/, '');
  const mark = text.indexOf('?');
  const path = (mark < 0 ? text : text.slice(0, mark)).split('/').filter((part) => part !== '').map(decode);
  /** @type {Map<string, string>} */
  const query = new Map();
  if (mark >= 0) {
    for (const pair of text.slice(mark + 1).split('&')) {
      if (pair === '') continue;
      const equals = pair.indexOf('=');
      if (equals < 0) query.set(decode(pair), '');
      else query.set(decode(pair.slice(0, equals)), decode(pair.slice(equals + 1)));
    }
  }
  return { path, query };
}

/**
 * @param {string[]} path
 * @param {Iterable<[string, string]> | Record<string, string | number | undefined>} [query] what is undefined or empty is left out
 */
export function link(path, query = {}) {
  const pairs = Symbol.iterator in query ? [...query] : Object.entries(query);
  const kept = pairs.filter(([, value]) => value !== undefined && value !== '');
  const parts = path.map((part) => encodeURIComponent(part)).join('/');
  return `#/${parts}${kept.length ? '?' : ''}${kept.map(([key, value]) => `${encode(key)}=${encode(String(value))}`).join('&')}`;
}

/**
 * The same place with some of its query changed. An undefined or empty value takes the key out.
 * @param {Route} route
 * @param {Record<string, string | number | undefined>} changes
 */
export function changed(route, changes) {
  const query = new Map(route.query);
  for (const [key, value] of Object.entries(changes)) {
    if (value === undefined || value === '') query.delete(key);
    else query.set(key, String(value));
  }
  return link(route.path, query);
}
