// Why something failed, as the manager tells it: what matters first, with a link to the child job in which it went wrong.

import { html, nothing } from '../vendor/lit-html@3.3.3/lit-html.js';
import { link } from './route.js';
import { cut, plain, shortId, shown } from './text.js';

/** What stands before the words of a worker. */
const BY_WORKER = 'the worker reported an error: ';
const STEP = /^step "([^"]*)"(?: of item (\d+))?: /;
const CHILD = / \(child job ([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})((?:,| of step )[^()]*)\)$/;

/**
 * The parts of a reason.
 * @param {string} reason
 * @returns {{ step?: string, item?: number, text: string, child?: string, way?: string }}
 */
export function reasonParts(reason) {
  const child = CHILD.exec(reason);
  const rest = child ? reason.slice(0, child.index) : reason;
  const step = STEP.exec(rest);
  const text = step ? rest.slice(step[0].length) : rest;
  return {
    step: step?.[1],
    item: step?.[2] === undefined ? undefined : Number(step[2]),
    text: text.startsWith(BY_WORKER) ? text.slice(BY_WORKER.length) : text,
    child: child?.[1],
    way: child?.[2].replace(/^, /, ''),
  };
}

/**
 * A reason in one line, without what is always the same.
 * @param {string} reason
 */
export function shortReason(reason) {
  const { step, item, text } = reasonParts(reason);
  return `${step === undefined ? '' : `${step}${item === undefined ? '' : `[${item}]`}: `}${text}`;
}

/**
 * A reason in full, with a link to the child job that it names.
 * @param {string} reason
 */
export function reasonText(reason) {
  const { step, item, text, child, way } = reasonParts(reason);
  return html`${step === undefined ? nothing : html`<b>${shown(step)}</b>${item === undefined ? nothing : html` <span class="quiet">of item ${item}</span>`}: `}${shown(text)}${child ? html` <span class="quiet">(child job <a href=${link(['job', child])} title=${child}><code>${shortId(child)}</code></a>${way ? html`${way.startsWith(' ') ? '' : ', '}${shown(way)}` : nothing})</span>` : nothing}`;
}

/**
 * What a reason is called where there is little room.
 * @param {string} pattern
 */
export function reasonName(pattern) {
  return plain(cut(shortReason(pattern), 60));
}
