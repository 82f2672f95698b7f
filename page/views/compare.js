// Two jobs side by side, or two attempts of a step: what went in, what came out, how long it took, and by which definition.

import { html, nothing } from '../vendor/lit-html@3.3.3/lit-html.js';
import { get, Problem, raw } from '../lib/api.js';
import { go, messageOf, openDialog, closeDialog, refusal } from '../lib/app.js';
import { diff, folded } from '../lib/diff.js';
import { scrolls } from '../lib/dom.js';
import { icon } from '../lib/icons.js';
import { lines } from '../lib/json.js';
import { redraw } from '../lib/redraw.js';
import { changed, link } from '../lib/route.js';
import { searches, uuidOf } from '../lib/search.js';
import { columnNames, learnNames, parted } from '../lib/shared.js';
import { Source } from '../lib/source.js';
import { badge, settled } from '../lib/states.js';
import { bytes, count, named, plain, shortId, shown } from '../lib/text.js';
import { millis, moment, span } from '../lib/time.js';

/** @import { Attempt, Found, FoundPage, Job, Step, StepDetail } from '../lib/types.js' */
/** @import { Route } from '../lib/route.js' */
/** @import { View } from '../lib/app.js' */

/** So much of a payload is compared. */
const PART = 256 * 1024;
/** So many lines of a difference are shown. */
const LINES = 600;
/** So many jobs are offered to be compared with. */
const OFFERED = 6;

/** @typedef {{ text: string, lines: string[], whole: boolean, none: boolean }} Side */

/** @type {Side} */
const NONE = { text: '', whole: true, none: true, lines: [] };

/**
 * @param {Route} route
 * @returns {View}
 */
export function compareView(route) {
  return new Compare(route);
}

/** @param {string} text */
function laidOut(text) {
  return lines(text).map((line) => `${'  '.repeat(line.indent)}${line.tokens.map((token) => token.text + (token.text === ',' || token.text === ':' ? ' ' : '')).join('').trimEnd()}`);
}

/** @param {string[]} path @param {AbortSignal} signal @returns {Promise<Side>} */
async function side(path, signal) {
  try {
    const { text, whole } = await raw(path, { most: PART, signal });
    return { text, whole, none: false, lines: laidOut(text) };
  } catch (error) {
    // There is none yet, or there never was.
    if (error instanceof Problem && (error.status === 404 || error.status === 409)) return NONE;
    throw error;
  }
}

class Compare {
  page = 'jobs';
  #route;
  #ids;
  /** @type {Source<Job[]>} */
  #jobs;
  /** @type {Source<Side[]>[]} */
  #payloads = [];
  /** @type {Source<StepDetail> | undefined} */
  #detail;
  #asked = '';
  /** When the jobs are there, or why they are not. */
  #first;

  /** @param {Route} route */
  constructor(route) {
    this.#route = route;
    this.#ids = [route.path[1], route.path[2] ?? route.path[1]];
    this.#jobs = new Source((signal) => Promise.all(this.#ids.map((id) => /** @type {Promise<Job>} */ (get(['job', id], { view: 'light' }, signal)))));
    this.#first = this.#jobs.refresh();
    this.#jobs.every(5000);
    this.#follow();
  }

  stop() {
    this.#jobs.stop();
    this.#forget();
  }

  #forget() {
    for (const source of this.#payloads) source.stop();
    this.#detail?.stop();
    this.#detail = undefined;
  }

