// A payload as it came: its raw text, set out in lines. Large ones are shown in part until all is asked for.

import { html, nothing } from '../vendor/lit-html@3.3.3/lit-html.js';
import { download, Problem, raw } from '../lib/api.js';
import { copied, messageOf, tell } from '../lib/app.js';
import { css } from '../lib/dom.js';
import { icon } from '../lib/icons.js';
import { lines, readable } from '../lib/json.js';
import { redraw } from '../lib/redraw.js';
import { Rows } from '../lib/rows.js';
import { Source } from '../lib/source.js';
import { bytes, count, shown } from '../lib/text.js';

/** @import { Line } from '../lib/json.js' */
/** @import { TemplateResult } from '../vendor/lit-html@3.3.3/lit-html.js' */

const FIRST_PART = 256 * 1024;
/** Up to so many lines are set out whole, with their breaks; more are windowed. */
const FEW_LINES = 300;
/** A value longer than this is cut in the picture; copies and files have all of it. */
const LONG_VALUE = 3000;

/** @typedef {{ text: string, size: number, whole: boolean, lines: Line[] }} Loaded */

/**
 * @param {string} text
 * @param {(part: string) => string} [as] how a part of it is read
 */
function lineOf(text, as = (part) => part) {
  return text.length > LONG_VALUE ? html`${shown(as(text.slice(0, LONG_VALUE)))}<span class="cut">… ${count(text.length - LONG_VALUE)} more signs</span>` : shown(as(text));
}

/**
 * @param {Line} line
 * @param {number} number
 */
function lineTemplate(line, number) {
  return html`<div class="code-line" ${css({ '--indent': line.indent })}><span class="code-number" aria-hidden="true">${number + 1}</span><span class="code-text">${line.tokens.map((token) => html`<span class="t-${token.kind}">${lineOf(token.text, token.kind === 'string' || token.kind === 'key' ? readable : undefined)}</span>${token.text === ',' || token.text === ':' ? ' ' : nothing}`)}</span></div>`;
}

/**
 * A short text set out at once, for what is in an answer already.
 * @param {string} text
 */
export function codeOf(text) {
  const all = lines(text);
  return html`<div class="code">${all.slice(0, FEW_LINES).map(lineTemplate)}${all.length > FEW_LINES ? html`<div class="cut">… ${count(all.length - FEW_LINES)} more lines</div>` : nothing}</div>`;
}

export class Payload {
  #path;
  #query;
  #name;
  #none;
  #all = false;
  #asText = false;
  #rows = new Rows(20);
  /** @type {Source<Loaded>} */
  source;

  /**
   * @param {string[]} path
   * @param {{ name: string, none: string, query?: Record<string, string> }} options `none`: what to say if there is no payload
   */
  constructor(path, { name, none, query = {} }) {
    this.#path = path;
    this.#query = query;
    this.#name = name;
    this.#none = none;
    this.source = new Source(async (signal) => {
      const loaded = await raw(this.#path, { most: this.#all ? undefined : FIRST_PART, query: this.#query, signal });
      return { ...loaded, lines: lines(loaded.text) };
    });
    void this.source.refresh();
  }

  stop() {
    this.source.stop();
    this.#rows.stop();
  }

  /** @returns {TemplateResult} */
  template() {
    const { data, error } = this.source;
    if (!data) {
      if (error instanceof Problem && error.notHere) return html`<p class="calm">This manager does not tell payloads yet. A newer version of it does.</p>`;
      if (error && (error.status === 404 || error.status === 409)) return html`<p class="calm">${this.#none}</p>`;
      if (error) return html`<p class="calm">${shown(error.message)}</p>`;
      return html`<div class="waiting-lines" aria-hidden="true"><i></i><i></i><i></i></div>`;
    }
    return html`<div class="payload">
      <div class="payload-bar">
        <span class="quiet">${bytes(data.size)}${data.whole ? '' : html`, the first ${bytes(data.text.length)} shown`}</span>
        <span class="space"></span>
        ${data.whole ? nothing : html`<button class="mini" @click=${() => { this.#all = true; void this.source.refresh(); }}>Show all</button>`}
        <button class="mini" aria-pressed=${this.#asText ? 'true' : 'false'} @click=${() => { this.#asText = !this.#asText; redraw(); }}>As it came</button>
        <button class="mini" @click=${this.#copy}>${icon('copy')}Copy</button>
        <button class="mini" aria-label="Save as a file" title="Save as a file" @click=${this.#save}>${icon('download')}</button>
      </div>
      ${this.#asText ? html`<div class="code as-text" tabindex="0" role="region" aria-label="${this.#name}, as it came">${lineOf(data.text.slice(0, 64 * 1024))}</div>` : this.#pretty(data)}
    </div>`;
  }

  /** @param {Loaded} data */
  #pretty(data) {
    if (data.lines.length <= FEW_LINES) return html`<div class="code" tabindex="0" role="region" aria-label=${this.#name}>${data.lines.map(lineTemplate)}${data.whole ? nothing : html`<div class="cut">… cut here</div>`}</div>`;
    return this.#rows.template(data.lines.length, (row) => lineTemplate(data.lines[row], row), { label: this.#name, name: 'code windowed' });
  }

  #copy = async () => {
    try {
      const { data } = this.source;
      const text = data?.whole ? data.text : (await raw(this.#path, { query: this.#query })).text;
      await copied(text, 'Payload');
    } catch (error) {
      tell(messageOf(error), 'problem');
    }
  };

  #save = async () => {
    try {
      await download(this.#path, `${this.#name.replace(/[^A-Za-z0-9._-]+/g, '-')}.json`, { query: this.#query });
    } catch (error) {
      tell(messageOf(error), 'problem');
    }
  };
}
