// What operators pause or change for a time: the line above every view that says so, and the dialogs that begin it and end it.

import { html, nothing } from '../vendor/lit-html@3.3.3/lit-html.js';
import { repeat } from '../vendor/lit-html@3.3.3/directives/repeat.js';
import { act, command, curl } from '../lib/api.js';
import { closeDialog, copied, messageOf, openDialog, tell } from '../lib/app.js';
import { icon } from '../lib/icons.js';
import { redraw } from '../lib/redraw.js';
import { controls, fullName, may, parted } from '../lib/shared.js';
import { count, counted, plain, shown } from '../lib/text.js';
import { millis, moment } from '../lib/time.js';

/** @import { TemplateResult } from '../vendor/lit-html@3.3.3/lit-html.js' */
/** @import { Command } from '../lib/app.js' */
/** @import { Control } from '../lib/types.js' */

/** @typedef {{ kind: 'queue' | 'workflow' | 'limit', name: string, vhost?: string, bus?: string }} Subject what can be paused */
/** @typedef {{ for: string, reason: string, rate: string, burst: string, concurrency: string }} Wanted */

/** @typedef {{ rate?: string, burst?: number, concurrency?: number }} Allowed what a limit allows */

/** So many pauses are told above the views. */
const TOLD = 3;
/** A time that is farther away is told with its day, in milliseconds. */
const NEAR = 12 * 3_600_000;
const SPANS = /** @type {const} */ ([['15m', '15 m'], ['1h', '1 h'], ['4h', '4 h'], ['1d', '1 d']]);

const PAUSES = /** @type {const} */ ({ queuePause: 'queue', workflowPause: 'workflow', limitPause: 'limit' });
const SAYS = {
  queue: 'Nothing new is sent to it, in no workflow. What was sent before is worked on, and replies are taken. The timeout of what was not sent stands still; the deadline of a job goes on.',
  workflow: 'Its jobs are taken and wait: no step and no item begins. Replies are taken; the deadline of a job goes on.',
  limit: 'Nobody is admitted to its places. Who holds one keeps it, and replies are taken; the deadline of a job goes on.',
};

/** @param {Control} control @returns {Subject | undefined} what is paused by it */
const subjectOf = ({ kind, name, vhost, bus }) => (kind === 'limitChange' ? undefined : { kind: PAUSES[kind], name, vhost, bus });

/** @param {Subject} subject */
const nameOf = ({ kind, name, vhost }) => `${kind} ${fullName({ vhost, name })}`;

/** @param {string} text */
const capital = (text) => text[0].toUpperCase() + text.slice(1);

/** @param {Subject} subject */
const pathOf = ({ kind, name }) => [{ queue: 'queue', workflow: 'workflows', limit: 'limits' }[kind], name];

/** @param {Subject} subject */
const placeOf = ({ vhost, bus }) => ({ bus: bus || undefined, vhost: vhost || undefined });

/** @param {Record<string, string | undefined>} values as flags of the command line */
const flags = (values) => Object.entries(values).flatMap(([key, value]) => (value ? [`--${key}`, value] : []));

/**
 * What is in force of it.
 * @param {Subject} subject
 * @param {'pause' | 'change'} [what]
 */
export function inForce({ kind, name, vhost = '', bus = '' }, what = 'pause') {
  const wanted = what === 'change' ? 'limitChange' : `${kind}Pause`;
  return controls.data?.controls.find((one) => one.kind === wanted && one.name === name && one.vhost === vhost && (one.bus ?? '') === bus);
}

/** @param {Allowed} limit */
export function allowed({ rate, burst, concurrency }) {
  return [rate && (burst === undefined ? rate : `${rate}, burst ${burst}`), concurrency !== undefined && `${count(concurrency)} at once`].filter(Boolean).join('; ');
}

/** What ends a pause or a change that has no time. @param {boolean} pause */
const openEnd = (pause) => (pause ? 'until it is resumed' : 'until it is ended');

/** How much a pause holds back. @param {Control} control */
const held = ({ waiting }) => (waiting ? html` <span class="quiet">· ${counted(waiting, 'step')} ${waiting === 1 ? 'waits' : 'wait'}</span>` : nothing);

/** Until when, why, and by whom. @param {Control} control */
function details({ kind, until, reason, by }) {
  const end = millis(until);
  return html`${until ? html`until ${moment(until, { day: Math.abs(end - Date.now()) > NEAR })}` : openEnd(kind !== 'limitChange')}${by ? html`, by ${shown(by)}` : nothing}${reason ? html`: ${shown(reason)}` : nothing}`;
}

/**
 * What keeps the step of a job back: the pause of its workflow, or of its queue.
 * @param {string} workflow its full name
 * @param {string} [queue]
 * @returns {unknown} what is paused, until when and why; nothing if neither is
 */
export function heldBack(workflow, queue) {
  const { name, vhost = '' } = parted(workflow);
  const pause = controls.data?.controls.find((one) => one.vhost === vhost && (one.kind === 'workflowPause' ? one.name === name : one.kind === 'queuePause' && one.name === queue));
  const subject = pause && subjectOf(pause);
  return subject && html`${subject.kind} <b>${shown(fullName(subject))}</b> is paused ${details(pause)}`;
}