  get #step() {
    return this.#route.query.get('step') ?? '';
  }

  /** The numbers of two attempts. */
  get #attempts() {
    const found = /^(\d+),(\d+)$/.exec(this.#route.query.get('attempts') ?? '');
    return found && this.#step ? [Number(found[1]), Number(found[2])] : undefined;
  }

  #follow() {
    const asked = `${this.#step} ${this.#attempts ?? ''}`;
    if (asked === this.#asked) return;
    this.#asked = asked;
    this.#forget();
    const both = (/** @type {string[]} */ ...path) => new Source((signal) => Promise.all(this.#ids.map((id) => side(['job', id, ...path], signal))));
    if (this.#attempts) {
      this.#payloads = [];
      this.#detail = new Source((signal) => get(['job', this.#ids[0], 'step', this.#step], {}, signal));
      void this.#detail.refresh();
    } else this.#payloads = this.#step ? [both('step', this.#step, 'input'), both('step', this.#step, 'output')] : [both('message'), this.#results()];
    for (const source of this.#payloads) void source.refresh();
  }

  /** The results of both, where there is one. @returns {Source<Side[]>} */
  #results() {
    return new Source(async (signal) => {
      await this.#first;
      return Promise.all(this.#ids.map((id, index) => (this.#jobs.data?.[index]?.state === 'completed' ? side(['job', id, 'result'], signal) : NONE)));
    });
  }

  /** @param {Route} route */
  update(route) {
    this.#route = route;
    this.#follow();
    redraw();
  }

  ready() {
    return this.#jobs.data !== undefined || this.#jobs.error !== undefined;
  }

  title() {
    const names = this.#ids.map((id, index) => this.#jobs.data?.[index]?.label ?? shortId(id));
    return plain(this.#attempts ? `Attempts of ${this.#step}` : names.join(' and '));
  }

  template() {
    const jobs = this.#jobs.data?.map(settled);
    if (!jobs) return html`<div class="empty"><h1>${this.#jobs.error ? 'They cannot be compared' : ''}</h1><p class="reason">${shown(this.#jobs.error?.message ?? '')}</p><p><a class="button" href="#/jobs">To the jobs</a></p></div>`;
    return html`<div class="compare">${this.#attempts ? this.#attemptsView(jobs[0], this.#attempts) : this.#jobsView(jobs)}</div>`;
  }

  /** @param {Job[]} jobs */
  #jobsView(jobs) {
    const [a, b] = jobs;
    const step = this.#step;
    const same = a.definition !== undefined && a.definition === b.definition;
    return html`<header class="page-head"><h1>Compared</h1>${refusal(this.#jobs.problem)}<span class="space"></span>${step ? html`<a class="button small" href=${changed(this.#route, { step: undefined })}>To the whole jobs</a>` : nothing}<a class="button small" href=${link(['compare', this.#ids[1], this.#ids[0]], this.#route.query)}>Other way round</a></header>
      <section class="panel" aria-label="Jobs"><div class="table-wrap" ${scrolls()}><table class="compare-table"><thead><tr><th><span class="sr">What</span></th>${jobs.map((job, index) => html`<th scope="col"><span class="quiet">${index ? 'and' : 'from'}</span> <a href=${link(['job', job.uuid])}>${named(job.label, job.uuid)}</a> ${shown(job.workflow)}</th>`)}</tr></thead><tbody>
        ${row('state', jobs.map((job) => badge(job.state)), a.state !== b.state)}
        ${row('created', jobs.map((job) => moment(job.created)))}
        ${row('took', jobs.map((job) => span((job.ended ? millis(job.ended) : Date.now()) - millis(job.created))))}
        ${row('definition', jobs.map((job) => html`<code>${shown((job.definition ?? '–').slice(0, 12))}</code>`), !same)}
        ${[...new Set(jobs.flatMap((job) => Object.keys(job.columns ?? {})))].map((name) => row(shown(name), jobs.map((job) => shown(job.columns?.[name] ?? '–')), a.columns?.[name] !== b.columns?.[name]))}
        ${jobs.some((job) => job.reason) ? row('reason', jobs.map((job) => html`<span class="reason">${shown(job.reason ?? '–')}</span>`), a.reason !== b.reason) : nothing}
      </tbody></table></div>${!same && a.definition && b.definition && a.workflow === b.workflow ? html`<p class="calm"><a href=${link(['definitions', ...a.workflow.split('/')], { hash: b.definition, with: a.definition })}>What is different between the definitions</a></p>` : nothing}</section>
      <section class="panel" aria-label="Steps"><div class="panel-title"><h2>Steps</h2><span class="quiet small">choose one to see its input and output</span></div>${this.#steps(jobs)}</section>
      ${(step ? ['Input', 'Output'] : ['Message', 'Result']).map((name, index) => payloads(step ? `${name} of ${step}` : name, this.#payloads[index]))}`;
  }

  /** @param {Job[]} jobs */
  #steps([a, b]) {
    const names = [...new Set([...a.steps, ...b.steps].map((step) => step.name))];
    const own = (/** @type {Job} */ job, /** @type {string} */ name) => job.steps.find((step) => step.name === name);
    return html`<div class="table-wrap" ${scrolls()}><table class="compare-steps"><thead><tr><th>Step</th><th>State</th><th>State</th><th class="number">Attempts</th><th class="number">Took</th><th class="number">Took</th><th class="number">Difference</th></tr></thead><tbody>${names.map((name) => {
      const [one, other] = [own(a, name), own(b, name)];
      const [before, after] = [took(one), took(other)];
      const by = after - before;
      const differs = one?.state !== other?.state || one?.status !== other?.status;
      return html`<tr class="${name === this.#step ? 'at' : ''} ${differs ? 'differs' : ''}"><td><a href=${changed(this.#route, { step: name === this.#step ? undefined : name })}><b>${shown(name)}</b></a>${differs ? html`<span class="sr"> differs</span>` : nothing}</td><td>${state(one)}</td><td>${state(other)}</td><td class="number">${count(one?.attempt)} / ${count(other?.attempt)}</td><td class="number">${span(before)}</td><td class="number">${span(after)}</td><td class="number">${Number.isFinite(by) ? html`<span class=${by > 0 && by > before ? 'failed-text' : 'quiet'}>${by < 0 ? '−' : '+'}${span(by)}</span>` : html`<span class="quiet">–</span>`}</td></tr>`;
    })}</tbody></table></div>`;
  }

  /**
   * @param {Job} job
   * @param {number[]} numbers
   */
  #attemptsView(job, numbers) {
    const all = this.#detail?.data?.attempts ?? [];
    const two = numbers.map((number) => all.find((one) => one.attempt === number));
    const choose = (/** @type {number} */ index) => html`<select class="field" aria-label=${index ? 'Second attempt' : 'First attempt'} @change=${(/** @type {Event} */ event) => go(changed(this.#route, { attempts: numbers.with(index, Number(/** @type {HTMLSelectElement} */ (event.target).value)).join(',') }))}>${all.map((one) => html`<option value=${one.attempt} ?selected=${one.attempt === numbers[index]}>Attempt ${one.attempt}</option>`)}</select>`;
    const [a, b] = two;
    const texts = two.map((one) => one?.raw);
    return html`<header class="page-head"><nav class="crumbs" aria-label="Where this is"><a href=${link(['job', job.uuid], { step: this.#step })}>${named(job.label, job.uuid)}</a><span class="quiet">/</span></nav><h1>Attempts of ${shown(this.#step)}</h1></header>
      ${refusal(this.#detail?.problem)}
      ${all.length ? html`<section class="panel" aria-label="Attempts"><div class="table-wrap" ${scrolls()}><table class="compare-table"><thead><tr><th><span class="sr">What</span></th><th scope="col">${choose(0)}</th><th scope="col">${choose(1)}</th></tr></thead><tbody>
        ${row('state', two.map((one) => badge(one?.state)), a?.state !== b?.state)}
        ${row('sent', two.map((one) => moment(one?.startTime, { fraction: true })))}
        ${row('broker has it', two.map((one) => afterwards(one, one?.confirmed)))}
        ${row('ended', two.map((one) => afterwards(one, one?.endTime)))}
        ${row('reason', two.map((one) => html`<span class="reason">${shown(one?.reason ?? '–')}</span>`), a?.reason !== b?.reason)}
        ${texts.some(Boolean) ? row('the reply', two.map((one) => html`<pre class="raw">${shown(one?.raw ?? '–')}</pre>`), texts[0] !== texts[1]) : nothing}
      </tbody></table></div><p class="calm">All attempts of a step have the same input.</p></section>` : nothing}`;
  }
}

/** @param {Attempt | undefined} one @param {string | undefined} at */
function afterwards(one, at) {
  return at ? html`+ ${span(millis(at) - millis(one?.startTime))}` : html`<span class="quiet">–</span>`;
}

/** @param {Step | undefined} step */
function state(step) {
  if (!step) return html`<span class="quiet">no such step</span>`;
  return html`${badge(step.state)}${step.status && step.status.toLowerCase() !== step.state ? html` <span class="word">${shown(step.status)}</span>` : nothing}`;
}

/** @param {Step | undefined} step in milliseconds */
function took(step) {
  if (!step?.startTime) return Number.NaN;
  return step.endTime ? millis(step.endTime) - millis(step.startTime) : step.state === 'running' ? Date.now() - millis(step.startTime) : Number.NaN;
}

/** @param {unknown} name @param {unknown[]} cells @param {boolean} [differs] */
function row(name, cells, differs = false) {
  return html`<tr class=${differs ? 'differs' : ''}><th scope="row">${name}${differs ? html`<span class="sr"> differs</span>` : nothing}</th>${cells.map((cell) => html`<td>${cell}</td>`)}</tr>`;
}

/** Differences are worked out once for each pair. @type {WeakMap<Side[], (import('../lib/diff.js').DiffLine | number)[]>} */
const worked = new WeakMap();

/**
 * @param {string} name
 * @param {Source<Side[]> | undefined} source
 */
function payloads(name, source) {
  const sides = source?.data;
  if (!sides) return html`<section class="panel" aria-label=${plain(name)}><div class="panel-title"><h2>${shown(name)}</h2></div>${refusal(source?.problem)}</section>`;
  const [a, b] = sides;
  let found = worked.get(sides);
  if (!found) {
    found = folded(diff(a.lines, b.lines));
    worked.set(sides, found);
  }
  const equal = a.text === b.text && a.none === b.none;
  const only = a.none && b.none ? 'Neither has one.' : a.none ? 'Only the second has one.' : b.none ? 'Only the first has one.' : equal ? 'They are the same.' : found.every((one) => typeof one === 'number' || one.kind === 'same') ? 'They differ in spaces alone.' : '';
  return html`<section class="panel" aria-label=${plain(name)}><div class="panel-title"><h2>${shown(name)}</h2><span class="quiet small">${a.whole && b.whole ? nothing : `the first ${bytes(PART)} of each compared`}</span></div>
    ${only ? html`<p class="calm">${only}</p>` : nothing}
    ${equal || (a.none && b.none) ? nothing : html`<div class="code diff" tabindex="0" role="region" aria-label=${plain(`Difference of ${name}`)}>${found.slice(0, LINES).map((one) => (typeof one === 'number' ? html`<div class="cut">… ${count(one)} equal lines</div>` : html`<div class="diff-line ${one.kind}"><span class="change-sign" aria-hidden="true">${{ same: ' ', before: '−', after: '+' }[one.kind]}</span><span class="sr">${{ same: '', before: 'only the first: ', after: 'only the second: ' }[one.kind]}</span><span>${shown(one.text.length > 2000 ? `${one.text.slice(0, 2000)}…` : one.text)}</span></div>`))}${found.length > LINES ? html`<div class="cut">… ${count(found.length - LINES)} more lines</div>` : nothing}</div>`}
  </section>`;
}

/**
 * The other jobs that a text may mean: by an id's beginning, a label and the columns of the workflow, those of the first that finds some.
 * Jobs of the same workflow are meant before others.
 * @param {string} text
 * @param {Job} job
 */
async function othersBy(text, job) {
  await learnNames();
  const all = searches(text, columnNames(job.workflow));
  const { name, vhost = '' } = parted(job.workflow);
  for (const own of /** @type {[string, string][][]} */ ([[['workflow', name], ['vhost', vhost]], []])) {
    const pages = await Promise.all(all.map((query) => /** @type {Promise<FoundPage>} */ (get(['jobs', 'search'], [...new Map([...own, ...query]), ['limit', String(OFFERED + 1)]]))));
    const found = pages.map(({ jobs }) => jobs.filter((one) => one.job !== job.uuid).slice(0, OFFERED)).find((jobs) => jobs.length);
    if (found) return found;
  }
  return [];
}

/**
 * Asks with which job another one is to be compared.
 * @param {Job} job
 */
export function openCompare(job) {
  let text = '';
  let problem = '';
  /** @type {Found[]} */
  let offered = [];
  const address = (/** @type {string} */ other) => link(['compare', other, job.uuid]);
  const to = (/** @type {string} */ other) => {
    closeDialog();
    go(address(other));
  };
  /** @param {() => Promise<void>} look */
  const told = async (look) => {
    problem = '';
    offered = [];
    await look().catch((error) => { problem = messageOf(error); });
    redraw();
  };
  const before = () => told(async () => {
    const { name, vhost } = parted(job.workflow);
    /** @type {FoundPage} */
    const found = await get(['jobs', 'search'], { workflow: name, vhost, before: job.created, limit: 1 });
    if (found.jobs.length) to(found.jobs[0].job);
    else problem = 'It is the first job of this workflow that is kept.';
  });
  const typed = () => told(async () => {
    const asked = text.trim();
    const id = uuidOf(asked);
    if (id) return to(id);
    const found = await othersBy(asked, job);
    if (text.trim() !== asked) return;
    if (found.length === 1) return to(found[0].job);
    offered = found;
    if (!found.length) problem = `No other job is found by “${asked}”.`;
  });
  void learnNames();
  openDialog({
    title: plain(`Compare job ${job.label ?? shortId(job.uuid)}`),
    body: () => html`<form class="dialog-form" @submit=${(/** @type {Event} */ event) => { event.preventDefault(); void typed(); }}>
      <label class="label" for="compare-id">With the job</label>
      <input class="field" id="compare-id" autocomplete="off" spellcheck="false" placeholder="id, label, or the value of a column" required .value=${text} @input=${(/** @type {InputEvent} */ event) => { text = /** @type {HTMLInputElement} */ (event.target).value; }}>
      ${problem ? html`<p class="problem" role="alert">${icon('alert')}<span>${shown(problem)}</span></p>` : nothing}
      ${offered.length ? html`<p class="quiet" role="status">Which one? The newest come first.</p><ul class="facts-list bulk-list others">${offered.map((one) => html`<li>${badge(one.state)}<a href=${address(one.job)}>${named(one.label, one.job)}</a><span>${shown(one.workflow)}</span><span class="quiet">${moment(one.created, { relative: false })}</span></li>`)}</ul>` : html`<p class="quiet">Two jobs can also be marked in a list of jobs.</p>`}
      <footer class="dialog-foot">${job.parent ? nothing : html`<button type="button" class="button" @click=${before}>With the one before it</button>`}<button class="button primary">Compare</button></footer>
    </form>`,
  });
}
