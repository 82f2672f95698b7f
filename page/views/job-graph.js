// The graph of a job's definition, coloured by what its steps are. A fan-out is one node, however many items it has.

import { html, nothing, svg } from '../vendor/lit-html@3.3.3/lit-html.js';
import { attached, css } from '../lib/dom.js';
import { END, graphOf, START } from '../lib/graph.js';
import { icon } from '../lib/icons.js';
import { laidOut, layOut } from '../lib/layout.js';
import { redraw, redrawNow } from '../lib/redraw.js';
import { look, sign, tone } from '../lib/states.js';
import { count, few, plain, shown } from '../lib/text.js';

/** @import { StepDefinition, Step } from '../lib/types.js' */
/** @import { Layout, Point } from '../lib/layout.js' */

/** Above this the outline is shown, and the graph only on demand. */
const MANY = 500;
const WIDTH = 174;
const HEIGHT = 52;
const END_SIZE = 24;
const PAD = 16;
/** How high the panel is at most. */
const HIGHEST = 420;

export class GraphPanel {
  #asked = '';
  #failed = '';
  #leave = () => {};
  /** Other graphs of the page may need more room than the layouts that are kept have. @type {{ key: string, layout: Layout } | undefined} */
  #own;
  #anyhow = false;
  #scale = 0;
  /** @type {HTMLElement | undefined} */
  #element;
  #key = '';
  #chosen = '';
  /** Whether all of it is wanted, however small. */
  #whole = false;
  #drag = { id: -1, x: 0, y: 0, moved: false };
  #width = 0;
  /** @type {ResizeObserver | undefined} */
  #observer;

  stop() {
    this.#observer?.disconnect();
    this.#leave();
  }

