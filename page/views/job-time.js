// The timeline of a job: a row for each step, a bar for each attempt. Stretches in which nothing happens are folded.

import { html, nothing } from '../vendor/lit-html@3.3.3/lit-html.js';
import { labelled, segments, ticks, xOf } from '../lib/axis.js';
import { attached, css } from '../lib/dom.js';
import { redraw } from '../lib/redraw.js';
import { Rows } from '../lib/rows.js';
import { sign, tone } from '../lib/states.js';
import { count, few, plain, shown } from '../lib/text.js';
import { clock, millis, span } from '../lib/time.js';
import { childBar, doneOf } from './job-graph.js';

/** @import { Entry, Job, Step } from '../lib/types.js' */

/** @typedef {{ from: number, to: number, state: string, open: boolean, attempt: number, reason?: string }} Bar */

const ROW = 34;
const FEW = 14;
/** How much room a mark of the axis needs, in pixels. */
const MARK = 62;

/**
 * The attempts of each step, by the entries of the record. A step without entries here has one bar, by its own times.
 * @param {Step[]} steps
 * @param {Entry[]} entries
 * @param {number} now
 * @returns {Map<string, Bar[]>}
 */
export function barsOf(steps, entries, now) {
  /** @type {Map<string, Bar[]>} */
  const bars = new Map();
  for (const entry of entries) {
    if (!entry.step || !entry.kind.startsWith('step.')) continue;
    const at = millis(entry.at);
    const list = bars.get(entry.step) ?? [];
    const last = list.at(-1);
    const close = (/** @type {string} */ state) => {
      if (last?.open) Object.assign(last, { to: at, state, open: false, reason: entry.reason });
    };
    switch (entry.kind) {
      case 'step.started':
      case 'step.restarted':
        close('failed');
        list.push({ from: at, to: now, state: 'running', open: true, attempt: entry.attempt ?? list.length + 1 });
        bars.set(entry.step, list);
        break;
      case 'step.completed':
        close('completed');
        break;
      case 'step.failed':
      case 'step.attempt-failed':
        close('failed');
        break;
      case 'step.cancelled':
        close('cancelled');
        break;
      default:
    }
  }
  for (const step of steps) {
    const list = bars.get(step.name);
    if (list?.length) {
      const last = list[list.length - 1];
      if (last.open && step.state !== 'running') Object.assign(last, { open: false, state: step.state, to: step.endTime ? millis(step.endTime) : last.to });
    } else if (step.startTime) {
      const from = millis(step.startTime);
      const running = step.state === 'running';
      const to = step.endTime ? millis(step.endTime) : running ? now : step.elapsed ? from + step.elapsed / 1e6 : from;
      bars.set(step.name, [{ from, to: Math.max(from, to), state: step.state, open: running, attempt: step.attempt }]);
    }
  }
  return bars;
}

