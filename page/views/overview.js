// What stands still, what fails, and how much there is of everything.

import { html, nothing, svg } from '../vendor/lit-html@3.3.3/lit-html.js';
import { repeat } from '../vendor/lit-html@3.3.3/directives/repeat.js';
import { get } from '../lib/api.js';
import { refusal, setQuery } from '../lib/app.js';
import { scrolls } from '../lib/dom.js';
import { Held } from '../lib/held.js';
import { icon } from '../lib/icons.js';
import { shortReason } from '../lib/reason.js';
import { redraw } from '../lib/redraw.js';
import { link } from '../lib/route.js';
import { failedLately, figures, fullName, may, standsBy, workflows } from '../lib/shared.js';
import { Source } from '../lib/source.js';
import { count, counted, named, plain, share, shown } from '../lib/text.js';
import { ago, agoBetween, firstPart, millis, nanos, span, told } from '../lib/time.js';
import { openCreate } from './create.js';
import { firstSteps } from './first.js';
import { redispatchQueue } from './job-operations.js';
import { limitCommands, limitPanel } from './limits.js';
import { controlNotes, pauseCommands, pauseSign } from './pauses.js';
import { Trends } from './trends.js';
import { cause } from './why.js';

/** @import { FailedReason, FailedReasons, Found, FoundPage, Queue, Why, Workflow } from '../lib/types.js' */
/** @import { Answer } from '../lib/held.js' */
/** @import { Route } from '../lib/route.js' */
/** @import { View } from '../lib/app.js' */
/** @import { Limit } from './limits.js' */

const SPANS = ['1h', '24h'];
/** A younger job than this is not asked why it stands where it stands: to answer, the manager asks the broker. */
const PATIENCE = 30_000;
/** How many of the jobs that failed are listed. */
const FAILED = 6;
/** How many reasons are told at once. */
const REASONS = 6;
/** How high a sparkline is without its line, and how long its shortest bar, in pixels. */
const HEIGHT = 28;
const LEAST = 1.5;
/** Causes that need somebody; the others are everyday. */
const STANDS = new Set(['no_consumer', 'not_delivered', 'broker_gone', 'broker_blocked', 'queue_full', 'journal_full', 'lost']);

/**
 * @param {Route} route
 * @returns {View}
 */
export function overviewView(route) {
  return new Overview(route);
}

/** @param {Route} route */
function spanIn(route) {
  const wanted = route.query.get('span') ?? '1h';
  return SPANS.includes(wanted) ? wanted : '1h';
}

class Overview {
  page = 'overview';
  /** @type {Source<{ looked?: string, queues: Queue[] }>} */
  #queues = new Source((signal) => get(['queues'], {}, signal));
  /** Where each queue stands in the table. @type {Map<string, number>} */
  #places = new Map();
  /** @type {Source<{ limits: Limit[] }>} */
  #limits = new Source((signal) => get(['limits'], {}, signal));
  /** @type {Held<Found>} */
  #failedList = new Held((job) => job.job, () => void this.#failed.refresh());
  /** @type {Source<Answer<Found>>} */
  #failed = new Source(async (signal) => {
    /** @type {FoundPage} */
    const { jobs, next } = await get(['jobs', 'search'], { state: 'failed', limit: this.#failedList.most('', FAILED) }, signal);
    return { question: '', rows: jobs, most: FAILED, next };
  });
  /** @type {Source<FailedReasons>} */
  #reasons = new Source((signal) => get(['reasons'], { endedAfter: figures.span }, signal));
  #allReasons = false;
  /** Why the oldest job of each workflow stands where it stands. @type {Source<{ workflow: string, why: Why, created: string }[]>} */
  #standing = new Source((signal) => this.#ask(signal));

  #trends;