/** Above every view, while something is paused. */
export function pausedBanner() {
  const paused = (controls.data?.controls ?? []).filter(({ kind }) => kind !== 'limitChange');
  if (!paused.length) return nothing;
  return html`<section class="banner held" aria-label="Paused">${icon('paused')}<ul>${repeat(paused.slice(0, TOLD), ({ kind, bus, vhost, name }) => JSON.stringify([kind, bus, vhost, name]), (control) => {
    const subject = subjectOf(control);
    return subject ? html`<li><p class="reason" title=${plain(control.bus ? `On bus ${control.bus}` : '')}>${capital(subject.kind)} <b>${shown(fullName(subject))}</b> is paused ${details(control)}${held(control)}</p>${resumeButton(subject)}</li>` : nothing;
  })}${paused.length > TOLD ? html`<li><a href="#/">${count(paused.length - TOLD)} more</a></li>` : nothing}</ul></section>`;
}

/** @param {Subject} subject @param {() => void} [done] */
function resumeButton(subject, done) {
  return may() ? html`<button class="button small" aria-label=${plain(`Resume ${nameOf(subject)}`)} @click=${() => resume(subject, done)}>${icon('play')}Resume</button>` : nothing;
}

/**
 * Beside what is paused or changed: until when and why, and the way to end it.
 * @param {Subject} subject
 * @param {() => void} [done]
 */
export function controlNotes(subject, done) {
  const pause = inForce(subject);
  const change = subject.kind === 'limit' ? inForce(subject, 'change') : undefined;
  const end = (/** @type {string} */ word, /** @type {string} */ label, /** @type {() => void} */ run) => (may() ? html` <button class="mini" aria-label=${plain(`${label} ${nameOf(subject)}`)} @click=${run}>${word}</button>` : nothing);
  return html`${pause ? html`<div class="control-note paused">Paused ${details(pause)}${held(pause)}${end('Resume', 'Resume', () => resume(subject, done))}</div>` : nothing}${change ? html`<div class="control-note">Changed ${details(change)}${end('End the change', 'End the change of', () => restore(subject, done))}</div>` : nothing}`;
}

/**
 * Begins or ends a pause, from a view's head.
 * @param {Subject} subject
 */
export function pauseButton(subject) {
  if (!may() || !controls.data) return nothing;
  return inForce(subject) ? resumeButton(subject) : html`<button class="button small" aria-label=${plain(`Pause ${nameOf(subject)}…`)} @click=${() => openPause(subject)}>${icon('paused')}Pause ${subject.kind}…</button>`;
}

/**
 * The same for a row of a table.
 * @param {Subject} subject
 * @param {() => void} [done]
 */
export function pauseSign(subject, done) {
  if (!may() || !controls.data) return nothing;
  const paused = inForce(subject) !== undefined;
  const label = `${paused ? 'Resume' : 'Pause'} ${nameOf(subject)}${paused ? '' : '…'}`;
  return html`<button class="mini" aria-label=${plain(label)} title=${plain(label)} @click=${() => (paused ? resume(subject, done) : openPause(subject, done))}>${icon(paused ? 'play' : 'paused')}</button>`;
}

/**
 * The same for the palette.
 * @param {Subject} subject
 * @param {() => void} [done]
 * @returns {Command[]}
 */
export function pauseCommands(subject, done) {
  if (!may() || !controls.data) return [];
  return [inForce(subject) ? { name: `Resume ${nameOf(subject)}`, run: () => resume(subject, done) } : { name: `Pause ${nameOf(subject)}`, run: () => openPause(subject, done) }];
}

/**
 * @param {Promise<unknown>} call
 * @param {string} said
 * @param {() => void} [done]
 */
async function carryOut(call, said, done) {
  await call;
  tell(said);
  await controls.refresh();
  done?.();
}

/** @param {Subject} subject @param {() => void} [done] */
function resume(subject, done) {
  carryOut(act('POST', [...pathOf(subject), 'resume'], placeOf(subject)), `${capital(nameOf(subject))} goes on`, done).catch(refused);
}

/** @param {Subject} limit @param {() => void} [done] */
function restore(limit, done) {
  carryOut(act('DELETE', pathOf(limit), placeOf(limit)), `${capital(nameOf(limit))} allows again what its file says`, done).catch(refused);
}

/** Somebody else may have ended it. @param {unknown} error */
function refused(error) {
  tell(messageOf(error), 'problem');
  void controls.refresh();
}

/** @param {Subject} subject @param {() => void} [done] */
export function openPause(subject, done) {
  const place = placeOf(subject);
  openTimed({
    title: `Pause ${nameOf(subject)}?`,
    text: SAYS[subject.kind],
    button: 'Pause it',
    wanted: { for: '1h' },
    shell: ({ for: time, reason }) => [command('pause', subject.kind, subject.name, ...flags({ ...place, for: time, reason })), curl('POST', [...pathOf(subject), 'pause'], { ...place, for: time, reason })],
    run: ({ for: time, reason }) => carryOut(act('POST', [...pathOf(subject), 'pause'], { ...place, for: time, reason }), `${capital(nameOf(subject))} is paused`, done),
  });
}

