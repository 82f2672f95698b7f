// A job: why it stands where it stands, its graph, its time, its record, and its steps.

import { html, nothing } from '../vendor/lit-html@3.3.3/lit-html.js';
import { keyed } from '../vendor/lit-html@3.3.3/directives/keyed.js';
import { command, curl, get, Problem } from '../lib/api.js';
import { app, copied, go, setQuery } from '../lib/app.js';
import { Stream } from '../lib/events.js';
import { END, START } from '../lib/graph.js';
import { icon } from '../lib/icons.js';
import { reasonText } from '../lib/reason.js';
import { redraw } from '../lib/redraw.js';
import { changed, link } from '../lib/route.js';
import { may } from '../lib/shared.js';
import { atMostEvery, Source } from '../lib/source.js';
import { badge, isEnd, settled } from '../lib/states.js';
import { count, counted, named, plain, shortId, shown } from '../lib/text.js';
import { clock, millis, moment, span } from '../lib/time.js';
import { openCompare } from './compare.js';
import { GraphPanel } from './job-graph.js';
import { erase, operate, OPERATIONS, stepsOf } from './job-operations.js';
import { Record } from './job-record.js';
import { placeOf, StepPanel } from './job-step.js';
import { TimePanel } from './job-time.js';
import { whyText } from './why.js';

/** @import { Definition, Job, Why } from '../lib/types.js' */
/** @import { Route } from '../lib/route.js' */
/** @import { Command, View } from '../lib/app.js' */

/** @type {Map<string, Promise<Definition>>} definitions never change, but for whether they are loaded */
const definitions = new Map();

/**
 * @param {string} hash
 * @returns {Promise<Definition>}
 */
export function definitionOf(hash) {
  let found = definitions.get(hash);
  if (!found) {
    found = get(['definition', hash]);
    definitions.set(hash, found);
    found.catch(() => definitions.delete(hash));
    if (definitions.size > 50) definitions.delete(/** @type {string} */ (definitions.keys().next().value));
  }
  return found;
}

/**
 * The step for which the job failed: the one that the reason names, else the last that failed. A step whose failure did not matter is not it.
 * @param {Job} job
 */
function failedStep(job) {
  const failed = job.steps.filter((step) => step.state === 'failed');
  return failed.find((step) => job.reason?.includes(`"${step.name}"`)) ?? failed.at(-1);
}

/**
 * @param {Route} route
 * @returns {View}
 */
export function jobView(route) {
  const id = route.path[1];
  return new JobView(id, route);
}

class JobView {
  page = 'jobs';
  #id;
  #route;
  #graph = new GraphPanel();
  #time = new TimePanel();
  #record;
  #step;
  /** @type {Source<Job>} */
  #job;
  /** @type {Source<Job>} the job as it was, while one looks back */
  #then;
  /** @type {Source<Why>} */
  #why;
  /** @type {Definition | undefined} */
  #definition;
  #definitionMissing = '';
  #asked = '';
  /** Of a child job: its root job. @type {{ id: string, label: string | undefined } | undefined} */
  #root;
  /** @type {Stream | undefined} */
  #stream;
  #timer;
  #look;
  #lookWhy;
  #lookThen;
  #menu = false;

