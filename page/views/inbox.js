// The inbox: all steps that wait for a person, the longest first, with what is to be judged beside the decision.

import { html, nothing } from '../vendor/lit-html@3.3.3/lit-html.js';
import { keyed } from '../vendor/lit-html@3.3.3/directives/keyed.js';
import { repeat } from '../vendor/lit-html@3.3.3/directives/repeat.js';
import { act, get, Problem } from '../lib/api.js';
import { app, go, messageOf, refusal, tell } from '../lib/app.js';
import { icon } from '../lib/icons.js';
import { prefer, preferences } from '../lib/preferences.js';
import { redraw } from '../lib/redraw.js';
import { changed, link } from '../lib/route.js';
import { fullName, may, workflows } from '../lib/shared.js';
import { Source } from '../lib/source.js';
import { count, counted, named, plain, shortId, shown } from '../lib/text.js';
import { ago, millis, moment, span } from '../lib/time.js';
import { whyField } from './job-operations.js';
import { definitionOf } from './job.js';
import { Payload } from './payload.js';

/** @import { Definition, Found, FoundPage, Job, StepDefinition, Version } from '../lib/types.js' */
/** @import { Route } from '../lib/route.js' */
/** @import { View } from '../lib/app.js' */

/**
 * @typedef {{ workflow: string, name: string, vhost: string | undefined, step: StepDefinition, word: string }} Asking a step of a workflow that a person completes
 * @typedef {{ key: string, asking: Asking, job: string, label: string | undefined, created: string, since: string | undefined }} Letter a step of a job that waits for one
 * @typedef {{ letters: Letter[], total: number, minimum: boolean, tasks: boolean, whole: boolean }} Inbox `whole`: its letters are there, not their number alone
 */

/** So many jobs are looked at for each step. */
const EACH = 50;
/** So many workflows are looked at for the number in the side bar. */
const WORKFLOWS_MOST = 50;
/** How long it is believed that a step does not wait, in milliseconds: it may be run again. */
const BELIEVED = 30_000;
/** How long the definitions of a workflow are believed to be the same: while the inbox is open, and else. */
const DEFINED_OPEN = 15_000;
const DEFINED = 300_000;

/** Whether its view is shown. */
let open = false;

/** When the steps that were seen began to wait; undefined: they do not. @type {Map<string, { since: string | undefined, looked: number }>} */
const begun = new Map();

/** @param {StepDefinition} step while it runs */
const wordOf = (step) => step.statuses?.[0] ?? 'PENDING';

/** @param {string} job @param {string} step */
const keyOf = (job, step) => `${job} ${step}`;

/** A definition may go with its last job. @param {unknown} error */
function gone(error) {
  if (error instanceof Problem && error.status === 404) return undefined;
  throw error;
}

/** The definitions of a workflow: those that are loaded, and those that jobs under way began with. @type {Map<string, { hashes: string[], looked: number }>} */
const definitions = new Map();

/**
 * @param {string} workflow
 * @param {string} name
 * @param {string | undefined} vhost
 * @param {AbortSignal} signal
 */
async function hashesOf(workflow, name, vhost, signal) {
  const known = definitions.get(workflow);
  if (known && Date.now() - known.looked < (open ? DEFINED_OPEN : DEFINED)) return known.hashes;
  /** @type {{ definitions: Version[] }} */
  const found = await get(['definitions'], { workflow: name, vhost }, signal);
  const hashes = found.definitions.filter((version) => version.loaded || version.running).map(({ hash }) => hash);
  definitions.set(workflow, { hashes, looked: Date.now() });
  return hashes;
}

/**
 * The steps that people complete.
 * @param {AbortSignal} signal
 */
async function asking(signal) {
  /** @type {Map<string, Asking>} */
  const found = new Map();
  let tasks = false;
  for (const workflow of (workflows.data ?? []).slice(0, WORKFLOWS_MOST)) {
    const { name, vhost } = workflow;
    const hashes = await hashesOf(fullName(workflow), name, vhost, signal);
    /** @type {(Definition | undefined)[]} */
    const all = await Promise.all(hashes.map((hash) => definitionOf(hash).catch(gone)));
    for (const { steps, tasks: own = [] } of all.filter((one) => one !== undefined)) {
      tasks ||= own.some((task) => task.steps.some((step) => step.external));
      for (const step of steps.filter((one) => one.external)) {
        const word = wordOf(step);
        const key = JSON.stringify([fullName(workflow), step.name, word]);
        if (!found.has(key)) found.set(key, { workflow: fullName(workflow), name, vhost, step, word });
      }
    }
  }
  return { steps: [...found.values()], tasks };
}

/**
 * Since when a step waits. A step may have had the same word at its end: only its job tells.
 * @param {string} job
 * @param {string} step
 * @param {AbortSignal} signal
 */