/**
 * Other values of a limit for a time.
 * @param {Subject} limit
 * @param {Allowed & { inFile?: Allowed }} now
 * @param {() => void} [done]
 */
export function openChange(limit, now, done) {
  const place = placeOf(limit);
  const values = (/** @type {Wanted} */ { rate, burst, concurrency, for: time, reason }) => ({ rate, burst: rate ? burst : '', concurrency, for: time, reason });
  const field = (/** @type {Wanted} */ wanted, /** @type {'rate' | 'burst' | 'concurrency'} */ key, /** @type {string} */ label, /** @type {string} */ example) => html`<div><label class="label" for="change-${key}">${label}</label><input class="field" id="change-${key}" autocomplete="off" inputmode=${key === 'rate' ? 'text' : 'numeric'} placeholder=${example} .value=${wanted[key]} @input=${(/** @type {InputEvent} */ event) => { wanted[key] = /** @type {HTMLInputElement} */ (event.target).value.trim(); redraw(); }}></div>`;
  openTimed({
    title: `Change ${nameOf(limit)} for a time?`,
    text: `It allows this instead of what its file says${now.inFile ? ` (${allowed(now.inFile)})` : ''}. Lowering it cancels nobody who holds a place: nobody is admitted until enough have left. What is left empty stays as the file has it.`,
    button: 'Change it',
    wanted: { for: '1h', rate: now.rate ?? '', burst: now.burst?.toString() ?? '', concurrency: now.concurrency?.toString() ?? '' },
    fields: (wanted) => html`<div class="change-fields">${field(wanted, 'rate', 'Rate', '20/s')}${field(wanted, 'burst', 'Burst', '5')}${field(wanted, 'concurrency', 'Concurrency', '3')}</div>`,
    shell: (wanted) => [command('limit', limit.name, ...flags({ ...place, ...values(wanted) })), curl('POST', pathOf(limit), { ...place, ...values(wanted) })],
    run: (wanted) => carryOut(act('POST', pathOf(limit), { ...place, ...values(wanted) }), `${capital(nameOf(limit))} is changed`, done),
  });
}

/**
 * A question before something begins that ends by itself. What the manager refuses is shown in its place.
 * @param {{ title: string, text: string, button: string, wanted: Partial<Wanted>, fields?: (wanted: Wanted) => TemplateResult, shell: (wanted: Wanted) => string[], run: (wanted: Wanted) => Promise<void> }} of
 */
function openTimed({ title, text, button, wanted: before, fields, shell, run }) {
  /** @type {Wanted} */
  const wanted = { for: '', reason: '', rate: '', burst: '', concurrency: '', ...before };
  let busy = false;
  let problem = '';
  const send = async () => {
    busy = true;
    problem = '';
    redraw();
    try {
      await run({ ...wanted, reason: wanted.reason.trim() });
      closeDialog();
    } catch (error) {
      problem = messageOf(error);
    }
    busy = false;
    redraw();
  };
  openDialog({
    title,
    body: () => html`<form class="dialog-form" @submit=${(/** @type {Event} */ event) => { event.preventDefault(); void send(); }}>
      <p>${text}</p>
      ${fields?.(wanted) ?? nothing}
      <label class="label" for="timed-for">For how long</label>
      <div class="row timed-for"><input class="field" id="timed-for" autocomplete="off" spellcheck="false" placeholder=${openEnd(!fields)} .value=${wanted.for} @input=${(/** @type {InputEvent} */ event) => { wanted.for = /** @type {HTMLInputElement} */ (event.target).value.trim(); redraw(); }}><div class="choices" role="group" aria-label="For how long">${[...SPANS, ['', openEnd(!fields)]].map(([value, name]) => html`<button type="button" class="chip" aria-pressed=${wanted.for === value ? 'true' : 'false'} @click=${() => { wanted.for = value; redraw(); }}>${name}</button>`)}</div></div>
      <label class="label" for="timed-why">Why <span class="quiet">(told to all who wait for it; may be left empty)</span></label>
      <input class="field" id="timed-why" maxlength="200" autocomplete="off" @input=${(/** @type {InputEvent} */ event) => { wanted.reason = /** @type {HTMLInputElement} */ (event.target).value; redraw(); }}>
      ${problem ? html`<p class="problem" role="alert">${icon('alert')}<span>${shown(problem)}</span></p>` : nothing}
      <details class="as-command"><summary>The same for a shell</summary>${shell(wanted).map((line) => html`<div class="command"><code>${shown(line)}</code><button type="button" class="tool" aria-label="Copy" @click=${() => copied(line, 'Command')}>${icon('copy')}</button></div>`)}</details>
      <footer class="dialog-foot"><button type="button" class="button" @click=${closeDialog}>No, leave it</button><button class="button primary" ?disabled=${busy}>${button}</button></footer>
    </form>`,
  });
}
