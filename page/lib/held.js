// A list that stands still while it is used: rows do not move under the pointer or the keyboard. What came meanwhile is counted, and what
// has changed in a row is shown in its place.

import { html, nothing } from '../vendor/lit-html@3.3.3/lit-html.js';
import { redraw } from './redraw.js';
import { count } from './text.js';

/**
 * @template Row
 * @typedef {object} Answer
 * @property {string} question what was asked
 * @property {Row[]} rows in their order, perhaps with some behind the page
 * @property {number} most of so many rows a page consists
 * @property {string} [next] where the rows behind these begin
 */

/** How many pages are asked for while a list is held: its rows are found behind those that came. */
const PAGES_HELD = 4;

/** @template Row */
export class Held {
  /** What is shown. @type {Row[]} */
  rows = [];
  /** Where the next page begins. @type {string | undefined} */
  next;
  /** How many came since. */
  fresh = 0;
  /** Rows that are not in the list any more. @type {Set<string>} */
  gone = new Set();
  /** Whether more came than were looked at. */
  #many = false;
  /** The row that the keyboard is on, or was on last. */
  #at = '';
  #pointed = false;
  #focused = false;
  /** The newest is wanted, whether the list is used or not. */
  #wanted = false;
  #most = 0;
  /** @type {string | undefined} */
  #question;
  /** @type {Answer<Row> | undefined} */
  #newest;
  /** @type {Element | undefined} */
  #element;
  #idOf;
  #again;
  #also;

  /**
   * @param {(row: Row) => string} idOf
   * @param {() => void} again asks for the list anew
   * @param {() => boolean} [also] whether it is used in another way
   */
  constructor(idOf, again, also = () => false) {
    this.#idOf = idOf;
    this.#again = again;
    this.#also = also;
  }

  /** Elements may go without a word to those who listen. */
  get #used() {
    this.#pointed &&= this.#element?.matches(':hover') === true;
    this.#focused &&= this.#element?.contains(document.activeElement) === true;
    return this.#pointed || this.#focused || this.#also();
  }

  /**
   * How many rows to ask for.
   * @param {string} question
   * @param {number} page
   */
  most(question, page) {
    return question === this.#question && this.#used && !this.#wanted ? PAGES_HELD * page : page;
  }

  /**
   * The rows to be shown.
   * @param {Answer<Row> | undefined} answer the newest
   */
  take(answer) {
    if (!answer || answer === this.#newest) return this.rows;
    this.#newest = answer;
    const whole = answer.rows.length <= answer.most;
    if (answer.question !== this.#question || (whole && (this.#wanted || !this.#used))) {
      Object.assign(this, { rows: answer.rows.slice(0, answer.most), next: whole ? answer.next : undefined, fresh: 0, gone: new Set() });
      this.#question = answer.question;
      this.#most = answer.most;
      this.#wanted = false;
      this.#many = false;
    } else this.#compare(answer.rows, answer.next !== undefined);
    return this.rows;
  }

  /**
   * @param {Row[]} newest
   * @param {boolean} more whether there are rows behind these
   */
  #compare(newest, more) {
    const places = new Map(newest.map((row, place) => [this.#idOf(row), place]));
    const ids = this.rows.map(this.#idOf);
    const last = ids.findLastIndex((id) => places.has(id));
    // What is behind the last one that was found again may be behind the answer.
    this.gone = new Set(ids.filter((id, index) => !places.has(id) && (!more || index < last)));
    const end = last < 0 ? newest.length : (places.get(ids[last]) ?? 0);
    const shown = new Set(ids);
    // Behind a full page are rows of the next one.
    const ends = this.rows.length < this.#most ? newest.length : end;
    this.fresh = newest.filter((row, place) => place < ends && !shown.has(this.#idOf(row))).length;
    this.#many = last < 0 && more;
    this.rows = this.rows.map((row, index) => newest[places.get(ids[index]) ?? -1] ?? row);
  }

  /** The number of rows that came: it takes them over. */
  button() {
    return this.fresh ? html`<button class="button small fresh" title="The list stands still while it is used: show them" @click=${this.#release}>${this.#many ? 'more than ' : ''}${count(this.fresh)} new</button>` : nothing;
  }

  #release = () => {
    this.#wanted = true;
    this.#again();
  };

  /** Begins or ends a use. @param {Event} event */
  #use(event) {
    this.#element = /** @type {Element} */ (event.currentTarget);
    const uses = () => this.#pointed || this.#focused || this.#also();
    const before = uses();
    switch (event.type) {
      case 'pointerenter':
        // A finger stays nowhere.
        this.#pointed = /** @type {PointerEvent} */ (event).pointerType !== 'touch';
        break;
      case 'pointerleave':
        this.#pointed = false;
        break;
      case 'focusin':
        this.#focused = true;
        this.#at = /** @type {Element} */ (event.target).closest('[data-row]')?.getAttribute('data-row') ?? this.#at;
        break;
      default:
        this.#focused = this.#element.contains(/** @type {Node | null} */ (/** @type {FocusEvent} */ (event).relatedTarget));
    }
    if (before && !uses()) this.#again();
    redraw();
  }

  /** For what happens at the element around the rows: `@pointerenter`, `@pointerleave`, `@focusin`, `@focusout`. */
  hold = (/** @type {Event} */ event) => this.#use(event);

  /** Asks anew where nothing else keeps it any more. */
  letGo() {
    if (!this.#used) this.#again();
  }

  /** The row that the keyboard is on, while it is. */
  get at() {
    return this.#focused && this.#used ? this.#at : '';
  }

  /** Where Tab leads to among the rows. */
  get entry() {
    const ids = this.rows.map(this.#idOf);
    return ids.includes(this.#at) ? this.#at : (ids[0] ?? '');
  }

  /**
   * The row so many behind the one that the keyboard is on. Who comes back begins where they were.
   * @param {number} by
   */
  beside(by) {
    const ids = this.rows.map(this.#idOf);
    const now = ids.indexOf(this.#at);
    return ids[now < 0 || !this.at ? Math.max(0, now) : Math.max(0, Math.min(ids.length - 1, now + by))];
  }

  /** Moves the keyboard to a row. @param {string | undefined} id */
  focus(id) {
    /** @type {HTMLElement | null} */ (id ? document.querySelector(`[data-row="${CSS.escape(id)}"]`) : null)?.focus();
  }

  /** Back to the row that the keyboard was on. */
  back() {
    this.focus(this.rows.map(this.#idOf).find((id) => id === this.#at));
  }
}
