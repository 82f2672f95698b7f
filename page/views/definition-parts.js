// The graph, the steps and the tasks of one definition, whether it is loaded or only pasted.

import { html, nothing } from '../vendor/lit-html@3.3.3/lit-html.js';
import { keyed } from '../vendor/lit-html@3.3.3/directives/keyed.js';
import { scrolls } from '../lib/dom.js';
import { settings } from '../lib/graph.js';
import { count, plain, shown } from '../lib/text.js';
import { duration } from '../lib/time.js';
import { GraphPanel } from './job-graph.js';

/** @import { Definition, StepDefinition } from '../lib/types.js' */

/** @typedef {{ key: string, definition: Omit<Definition, 'hash'>, chosen: string | undefined, link: (step: string | undefined) => string, of?: string }} Drawn `key`: two definitions with the same one are drawn alike; `of`: its name, where the view has several */

/** @param {string} part @param {Drawn} drawn */
const label = (part, { of }) => plain(of === undefined ? part : `${part} of ${of}`);

export class DefinitionParts {
  /** By task; that of the workflow itself has no name. @type {Map<string, GraphPanel>} */
  #graphs = new Map();

  stop() {
    for (const panel of this.#graphs.values()) panel.stop();
  }

  /** @param {Drawn} drawn */
  graph(drawn) {
    return html`<section class="panel graph-panel" aria-label=${label('Graph', drawn)}>${this.#graph(drawn, '', drawn.definition.steps)}</section>`;
  }

  /** @param {Drawn} drawn */
  steps(drawn) {
    const { definition, chosen, link } = drawn;
    return html`<section class="panel" aria-label=${label('Steps', drawn)}><div class="panel-title"><h2>Steps</h2></div>${facts(definition)}${table(definition.steps, chosen, link)}</section>
        ${(definition.tasks ?? []).map((task) => html`<section class="panel" aria-label=${label(`Task ${task.name}`, drawn)}><div class="panel-title"><h2>Task ${shown(task.name)}</h2><span class="quiet small">for each of <code>${shown(task.itemListKey)}</code>${task.itemKey ? html`, as <code>${shown(task.itemKey)}</code>` : nothing}${task.tolerate !== undefined ? html`; ${shown(task.tolerate)} may fail` : nothing}${task.maxConcurrency ? html`; at most ${count(task.maxConcurrency)} at once` : nothing}</span></div>${task.steps.length > 1 ? this.#graph(drawn, task.name, task.steps) : nothing}${table(task.steps, chosen, link)}</section>`)}`;
  }

  /**
   * @param {Drawn} drawn
   * @param {string} task
   * @param {StepDefinition[]} steps
   */
  #graph({ key, chosen, link }, task, steps) {
    let panel = this.#graphs.get(task);
    if (!panel) {
      panel = new GraphPanel();
      this.#graphs.set(task, panel);
    }
    return keyed(panel, panel.template({ key: `${key} ${task}`, steps, states: steps.map((step) => ({ name: step.name, state: 'waiting', attempt: 0 })), chosen, link }));
  }
}

/** What becomes of a job for which there is no place. @type {Record<string, string>} */
const THEN = { wait: 'a job without a place waits', refuse: 'a job without a place is refused', replace: 'a new job replaces the oldest', latest: 'the newest job waits for a place' };

/** What the workflow says of its jobs. @param {Omit<Definition, 'hash'>} definition */
function facts({ limit, label: called, columns = [] }) {
  if (!limit && called === undefined && !columns.length) return nothing;
  return html`<dl class="facts inside">
    ${limit ? html`<div><dt>limit of its jobs</dt><dd><b>${shown(limit.use)}</b><span class="quiet">: ${shown(THEN[limit.then] ?? limit.then)}${limit.delay ? html`, begins after ${shown(duration(limit.delay))}` : nothing}${limit.waitAtMost ? html`, fails after waiting ${shown(duration(limit.waitAtMost))}` : nothing}</span></dd></div>` : nothing}
    ${called !== undefined ? html`<div><dt>label</dt><dd><code>${shown(called)}</code></dd></div>` : nothing}
    ${columns.length ? html`<div><dt>columns</dt><dd>${columns.map(({ name, value }, index) => html`${index ? ', ' : nothing}<b>${shown(name)}</b> <code>${shown(value)}</code>`)}</dd></div>` : nothing}
  </dl>`;
}

/** How often an attempt is made, and the pauses between. @param {StepDefinition} step */
function attempts({ retry }) {
  if (!retry) return '1';
  const { attempts: most, backoff, factor, maxBackoff } = retry;
  return html`${count(most)}, pauses from ${shown(duration(backoff))}${factor === 1 ? nothing : html` × ${factor}`}${factor === 1 || maxBackoff === undefined ? nothing : html`, at most ${shown(duration(maxBackoff))}`}`;
}

/** What the last column tells. */
const FURTHER = ['limit', 'waitAtMost', 'startWithin', 'when', 'cancelWhen', 'onFailure', 'statusKey', 'statuses', 'skippedStatus', 'cancelledStatus', 'priority', 'replyUsers'];

/**
 * @param {StepDefinition[]} steps
 * @param {string | undefined} chosen
 * @param {(step: string | undefined) => string} link
 */
function table(steps, chosen, link) {
  return html`<div class="table-wrap" ${scrolls()}><table class="steps-table stacked"><thead><tr><th>Step</th><th>Waits for</th><th>Goes to</th><th>Timeout</th><th>Attempts</th><th>Limits, conditions, statuses</th></tr></thead><tbody>${steps.map((step) => html`<tr class=${chosen === step.name ? 'at' : ''}>
      <td><a href=${link(chosen === step.name ? undefined : step.name)}><b>${shown(step.name)}</b></a></td>
      <td data-label="waits for" class="quiet">${step.depends?.length ? shown(step.depends.join(', ')) : 'the job’s message'}</td>
      <td data-label="goes to">${step.task ? html`task <code>${shown(step.task)}</code>` : step.external ? 'a call of the API' : html`<code>${shown(step.queue ?? '')}</code>${step.bus ? html` <span class="quiet">on ${shown(step.bus)}</span>` : nothing}`}</td>
      <td data-label="timeout" class="quiet">${step.timeout !== undefined ? shown(duration(step.timeout)) : step.external || step.task ? '–' : 'none'}</td>
      <td data-label="attempts" class="quiet">${attempts(step)}</td>
      <td class="conditions">${settings(step).filter(([key]) => FURTHER.includes(key)).map(([key, value]) => html`<div><span class="quiet">${key}</span> <code>${shown(value)}</code></div>`)}</td>
    </tr>`)}</tbody></table></div>`;
}
