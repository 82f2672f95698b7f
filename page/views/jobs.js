// The jobs that a search finds, and operations on all of them.

import { html, nothing } from '../vendor/lit-html@3.3.3/lit-html.js';
import { live } from '../vendor/lit-html@3.3.3/directives/live.js';
import { repeat } from '../vendor/lit-html@3.3.3/directives/repeat.js';
import { command, curl, get, Problem } from '../lib/api.js';
import { copied, go, refusal, setQuery } from '../lib/app.js';
import { scrolls } from '../lib/dom.js';
import { Held } from '../lib/held.js';
import { icon } from '../lib/icons.js';
import { reasonName, shortReason } from '../lib/reason.js';
import { redraw, redrawNow } from '../lib/redraw.js';
import { changed, link } from '../lib/route.js';
import { faultOf, filterOptions, NAMED, ORDERS, readSearch, searches, searchText } from '../lib/search.js';
import { columnNames, fullName, learnNames, may, parted, stepNames, workflowNames } from '../lib/shared.js';
import { Source } from '../lib/source.js';
import { badge, JOB_STATES, sign } from '../lib/states.js';
import { count, cut, named, plain, shortId, shown } from '../lib/text.js';
import { millis, moment, span } from '../lib/time.js';
import { openBulk } from './bulk.js';
import { openCreate } from './create.js';
import { firstJob } from './first.js';
import { pauseButton, pauseCommands } from './pauses.js';
import { openSave, savedList } from './saved.js';

/** @import { FailedReasons, Found, FoundPage } from '../lib/types.js' */
/** @import { Answer } from '../lib/held.js' */
/** @import { Route } from '../lib/route.js' */
/** @import { View } from '../lib/app.js' */

const PAGE = 50;
const FILTERS = ['workflow', 'vhost', 'state', 'id', 'schedule', 'label', 'reasonId', 'failedItems', 'after', 'before', 'endedAfter', 'endedBefore', 'parent'];

/**
 * The part of an address that says which jobs are meant.
 * @param {Map<string, string>} query
 */
export function filtersOf(query) {
  return [...query]
    .filter(([key, value]) => value !== '' && (FILTERS.includes(key) || NAMED.some((named) => key.startsWith(named))))
    .map(([key, value]) => /** @type {[string, string]} */ ([key, key === 'id' ? value.replaceAll('-', '') : value]));
}

/**
 * @param {Route} route
 * @returns {View}
 */
export function jobsView(route) {
  return new JobsView(route);
}

class JobsView {
  page = 'jobs';
  #route;
  #key = '';
  /** @type {Source<FoundPage & Answer<Found>>} */
  #found;
  /** What the ids of reasons stand for. @type {Source<FailedReasons>} */
  #reasons = new Source((signal) => get(['reasons'], {}, signal));
  /** Pages before this one. @type {string[]} */
  #before = [];
  /** @type {Set<string>} */
  #marked = new Set();
  /** @type {Held<Found>} */
  #list = new Held((job) => job.job, () => void this.#found.refresh(), () => this.#marked.size > 0);
  /** What this manager cannot filter by. */
  #less = false;
  /** What is said of words that are no filters. @type {ReturnType<typeof faultOf> | undefined} */
  #fault;

  /** @param {Route} route */
  constructor(route) {
    this.#route = route;
    this.#key = this.#question();
    this.#found = new Source((signal) => this.#load(signal));
    void this.#found.refresh();
    this.#found.every(3000);
    this.#nameReason();
  }

  stop() {
    this.#found.stop();
    this.#reasons.stop();
  }

