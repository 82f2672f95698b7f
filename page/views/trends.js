// What happened over time, of all workflows together or of one: four small charts, and what is different from the span before.

import { html, nothing, svg } from '../vendor/lit-html@3.3.3/lit-html.js';
import { get } from '../lib/api.js';
import { refusal, setQuery } from '../lib/app.js';
import { scrolls } from '../lib/dom.js';
import { redraw } from '../lib/redraw.js';
import { parted } from '../lib/shared.js';
import { Source } from '../lib/source.js';
import { count, plain } from '../lib/text.js';
import { clock, millis, nanos, span as spanOf } from '../lib/time.js';

/** @import { Route } from '../lib/route.js' */
/** @import { TemplateResult } from '../vendor/lit-html@3.3.3/lit-html.js' */

/**
 * @typedef {{ minutes: number, created: number, completed: number, failed: number, cancelled: number, stepsCompleted: number, stepsFailed: number, stepsRetried: number, stepP50?: number, stepP99?: number, queued?: number, queuedMax?: number }} Figures
 *
 * @typedef {{ span: string, omitted?: boolean, bucketSeconds: number, buckets: { start: string, figures?: Figures }[], total: Figures, before: Figures }} Answer
 *
 * @typedef {{ name: string, unit: string, value: (figures: Figures) => number | undefined, second?: (figures: Figures) => number | undefined, tone: string, text: (value: number) => string, sum: TemplateResult | string, words: string }} Chart
 */

const SPANS = ['1h', '24h', '7d'];
/** The one that says what is different since yesterday. */
const FIRST = '24h';
/** How a span is told in a sentence. @type {Record<string, string>} */
const TOLD = { '1h': 'hour', '24h': '24 h', '7d': '7 d' };
/** How high a chart is, in its own measure. */
const HEIGHT = 100;
/** How much of the span before must have been counted, compared with this one, for a share to say something. */
const COMPARABLE = 0.9;

export class Trends {
  #span = FIRST;
  #workflow;
  #asTable = false;
  /** @type {Source<Answer>} */
  #source = new Source((signal) => get(['trends'], { span: this.#span, workflow: this.#workflow?.name, vhost: this.#workflow?.vhost }, signal));

  /**
   * @param {Route} route
   * @param {string} [workflow] its full name; without it those of all workflows together
   */
  constructor(route, workflow) {
    this.#workflow = workflow === undefined ? undefined : parted(workflow);
    this.#span = spanIn(route);
    void this.#source.refresh();
    this.#source.every(30_000);
  }

  stop() {
    this.#source.stop();
  }

