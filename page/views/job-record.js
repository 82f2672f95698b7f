// The record of a job: what happened, entry by entry, and the slider with which one goes back in it. The manager tells the job as it was
// after an entry; the page only asks.

import { html, nothing } from '../vendor/lit-html@3.3.3/lit-html.js';
import { live } from '../vendor/lit-html@3.3.3/directives/live.js';
import { Problem, address, send } from '../lib/api.js';
import { refusal } from '../lib/app.js';
import { css } from '../lib/dom.js';
import { icon } from '../lib/icons.js';
import { parseKeeping } from '../lib/json.js';
import { redraw } from '../lib/redraw.js';
import { Rows } from '../lib/rows.js';
import { bytes, count, counted, cut, plain, shown } from '../lib/text.js';
import { clock, millis } from '../lib/time.js';
import { codeOf } from './payload.js';

/** @import { Entry } from '../lib/types.js' */

const PAGE = 200;
const PAGES_KEPT = 60;
const WANTED_MOST = 12;
/** Up to so many entries are read for the timeline and the marks of the slider. */
const READ_MOST = 2000;
/** Payloads are shown as they came. */
const KEEP = new Set(['payload', 'progress']);

export class Record {
  #id;
  /** @type {Map<number, Entry[]>} */
  #pages = new Map();
  /** @type {Set<number>} */
  #asked = new Set();
  /** @type {number[]} */
  #wanted = [];
  #under = 0;
  /** @type {Problem | undefined} */
  error;
  #rows = new Rows(34);
  #open = 0;
  #length = 0;
  /** So many entries are listed: while the list is used no row moves. */
  #listed = 0;
  #pointed = false;
  #focused = false;
  #stopped = false;
  /** @type {Entry[] | undefined} */
  #first;

  /** @param {string} id */
  constructor(id) {
    this.#id = id;
  }

  stop() {
    this.#stopped = true;
    this.#rows.stop();
  }