  /**
   * @param {{ key: string, steps: StepDefinition[] | undefined, states: Step[], chosen: string | undefined, link: (step: string) => string, ends?: { start: string, end: string }, missing?: string }} of
   */
  template({ key, steps, states, chosen, link, ends = { start: '', end: '' }, missing = '' }) {
    if (!steps || (steps.length > MANY && !this.#anyhow)) {
      return html`${steps ? html`<p class="calm">${count(steps.length)} steps. <button class="mini" @click=${() => { this.#anyhow = true; redraw(); }}>Draw the graph</button></p>` : missing ? html`<p class="calm">${missing}</p>` : nothing}${outline(states, chosen, link)}`;
    }
    const down = this.#width > 0 && this.#width < 520;
    const layoutKey = `${key} ${down ? 'down' : 'right'}`;
    const layout = this.#own?.key === layoutKey ? this.#own.layout : (laidOut(layoutKey) ?? (this.#width ? this.#ask(layoutKey, steps, down) : undefined));
    if (layoutKey !== this.#key) {
      this.#key = layoutKey;
      this.#scale = 0;
    }
    if (this.#failed) return html`<p class="calm">The graph could not be laid out: ${shown(this.#failed)}</p>${outline(states, chosen, link)}`;
    const byName = new Map(states.map((step) => [step.name, step]));
    const view = layout ? this.#view(layout) : { scale: 1, height: 120 };
    if (layout) this.#follow(layout, chosen);
    return html`<div class="graph-frame"><div class="graph ${layout ? '' : 'coming'}" ${css({ height: `${view.height}px` })} @pointerdown=${this.#down} @pointermove=${this.#move} @pointerup=${this.#up} @pointercancel=${this.#up} @wheel=${this.#wheel} ${attached(this.#attach)}>
      ${layout
        ? html`<div class="graph-space" ${css({ width: `${layout.width * view.scale + 2 * PAD}px`, height: `${layout.height * view.scale + 2 * PAD}px` })}><div class="graph-plane" ${css({ width: `${layout.width}px`, height: `${layout.height}px`, transform: `translate(${PAD}px, ${PAD}px) scale(${view.scale})` })}>
            <svg class="graph-edges" width=${layout.width} height=${layout.height} aria-hidden="true">${layout.edges.map((edge) => {
              const kind = edgeTone(byName.get(edge.from), byName.get(edge.to), edge);
              const { line, head } = drawn(layout, edge, down);
              return svg`<path class="edge ${kind}" d=${line} /><path class="edge-head ${kind}" d=${head} />`;
            })}</svg>
            ${layout.nodes.map((box) => this.#node(box, byName.get(box.name), steps, chosen, link, ends))}
          </div></div>`
        : outline(states, chosen, link)}
      </div>
      ${layout ? html`<div class="graph-tools"><button class="tool" aria-label="Smaller" @click=${() => this.zoom(1 / 1.25)}>${icon('minus')}</button><button class="tool" aria-label="Larger" @click=${() => this.zoom(1.25)}>${icon('plus')}</button><button class="tool" aria-label="All of it" @click=${this.fit}>${icon('expand')}</button></div>` : nothing}
    </div>`;
  }

  /**
   * @param {string} key
   * @param {StepDefinition[]} steps
   * @param {boolean} down
   * @returns {undefined}
   */
  #ask(key, steps, down) {
    if (this.#asked === key) return;
    this.#leave();
    this.#asked = key;
    this.#failed = '';
    const { nodes, edges } = graphOf(steps);
    const { layout, leave } = layOut(key, { nodes: nodes.map((name) => (name === START || name === END ? { name, width: END_SIZE, height: END_SIZE } : { name, width: WIDTH, height: HEIGHT })), edges, down });
    this.#leave = leave;
    layout.then((layout) => {
      if (this.#asked === key) this.#own = { key, layout };
      redraw();
    }, (error) => {
      if (this.#asked === key) this.#failed = error instanceof Error ? error.message : String(error);
      redraw();
    });
  }

  /** @param {Layout} layout */
  #view(layout) {
    const width = this.#width || layout.width;
    const fitted = Math.min(1, (width - 2 * PAD) / layout.width);
    // As large as can be read: what is larger than the panel is scrolled.
    if (this.#scale === 0) this.#scale = Math.max(this.#whole ? 0.15 : 0.62, this.#whole ? Math.min(fitted, (HIGHEST - 2 * PAD) / layout.height) : fitted);
    const height = Math.min(HIGHEST, Math.max(116, Math.round(layout.height * this.#scale + 2 * PAD)));
    return { scale: this.#scale, height };
  }

  /**
   * Scrolls to the chosen step when it is another one than before.
   * @param {Layout} layout
   * @param {string | undefined} chosen
   */
  #follow(layout, chosen) {
    const key = `${this.#key} ${chosen} ${this.#width}`;
    if (key === this.#chosen) return;
    this.#chosen = key;
    const box = layout.nodes.find((node) => node.name === chosen);
    setTimeout(() => {
      const element = this.#element;
      if (!element || !box) return;
      const x = (box.x + box.width / 2) * this.#scale + PAD;
      const y = (box.y + box.height / 2) * this.#scale + PAD;
      const near = 60;
      if (x < element.scrollLeft + near || x > element.scrollLeft + element.clientWidth - near || y < element.scrollTop + near / 2 || y > element.scrollTop + element.clientHeight - near / 2) {
        element.scrollTo({ left: x - element.clientWidth / 2, top: y - element.clientHeight / 2 });
      }
    });
  }

  /**
   * @param {{ name: string, x: number, y: number, width: number, height: number }} box
   * @param {Step | undefined} step
   * @param {StepDefinition[]} steps
   * @param {string | undefined} chosen
   * @param {(step: string) => string} link
   * @param {{ start: string, end: string }} ends
   */
  #node(box, step, steps, chosen, link, ends) {
    const place = css({ left: `${box.x}px`, top: `${box.y}px`, width: `${box.width}px`, height: `${box.height}px` });
    if (box.name === START || box.name === END) {
      const start = box.name === START;
      const name = start ? 'start: the message' : 'end: the result';
      return html`<a class="node-end ${start ? 'completed' : tone(ends.end)} ${chosen === box.name ? 'chosen' : ''}" href=${link(box.name)} draggable="false" aria-label=${name} title=${name} ${place}>${start ? icon('play') : icon(ends.end === 'completed' ? 'completed' : 'skipped')}</a>`;
    }
    const defined = steps.find((other) => other.name === box.name);
    const state = step?.state ?? 'waiting';
    return html`<a class="node ${tone(state)} ${chosen === box.name ? 'chosen' : ''} ${defined?.task ? 'many' : ''}" href=${link(box.name)} draggable="false" aria-current=${chosen === box.name ? 'true' : nothing} data-step=${box.name} title=${plain(`${box.name}: ${state}${step?.status ? `, ${step.status}` : ''}${step?.children ? `, ${count(doneOf(step.children))} of ${count(step.children.items)} items done, ${count(step.children.failed)} failed` : ''}`)} ${place}>
      <span class="node-sign">${icon(look(state).icon, state)}</span>
      <span class="node-name">${shown(box.name)}</span>
      <span class="node-line">${nodeLine(step, defined)}</span>
      ${step?.children && step.children.items ? html`<span class="node-bar" aria-hidden="true">${childBar(step.children)}</span>` : nothing}
    </a>`;
  }

  #attach = (/** @type {HTMLElement} */ element) => {
    this.#element = element;
    this.#observer?.disconnect();
    this.#observer = new ResizeObserver(() => {
      const width = element.clientWidth;
      if (Math.abs(width - this.#width) < 2) return;
      this.#width = width;
      this.#scale = 0;
      redraw();
    });
    this.#observer.observe(element);
  };

  fit = () => {
    this.#scale = 0;
    this.#whole = true;
    redraw();
  };

  /**
   * @param {number} factor
   * @param {Point} [at] what stays where it is, within the panel
   */
  zoom(factor, at = { x: (this.#element?.clientWidth ?? 0) / 2, y: (this.#element?.clientHeight ?? 0) / 2 }) {
    const element = this.#element;
    const before = this.#scale || 1;
    this.#scale = Math.min(2, Math.max(0.15, before * factor));
    const by = this.#scale / before;
    redrawNow();
    element?.scrollTo({ left: (element.scrollLeft + at.x - PAD) * by - at.x + PAD, top: (element.scrollTop + at.y - PAD) * by - at.y + PAD });
  }

  #wheel = (/** @type {WheelEvent} */ event) => {
    // Without a key the wheel scrolls, as everywhere.
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    const box = /** @type {HTMLElement} */ (event.currentTarget).getBoundingClientRect();
    this.zoom(Math.exp(-event.deltaY / 300), { x: event.clientX - box.left, y: event.clientY - box.top });
  };

  #down = (/** @type {PointerEvent} */ event) => {
    if (event.button !== 0 || event.pointerType === 'touch') return;
    this.#drag = { id: event.pointerId, x: event.clientX, y: event.clientY, moved: false };
  };

  #move = (/** @type {PointerEvent} */ event) => {
    const drag = this.#drag;
    if (event.pointerId !== drag.id) return;
    const x = event.clientX - drag.x;
    const y = event.clientY - drag.y;
    if (!drag.moved && Math.hypot(x, y) < 4) return;
    const element = /** @type {HTMLElement} */ (event.currentTarget);
    if (!drag.moved) element.setPointerCapture(event.pointerId);
    element.scrollLeft -= x;
    element.scrollTop -= y;
    this.#drag = { id: drag.id, x: event.clientX, y: event.clientY, moved: true };
  };

  #up = () => {
    this.#drag = { id: -1, x: 0, y: 0, moved: false };
  };
}


/** How many child jobs have completed. @param {Pick<import('../lib/types.js').Children, 'ended' | 'failed' | 'completed'>} children */
export function doneOf({ ended, failed, completed }) {
  return completed ?? Math.max(0, ended - failed);
}

/** @param {import('../lib/types.js').Children} children */
export function childBar({ items, failed, ended, started, running, completed, cancelled = 0 }) {
  const done = completed ?? doneOf({ ended, failed });
  const under = running ?? Math.max(0, started - ended - cancelled);
  const part = (/** @type {number} */ value) => css({ width: `${(100 * value) / Math.max(1, items)}%` });
  return html`<i class="completed" ${part(done)}></i><i class="failed" ${css({ width: `${(100 * failed) / Math.max(1, items)}%`, 'min-width': failed ? '3px' : '0' })}></i><i class="running" ${part(under)}></i><i class="cancelled" ${part(cancelled)}></i>`;
}

/**
 * @param {Step | undefined} step
 * @param {StepDefinition | undefined} defined
 */
function nodeLine(step, defined) {
  if (step?.children) {
    const { items, failed } = step.children;
    return html`<span>${few(doneOf(step.children))}${failed ? '/' : ' / '}${few(items)}</span>${failed ? html`<b class="failed-text node-failed">${icon('failed')}${few(failed)}<span class="sr"> failed</span></b>` : nothing}`;
  }
  if (!step || step.state === 'waiting') return html`<span>${defined?.task ? 'for each item' : defined?.external ? 'by a person' : shown(defined?.queue ?? step?.queue ?? '')}</span>`;
  const most = defined?.retry?.attempts;
  const attempt = step.attempt > 1 ? html`<span class="node-attempt" title="attempt ${step.attempt}">${step.attempt}${most && step.attempt <= most ? html`/${most}` : nothing}</span>` : nothing;
  const done = typeof step.progress === 'number' ? html`<span>${Math.round(step.progress <= 1 ? step.progress * 100 : step.progress)} %</span>` : nothing;
  return html`${step.state === 'running' && done !== nothing ? done : html`<span>${shown(step.status || step.state)}</span>`}${attempt}`;
}

/**
 * @param {Step | undefined} from
 * @param {Step | undefined} to
 * @param {{ from: string, to: string }} edge
 */
function edgeTone(from, to, edge) {
  const passed = edge.from === START || (from && ['completed', 'skipped', 'cancelled'].includes(from.state)) || (from?.state === 'failed' && to && to.state !== 'waiting');
  if (edge.to === END) return passed ? 'passed' : '';
  return passed && to && to.state !== 'waiting' && to.state !== 'skipped' ? 'passed' : '';
}

/**
 * Lines leave a node in the middle of one side and reach the next in the middle of the other.
 * @param {Layout} layout
 * @param {Layout['edges'][number]} edge
 * @param {boolean} down
 * @returns {Point[]}
 */
function way(layout, { from, to, points }, down) {
  const a = layout.nodes.find((box) => box.name === from);
  const b = layout.nodes.find((box) => box.name === to);
  if (!a || !b) return points;
  const first = down ? { x: a.x + a.width / 2, y: a.y + a.height } : { x: a.x + a.width, y: a.y + a.height / 2 };
  const last = down ? { x: b.x + b.width / 2, y: b.y - 2 } : { x: b.x - 2, y: b.y + b.height / 2 };
  // Between neighbours one bend is enough. Longer lines keep to the places that the layout made free for them.
  if (points.length <= 3) return [first, last];
  const inner = points.slice(1, -1);
  const kept = inner.filter((_, index) => index % 2 === 1);
  // Beside a node the line runs straight.
  const half = (down ? HEIGHT : WIDTH) / 2;
  return [first, ...(kept.length ? kept : inner).flatMap(({ x, y }) => (down ? [{ x, y: y - half }, { x, y: y + half }] : [{ x: x - half, y }, { x: x + half, y }])), last];
}

/**
 * A line with soft bends, straight along the graph in every point.
 * @param {Point[]} points
 * @param {boolean} down
 */
function curve(points, down) {
  const n = (/** @type {number} */ value) => value.toFixed(1);
  let path = `M${n(points[0].x)} ${n(points[0].y)}`;
  for (let index = 1; index < points.length; index += 1) {
    const a = points[index - 1];
    const b = points[index];
    if (down) path += `C${n(a.x)} ${n((a.y + b.y) / 2)} ${n(b.x)} ${n((a.y + b.y) / 2)} ${n(b.x)} ${n(b.y)}`;
    else path += `C${n((a.x + b.x) / 2)} ${n(a.y)} ${n((a.x + b.x) / 2)} ${n(b.y)} ${n(b.x)} ${n(b.y)}`;
  }
  return path;
}

/** Lines are drawn anew when the layout is, not when a state changes. @type {WeakMap<object, { line: string, head: string }>} */
const lines = new WeakMap();

/**
 * @param {Layout} layout
 * @param {Layout['edges'][number]} edge
 * @param {boolean} down
 */
function drawn(layout, edge, down) {
  let found = lines.get(edge);
  if (!found) {
    const points = way(layout, edge, down);
    const { x, y } = points[points.length - 1];
    found = { line: curve(points, down), head: down ? `M${x - 3.5} ${y - 5.5}L${x} ${y}L${x + 3.5} ${y - 5.5}` : `M${x - 5.5} ${y - 3.5}L${x} ${y}L${x - 5.5} ${y + 3.5}` };
    lines.set(edge, found);
  }
  return found;
}

/**
 * The steps as a list: what is shown until there is a layout, and for graphs too large to be looked at.
 * @param {Step[]} states
 * @param {string | undefined} chosen
 * @param {(step: string) => string} link
 */
function outline(states, chosen, link) {
  return html`<ul class="outline">${states.map((step) => html`<li><a href=${link(step.name)} class=${chosen === step.name ? 'chosen' : ''}>${sign(step.state)}<span class="outline-name">${shown(step.name)}</span><span class="quiet">${shown(step.status || step.state)}</span></a></li>`)}</ul>`;
}