  /** @param {Route} route */
  constructor(route) {
    figures.span = spanIn(route);
    // First what there has to be before it is shown: a browser asks a few things at once.
    void workflows.refresh().then(() => this.#standing.refresh());
    void this.#failed.refresh();
    this.#trends = new Trends(route);
    void this.#queues.refresh();
    if (!standsBy()) void this.#limits.refresh();
    void this.#reasons.refresh();
    this.#queues.every(5000);
    this.#limits.every(5000);
    this.#failed.every(5000);
    this.#reasons.every(20_000);
    this.#standing.every(20_000);
  }

  stop() {
    this.#queues.stop();
    this.#limits.stop();
    this.#failed.stop();
    this.#reasons.stop();
    this.#standing.stop();
    this.#trends.stop();
  }

  /** @param {Route} route */
  update(route) {
    this.#trends.update(route);
    const wanted = spanIn(route);
    if (wanted !== figures.span) {
      figures.span = wanted;
      void workflows.refresh();
      void this.#reasons.restart();
    }
  }

  /** @param {AbortSignal} signal */
  async #ask(signal) {
    const all = workflows.data ?? [];
    const oldest = all.flatMap((workflow) => (workflow.stats?.oldestRunning ? [{ workflow: fullName(workflow), ...workflow.stats.oldestRunning }] : [])).filter(({ created }) => Date.now() - millis(created) > PATIENCE).slice(0, 8);
    /** @type {{ workflow: string, why: Why, created: string }[]} */
    const found = [];
    for (const { workflow, job, created } of oldest) {
      try {
        found.push({ workflow, created, why: await get(['job', job, 'why'], {}, signal) });
      } catch {
        // It may have ended in the meantime.
      }
    }
    return found;
  }

