// What can be typed into the search: an id, a part of one, or words such as `workflow:orders state:failed after:24h`.

import { link } from './route.js';

const UUID = /^(?:urn:uuid:)?\{?([0-9a-f]{8})-?([0-9a-f]{4})-?([0-9a-f]{4})-?([0-9a-f]{4})-?([0-9a-f]{12})\}?$/i;

export const KEYS = ['workflow', 'state', 'after', 'before', 'endedAfter', 'endedBefore', 'id', 'schedule', 'label', 'reasonId', 'failedItems', 'vhost', 'parent', 'order'];

/** The beginnings of words whose rest is a name: of a step, of a column. */
export const NAMED = ['status.', 'column.'];

export const ORDERS = ['newest', 'oldest'];

/** In so many columns a free text is looked for. */
const COLUMNS_MOST = 6;

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
 * The parts of a search. Values with spaces have quotes around them.
 * @param {string} text
 * @returns {{ query: Map<string, string>, unknown: [string, string][], free: string, rest: string }} `unknown`: words with values that are no filters; `free`: what has no word before it; `rest`: both, as they were typed
 */
export function readSearch(text) {
  /** @type {Map<string, string>} */
  const query = new Map();
  /** @type {[string, string][]} */
  const unknown = [];
  const free = [];
  const rest = [];
  for (const [whole, key, quoted, plain, phrase, bare] of text.matchAll(/([A-Za-z][A-Za-z0-9_.-]*):(?:"([^"]*)"|(\S*))|"([^"]*)"|(\S+)/g)) {
    const value = quoted ?? plain ?? '';
    if (key !== undefined && isKey(key) && (key !== 'order' || !value || ORDERS.includes(value))) query.set(key, value);
    else {
      if (key === undefined) free.push(phrase ?? bare);
      else unknown.push([key, value]);
      rest.push(phrase ?? whole);
    }
  }
  return { query, unknown, free: free.join(' '), rest: rest.join(' ') };
}

/** Whether a text may be the beginning of an id. @param {string} text */
export function isIdBeginning(text) {
  return /^[0-9a-f-]+$/i.test(text) && /^.{4,32}$/.test(text.replaceAll('-', ''));
}

/**
 * The searches that a text may mean. Free text is an id's beginning, or a part of a label, or the value of a column.
 * @param {string} text
 * @param {string[]} columns
 * @returns {Map<string, string>[]}
 */
export function searches(text, columns) {
  const { query, unknown, free, rest } = readSearch(text);
  const also = (/** @type {[string, string][]} */ ...more) => new Map([...query, ...more]);
  const label = (/** @type {string} */ words) => also(['label', query.has('label') ? `${query.get('label')} ${words}` : words]);
  if (unknown.length) {
    const meant = unknown.map(([key, value]) => /** @type {[string, string]} */ ([`column.${columnOf(key, columns) ?? ''}`, value]));
    const columned = meant.every(([key]) => key !== 'column.') ? [new Map([...(free ? label(free) : query), ...meant])] : [];
    return [...columned, label(rest)];
  }
  if (!free) return query.size ? [query] : [];
  return [
    ...(isIdBeginning(free) ? [also(['id', free.toLowerCase()])] : []),
    label(free),
    ...columns.filter((name) => !query.has(`column.${name}`)).slice(0, COLUMNS_MOST).map((name) => also([`column.${name}`, free])),
  ];
}

/**
 * What is said of a word with a value that is no filter, and what is probably meant.
 * @param {[string, string]} word
 * @param {string[]} columns
 * @param {string[]} steps
 * @returns {{ text: string, instead?: [string, string] }}
 */
export function faultOf([key, value], columns, steps) {
  const column = columnOf(key, columns);
  if (key === 'order') return column ? { text: 'order sorts the list: newest or oldest. The column is', instead: [`column.${column}`, value] } : { text: 'order sorts the list: newest or oldest, such as', instead: ['order', 'oldest'] };
  if (column) return { text: `${column} is a column:`, instead: [`column.${column}`, value] };
  if (steps.includes(key)) return { text: `${key} is a step:`, instead: [`status.${key}`, value] };
  const near = nearest(key, [...KEYS, ...columns.flatMap((name) => [name, `column.${name}`]), ...steps.map((name) => `status.${name}`)]);
  if (near) return { text: `“${key}” is no filter. Perhaps`, instead: [columns.includes(near) ? `column.${near}` : near, value] };
  return { text: `“${key}” is no filter. Where it is part of a label:`, instead: ['label', `${key}:${value}`] };
}

/** The name that differs least from a word, if it is not by much. @param {string} word @param {string[]} names */
function nearest(word, names) {
  const most = Math.max(1, Math.floor(word.length / 3));
  const [first] = names.map((name) => ({ name, by: distance(word.toLowerCase(), name.toLowerCase()) })).sort((a, b) => a.by - b.by);
  return first && first.by <= most ? first.name : undefined;
}

/** How many letters must be changed, put in or left out to make one text of the other. @param {string} a @param {string} b */
function distance(a, b) {
  let row = Array.from({ length: b.length + 1 }, (_, index) => index);
  for (let at = 0; at < a.length; at += 1) {
    const next = [at + 1];
    for (let to = 0; to < b.length; to += 1) next.push(Math.min(next[to] + 1, row[to + 1] + 1, row[to] + (a[at] === b[to] ? 0 : 1)));
    row = next;
  }
  return row[b.length];
}

/** @param {string} word @param {string[]} columns */
function columnOf(word, columns) {
  return columns.find((name) => name === word) ?? columns.find((name) => name.toLowerCase() === word.toLowerCase());
}

/** @param {Iterable<[string, string]>} query */
export function searchText(query) {
  return [...query].filter(([key]) => isKey(key)).map(([key, value]) => `${key}:${/\s/.test(value) ? `"${value}"` : value}`).join(' ');
}

/**
 * Where a typed text leads that can mean one thing alone.
 * @param {string} text
 * @param {string[]} workflows
 */
export function searchAddress(text, workflows) {
  const id = uuidOf(text);
  if (id) return link(['job', id]);
  const trimmed = text.trim();
  if (workflows.includes(trimmed)) return link(['jobs'], { workflow: trimmed });
  const { query, rest } = readSearch(trimmed);
  return query.size && !rest ? link(['jobs'], query) : undefined;
}

/**
 * What a search is called. What was typed freely is called by what it would be.
 * @param {Map<string, string>} query
 * @param {string} text
 */
export function searchName(query, text) {
  const { query: typed, free } = readSearch(text);
  const own = [...query].filter(([key, value]) => typed.get(key) !== value);
  const also = [...typed].filter(([key, value]) => query.get(key) === value);
  if (!own.length) return `Jobs: ${searchText(query)}`;
  const [[key, value], ...more] = own;
  const what = more.length || !(free || key === 'label') ? searchText(own) : key === 'id' ? `id begins with ${value}` : key === 'label' ? `label has “${value}”` : `${key.replace(/^column\./, '')} is ${value}`;
  return `Jobs: ${what}${also.length ? `, ${searchText(also)}` : ''}`;
}

/**
 * What may follow at the end of a typed text.
 * @param {string} text
 * @param {string[]} workflows
 * @param {string[]} [columns]
 * @param {string[]} [steps]
 * @returns {string[]} whole texts
 */
export function completions(text, workflows, columns = [], steps = []) {
  const match = /(^|\s)(\S*)$/.exec(text);
  const word = match ? match[2] : '';
  const before = text.slice(0, text.length - word.length);
  const colon = word.indexOf(':');
  if (colon < 0) {
    if (!word && !before) return [];
    const named = [...columns.map((name) => `column.${name}`), ...steps.map((name) => `status.${name}`)].filter((key) => key.startsWith(word) && word.includes('.') || (word.length > 1 && key.startsWith(`column.${word}`)));
    return [...[...KEYS, ...NAMED].filter((key) => key.startsWith(word) && key !== word), ...named].map((key) => `${before}${key}${key.endsWith('.') ? '' : ':'}`);
  }
  const key = word.slice(0, colon);
  const value = word.slice(colon + 1);
  const values = key === 'workflow' ? workflows : key === 'state' ? ['running', 'paused', 'failed', 'completed', 'cancelled'] : key === 'after' || key === 'before' || key === 'endedAfter' || key === 'endedBefore' ? ['1h', '24h', '7d'] : key === 'order' ? ORDERS : key === 'failedItems' ? ['true'] : [];
  return values.filter((known) => known.startsWith(value) && known !== value).map((known) => `${before}${key}:${known}`);
}
