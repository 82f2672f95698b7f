// Texts from outside. They are shown as they are, except that what cannot be seen is made visible.

import { html } from '../vendor/lit-html@3.3.3/lit-html.js';

/** @import { TemplateResult } from '../vendor/lit-html@3.3.3/lit-html.js' */

const NOT_SEEN = '\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f\\u00ad\\u061c\\u180e\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f\\ufeff\\ufff9-\\ufffb';
const LONE = '[\\ud800-\\udbff](?![\\udc00-\\udfff])|(?<![\\ud800-\\udbff])[\\udc00-\\udfff]';
const hidden = new RegExp(`[${NOT_SEEN}]|${LONE}`);
const split = new RegExp(`([${NOT_SEEN}]|${LONE})`);
const hiddenOrBreak = new RegExp(`[${NOT_SEEN}\\t\\n]|${LONE}`, 'g');

/** @param {string} sign */
function nameOf(sign) {
  if (sign === '\n') return '\\n';
  if (sign === '\t') return '\\t';
  if (sign === '\r') return '\\r';
  return `U+${sign.charCodeAt(0).toString(16).toUpperCase().padStart(4, '0')}`;
}

/**
 * A text for the page: control signs and marks of direction stand there by their numbers.
 * @param {unknown} value
 * @returns {string | (string | TemplateResult)[]}
 */
export function shown(value) {
  const text = value === undefined || value === null ? '' : String(value);
  if (!hidden.test(text)) return text;
  return text.split(split).map((part, index) => (index % 2 ? html`<span class="sign">${nameOf(part)}</span>` : part));
}

/**
 * The same for one line without markup: titles, labels, file names.
 * @param {unknown} value
 */
export function plain(value) {
  const text = value === undefined || value === null ? '' : String(value);
  return text.replace(hiddenOrBreak, (sign) => `⟨${nameOf(sign)}⟩`);
}

/**
 * @param {unknown} value
 * @param {number} most
 */
export function cut(value, most) {
  const text = String(value ?? '');
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}

/**
 * As much of an id as tells jobs apart. Child jobs of one step have all but the end in common.
 * @param {string} id
 */
export function shortId(id) {
  return id[14] === '8' && id.length === 36 ? `${id.slice(0, 4)}…${id.slice(-4)}` : id.slice(0, 8);
}

/**
 * What a job is called in a list: by its label, or else by its id.
 * @param {string | undefined} label
 * @param {string} id
 */
export function named(label, id) {
  return label === undefined ? html`<code>${shown(shortId(id))}</code>` : html`<span class="job-label" title=${id}>${shown(label)}</span>`;
}

/** Formats that are made when they are first needed: each takes a browser 10 ms. @type {{ groups?: Intl.NumberFormat, short?: Intl.NumberFormat }} */
const formats = {};

/** @param {number | undefined} value */
export function count(value) {
  if (value === undefined) return '–';
  // As the format writes it.
  if (Number.isInteger(value) && value >= 0 && value < 1000) return `${value}`;
  return (formats.groups ??= new Intl.NumberFormat('en-US')).format(value);
}

/**
 * A number where there is little room: 99,874 is 99.8K. It is never more than there are.
 * @param {number} value
 */
export function few(value) {
  if (value < 10_000) return count(value);
  return (formats.short ??= new Intl.NumberFormat('en-US', { notation: 'compact', maximumSignificantDigits: 3, roundingMode: 'trunc' })).format(value);
}

/**
 * @param {number} value
 * @param {string} one
 * @param {string} [many]
 */
export function counted(value, one, many = `${one}s`) {
  return `${count(value)} ${value === 1 ? one : many}`;
}

/** @param {number | undefined} value */
export function bytes(value) {
  if (value === undefined) return '–';
  if (value < 1024) return `${value} B`;
  const units = ['KB', 'MB', 'GB', 'TB'];
  let amount = value / 1024;
  let unit = 0;
  while (amount >= 1000 && unit < units.length - 1) {
    amount /= 1024;
    unit += 1;
  }
  return `${amount < 10 ? amount.toFixed(1) : Math.round(amount)} ${units[unit]}`;
}

/**
 * A share for people: never 100 % or 0 % unless it is so.
 * @param {number} part
 * @param {number} whole
 */
export function share(part, whole) {
  if (!whole) return '–';
  const percent = (100 * part) / whole;
  if (part === whole) return '100 %';
  if (part === 0) return '0 %';
  if (percent < 0.1) return '< 0.1 %';
  if (percent > 99.9) return '> 99.9 %';
  return `${percent.toFixed(1)} %`;
}