async function sinceOf(job, step, signal) {
  const key = keyOf(job, step);
  const known = begun.get(key);
  if (known && (known.since !== undefined || Date.now() - known.looked < BELIEVED)) return known.since;
  /** @type {Job} */
  const { steps } = await get(['job', job], { view: 'light' }, signal);
  const own = steps.find((one) => one.name === step);
  const since = own?.state === 'running' ? own.startTime : undefined;
  begun.set(key, { since, looked: Date.now() });
  return since;
}

/** @type {Source<Inbox>} */
export const inbox = new Source(async (signal) => {
  if (!workflows.data) await workflows.refresh();
  // What cannot be listed is not empty.
  if (!workflows.data) throw workflows.error ?? new Problem(0, 'the workflows are not known');
  const { steps, tasks } = await asking(signal);
  /** @type {Inbox} */
  const result = { letters: [], total: 0, minimum: false, tasks, whole: open || preferences.notify };
  for (const one of steps) {
    /** @type {FoundPage} */
    const page = await get(['jobs', 'search'], { workflow: one.name, vhost: one.vhost, state: 'running,paused', [`status.${one.step.name}`]: one.word, order: 'oldest', limit: result.whole ? EACH : 1, count: true }, signal);
    result.minimum ||= page.countIsMinimum === true;
    if (!result.whole) {
      result.total += page.count ?? page.jobs.length;
      continue;
    }
    const letters = await Promise.all(page.jobs.map(async ({ job, label, created }) => ({ key: keyOf(job, one.step.name), asking: one, job, label, created, since: await sinceOf(job, one.step.name, signal).catch(() => undefined) })));
    const waiting = letters.filter(({ since }) => since !== undefined);
    result.letters.push(...waiting);
    result.total += page.next ? Math.max(waiting.length, (page.count ?? 0) - (letters.length - waiting.length)) : waiting.length;
  }
  if (!result.whole) return result;
  result.letters.sort((a, b) => millis(a.since) - millis(b.since));
  const now = new Set(result.letters.map(({ key }) => key));
  for (const key of begun.keys()) if (!now.has(key) && begun.get(key)?.since !== undefined) begun.delete(key);
  notify(result.letters);
  return result;
});

/** What was there before, once it is known. @type {Set<string> | undefined} */
let before;

/** @param {Letter[]} letters */
function notify(letters) {
  const fresh = before ? letters.filter(({ key }) => !before?.has(key)) : [];
  before = new Set(letters.map(({ key }) => key));
  if (!fresh.length || !preferences.notify || !canNotify() || Notification.permission !== 'granted' || (app.view?.page === 'inbox' && !document.hidden)) return;
  const [first] = fresh;
  const address = fresh.length === 1 ? letterLink(first) : '#/inbox';
  const shownNow = new Notification(fresh.length === 1 ? `${first.asking.workflow}: ${first.asking.step.name}` : `${fresh.length} steps wait for a person`, { body: fresh.length === 1 ? plain(`${first.label ?? `Job ${shortId(first.job)}`} waits for a decision`) : plain([...new Set(fresh.map(({ asking: { step } }) => step.name))].join(', ')), tag: 'workflow-manager.inbox' });
  shownNow.onclick = () => {
    window.focus();
    go(address);
    shownNow.close();
  };
}

/** Browsers have notifications on secure origins alone. */
const canNotify = () => 'Notification' in globalThis && isSecureContext;

/** @param {Letter} letter */
const letterLink = (letter) => link(['inbox'], { job: letter.job, step: letter.asking.step.name });

/** Looks now and then, for the number in the side bar; and also while the page is hidden, if one wants to be told. */
export function watchInbox() {
  setTimeout(() => {
    if (!document.hidden) void inbox.refresh();
  }, 3000);
  inbox.every(15_000);
  setInterval(() => {
    if (document.hidden && preferences.notify) void inbox.refresh();
  }, 30_000);
}

/**
 * @param {Route} route
 * @returns {View}
 */
export function inboxView(route) {
  return new InboxView(route);
}

class InboxView {
  page = 'inbox';
  #route;
  /** @type {Panel | undefined} */
  #panel;
  #timer;

