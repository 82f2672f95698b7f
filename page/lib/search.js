// What can be typed into the search: an id, a part of one, or words such as `workflow:orders state:failed after:24h`.

import { link } from './route.js';

const UUID = /^(?:urn:uuid:)?\{?([0-9a-f]{8})-?([0-9a-f]{4})-?([0-9a-f]{4})-?([0-9a-f]{4})-?([0-9a-f]{12})\}?$/i;

export const KEYS = ['workflow', 'state', 'after', 'before', 'endedAfter', 'endedBefore', 'id', 'schedule', 'label', 'reasonId', 'failedItems', 'vhost', 'parent', 'order'];

/** The beginnings of words whose rest is a name: of a step, of a column. */
export const NAMED = ['status.', 'column.'];

/**
 * The options of a command that say the same as these filters.
 * @param {[string, string][]} filters
 */
export function filterOptions(filters) {
  return filters.flatMap(([key, value]) => {
    const named = NAMED.find((beginning) => key.startsWith(beginning));
    if (named) return [`--${named.slice(0, -1)}`, `${key.slice(named.length)}=${value}`];
    if (key === 'failedItems') return value === 'true' ? ['--failed-items'] : [];
    return [`--${key.replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`)}`, value];
  });
}

/** @param {string} key */
const isKey = (key) => KEYS.includes(key) || NAMED.some((named) => key.startsWith(named));

/** @param {string} text */
export function uuidOf(text) {
  const match = UUID.exec(text.trim());
  return match ? match.slice(1).join('-').toLowerCase() : undefined;
}

/**
 * The words of a search, with quotes around values that have spaces.
 * @param {string} text
 * @returns {Map<string, string>}
 */
export function searchQuery(text) {
  /** @type {Map<string, string>} */
  const query = new Map();
  for (const [, key, quoted, plain, bare] of text.matchAll(/([A-Za-z][A-Za-z0-9_.-]*):(?:"([^"]*)"|(\S*))|(\S+)/g)) {
    if (key && isKey(key)) query.set(key, quoted ?? plain ?? '');
    else if (bare && /^[0-9a-f-]{4,}$/i.test(bare)) query.set('id', bare.toLowerCase());
  }
  return query;
}

/** @param {Iterable<[string, string]>} query */
export function searchText(query) {
  return [...query].filter(([key]) => isKey(key)).map(([key, value]) => `${key}:${/\s/.test(value) ? `"${value}"` : value}`).join(' ');
}

/**
 * Where a typed text leads.
 * @param {string} text
 * @param {string[]} workflows
 */
export function searchAddress(text, workflows) {
  const id = uuidOf(text);
  if (id) return link(['job', id]);
  const trimmed = text.trim();
  if (workflows.includes(trimmed)) return link(['jobs'], { workflow: trimmed });
  const query = searchQuery(trimmed);
  return query.size ? link(['jobs'], query) : undefined;
}

/**
 * What may follow at the end of a typed text.
 * @param {string} text
 * @param {string[]} workflows
 * @returns {string[]} whole texts
 */
export function completions(text, workflows) {
  const match = /(^|\s)(\S*)$/.exec(text);
  const word = match ? match[2] : '';
  const before = text.slice(0, text.length - word.length);
  const colon = word.indexOf(':');
  if (colon < 0) {
    if (!word && !before) return [];
    return [...KEYS, ...NAMED].filter((key) => key.startsWith(word) && key !== word).map((key) => `${before}${key}${key.endsWith('.') ? '' : ':'}`);
  }
  const key = word.slice(0, colon);
  const value = word.slice(colon + 1);
  const values = key === 'workflow' ? workflows : key === 'state' ? ['running', 'paused', 'failed', 'completed', 'cancelled'] : key === 'after' || key === 'before' || key === 'endedAfter' || key === 'endedBefore' ? ['1h', '24h', '7d'] : key === 'order' ? ['newest', 'oldest'] : key === 'failedItems' ? ['true'] : [];
  return values.filter((known) => known.startsWith(value) && known !== value).map((known) => `${before}${key}:${known}`);
}
