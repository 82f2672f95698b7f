// The panel of a step: its attempts, what went in, what came out, and how it is set up. Without a step, the job's message and result.

import { html, nothing } from '../vendor/lit-html@3.3.3/lit-html.js';
import { get } from '../lib/api.js';
import { copied, refusal } from '../lib/app.js';
import { END, settings, START } from '../lib/graph.js';
import { icon } from '../lib/icons.js';
import { reasonText, shortReason } from '../lib/reason.js';
import { link } from '../lib/route.js';
import { may } from '../lib/shared.js';
import { Source } from '../lib/source.js';
import { badge, sign } from '../lib/states.js';
import { bytes, count, counted, named, plain, share, shortId, shown } from '../lib/text.js';
import { ago, duration, millis, moment, nanos, span } from '../lib/time.js';
import { childBar, doneOf } from './job-graph.js';
import { byHand, redispatch, rerun, rerunItems } from './job-operations.js';
import { heldBack } from './pauses.js';
import { Payload } from './payload.js';

/** @import { Attempt, Child, Definition, Job, Step, StepDefinition, StepDetail } from '../lib/types.js' */

const TABS = /** @type {const} */ (['attempts', 'input', 'output', 'settings']);

export class StepPanel {
  #id;
  /** @type {Source<StepDetail> | undefined} */
  #detail;
  /** @type {Source<{ children: Child[] }> | undefined} */
  #failed;
  #for = '';
  #state = '';
  /** @type {Map<string, Payload>} */
  #payloads = new Map();

  /** @param {string} id */
  constructor(id) {
    this.#id = id;
  }

  stop() {
    this.#detail?.stop();
    this.#failed?.stop();
    for (const payload of this.#payloads.values()) payload.stop();
    this.#payloads.clear();
  }

  /**
   * @param {Step} step
   * @param {number | undefined} at
   */
  #follow(step, at) {
    const asked = `${step.name} ${at ?? ''}`;
    if (asked !== this.#for) {
      this.stop();
      this.#for = asked;
      this.#state = '';
      this.#detail = new Source((signal) => get(['job', this.#id, 'step', step.name], { at }, signal));
      this.#failed = step.children ? new Source((signal) => get(['job', this.#id, 'children'], { step: step.name, state: 'failed', limit: 6 }, signal)) : undefined;
    }
    const state = `${step.state} ${step.attempt} ${step.endTime ?? ''} ${step.retryAt ?? ''} ${step.children?.failed ?? ''}`;
    if (state !== this.#state) {
      this.#state = state;
      void this.#detail?.refresh();
      if (step.children?.failed) void this.#failed?.refresh();
    }
  }

