// A workflow file that is pasted: what `check` says of it, and the graph of each of its workflows. Nothing is saved.

import { html, nothing } from '../vendor/lit-html@3.3.3/lit-html.js';
import { keyed } from '../vendor/lit-html@3.3.3/directives/keyed.js';
import { live } from '../vendor/lit-html@3.3.3/directives/live.js';
import { address, command, Problem, send } from '../lib/api.js';
import { messageOf } from '../lib/app.js';
import { icon } from '../lib/icons.js';
import { redraw } from '../lib/redraw.js';
import { changed } from '../lib/route.js';
import { counted, plain, shown } from '../lib/text.js';
import { DefinitionParts } from './definition-parts.js';

/** @import { Check, CheckedDefinition, Diagnostic } from '../lib/types.js' */
/** @import { Route } from '../lib/route.js' */

/** So many workflows are drawn; a file has few. */
const DRAWN_MOST = 20;
/** So many errors or warnings are listed. */
const LISTED_MOST = 200;

/** @typedef {{ name: string, vhosts: string[], definition: CheckedDefinition, parts: DefinitionParts }} Drawn */

/** What was pasted stays until the tab is closed. */
let text = '';

export class Checker {
  /** @type {{ text: string, number: number, check: Check, drawn: Drawn[] } | undefined} */
  #last;
  #problem = '';
  /** @type {AbortController | undefined} */
  #now;
  #number = 0;

  stop() {
    this.#now?.abort();
    this.#forget();
  }

  #forget() {
    for (const { parts } of this.#last?.drawn ?? []) parts.stop();
    this.#last = undefined;
  }