  /** @param {Route} route */
  constructor(route) {
    this.#route = route;
    open = true;
    void inbox.refresh();
    this.#timer = setInterval(() => {
      if (!document.hidden) void inbox.refresh();
    }, 5000);
  }

  stop() {
    open = false;
    clearInterval(this.#timer);
    this.#panel?.stop();
  }

  /** @param {Route} route */
  update(route) {
    this.#route = route;
    redraw();
  }

  ready() {
    return inbox.data?.whole === true || inbox.error !== undefined;
  }

  title() {
    return 'Inbox';
  }

  live() {
    return 'every 5 s';
  }

  template() {
    const { data } = inbox;
    const workflow = this.#route.query.get('workflow') ?? '';
    const all = data?.letters ?? [];
    const letters = all.filter((letter) => !workflow || letter.asking.workflow === workflow);
    const names = [...new Set(all.map((letter) => letter.asking.workflow))];
    return html`<div class="inbox">
      <header class="page-head"><h1>Inbox</h1>${data ? html`<span class="quiet">${data.minimum ? 'more than ' : ''}${counted(data.total, 'step')} ${data.total === 1 ? 'waits' : 'wait'} for a person</span>` : nothing}<span class="space"></span>${this.#notifyButton()}</header>
      ${refusal(inbox.problem)}
      ${names.length > 1 ? html`<div class="choices" role="group" aria-label="Workflow">${['', ...names].map((name) => html`<a class="chip" role="button" aria-pressed=${workflow === name ? 'true' : 'false'} href=${changed(this.#route, { workflow: name, job: undefined, step: undefined })}>${name ? shown(name) : 'All'}<span class="quiet">${count(all.filter((letter) => !name || letter.asking.workflow === name).length)}</span></a>`)}</div>` : nothing}
      <div class="inbox-parts">
        <section class="panel" aria-label="Steps that wait for a person">${letters.length ? html`<ul class="letters">${repeat(letters, ({ key }) => key, (letter) => this.#row(letter))}</ul>` : inbox.told && data?.whole ? html`<div class="none"><p>Nothing waits for a person.</p><p class="quiet">Steps with <code>external: true</code> come here when it is their turn.</p></div>` : nothing}
          ${data?.whole && data.total > data.letters.length ? html`<p class="calm">Of each step those of the ${count(EACH)} oldest jobs are shown.</p>` : nothing}
          ${data?.tasks ? html`<p class="calm">Steps of tasks are not listed: their jobs show them.</p>` : nothing}</section>
        ${this.#chosen(all)}
      </div>
    </div>`;
  }

  /** @param {Letter} letter */
  #row(letter) {
    const { asking: { workflow, step }, job, label, since } = letter;
    const chosen = this.#route.query.get('job') === job && this.#route.query.get('step') === step.name;
    return html`<li data-row=${letter.key}><a class=${chosen ? 'chosen' : ''} href=${changed(this.#route, { job, step: step.name })} aria-current=${chosen ? 'true' : nothing}><span class="sign-of">${icon('person')}</span><span class="letter-name"><b>${shown(step.name)}</b> <span class="quiet">${shown(workflow)}</span></span><span class="quiet" title=${since ?? ''}>${span(Date.now() - millis(since))}</span><span class="quiet letter-job">${named(label, job)}</span></a></li>`;
  }

  /** @param {Letter[]} letters */
  #chosen(letters) {
    const job = this.#route.query.get('job');
    const step = this.#route.query.get('step');
    if (!job || !step) {
      this.#panel?.stop();
      this.#panel = undefined;
      return letters.length ? html`<section class="panel inbox-panel" aria-label="Decision"><p class="calm">Choose a step to see what is to be judged.</p></section>` : nothing;
    }
    const key = keyOf(job, step);
    const letter = letters.find((one) => one.key === key);
    if (this.#panel?.key !== key) {
      this.#panel?.stop();
      this.#panel = letter ? new Panel(letter, () => this.#next(key)) : undefined;
    }
    if (!this.#panel) return inbox.told && inbox.data?.whole ? html`<section class="panel inbox-panel" aria-label="Decision"><p class="calm">Step <b>${shown(step)}</b> of this job does not wait for a person any more. <a href=${link(['job', job], { step })}>To the job</a></p></section>` : nothing;
    return keyed(this.#panel, this.#panel.template(letter !== undefined));
  }

  /** After a decision the next one is there. @param {string} key */
  #next(key) {
    const letters = inbox.data?.letters ?? [];
    const workflow = this.#route.query.get('workflow');
    const rest = letters.filter((one) => one.key !== key && (!workflow || one.asking.workflow === workflow));
    begun.delete(key);
    go(changed(this.#route, rest[0] ? { job: rest[0].job, step: rest[0].asking.step.name } : { job: undefined, step: undefined }), { replace: true });
    void inbox.refresh();
  }

  #notifyButton() {
    if (!canNotify() || Notification.permission === 'denied') return nothing;
    const on = preferences.notify && Notification.permission === 'granted';
    return html`<button class="button small" aria-pressed=${on ? 'true' : 'false'} @click=${async () => {
      if (on) prefer({ notify: false });
      else prefer({ notify: (await Notification.requestPermission()) === 'granted' });
      tell(preferences.notify ? 'The browser tells when a step comes to wait, while this page is open' : 'The browser does not tell of steps that wait');
      redraw();
    }}>${icon(on ? 'completed' : 'inbox')}${on ? 'Notifications are on' : 'Notify me'}</button>`;
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    if (event.key !== 'j' && event.key !== 'k') return false;
    const rows = /** @type {HTMLElement[]} */ ([...document.querySelectorAll('.letters a')]);
    const at = rows.indexOf(/** @type {HTMLElement} */ (document.activeElement));
    rows[Math.max(0, Math.min(rows.length - 1, at < 0 ? 0 : at + (event.key === 'j' ? 1 : -1)))]?.focus();
    return true;
  }
}

/** What is to be judged, and the decision beside it. */
class Panel {
  key;
  #letter;
  #decided;
  #input;
  /** It is asked for when it is wanted. @type {Payload | undefined} */
  #message;
  #text;
  #reason = '';
  #problem = '';
  #busy = false;

  /**
   * @param {Letter} letter
   * @param {() => void} decided
   */
  constructor(letter, decided) {
    this.key = letter.key;
    this.#letter = letter;
    this.#decided = decided;
    const { step } = letter.asking;
    this.#input = new Payload(['job', letter.job, 'step', step.name, 'input'], { name: `${step.name} input`, none: 'It has no input.' });
    this.#text = this.#output('');
  }

  stop() {
    this.#input.stop();
    this.#message?.stop();
  }

  /** @param {string} word */
  #output(word) {
    const { statusKey } = this.#letter.asking.step;
    return statusKey ? `{\n  ${JSON.stringify(statusKey)}: ${JSON.stringify(word)}\n}` : '{}';
  }

  /** @param {'result' | 'error'} type */
  async #send(type) {
    const { asking: { step }, job } = this.#letter;
    this.#busy = true;
    this.#problem = '';
    redraw();
    try {
      const reason = this.#reason.trim();
      if (type === 'error' && !reason) throw new Error('Say why it fails: the reason is kept in the record.');
      await act('POST', ['job', job, 'step', step.name], { type, reason: type === 'error' ? undefined : reason || undefined }, type === 'error' ? JSON.stringify({ error: reason }) : this.#text);
      tell(type === 'error' ? `Step ${step.name} was failed by hand` : `Step ${step.name} was completed by hand`);
      this.#decided();
    } catch (error) {
      this.#problem = messageOf(error);
    }
    this.#busy = false;
    redraw();
  }

  /** @param {boolean} waits */
  template(waits) {
    const { asking: { workflow, step }, job, label, since } = this.#letter;
    // The first word is the one that it has while it waits.
    const words = (step.statusKey ? step.statuses?.slice(1) : undefined) ?? [];
    return html`<section class="panel inbox-panel" aria-label="Decision">
      <header class="panel-head"><div class="step-title"><h2>${shown(step.name)}</h2><span class="quiet">${shown(workflow)}</span></div><span class="space"></span><a class="button small" href=${link(['job', job], { step: step.name })}>${label === undefined ? html`Job ${shown(shortId(job))}` : named(label, job)}</a></header>
      <p class="step-line quiet">waits since ${moment(since)}</p>
      <div class="tab-body"><h3>What it was given</h3>${this.#input.template()}
        <details class="why-more" @toggle=${() => { this.#message ??= new Payload(['job', job, 'message'], { name: 'message', none: 'The job has no message.' }); redraw(); }}><summary>The job’s message</summary>${this.#message?.template() ?? nothing}</details></div>
      ${!waits ? html`<p class="calm">It does not wait any more.</p>` : !may() ? html`<p class="calm">Your token may look, and not decide.</p>` : html`<form class="dialog-form inbox-form" @submit=${(/** @type {Event} */ event) => { event.preventDefault(); void this.#send('result'); }}>
        ${words.length ? html`<div class="choices" role="group" aria-label="Status">${words.map((word) => html`<button type="button" class="chip" aria-pressed=${this.#text === this.#output(word) ? 'true' : 'false'} @click=${() => { this.#text = this.#output(word); redraw(); }}>${shown(word)}</button>`)}</div>` : nothing}
        <label class="label" for="inbox-output">Output, a JSON object</label>
        <textarea id="inbox-output" class="field code-field" rows="4" spellcheck="false" required .value=${this.#text} @input=${(/** @type {InputEvent} */ event) => { this.#text = /** @type {HTMLTextAreaElement} */ (event.target).value; redraw(); }}></textarea>
        ${whyField((text) => { this.#reason = text; })}
        ${this.#problem ? html`<p class="problem" role="alert">${icon('alert')}<span>${shown(this.#problem)}</span></p>` : nothing}
        <footer class="dialog-foot"><button type="button" class="button" ?disabled=${this.#busy} @click=${() => this.#send('error')}>Fail it</button><button class="button primary" ?disabled=${this.#busy}>Complete it</button></footer>
      </form>`}
    </section>`;
  }
}