  /** @param {Route} route */
  update(route) {
    const wanted = spanIn(route);
    if (wanted === this.#span) return;
    this.#span = wanted;
    void this.#source.restart();
  }

  template() {
    const { data, error, stale } = this.#source;
    if (error?.notHere) return nothing;
    return html`<section class="panel trends" aria-label="Trends"><div class="panel-title wraps"><h2>Trends</h2><span class="quiet small">a job counts each time that it ends, also if it was retried</span><span class="space"></span><div class="segments" role="group" aria-label="Trends over">${SPANS.map((one) => html`<button aria-pressed=${this.#span === one ? 'true' : 'false'} @click=${() => setQuery({ trends: one === FIRST ? undefined : one }, { replace: true })}>${one}</button>`)}</div></div>
      ${refusal(this.#source.problem)}
      ${!data ? nothing : data.omitted ? html`<p class="calm">Trends of 100 other workflows are kept. This one is counted among all workflows alone.</p>` : !data.total.minutes && !data.before.minutes ? html`<p class="calm">Nothing is counted yet. The first figures come with the next minutes.</p>` : html`<div class=${stale ? 'stale' : ''}><div class="trend-charts">${charts(data).map((chart) => figure(chart, data))}</div>${this.#table(data)}</div>`}
    </section>`;
  }

  /** @param {Answer} data */
  #table(data) {
    return html`<details class="trend-table" ?open=${this.#asTable} @toggle=${(/** @type {Event} */ event) => { this.#asTable = /** @type {HTMLDetailsElement} */ (event.target).open; redraw(); }}><summary>As a table</summary>${!this.#asTable ? nothing : html`<div class="table-wrap" ${scrolls()}><table><thead><tr><th>From</th><th class="number">Created</th><th class="number">Completed</th><th class="number">Failed</th><th class="number">Cancelled</th><th class="number">Steps</th><th class="number">Steps failed</th><th class="number">p50</th><th class="number">p99</th><th class="number">Most waiting</th></tr></thead><tbody>${[...data.buckets].reverse().map(({ start, figures: f }) => html`<tr><td><time datetime=${start}>${clock(millis(start)).replace(/:\d\d$/, '')}</time></td>${f ? html`<td class="number">${count(f.created)}</td><td class="number">${count(f.completed)}</td><td class="number">${count(f.failed)}</td><td class="number">${count(f.cancelled)}</td><td class="number">${count(f.stepsCompleted)}</td><td class="number">${count(f.stepsFailed)}</td><td class="number">${nanos(f.stepP50)}</td><td class="number">${nanos(f.stepP99)}</td><td class="number">${count(f.queuedMax)}</td>` : html`<td class="quiet" colspan="9">not counted</td>`}</tr>`)}</tbody></table></div>`}</details>`;
  }
}

/** @param {Route} route */
function spanIn(route) {
  const wanted = route.query.get('trends') ?? FIRST;
  return SPANS.includes(wanted) ? wanted : FIRST;
}

/**
 * @param {Answer} data
 * @returns {Chart[]}
 */
function charts(data) {
  const { total, before } = data;
  const words = (/** @type {number | undefined} */ now, /** @type {number | undefined} */ then, /** @type {(value: number) => string} */ text) => compared(now, then, data, text);
  return [
    { name: 'Completed jobs', unit: 'jobs', value: (f) => f.completed, tone: 'completed', text: count, sum: count(total.completed), words: words(total.completed, before.completed, count) },
    { name: 'Failed jobs', unit: 'jobs', value: (f) => f.failed, tone: 'failed', text: count, sum: count(total.failed), words: words(total.failed, before.failed, count) },
    { name: 'Step durations', unit: '', value: (f) => f.stepP50, second: (f) => f.stepP99, tone: 'running', text: nanos, sum: html`p50 ${nanos(total.stepP50)} <span class="trend-p99">p99 ${nanos(total.stepP99)}</span>`, words: `p99: ${words(total.stepP99, before.stepP99, nanos)}` },
    { name: 'Waiting messages', unit: 'messages', value: (f) => f.queuedMax, tone: 'paused', text: count, sum: html`at most ${count(total.queuedMax)}`, words: words(total.queuedMax, before.queuedMax, count) },
  ];
}

/**
 * What is different from the span before, in words.
 * @param {number | undefined} now
 * @param {number | undefined} then
 * @param {Pick<Answer, 'span' | 'total' | 'before'>} data
 * @param {(value: number) => string} text
 */
export function compared(now, then, { span, total, before }, text) {
  const told = `the ${TOLD[span] ?? span} before`;
  if (!before.minutes) return `${told}: not counted`;
  if (then === undefined) return now === undefined ? `none, as in ${told}` : `none in ${told}`;
  if (before.minutes < COMPARABLE * total.minutes) return `${text(then)} in ${told}, of which ${spanOf(before.minutes * 60_000)} were counted`;
  if (now === then) return `as in ${told}`;
  if (!now) return `${text(then)} in ${told}`;
  if (!then) return `none in ${told}`;
  const share = now / then;
  const change = share >= 3 ? `${share < 10 ? share.toFixed(1) : count(Math.round(share))} times` : `${Math.max(1, Math.round(Math.abs(share - 1) * 100))} % ${now > then ? 'more than' : 'less than'}`;
  return `${change} ${share >= 3 ? 'that of ' : 'in '}${told} (${text(then)})`;
}

/**
 * @param {Chart} chart
 * @param {Answer} data
 */
function figure(chart, data) {
  const { buckets, bucketSeconds, span } = data;
  const lines = [chart.value, ...(chart.second ? [chart.second] : [])].map((value) => buckets.map(({ figures: f }) => (f ? value(f) : undefined)));
  const most = Math.max(0, ...lines.flat().filter((value) => value !== undefined));
  const top = chart.unit ? roundUp(most) : most || 1;
  const gaps = buckets.filter(({ figures: f }) => !f).length;
  const each = spanOf(bucketSeconds * 1000);
  const label = `${chart.name} over ${span}, for each ${each}: at most ${most ? chart.text(most) : 'none'}${gaps ? `; ${spanOf(gaps * bucketSeconds * 1000)} not counted` : ''}. ${chart.words}`;
  const end = millis(buckets[buckets.length - 1].start) + bucketSeconds * 1000;
  return html`<figure class="trend">
    <figcaption><b>${chart.name}</b> <span class="trend-sum">${chart.sum}</span><span class="trend-words">${chart.words}</span></figcaption>
    <div class="trend-chart"><div class="trend-y" aria-hidden="true"><span>${chart.text(top)}</span><span>0</span></div>
      <svg class="trend-${chart.tone}" viewBox="0 0 ${buckets.length} ${HEIGHT}" preserveAspectRatio="none" role="img" aria-label=${plain(label)}>${svg`<path class="trend-gap" d=${gapPath(buckets)}/>${chart.second ? svg`<path class="trend-line" d=${linePath(lines[0], top)}/><path class="trend-line second" d=${linePath(lines[1], top)}/>` : svg`<path class="trend-bars" d=${barPath(lines[0], top)}/>`}<path class="trend-base" d="M0 ${HEIGHT}H${buckets.length}"/>`}</svg>
      <div class="trend-x" aria-hidden="true"><span>${TOLD[span] === 'hour' ? '1 h' : TOLD[span]} ago</span><span>${chart.unit ? `${chart.unit} / ${each}` : `each ${each}`}</span><span>${clock(end, { day: false }).slice(0, 5)}</span></div></div>
  </figure>`;
}

/** The least of 1, 2 and 5 times a power of ten that is not below the value. @param {number} value */
export function roundUp(value) {
  if (value <= 1) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return (/** @type {number} */ ([1, 2, 5, 10].find((factor) => factor * power >= value))) * power;
}

/** @param {Answer['buckets']} buckets */
function gapPath(buckets) {
  return buckets.map(({ figures: f }, x) => (f ? '' : `M${x} 0h1v${HEIGHT}h-1z`)).join('');
}

/**
 * @param {(number | undefined)[]} values
 * @param {number} top
 */
function barPath(values, top) {
  // A single one is seen all the same.
  return values.map((value, x) => (value ? `M${x + 0.1} ${HEIGHT}h0.8v-${Math.max(2, (HEIGHT * value) / top).toFixed(1)}h-0.8z` : '')).join('');
}

/**
 * A line with a step for each bucket; it ends where there is nothing to say.
 * @param {(number | undefined)[]} values
 * @param {number} top
 */
function linePath(values, top) {
  return values.map((value, x) => (value === undefined ? '' : `${values[x - 1] === undefined ? 'M' : 'L'}${x} ${(HEIGHT - ((HEIGHT - 2) * value) / top).toFixed(1)}h1`)).join('');
}