  /**
   * @param {string} id
   * @param {Route} route
   */
  constructor(id, route) {
    this.#id = id;
    this.#route = route;
    this.#record = new Record(id);
    this.#step = new StepPanel(id);
    this.#job = new Source(async (signal) => {
      /** @type {Job} */
      const job = await get(['job', id], { view: 'light' }, signal);
      // It is needed next: ask before anything is drawn.
      if (job.definition && !this.#definition) definitionOf(job.definition).catch(() => {});
      if (job.parent) this.#askRoot(job.parent.root);
      return job;
    });
    this.#then = new Source((signal) => get(['job', id], { view: 'light', at: this.#at }, signal));
    this.#why = new Source((signal) => get(['job', id, 'why'], {}, signal));
    this.#look = atMostEvery(() => {
      if (!document.hidden) void this.#job.refresh().then(() => this.#looked());
    }, 200);
    this.#lookWhy = atMostEvery(() => {
      if (!document.hidden) void this.#why.refresh();
    }, 2000);
    this.#lookThen = atMostEvery(() => void this.#then.restart(), 60);
    void this.#job.refresh().then(() => this.#looked());
    if (this.#at !== undefined) void this.#then.refresh();
    this.#stream = new Stream(['job', id, 'events'], { children: 'counts' }, { event: (event) => this.#happened(event), state: redraw, opened: () => this.#look() });
    this.#stream.open();
    // What the bus says comes without an event. While nothing runs nothing is asked.
    let round = 0;
    this.#timer = setInterval(() => {
      const job = this.#job.data;
      if (document.hidden) return;
      round += 1;
      if (job && isEnd(job.state)) {
        // Somebody else may retry it, or run a step again.
        if (round % 10 === 0) this.#look();
        return;
      }
      const fans = job?.steps.some((step) => step.state === 'running' && step.children);
      if (fans || this.#stream?.state !== 'open' || round % 10 === 0) this.#look();
      if (round % 5 === 0) this.#lookWhy();
      redraw();
    }, 1000);
  }

  /** A child job is known by the label of its root job. @param {string} root */
  #askRoot(root) {
    if (this.#root) return;
    this.#root = { id: root, label: undefined };
    get(['job', root], { view: 'light' }, undefined).then((/** @type {Job} */ { label }) => {
      this.#root = { id: root, label };
      redraw();
    }).catch(() => {});
  }

  stop() {
    clearInterval(this.#timer);
    this.#look.stop();
    this.#lookWhy.stop();
    this.#lookThen.stop();
    this.#stream?.close();
    for (const part of [this.#job, this.#then, this.#why, this.#record, this.#step, this.#graph, this.#time]) part.stop();
  }

  /** @param {import('../lib/events.js').ServerEvent} event */
  #happened(event) {
    if (event.event !== 'step.counted') return this.#look();
    // Counts of child jobs come with the event, up to four times a second: nothing else has changed.
    /** @type {{ data: { step: string, children: { items: number, waiting: number, running: number, completed: number, failed: number, cancelled?: number } } }} */
    const { data } = JSON.parse(event.data);
    const step = this.#job.data?.steps.find((one) => one.name === data.step);
    if (!step) return;
    const { children } = data;
    step.children = { ...step.children, ...children, started: children.items - children.waiting, ended: children.completed + children.failed };
    redraw();
  }

  get #at() {
    const text = this.#route.query.get('at');
    return text && /^[1-9]\d{0,15}$/.test(text) ? Number(text) : undefined;
  }

  #looked() {
    const job = this.#job.data;
    if (!job) return;
    this.#record.grown(job.entries ?? 0);
    if (this.#asked !== `${job.state} ${job.entries}`) {
      this.#asked = `${job.state} ${job.entries}`;
      if (!isEnd(job.state)) this.#lookWhy();
    }
    if (isEnd(job.state) && this.#stream?.state === 'ended') redraw();
    // A job that goes on after its end: look again at what happens.
    if (!isEnd(job.state) && this.#stream?.state === 'ended') {
      this.#stream.close();
      this.#stream.open();
    }
    if (job.definition && !this.#definition && !this.#definitionMissing) {
      definitionOf(job.definition).then(
        (definition) => {
          this.#definition = definition;
          redraw();
        },
        (error) => {
          this.#definitionMissing = error instanceof Problem && error.notHere ? 'This manager does not tell how the steps hang together. Here they are in order.' : String(error.message ?? error);
          redraw();
        },
      );
    } else if (!job.definition) this.#definitionMissing = 'This manager does not tell how the steps hang together. Here they are in order.';
    redraw();
  }

  /** @param {Route} route */
  update(route) {
    const before = this.#at;
    this.#route = route;
    this.#menu = false;
    if (this.#at !== before && this.#at !== undefined) this.#lookThen();
    redraw();
  }

  ready() {
    return (this.#job.data !== undefined || this.#job.error !== undefined) && (this.#at === undefined || this.#then.data !== undefined || this.#then.error !== undefined);
  }

  title() {
    const job = this.#job.data;
    return job ? plain(`${job.label ?? `${job.workflow} ${shortId(this.#id)}`} ${job.state}`) : `Job ${plain(shortId(this.#id))}`;
  }

  live() {
    const job = this.#job.data;
    if (this.#at !== undefined) return 'In the past';
    if (job && isEnd(job.state)) return 'Ended';
    return { open: 'Live', hidden: 'Paused', opening: 'Opening', broken: 'Polling', ended: 'Polling', closed: 'Polling' }[this.#stream?.state ?? 'closed'];
  }

  /** @param {string} step */
  #stepLink = (step) => changed(this.#route, { step, tab: undefined });

  /** @param {number | undefined} at */
  #move = (at) => {
    // While the slider moves there are many places; only where it rests becomes part of the way back.
    setQuery({ at }, { replace: true });
  };

  #done = () => {
    void this.#job.refresh().then(() => this.#looked());
    void this.#why.refresh();
  };

  template() {
    const now = this.#job.data;
    if (!now) return this.#missing();
    const past = this.#at !== undefined;
    const job = settled(past ? (this.#then.data ?? now) : now);
    const defined = stepsOf(now, this.#definition);
    const clockNow = past ? this.#timeThen(job) : isEnd(job.state) && job.ended ? millis(job.ended) : Date.now();
    const chosen = this.#route.query.get('step');
    const panel = chosen ?? this.#telling(job);
    const mode = this.#route.query.get('view') === 'record' ? 'record' : 'time';
    const external = (/** @type {string} */ name) => job.steps.find((step) => step.name === name)?.external === true;
    return html`<div class="job ${past ? 'in-past' : ''}">
      ${this.#head(job, past)}
      ${!past && this.#job.error && this.#job.error.status > 0 ? html`<p class="problem" role="alert">${icon('alert')}<span>${this.#job.error.status === 404 ? 'The job is not there any more: this is what was known of it.' : shown(this.#job.error.message)}</span></p>` : nothing}
      ${past && this.#then.error ? html`<p class="problem" role="alert">${icon('alert')}<span>${this.#then.error.notHere ? 'This manager does not tell the job as it was.' : shown(this.#then.error.message)}</span></p>` : nothing}
      ${this.#record.slider(this.#at, this.#move)}
      <div class="job-parts">
        <section class="panel graph-panel" aria-label="Graph"><h2 class="sr">Graph</h2>${this.#graph.template({ key: now.task ? `${now.definition} ${now.task}` : (now.definition ?? ''), steps: defined, states: job.steps, chosen: panel, link: this.#stepLink, ends: { start: 'completed', end: job.state === 'completed' ? 'completed' : 'waiting' }, missing: this.#definitionMissing })}</section>
        <div class="job-step">${keyed(
          this.#id,
          this.#step.template({ job, rootLabel: this.#root?.label, step: panel, steps: job.steps, definition: this.#definition, defined, tab: this.#route.query.get('tab') ?? '', at: this.#at, tabLink: (tab) => changed(this.#route, { tab: tab === 'attempts' ? undefined : tab, step: panel }), stepLink: this.#stepLink, close: chosen ? changed(this.#route, { step: undefined, tab: undefined }) : undefined, done: this.#done, now: clockNow }),
        )}</div>
        <section class="panel time-panel" aria-label=${mode === 'record' ? 'Record' : 'Timeline'}>
          <nav class="tabs" aria-label="Time and record"><a href=${changed(this.#route, { view: undefined })} aria-current=${mode === 'time' ? 'page' : nothing}>Timeline</a><a href=${changed(this.#route, { view: 'record' })} aria-current=${mode === 'record' ? 'page' : nothing}>Record<span class="tab-note">${count(now.entries)}</span></a></nav>
          ${mode === 'record'
            ? this.#record.list(this.#at, (at) => changed(this.#route, { at: at === now.entries ? undefined : at }), (step, at) => changed(this.#route, { step, tab: undefined, at: at === now.entries ? undefined : at }))
            : this.#time.template({ job, steps: job.steps, entries: this.#record.first().filter((entry) => this.#at === undefined || entry.n <= this.#at), now: clockNow, chosen: panel, link: this.#stepLink, fold: this.#route.query.get('idle') !== 'show', toggle: changed(this.#route, { idle: this.#route.query.get('idle') === 'show' ? undefined : 'show' }), external })}
        </section>
      </div>
    </div>`;
  }

  /** @param {Job} job */
  #timeThen(job) {
    const entry = this.#at === undefined ? undefined : this.#record.at(this.#at);
    if (entry) return millis(entry.at);
    return Math.max(millis(job.created), ...job.steps.flatMap((step) => [millis(step.startTime), millis(step.endTime)]).filter(Number.isFinite));
  }

  /**
   * The step that tells most about where the job stands.
   * @param {Job} job
   */
  #telling(job) {
    if (job.state === 'completed') return END;
    if (job.state === 'cancelled') return START;
    const failed = job.state === 'failed' ? failedStep(job) : undefined;
    if (failed) return failed.name;
    const why = this.#at === undefined ? this.#why.data?.step : undefined;
    if (why && job.steps.some((step) => step.name === why)) return why;
    return job.steps.find((step) => step.state === 'running')?.name ?? START;
  }

  /**
   * @param {Job} job
   * @param {boolean} past
   */
  #head(job, past) {
    const from = millis(job.created);
    const to = job.ended ? millis(job.ended) : past ? this.#timeThen(job) : Date.now();
    const operations = OPERATIONS.filter((operation) => may() && operation.possible(job) && (operation.child || !job.parent));
    const ended = isEnd(job.state);
    return html`<header class="job-head">
      <div class="job-name">
        <nav class="crumbs" aria-label="Where this is"><a href=${link(['jobs'], { workflow: job.workflow })}>${shown(job.workflow)}</a>${job.parent ? html`${job.parent.root === job.parent.job ? nothing : html`<span class="quiet">/</span><a href=${link(['job', job.parent.root])}>${named(this.#root?.label, job.parent.root)}</a>`}<span class="quiet">/</span><a href=${link(['job', job.parent.job])}>${named(job.parent.root === job.parent.job ? this.#root?.label : undefined, job.parent.job)}</a><span class="quiet">/</span><span>${shown(job.task ?? 'task')} ${count(job.parent.item)}</span>` : nothing}</nav>
        <div class="job-title"><h1>${named(job.label, job.uuid)}</h1><button class="tool tiny" aria-label="Copy the id" title="Copy ${job.uuid}" @click=${() => copied(job.uuid, 'Id')}>${icon('copy')}</button>${badge(job.state)}<span class="job-when">${job.startsAt && !ended ? html`<span class="quiet">starts at</span> ${moment(job.startsAt)}` : html`${moment(job.created, { relative: ended })} <span class="quiet">· ${ended ? 'took' : 'for'}</span> <b>${span(to - from)}</b>`}${job.waitsFor ? html` <span class="quiet">· waits for</span> ${placeOf(job.waitsFor)}` : nothing}${job.schedule ? html` <span class="quiet">· by</span> <a href=${link(['schedules'], { schedule: job.schedule })} title=${plain(`Slot ${job.slot ?? ''} of schedule ${job.schedule}`)}>${shown(job.schedule)}</a>` : nothing}</span></div>
      </div>
      <div class="job-actions">${operations.map((operation) => html`<button class="button ${operation.name === 'retry' || operation.name === 'resume' ? 'primary' : ''}" ?disabled=${past} @click=${() => operate(job, operation, this.#done)}>${icon(operation.icon)}${operation.label}${operation.asks ? '…' : ''}</button>`)}
        <div class="menu"><button class="button icon-only" aria-label="More" aria-haspopup="menu" aria-expanded=${this.#menu ? 'true' : 'false'} @click=${() => { this.#menu = !this.#menu; redraw(); }}>${icon('more')}</button>${this.#menu ? this.#more(job, past, ended) : nothing}</div>
      </div>
      ${this.#whyLine(job, past)}
    </header>`;
  }

  /**
   * @param {Job} job
   * @param {boolean} past
   * @param {boolean} ended
   */
  #more(job, past, ended) {
    const id = job.uuid;
    const item = (/** @type {string} */ text, /** @type {() => void} */ run, off = false) => html`<button role="menuitem" ?disabled=${off} @click=${() => { this.#menu = false; redraw(); run(); }}>${text}</button>`;
    return html`<div class="menu-list" role="menu" @keydown=${(/** @type {KeyboardEvent} */ event) => { if (event.key === 'Escape') { this.#menu = false; redraw(); event.stopPropagation(); } }}>
      ${item('Copy link', () => void copied(location.href, 'Link'))}
      ${item('Copy as curl', () => void copied(curl('GET', ['job', id]), 'Command'))}
      ${item('Copy as command', () => void copied(command('job', id), 'Command'))}
      ${item('Compare…', () => openCompare(job))}
      ${item('Copy “watch” as command', () => void copied(command('watch', id), 'Command'))}
      ${ended && !job.parent && may('admin') ? html`<hr>${item('Erase…', () => erase(job, () => go(link(['jobs'], { workflow: job.workflow }))), past)}` : nothing}
    </div>`;
  }

  /**
   * @param {Job} job
   * @param {boolean} past
   */
  #whyLine(job, past) {
    if (past) return html`<div class="why past">${icon('clock')}<p>The job as it was after entry ${count(this.#at)}, at ${clock(this.#timeThen(job), { fraction: true })}. <span class="quiet">Nothing can be done in the past.</span></p></div>`;
    if (job.state === 'failed' || job.state === 'cancelled') {
      const failed = job.state === 'failed' ? failedStep(job) : undefined;
      const reason = job.reason ?? `The job is ${job.state}.`;
      return html`<div class="why ${job.state}">${icon(job.state === 'failed' ? 'failed' : 'cancelled')}<p class="reason">${reason.startsWith('by ') ? shown(`Cancelled ${reason}.`) : reasonText(reason)}</p>${failed ? html`<a class="button small" href=${this.#stepLink(failed.name)}>${shown(failed.name)}</a>` : nothing}</div>`;
    }
    if (job.state === 'completed') {
      const attempts = job.steps.reduce((sum, step) => sum + Math.max(0, step.attempt - 1), 0);
      const skipped = job.steps.filter((step) => step.state === 'skipped').length;
      return html`<div class="why completed">${icon('completed')}<p>Completed ${moment(job.ended)}. ${counted(job.steps.length, 'step')}${skipped ? `, ${skipped} skipped` : ''}${attempts ? `, ${counted(attempts, 'attempt')} repeated` : ''}.${this.#tolerated(job)}</p></div>`;
    }
    const why = this.#why.data;
    const calmCause = why && ['working', 'sending', 'waiting', 'all_busy', 'back_off', 'limit', 'window_full', 'unknown', 'condition', 'starts_later'].includes(why.cause);
    const kind = !why ? 'calm' : why.cause === 'paused' ? 'paused' : why.cause === 'person' ? 'person' : calmCause ? 'calm' : 'warn';
    return html`<div class="why ${kind}">${icon(kind === 'warn' ? 'alert' : kind === 'paused' ? 'paused' : kind === 'person' ? 'person' : 'running')}<div class="reason why-text">${why ? whyText(why, job.steps) : this.#why.error ? html`<span class="quiet">Why it stands here could not be asked: ${shown(this.#why.error.message)}</span>` : html`<span class="quiet">Asking why it stands here …</span>`}</div>${why?.step && job.steps.some((step) => step.name === why.step) ? html`<a class="button small" href=${this.#stepLink(why.step)}>${shown(why.step)}</a>` : nothing}</div>`;
  }

  /**
   * What failed in a job that has completed all the same.
   * @param {Job} job
   */
  #tolerated(job) {
    return job.steps.map((step) => {
      const name = html`<a href=${this.#stepLink(step.name)}>${shown(step.name)}</a>`;
      if (step.state === 'failed') return html` <span class="failed-text">Step ${name} failed</span>, which lets the job go on.`;
      const failed = step.children?.failed ?? 0;
      return failed ? html` <span class="failed-text">${count(failed)} of ${counted(step.children?.items ?? 0, 'item')} of ${name} failed</span>, which is tolerated.` : nothing;
    });
  }

  #missing() {
    const error = this.#job.error;
    if (!error) return html`<div class="empty waiting-lines"><i></i><i></i><i></i></div>`;
    return html`<div class="empty"><h1>${error.status === 404 ? 'No such job' : 'The job cannot be shown'}</h1><p class="reason">${shown(error.message)}</p><p><a class="button" href="#/jobs">To the jobs</a></p></div>`;
  }

  /** @returns {Command[]} */
  commands() {
    const job = this.#job.data;
    if (!job || this.#at !== undefined) return [];
    return [
      ...OPERATIONS.filter((operation) => may() && operation.possible(job) && (operation.child || !job.parent)).map((operation) => ({ name: `${operation.label} this job`, run: () => operate(job, operation, this.#done) })),
      ...job.steps.slice(0, 200).map((step) => ({ name: `Step ${step.name}`, hint: step.state, run: () => go(this.#stepLink(step.name)) })),
      { name: 'Copy this job as curl', run: () => void copied(curl('GET', ['job', job.uuid]), 'Command') },
      { name: 'Compare this job with another', run: () => openCompare(job) },
      { name: 'Show the record', keys: 'r', run: () => setQuery({ view: 'record' }) },
      { name: 'Show the timeline', keys: 't', run: () => setQuery({ view: undefined }) },
    ];
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const length = this.#record.length;
    const at = this.#at ?? length;
    switch (event.key) {
      case '[':
        if (at > 1) this.#move(at - 1);
        return true;
      case ']':
        if (this.#at !== undefined) this.#move(at + 1 >= length ? undefined : at + 1);
        return true;
      case 'Escape':
        if (this.#menu) {
          this.#menu = false;
          redraw();
        } else if (this.#at !== undefined) this.#move(undefined);
        else return false;
        return true;
      case 'f': {
        const failed = (this.#job.data?.steps ?? []).filter((step) => step.state === 'failed' || step.children?.failed);
        if (!failed.length) return true;
        const now = failed.findIndex((step) => step.name === app.route.query.get('step'));
        go(this.#stepLink(failed[(now + 1) % failed.length].name));
        return true;
      }
      case 't':
        setQuery({ view: undefined });
        return true;
      case 'r':
        setQuery({ view: 'record' });
        return true;
      case '+':
        this.#graph.zoom(1.25);
        return true;
      case '-':
        this.#graph.zoom(0.8);
        return true;
      case '0':
        this.#graph.fit();
        return true;
      default:
        return this.#time.key(event.key);
    }
  }
}
