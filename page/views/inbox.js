// The inbox: all steps that wait for a person, the longest first, with what is to be judged beside the decision.

import { html, nothing } from '../vendor/lit-html@3.3.3/lit-html.js';
import { keyed } from '../vendor/lit-html@3.3.3/directives/keyed.js';
import { live } from '../vendor/lit-html@3.3.3/directives/live.js';
import { repeat } from '../vendor/lit-html@3.3.3/directives/repeat.js';
import { get } from '../lib/api.js';
import { app, go, refusal, tell } from '../lib/app.js';
import { icon } from '../lib/icons.js';
import { prefer, preferences } from '../lib/preferences.js';
import { redraw, redrawNow } from '../lib/redraw.js';
import { changed, link } from '../lib/route.js';
import { may } from '../lib/shared.js';
import { Source } from '../lib/source.js';
import { count, counted, named, plain, shortId, shown } from '../lib/text.js';
import { millis, span } from '../lib/time.js';
import { decide, DecisionForm, Panel } from './inbox-decision.js';
import { columnsOf, keyOf, letterLink, nameOf, placeOf } from './inbox-letter.js';
import { Marked } from './inbox-marked.js';

/** @import { InboxPage } from '../lib/types.js' */
/** @import { Letter } from './inbox-letter.js' */
/** @import { Route } from '../lib/route.js' */
/** @import { View } from '../lib/app.js' */

/**
 * @typedef {{ letters: Letter[], total: number, workflows: Record<string, number>, more: boolean, unreadable: number, whole: boolean }} Inbox `whole`: its letters are there, not their number alone
 */

/** The steps of so many jobs are shown, those that have waited longest. */
const SHOWN = 100;

/** Whether its view is shown. */
let open = false;

/** The workflow that its view is about; empty: all. */
let wanted = '';

/** @type {Source<Inbox>} */
export const inbox = new Source(async (signal) => {
  const whole = open || preferences.notify;
  const workflow = open ? wanted : '';
  const [name, vhost] = workflow ? split(workflow) : [];
  /** @type {InboxPage} */
  const page = await get(['inbox'], { workflow: name, vhost, limit: whole ? SHOWN : 1 }, signal);
  const letters = page.steps.map((step) => ({ ...step, key: keyOf(step.job, step.step), turn: `${keyOf(step.job, step.step)} ${step.attempt} ${step.since}` }));
  letters.sort((a, b) => millis(a.since) - millis(b.since));
  const total = Object.values(page.workflows).reduce((sum, one) => sum + one, 0);
  const result = { letters, total, workflows: page.workflows, more: page.next !== undefined, unreadable: page.unreadable, whole };
  if (whole && !workflow) notify(result);
  return result;
});

/** @param {string} workflow its full name */
function split(workflow) {
  const at = workflow.lastIndexOf('/');
  return at < 0 ? [workflow, undefined] : [workflow.slice(at + 1), workflow.slice(0, at)];
}

/** What was there before, once all of it is known. @type {Set<string> | undefined} */
let before;

/** How many there were before. @type {number | undefined} */
let totalBefore;

/** @param {Inbox} now */
function notify({ letters, total, more }) {
  const keys = letters.map(({ key, attempt }) => `${key} ${attempt}`);
  const fresh = before ? letters.filter((_, index) => !before?.has(keys[index])) : [];
  // What moves up where more wait than are shown is not new, and what is new is not shown: the number tells.
  const grown = more && totalBefore !== undefined ? total - totalBefore : 0;
  before = more ? undefined : new Set(keys);
  totalBefore = total;
  if ((more ? grown <= 0 : !fresh.length) || !preferences.notify || !canNotify() || Notification.permission !== 'granted' || (app.view?.page === 'inbox' && !document.hidden)) return;
  const [first] = fresh;
  const address = !more && fresh.length === 1 ? letterLink(first) : '#/inbox';
  const shownNow = more ? new Notification(`${counted(grown, 'more step')} ${grown === 1 ? 'waits' : 'wait'} for a person`, { body: `${counted(total, 'step')} in all`, tag: 'workflow-manager.inbox' }) : new Notification(fresh.length === 1 ? `${first.workflow}: ${first.step}` : `${fresh.length} steps wait for a person`, { body: fresh.length === 1 ? plain(`${first.label ?? `Job ${shortId(first.job)}`} waits for a decision`) : plain([...new Set(fresh.map(({ step }) => step))].join(', ')), tag: 'workflow-manager.inbox' });
  shownNow.onclick = () => {
    window.focus();
    go(address);
    shownNow.close();
  };
}