export class TimePanel {
  #rows = new Rows(ROW);
  /** Which part of the axis is shown, as shares of it. */
  #from = 0;
  #to = 1;
  /** @type {Map<string, Bar[]>} */
  #bars = new Map();
  /** How wide the axis is, in pixels. */
  #width = 400;
  #watch = new ResizeObserver(([{ contentRect: { width } }]) => {
    if (width === this.#width || !width) return;
    this.#width = width;
    redraw();
  });
  #measure = (/** @type {HTMLElement} */ element) => this.#watch.observe(element);

  stop() {
    this.#rows.stop();
    this.#watch.disconnect();
  }

  /** @param {string} key */
  key(key) {
    const width = this.#to - this.#from;
    const middle = (this.#to + this.#from) / 2;
    let next = width;
    let at = middle;
    if (key === 'w') next = Math.max(0.002, width / 1.5);
    else if (key === 's') next = Math.min(1, width * 1.5);
    else if (key === 'a') at = middle - width / 6;
    else if (key === 'd') at = middle + width / 6;
    else return false;
    at = Math.min(1 - next / 2, Math.max(next / 2, at));
    this.#from = at - next / 2;
    this.#to = at + next / 2;
    redraw();
    return true;
  }

  /**
   * @param {{ job: Job, steps: Step[], entries: Entry[], now: number, chosen: string | undefined, link: (step: string) => string, fold: boolean, toggle: string, external: (name: string) => boolean }} of
   */
  template({ job, steps, entries, now, chosen, link, fold, toggle, external }) {
    const begin = millis(job.created);
    const bars = barsOf(steps, entries, now);
    const ends = [...bars.values()].flat().map((bar) => bar.to);
    const end = Math.max(job.ended ? millis(job.ended) : job.state === 'running' || job.state === 'paused' ? now : 0, ...ends, begin + 1);
    // A worker at work is no idle time; a step that waits for a person is, unless there is nothing else in the job.
    const worked = [...bars].some(([name, list]) => !external(name) && list.some((bar) => !bar.open || end - bar.from <= 3_600_000));
    const busy = [...bars].flatMap(([name, list]) => list.flatMap((bar) => (worked && (external(name) || (bar.open && end - bar.from > 3_600_000)) ? [{ from: bar.from, to: bar.from }, { from: bar.to, to: bar.to }] : [{ from: bar.from, to: bar.to }])));
    const axis = segments(busy, { from: begin, to: end }, fold && worked);
    this.#bars = bars;
    const folds = axis.filter((part) => part.folded);
    const zoomed = this.#to - this.#from < 0.999;
    const x = (/** @type {number} */ at) => (100 * (xOf(axis, at) - this.#from)) / (this.#to - this.#from);
    const share = (/** @type {number} */ value) => (100 * (value - this.#from)) / (this.#to - this.#from);
    const marks = ticks(axis, Math.max(0.15, MARK / this.#width) * (this.#to - this.#from)).map(({ x: at, offset }) => ({ at: share(at), text: offset === 0 ? '0' : span(offset) })).filter(({ at }) => at >= 0 && at <= 97);
    const foldMarks = folds.map((part) => ({ at: share(part.x + part.width / 2), part })).filter(({ at }) => at >= 0 && at <= 100);
    const labels = labelled(marks, foldMarks.map(({ at }) => at), this.#width);
    const draw = (/** @type {number} */ index) => this.#row(steps[index], x, chosen, link);
    return html`<div class="time">
      <div class="time-head">
        <div class="time-axis" aria-hidden="true"><div class="time-inner" ${attached(this.#measure)}>${marks.map(({ at, text }, index) => (labels[index] ? html`<span class="time-tick" ${css({ left: `${at}%` })}>${text}</span>` : nothing))}${foldMarks.map(({ at, part }) => html`<span class="time-fold-mark" title=${`${span(part.to - part.from)} in which nothing happens`} ${css({ left: `${at}%` })}>//</span>`)}</div></div>
      </div>
      <div class="time-body">
        <div class="time-lines" aria-hidden="true"><div class="time-inner">${marks.map(({ at }) => html`<i ${css({ left: `${at}%` })}></i>`)}${folds.map((part) => html`<b ${css({ left: `${share(part.x)}%`, width: `${share(part.x + part.width) - share(part.x)}%` })}></b>`)}</div></div>
        ${steps.length <= FEW ? html`<div class="time-rows" role="group" aria-label="Steps in time">${steps.map((_, index) => draw(index))}</div>` : this.#rows.template(steps.length, draw, { label: 'Steps in time', name: 'time-rows windowed' })}
      </div>
      <div class="time-foot"><span class="quiet">${clock(begin)} to ${clock(end)}, ${span(end - begin)}${folds.length ? html`; ${folds.length === 1 ? 'one idle stretch' : `${folds.length} idle stretches`} folded (${span(folds.reduce((sum, part) => sum + part.to - part.from, 0))})` : nothing}</span><span class="space"></span>${zoomed ? html`<button class="mini" @click=${() => { this.#from = 0; this.#to = 1; redraw(); }}>All of it</button>` : nothing}${folds.length || (!fold && worked) ? html`<a class="mini" href=${toggle}>${fold ? 'Unfold idle time' : 'Fold idle time'}</a>` : nothing}</div>
    </div>`;
  }

  /**
   * @param {Step} step
   * @param {(at: number) => number} x
   * @param {string | undefined} chosen
   * @param {(step: string) => string} link
   */
  #row(step, x, chosen, link) {
    const bars = this.#bars.get(step.name) ?? [];
    const total = bars.length ? bars[bars.length - 1].to - bars[0].from : 0;
    const last = bars.at(-1);
    const right = last ? x(last.to) : 0;
    const label = last ? html`${span(total)}${bars.length > 1 ? html`<span class="wide-inline">, ${bars.length} attempts</span>` : nothing}` : '';
    const hint = [bars.length > 1 ? `${bars.length} attempts` : '', step.children ? `${count(doneOf(step.children))} of ${count(step.children.items)} items done` : ''].filter(Boolean).join(', ');
    return html`<a class="time-row ${chosen === step.name ? 'chosen' : ''}" href=${link(step.name)}>
      <span class="time-name">${sign(step.state)}<span>${shown(step.name)}</span>${bars.length ? html`<span class="sr">${shown(step.state)}</span>` : nothing}</span>
      <span class="time-track"><span class="time-inner">${bars.map((bar) => {
        const left = Math.max(-1, x(bar.from));
        const end = Math.min(101, x(bar.to));
        if (end < 0 || left > 100) return nothing;
        return html`<span class="bar ${tone(bar.state)} ${bar.open ? 'open' : ''}" title=${plain(`attempt ${bar.attempt}: ${clock(bar.from, { fraction: true })} to ${bar.open ? 'now' : clock(bar.to, { fraction: true })}, ${span(bar.to - bar.from)}${bar.reason ? `. ${bar.reason}` : ''}`)} ${css({ left: `${left}%`, width: `max(3px, ${end - left}%)` })}>${step.children && bars.length === 1 && step.children.items ? childBar(step.children) : nothing}</span>`;
      })}${!bars.length ? html`<span class="bar-label idle">${shown(step.state)}</span>` : nothing}</span>${last && right > -5 && right <= 101 ? html`<span class="bar-text"><i ${css({ '--right': right / 100 })}></i><span class="bar-label" title=${plain(hint)}>${label}${step.children ? html` · ${few(doneOf(step.children))}/${few(step.children.items)}` : nothing}</span></span>` : nothing}</span>
    </a>`;
  }

}
