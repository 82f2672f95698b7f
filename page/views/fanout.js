// A fan-out: how far it is, a map of all its items, and its failures, grouped by reason and one by one.

import { html, nothing } from '../vendor/lit-html@3.3.3/lit-html.js';
import { live } from '../vendor/lit-html@3.3.3/directives/live.js';
import { repeat } from '../vendor/lit-html@3.3.3/directives/repeat.js';
import { address, get, Problem, send } from '../lib/api.js';
import { refusal, setQuery, tell } from '../lib/app.js';
import { attached, css, scrolls } from '../lib/dom.js';
import { Held } from '../lib/held.js';
import { icon } from '../lib/icons.js';
import { cells, countIn, ENDED_STATES, FAILED, grid, ITEM_STATES, itemWord, mapAt, nextIn } from '../lib/itemmap.js';
import { reasonText, shortReason } from '../lib/reason.js';
import { redraw } from '../lib/redraw.js';
import { changed, link } from '../lib/route.js';
import { may } from '../lib/shared.js';
import { Source } from '../lib/source.js';
import { badge, settled, sign } from '../lib/states.js';
import { count, counted, named, plain, share, shortId, shown } from '../lib/text.js';
import { millis, span } from '../lib/time.js';
import { definitionOf } from './job.js';
import { operate, OPERATIONS, rerunItems, stepsOf } from './job-operations.js';
import { endedWith, itemsToRerun } from './job-step.js';

/** @import { Child, Items, Job, Reasons, Step } from '../lib/types.js' */
/** @import { Answer } from '../lib/held.js' */
/** @import { Route } from '../lib/route.js' */
/** @import { View } from '../lib/app.js' */

const PAGE = 50;

/**
 * @param {Route} route
 * @returns {View}
 */
export function fanoutView(route) {
  return new Fanout(route.path[1], route.path[3], route);
}

class Fanout {
  page = 'jobs';
  #id;
  #step;
  #route;
  /** @type {Source<Job>} */
  #job;
  /** @type {Source<Items>} */
  #items;
  /** @type {Source<Uint8Array>} */
  #map;
  /** When each item began and ended: asked for once the map is looked at as it was. @type {Source<Uint32Array>} */
  #times;
  /** How many milliseconds after the step's beginning the map is shown; none: as it is. @type {number | undefined} */
  #then;
  /** @type {{ key: string, map: Uint8Array } | undefined} */
  #past;
  /** @type {Source<Reasons>} */
  #reasons;
  /** @type {Source<{ children: Child[] } & Answer<Child>>} */
  #children;
  #rows = new Held((/** @type {Child} */ child) => child.job, () => void this.#children.refresh());
  /** @type {string[]} */
  #before = [];
  #timer;
  #mapTimer = 0;
  #dark = matchMedia('(prefers-color-scheme: dark)');
  /** How many had ended, and when, for the rate. @type {{ at: number, ended: number }[]} */
  #seen = [];
  /** @type {HTMLCanvasElement | undefined} */
  #canvas;
  #width = 0;
  #drawn = '';
  /** The cell under the pointer. */
  #hover = -1;
  /** The item that was chosen: in another width it is in another cell. */
  #item = -1;
  /** @type {{ job: string, item: number } | undefined} */
  #picked;
  #wanted = -1;
  /** Child jobs that were asked for, by item. @type {Map<number, Child>} */
  #known = new Map();
  /** @type {ResizeObserver | undefined} */
  #observer;