  ready() {
    return (workflows.data !== undefined || workflows.error !== undefined) && (this.#failed.data !== undefined || this.#failed.error !== undefined);
  }

  title() {
    return 'Overview';
  }

  live() {
    return 'every 5 s';
  }

  template() {
    const all = workflows.data ?? [];
    const queues = this.#sorted(this.#queues.data?.queues ?? []);
    const failed = this.#failedList.take(this.#failed.data);
    const { hold } = this.#failedList;
    const standing = (this.#standing.data ?? []).filter(({ why }) => STANDS.has(why.cause));
    const blind = queues.filter((queue) => queue.consumers === 0 && (queue.messages ?? 0) > 0 && !standing.some(({ why }) => why.why.includes(`"${queue.queue}"`)));
    return html`<div class="overview">
      <header class="page-head"><h1>Overview</h1><span class="space"></span>${!may() ? nothing : html`<button class="button small" @click=${() => openCreate()}>${icon('plus')}New job</button>`}${all.length ? html`<div class="segments" role="group" aria-label="Figures of">${SPANS.map((one) => html`<button aria-pressed=${figures.span === one ? 'true' : 'false'} @click=${() => setQuery({ span: one === '1h' ? undefined : one }, { replace: true })}>${one}</button>`)}</div>` : nothing}</header>
      ${standing.map(({ workflow, why, created }) => html`<div class="why warn attention">${icon('alert')}<p class="reason"><b>${shown(workflow)}</b> stands still: ${standsText(why.why)} <span class="quiet">(the oldest job has waited for ${span(Date.now() - millis(created))})</span></p><a class="button small" href=${link(['job', why.job])}>Show</a></div>`)}
      ${blind.length ? html`<div class="why warn attention">${icon('alert')}<p class="reason">No consumer on ${blind.length === 1 ? 'queue' : counted(blind.length, 'queue')}${blind.length === 1 ? ' ' : ': '}${blind.slice(0, 6).map((queue, index) => html`${index ? ', ' : nothing}<b>${shown(queue.queue)}</b> <span class="quiet">(${counted(queue.messages ?? 0, 'message')})</span>`)}${blind.length > 6 ? ' …' : '.'}</p>${blind.length === 1 && blind[0].usedBy?.[0] ? html`<a class="button small" href=${link(['jobs'], { workflow: blind[0].usedBy[0].workflow, state: 'running', order: 'oldest' })}>Show</a>` : nothing}</div>` : nothing}
      <section class="panel" aria-label="Workflows">
        <div class="panel-title"><h2>Workflows</h2></div>${refusal(workflows.problem)}
        ${all.length ? html`<div class="table-wrap" ${scrolls()}><table class="overview-table"><thead><tr><th>Workflow</th><th class="number">Running</th><th class="number">Paused</th><th>Waits longest</th><th class="number">Done, ${figures.span}</th><th class="number" title="Jobs that failed within ${figures.span} and have not been retried since">Still failed, ${figures.span}</th><th class="number">p50</th><th class="number">p95</th><th>Ended per minute, failed below</th></tr></thead>
          <tbody>${all.map((workflow) => this.#row(workflow))}</tbody></table></div>` : workflows.told ? firstSteps() : nothing}
      </section>
      ${this.#reasonPanel()}
      ${all.length ? this.#trends.template() : nothing}
      ${standsBy() ? nothing : limitPanel(this.#limits)}
      <div class="overview-parts">
        ${this.#queuePanel(queues)}
        <section class="panel" aria-label="Failed lately"><div class="panel-title"><h2>Failed lately</h2>${this.#failedList.button()}<span class="space"></span><a class="small" href="#/jobs?state=failed">All failed jobs</a></div>${refusal(this.#failed.problem)}
          ${failed.length ? html`<ul class="failed-list" @pointerenter=${hold} @pointerleave=${hold} @focusin=${hold} @focusout=${hold}>${repeat(failed, (job) => job.job, (job) => html`<li data-row=${job.job}><a href=${link(['job', job.job])}><span class="sign-of failed">${icon('failed')}</span><span class="failed-job">${named(job.label, job.job)} <span>${shown(job.workflow)}</span></span><time class="quiet" datetime=${job.ended ?? job.created}>${ago(millis(job.ended ?? job.created))}</time><span class="failed-reason quiet" title=${plain(job.reason ?? '')}>${shown(shortReason(job.reason ?? ''))}</span></a></li>`)}</ul>` : this.#failed.told ? html`<p class="calm">No job has failed.</p>` : nothing}
        </section>
      </div>
    </div>`;
  }

  /** Why jobs and child jobs failed within the span. It is there only if any did. */
  #reasonPanel() {
    const { data } = this.#reasons;
    if (!data?.reasons.length) return this.#reasons.error?.notHere ? nothing : refusal(this.#reasons.problem);
    const told = this.#allReasons ? data.reasons : data.reasons.slice(0, REASONS);
    return html`<section class="panel" aria-label="Failed, by reason"><div class="panel-title"><h2>Failed, by reason</h2><span class="quiet small">${failuresText(data)} within ${figures.span}</span></div>
      <ul class="reasons why-failed">${told.map((one) => this.#reason(one))}</ul>
      ${told.length < data.reasons.length ? html`<button class="mini more-reasons" @click=${() => { this.#allReasons = true; redraw(); }}>${counted(data.reasons.length - told.length, 'more reason')}</button>` : nothing}
    </section>`;
  }

  /** The list has those of this time alone; but the jobs of child jobs may go on. @param {FailedReason} one */
  #reason({ reason, reasonId, workflow, count: jobs, children, first, last, job, example }) {
    return html`<li><b class="failed-text">${count(jobs)}</b><a class="reason" href=${link(['jobs'], { workflow, reasonId, endedAfter: children ? undefined : figures.span })} title=${plain(example)}>${shown(shortReason(reason))}</a>
      <span class="quiet small why-facts"><span>${shown(workflow)}</span>${children ? html`<span>${children === jobs ? 'child jobs' : counted(children, 'child job')}</span>` : nothing}<span>${agoBetween(millis(first), millis(last))}</span><a href=${link(['job', job])}>the newest</a></span></li>`;
  }

  /** Of each workflow, queue and limit: there may be many. */
  commands() {
    return [
      ...(workflows.data ?? []).flatMap((workflow) => pauseCommands({ kind: 'workflow', ...workflow })),
      ...(this.#queues.data?.queues ?? []).flatMap((queue) => pauseCommands(subjectOf(queue))),
      ...limitCommands(this.#limits),
    ].map((command) => ({ ...command, late: true }));
  }

  /**
   * @param {Workflow} workflow
   */
  #row(workflow) {
    const name = fullName(workflow);
    const s = workflow.stats;
    const failed = failedLately(workflow);
    const why = this.#standing.data?.find((one) => one.workflow === name)?.why;
    return html`<tr>
      <td class="overview-name"><a href=${link(['jobs'], { workflow: name })}><b>${shown(name)}</b></a>${workflow.loaded === false ? html` <span class="word" title="It is no longer in the files; its jobs go on">not loaded</span>` : nothing}${controlNotes({ kind: 'workflow', ...workflow })}</td>
      <td class="number" data-label="running">${figure(s ? (s.states.running ?? 0) : workflow.job_count, link(['jobs'], { workflow: name, state: 'running' }))}</td>
      ${s ? html`<td class="number" data-label="paused">${figure(s.states.paused ?? 0, link(['jobs'], { workflow: name, state: 'paused' }))}</td>
        <td class="overview-oldest" data-label="waits longest">${s.oldestRunning ? html`<a href=${link(['job', s.oldestRunning.job])}>${span(Date.now() - millis(s.oldestRunning.created))}</a> <span class="quiet">${cause(why)}</span>` : html`<span class="quiet">–</span>`}</td>
        <td class="number" data-label="done, ${figures.span}">${figure(s.completed, link(['jobs'], { workflow: name, state: 'completed', endedAfter: figures.span }))}</td>
        <td class="number" data-label="still failed, ${figures.span}">${failed ? html`<a class="failed-text" href=${link(['jobs'], { workflow: name, state: 'failed', endedAfter: figures.span })}>${count(failed)}</a> <span class="quiet">${share(failed, (s.completed ?? 0) + failed + (s.cancelled ?? 0))}</span>` : html`<span class="quiet">0</span>`}</td>
        <td class="number" data-label="p50">${nanos(s.p50)}</td><td class="number" data-label="p95">${nanos(s.p95)}</td>
        <td class="spark-cell ${s.completed || s.failed ? '' : 'idle'}">${s.perMinute ? spark(s.perMinute, name) : nothing}</td>` : nothing}
    </tr>`;
  }

  /**
   * What needs somebody comes first. While the mouse or the keyboard is in the table its rows stay where they are.
   * @param {Queue[]} queues
   */
  #sorted(queues) {
    const used = document.querySelector('.queue-table tbody')?.matches(':hover, :focus-within');
    const places = this.#places;
    const sorted = byTrouble(queues);
    if (used) sorted.sort((a, b) => (places.get(placeOf(a)) ?? queues.length) - (places.get(placeOf(b)) ?? queues.length));
    this.#places = new Map(sorted.map((queue, index) => [placeOf(queue), index]));
    return sorted;
  }

  /** @param {Queue[]} queues */
  #queuePanel(queues) {
    const { data, error } = this.#queues;
    const looked = data?.looked;
    const taken = queues.some((queue) => queue.unacknowledged !== undefined);
    const several = new Set(queues.map((queue) => queue.bus)).size > 1;
    return html`<section class="panel" aria-label="Queues"><div class="panel-title"><h2>Queues</h2>${looked ? html`<span class="quiet small">looked at ${ago(millis(looked))}</span>` : nothing}</div>
      ${standsBy() ? html`<p class="calm">Only the active manager looks at queues.</p>` : error?.notHere ? html`<p class="calm">This manager does not tell its queues. A job’s own page says what it waits for.</p>` : refusal(this.#queues.problem)}
      ${standsBy() ? nothing : !queues.length ? (this.#queues.told ? html`<p class="calm">No step uses a queue.</p>` : nothing) : html`<div class="table-wrap" ${scrolls()}><table class="queue-table"><thead><tr><th>Queue, used by</th><th class="number">Messages</th>${taken ? html`<th class="number queue-taken">With workers</th>` : nothing}<th class="number">Consumers</th><th class="queue-oldest">Waits longest</th><th><span class="sr">Operations</span></th></tr></thead><tbody>${repeat(queues, placeOf, (queue) => html`<tr>
        <td class="queue-name"><code title=${plain(queue.queue)}>${shown(queue.vhost ? `${queue.vhost}/${queue.queue}` : queue.queue)}</code>${several ? html` <span class="quiet">on ${shown(queue.bus ?? '')}</span>` : nothing}${queue.noLongerInFiles ? html` <span class="word" title="It is no longer in the files; jobs that began before a reload use it">not loaded</span>` : nothing}${queue.trouble ? html`<div class="failed-text queue-trouble">Nothing is delivered: ${shown(queue.trouble)}${queue.nextCall ? html`; the next call is ${ago(millis(queue.nextCall))}` : nothing}</div>` : nothing}${controlNotes(subjectOf(queue))}<div class="queue-used">${(queue.usedBy ?? []).map((use) => { const name = [use.workflow, use.task, use.step].filter(Boolean).join(' / '); return html`<span>${use.noLongerInFiles ? html`<span class="quiet" title="Jobs that began before a reload have this step">${shown(name)}</span>` : html`<a href=${link(['definitions', ...use.workflow.split('/')], { step: use.step })} title=${plain(name)}>${shown(name)}</a>`}</span> `; })}</div></td>
        <td class="number" data-label="messages">${queue.missing ? html`<span class="quiet" title="It is declared before a message is sent to it">not there yet</span>` : queue.unknown !== undefined ? html`<span class="quiet" title=${plain(queue.unknown)}>not known</span>` : count(queue.messages)}</td>
        ${taken ? html`<td class="number queue-taken">${count(queue.unacknowledged)}</td>` : nothing}
        <td class="number" data-label="consumers">${queue.consumers === 0 ? html`<span class="${queue.messages ? 'failed-text' : 'quiet'}">0${queue.messages ? html`<span class="sr"> although messages wait</span>` : nothing}</span>` : count(queue.consumers)}</td>
        <td class="queue-oldest" data-label="waits longest">${queue.oldest ? html`<a href=${link(['job', queue.oldest.job], { step: queue.oldest.step })} title=${plain(`Step ${queue.oldest.step} of job ${queue.oldest.job} has waited longest for a reply`)}>${span(Date.now() - millis(queue.oldest.since))}</a>` : html`<span class="quiet">–</span>`}</td>
        <td class="queue-do">${!may() ? nothing : html`<button class="mini" aria-label=${plain(`Send messages again on ${queue.queue}`)} title="Send messages that were lost again…" @click=${() => redispatchQueue(queue)}>${icon('retry')}</button>${pauseSign(subjectOf(queue))}`}</td>
      </tr>`)}</tbody></table></div>`}
    </section>`;
  }
}

/** How many jobs failed, and how many child jobs, which no other figure here counts. @param {FailedReasons} data */
function failuresText({ failures, failuresIsMinimum, reasons }) {
  if (failuresIsMinimum) return `the newest ${count(failures)} jobs and child jobs that failed`;
  const sum = (/** @type {(one: FailedReason) => number} */ of) => reasons.reduce((all, one) => all + of(one), 0);
  // Not all groups are told where there are very many.
  if (sum((one) => one.count) !== failures) return `${count(failures)} jobs and child jobs failed`;
  const children = sum((one) => one.children);
  const parts = [...(failures > children ? [counted(failures - children, 'job')] : []), ...(children ? [counted(children, 'child job')] : [])];
  return `${parts.join(' and ')} failed`;
}

/** @param {Queue} queue @returns {import('./pauses.js').Subject} */
const subjectOf = ({ queue, vhost, bus }) => ({ kind: 'queue', name: queue, vhost, bus });

/** @param {Queue} queue */
const placeOf = (queue) => JSON.stringify([queue.bus, queue.vhost, queue.queue]);

/**
 * How much a queue needs somebody, the least first.
 * @param {Queue} queue
 */
function trouble({ trouble, full, messages = 0, consumers, missing, unknown, oldest }) {
  if (trouble || full || (consumers === 0 && messages > 0)) return 0;
  if (unknown !== undefined || (missing && oldest)) return 1;
  if (messages > 0) return 2;
  return oldest ? 3 : 4;
}

/**
 * Those that need somebody first, and among them that of the step that has waited longest: that order does not change while one reads.
 * @param {Queue[]} queues
 */
export function byTrouble(queues) {
  const since = (/** @type {Queue} */ queue) => (queue.oldest ? millis(queue.oldest.since) : Number.MAX_VALUE);
  return [...queues].sort((a, b) => trouble(a) - trouble(b) || since(a) - since(b) || placeOf(a).localeCompare(placeOf(b)));
}

/**
 * @param {number | undefined} value
 * @param {string} address
 */
function figure(value, address) {
  return value ? html`<a class="figure" href=${address}>${count(value)}</a>` : html`<span class="quiet">${value === undefined ? '–' : '0'}</span>`;
}

/** @param {string} text */
function standsText(text) {
  const [first, more] = firstPart(text);
  return html`${told(first)}${more ? ' …' : nothing}`;
}

/**
 * Two rows of bars: what ended above the line, what failed below it.
 * @param {[number, number][]} series
 * @param {string} name
 */
function spark(series, name) {
  if (!series.length) return html`<span class="quiet">–</span>`;
  // At most as many bars as can be told apart.
  const each = Math.ceil(series.length / 60);
  /** @type {[number, number][]} */
  const bars = [];
  for (let index = 0; index < series.length; index += each) {
    const part = series.slice(index, index + each);
    bars.push([part.reduce((sum, [done]) => sum + done, 0), part.reduce((sum, [, failed]) => sum + failed, 0)]);
  }
  const most = Math.max(1, ...bars.map(([done]) => done));
  const mostFailed = Math.max(0, ...bars.map(([, failed]) => failed));
  const width = 3;
  // One scale for both: a bar of failures is as long as one of as many jobs that ended well. A single one is seen all the same.
  const unit = HEIGHT / (most + mostFailed);
  const long = (/** @type {number} */ value) => Math.max(LEAST, unit * value).toFixed(1);
  const line = 1 + HEIGHT - Math.max(mostFailed ? LEAST : 0, unit * mostFailed);
  const up = bars.map(([done], index) => (done ? `M${index * width} ${line.toFixed(1)}v-${long(done)}` : '')).join('');
  const down = bars.map(([, failed], index) => (failed ? `M${index * width} ${(line + 1).toFixed(1)}v${long(failed)}` : '')).join('');
  const total = bars.reduce((sum, [done]) => sum + done, 0);
  const bad = bars.reduce((sum, [, failed]) => sum + failed, 0);
  return html`<svg class="spark" viewBox="-1 0 ${bars.length * width} 30" width=${bars.length * width} height="30" preserveAspectRatio="none" role="img" aria-label=${plain(`${name}: ${total} ended well, ${bad} failed; at most ${most} in a bar`)}>${svg`<path class="spark-base" d="M-1 ${(line + 0.5).toFixed(1)}H${bars.length * width}"/><path class="spark-done" d=${up}/><path class="spark-failed" d=${down}/>`}</svg>`;
}
