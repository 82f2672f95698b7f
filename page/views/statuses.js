// The sheet of statuses: a row for each job, a column for each step, with the words of the business.

import { html, nothing } from '../vendor/lit-html@3.3.3/lit-html.js';
import { live } from '../vendor/lit-html@3.3.3/directives/live.js';
import { repeat } from '../vendor/lit-html@3.3.3/directives/repeat.js';
import { download, get } from '../lib/api.js';
import { copied, go, messageOf, refusal, setQuery, tell } from '../lib/app.js';
import { Held } from '../lib/held.js';
import { icon } from '../lib/icons.js';
import { redraw } from '../lib/redraw.js';
import { changed, link } from '../lib/route.js';
import { fullName, parted, workflows } from '../lib/shared.js';
import { Source } from '../lib/source.js';
import { isEnd, JOB_STATES, sign } from '../lib/states.js';
import { count, counted, named, plain, shown } from '../lib/text.js';
import { millis, clock } from '../lib/time.js';

/** @import { FoundPage, StatusRow } from '../lib/types.js' */
/** @import { Answer } from '../lib/held.js' */
/** @import { Route } from '../lib/route.js' */
/** @import { View } from '../lib/app.js' */

const PAGE = 100;
const OWN = new Set(['cursor', 'state', 'sort', 'job']);

/**
 * @param {Route} route
 * @returns {View}
 */
export function statusesView(route) {
  return route.path.length > 1 ? new Statuses(route) : chooser();
}

/** @returns {View} */
function chooser() {
  return {
    page: 'statuses',
    title: () => 'Statuses',
    ready: () => workflows.data !== undefined || workflows.error !== undefined,
    update() {},
    stop() {},
    template: () => {
      const all = workflows.data ?? [];
      if (all.length === 1) setTimeout(() => go(link(['statuses', ...fullName(all[0]).split('/')]), { replace: true }));
      return html`<div class="statuses"><header class="page-head"><h1>Statuses</h1></header><p class="quiet">A sheet of the jobs of a workflow, with the status of each step.</p>${refusal(workflows.problem)}${workflows.told && !all.length ? html`<p class="calm">No workflow is loaded.</p>` : nothing}<ul class="cards">${all.map((workflow) => html`<li><a class="panel card" href=${link(['statuses', ...fullName(workflow).split('/')])}><b>${shown(fullName(workflow))}</b><span class="quiet">${count(workflow.job_count)} under way</span></a></li>`)}</ul></div>`;
    },
  };
}

class Statuses {
  page = 'statuses';
  #route;
  #workflow;
  /** @type {Source<Answer<StatusRow> & { count?: number, countIsMinimum?: boolean }>} */
  #rows;
  /** @type {string[]} */
  #before = [];
  #key;
  /** @type {string[]} */
  #columns = [];
  /** Words seen in a column, to be chosen from. @type {Map<string, Set<string>>} */
  #words = new Map();
  #list = new Held((/** @type {StatusRow} */ row) => row.job, () => void this.#rows.refresh());
  /** The column that the keyboard is in: a step. */
  #column = '';

  /** @param {Route} route */
  constructor(route) {
    this.#route = route;
    this.#workflow = route.path.slice(1).join('/');
    this.#key = this.#question();
    this.#rows = new Source((signal) => this.#load(signal));
    void this.#rows.refresh();
    this.#rows.every(4000);
  }

  stop() {
    this.#rows.stop();
  }

  #question() {
    return JSON.stringify([...this.#route.query]);
  }

  /** @returns {[string, string][]} */
  #filters() {
    /** @type {[string, string][]} */
    const filters = [];
    for (const [key, value] of this.#route.query) {
      if (key === 'state' || key === 'job') filters.push([key, value]);
      else if (!OWN.has(key)) filters.push([`step.${key}`, value === '-' ? '' : value]);
    }
    return filters;
  }

  /** Address and query of the call; empty statuses mean steps that wait, so they are not left out. */
  #call() {
    const { name, vhost } = parted(this.#workflow);
    return { path: ['status', name], vhost };
  }

  /**
   * How many jobs there are, which the search tells, if it has the filters: it knows no steps that wait, nor a single job.
   * @param {[string, string][]} filters
   * @param {AbortSignal} signal
   * @returns {Promise<FoundPage | undefined>}
   */
  async #count(filters, signal) {
    if (filters.some(([key, value]) => key === 'job' || value === '')) return undefined;
    const { name, vhost } = parted(this.#workflow);
    return get(['jobs', 'search'], { workflow: name, vhost, limit: 1, count: true, ...Object.fromEntries(filters.map(([key, value]) => [key.replace(/^step\./, 'status.'), value])) }, signal);
  }

