// The decision on a step that waits for a person: what is to be judged, and the form beside it.

import { html, nothing } from '../vendor/lit-html@3.3.3/lit-html.js';
import { act } from '../lib/api.js';
import { messageOf, tell } from '../lib/app.js';
import { icon } from '../lib/icons.js';
import { redraw } from '../lib/redraw.js';
import { link } from '../lib/route.js';
import { may } from '../lib/shared.js';
import { named, shortId, shown } from '../lib/text.js';
import { moment } from '../lib/time.js';
import { placeOf } from './inbox-letter.js';
import { lacksStatus, outputOf, statusChoices, whyField } from './job-operations.js';
import { Payload } from './payload.js';

/** @import { Letter } from './inbox-letter.js' */

/** @typedef {{ type: 'result' | 'error', output: string, reason: string }} Verdict */

/**
 * @param {Letter} letter
 * @param {Verdict} verdict
 */
export function decide({ job, step }, { type, output, reason }) {
  if (type === 'error') return act('POST', ['job', job, 'step', step], { type }, JSON.stringify({ error: reason }));
  return act('POST', ['job', job, 'step', step], { type, reason: reason || undefined }, output);
}

/** The form of a decision. */
export class DecisionForm {
  #letter;
  #send;
  #text;
  #reason = '';
  #problem = '';
  #busy = false;
  /** It was to be completed without a status. */
  #asked = false;

  /**
   * @param {Letter} letter the step, or one of several that are alike
   * @param {(verdict: Verdict) => Promise<void>} send
   */
  constructor(letter, send) {
    this.#letter = letter;
    this.#send = send;
    this.#text = outputOf(letter, '');
  }

  /** @param {Verdict['type']} type */
  async #decide(type) {
    // A second click may come before the buttons are drawn as disabled.
    if (this.#busy) return;
    this.#problem = '';
    this.#asked = type === 'result' && lacksStatus(this.#letter, this.#text);
    if (this.#asked) {
      redraw();
      /** @type {HTMLElement | null} */ (document.querySelector('.inbox-form .choices button'))?.focus();
      return;
    }
    const reason = this.#reason.trim();
    if (type === 'error' && !reason) {
      this.#problem = 'Say why: the record keeps the reason of a failure.';
      redraw();
      return;
    }
    this.#busy = true;
    redraw();
    try {
      await this.#send({ type, output: this.#text, reason });
    } catch (error) {
      this.#problem = messageOf(error);
    }
    this.#busy = false;
    redraw();
  }

  /** @param {{ fail: string, complete: string, hint?: string, asks?: unknown, ready?: boolean }} words of its buttons; `hint`: whose output it is; `asks`: what is to be answered before it is `ready` */
  template({ fail, complete, hint, asks = nothing, ready = true }) {
    // The first word is the one that it has while it waits.
    const words = this.#letter.statuses?.slice(1) ?? [];
    const missing = this.#asked && lacksStatus(this.#letter, this.#text);
    const withKeys = (/** @type {KeyboardEvent} */ event) => {
      if (event.key !== 'Enter' || !(event.ctrlKey || event.metaKey)) return;
      event.preventDefault();
      // Nothing happens while the button may not be pressed.
      /** @type {HTMLElement | null} */ (/** @type {HTMLFormElement} */ (event.currentTarget).querySelector('button.primary'))?.click();
    };
    return html`<form class="dialog-form inbox-form" @keydown=${withKeys} @submit=${(/** @type {Event} */ event) => { event.preventDefault(); void this.#decide('result'); }}>
      ${statusChoices(this.#letter, words, this.#text, missing, (output) => { this.#text = output; })}
      <label class="label" for="inbox-output">Output, a JSON object${hint ? html` <span class="quiet">(${hint})</span>` : nothing}</label>
      <textarea id="inbox-output" class="field code-field" rows="3" spellcheck="false" required .value=${this.#text} @input=${(/** @type {InputEvent} */ event) => { this.#text = /** @type {HTMLTextAreaElement} */ (event.target).value; redraw(); }}></textarea>
      ${whyField((text) => { this.#reason = text; }, this.#reason)}
      ${asks}
      ${this.#problem ? html`<p class="problem" role="alert">${icon('alert')}<span>${shown(this.#problem)}</span></p>` : nothing}
      <footer class="dialog-foot"><button type="button" class="button" ?disabled=${this.#busy || !ready} @click=${() => this.#decide('error')}>${fail}</button><button class="button primary" ?disabled=${this.#busy || !ready}>${complete}</button></footer>
    </form>`;
  }
}

/** What is to be judged, and the decision below it. */
export class Panel {
  letter;
  #form;
  #input;
  /** It is asked for when it is wanted. @type {Payload | undefined} */
  #message;

  /**
   * @param {Letter} letter
   * @param {DecisionForm} form
   */
  constructor(letter, form) {
    const { job, step } = letter;
    this.letter = letter;
    this.#form = form;
    this.#input = new Payload(['job', job, 'step', step, 'input'], { name: `${step} input`, none: 'It has no input.' });
  }

  stop() {
    this.#input.stop();
    this.#message?.stop();
  }

  /** @param {boolean} waits */
  template(waits) {
    const { workflow, step, job, root, label, since } = this.letter;
    return html`<section class="panel inbox-panel" aria-label="Decision">
      <header class="panel-head"><div class="step-title"><h2>${shown(step)}</h2><span class="quiet">${shown(workflow)}</span></div><span class="space"></span><a class="button small" href=${link(['job', job], { step })}>${label === undefined || root ? html`Job ${shown(shortId(job))}` : named(label, job)}</a></header>
      <p class="step-line quiet">waits since ${moment(since)}${root ? html`, ${placeOf(this.letter)} of <a href=${link(['job', root])}>${named(label, root)}</a>` : nothing}</p>
      <div class="tab-body"><h3>What it was given</h3>${this.#input.template()}
        <details class="why-more" @toggle=${() => { this.#message ??= new Payload(['job', job, 'message'], { name: 'message', none: 'The job has no message.' }); redraw(); }}><summary>The job’s message</summary>${this.#message?.template() ?? nothing}</details></div>
      ${!waits ? html`<p class="calm">It does not wait any more.</p>` : !may() ? html`<p class="calm">Your token may look, and not decide.</p>` : this.#form.template({ fail: 'Fail it', complete: 'Complete it' })}
    </section>`;
  }
}
