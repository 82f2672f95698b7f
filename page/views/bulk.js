// An operation on many jobs: first what it would do, then, for what destroys, a number to type, then page by page with what was refused.

import { html, nothing } from '../vendor/lit-html@3.3.3/lit-html.js';
import { act, command, curl } from '../lib/api.js';
import { closeDialog, copied, messageOf, openDialog } from '../lib/app.js';
import { css } from '../lib/dom.js';
import { icon } from '../lib/icons.js';
import { redraw } from '../lib/redraw.js';
import { link } from '../lib/route.js';
import { filterOptions } from '../lib/search.js';
import { may } from '../lib/shared.js';
import { badge } from '../lib/states.js';
import { count, counted, named, shown } from '../lib/text.js';
import { moment } from '../lib/time.js';
import { whyField } from './job-operations.js';

/** @import { Found } from '../lib/types.js' */

const OPERATIONS = /** @type {const} */ ({
  retry: { label: 'Retry', says: 'Failed jobs go on from what failed.', of: ['failed'], danger: false },
  pause: { label: 'Pause', says: 'Nothing new is dispatched.', of: ['running'], danger: false },
  resume: { label: 'Resume', says: 'Paused jobs go on.', of: ['paused'], danger: false },
  rerun: { label: 'Run again', says: 'A step of ended jobs, and all that depends on it, is done once more.', of: ['completed', 'failed', 'cancelled'], danger: true },
  cancel: { label: 'Cancel', says: 'Jobs under way end, with their child jobs.', of: ['running', 'paused'], danger: true },
  delete: { label: 'Erase', says: 'Ended jobs are erased from the journal, with all that is known of them.', of: ['completed', 'failed', 'cancelled'], danger: true },
});

/** @typedef {{ job: string, label?: string, reason: string }} Refusal */

const PAGE = 1000;
const PAGES_LOOKED = 10;

/**
 * @param {[string, string][]} filters
 * @param {(key: string, value: string) => [string, string]} told a filter as people read it
 * @param {() => void} done
 * @param {{ job: string, label?: string }[]} [marked] only these
 */