  /**
   * @param {string} key
   * @param {string[]} path
   * @param {string} name
   * @param {string} none
   * @param {Record<string, string>} [query]
   */
  #payload(key, path, name, none, query) {
    let payload = this.#payloads.get(key);
    if (!payload) {
      payload = new Payload(path, { name, none, query });
      this.#payloads.set(key, payload);
    }
    return payload.template();
  }

  /**
   * @param {{ job: Job, rootLabel: string | undefined, step: string, steps: Step[], definition: Definition | undefined, defined: StepDefinition[] | undefined, tab: string, at: number | undefined, tabLink: (tab: string) => string, stepLink: (step: string) => string, close: string | undefined, done: () => void, now: number }} of
   */
  template({ job, rootLabel, step: name, steps, definition, defined, tab, at, tabLink, stepLink, close, done, now }) {
    if (name === START || name === END) return this.#job(job, rootLabel, name, definition, at, close, stepLink);
    const step = steps.find((one) => one.name === name);
    if (!step) return html`<section class="panel step-panel"><p class="calm">This job has no step <b>${shown(name)}</b>.</p></section>`;
    this.#follow(step, at);
    const detail = this.#detail?.data;
    const own = defined?.find((one) => one.name === name);
    const shownTab = TABS.includes(/** @type {any} */ (tab)) ? tab : 'attempts';
    const past = at !== undefined;
    const held = past ? undefined : heldBack(job.workflow, own?.queue);
    return html`<section class="panel step-panel" aria-label="Step">
      <header class="panel-head">
        <div class="step-title"><h2>${shown(step.name)}</h2>${badge(step.state)}${step.status && step.status.toLowerCase() !== step.state ? html`<span class="word">${shown(step.status)}</span>` : nothing}</div>
        ${close ? html`<a class="tool" href=${close} aria-label="Close the step" title="To the job">${icon('close')}</a>` : nothing}
      </header>
      <p class="step-line quiet">${stepLine(step, own, now, detail)}</p>
      ${step.reason ? html`<div class="reason-box ${step.state === 'failed' ? 'failed' : 'warn'}">${icon(step.state === 'failed' ? 'failed' : 'alert')}<div><p class="reason">${reasonText(step.reason)}</p>${step.retryAt && step.state === 'running' ? html`<p class="quiet">The next attempt is due ${ago(millis(step.retryAt), now)}.</p>` : nothing}</div></div>` : nothing}
      ${step.waitsFor ? html`<div class="reason-box">${icon('clock')}<p class="reason">It waits ${held ? html`because ${held}` : step.waitsFor.limits.length ? html`for ${placeOf(step.waitsFor)}` : 'because its queue or its workflow is paused, or was until now'}, since ${moment(step.waitsFor.since)}.</p></div>` : nothing}
      ${step.warning ? html`<div class="reason-box warn">${icon('alert')}<p class="reason">${shown(step.warning)}</p></div>` : nothing}
      ${step.message && step.state === 'running' ? html`<p class="progress-text">${typeof step.progress === 'number' ? html`<b>${Math.round(step.progress <= 1 ? step.progress * 100 : step.progress)} %</b> ` : nothing}${shown(step.message)}</p>` : nothing}
      ${step.children ? this.#children(step, job) : nothing}
      <nav class="tabs" aria-label="Of the step">${TABS.map((one) => html`<a href=${tabLink(one)} aria-current=${one === shownTab ? 'page' : nothing}>${one[0].toUpperCase()}${one.slice(1)}${one === 'input' && detail?.inputBytes !== undefined ? html`<span class="tab-note">${bytes(detail.inputBytes)}</span>` : one === 'output' && detail?.outputBytes !== undefined ? html`<span class="tab-note">${bytes(detail.outputBytes)}</span>` : one === 'attempts' && step.attempt > 1 ? html`<span class="tab-note">${step.attempt}</span>` : nothing}</a>`)}</nav>
      <div class="tab-body">${shownTab === 'attempts' ? this.#attempts(step, detail, own, now) : shownTab === 'settings' ? setup(step, own) : this.#flow(shownTab, step, at)}</div>
      ${this.#actions(job, step, own, defined, past, done)}
    </section>`;
  }

  /**
   * @param {string} tab
   * @param {Step} step
   * @param {number | undefined} at
   */
  #flow(tab, step, at) {
    const none = tab === 'input' ? (step.state === 'waiting' ? 'It has no input yet: it waits.' : 'It never had an input.') : step.state === 'completed' ? 'There is no output.' : 'There is no output yet.';
    if (at !== undefined && tab === 'output' && step.state !== 'completed') return html`<p class="calm">At this entry there was no output yet.</p>`;
    return this.#payload(`${tab} ${step.attempt} ${step.state} ${step.endTime ?? ''}`, ['job', this.#id, 'step', step.name, tab], `${step.name} ${tab}`, none);
  }

  /**
   * @param {Step} step
   * @param {StepDetail | undefined} detail
   * @param {StepDefinition | undefined} own
   * @param {number} now
   */
  #attempts(step, detail, own, now) {
    const error = this.#detail?.error;
    /** @type {Attempt[]} */
    const list = detail?.attempts ?? (step.attempt > 0 ? [{ attempt: step.attempt, startTime: step.attemptStartTime ?? step.startTime, endTime: step.endTime, state: step.state === 'running' && step.retryAt ? 'failed' : step.state, reason: step.reason, raw: step.raw, retryAt: step.retryAt }] : []);
    if (!list.length) return html`<p class="calm">${step.state === 'waiting' ? html`It waits for ${own?.depends?.length ? own.depends.map((name, index) => html`${index ? ', ' : ''}<b>${shown(name)}</b>`) : 'its turn'}.` : step.state === 'skipped' ? 'Its condition was false, so it was never sent.' : step.children ? 'Its attempts are those of its child jobs.' : 'It was never sent.'}</p>`;
    return html`${error?.notHere ? html`<p class="calm small">This manager tells the last attempt alone.</p>` : refusal(this.#detail?.problem)}
      ${list.length > 1 ? html`<p class="calm small"><a href=${link(['compare', this.#id], { step: step.name, attempts: `${list[list.length - 2].attempt},${list[list.length - 1].attempt}` })}>Compare the last two</a></p>` : nothing}
      ${detail?.attemptsOmitted ? html`<p class="calm small">${counted(detail.attemptsOmitted, 'earlier attempt')} left out.</p>` : nothing}
      <ol class="attempts" reversed>${[...list].reverse().map((one) => {
        const state = one.state === 'running' && step.state === 'halted' ? step.state : one.state;
        const from = millis(one.startTime);
        const to = one.endTime ? millis(one.endTime) : state === 'running' ? now : Number.NaN;
        return html`<li class="attempt">
          <div class="attempt-line">${sign(state)}<b>Attempt ${one.attempt}</b>${one.round ? html`<span class="word">round ${one.round + 1}</span>` : nothing}<span class="quiet">${shown(state)}</span><span class="space"></span><span class="number">${span(to - from)}</span></div>
          <dl class="attempt-times"><div><dt>sent</dt><dd>${moment(one.startTime, { relative: false, fraction: true })}</dd></div>${one.confirmed ? html`<div><dt>broker has it</dt><dd>+ ${span(millis(one.confirmed) - from)}</dd></div>` : state === 'running' && step.queue && !step.external ? html`<div><dt>broker has it</dt><dd class="quiet">not confirmed yet</dd></div>` : nothing}${one.endTime ? html`<div><dt>ended</dt><dd>${moment(one.endTime, { relative: false, fraction: true })}</dd></div>` : state === 'running' && step.deadline ? html`<div><dt>fails</dt><dd>${moment(step.deadline, { relative: false })} <span class="quiet">${ago(millis(step.deadline), now)}</span></dd></div>` : nothing}${one.redispatched ? html`<div><dt>sent again</dt><dd>${counted(one.redispatched, 'time')}</dd></div>` : nothing}${one.retryAt ? html`<div><dt>next due</dt><dd>${moment(one.retryAt, { relative: false })}</dd></div>` : nothing}</dl>
          ${one.reason ? html`<p class="reason small">${shown(one.reason)}</p>` : nothing}
          ${one.raw ? html`<details><summary>The reply, ${bytes(new TextEncoder().encode(one.raw).length)}</summary><pre class="raw">${shown(one.raw)}</pre></details>` : nothing}
        </li>`;
      })}</ol>`;
  }

  /**
   * @param {Step} step
   * @param {Job} job
   */
  #children(step, job) {
    const children = step.children;
    if (!children) return nothing;
    const address = link(['job', job.uuid, 'step', step.name]);
    const end = Math.min(...[step.endTime, job.ended].map(millis).filter(Number.isFinite));
    const failed = (this.#failed?.data?.children ?? []).filter((child) => !endedWith(child, end));
    const done = doneOf(children);
    const cut = children.cancelled ?? 0;
    return html`<div class="fan">
      <div class="fan-line"><b>${count(done)}</b> of ${counted(children.items, 'item')} done<span class="quiet">${share(done + children.failed, children.items)} ended</span><span class="space"></span><a class="button small" href=${address}>${icon('fan')}All items</a></div>
      <div class="fan-bar">${childBar(children)}</div>
      ${cut ? html`<p class="quiet">${count(cut)} cut off by the end of the step</p>` : nothing}
      ${children.failed ? html`<p class="failed-text"><b>${count(children.failed)} failed</b></p><ul class="fan-failed">${failed.map((child) => html`<li><a href=${link(['job', child.job])}>item ${count(child.item)}</a><span class="quiet" title=${plain(child.reason ?? '')}>${shown(shortReason(child.reason ?? child.state))}</span></li>`)}</ul>${refusal(this.#failed?.problem)}` : nothing}
    </div>`;
  }

  /**
   * @param {Job} job
   * @param {Step} step
   * @param {StepDefinition | undefined} own
   * @param {StepDefinition[] | undefined} defined
   * @param {boolean} past
   * @param {() => void} done
   */
  #actions(job, step, own, defined, past, done) {
    const running = step.state === 'running' && (job.state === 'running' || job.state === 'paused');
    const ended = ['completed', 'failed', 'cancelled'].includes(job.state);
    const hand = running && !step.children;
    const again = ended && !job.parent && step.state !== 'waiting';
    const failed = itemsToRerun(job, step);
    const lost = running && !step.children && !step.external && !step.retryAt;
    if (!may() || (!hand && !again && !lost)) return nothing;
    return html`<footer class="panel-foot">
      ${hand ? html`<button class="button ${step.external ? 'primary' : ''}" ?disabled=${past} @click=${() => byHand(job, step, own, 'result', done)}>Complete by hand…</button><button class="button" ?disabled=${past} @click=${() => byHand(job, step, own, 'error', done)}>Fail…</button>` : nothing}
      ${lost ? html`<button class="button" ?disabled=${past} @click=${() => redispatch(job, step, done)}>Send again…</button>` : nothing}
      ${failed ? html`<button class="button" ?disabled=${past} @click=${() => rerunItems(job, defined, step.name, failed, done)}>${icon('retry')}Run the ${counted(failed, 'failed item')} again…</button>` : nothing}
      ${again ? html`<button class="button" ?disabled=${past} @click=${() => rerun(job, defined, step.name, done)}>${icon('retry')}Run again from here…</button>` : nothing}
    </footer>`;
  }

  /**
   * @param {Job} job
   * @param {string | undefined} rootLabel
   * @param {string} name
   * @param {Definition | undefined} definition
   * @param {number | undefined} at
   * @param {string | undefined} close
   * @param {(step: string) => string} stepLink
   */
  #job(job, rootLabel, name, definition, at, close, stepLink) {
    this.#for = '';
    const ended = job.state === 'completed';
    return html`<section class="panel step-panel" aria-label="Job">
      <header class="panel-head"><div class="step-title"><h2>Job</h2><code class="quiet">${shortId(job.uuid)}</code></div>${close ? html`<a class="tool" href=${close} aria-label="Close">${icon('close')}</a>` : nothing}</header>
      <nav class="tabs" aria-label="Of the job"><a href=${stepLink(START)} aria-current=${name === START ? 'page' : nothing}>Message</a><a href=${stepLink(END)} aria-current=${name === END ? 'page' : nothing}>Result</a></nav>
      ${name === START ? html`<div class="tab-body">${this.#payload('message', ['job', job.uuid, 'message'], 'message', 'The job has no message.')}</div>` : ended && at === undefined ? html`<div class="tab-body">${this.#payload(`result ${job.ended}`, ['job', job.uuid, 'result'], 'result', 'The job has no result.')}</div>` : html`<div class="tab-body"><p class="calm">There is a result when the job is completed.</p></div>`}
      <dl class="facts">
        <div><dt>id</dt><dd><code>${job.uuid}</code> <button class="tool tiny" aria-label="Copy the id" @click=${() => copied(job.uuid, 'Id')}>${icon('copy')}</button></dd></div>
        ${Object.entries(job.columns ?? {}).map(([name, value]) => html`<div><dt>${shown(name)}</dt><dd>${shown(String(value))}</dd></div>`)}
        <div><dt>created</dt><dd>${moment(job.created)}</dd></div>
        ${job.ended ? html`<div><dt>ended</dt><dd>${moment(job.ended)}</dd></div>` : job.deadline ? html`<div><dt>fails when not done</dt><dd>${moment(job.deadline)}</dd></div>` : nothing}
        ${job.startsAt ? html`<div><dt>starts at</dt><dd>${moment(job.startsAt)}</dd></div>` : nothing}
        ${job.waitsFor ? html`<div><dt>waits for</dt><dd>${placeOf(job.waitsFor)}, since ${moment(job.waitsFor.since)}</dd></div>` : nothing}
        ${job.schedule ? html`<div><dt>schedule</dt><dd><a href=${link(['schedules'], { schedule: job.schedule })}>${shown(job.schedule)}</a></dd></div>` : nothing}
        ${job.slot ? html`<div><dt>slot</dt><dd>${moment(job.slot)}</dd></div>` : nothing}
        ${job.parent ? html`<div><dt>part of</dt><dd>job <a href=${link(['job', job.parent.job])}>${named(job.parent.root === job.parent.job ? rootLabel : undefined, job.parent.job)}</a>, item ${count(job.parent.item)}</dd></div>` : nothing}
        ${definition ? html`<div><dt>definition</dt><dd><a href=${link(['definitions', ...(definition.vhost ? [definition.vhost, definition.name] : [definition.name])], { hash: definition.hash })}><code>${definition.hash.slice(0, 12)}</code></a>${definition.loaded === false ? html` <span class="quiet">an older one</span>` : nothing}</dd></div>` : nothing}
      </dl>
    </section>`;
  }
}

/**
 * The place that a step or a job waits for: of which limit, and whose it is.
 * @param {{ limits: { limit: string, key?: string }[] }} claim
 */
export function placeOf({ limits }) {
  return html`a place of ${limits.map((one, n) => html`${n > 0 ? ', ' : ''}limit ${shown(one.limit)}${one.key !== undefined ? html` for ${shown(one.key)}` : nothing}`)}`;
}

/**
 * Whether a child job ended with its step or job, at that time, and not for itself.
 * @param {Child} child
 * @param {number} end infinite if there is none
 */
export function endedWith(child, end) {
  return millis(child.ended) >= end;
}

/**
 * How many items of a step failed that can be run again by themselves.
 * @param {Job} job
 * @param {Step} step
 */
export function itemsToRerun(job, step) {
  const ended = ['completed', 'failed', 'cancelled'].includes(job.state);
  if (!ended || job.parent || !step.children || !['completed', 'failed'].includes(step.state)) return 0;
  return (step.children.items ?? 0) - doneOf(step.children);
}

/**
 * A retry of the job and a run from a step on give a step all its attempts again: they are counted from there.
 * @param {Step} step
 * @param {number | undefined} most
 * @param {StepDetail | undefined} detail
 */
export function attemptOf(step, most, detail) {
  const all = step.attempt;
  if (most === undefined) return all > 1 ? `attempt ${all}` : '';
  const list = detail?.attempts ?? [];
  // An attempt that another one was due after belongs to the same count.
  let first = list.length - 1;
  while (first > 0 && list[first - 1].retryAt) first -= 1;
  const known = first > 0 || !detail?.attemptsOmitted;
  const now = list.length && known ? list.length - first : all;
  if (now > most) return `attempt ${all}`;
  return `attempt ${now} of ${most}${now < all ? `, ${all} in all` : ''}`;
}

/**
 * @param {Step} step
 * @param {StepDefinition | undefined} own
 * @param {number} now
 * @param {StepDetail | undefined} detail
 */
function stepLine(step, own, now, detail) {
  const parts = [];
  if (step.external) parts.push('completed by a call of the API');
  else if (step.queue) parts.push(html`queue <code>${shown(step.queue)}</code>`);
  else if (own?.task) parts.push(html`task <code>${shown(own.task)}</code> for each item`);
  if (step.attempt > 0 && !step.children) parts.push(attemptOf(step, own?.retry?.attempts, detail));
  const from = millis(step.startTime);
  if (step.state === 'running' && Number.isFinite(from)) parts.push(`for ${span(now - from)}`);
  else if (step.state === 'halted') parts.push('under way when the job ended');
  else if (step.elapsed !== undefined && step.endTime) parts.push(`took ${nanos(step.elapsed)}`);
  return parts.filter((part) => part !== '').map((part, index) => html`${index ? ' · ' : nothing}${part}`);
}

/**
 * @param {Step} step
 * @param {StepDefinition | undefined} own
 */
function setup(step, own) {
  if (!own) return html`<p class="calm">This manager does not tell the definition of the step.</p>`;
  const names = /** @type {Record<string, string>} */ ({ depends: 'waits for', queue: 'queue', bus: 'bus', task: 'task for each item', timeout: 'timeout', limit: 'limit', waitAtMost: 'waits at most', startWithin: 'starts within', retry: 'retry', when: 'when', cancelWhen: 'cancelled when', onFailure: 'on failure', external: 'external', statusKey: 'status from', statuses: 'statuses', skippedStatus: 'when skipped', cancelledStatus: 'when cancelled', priority: 'priority', replyUsers: 'replies of' });
  const code = new Set(['queue', 'bus', 'task', 'when', 'cancelWhen', 'statusKey']);
  return html`<dl class="facts">${settings(own).map(([key, value]) => html`<div><dt>${names[key] ?? shown(key)}</dt><dd>${code.has(key) ? html`<code>${shown(value)}</code>` : shown(key === 'timeout' ? duration(value) : value)}</dd></div>`)}${own.timeout === undefined && !own.external ? html`<div><dt>timeout</dt><dd class="quiet">none: it waits for ever</dd></div>` : nothing}</dl>`;
}

