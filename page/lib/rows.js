// A long list of rows of one height. Only those that can be seen are in the document, and nothing is painted over the full height: a
// browser cannot draw a million rows of it. Above a limit the scroll bar stands for more than it shows.

import { html } from '../vendor/lit-html@3.3.3/lit-html.js';
import { attached, css } from './dom.js';
import { redraw } from './redraw.js';

/** @import { TemplateResult } from '../vendor/lit-html@3.3.3/lit-html.js' */

const TALLEST = 4_000_000;
const BEFORE_AND_AFTER = 6;

/**
 * The rows that are to be drawn, and where.
 * @param {{ rows: number, rowHeight: number, top: number, height: number, tallest?: number }} view
 */
export function visibleRows({ rows, rowHeight, top, height, tallest = TALLEST }) {
  const full = rows * rowHeight;
  const space = Math.min(full, tallest);
  const reach = Math.max(0, space - height);
  const real = space === full || reach === 0 ? top : (Math.min(top, reach) / reach) * (full - height);
  const first = Math.max(0, Math.floor(real / rowHeight) - BEFORE_AND_AFTER);
  const last = Math.min(rows, Math.ceil((real + height) / rowHeight) + BEFORE_AND_AFTER);
  return { space, first, last, offset: top + (first * rowHeight - real) };
}

/**
 * Where to scroll so that a row is seen.
 * @param {{ rows: number, rowHeight: number, height: number, tallest?: number }} view
 * @param {number} row
 */
export function topOf({ rows, rowHeight, height, tallest = TALLEST }, row) {
  const full = rows * rowHeight;
  const space = Math.min(full, tallest);
  const real = Math.max(0, Math.min(full - height, row * rowHeight - height / 2));
  return full <= height ? 0 : (real / (full - height)) * (space - height);
}

export class Rows {
  #top = 0;
  #height = 400;
  /** @type {HTMLElement | undefined} */
  #element;
  #rows = 0;
  #rowHeight;
  /** @type {number | undefined} */
  #wanted;
  /** @type {ResizeObserver | undefined} */
  #observer;

  /** @param {number} rowHeight */
  constructor(rowHeight) {
    this.#rowHeight = rowHeight;
  }

  /** @param {number} row */
  reveal(row) {
    this.#wanted = row;
    if (!this.#element) return;
    const shown = visibleRows({ rows: this.#rows, rowHeight: this.#rowHeight, top: this.#top, height: this.#height });
    if (row <= shown.first + BEFORE_AND_AFTER || row >= shown.last - BEFORE_AND_AFTER - 1) {
      this.#element.scrollTop = topOf({ rows: this.#rows, rowHeight: this.#rowHeight, height: this.#height }, row);
    }
    this.#wanted = undefined;
  }

  /**
   * @param {number} rows
   * @param {(row: number) => TemplateResult} draw
   * @param {{ label: string, name?: string, role?: string }} options
   */
  template(rows, draw, { label, name = '', role = 'region' }) {
    this.#rows = rows;
    const { space, first, last, offset } = visibleRows({ rows, rowHeight: this.#rowHeight, top: this.#top, height: this.#height });
    const list = [];
    for (let row = first; row < last; row += 1) list.push(draw(row));
    return html`<div class="rows ${name}" tabindex="0" role=${role} aria-label=${label} @scroll=${this.#scroll} ${attached(this.#attach)}>
      <div class="rows-space" ${css({ height: `${space}px` })}><div class="rows-part" ${css({ transform: `translateY(${offset}px)` })}>${list}</div></div>
    </div>`;
  }

  #scroll = (/** @type {Event} */ event) => {
    this.#top = /** @type {HTMLElement} */ (event.currentTarget).scrollTop;
    redraw();
  };

  #attach = (/** @type {HTMLElement} */ element) => {
    this.#element = element;
    this.#observer?.disconnect();
    this.#observer = new ResizeObserver(() => {
      if (Math.abs(element.clientHeight - this.#height) < 2) return;
      this.#height = element.clientHeight;
      redraw();
    });
    this.#observer.observe(element);
    element.scrollTop = this.#top;
    if (this.#wanted !== undefined) this.reveal(this.#wanted);
  };

  stop() {
    this.#observer?.disconnect();
  }
}
