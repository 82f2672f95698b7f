// The schedules: when each starts its next jobs, what became of its last slots and why, and what can be done to it.

import { html, nothing } from '../vendor/lit-html@3.3.3/lit-html.js';
import { keyed } from '../vendor/lit-html@3.3.3/directives/keyed.js';
import { repeat } from '../vendor/lit-html@3.3.3/directives/repeat.js';
import { act, command, curl, get } from '../lib/api.js';
import { copied, go, messageOf, refusal, tell } from '../lib/app.js';
import { scrolls } from '../lib/dom.js';
import { icon } from '../lib/icons.js';
import { redraw } from '../lib/redraw.js';
import { changed, link } from '../lib/route.js';
import { fullName, may, standsBy } from '../lib/shared.js';
import { Source } from '../lib/source.js';
import { count, counted, named, plain, shown } from '../lib/text.js';
import { ago, millis, moment } from '../lib/time.js';
import { openBackfill } from './backfill.js';
import { ask } from './job-operations.js';

/** @import { Found, Judgement, Schedule } from '../lib/types.js' */
/** @import { Route } from '../lib/route.js' */
/** @import { Command, View } from '../lib/app.js' */

/** So many schedules are listed; the filter finds the others. */
const LISTED = 200;
/** Of so many of its newest jobs the labels are looked for. Only 20 judgements are kept, but a backfill is one of many jobs. */
const LABELLED = 200;
/** From so many on there is a filter. */
const FEW = 8;

/** What became of a slot, as the style sheet knows it. */
const TONES = /** @type {Record<string, string>} */ ({ started: 'completed', waits: 'running', skipped: 'skipped', missed: 'failed' });
const MEANS = /** @type {Record<string, string>} */ ({ started: 'its job was started', waits: 'an earlier job runs: it starts when that one has ended', skipped: 'an earlier job ran, or the schedule was paused', missed: 'no manager ran then, or its job could not be started, or its deadline has passed' });

const EXAMPLE = `schedules:
  - name: nightly            # at two on working days, by the clock of Berlin
    workflow: report
    cron: "0 2 * * 1-5"
    zone: Europe/Berlin
    message: { kind: full }
  - name: often              # at even distances
    workflow: sync
    every: 90s
    overlap: wait
`;

/** @param {{ vhost: string, name: string }} schedule */
const placeOf = ({ vhost }) => ({ vhost: vhost || undefined });

/**
 * @param {Route} route
 * @returns {View}
 */
export function schedulesView(route) {
  return new SchedulesView(route);
}

class SchedulesView {
  page = 'schedules';
  #route;
  #word = '';
  /** @type {Source<{ schedules: Schedule[] }>} */
  #schedules = new Source(async (signal) => (standsBy() ? { schedules: [] } : get(['schedules'], {}, signal)));

  /** The labels of the jobs of the schedule that is shown, by their ids. @type {Map<string, string>} */
  #labels = new Map();
  /** The schedule, and its newest job, whose labels were asked for last. */
  #labelled = ['', ''];

  /** @param {Route} route */
  constructor(route) {
    this.#route = route;
    void this.#schedules.refresh();
    this.#schedules.every(3000);
  }

  stop() {
    this.#schedules.stop();
  }

  /** @param {Route} route */
  update(route) {
    this.#route = route;
    redraw();
  }

  ready() {
    return this.#schedules.data !== undefined || this.#schedules.error !== undefined;
  }

