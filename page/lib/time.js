// Times and durations. The API gives times as RFC 3339 with nanoseconds, and durations in nanoseconds.

import { html } from '../vendor/lit-html@3.3.3/lit-html.js';
import { preferences } from './preferences.js';
import { shown } from './text.js';

const MONTHS = ['Jan', 'Feb', 'Mar', 'Apr', 'May', 'Jun', 'Jul', 'Aug', 'Sep', 'Oct', 'Nov', 'Dec'];

/**
 * Milliseconds since 1970 with their fraction, or NaN.
 * @param {string | undefined} text
 */
export function millis(text) {
  if (!text) return Number.NaN;
  const match = /^(.*?)\.(\d+)(Z|[+-]\d\d:\d\d)$/.exec(text);
  if (!match) return Date.parse(text);
  return Date.parse(match[1] + match[3]) + Number(`0.${match[2]}`) * 1000;
}

/** @param {number} value */
const two = (value) => String(value).padStart(2, '0');

/**
 * @param {number} at
 * @param {{ day?: boolean, fraction?: boolean }} [options]
 */
export function clock(at, { day = true, fraction = false } = {}) {
  if (!Number.isFinite(at)) return '–';
  const date = new Date(at);
  const utc = preferences.utc;
  const hours = utc ? date.getUTCHours() : date.getHours();
  const minutes = utc ? date.getUTCMinutes() : date.getMinutes();
  const seconds = utc ? date.getUTCSeconds() : date.getSeconds();
  const rest = fraction ? `.${String(Math.floor(((at % 1000) + 1000) % 1000)).padStart(3, '0')}` : '';
  const time = `${two(hours)}:${two(minutes)}:${two(seconds)}${rest}`;
  if (!day) return time;
  const year = utc ? date.getUTCFullYear() : date.getFullYear();
  const now = new Date();
  const thisYear = utc ? now.getUTCFullYear() : now.getFullYear();
  const month = MONTHS[utc ? date.getUTCMonth() : date.getMonth()];
  return `${utc ? date.getUTCDate() : date.getDate()} ${month}${year === thisYear ? '' : ` ${year}`} ${time}`;
}

/**
 * A duration in milliseconds for people.
 * @param {number} ms
 */
export function span(ms) {
  if (!Number.isFinite(ms)) return '–';
  const abs = Math.abs(ms);
  if (abs < 1) return `${Math.max(1, Math.round(abs * 1000))} µs`;
  if (abs < 1000) return `${Math.round(abs)} ms`;
  if (abs < 10_000) return `${(abs / 1000).toFixed(1)} s`;
  const seconds = Math.round(abs / 1000);
  if (seconds < 60) return `${seconds} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return seconds % 60 && minutes < 10 ? `${minutes} m ${seconds % 60} s` : `${minutes} m`;
  const hours = Math.floor(minutes / 60);
  if (hours < 24) return minutes % 60 ? `${hours} h ${minutes % 60} m` : `${hours} h`;
  const days = Math.floor(hours / 24);
  return hours % 24 && days < 30 ? `${days} d ${hours % 24} h` : `${days} d`;
}

/** @param {number | undefined} ns */
export function nanos(ns) {
  return ns === undefined || ns === null ? '–' : span(ns / 1e6);
}

/**
 * @param {number} at
 * @param {number} [now]
 */
export function ago(at, now = Date.now()) {
  if (!Number.isFinite(at)) return '';
  const ms = now - at;
  if (Math.abs(ms) < 5000) return 'now';
  const abs = Math.abs(ms);
  const rough = abs < 60_000 ? `${Math.round(abs / 1000)} s` : abs < 3_600_000 ? `${Math.floor(abs / 60_000)} m` : abs < 86_400_000 ? `${Math.floor(abs / 3_600_000)} h` : `${Math.floor(abs / 86_400_000)} d`;
  return ms > 0 ? `${rough} ago` : `in ${rough}`;
}

/**
 * From when to when; one time where both are told alike.
 * @param {number} first
 * @param {number} last
 * @param {number} [now]
 */
export function agoBetween(first, last, now = Date.now()) {
  const [from, to] = [ago(first, now), ago(last, now)];
  return from === to ? to : `${from} – ${to}`;
}

/**
 * A time with how long ago it was. The title has all of it.
 * @param {string | undefined} text
 * @param {{ relative?: boolean, day?: boolean, fraction?: boolean }} [options]
 */
export function moment(text, { relative = true, day = true, fraction = false } = {}) {
  const at = millis(text);
  if (!Number.isFinite(at)) return html`<span class="quiet">–</span>`;
  return html`<time datetime=${text ?? ''} title=${text ?? ''}>${clock(at, { day, fraction })}${relative ? html` <span class="quiet">${ago(at)}</span>` : ''}</time>`;
}

const TIME = /(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d))/;

/**
 * A sentence of the manager: the times in it are told as all others of the page.
 * @param {string} text
 */
export function told(text) {
  return text.split(TIME).map((part, index) => (index % 2 && Number.isFinite(millis(part)) ? moment(part) : shown(part)));
}

/** Up to so many words a sentence is shown whole. */
const WORDS = 32;

/**
 * The beginning of a long sentence, up to where it pauses, and the rest.
 * @param {string} text
 * @returns {[string, string]}
 */
export function firstPart(text) {
  const words = (/** @type {string} */ part) => part.split(/\s+/).filter(Boolean).length;
  if (words(text) <= WORDS) return [text, ''];
  /** The last pause within the limit, or else the first. */
  let end = 0;
  for (const { index } of text.matchAll(/; |, | \(/g)) {
    if (end > 0 && words(text.slice(0, index)) > WORDS) break;
    end = index;
  }
  return end ? [text.slice(0, end), text.slice(end).replace(/^[;,]?\s*/, '')] : [text, ''];
}

/**
 * A duration of a definition (`1h30m`, `30s`) as the file has it, or nanoseconds.
 * @param {unknown} value
 */
export function duration(value) {
  if (typeof value === 'number') return nanos(value);
  return value === undefined || value === null ? '–' : String(value);
}