  async #check() {
    this.#now?.abort();
    const now = new AbortController();
    this.#now = now;
    const asked = text;
    redraw();
    try {
      const response = await send(address(['check']), { method: 'POST', body: asked, signal: now.signal, headers: { 'Content-Type': 'application/yaml' } });
      /** @type {Check} */
      const check = await response.json();
      if (now.signal.aborted) return;
      this.#forget();
      this.#number += 1;
      this.#problem = '';
      this.#last = { text: asked, number: this.#number, check, drawn: drawnOf(check.workflows) };
    } catch (error) {
      if (now.signal.aborted) return;
      this.#problem = error instanceof Problem && error.notHere ? 'This manager does not check texts. The command line does: workflow-manager check FILE.' : messageOf(error);
    }
    this.#now = undefined;
    redraw();
  }

  /** @param {Diagnostic} one */
  #goTo(one) {
    const field = /** @type {HTMLTextAreaElement | null} */ (document.getElementById('check-text'));
    if (!field) return;
    const { start, end } = lineAt(text, one);
    field.focus();
    field.setSelectionRange(start, end);
    // The field scrolls to what is typed, not to what is chosen.
    const height = Number.parseFloat(getComputedStyle(field).lineHeight) || 20;
    field.scrollTop = Math.max(0, (one.line - 4) * height);
  }

  /** @param {Route} route */
  template(route) {
    const last = this.#last;
    return html`<section class="panel" aria-label="Check a file"><div class="panel-title wraps"><h2>Check a file</h2><span class="quiet small">what is wrong with it, and its graph; nothing is saved</span></div>
      <form class="check-form" @submit=${(/** @type {Event} */ event) => { event.preventDefault(); void this.#check(); }}>
        <label class="label" for="check-text">A workflow file, YAML or JSON</label>
        <textarea class="field code-field" id="check-text" rows="12" spellcheck="false" autocapitalize="off" wrap="off" .value=${live(text)} @input=${(/** @type {InputEvent} */ event) => { text = /** @type {HTMLTextAreaElement} */ (event.target).value; redraw(); }}></textarea>
        <div class="check-do"><button class="button primary" ?disabled=${!text.trim() || this.#now !== undefined}>Check it</button>${last && last.text !== text ? html`<span class="quiet small">The text has changed since it was checked.</span>` : nothing}<span class="space"></span><span class="quiet small">for a shell: <code>${command('check', 'FILE')}</code></span></div>
        ${this.#problem ? html`<p class="problem" role="alert">${icon('alert')}<span>${shown(this.#problem)}</span></p>` : nothing}
      </form>
      <div class="check-said" role="status">${last ? this.#said(last.check, last.drawn.length) : nothing}</div></section>
      ${last ? last.drawn.slice(0, DRAWN_MOST).map((drawn, index) => keyed(drawn, this.#workflow(route, drawn, index))) : nothing}
      ${last && last.drawn.length > DRAWN_MOST ? html`<p class="calm">${counted(last.drawn.length - DRAWN_MOST, 'further workflow')} not drawn.</p>` : nothing}`;
  }

  /**
   * @param {Check} check
   * @param {number} workflows
   */
  #said({ valid, errors, warnings }, workflows) {
    const many = valid ? warnings : errors;
    return html`<p class="check-verdict"><span class="badge ${valid ? 'completed' : 'failed'}">${icon(valid ? 'completed' : 'failed')}${valid ? 'valid' : 'not valid'}</span> ${valid ? `${counted(workflows, 'workflow')}, ${counted(warnings.length, 'warning')}` : counted(errors.length, 'error')}</p>
      ${many.length ? html`<ol class="check-list" aria-label=${valid ? 'Warnings' : 'Errors'}>${many.slice(0, LISTED_MOST).map((one) => this.#diagnostic(one))}</ol>` : nothing}
      ${many.length > LISTED_MOST ? html`<p class="calm">${counted(many.length - LISTED_MOST, valid ? 'further warning' : 'further error')} not shown.</p>` : nothing}`;
  }

  /** @param {Diagnostic} one */
  #diagnostic(one) {
    const place = /** @type {const} */ (['workflow', 'task', 'step']).filter((noun) => one[noun]).map((noun) => `${noun} ${one[noun]}`).join(', ');
    return html`<li>${one.line ? html`<button type="button" class="mini" @click=${() => this.#goTo(one)}>line ${one.line}:${one.column}</button>` : html`<span class="mini-like">the whole text</span>`}<div>${place ? html`<span class="quiet">${shown(place)}: </span>` : nothing}${shown(one.message)}</div></li>`;
  }

  /**
   * @param {Route} route
   * @param {Drawn} drawn
   * @param {number} index
   */
  #workflow(route, { name, vhosts, definition, parts }, index) {
    // Steps of two workflows may have the same name.
    const of = String(index);
    const drawn = {
      key: `check ${this.#number} ${index}`,
      definition,
      of: [...vhosts, name].join('/'),
      chosen: route.query.get('of') === of ? route.query.get('step') : undefined,
      link: (/** @type {string | undefined} */ step) => changed(route, { of: step && of, step }),
    };
    return html`<section class="checked" aria-label=${plain(`Workflow ${drawn.of}`)}><div class="check-name"><h2>${shown(name)}</h2>${vhosts.length ? html`<span class="quiet small">in ${vhosts.length === 1 ? 'the virtual host' : 'the virtual hosts'} ${shown(vhosts.join(', '))}</span>` : nothing}</div>
      ${parts.graph(drawn)}${parts.steps(drawn)}</section>`;
  }
}

/** A workflow in several virtual hosts is drawn once. @param {CheckedDefinition[]} workflows @returns {Drawn[]} */
function drawnOf(workflows) {
  /** @type {Map<string, Drawn>} */
  const found = new Map();
  for (const definition of workflows) {
    const { vhost, ...rest } = definition;
    const key = JSON.stringify(rest);
    const known = found.get(key) ?? { name: definition.name, vhosts: [], definition, parts: new DefinitionParts() };
    if (vhost) known.vhosts.push(vhost);
    found.set(key, known);
  }
  return [...found.values()];
}

/** Where the line of a diagnostic begins, from its column on, and ends. @param {string} all @param {{ line: number, column: number }} place */
export function lineAt(all, { line, column }) {
  const lines = all.split('\n');
  const before = lines.slice(0, line - 1).reduce((sum, one) => sum + one.length + 1, 0);
  const own = lines[line - 1] ?? '';
  // Columns count characters, the field counts UTF-16 units.
  const start = [...own].slice(0, Math.max(0, column - 1)).join('').length;
  return { start: before + start, end: before + own.length };
}