  /** When a job starts that has not begun. @param {Found} job */
  #startOf({ startsAt, state }) {
    return startsAt && state === 'running' && millis(startsAt) > Date.now() ? startsAt : undefined;
  }

  #question() {
    return JSON.stringify([...this.#route.query].filter(([key]) => key !== 'at'));
  }

  /**
   * @param {AbortSignal} signal
   * @returns {Promise<FoundPage & Answer<Found>>}
   */
  async #load(signal) {
    const question = this.#key;
    const page = await this.#ask(this.#list.most(question, PAGE), signal);
    return { ...page, question, rows: page.jobs, most: PAGE };
  }

  /**
   * @param {number} limit
   * @param {AbortSignal} signal
   * @returns {Promise<FoundPage>}
   */
  async #ask(limit, signal) {
    const { query } = this.#route;
    const filters = filtersOf(query);
    const order = query.get('order');
    if (order && !ORDERS.includes(order)) throw new Problem(400, await this.#wrongOrder(order));
    const cursor = query.get('cursor') ?? '';
    /** @type {[string, string][]} */
    const all = [...filters, ['limit', String(limit)], ['cursor', cursor]];
    if (!this.#less) {
      try {
        return await get(['jobs', 'search'], [...all, ['order', order ?? ''], ['count', 'true']], signal);
      } catch (error) {
        if (!(error instanceof Problem && error.notHere)) throw error;
        this.#less = true;
      }
    }
    return get(['jobs', 'search'], all, signal);
  }

  /** What the manager would refuse is not asked. @param {string} order */
  async #wrongOrder(order) {
    await learnNames();
    const { text, instead } = faultOf(['order', order], columnNames(this.#route.query.get('workflow')), []);
    return `${text} ${searchText(instead ? [instead] : [])}`;
  }

  /** @param {Route} route */
  update(route) {
    this.#route = route;
    const key = this.#question();
    if (key === this.#key) return;
    this.#key = key;
    this.#fault = undefined;
    this.#nameReason();
    if (!route.query.get('cursor')) this.#before = [];
    this.#marked.clear();
    void this.#found.restart();
  }

  /** Looks what the reason says whose id is in the address. */
  #nameReason() {
    if (this.#route.query.has('reasonId')) void this.#reasons.refresh();
  }

  ready() {
    return this.#found.data !== undefined || this.#found.error !== undefined;
  }

  title() {
    const text = this.#told();
    return plain(text ? `Jobs ${text}` : 'Jobs');
  }

  live() {
    return 'every 3 s';
  }

  /** The workflow whose jobs are listed, as what can be paused. @returns {import('./pauses.js').Subject[]} */
  #subjects() {
    const { query } = this.#route;
    const named = parted(query.get('workflow') ?? '');
    const subject = { kind: /** @type {const} */ ('workflow'), name: named.name, vhost: named.vhost ?? query.get('vhost') };
    return workflowNames().includes(fullName(subject)) ? [subject] : [];
  }

  template() {
    const { query } = this.#route;
    const { data: newest, stale } = this.#found;
    // What another search found is no answer to one that was refused.
    const refused = stale && this.#found.problem !== undefined;
    const data = refused ? undefined : newest;
    const jobs = refused ? [] : this.#list.take(data);
    const next = refused ? undefined : this.#list.next;
    const filters = filtersOf(query);
    const children = query.has('parent');
    return html`<div class="jobs">
      <header class="page-head"><h1>Jobs</h1><span class="quiet">${data?.count !== undefined ? html`${data.countIsMinimum ? 'more than ' : ''}${count(data.count)} found` : data ? html`${count(jobs.length)}${next ? ' and more' : ''} found` : nothing}</span>${refused ? nothing : this.#list.button()}<span class="space"></span>
        ${!may() ? nothing : html`<button class="button small" @click=${() => openCreate(query.get('workflow'))}>${icon('plus')}New job</button>`}${this.#subjects().map(pauseButton)}
        <button class="button small" @click=${this.#save} ?disabled=${!filters.length}>${icon('star')}Save view</button>
        ${!may() ? nothing : html`<button class="button small" ?disabled=${!filters.length || !jobs.length || children} title=${children ? 'Child jobs are operated on by their parent' : filters.length ? 'An operation on all that this search finds' : 'Choose what is meant first: a filter is needed'} @click=${() => openBulk(filters, this.#named, () => void this.#found.refresh())}>All of these…</button>`}
      </header>
      ${this.#filters(query, jobs)}
      ${this.#faultText()}
      ${refusal(this.#found.problem)}
      ${this.#marked.size ? html`<div class="marked-bar"><b>${count(this.#marked.size)} marked</b>${this.#marked.size === 2 ? html`<a class="button small" href=${link(['compare', ...this.#pair(jobs)])}>Compare them</a>` : nothing}${!may() ? nothing : html`<button class="button small" @click=${() => openBulk(filters, this.#named, () => { this.#marked.clear(); void this.#found.refresh(); }, this.#chosen(jobs))}>Do something with them…</button>`}<button class="mini" @click=${this.#clear}>Clear</button></div>` : nothing}
      <section class="panel ${stale ? 'stale' : ''}" aria-label="Jobs found">
        ${jobs.length ? this.#table(jobs) : this.#found.told ? (filters.length ? html`<div class="none"><p>No job is like that.</p><a class="button" href="#/jobs">All jobs</a></div>` : firstJob(workflowNames()[0] ?? 'WORKFLOW', may() ? () => openCreate() : undefined)) : nothing}
      </section>
      <nav class="pager" aria-label="Pages">
        ${query.get('cursor') ? html`<a class="button small" href=${changed(this.#route, { cursor: this.#before.at(-1) })} @click=${() => this.#before.pop()}>${icon('left')}${query.get('order') === 'oldest' ? 'Older' : 'Newer'}</a>` : nothing}
        ${next ? html`<a class="button small" href=${changed(this.#route, { cursor: next })} @click=${() => this.#before.push(query.get('cursor') ?? '')}>${query.get('order') === 'oldest' ? 'Newer' : 'Older'}${icon('right')}</a>` : nothing}
        <span class="space"></span><button class="mini" @click=${() => copied(curl('GET', ['jobs', 'search'], filters), 'Command')}>Copy as curl</button><button class="mini" @click=${() => copied(command('search', ...filterOptions(filters)), 'Command')}>Copy as command</button>
      </nav>
    </div>`;
  }

  /** What can be typed, with names that these jobs have. @param {Found[]} jobs */
  #example(jobs) {
    const workflow = this.#route.query.get('workflow');
    const columns = jobs.find((job) => job.columns && Object.keys(job.columns).length)?.columns;
    const [name, value = '…'] = Object.entries(columns ?? {})[0] ?? [columnNames(workflow)[0] ?? 'NAME'];
    return plain(`label:… ${searchText([[`column.${name}`, cut(value, 16)]])} status.${stepNames(workflow)[0] ?? 'STEP'}:…`);
  }

  #faultText() {
    if (!this.#fault) return nothing;
    const { text, instead } = this.#fault;
    return html`<p class="problem" role="alert">${icon('alert')}<span>${shown(text)} ${instead ? html`<a href=${changed(this.#route, { cursor: undefined, [instead[0]]: instead[1] })}>${shown(searchText([instead]))}</a>` : nothing}</span></p>`;
  }

  /** What was asked for and is not shown elsewhere, each with what is left without it. @returns {[string, string, Record<string, string | undefined>][]} */
  #chips() {
    const { query } = this.#route;
    const states = (query.get('state') ?? '').split(',').filter(Boolean);
    const odd = states.filter((state) => !JOB_STATES.some((known) => known === state));
    const order = query.get('order') ?? '';
    return [
      ...filtersOf(query).filter(([key, value]) => !['workflow', 'state', 'after'].includes(key) && !(key === 'failedItems' && value === 'true')).map(([key, value]) => /** @type {[string, string, Record<string, string | undefined>]} */ ([key, value, { [key]: undefined }])),
      ...odd.map((state) => /** @type {[string, string, Record<string, string | undefined>]} */ (['state', state, { state: states.filter((other) => other !== state).join(',') }])),
      ...(order && !ORDERS.includes(order) ? [/** @type {[string, string, Record<string, string | undefined>]} */ (['order', order, { order: undefined }])] : []),
    ];
  }

  /** @param {Map<string, string>} query @param {Found[]} jobs */
  #filters(query, jobs) {
    const states = new Set((query.get('state') ?? '').split(',').filter(Boolean));
    const set = (/** @type {Record<string, string | undefined>} */ changes) => setQuery({ cursor: undefined, ...changes });
    const names = workflowNames();
    const workflow = query.get('workflow') ?? '';
    const after = query.get('after') ?? '';
    const known = ['', '1h', '24h', '7d'];
    const chips = this.#chips();
    const withFailed = query.get('failedItems') === 'true';
    const failedItems = withFailed ? '' : 'true';
    return html`<div class="filters" role="search" aria-label="Filters">
      <div class="states" role="group" aria-label="State">${JOB_STATES.map((state) => {
        const on = states.has(state);
        const next = this.#less ? (on ? [] : [state]) : JOB_STATES.filter((other) => (other === state ? !on : states.has(other)));
        return html`<a class="chip-state ${state}" role="button" aria-pressed=${on ? 'true' : 'false'} href=${changed(this.#route, { state: next.join(','), cursor: undefined })} @keydown=${(/** @type {KeyboardEvent} */ event) => { if (event.key === ' ') { event.preventDefault(); set({ state: next.join(',') }); } }}>${sign(state)}${state}</a>`;
      })}</div>
      <a class="chip" role="button" aria-pressed=${withFailed ? 'true' : 'false'} title="Completed jobs of which items have failed" href=${changed(this.#route, { failedItems, cursor: undefined })} @keydown=${(/** @type {KeyboardEvent} */ event) => { if (event.key === ' ') { event.preventDefault(); set({ failedItems }); } }}>with failed items</a>
      <select class="field" aria-label="Workflow" @change=${(/** @type {Event} */ event) => set({ workflow: /** @type {HTMLSelectElement} */ (event.target).value })}>
        <option value="" .selected=${live(workflow === '')}>All workflows</option>
        ${[...new Set([...names, ...(workflow ? [workflow] : [])])].map((name) => html`<option value=${name} .selected=${live(name === workflow)}>${plain(name)}</option>`)}
      </select>
      <select class="field" aria-label="Created" @change=${(/** @type {Event} */ event) => set({ after: /** @type {HTMLSelectElement} */ (event.target).value })}>
        ${[...known, ...(known.includes(after) ? [] : [after])].map((value) => html`<option value=${value} .selected=${live(value === after)}>${{ '': 'Any time', '1h': 'Last hour', '24h': 'Last 24 hours', '7d': 'Last 7 days' }[value] ?? plain(`Since ${value}`)}</option>`)}
      </select>
      ${this.#less ? nothing : html`<select class="field" aria-label="Order" @change=${(/** @type {Event} */ event) => set({ order: /** @type {HTMLSelectElement} */ (event.target).value })}><option value="" .selected=${live(query.get('order') !== 'oldest')}>Newest first</option><option value="oldest" .selected=${live(query.get('order') === 'oldest')}>Oldest first</option></select>`}
      <form class="words" @submit=${(/** @type {SubmitEvent} */ event) => this.#words(event)}><input class="field" name="words" aria-label="More filters" placeholder=${this.#example(jobs)} title="Free text is looked for in labels; ? tells the filters" autocomplete="off" spellcheck="false" @focus=${() => void learnNames().then(redraw)}></form>
      ${chips.map(([key, value, without]) => html`<a class="chip" href=${changed(this.#route, { ...without, cursor: undefined })} aria-label=${plain(`Take out ${this.#named(key, value).join(' ')}`)}><span class="quiet">${shown(this.#named(key, value)[0])}</span>${shown(this.#named(key, value)[1])}${icon('close')}</a>`)}
      ${filtersOf(query).length || chips.length ? html`<a class="mini" href="#/jobs">Clear all</a>` : nothing}
      ${savedList()}
    </div>`;
  }

  /** What a reason says whose id is in the address. @param {string} id */
  #reasonOf(id) {
    const group = this.#reasons.data?.reasons.find(({ reasonId }) => reasonId === id.toLowerCase());
    return group ? reasonName(group.reason) : id;
  }

  /** A filter as people read it. @param {string} key @param {string} value @returns {[string, string]} */
  #named = (key, value) => {
    if (key === 'reasonId') return ['reason', this.#reasonOf(value)];
    if (key === 'endedAfter') return [/^\d+[smhd]$/.test(value) ? 'ended within' : 'ended since', value];
    if (key === 'endedBefore') return ['ended before', value];
    return key === 'failedItems' && value === 'true' ? ['items', 'some failed'] : [key, value];
  };

  /** @param {SubmitEvent} event */
  async #words(event) {
    event.preventDefault();
    const form = /** @type {HTMLFormElement} */ (event.currentTarget);
    const text = String(new FormData(form).get('words') ?? '');
    const { query, unknown } = readSearch(text);
    const workflow = query.get('workflow') ?? this.#route.query.get('workflow');
    if (unknown.length) await learnNames();
    this.#fault = unknown.length ? faultOf(unknown[0], columnNames(workflow), stepNames(workflow)) : undefined;
    redraw();
    const words = this.#fault ? undefined : await this.#likeliest(searches(text, []));
    if (!words) return;
    form.reset();
    setQuery({ cursor: undefined, ...Object.fromEntries(words) });
  }

  /** Of an id's beginning and a label with the same signs, the first that finds something. @param {Map<string, string>[]} all */
  async #likeliest(all) {
    const filters = filtersOf(this.#route.query);
    for (const words of all.slice(0, -1)) {
      /** @type {FoundPage | undefined} */
      const found = await get(['jobs', 'search'], [...new Map([...filters, ...words]), ['limit', '1']]).catch(() => undefined);
      if (!found || found.jobs.length) return words;
    }
    return all.at(-1);
  }

  #save = () => openSave(this.#told());

  /** The search in words: an id of a reason tells people nothing. */
  #told() {
    return filtersOf(this.#route.query).map((filter) => this.#named(...filter)).map(([key, value]) => `${key}:${/\s/.test(value) ? `"${value}"` : value}`).join(' ');
  }

  /** @param {Found[]} jobs */
  #table(jobs) {
    const now = Date.now();
    const all = jobs.every((job) => this.#marked.has(job.job));
    const steps = jobs.some((job) => job.steps !== undefined);
    const columns = this.#route.query.get('workflow') ? [...new Set(jobs.flatMap((job) => Object.keys(job.columns ?? {})))] : [];
    const { entry } = this.#list;
    return html`<div class="table-wrap" ${scrolls()}><table class="jobs-table ${steps ? '' : 'without-steps'} ${jobs.some((job) => job.label !== undefined) ? 'with-labels' : ''} ${columns.length ? 'with-columns' : ''}">
      <thead><tr><th class="tick"><input type="checkbox" aria-label="Mark all on this page" .checked=${live(all)} @change=${() => { for (const job of jobs) if (all) this.#marked.delete(job.job); else this.#marked.add(job.job); redraw(); }}></th><th>State</th><th>Job</th><th>Workflow</th><th>Created</th><th class="number">Took</th>${steps ? html`<th class="number">Steps</th>` : nothing}${columns.map((name) => html`<th>${shown(name)}</th>`)}<th>Reason</th></tr></thead>
      <tbody @pointerenter=${this.#list.hold} @pointerleave=${this.#list.hold} @focusin=${this.#list.hold} @focusout=${this.#list.hold}>${repeat(jobs, (job) => job.job, (job) => {
        const from = millis(job.created);
        const running = job.state === 'running' || job.state === 'paused';
        const gone = this.#list.gone.has(job.job);
        const starts = this.#startOf(job);
        return html`<tr class="linked ${gone ? 'not-found' : ''}" data-row=${job.job} tabindex=${job.job === entry ? '0' : '-1'} title=${gone ? 'This search does not find it any more' : nothing} @click=${(/** @type {MouseEvent} */ event) => this.#open(event, job)} @keydown=${(/** @type {KeyboardEvent} */ event) => this.#rowKey(event, job)}>
          <td class="tick"><input type="checkbox" aria-label="Mark job ${plain(job.label ?? shortId(job.job))}" .checked=${live(this.#marked.has(job.job))} @change=${() => this.#mark(job.job)}></td>
          <td class="c-state">${badge(job.state)}</td>
          <td class="c-job"><a href=${link(['job', job.job])}>${named(job.label, job.job)}</a></td>
          <td class="c-workflow">${shown(job.workflow)}${job.item !== undefined ? html` <span class="quiet">${shown(job.step ?? '')}[${count(job.item)}]</span>` : nothing}</td>
          <td class="c-created">${moment(job.created)}</td>
          <td class="number c-took">${starts ? html`<span class="quiet">–</span>` : html`${running ? html`<span class="quiet">for</span> ` : nothing}${span((job.ended ? millis(job.ended) : now) - from)}`}</td>
          ${steps ? html`<td class="number c-steps">${job.steps?.done !== undefined ? html`${count(job.steps.done)}<span class="quiet"> / ${count(job.steps.total)}</span>` : html`<span class="quiet" title="Its own page tells which">${job.steps ? html`– / ${count(job.steps.total)}` : '–'}</span>`}</td>` : nothing}
          ${columns.map((name) => html`<td class="c-column">${job.columns?.[name] === undefined ? nothing : html`<span class="quiet c-name">${shown(name)} </span>${this.#value(name, String(job.columns[name]))}`}</td>`)}
          <td class="c-reason">${starts ? html`<span>starts at ${moment(starts)}</span>` : job.failedItems ? html`<span class="quiet">some items failed</span>` : html`<span title=${plain(job.reason ?? '')}>${shown(shortReason(job.reason ?? ''))}</span>`}</td>
        </tr>`;
      })}</tbody>
    </table></div>`;
  }

  /** The value of a column, as the way to all jobs that have it. @param {string} name @param {string} value */
  #value(name, value) {
    const key = `column.${name}`;
    if (value === '' || this.#route.query.get(key) === value) return shown(value);
    return html`<a class="value" href=${changed(this.#route, { [key]: value, cursor: undefined })} title=${plain(`Only jobs whose ${name} is ${value}`)}>${shown(value)}</a>`;
  }

  /**
   * @param {MouseEvent} event
   * @param {Found} job
   */
  #open(event, job) {
    const target = /** @type {HTMLElement} */ (event.target);
    if (target.closest('a, button, input, .tick') || getSelection()?.toString()) return;
    go(link(['job', job.job]));
  }

  /** @param {string} id */
  #mark(id) {
    if (this.#marked.has(id)) this.#marked.delete(id);
    else this.#marked.add(id);
    this.#list.letGo();
    redraw();
  }

  /** The marked jobs, with their labels. @param {Found[]} jobs */
  #chosen(jobs) {
    const labels = new Map(jobs.map(({ job, label }) => [job, label]));
    return [...this.#marked].map((job) => ({ job, label: labels.get(job) }));
  }

  /** Two marked jobs, the older one first. @param {Found[]} jobs */
  #pair(jobs) {
    const made = new Map(jobs.map((job) => [job.job, millis(job.created)]));
    return [...this.#marked].sort((a, b) => (made.get(a) ?? 0) - (made.get(b) ?? 0));
  }

  #clear = () => {
    this.#marked.clear();
    this.#list.letGo();
    // The button is gone with its bar: the keyboard goes on where it was.
    redrawNow();
    this.#list.back();
  };

  /**
   * Keys belong to the row that has the focus, or that has what has it; its links have keys of their own.
   * @param {KeyboardEvent} event
   * @param {Found} job
   */
  #rowKey(event, job) {
    if (event.ctrlKey || event.metaKey || event.altKey || /** @type {HTMLElement} */ (event.target).closest('a')) return;
    if (event.key === 'Enter') go(link(['job', job.job]));
    else if (event.key === 'ArrowDown' || event.key === 'ArrowUp') this.#list.focus(this.#list.beside(event.key === 'ArrowDown' ? 1 : -1));
    else if (event.key === 'Escape') document.getElementById('main')?.focus();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    if (event.key === 'j' || event.key === 'k') this.#list.focus(this.#list.beside(event.key === 'j' ? 1 : -1));
    else if (event.key === 'x' && this.#list.at) this.#mark(this.#list.at);
    else return false;
    return true;
  }

  commands() {
    const filters = filtersOf(this.#route.query);
    if (!may()) return [];
    const pauses = this.#subjects().flatMap((subject) => pauseCommands(subject));
    const create = { name: 'New job', run: () => openCreate(this.#route.query.get('workflow')) };
    return filters.length && !this.#route.query.has('parent') ? [create, { name: 'Do something with all of these jobs', run: () => openBulk(filters, this.#named, () => void this.#found.refresh()) }, ...pauses] : [create, ...pauses];
  }
}
