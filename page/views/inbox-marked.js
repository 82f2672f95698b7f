// The decision on all steps that are marked, if they are alike.

import { html, nothing } from '../vendor/lit-html@3.3.3/lit-html.js';
import { messageOf, tell } from '../lib/app.js';
import { css } from '../lib/dom.js';
import { icon } from '../lib/icons.js';
import { redraw } from '../lib/redraw.js';
import { count, counted, named, shown } from '../lib/text.js';
import { decide, DecisionForm } from './inbox-decision.js';
import { columnsOf, placeOf } from './inbox-letter.js';

/** @import { Verdict } from './inbox-decision.js' */
/** @import { Letter } from './inbox-letter.js' */

/**
 * @typedef {{ id: string, name: string, letters: Letter[] }} Kind steps of one name, with the same words
 * @typedef {{ all: number, ended: number, refused: { letter: Letter, reason: string }[], over: boolean }} Run
 * @typedef {{ linkOf: (letter: Letter) => string, only: (letters: Letter[]) => void, decided: (letter: Letter) => void, over: () => void }} Marks
 */

/** So many are sent at once. */
const AT_ONCE = 4;
/** From so many on the number is to be typed. */
const TYPED_FROM = 20;

/** @param {Letter[]} letters */
function kindsOf(letters) {
  /** @type {Map<string, Kind>} */
  const kinds = new Map();
  for (const letter of letters) {
    const { workflow, task, step, statusKey = '', statuses = [] } = letter;
    const name = `${step} of ${workflow}${task === undefined ? '' : `, task ${task}`}`;
    const id = JSON.stringify([name, statusKey, statuses]);
    const kind = kinds.get(id) ?? { id, name, letters: [] };
    kind.letters.push(letter);
    kinds.set(id, kind);
  }
  return [...kinds.values()];
}

/** Jobs of an older definition may have other words for a step of the same name. @param {Kind} kind @param {Kind[]} kinds */
function nameAmong({ id, name, letters: [{ statusKey, statuses = [] }] }, kinds) {
  if (!kinds.some((other) => other.name === name && other.id !== id)) return name;
  return `${name}, ${statusKey ? `${statusKey}: ${statuses.slice(1).join(', ') || 'any'}` : 'no status'}`;
}

export class Marked {
  #marks;
  /** The form, and the kind of steps that it is for. @type {{ id: string, form: DecisionForm } | undefined} */
  #form;
  /** What was drawn last: what is decided is what was seen. @type {Letter[]} */
  #letters = [];
  #typed = '';
  /** @type {Run | undefined} */
  #run;

  /** @param {Marks} marks `over`: nothing is under way any more */
  constructor(marks) {
    this.#marks = marks;
  }

  /** Whether there is something to tell, although nothing may be marked any more. */
  get tells() {
    return this.#run !== undefined;
  }

  /** Nothing is marked: what is marked next is decided anew. */
  forget() {
    this.#form = undefined;
    this.#typed = '';
  }

  /** @param {Verdict} verdict */
  async #send(verdict) {
    const letters = this.#letters;
    /** @type {Run} */
    const run = { all: letters.length, ended: 0, refused: [], over: false };
    this.#run = run;
    redraw();
    const rest = letters.values();
    await Promise.all(Array.from({ length: AT_ONCE }, async () => {
      for (const letter of rest) {
        try {
          await decide(letter, verdict);
          this.#marks.decided(letter);
        } catch (error) {
          run.refused.push({ letter, reason: messageOf(error) });
        }
        run.ended += 1;
        redraw();
      }
    }));
    run.over = true;
    this.#typed = '';
    const { length: refused } = run.refused;
    if (!refused) this.#run = undefined;
    const done = run.all - refused;
    const what = verdict.type === 'error' ? 'failed' : 'completed';
    tell(refused ? `${count(done)} of ${counted(run.all, 'step')} ${done === 1 ? 'was' : 'were'} ${what} by hand, ${count(refused)} refused` : `${counted(done, 'step')} ${done === 1 ? 'was' : 'were'} ${what} by hand`, refused ? 'problem' : 'done');
    this.#marks.over();
  }

  /** @param {Letter[]} letters */
  template(letters) {
    this.#letters = letters;
    const kinds = kindsOf(letters);
    const [kind] = kinds;
    return html`<section class="panel inbox-panel inbox-marked" aria-label="Decision">
      <header class="panel-head"><div class="step-title"><h2 tabindex="-1">${letters.length ? `Decide ${counted(letters.length, 'step')}` : this.#run?.over ? 'Decided' : 'Deciding'}</h2>${kinds.length === 1 ? html`<span class="quiet">${shown(kind.name)}</span>` : nothing}</div></header>
      <div class="tab-body">${this.#told()}
        ${kinds.length > 1 ? html`<p>These are ${count(kinds.length)} different steps. Those of one name are decided together.</p>` : nothing}
        ${kinds.map((one) => html`${kinds.length > 1 ? html`<button class="button small" @click=${() => this.#marks.only(one.letters)}>Mark only the ${count(one.letters.length)} ${shown(nameAmong(one, kinds))}</button>` : nothing}<ul class="facts-list">${one.letters.map((letter) => html`<li>${this.#linkOf(letter)}${columnsOf(letter)}</li>`)}</ul>`)}</div>
      ${kinds.length === 1 ? this.#decision(kind) : nothing}
    </section>`;
  }

  /** What it is called leads to what it was given. @param {Letter} letter */
  #linkOf(letter) {
    return html`<a href=${this.#marks.linkOf(letter)}>${named(letter.label, letter.root ?? letter.job)}${placeOf(letter)}</a>`;
  }

  /** @param {Kind} kind */
  #decision({ id, letters }) {
    if (this.#form?.id !== id) this.#form = { id, form: new DecisionForm(letters[0], (verdict) => this.#send(verdict)) };
    const { length } = letters;
    const asks = length < TYPED_FROM ? nothing : html`<label class="row bulk-typed">Type <b>${length}</b> to go on <input class="field" inputmode="numeric" autocomplete="off" .value=${this.#typed} @input=${(/** @type {InputEvent} */ event) => { this.#typed = /** @type {HTMLInputElement} */ (event.target).value; redraw(); }}></label>`;
    return this.#form.form.template({
      fail: length === 1 ? 'Fail it' : 'Fail them',
      complete: `Complete ${counted(length, 'step')}`,
      hint: length === 1 ? undefined : `all ${count(length)} get the same`,
      asks,
      // One after the other: the form of another kind of steps waits too.
      ready: this.#run?.over !== false && (length < TYPED_FROM || this.#typed.replace(/[ ,.]/g, '') === String(length)),
    });
  }

  /** How far it is, and then what the manager said of what it refused. */
  #told() {
    if (!this.#run) return nothing;
    const { all, ended, refused, over } = this.#run;
    if (!over) return html`<div class="fan-bar"><i class="completed" ${css({ width: `${(100 * (ended - refused.length)) / all}%` })}></i><i class="failed" ${css({ width: `${(100 * refused.length) / all}%` })}></i></div><p role="status"><b>${count(ended)}</b> of ${count(all)} …</p>`;
    return html`<div class="problem" role="alert">${icon('alert')}<span>${count(refused.length)} of ${count(all)} ${refused.length === 1 ? 'was' : 'were'} refused</span><span class="space"></span><button class="mini" @click=${() => { this.#run = undefined; redraw(); }}>Put away</button></div>
      <ul class="facts-list refused">${refused.map(({ letter, reason }) => html`<li>${this.#linkOf(letter)} <span class="quiet">${shown(reason)}</span></li>`)}</ul>`;
  }
}