/** Browsers have notifications on secure origins alone. */
const canNotify = () => 'Notification' in globalThis && isSecureContext;

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
  /** Decisions that were begun, by turn. @type {Map<string, DecisionForm>} */
  #forms = new Map();
  /** The turns that are marked: another attempt of a step is another decision. @type {Set<string>} */
  #marks = new Set();
  #marked = new Marked({
    linkOf: ({ job, step }) => changed(this.#route, { job, step }),
    only: (letters) => {
      this.#marks = new Set(letters.map(({ turn }) => turn));
      redraw();
    },
    decided: ({ turn }) => this.#marks.delete(turn),
    over: () => this.#goOn(),
  });

  /** @param {Route} route */
  constructor(route) {
    this.#route = route;
    open = true;
    wanted = route.query.get('workflow') ?? '';
    void inbox.refresh();
    this.#timer = setInterval(() => {
      if (!document.hidden) void inbox.refresh();
    }, 5000);
  }

  stop() {
    open = false;
    wanted = '';
    clearInterval(this.#timer);
    this.#panel?.stop();
  }

  /** @param {Route} route */
  update(route) {
    this.#route = route;
    const workflow = route.query.get('workflow') ?? '';
    if (workflow !== wanted) {
      wanted = workflow;
      // The answer to the former question would take rows away, and their marks with them.
      void inbox.restart();
    }
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
    const letters = all.filter((letter) => !workflow || letter.workflow === workflow);
    // Only rows that are shown are marked: what waits no more, or is filtered out, comes back without a mark.
    this.#marks = new Set(may() ? letters.map(({ turn }) => turn).filter((turn) => this.#marks.has(turn)) : []);
    const names = Object.keys(data?.workflows ?? {});
    return html`<div class="inbox">
      <header class="page-head"><h1>Inbox</h1>${data ? html`<span class="quiet">${counted(data.total, 'step')} ${data.total === 1 ? 'waits' : 'wait'} for a person</span>` : nothing}<span class="space"></span>${this.#notifyButton()}</header>
      ${refusal(inbox.problem)}
      ${names.length > 1 || workflow ? html`<div class="choices" role="group" aria-label="Workflow">${['', ...new Set([...names, ...(workflow ? [workflow] : [])])].map((name) => html`<a class="chip" role="button" aria-pressed=${workflow === name ? 'true' : 'false'} href=${changed(this.#route, { workflow: name, job: undefined, step: undefined })}>${name ? shown(name) : 'All'}<span class="quiet">${count(name ? (data && Object.hasOwn(data.workflows, name) ? data.workflows[name] : 0) : data?.total)}</span></a>`)}</div>` : nothing}
      <div class="inbox-parts">
        <section class="panel" aria-label="Steps that wait for a person">${letters.length && may() ? this.#markedBar(letters) : nothing}${letters.length ? html`<ul class="letters">${repeat(letters, ({ key }) => key, (letter) => this.#row(letter))}</ul>` : inbox.told && data?.whole ? html`<div class="none"><p>Nothing waits for a person.</p><p class="quiet">Steps with <code>external: true</code> come here when it is their turn.</p></div>` : nothing}
          ${data?.whole && data.more ? html`<p class="calm">Those of the ${count(SHOWN)} jobs that have waited longest are shown.</p>` : nothing}
          ${data?.whole && data.unreadable ? html`<p class="problem" role="alert">${icon('alert')}<span>${counted(data.unreadable, 'job')} cannot be read: the ${data.unreadable === 1 ? 'record is' : 'records are'} damaged. The log says where.</span></p>` : nothing}</section>
        ${this.#chosen(all, letters.filter(({ turn }) => this.#marks.has(turn)))}
      </div>
    </div>`;
  }

  /** @param {Letter} letter */
  #row(letter) {
    const { workflow, step, job, root, label, since } = letter;
    const chosen = this.#route.query.get('job') === job && this.#route.query.get('step') === step;
    return html`<li data-row=${letter.key}>${may() ? html`<label class="tick"><input type="checkbox" aria-label="Mark ${nameOf(letter)}" .checked=${live(this.#marks.has(letter.turn))} @change=${() => this.#mark([letter], !this.#marks.has(letter.turn))}></label>` : nothing}<a class=${chosen ? 'chosen' : ''} href=${changed(this.#route, { job, step })} aria-current=${chosen ? 'true' : nothing}><span class="sign-of">${icon('person')}</span><span class="letter-name"><b>${shown(step)}</b> <span class="quiet">${shown(workflow)}${placeOf(letter)}</span></span><span class="quiet" title=${since}>${span(Date.now() - millis(since))}</span><span class="quiet letter-job">${named(label, root ?? job)}</span>${columnsOf(letter)}</a></li>`;
  }

  /** @param {Letter[]} letters those that are shown */
  #markedBar(letters) {
    const { size } = this.#marks;
    const all = size === letters.length;
    return html`<div class="marked-bar ${size ? '' : 'idle'}"><label class="tick"><input type="checkbox" aria-label="Mark all that are shown" .checked=${live(all)} .indeterminate=${live(size > 0 && !all)} @change=${() => this.#mark(letters, !all)}>${size ? html`<b>${count(size)} marked</b>` : 'Mark all'}</label>${size ? html`<button class="button small" @click=${this.#toMarked}>Decide ${counted(size, 'step')}</button><button class="mini" @click=${this.#clear}>Clear</button>` : nothing}</div>`;
  }

  /** @param {Letter[]} letters @param {boolean} on */
  #mark(letters, on) {
    for (const { turn } of letters) {
      if (on) this.#marks.add(turn);
      else this.#marks.delete(turn);
    }
    // Who marks decides what is marked, not what was looked at.
    if (on) this.#leaveChosen();
    redraw();
  }

  #leaveChosen() {
    go(changed(this.#route, { job: undefined, step: undefined }), { replace: true });
  }

  /** On a phone what is marked stands below the list. */
  #toMarked = () => {
    this.#leaveChosen();
    redrawNow();
    /** @type {HTMLElement | null} */ (document.querySelector('.inbox-marked h2'))?.focus();
  };

  #clear = () => {
    this.#marks.clear();
    // The button is gone with the marks.
    redrawNow();
    /** @type {HTMLElement | null} */ (document.querySelector('.inbox .marked-bar input'))?.focus();
  };

  /** After a decision on those that were marked. The form may be gone, and with it the place of the keyboard. */
  #goOn() {
    void inbox.refresh();
    if (app.view !== this) return;
    const form = document.querySelector('.inbox-marked form');
    redrawNow();
    if (form && !form.isConnected && document.activeElement === document.body) /** @type {HTMLElement | null} */ (document.querySelector('.inbox .marked-bar input'))?.focus({ preventScroll: true });
  }

  /** @param {Letter[]} letters @param {Letter[]} marked */
  #chosen(letters, marked) {
    const job = this.#route.query.get('job');
    const step = this.#route.query.get('step');
    if (!job || !step) {
      this.#panel?.stop();
      this.#panel = undefined;
      if (marked.length || this.#marked.tells) return this.#marked.template(marked);
      this.#marked.forget();
      return letters.length ? html`<section class="panel inbox-panel" aria-label="Decision"><p class="calm">Choose a step to see what is to be judged.</p></section>` : nothing;
    }
    const key = keyOf(job, step);
    const letter = letters.find((one) => one.key === key);
    // What waits no more stays; another attempt has another input.
    if (this.#panel?.letter.key !== key || (letter && letter.turn !== this.#panel.letter.turn)) {
      this.#panel?.stop();
      this.#panel = letter ? new Panel(letter, this.#formOf(letter)) : undefined;
    }
    if (!this.#panel && inbox.data?.more) return html`<section class="panel inbox-panel" aria-label="Decision"><p class="calm">Step <b>${shown(step)}</b> of this job is not among those that are shown. <a href=${link(['job', job], { step })}>To the job</a></p></section>`;
    if (!this.#panel) return inbox.told && inbox.data?.whole ? html`<section class="panel inbox-panel" aria-label="Decision"><p class="calm">Step <b>${shown(step)}</b> of this job does not wait for a person any more. <a href=${link(['job', job], { step })}>To the job</a></p></section>` : nothing;
    return keyed(this.#panel, this.#panel.template(letter !== undefined));
  }

  /** Who looks at another step finds again what was begun. @param {Letter} letter */
  #formOf(letter) {
    const known = this.#forms.get(letter.turn);
    if (known) return known;
    const form = new DecisionForm(letter, async (verdict) => {
      await decide(letter, verdict);
      tell(`Step ${letter.step} was ${verdict.type === 'error' ? 'failed' : 'completed'} by hand`);
      this.#next(letter);
    });
    this.#forms.set(letter.turn, form);
    const [oldest] = this.#forms.keys();
    if (this.#forms.size > SHOWN) this.#forms.delete(oldest);
    return form;
  }

  /** After a decision the next one is there, or those that are marked; unless the reader went elsewhere meanwhile. @param {Letter} decided */
  #next({ key, turn, job, step }) {
    this.#marks.delete(turn);
    const { query } = this.#route;
    if (app.route !== this.#route || query.get('job') !== job || query.get('step') !== step) {
      void inbox.refresh();
      return;
    }
    const letters = inbox.data?.letters ?? [];
    const workflow = query.get('workflow');
    const rest = this.#marks.size ? [] : letters.filter((one) => one.key !== key && (!workflow || one.workflow === workflow));
    go(changed(this.#route, rest[0] ? { job: rest[0].job, step: rest[0].step } : { job: undefined, step: undefined }), { replace: true });
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
    const row = document.activeElement?.closest('.letters [data-row]');
    if (event.key === 'x') {
      const letter = may() ? inbox.data?.letters.find(({ key }) => key === row?.getAttribute('data-row')) : undefined;
      if (letter) this.#mark([letter], !this.#marks.has(letter.turn));
      return letter !== undefined;
    }
    if (event.key === 'd') {
      /** @type {HTMLElement | null} */
      const first = document.querySelector('.inbox-form .choices button, .inbox-form textarea');
      first?.focus();
      return first !== null;
    }
    if (event.key !== 'j' && event.key !== 'k') return false;
    const rows = [...document.querySelectorAll('.letters [data-row]')];
    const at = row ? rows.indexOf(row) : -1;
    const next = rows[Math.max(0, Math.min(rows.length - 1, at < 0 ? 0 : at + (event.key === 'j' ? 1 : -1)))];
    /** @type {HTMLElement | null | undefined} */ (next?.querySelector('a'))?.focus();
    return true;
  }
}