  /**
   * @param {string} id
   * @param {string} step
   * @param {Route} route
   */
  constructor(id, step, route) {
    this.#id = id;
    this.#step = step;
    this.#route = route;
    this.#job = new Source((signal) => get(['job', id], { view: 'light' }, signal));
    this.#items = new Source((signal) => get(['job', id, 'step', step, 'items'], {}, signal));
    this.#map = new Source(async (signal) => new Uint8Array(await (await send(address(['job', id, 'step', step, 'items'], { format: 'map' }), { signal })).arrayBuffer()));
    this.#times = new Source(async (signal) => new Uint32Array(await (await send(address(['job', id, 'step', step, 'items'], { format: 'times' }), { signal })).arrayBuffer()));
    this.#reasons = new Source((signal) => get(['job', id, 'step', step, 'items'], { format: 'reasons' }, signal));
    this.#children = new Source(async (signal) => {
      const after = this.#route.query.get('after') ?? '';
      const question = `${this.#state} ${after}`;
      /** @type {{ children: Child[], next?: string }} */
      const { children, next } = await get(['job', id, 'children'], { step, state: this.#childState, limit: this.#rows.most(question, PAGE), after }, signal);
      return { children, question, rows: children, most: PAGE, next };
    });
    void this.#look().then(() => {
      // What was cut off is known by the job.
      if (this.#state === 'cancelled') void this.#children.refresh();
    });
    void this.#map.refresh();
    void this.#children.refresh();
    this.#timer = setInterval(() => {
      if (!document.hidden && this.#running) void this.#look();
    }, 1000);
    document.addEventListener('theme', this.#theme);
    this.#dark.addEventListener('change', this.#theme);
  }

  stop() {
    clearInterval(this.#timer);
    document.removeEventListener('theme', this.#theme);
    this.#dark.removeEventListener('change', this.#theme);
    this.#observer?.disconnect();
    for (const source of [this.#job, this.#items, this.#map, this.#times, this.#reasons, this.#children]) source.stop();
  }

  #theme = () => {
    this.#drawn = '';
    redraw();
  };

  get #state() {
    const asked = this.#route.query.get('items') ?? 'failed';
    return ['failed', 'running', 'completed', 'cancelled', 'all'].includes(asked) ? (asked === 'all' ? '' : asked) : 'failed';
  }

  /** The state of the child jobs that are listed. Those that a failed job cut off have failed with it, all others were cancelled. */
  get #childState() {
    const job = this.#job.data;
    if (this.#state !== 'cancelled' || job?.state !== 'failed') return this.#state;
    const step = this.#shownStep;
    return millis(job.ended) - millis(step?.endTime ?? job.ended) <= 1 ? 'failed' : 'cancelled';
  }

  get #running() {
    return !this.#job.data || this.#shownStep?.state === 'running';
  }

  /** The step as it is shown. */
  get #shownStep() {
    return this.#job.data && settled(this.#job.data).steps.find((one) => one.name === this.#step);
  }

  /** The states of items, by their numbers on the map; in the past of an ended step they ran. */
  get #states() {
    return this.#running || this.#then !== undefined ? ITEM_STATES : ENDED_STATES;
  }

  /** How many items are in each state, as words. @param {readonly number[]} counts by their numbers on the map */
  #counted(counts) {
    return this.#states.map((state, index) => (counts[index] ? html`<span class="map-count">${sign(state)}${count(counts[index])} ${itemWord(state, this.#states === ENDED_STATES)}</span>` : nothing));
  }

  async #look() {
    const failedBefore = this.#figures()?.failed;
    const ranBefore = this.#job.data !== undefined && this.#running;
    await Promise.all([this.#job.refresh(), this.#items.error?.notHere ? undefined : this.#items.refresh()]);
    const figures = this.#figures();
    if (!figures) return;
    const now = Date.now();
    this.#seen.push({ at: now, ended: figures.completed + figures.failed });
    while (this.#seen.length > 2 && this.#seen[0].at < now - 15_000) this.#seen.shift();
    if (figures.failed !== failedBefore) {
      if (!this.#reasons.error?.notHere) void this.#reasons.refresh();
      if (this.#state === 'failed') void this.#children.refresh();
    }
    if (ranBefore && !this.#running) {
      // The last of it.
      void this.#map.refresh();
      void this.#children.refresh();
    }
    // The map of a million items is 250 KB: it is asked for more rarely than the counts.
    if (now - this.#mapTimer > 3000 && this.#running && !this.#map.error?.notHere) {
      this.#mapTimer = now;
      void this.#map.refresh();
    }
    redraw();
  }

  /** @returns {Items | undefined} */
  #figures() {
    if (this.#items.data) return this.#items.data;
    const children = this.#job.data?.steps.find((one) => one.name === this.#step)?.children;
    return children && { items: children.items, waiting: children.waiting ?? children.items - children.started, running: children.running ?? children.started - children.ended, completed: children.completed ?? children.ended - children.failed, failed: children.failed, cancelled: children.cancelled ?? 0 };
  }

  /** @param {Route} route */
  update(route) {
    const before = `${this.#state} ${this.#route.query.get('after') ?? ''}`;
    const state = this.#state;
    this.#route = route;
    if (this.#state !== state) this.#before = [];
    if (`${this.#state} ${route.query.get('after') ?? ''}` !== before) void this.#children.restart();
    redraw();
  }

  ready() {
    return (this.#job.data !== undefined || this.#job.error !== undefined) && (this.#map.data !== undefined || this.#map.error !== undefined);
  }

  title() {
    return plain(`${this.#step} of ${this.#job.data?.label ?? shortId(this.#id)}`);
  }

  live() {
    return this.#running ? 'every second' : 'Ended';
  }

  template() {
    const job = this.#job.data;
    const step = this.#shownStep;
    if (!job) return html`<div class="empty"><h1>${this.#job.error ? 'The job cannot be shown' : ''}</h1><p>${shown(this.#job.error?.message ?? '')}</p></div>`;
    const figures = this.#figures();
    if (!step || !figures) return html`<div class="empty"><h1>Not a fan-out</h1><p>Step <b>${shown(this.#step)}</b> of this job has no child jobs${step?.state === 'waiting' ? ' yet: it waits' : ''}.</p><a class="button" href=${link(['job', this.#id], { step: this.#step })}>To the job</a></div>`;
    const ended = figures.completed + figures.failed;
    const states = this.#running ? ITEM_STATES : ENDED_STATES;
    const part = (/** @type {number} */ value) => css({ width: `${(100 * value) / Math.max(1, figures.items)}%`, 'min-width': value ? '3px' : '0' });
    return html`<div class="fanout">
      <header class="job-head">
        <div class="job-name">
          <nav class="crumbs" aria-label="Where this is"><a href=${link(['jobs'], { workflow: job.workflow })}>${shown(job.workflow)}</a><span class="quiet">/</span><a href=${link(['job', job.uuid], { step: this.#step })}>${named(job.label, job.uuid)}</a></nav>
          <div class="job-title"><h1>${shown(this.#step)}</h1>${badge(step.state)}<span class="quiet">${counted(figures.items, 'item')}</span></div>
        </div>
        <div class="job-actions">${OPERATIONS.filter((operation) => may() && operation.possible(job) && !job.parent).map((operation) => html`<button class="button" @click=${() => operate(job, operation, () => void this.#look())}>${icon(operation.icon)}${operation.label}${operation.asks ? '…' : ''}</button>`)}${this.#again(job, step)}<a class="button" href=${link(['job', job.uuid], { step: this.#step })}>To the job</a></div>
      </header>
      ${refusal(this.#job.problem)}
      <section class="panel fan-head" aria-label="How far it is">
        <div class="fan-bar tall" role="img" aria-label=${states.map((state) => `${figures[state]} ${itemWord(state, !this.#running)}`).join(', ')}><i class="completed" ${part(figures.completed)}></i><i class="failed" ${part(figures.failed)}></i><i class="running" ${part(figures.running)}></i><i class="cancelled" ${part(figures.cancelled)}></i></div>
        <dl class="fan-figures">
          <div><dt>ended</dt><dd>${share(ended, figures.items)}</dd></div>
          ${states.toReversed().map((state) => html`<div><dt>${sign(state)}${itemWord(state, !this.#running)}</dt><dd class=${state === 'failed' && figures.failed ? 'failed-text' : ''}>${count(figures[state])}</dd></div>`)}
          ${this.#rate(figures)}
          ${figures.tolerate !== undefined ? html`<div><dt>may fail</dt><dd>${shown(figures.tolerate)}${figures.tolerated !== undefined && String(figures.tolerated) !== String(figures.tolerate) ? html` <span class="quiet">(${count(figures.tolerated)})</span>` : nothing}</dd></div>` : nothing}
          ${figures.window !== undefined ? html`<div><dt>at once</dt><dd>${count(figures.window)}</dd></div>` : nothing}
        </dl>
      </section>
      <div class="fan-parts">
        <section class="panel" aria-label="Map of all items">${this.#mapPanel(figures)}</section>
        <section class="panel" aria-label="Failures by reason">${this.#reasonPanel(figures)}</section>
      </div>
      ${this.#list(figures)}
    </div>`;
  }

  /** @param {Job} job @param {Step} step */
  #again(job, step) {
    const failed = may() ? itemsToRerun(job, step) : 0;
    if (!failed) return nothing;
    return html`<button class="button" @click=${async () => {
      // Its dependents are told if they can be.
      const definition = job.definition ? await definitionOf(job.definition).catch(() => undefined) : undefined;
      rerunItems(job, stepsOf(job, definition), this.#step, failed, () => void this.#look());
    }}>${icon('retry')}Run the ${counted(failed, 'failed item')} again…</button>`;
  }

  /** @param {Items} figures */
  #rate(figures) {
    const first = this.#seen[0];
    const last = this.#seen.at(-1);
    if (!this.#running || !first || !last || last.at - first.at < 2500) return nothing;
    const rate = ((last.ended - first.ended) * 1000) / (last.at - first.at);
    const left = figures.items - last.ended;
    return html`<div><dt>rate</dt><dd>${rate >= 10 ? count(Math.round(rate)) : rate.toFixed(1)}/s</dd></div>${rate > 0 ? html`<div><dt>left, about</dt><dd>${span((left / rate) * 1000)}</dd></div>` : nothing}`;
  }

  /** @param {Items} figures */
  #mapPanel(figures) {
    const { data, error } = this.#map;
    if (!data) return html`<div class="panel-title"><h2>Map</h2></div><p class="calm">${error ? (error.notHere ? 'This manager does not tell the state of each item. The counts and the list below do.' : shown(error.message)) : ''}</p>`;
    const { each } = this.#grid(figures);
    const at = this.#marked(each);
    let text = html`<span class="quiet">a cell is ${counted(each, 'item')}, shown by its worst: one failure is always seen</span>`;
    if (at >= 0) {
      const from = at * each;
      const to = Math.min(figures.items, from + each);
      const counts = countIn(this.#shown(figures) ?? data, from, to);
      text = html`<span>${to - from === 1 ? `item ${count(from)}` : `items ${count(from)} to ${count(to - 1)}`}: ${this.#counted(counts)}</span>`;
    }
    return html`<div class="panel-title"><h2>Map</h2><span class="space"></span>${figures.failed ? html`<button class="mini" @click=${() => this.#nextFailed()}>Next failed <kbd>f</kbd></button>` : nothing}</div>
      <div class="map-body"><div class="map-frame" ${attached(this.#frame)}><canvas class="map" tabindex="0" role="img" aria-label=${plain(`Map of ${figures.items} items: ${this.#states.map((state) => `${figures[state]} ${itemWord(state, !this.#running)}`).join(', ')}. The list below has the failed ones.`)} @pointermove=${this.#point} @pointerleave=${() => { this.#hover = -1; this.#drawn = ''; redraw(); }} @click=${this.#click} @keydown=${this.#mapKey} ${attached((element) => { this.#canvas = /** @type {HTMLCanvasElement} */ (element); this.#drawn = ''; redraw(); })}></canvas></div>
      <p class="map-text" aria-live="polite">${text}${this.#picked ? html` <a class="button small" href=${link(['job', this.#picked.job])}>Open item ${count(this.#picked.item)}</a>` : nothing}</p>${this.#scrub(figures)}</div>`;
  }

  /** How long the step has run, in milliseconds. */
  #length() {
    const step = this.#job.data?.steps.find((one) => one.name === this.#step);
    return step?.startTime ? Math.max(1, Math.ceil((step.endTime ? millis(step.endTime) : Date.now()) - millis(step.startTime))) : 1;
  }

  /**
   * The map as it is, or as it was.
   * @param {Items} figures
   */
  #shown(figures) {
    const map = this.#map.data;
    const times = this.#times.data;
    if (!map || this.#then === undefined || !times) return map;
    const key = `${this.#map.at} ${this.#times.at} ${this.#then}`;
    if (this.#past?.key !== key) this.#past = { key, map: mapAt(map, times, figures.items, this.#then) };
    return this.#past.map;
  }

  /** @param {Items} figures */
  #scrub(figures) {
    if (this.#times.error?.notHere) return nothing;
    const length = this.#length();
    const then = Math.min(this.#then ?? length, length);
    const map = this.#shown(figures);
    const counts = this.#then !== undefined && this.#times.data && map ? countIn(map, 0, figures.items) : undefined;
    const text = this.#then === undefined ? 'as it is' : then ? `${span(then)} after the beginning` : 'at the beginning';
    return html`<div class="map-scrub ${this.#then === undefined ? '' : 'past'}"><div class="slider-track"><input type="range" min="0" max=${length} step="1" .value=${live(String(then))} aria-label="The map at a time" aria-valuetext=${plain(text)} @input=${(/** @type {InputEvent} */ event) => this.#scrubTo(Number(/** @type {HTMLInputElement} */ (event.target).value), length)}></div>
      <p class="small">${this.#then === undefined ? html`<span class="quiet">Move it to see the map as it was</span>` : html`<b>${shown(text)}</b>${counts ? this.#counted(counts) : nothing}<span class="space"></span><button class="mini" @click=${() => this.#scrubTo(length, length)}>As it is</button>`}</p></div>`;
  }

  /**
   * @param {number} then
   * @param {number} length
   */
  #scrubTo(then, length) {
    this.#then = then >= length ? undefined : then;
    // What has ended stays as it was: while the step runs the times are asked for anew only when the map is.
    if (this.#then !== undefined && (!this.#times.data || (this.#running && this.#times.at < this.#map.at))) void this.#times.refresh();
    this.#drawn = '';
    redraw();
  }

  #frame = (/** @type {HTMLElement} */ element) => {
    this.#observer?.disconnect();
    this.#observer = new ResizeObserver(() => {
      if (element.clientWidth === this.#width) return;
      this.#width = element.clientWidth;
      this.#drawn = '';
      redraw();
    });
    this.#observer.observe(element);
  };

  /** @param {Items} figures */
  #grid(figures) {
    const width = this.#width || 600;
    return grid(figures.items, width, width < 500 ? 300 : 330, 6);
  }

  /**
   * The cell that is marked, or -1.
   * @param {number} each
   */
  #marked(each) {
    return this.#hover >= 0 ? this.#hover : Math.floor(this.#item / each);
  }

  drawn() {
    const figures = this.#figures();
    const map = figures && this.#shown(figures);
    const canvas = this.#canvas;
    if (!figures || !map || !canvas?.isConnected || !this.#width) return;
    const { cell, columns, rows, each } = this.#grid(figures);
    const mark = this.#marked(each);
    const key = `${this.#map.at} ${this.#running} ${this.#past?.key} ${this.#then} ${cell} ${columns} ${each} ${figures.items} ${mark}`;
    if (key === this.#drawn) return;
    this.#drawn = key;
    const ratio = Math.min(2, devicePixelRatio || 1);
    const width = columns * cell;
    const height = rows * cell;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      canvas.style.setProperty('width', `${width}px`);
      canvas.style.setProperty('height', `${height}px`);
    }
    const context = canvas.getContext('2d');
    if (!context) return;
    // A colour that depends on the theme is only known as the colour of something.
    const colourOf = (/** @type {string} */ name) => {
      canvas.style.setProperty('color', `var(${name})`);
      return getComputedStyle(canvas).color;
    };
    const colours = this.#states.map((state) => colourOf(`--map-${state}`));
    const markColour = colourOf('--map-mark');
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    const { worst, strength } = cells(map, figures.items, each);
    const gap = cell >= 5 ? 1 : 0;
    for (let index = 0; index < worst.length; index += 1) {
      context.globalAlpha = strength[index];
      context.fillStyle = colours[worst[index]];
      // What has failed is larger as well, so that it is seen without the colour.
      const size = worst[index] === FAILED ? cell : cell - gap;
      context.fillRect((index % columns) * cell, Math.floor(index / columns) * cell, size, size);
    }
    context.globalAlpha = 1;
    if (mark >= 0 && mark < worst.length) {
      context.strokeStyle = markColour;
      context.lineWidth = 2;
      context.strokeRect((mark % columns) * cell - 1, Math.floor(mark / columns) * cell - 1, cell + 1, cell + 1);
    }
  }

  /** @param {PointerEvent | MouseEvent} event */
  #cellAt(event) {
    const figures = this.#figures();
    if (!figures || !this.#canvas) return -1;
    const { cell, columns, cells: many } = this.#grid(figures);
    const box = this.#canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left) / cell);
    const index = Math.floor((event.clientY - box.top) / cell) * columns + column;
    return column >= 0 && column < columns && index >= 0 && index < many ? index : -1;
  }

  #point = (/** @type {PointerEvent} */ event) => {
    const at = this.#cellAt(event);
    if (at === this.#hover) return;
    this.#hover = at;
    redraw();
  };

  #click = (/** @type {MouseEvent} */ event) => {
    const figures = this.#figures();
    const map = this.#map.data;
    const at = this.#cellAt(event);
    if (!figures || !map || at < 0) return;
    const { each } = this.#grid(figures);
    const from = at * each;
    this.#item = from;
    const to = Math.min(figures.items, from + each);
    // The most telling item of the cell: a failed one, else one that runs, else one that is done.
    for (const state of [3, 1, 2]) {
      const item = nextIn(map, figures.items, from, state);
      if (item >= from && item < to) {
        void this.#pick(item, state);
        return;
      }
    }
    this.#wanted = -1;
    this.#picked = undefined;
    redraw();
  };

  /**
   * Finds the child job of an item: among those that are listed, else by asking for those in its state.
   * @param {number} item
   * @param {number} state
   */
  async #pick(item, state) {
    this.#picked = undefined;
    this.#wanted = item;
    redraw();
    let found = this.#children.data?.children.find((child) => child.item === item) ?? this.#known.get(item);
    if (!found) {
      try {
        /** @type {{ children: Child[] }} */
        const { children } = await get(['job', this.#id, 'children'], { step: this.#step, state: (this.#running ? ITEM_STATES : ENDED_STATES)[state], limit: 10_000 });
        for (const child of children) this.#known.set(child.item, child);
        found = this.#known.get(item);
      } catch {
        // The counts of the cell are shown all the same.
      }
    }
    if (this.#wanted !== item) return;
    this.#picked = found;
    redraw();
  }

  #nextFailed() {
    const figures = this.#figures();
    const map = this.#map.data;
    if (!figures || !map) return;
    const { each } = this.#grid(figures);
    const item = nextIn(map, figures.items, ((Math.floor(this.#item / each) + 1) * each) % Math.max(1, figures.items), 3);
    if (item < 0) {
      tell('No item has failed');
      return;
    }
    this.#item = item;
    void this.#pick(item, 3);
  }

  #mapKey = (/** @type {KeyboardEvent} */ event) => {
    const figures = this.#figures();
    if (!figures) return;
    const { columns, cells: many, each } = this.#grid(figures);
    const by = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns }[event.key];
    if (by === undefined) return;
    event.preventDefault();
    this.#item = each * Math.max(0, Math.min(many - 1, Math.floor(this.#item / each) + by));
    redraw();
  };

  /** @param {Items} figures */
  #reasonPanel(figures) {
    const { data, error } = this.#reasons;
    return html`<div class="panel-title"><h2>Failed, by reason</h2>${data?.failedIsMinimum ? html`<span class="quiet small">of the first ${count(data.failed)}</span>` : nothing}</div>
      ${figures.failed === 0 ? html`<p class="calm">No item has failed.</p>` : error && !data ? html`<p class="calm">${error instanceof Problem && error.notHere ? 'This manager does not group failures. The list below has each of them.' : shown(error.message)}</p>` : html`<ul class="reasons">${(data?.reasons ?? []).map((group) => html`<li><b class="failed-text">${count(group.count)}</b><span class="reason" title=${plain(group.example ?? group.reason)}>${reasonText(group.count === 1 ? (group.example ?? group.reason) : group.reason)}</span><span class="reason-links"><a href=${link(['job', group.job])}>item ${count(group.item)}</a>${this.#allOf(group)}</span></li>`)}</ul>`}`;
  }

  /** The items of a reason, as a search finds them. @param {Reasons['reasons'][number]} group */
  #allOf({ reason, reasonId, count: many }) {
    return many > 1 && reasonId ? html`<a href=${link(['jobs'], { parent: this.#id, reasonId })} aria-label=${plain(`List all items that failed so: ${shortReason(reason)}`)}>list all</a>` : nothing;
  }

  /** @param {Items} figures */
  #list(figures) {
    const { data, stale } = this.#children;
    const all = this.#rows.take(data);
    const { hold, next } = this.#rows;
    const end = Math.min(...[this.#shownStep?.endTime, this.#job.data?.ended].map(millis).filter(Number.isFinite));
    const state = this.#state || 'all';
    // What was cut off is listed for itself, and has not failed.
    const children = state === 'failed' || state === 'cancelled' ? all.filter((child) => endedWith(child, end) === (state === 'cancelled')) : all;
    return html`<section class="panel ${stale ? 'stale' : ''}" aria-label="Items">
      <nav class="tabs" aria-label="Items by state">${['failed', this.#running ? 'running' : 'cancelled', 'completed', 'all'].map((one) => html`<a href=${changed(this.#route, { items: one === 'failed' ? undefined : one, after: undefined })} aria-current=${one === state ? 'page' : nothing}>${one === 'cancelled' ? 'Cut off' : one[0].toUpperCase() + one.slice(1)}${one !== 'all' ? html`<span class="tab-note">${count(/** @type {any} */ (figures)[one])}</span>` : nothing}</a>`)}${this.#rows.button()}</nav>
      ${refusal(this.#children.problem)}
      ${children.length ? html`<div class="table-wrap" ${scrolls()}><table class="items-table"><thead><tr><th class="number">Item</th><th>State</th><th class="number">Took</th><th>Reason</th></tr></thead><tbody @pointerenter=${hold} @pointerleave=${hold} @focusin=${hold} @focusout=${hold}>${repeat(children, (child) => child.job, (child) => html`<tr class=${this.#rows.gone.has(child.job) ? 'not-found' : ''} data-row=${child.job}><td class="number"><a href=${link(['job', child.job])} title=${child.job}>${count(child.item)}</a></td><td>${badge(child.state !== 'completed' && endedWith(child, end) ? 'halted' : child.state)}</td><td class="number">${span((child.ended ? millis(child.ended) : Date.now()) - millis(child.created))}</td><td class="reason">${reasonText(child.reason ?? '')}</td></tr>`)}</tbody></table></div>` : this.#children.told ? html`<p class="calm">${all.length && next ? 'None on this page.' : 'None.'}</p>` : nothing}
      ${next || this.#route.query.get('after') ? html`<nav class="pager inside" aria-label="Pages">${this.#route.query.get('after') ? html`<a class="button small" href=${changed(this.#route, { after: this.#before.at(-1) })} @click=${() => this.#before.pop()}>${icon('left')}Before</a>` : nothing}${next ? html`<a class="button small" href=${changed(this.#route, { after: next })} @click=${() => this.#before.push(this.#route.query.get('after') ?? '')}>Next${icon('right')}</a>` : nothing}</nav>` : nothing}
    </section>`;
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    if (event.key === 'f') {
      this.#nextFailed();
      return true;
    }
    if (event.key === 'Escape' && this.#item >= 0) {
      this.#item = -1;
      this.#picked = undefined;
      redraw();
      return true;
    }
    return false;
  }

  commands() {
    return [{ name: 'Next failed item', keys: 'f', run: () => this.#nextFailed() }, { name: 'Show failed items', run: () => setQuery({ items: undefined, after: undefined }) }];
  }
}
