// Why a job stands where it stands: the manager's sentence, with times as all others of the page, and as short as it can be read at once.

import { html, nothing } from '../vendor/lit-html@3.3.3/lit-html.js';
import { counted, count, shown } from '../lib/text.js';
import { firstPart, told } from '../lib/time.js';
import { doneOf } from './job-graph.js';

/** @import { Step, Why } from '../lib/types.js' */

const CAUSES = /** @type {Record<string, string>} */ ({ no_consumer: 'no consumer', not_delivered: 'not delivered', person: 'a person', paused: 'paused', back_off: 'next attempt', limit: 'a limit', window_full: 'items under way', all_busy: 'workers busy', working: 'a worker has it', lost: 'message lost', broker_gone: 'no broker', broker_blocked: 'broker blocked', queue_full: 'queue full', journal_full: 'disk full', starts_later: 'begins later' });

/** In a few words. @param {Why | undefined} why */
export function cause(why) {
  if (!why) return '';
  return Object.hasOwn(CAUSES, why.cause) ? CAUSES[why.cause] : shown(why.cause.replaceAll('_', ' '));
}

/**
 * The rest of a long sentence is behind a word.
 * @param {Why} why
 * @param {Step[]} [steps] of the job
 */
export function whyText(why, steps = []) {
  const children = why.cause === 'window_full' ? steps.find((step) => step.name === why.step)?.children : undefined;
  if (children) {
    // Nothing is wrong with a fan-out that does as many items at once as it may.
    const under = children.running ?? children.started - children.ended;
    return html`<p>Step ${shown(why.step ?? '')} works on its items: ${count(doneOf(children) + children.failed)} of ${counted(children.items, 'item')} ended, ${count(under)} at once.</p>${rest(why.why)}`;
  }
  const [first, more] = firstPart(why.why);
  return html`<p>${told(first)}${more ? ' …' : nothing}</p>${more ? rest(more) : nothing}`;
}

/** @param {string} text */
function rest(text) {
  return html`<details class="why-more"><summary>More</summary><p>${told(text)}</p></details>`;
}