  title() {
    return plain(['Schedules', this.#route.query.get('schedule') ?? ''].filter(Boolean).join(' '));
  }

  live() {
    return 'every 3 s';
  }

  /** The one that is shown: what the address names, or else the first. */
  #chosen() {
    const all = this.#schedules.data?.schedules ?? [];
    const name = this.#route.query.get('schedule');
    return name ? all.find((schedule) => fullName(schedule) === name) : all[0];
  }

  template() {
    const all = this.#schedules.data?.schedules ?? [];
    const { error } = this.#schedules;
    const paused = all.filter((schedule) => schedule.paused).length;
    return html`<div class="schedules">
      <header class="page-head"><h1>Schedules</h1>${all.length ? html`<span class="quiet">${count(all.length)}${paused ? html`, ${count(paused)} paused` : nothing}</span>` : nothing}</header>
      ${standsBy() ? html`<p class="calm">Only the active manager knows what its schedules do.</p>` : error?.notHere ? html`<p class="calm">This manager has no schedules.</p>` : refusal(this.#schedules.problem)}
      ${all.length ? this.#parts(all) : this.#schedules.told && !standsBy() ? empty() : nothing}
    </div>`;
  }

  /** @param {Schedule[]} all */
  #parts(all) {
    const word = this.#word.toLowerCase();
    const found = all.filter((schedule) => !word || `${fullName(schedule)} ${schedule.workflow}`.toLowerCase().includes(word));
    const chosen = this.#chosen();
    const name = this.#route.query.get('schedule');
    return html`<div class="schedule-parts">
      <section class="panel" aria-label="All schedules">
        ${all.length > FEW ? html`<div class="schedule-filter"><input class="field small-field" aria-label="Filter schedules" placeholder="Filter by name or workflow" autocomplete="off" .value=${this.#word} @input=${(/** @type {InputEvent} */ event) => { this.#word = /** @type {HTMLInputElement} */ (event.target).value.trim(); redraw(); }}></div>` : nothing}
        ${found.length ? html`<ul class="letters">${repeat(found.slice(0, LISTED), fullName, (schedule) => this.#row(schedule, schedule === chosen))}</ul>` : html`<p class="calm">No schedule has <b>${shown(this.#word)}</b> in its name or workflow.</p>`}
        ${found.length > LISTED ? html`<p class="calm">The first ${count(LISTED)} of ${count(found.length)}.</p>` : nothing}
      </section>
      ${chosen ? keyed(fullName(chosen), this.#panel(chosen, name !== undefined)) : html`<section class="panel schedule-panel" aria-label="Schedule"><p class="calm">There is no schedule <b>${shown(name ?? '')}</b>: it may have been removed from its file. Its jobs stay.</p></section>`}
    </div>`;
  }

  /**
   * @param {Schedule} schedule
   * @param {boolean} chosen
   */
  #row(schedule, chosen) {
    const { paused, next, judgements: [last], timing, workflow } = schedule;
    const name = fullName(schedule);
    return html`<li><a class=${chosen ? 'chosen' : ''} href=${changed(this.#route, { schedule: name })} aria-current=${chosen ? 'true' : nothing}><span class="sign-of ${paused ? 'paused' : ''}">${icon(paused ? 'paused' : 'schedules', paused ? 'paused' : '')}</span><span class="letter-name"><b>${shown(name)}</b> <span class="quiet">${shown(workflow)}</span></span><span class="quiet">${paused ? 'paused' : next[0] ? ago(millis(next[0])) : 'never again'}</span><span class="quiet letter-job"><code>${shown(timing)}</code>${last ? html` · ${last.verdict} ${ago(millis(last.at))}` : nothing}</span></a></li>`;
  }

  /**
   * @param {Schedule} schedule
   * @param {boolean} named whether the address names it
   */
  #panel(schedule, named) {
    const { workflow, timing, paused, waiting, refused, next, judgements } = schedule;
    this.#askLabels(schedule);
    return html`<section class="panel schedule-panel" aria-label="Schedule">
      <header class="panel-head ${named ? 'named' : ''}"><div class="step-title"><h2>${shown(fullName(schedule))}</h2>${paused ? html`<span class="badge paused">${icon('paused')}<span>paused</span></span>` : nothing}</div></header>
      ${paused ? html`<div class="reason-box held">${icon('paused')}<p class="reason">Its slots are skipped since ${moment(paused.since)}${paused.by ? html`, by ${shown(paused.by)}` : nothing}${paused.reason ? html`: ${shown(paused.reason)}` : nothing}</p></div>` : nothing}
      <dl class="facts inside">
        <div><dt>starts</dt><dd><a href=${link(['definitions', ...workflow.split('/')])}>${shown(workflow)}</a> <a class="quiet small" href=${link(['jobs'], { schedule: fullName(schedule) })}>its jobs</a></dd></div>
        <div><dt>when</dt><dd><code>${shown(timing)}</code></dd></div>
        ${waiting ? html`<div><dt>waits</dt><dd>the slot ${moment(waiting)}, until the earlier job has ended</dd></div>` : nothing}
        ${refused ? html`<div><dt>refused</dt><dd>its job is tried again each second, since ${moment(refused.since)}: ${shown(refused.reason)}</dd></div>` : nothing}
      </dl>
      ${may() ? html`<div class="panel-foot">${this.#operations(schedule).map(({ name, sign, run }, index) => html`<button class="button small ${index === 0 && paused ? 'primary' : ''}" @click=${run}>${icon(sign)}${name}</button>`)}</div>` : nothing}
      <div class="tab-body"><h3>Next${paused ? html` <span class="quiet">if it is resumed before</span>` : nothing}</h3>${next.length ? html`<ol class="slots" aria-label="Next slots">${next.map((slot) => html`<li>${moment(slot)}</li>`)}</ol>` : html`<p class="calm">It has no slot any more.</p>`}</div>
      <div class="slots-head"><h3>What became of the last slots</h3></div>
      ${judgements.length ? this.#judgements(judgements) : html`<p class="calm">None has passed yet. A new schedule, and one whose times were changed, counts from now.</p>`}
    </section>`;
  }

  /**
   * Looks for the labels of its jobs, when there is a new one. They are not among the judgements: of many schedules that would be many.
   * @param {Schedule} schedule
   */
  #askLabels(schedule) {
    const name = fullName(schedule);
    const newest = schedule.judgements.find((judgement) => judgement.job)?.job ?? '';
    if (name !== this.#labelled[0]) this.#labels.clear();
    else if (newest === this.#labelled[1]) return;
    this.#labelled = [name, newest];
    if (!newest) return;
    get(['jobs', 'search'], { schedule: name, limit: LABELLED }, undefined).then((/** @type {{ jobs: Found[] }} */ { jobs }) => {
      if (this.#labelled[0] !== name) return;
      for (const { job, label } of jobs) if (label !== undefined) this.#labels.set(job, label);
      redraw();
    }, () => {
      // They are known by their ids until it is asked again.
      if (this.#labelled[0] === name) this.#labelled = ['', ''];
    });
  }

  /** @param {Judgement[]} judgements the newest first */
  #judgements(judgements) {
    return html`<div class="table-wrap" ${scrolls()}><table class="judgements stacked"><thead><tr><th>Slot</th><th>What</th><th>Job</th><th>Why</th></tr></thead><tbody>${inRows(judgements).map(({ slot, at, verdict, job, reason, slots }) => html`<tr>
      <td title="Judged ${at}">${slots > 1 ? html`<span class="quiet">${counted(slots, 'slot')} until</span> ` : nothing}${moment(slot)}</td>
      <td><span class="badge ${Object.hasOwn(TONES, verdict) ? TONES[verdict] : 'unknown'}" title=${Object.hasOwn(MEANS, verdict) ? MEANS[verdict] : nothing}>${shown(verdict)}</span></td>
      <td data-label=${job ? 'job' : nothing}>${job ? html`<a href=${link(['job', job])}>${named(this.#labels.get(job), job)}</a>` : nothing}</td>
      <td class="reason quiet">${shown(reason ?? '')}</td>
    </tr>`)}</tbody></table></div>`;
  }

  /**
   * @param {Schedule} schedule
   * @returns {{ name: string, sign: keyof typeof import('../lib/icons.js').PATHS, run: () => void }[]}
   */
  #operations(schedule) {
    return [
      schedule.paused ? { name: 'Resume', sign: 'play', run: () => this.#resume(schedule) } : { name: 'Pause…', sign: 'paused', run: () => this.#pause(schedule) },
      { name: 'Trigger…', sign: 'play', run: () => this.#trigger(schedule) },
      { name: 'Backfill…', sign: 'retry', run: () => openBackfill(schedule, () => void this.#schedules.refresh()) },
    ];
  }

  /**
   * @param {Schedule} schedule
   * @param {string} operation
   * @param {string} said
   * @param {string} [reason]
   */
  async #operate(schedule, operation, said, reason) {
    await act('POST', ['schedule', schedule.name, operation], { ...placeOf(schedule), reason });
    tell(said);
    await this.#schedules.refresh();
  }

  /** @param {Schedule} schedule */
  #resume(schedule) {
    this.#operate(schedule, 'resume', `Schedule ${fullName(schedule)} goes on`).catch((error) => {
      tell(messageOf(error), 'problem');
      void this.#schedules.refresh();
    });
  }

  /** @param {Schedule} schedule */
  #pause(schedule) {
    const name = fullName(schedule);
    ask({ title: `Pause schedule ${name}?`, text: html`<p>Its slots are skipped from now on until it is resumed, and are not made up for; a backfill does that. Jobs under way go on.</p>`, button: 'Pause it', why: true, shell: this.#shell(schedule, 'pause'), run: (reason) => this.#operate(schedule, 'pause', `Schedule ${name} is paused`, reason) });
  }

  /** @param {Schedule} schedule */
  #trigger(schedule) {
    const name = fullName(schedule);
    ask({ title: `Start a job of ${name} now?`, text: html`<p>A job of workflow <b>${shown(schedule.workflow)}</b> is started now with the message of the schedule, beside its slots and whatever runs.</p>`, button: 'Start it', why: true, shell: this.#shell(schedule, 'trigger'), run: (reason) => this.#operate(schedule, 'trigger', `A job of ${name} is started`, reason) });
  }

  /**
   * @param {Schedule} schedule
   * @param {string} operation
   */
  #shell(schedule, operation) {
    const place = placeOf(schedule);
    return [command('schedule', schedule.name, operation, ...(place.vhost ? ['--vhost', place.vhost] : [])), curl('POST', ['schedule', schedule.name, operation], place)];
  }

  /** @returns {Command[]} */
  commands() {
    const all = this.#schedules.data?.schedules ?? [];
    const chosen = this.#chosen();
    return [
      ...(chosen && may() ? this.#operations(chosen).map(({ name, run }) => ({ name: `${name.replace('…', '')} schedule ${fullName(chosen)}`, run })) : []),
      ...all.slice(0, LISTED).map((schedule) => ({ name: `Schedule ${fullName(schedule)}`, late: true, run: () => go(changed(this.#route, { schedule: fullName(schedule) })) })),
    ];
  }
}

/**
 * Slots in a row of which the same became, for the same reason, are one: a schedule that fires often has many of them.
 * @param {Judgement[]} judgements the newest first
 * @returns {Judgement[]}
 */
export function inRows(judgements) {
  /** @type {Judgement[]} */
  const rows = [];
  for (const judgement of judgements) {
    const last = rows.at(-1);
    const same = last && judgement.verdict !== 'started' && last.verdict === judgement.verdict && last.job === judgement.job && last.reason === judgement.reason;
    if (same) rows[rows.length - 1] = { ...last, slots: last.slots + judgement.slots };
    else rows.push(judgement);
  }
  return rows;
}

/** No schedule is loaded: how one is made. */
function empty() {
  return html`<section class="panel none"><p>No schedule is loaded.</p><p class="quiet">A schedule of a workflow file starts jobs at the times of a cron expression, or at an interval; each slot starts once, also over restarts. After a reload it is here.</p>
    <div class="yaml"><pre class="raw" tabindex="0" aria-label="Example">${EXAMPLE}</pre><button class="button small" @click=${() => copied(EXAMPLE, 'Example')}>${icon('copy')}Copy</button></div>
    <p class="quiet">Look at it before: <code>${command('check', 'FILE')}</code></p></section>`;
}