export function openBulk(filters, told, done, marked) {
  /** @type {keyof typeof OPERATIONS | undefined} */
  let chosen;
  /** @type {{ matched: number, more: boolean, jobs: Found[] } | undefined} */
  let dry;
  let problem = '';
  let typed = '';
  let reason = '';
  /** From which step on, for those that are run again. */
  let step = '';
  /** Whether only the failed items of that step are run again. */
  let failedItems = filters.some(([key]) => key === 'failedItems');
  /** @type {{ matched: number, done: number, refused: number, refusals: Refusal[], over: boolean, stop: boolean } | undefined} */
  let run;

  /** What only a rerun takes. @returns {[string, string][]} */
  const from = () => (chosen !== 'rerun' ? [] : failedItems ? [['step', step], ['items', 'failed']] : [['step', step]]);
  /** @returns {[string, string][]} */
  const asked = () => [...filters, ...from()];
  /** Nothing is left of an erased job that could tell it. @returns {[string, string][]} */
  const why = () => (chosen !== 'delete' && reason.trim() ? [['reason', reason.trim()]] : []);

  /** @param {keyof typeof OPERATIONS} operation */
  async function look(operation) {
    chosen = operation;
    dry = undefined;
    problem = '';
    typed = '';
    redraw();
    if (operation === 'rerun' && !step) return;
    try {
      if (marked) {
        dry = { matched: marked.length, more: false, jobs: [] };
      } else {
        let matched = 0;
        /** @type {Found[]} */
        const jobs = [];
        /** @type {string | undefined} */
        let cursor;
        for (let page = 0; page < PAGES_LOOKED; page += 1) {
          /** @type {{ matched: number, next?: string, jobs: Found[] }} */
          const answer = await act('POST', ['jobs', operation], [...asked(), ['dryRun', 'true'], ['limit', String(PAGE)], ['cursor', cursor ?? '']]);
          matched += answer.matched;
          if (jobs.length < 20) jobs.push(...answer.jobs.slice(0, 20 - jobs.length));
          cursor = answer.next;
          if (!cursor || chosen !== operation) break;
        }
        if (chosen !== operation) return;
        dry = { matched, more: cursor !== undefined, jobs };
      }
    } catch (error) {
      problem = messageOf(error);
    }
    redraw();
  }

  async function go() {
    if (!chosen || !dry) return;
    const now = { matched: 0, done: 0, refused: 0, refusals: /** @type {Refusal[]} */ ([]), over: false, stop: false };
    run = now;
    redraw();
    try {
      if (marked) {
        for (const { job, label } of marked) {
          if (now.stop) break;
          now.matched += 1;
          try {
            if (chosen === 'delete') await act('DELETE', ['job', job], { erase: true });
            else await act('POST', ['job', job, chosen], [...from(), ...why()]);
            now.done += 1;
          } catch (error) {
            now.refused += 1;
            now.refusals.push({ job, label, reason: messageOf(error) });
          }
          redraw();
        }
      } else {
        /** @type {string | undefined} */
        let cursor;
        do {
          /** @type {{ matched: number, done: number, refused: number, refusals?: Refusal[], next?: string }} */
          const answer = await act('POST', ['jobs', chosen], [...asked(), ...why(), ['limit', String(PAGE)], ['cursor', cursor ?? '']]);
          now.matched += answer.matched;
          now.done += answer.done;
          now.refused += answer.refused;
          now.refusals.push(...(answer.refusals ?? []).slice(0, Math.max(0, 200 - now.refusals.length)));
          cursor = answer.next;
          redraw();
        } while (cursor && !now.stop);
      }
    } catch (error) {
      problem = messageOf(error);
    }
    now.over = true;
    done();
    redraw();
  }

  const words = () => filters.map((filter) => told(...filter)).map(([key, value]) => html`<span class="word">${shown(key)}: ${shown(value)}</span> `);
  openDialog({
    title: marked ? `${counted(marked.length, 'marked job')}` : 'All jobs that this search finds',
    wide: true,
    closed: () => { if (run) run.stop = true; },
    body: () => html`<div class="bulk">
      ${marked ? nothing : html`<p class="row">${words()}</p>`}
      <div class="choices bulk-choices" role="group" aria-label="Operation">${Object.entries(OPERATIONS).filter(([name]) => name !== 'delete' || may('admin')).map(([name, { label }]) => html`<button class="chip" aria-pressed=${chosen === name ? 'true' : 'false'} ?disabled=${run !== undefined} @click=${() => look(/** @type {keyof typeof OPERATIONS} */ (name))}>${label}</button>`)}</div>
      ${chosen ? html`<p class="quiet">${OPERATIONS[chosen].says} Jobs in other states are refused and stay as they are.</p>` : html`<p class="quiet">Choose an operation: the manager says first what it would do.</p>`}
      ${chosen === 'rerun' && !run ? html`<form class="row" @submit=${(/** @type {SubmitEvent} */ event) => { event.preventDefault(); const form = new FormData(/** @type {HTMLFormElement} */ (event.currentTarget)); step = String(form.get('step') ?? '').trim(); failedItems = form.has('items'); void look('rerun'); }}><label class="label" for="bulk-step">From which step</label><input class="field" id="bulk-step" name="step" required autocomplete="off" spellcheck="false" .value=${step}><label class="row"><input type="checkbox" name="items" .checked=${failedItems}>Only its failed items</label><button class="button">Look</button></form>` : nothing}
      ${problem ? html`<p class="problem" role="alert">${icon('alert')}<span>${shown(problem)}</span></p>` : nothing}
      ${chosen && !dry && !problem && (chosen !== 'rerun' || step) ? html`<div class="waiting-lines"><i></i><i></i></div>` : nothing}
      ${dry && !run ? preview() : nothing}
      ${run ? progress() : nothing}</div>
      <footer class="dialog-foot">${run ? html`<button class="button" @click=${closeDialog}>${run.over ? 'Close' : 'Stop here'}</button>` : html`<button class="button" @click=${closeDialog}>No, leave them</button>${chosen && dry?.matched ? html`<button class="button ${OPERATIONS[chosen].danger ? 'danger' : 'primary'}" ?disabled=${typed.replace(/[ ,.]/g, '') !== String(dry.matched)} @click=${go}>${OPERATIONS[chosen].label} ${counted(dry.matched, 'job')}</button>` : nothing}`}</footer>`,
  });

  function preview() {
    if (!dry || !chosen) return nothing;
    const { matched, more, jobs } = dry;
    if (!matched) return html`<p>No jobs to ${OPERATIONS[chosen].label.toLowerCase()}.</p>`;
    return html`<p><b>${more ? 'More than ' : ''}${counted(matched, 'job')}</b> would be asked${jobs.length && matched > jobs.length ? html`, the first ${jobs.length} of them:` : ':'}</p>
      ${jobs.length ? html`<ul class="facts-list bulk-list">${jobs.map((job) => html`<li>${badge(job.state)}<a href=${link(['job', job.job])}>${named(job.label, job.job)}</a><span>${shown(job.workflow)}</span><span class="quiet">${moment(job.created, { relative: false })}</span></li>`)}</ul>` : nothing}
      ${chosen === 'delete' ? nothing : html`<div class="dialog-form ask-why">${whyField((text) => { reason = text; })}</div>`}
      <label class="row bulk-typed">Type <b>${matched}</b> to go on <input class="field" inputmode="numeric" autocomplete="off" .value=${typed} @input=${(/** @type {InputEvent} */ event) => { typed = /** @type {HTMLInputElement} */ (event.target).value; redraw(); }}></label>
      <details class="as-command"><summary>The same for a shell</summary><div class="command"><code>${shown(curl('POST', ['jobs', chosen], asked()))}</code><button class="tool" aria-label="Copy" @click=${() => copied(curl('POST', ['jobs', chosen ?? ''], asked()), 'Command')}>${icon('copy')}</button></div>${filters.length ? html`<div class="command"><code>${shown(command(chosen, ...filterOptions([...from(), ...filters])))}</code></div>` : nothing}</details>`;
  }

  function progress() {
    if (!run || !dry) return nothing;
    const all = Math.max(dry.matched, run.matched);
    return html`<div class="fan-bar"><i class="completed" ${css({ width: `${(100 * run.done) / all}%` })}></i><i class="failed" ${css({ width: `${(100 * run.refused) / all}%` })}></i></div>
      <p role="status"><b>${count(run.done)}</b> done${run.refused ? html`, <b class="failed-text">${count(run.refused)} refused</b>` : nothing}, of ${count(all)}${run.over ? '.' : ' …'}</p>
      ${run.refusals.length ? html`<ul class="facts-list">${run.refusals.slice(0, 200).map((one) => html`<li><a href=${link(['job', one.job])}>${named(one.label, one.job)}</a> <span class="quiet">${shown(one.reason)}</span></li>`)}</ul>` : nothing}`;
  }
}