  /** @param {number} length how many entries the record has now */
  grown(length) {
    if (length === this.#length) return;
    // The last page may have been read before it was full.
    const last = Math.floor(Math.max(0, this.#length - 1) / PAGE);
    this.#length = length;
    this.#first = undefined;
    if ((this.#pages.get(last)?.length ?? PAGE) < PAGE) this.#asked.delete(last);
  }

  get length() {
    return this.#length;
  }

  /**
   * Asks for a page. Who scrolls or slides fast passes many pages: only the last of them are asked for, two at a time.
   * @param {number} page
   */
  #ask(page) {
    if (this.#asked.has(page) || this.#stopped) return;
    this.#asked.add(page);
    this.#wanted.push(page);
    if (this.#wanted.length > WANTED_MOST) this.#asked.delete(/** @type {number} */ (this.#wanted.shift()));
    this.#next();
  }

  #next() {
    if (this.#under >= 2 || this.#stopped) return;
    const page = this.#wanted.pop();
    if (page === undefined) return;
    this.#under += 1;
    this.#read(page)
      .then((list) => {
        this.#pages.set(page, list);
        if (this.#pages.size > PAGES_KEPT) {
          const old = /** @type {number} */ (this.#pages.keys().next().value);
          this.#pages.delete(old);
          this.#asked.delete(old);
        }
        // The record has grown in the meantime.
        if (list.length < Math.min(PAGE, this.#length - page * PAGE)) setTimeout(() => { this.#asked.delete(page); redraw(); }, 1000);
        this.#first = undefined;
        this.error = undefined;
        redraw();
      })
      .catch((error) => {
        this.error = error instanceof Problem ? error : new Problem(-1, String(error));
        setTimeout(() => this.#asked.delete(page), 5000);
        redraw();
      })
      .finally(() => {
        this.#under -= 1;
        this.#next();
      });
  }

  /**
   * The manager ends a page earlier if its rows are large: then it is asked for the rest.
   * @param {number} page
   * @returns {Promise<Entry[]>}
   */
  async #read(page) {
    const end = (page + 1) * PAGE;
    /** @type {Entry[]} */
    const all = [];
    /** @type {number | undefined} */
    let after = page * PAGE;
    while (after !== undefined && after < end && !this.#stopped) {
      const response = await send(address(['job', this.#id, 'entries'], { after, limit: end - after }));
      /** @type {{ entries: Entry[], next?: number }} */
      const { entries, next } = parseKeeping(await response.text(), KEEP);
      all.push(...entries);
      after = entries.length ? next : undefined;
    }
    return all;
  }

  /**
   * @param {number} n from 1
   * @returns {Entry | undefined}
   */
  at(n) {
    const page = Math.floor((n - 1) / PAGE);
    this.#ask(page);
    const list = this.#pages.get(page);
    // A page can end earlier if its rows are large: numbers decide, not places.
    return list?.[(n - 1) % PAGE]?.n === n ? list[(n - 1) % PAGE] : list?.find((entry) => entry.n === n);
  }

  /** The beginning of the record, for the timeline; empty for a record too long for it. @returns {Entry[]} */
  first() {
    if (this.#length > READ_MOST) return [];
    if (this.#first) return this.#first;
    /** @type {Entry[]} */
    const all = [];
    let whole = true;
    for (let page = 0; page * PAGE < this.#length; page += 1) {
      this.#ask(page);
      const list = this.#pages.get(page);
      if (list) all.push(...list);
      else whole = false;
    }
    if (whole) this.#first = all;
    return all;
  }

  /**
   * @param {number | undefined} at
   * @param {(at: number) => string} link
   * @param {(step: string, at: number) => string} stepLink
   */
  list(at, link, stepLink) {
    if (this.error && !this.#pages.size) return html`<p class="calm">${this.error.notHere ? 'This manager does not tell the record.' : shown(this.error.message)}</p>`;
    const open = this.#open ? this.at(this.#open) : undefined;
    if (!this.#pointed && !this.#focused) this.#listed = this.#length;
    const fresh = this.#length - this.#listed;
    return html`<div class="record" @pointerenter=${this.#hold} @pointerleave=${this.#hold} @focusin=${this.#hold} @focusout=${this.#hold}>
      ${fresh > 0 ? html`<button class="button small fresh" title="The list stands still while it is used: show them" @click=${() => { this.#listed = this.#length; redraw(); }}>${count(fresh)} new</button>` : nothing}
      ${this.error && this.error.status > 0 ? refusal(this.error) : nothing}
      ${this.#rows.template(
        this.#listed,
        (row) => {
          const n = this.#listed - row;
          const entry = this.at(n);
          if (!entry) return html`<div class="record-row"><span class="record-n">${count(n)}</span></div>`;
          const [area, word] = entry.kind.split('.');
          return html`<div class="record-row ${at === n ? 'chosen' : ''} ${this.#open === n ? 'opened' : ''}">
            <a class="record-n" href=${link(n)} title="The job as it was after this entry">${count(n)}</a>
            <time class="record-at" datetime=${entry.at} title=${entry.at}>${clock(millis(entry.at), { fraction: true, day: false })}</time>
            <span class="record-kind k-${kindTone(entry.kind)}"><span class="wide-inline">${shown(area)}</span> <b>${shown((word ?? '').replace('-', ' '))}</b></span>
            <span class="record-what">${entry.step ? html`<a href=${stepLink(entry.step, n)}>${shown(entry.step)}</a>` : nothing}${what(entry)}</span>
            ${entry.payload !== undefined || entry.payloadOmitted || entry.reason || entry.raw ? html`<button class="mini" aria-expanded=${this.#open === n ? 'true' : 'false'} @click=${() => { this.#open = this.#open === n ? 0 : n; redraw(); }}>${entry.payloadBytes !== undefined ? bytes(entry.payloadBytes) : 'more'}</button>` : nothing}
          </div>`;
        },
        { label: 'Entries of the record, newest first', name: 'record-rows' },
      )}
      ${open ? html`<div class="record-open"><div class="payload-bar"><strong>Entry ${count(open.n)}</strong> <span class="quiet">${shown(open.kind)} ${shown(open.step ?? '')} at ${shown(open.at)}</span><span class="space"></span><button class="mini" @click=${() => { this.#open = 0; redraw(); }}>Close</button></div>${open.reason ? html`<p class="reason">${shown(open.reason)}</p>` : nothing}${open.raw ? html`<pre class="raw">${shown(open.raw)}</pre>` : nothing}${open.payload !== undefined ? codeOf(open.payload) : open.payloadOmitted ? html`<p class="calm">The payload is too large for the record. The step's panel has it.</p>` : nothing}</div>` : nothing}
    </div>`;
  }

  #hold = (/** @type {Event} */ event) => {
    const element = /** @type {Element} */ (event.currentTarget);
    if (event.type.startsWith('pointer')) this.#pointed = event.type === 'pointerenter' && /** @type {PointerEvent} */ (event).pointerType !== 'touch';
    else this.#focused = event.type === 'focusin' || element.contains(/** @type {Node | null} */ (/** @type {FocusEvent} */ (event).relatedTarget));
    redraw();
  };

  /**
   * @param {number | undefined} at
   * @param {(at: number | undefined) => void} move
   */
  slider(at, move) {
    const length = this.#length;
    if (length < 1) return nothing;
    const n = Math.min(at ?? length, length);
    const entry = this.at(n);
    const first = length <= READ_MOST ? this.first() : [];
    const marks = first.filter((one) => /^(job\.|step\.(started|completed|failed|attempt-failed|skipped|cancelled))/.test(one.kind));
    const past = at !== undefined;
    return html`<div class="slider ${past ? 'past' : ''}" role="group" aria-label="The record">
      <button class="tool" aria-label="An entry back" title="An entry back ([)" ?disabled=${n <= 1} @click=${() => move(Math.max(1, n - 1))}>${icon('left')}</button>
      <div class="slider-track">
        <div class="slider-marks" aria-hidden="true">${marks.map((one) => html`<i class="k-${kindTone(one.kind)}" ${css({ left: `${length > 1 ? (100 * (one.n - 1)) / (length - 1) : 0}%` })}></i>`)}</div>
        <input type="range" min="1" max=${length} step="1" .value=${live(String(n))} aria-label="Entry of the record" aria-valuetext=${plain(entry ? `entry ${n} of ${length}, ${entry.kind} ${entry.step ?? ''}` : `entry ${n} of ${length}`)} @input=${(/** @type {InputEvent} */ event) => { const value = Number(/** @type {HTMLInputElement} */ (event.target).value); move(value >= length ? undefined : value); }}>
      </div>
      <button class="tool" aria-label="An entry forth" title="An entry forth (])" ?disabled=${!past} @click=${() => move(n + 1 >= length ? undefined : n + 1)}>${icon('right')}</button>
      <span class="slider-text">${past ? html`entry <b>${count(n)}</b> of ${count(length)}` : html`<b>now</b>, ${counted(length, 'entry', 'entries')}`}${entry ? html` <span class="quiet">${clock(millis(entry.at), { day: false })} ${shown(cut(entry.kind, 40))}${entry.step ? html` ${shown(cut(entry.step, 40))}` : nothing}</span>` : nothing}</span>
      ${past ? html`<button class="button small" @click=${() => move(undefined)}>Back to now</button>` : nothing}
    </div>`;
  }
}

/** @param {string} kind */
function kindTone(kind) {
  if (/failed$/.test(kind)) return 'failed';
  if (/completed$/.test(kind)) return 'completed';
  if (/(cancelled|skipped)$/.test(kind)) return 'cancelled';
  if (/(started|restarted|resumed|retried|rerun|created)$/.test(kind)) return 'running';
  if (/paused$/.test(kind)) return 'paused';
  return 'other';
}

/** @param {Entry} entry */
function what(entry) {
  const parts = [];
  if (entry.attempt !== undefined && entry.attempt > 1) parts.push(`attempt ${entry.attempt}`);
  if (entry.items !== undefined) parts.push(counted(entry.items, 'item'));
  if (entry.from !== undefined && entry.count !== undefined) parts.push(entry.count === 1 ? `item ${entry.from}` : `items ${entry.from} to ${entry.from + entry.count - 1}`);
  if (entry.item !== undefined) parts.push(`item ${entry.item}`);
  if (entry.status) parts.push(entry.status);
  if (entry.message) parts.push(entry.message);
  if (entry.reason) parts.push(entry.reason);
  if (entry.warning) parts.push(entry.warning);
  return parts.length ? html`<span class="quiet">${shown(cut(parts.join(' · '), 300))}</span>` : nothing;
}
