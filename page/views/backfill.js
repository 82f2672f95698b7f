// The jobs of slots that have passed: which they would be is shown before any is started.

import { html, nothing } from '../vendor/lit-html@3.3.3/lit-html.js';
import { act, command, curl } from '../lib/api.js';
import { closeDialog, copied, messageOf, openDialog, tell } from '../lib/app.js';
import { icon } from '../lib/icons.js';
import { preferences } from '../lib/preferences.js';
import { redraw } from '../lib/redraw.js';
import { link } from '../lib/route.js';
import { fullName } from '../lib/shared.js';
import { count, counted, named, shown } from '../lib/text.js';
import { millis, moment } from '../lib/time.js';
import { whyField } from './job-operations.js';

/** @import { Schedule } from '../lib/types.js' */

/** @typedef {{ slots: { slot: string, job: string, label?: string, existed: boolean }[] }} Slots */

const DAY = 86_400_000;
const SPANS = /** @type {const} */ ([['24 h', DAY], ['7 d', 7 * DAY], ['30 d', 30 * DAY]]);
/** So many slots are listed. */
const LISTED = 100;

/**
 * A time as its field has it: in the zone in which the page tells times.
 * @param {number} at
 * @param {boolean} [utc]
 */
export function fieldTime(at, utc = preferences.utc) {
  const shift = utc ? 0 : new Date(at).getTimezoneOffset() * 60_000;
  return new Date(at - shift).toISOString().slice(0, 16);
}

/**
 * The time that a field has, for the manager; undefined: none.
 * @param {string} text
 * @param {boolean} [utc]
 */
export function timeOf(text, utc = preferences.utc) {
  const date = new Date(utc ? `${text}Z` : text);
  return Number.isNaN(date.getTime()) ? undefined : date.toISOString();
}

/**
 * @param {Schedule} schedule
 * @param {() => void} done
 */
export function openBackfill(schedule, done) {
  const name = fullName(schedule);
  const path = ['schedule', schedule.name, 'backfill'];
  const vhost = schedule.vhost || undefined;
  let from = fieldTime(Date.now() - DAY);
  let to = '';
  let reason = '';
  let problem = '';
  let busy = false;
  /** What the manager says that it would start. @type {Slots | undefined} */
  let found;

  /** The dry run and the run are about the same slots: a later one is not among them. */
  function times() {
    const last = found?.slots.at(-1);
    return { vhost, from: timeOf(from), to: last ? new Date(Math.floor(millis(last.slot)) + 1).toISOString() : timeOf(to) };
  }

  /** @param {() => Promise<void>} call */
  async function trying(call) {
    busy = true;
    problem = '';
    redraw();
    try {
      await call();
    } catch (error) {
      problem = messageOf(error);
    }
    busy = false;
    redraw();
  }

  const look = () => trying(async () => {
    found = undefined;
    if (!timeOf(from)) throw new Error('Say from which time on');
    found = await act('POST', path, { ...times(), dryRun: true });
  });

  const run = () => trying(async () => {
    /** @type {Slots} */
    const answer = await act('POST', path, { ...times(), reason: reason.trim() });
    const begun = answer.slots.filter(({ existed }) => !existed).length;
    tell(`${counted(begun, 'job')} of ${name} ${begun === 1 ? 'is' : 'are'} started`);
    closeDialog();
    done();
  });

  /** @param {'from' | 'to'} key @param {string} value */
  function change(key, value) {
    if (key === 'from') from = value;
    else to = value;
    found = undefined;
    problem = '';
    redraw();
  }

  const field = (/** @type {'from' | 'to'} */ key, /** @type {unknown} */ label, /** @type {string} */ value) => html`<div><label class="label" for="backfill-${key}">${label}</label><input class="field" id="backfill-${key}" type="datetime-local" .value=${value} @input=${(/** @type {InputEvent} */ event) => change(key, /** @type {HTMLInputElement} */ (event.target).value)}></div>`;

  openDialog({
    title: `Backfill schedule ${name}`,
    wide: true,
    body: () => {
      const fresh = found?.slots.filter(({ existed }) => !existed).length ?? 0;
      return html`<form class="dialog-form" @submit=${(/** @type {Event} */ event) => { event.preventDefault(); void (fresh ? run() : look()); }}>
        <p class="quiet">Starts the jobs of slots that have passed and have none, beside whatever runs. Repeated, it starts nothing twice. The manager says first what it would start.</p>
        <div class="backfill-times">${field('from', html`From <span class="quiet">(${preferences.utc ? 'UTC' : 'local time'})</span>`, from)}${field('to', html`To <span class="quiet">(now, if empty)</span>`, to)}<div class="choices" role="group" aria-label="The last">${SPANS.map(([word, long]) => html`<button type="button" class="chip" @click=${() => { to = ''; change('from', fieldTime(Date.now() - long)); }}>${word}</button>`)}</div></div>
        ${problem ? html`<p class="problem" role="alert">${icon('alert')}<span>${shown(problem)}</span></p>` : nothing}
        ${found ? slots(found.slots, fresh) : nothing}
        ${fresh ? whyField((text) => { reason = text; }) : nothing}
        ${fresh ? html`<details class="as-command"><summary>The same for a shell</summary>${shell().map((line) => html`<div class="command"><code>${shown(line)}</code><button type="button" class="tool" aria-label="Copy" @click=${() => copied(line, 'Command')}>${icon('copy')}</button></div>`)}</details>` : nothing}
        <footer class="dialog-foot"><button type="button" class="button" @click=${closeDialog}>No, leave it</button><button class="button primary" ?disabled=${busy}>${fresh ? `Start ${counted(fresh, 'job')}` : 'Show what it would start'}</button></footer>
      </form>`;
    },
  });

  function shell() {
    const query = times();
    return [command('schedule', schedule.name, 'backfill', ...Object.entries(query).flatMap(([key, value]) => (value ? [`--${key}`, value] : []))), curl('POST', path, query)];
  }
}

/**
 * @param {Slots['slots']} all
 * @param {number} fresh
 */
function slots(all, fresh) {
  const had = all.length - fresh;
  if (!all.length) return html`<p role="status">No slot lies between these times.</p>`;
  return html`<p role="status"><b>${counted(all.length, 'slot')}</b>: ${fresh ? html`${counted(fresh, 'job')} would be started` : 'each has its job already'}${had && fresh ? html`, ${count(had)} ${had === 1 ? 'has its' : 'have their'} job already` : nothing}.</p>
    <ul class="facts-list backfill-list" tabindex="0" aria-label="Slots">${all.slice(0, LISTED).map(({ slot, job, label, existed }) => html`<li>${moment(slot)} ${existed ? html`<a href=${link(['job', job])}>${named(label, job)}</a> <span class="quiet">is there</span>` : html`<span class="quiet">would be started</span>`}</li>`)}${all.length > LISTED ? html`<li class="quiet">… ${count(all.length - LISTED)} more</li>` : nothing}</ul>`;
}