  /** @param {AbortSignal} signal */
  async #load(signal) {
    const { path, vhost } = this.#call();
    const filters = this.#filters();
    const cursor = this.#route.query.get('cursor');
    // The rows do not wait for their number.
    const number = cursor ? undefined : this.#count(filters, signal).catch(() => undefined);
    const question = this.#key;
    /** @type {{ rows: StatusRow[], next?: string }} */
    const answer = await get(path, { vhost, limit: this.#list.most(question, PAGE), cursor, ...Object.fromEntries(filters) }, signal);
    const data = { ...answer, question, most: PAGE };
    void number?.then((found) => {
      if (!found) return;
      Object.assign(data, { count: found.count, countIsMinimum: found.countIsMinimum });
      redraw();
    });
    for (const row of data.rows) {
      for (const [step, word] of Object.entries(row.steps)) {
        if (!this.#words.has(step)) {
          this.#words.set(step, new Set());
          this.#columns.push(step);
        }
        if (word !== '' && /** @type {Set<string>} */ (this.#words.get(step)).size < 40) this.#words.get(step)?.add(/** @type {string} */ (word));
      }
    }
    return data;
  }

  /** @param {Route} route */
  update(route) {
    this.#route = route;
    const key = this.#question();
    if (key === this.#key) return;
    this.#key = key;
    if (!route.query.get('cursor')) this.#before = [];
    void this.#rows.restart();
  }

  ready() {
    return this.#rows.data !== undefined || this.#rows.error !== undefined;
  }

  title() {
    return plain(`Statuses of ${this.#workflow}`);
  }

  live() {
    return 'every 4 s';
  }

  template() {
    const { data, stale } = this.#rows;
    const rows = this.#list.take(data);
    const { next } = this.#list;
    const { query } = this.#route;
    const { entry } = this.#list;
    const column = this.#columns.includes(this.#column) ? this.#column : (this.#columns[0] ?? '');
    const filtered = [...query.keys()].some((key) => key !== 'cursor');
    const all = workflows.data ?? [];
    const own = [...new Set(rows.flatMap((row) => Object.keys(row.columns ?? {})))];
    return html`<div class="statuses">
      <header class="page-head"><h1>Statuses</h1>
        <select class="field" aria-label="Workflow" @change=${(/** @type {Event} */ event) => go(link(['statuses', .../** @type {HTMLSelectElement} */ (event.target).value.split('/')]))}>${[...new Set([...all.map(fullName), this.#workflow])].map((name) => html`<option value=${name} .selected=${live(name === this.#workflow)}>${plain(name)}</option>`)}</select>
        <span class="quiet">${data?.count !== undefined ? html`${data.countIsMinimum ? 'more than ' : ''}${counted(data.count, 'job')}` : data ? (next ? html`the newest ${count(rows.length)} jobs` : counted(rows.length, 'job')) : nothing}</span>${this.#list.button()}
        ${filtered ? html`<a class="mini" href=${link(this.#route.path)}>Clear filters</a>` : nothing}
        <span class="space"></span>
        <button class="button small" @click=${() => copied(this.#sql(), 'SQL')}>Copy SQL</button>
        <button class="button small" @click=${this.#csv}>${icon('download')}CSV</button>
      </header>
      ${refusal(this.#rows.problem)}
      ${data ? html`<section class="panel ${stale ? 'stale' : ''}" aria-label="Sheet">
        <div class="sheet-wrap" data-place tabindex="0" role="region" aria-label="Sheet of statuses"><table class="sheet">
          <thead><tr><th class="frozen">Job</th><th>${this.#choose('state', 'State', [...JOB_STATES])}</th><th class="sheet-created">Created</th>${this.#columns.map((step) => html`<th>${this.#choose(step, step, ['-', ...(this.#words.get(step) ?? [])])}</th>`)}${own.map((name) => html`<th>${shown(name)}</th>`)}</tr></thead>
          <tbody @pointerenter=${this.#list.hold} @pointerleave=${this.#list.hold} @focusin=${this.#cellFocused} @focusout=${this.#list.hold}>${repeat(rows, (row) => row.job, (row) => html`<tr class=${this.#list.gone.has(row.job) ? 'not-found' : ''} data-row=${row.job}>
            <th scope="row" class="frozen"><a href=${link(['job', row.job])}>${named(row.label, row.job)}</a></th>
            <td class="sheet-state">${sign(row.state)}${shown(row.state)}</td><td class="number left sheet-created" title=${row.created}>${clock(millis(row.created))}</td>
            ${this.#columns.map((step) => { const word = Object.hasOwn(row.steps, step) ? row.steps[step] : ''; return html`<td data-step=${step} tabindex=${row.job === entry && step === column ? '0' : '-1'}>${word ? html`<a class="status-word ${wordTone(word, row.state)}" href=${link(['job', row.job], { step })}>${shown(word)}</a>` : nothing}</td>`; })}
            ${own.map((name) => { const cells = row.columns ?? {}; return html`<td>${Object.hasOwn(cells, name) ? shown(String(cells[name])) : nothing}</td>`; })}
          </tr>`)}</tbody>
        </table></div>
        ${rows.length || !this.#rows.told ? nothing : html`<div class="none"><p>No job is like that.</p></div>`}
      </section>` : nothing}
      <nav class="pager" aria-label="Pages">${query.get('cursor') ? html`<a class="button small" href=${changed(this.#route, { cursor: this.#before.at(-1) })} @click=${() => this.#before.pop()}>${icon('left')}Newer</a>` : nothing}${next ? html`<a class="button small" href=${changed(this.#route, { cursor: next })} @click=${() => this.#before.push(query.get('cursor') ?? '')}>Older${icon('right')}</a>` : nothing}</nav>
    </div>`;
  }

  /**
   * @param {string} key
   * @param {string} name
   * @param {string[]} words
   */
  #choose(key, name, words) {
    const value = this.#route.query.get(key) ?? '';
    const known = value && !words.includes(value) ? [...words, value] : words;
    return html`<label class="column ${value ? 'filtered' : ''}"><span>${shown(name)}</span><select aria-label=${plain(`Filter by ${name}`)} @change=${(/** @type {Event} */ event) => setQuery({ [key]: /** @type {HTMLSelectElement} */ (event.target).value, cursor: undefined })}><option value="" .selected=${live(value === '')}>any</option>${known.map((word) => html`<option value=${word} .selected=${live(word === value)}>${word === '-' ? '(waits)' : plain(word)}</option>`)}</select>${value ? html`<b>${value === '-' ? 'waits' : shown(value)}</b>` : nothing}${icon('down')}</label>`;
  }

  #sql() {
    const text = (/** @type {string} */ value) => `'${value.replaceAll("'", "''")}'`;
    const name = (/** @type {string} */ value) => `"${value.replaceAll('"', '""')}"`;
    const where = this.#filters().map(([key, value]) => `${name(key.replace(/^step\./, ''))} = ${text(value)}`);
    return `SELECT * FROM ${name(`status_${this.#workflow}`)}${where.length ? ` WHERE ${where.join(' AND ')}` : ''} ORDER BY created DESC;`;
  }

  #csv = async () => {
    const { path, vhost } = this.#call();
    try {
      await download(path, `${this.#workflow.replace(/[^A-Za-z0-9_-]+/g, '-')}.csv`, { accept: 'text/csv', query: { vhost, ...Object.fromEntries(this.#filters()) } });
    } catch (error) {
      tell(messageOf(error), 'problem');
    }
  };

  #cellFocused = (/** @type {FocusEvent} */ event) => {
    this.#column = /** @type {Element} */ (event.target).closest('[data-step]')?.getAttribute('data-step') ?? this.#column;
    this.#list.hold(event);
  };

  /**
   * @param {number} down
   * @param {number} right
   */
  #move(down, right) {
    const at = Math.max(0, this.#columns.indexOf(this.#column));
    const step = this.#columns[Math.max(0, Math.min(this.#columns.length - 1, at + right))];
    const job = this.#list.beside(down);
    /** @type {HTMLElement | null} */ (document.querySelector(`[data-row="${CSS.escape(job ?? '')}"] [data-step="${CSS.escape(step ?? '')}"]`))?.focus();
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const { at } = this.#list;
    if (event.key === 'ArrowDown' || event.key === 'j') this.#move(1, 0);
    else if (event.key === 'ArrowUp' || event.key === 'k') this.#move(-1, 0);
    else if (event.key === 'ArrowRight' && at) this.#move(0, 1);
    else if (event.key === 'ArrowLeft' && at) this.#move(0, -1);
    else if (event.key === 'Enter' && at && !/** @type {Element} */ (event.target).closest('a')) go(link(['job', at], { step: this.#column }));
    else if (event.key === 'Escape' && at) document.getElementById('main')?.focus();
    else return false;
    return true;
  }
}

/**
 * Words of a business have no colour that the page could know; only the manager's own have.
 * @param {string} word
 * @param {string} job its state
 */
function wordTone(word, job) {
  // In a job that has ended nothing runs.
  if (word === 'PENDING' && isEnd(job)) return 'halted';
  return { COMPLETED: 'completed', FAILED: 'failed', PENDING: 'running', SKIPPED: 'skipped', CANCELLED: 'cancelled' }[word] ?? '';
}
