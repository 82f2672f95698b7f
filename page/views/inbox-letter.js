// A step that waits for a person: what tells it from others.

import { html, nothing } from '../vendor/lit-html@3.3.3/lit-html.js';
import { link } from '../lib/route.js';
import { count, plain, shortId, shown } from '../lib/text.js';

/** @import { InboxStep } from '../lib/types.js' */

/** @typedef {InboxStep & { key: string, turn: string }} Letter a step that waits for a person; `turn`: this time, and not an attempt before or after */

/** @param {string} job @param {string} step */
export const keyOf = (job, step) => `${job} ${step}`;

/** Which item of which task a child job is for. @param {Letter} letter */
export const placeOf = ({ task, item }) => (task === undefined ? nothing : html` <span class="letter-item">${shown(task)} ${count(item)}</span>`);

/** The columns of its workflow, in one line: they tell steps apart that are called alike. @param {Letter} letter */
export function columnsOf({ columns = {} }) {
  const all = Object.entries(columns).map(([name, value]) => ({ name, value: String(value) }));
  if (!all.length) return nothing;
  return html`<span class="quiet letter-columns" title=${plain(all.map(({ name, value }) => `${name} ${value}`).join(' · '))}>${all.map(({ name, value }, index) => html`${index ? ' · ' : ''}${shown(name)} <b>${shown(value)}</b>`)}</span>`;
}

/** @param {Letter} letter */
export const letterLink = (letter) => link(['inbox'], { job: letter.job, step: letter.step });

/** What it is called in one line without markup. @param {Letter} letter */
export function nameOf({ step, task, item, label, root, job }) {
  return plain(`step ${step} of ${task === undefined ? '' : `${task} ${count(item)} of `}${label ?? `job ${shortId(root ?? job)}`}`);
}
