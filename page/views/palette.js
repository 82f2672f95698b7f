// The palette: one field for everything. It takes ids, searches, names of pages and workflows, and what the view can do.

import { html } from '../vendor/lit-html@3.3.3/lit-html.js';
import { live } from '../vendor/lit-html@3.3.3/directives/live.js';
import { get, token } from '../lib/api.js';
import { app, closeDialog, copied, go, openDialog } from '../lib/app.js';
import { attached } from '../lib/dom.js';
import { icon } from '../lib/icons.js';
import { prefer, preferences } from '../lib/preferences.js';
import { redraw, redrawNow } from '../lib/redraw.js';
import { link } from '../lib/route.js';
import { completions, readSearch, searchAddress, searches, searchName, uuidOf } from '../lib/search.js';
import { columnNames, learnNames, stepNames, stepsByWorkflow, workflowNames } from '../lib/shared.js';
import { count, shown } from '../lib/text.js';
import { openSave } from './saved.js';

/** @import { PATHS } from '../lib/icons.js' */
/** @import { FoundPage } from '../lib/types.js' */

/** @typedef {{ name: string, hint: string, sign: keyof typeof PATHS, run?: () => void, fill?: string, query?: Map<string, string>, found?: FoundPage }} Choice `query`: a search that the text may mean; `found`: what it finds */

/** Before the searches are tried, the text stays as it is for so long. */
const STILL_MS = 200;
/** So long Enter waits for what they find. */
const PATIENCE_MS = 2000;
const SHORTEST = 2;
/** So many commands. */
const MOST = 40;

let text = '';
let chosen = 0;
/** Whether it was chosen by hand. */
let moved = false;
/** The searches that are being tried for this text. @type {{ stop: AbortController, done: Promise<void> } | undefined} */
let trying;
/** What can be chosen. It changes with the text alone, not with what happens to a job meanwhile: Enter is for what is read. @type {Choice[]} */
let list = [];

/** @param {string} start */
export function openPalette(start) {
  void learnNames();
  openDialog({ title: 'Search and commands', kind: 'palette', body: template, closed: () => trying?.stop.abort() });
  write(start);
  redrawNow();
}

/** @param {string} to */
function write(to) {
  text = to;
  chosen = 0;
  moved = false;
  list = choices();
  trying?.stop.abort();
  trying = undefined;
  const id = uuidOf(to.trim());
  if (id) void askLabel(to, id);
  else if (to.trim().length >= SHORTEST && meant().length) {
    const stop = new AbortController();
    trying = { stop, done: tryAll(stop.signal).finally(() => { if (trying?.stop === stop) trying = undefined; }) };
  }
}

/** The searches that the text may mean, always in the same order. @returns {Choice[]} */
function meant() {
  const typed = text.trim();
  if (!typed || searchAddress(typed, workflowNames())) return [];
  return searches(typed, columnNames(readSearch(typed).query.get('workflow'))).map((query) => ({ name: searchName(query, typed), hint: '', sign: 'search', query, run: () => go(link(['jobs'], query)) }));
}

/** @param {number} ms */
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** Looks what each search finds. @param {AbortSignal} signal */
async function tryAll(signal) {
  await pause(STILL_MS);
  if (!signal.aborted) await learnNames();
  if (signal.aborted) return;
  const before = new Set(list.map(({ name }) => name));
  const last = list.findLastIndex(({ query }) => query);
  const at = list[chosen];
  // What a name of a column adds comes behind them.
  list = list.toSpliced(last + 1, 0, ...meant().filter(({ name }) => !before.has(name)));
  chosen = Math.max(0, list.indexOf(at));
  await Promise.all(list.map(async (choice) => {
    if (!choice.query) return;
    /** @type {FoundPage | undefined} */
    const found = await get(['jobs', 'search'], [...choice.query, ['limit', '1'], ['count', 'true']], signal).catch(() => undefined);
    if (signal.aborted) return;
    choice.found = found;
    if (!moved) chosen = likeliest();
    redraw();
  }));
}

/** What Enter is for if nothing was chosen: the first, but of the searches the first that does not find nothing. */
function likeliest() {
  return list[0]?.query ? Math.max(0, list.findIndex(({ query, found }) => query && found?.count !== 0)) : 0;
}

/** @param {Choice} choice */
function hintOf({ hint, found }) {
  return found?.count === undefined ? hint : `${found.countIsMinimum ? 'more than ' : ''}${count(found.count)} found`;
}

/** A job is named by its label once that is known; what Enter does stays. @param {string} typed @param {string} id */
async function askLabel(typed, id) {
  /** @type {FoundPage} */
  const { jobs } = await get(['jobs', 'search'], { id, limit: 1 }, undefined).catch(() => ({ jobs: [] }));
  const label = jobs[0]?.label;
  if (label === undefined || text !== typed || !list.length) return;
  list[0] = { ...list[0], name: `Open job ${label}` };
  redraw();
}

/** @returns {Choice[]} */
function choices() {
  const names = workflowNames();
  /** @type {Choice[]} */
  const found = [];
  const typed = text.trim();
  const to = typed ? searchAddress(typed, names) : undefined;
  const { query, free } = readSearch(typed);
  const searched = meant();
  const complete = completions(text, names, columnNames(query.get('workflow')), stepNames(query.get('workflow'))).slice(0, 7).map((whole) => /** @type {Choice} */ ({ name: whole, hint: 'Tab', sign: 'filter', fill: whole }));
  if (to) found.push({ name: uuidOf(typed) ? `Open job ${uuidOf(typed)}` : names.includes(typed) ? `Jobs of ${typed}` : `Search jobs: ${typed}`, hint: 'Enter', sign: uuidOf(typed) ? 'right' : 'search', run: () => go(to) });
  if (!/\s/.test(free)) found.push(...complete.splice(0));
  const words = typed.toLowerCase().split(/\s+/).filter(Boolean);
  const matches = (/** @type {string} */ name) => words.every((word) => name.toLowerCase().includes(word));
  /** Who types a name of a customer does not mean a command that has its letters somewhere. */
  const begins = (/** @type {string} */ name) => words.every((word) => ` ${name.toLowerCase()}`.split(word).slice(0, -1).some((before) => /[^\p{L}\p{N}]$/u.test(before)));
  const commands = app.view?.commands?.() ?? [];
  const own = (/** @type {boolean} */ late) => commands.filter((command) => (command.late ?? false) === late).map((command) => ({ name: command.name, hint: command.keys ?? command.hint ?? '', sign: /** @type {const} */ ('play'), run: command.run }));
  /** @type {Choice[]} */
  const offered = [
    ...own(false),
    { name: 'Overview', hint: 'g o', sign: 'overview', run: () => go('#/') },
    { name: 'Jobs', hint: 'g j', sign: 'jobs', run: () => go('#/jobs') },
    { name: 'Inbox', hint: 'g i', sign: 'inbox', run: () => go('#/inbox') },
    { name: 'Schedules', hint: 'g c', sign: 'schedules', run: () => go('#/schedules') },
    { name: 'Failed jobs', hint: '', sign: 'failed', run: () => go('#/jobs?state=failed') },
    { name: 'Running jobs, oldest first', hint: '', sign: 'running', run: () => go('#/jobs?state=running&order=oldest') },
    { name: 'Statuses', hint: 'g s', sign: 'statuses', run: () => go('#/statuses') },
    { name: 'Definitions', hint: 'g d', sign: 'definitions', run: () => go('#/definitions') },
    { name: 'Manager', hint: 'g m', sign: 'manager', run: () => go('#/manager') },
    { name: 'Save this view', hint: '', sign: 'star', run: () => openSave(app.view?.title() ?? '') },
    ...preferences.saved.map((view) => ({ name: view.name, hint: 'saved view', sign: /** @type {const} */ ('star'), run: () => go(view.address) })),
    ...names.flatMap((name) => /** @type {Choice[]} */ ([
      { name: `Jobs of ${name}`, hint: '', sign: 'jobs', run: () => go(link(['jobs'], { workflow: name })) },
      { name: `Statuses of ${name}`, hint: '', sign: 'statuses', run: () => go(link(['statuses', ...name.split('/')])) },
      { name: `Definition of ${name}`, hint: '', sign: 'definitions', run: () => go(link(['definitions', ...name.split('/')])) },
    ])),
    ...(['light', 'dark', 'system'].map((theme) => /** @type {Choice} */ ({ name: `Theme: ${theme}`, hint: '', sign: theme === 'light' ? 'sun' : theme === 'dark' ? 'moon' : 'screen', run: () => { prefer({ theme: /** @type {any} */ (theme) }); document.dispatchEvent(new Event('theme')); } }))),
    { name: preferences.utc ? 'Times in local time' : 'Times in UTC', hint: '', sign: 'clock', run: () => prefer({ utc: !preferences.utc }) },
    ...(token.get() ? [/** @type {Choice} */ ({ name: 'Forget the token', hint: '', sign: 'close', run: () => { token.set(''); location.reload(); } })] : []),
    { name: 'Copy link to this page', hint: '', sign: 'link', run: () => void copied(location.href, 'Link') },
    ...own(true),
    ...(typed ? stepsByWorkflow() : []).map(({ workflow, step }) => /** @type {Choice} */ ({ name: `Step ${step} of ${workflow}`, hint: 'definition', sign: 'definitions', run: () => go(link(['definitions', ...workflow.split('/')], { step })) })),
  ];
  const rest = offered.filter((choice) => matches(choice.name));
  const first = rest.filter((choice) => begins(choice.name)).slice(0, MOST);
  found.push(...first, ...searched, ...complete, ...rest.filter((choice) => !first.includes(choice)));
  return found.slice(0, MOST + searched.length);
}

function template() {
  return html`<div class="palette">
    <div class="palette-field">${icon('search')}<input class="palette-input" type="text" autocomplete="off" spellcheck="false" role="combobox" aria-expanded="true" aria-controls="palette-list" aria-activedescendant=${list.length ? `palette-${chosen}` : ''} aria-label="Search and commands" placeholder="An id, a label, a value, state:failed, or a command" .value=${live(text)} @input=${typed} @keydown=${keys} ${attached((element) => element.focus())}></div>
    <ul class="palette-list" id="palette-list" role="listbox" aria-label="Choices">${list.map((choice, index) => html`<li id="palette-${index}" role="option" aria-selected=${index === chosen ? 'true' : 'false'} @click=${() => choose(choice)} @pointermove=${() => point(index)}>${icon(choice.sign)}<span class="palette-name">${shown(choice.name)}</span><span class="quiet">${shown(hintOf(choice))}</span></li>`)}</ul>
    ${list.length ? '' : html`<p class="calm">Nothing by that name. A search has words such as <code>workflow:orders state:failed label:Ada column.order:4711 after:24h</code>.</p>`}
  </div>`;
}

/** @param {number} index */
function point(index) {
  if (chosen === index) return;
  chosen = index;
  moved = true;
  redraw();
}

/** @param {InputEvent} event */
function typed(event) {
  write(/** @type {HTMLInputElement} */ (event.target).value);
  redraw();
}

/** @param {KeyboardEvent} event */
function keys(event) {
  if (event.key === 'ArrowDown' || event.key === 'ArrowUp') {
    moved = true;
    chosen = (chosen + (event.key === 'ArrowDown' ? 1 : list.length - 1)) % Math.max(1, list.length);
    document.getElementById(`palette-${chosen}`)?.scrollIntoView({ block: 'nearest' });
  } else if (event.key === 'Tab' && list.some((choice) => choice.fill)) {
    choose(/** @type {Choice} */ (list.find((choice) => choice.fill)));
  } else if (event.key === 'Enter') {
    void enter();
  } else return;
  event.preventDefault();
  redraw();
}

/** A search is not opened before it is known which of them find something: the same keys lead to the same place, however fast they are. */
async function enter() {
  const typed = text;
  if (!moved && list[0]?.query && trying) {
    await Promise.race([trying.done, pause(PATIENCE_MS)]);
    if (text !== typed || app.dialog?.kind !== 'palette') return;
  }
  if (list[chosen]) choose(list[chosen]);
}

/** @param {Choice} choice */
function choose(choice) {
  if (choice.fill !== undefined) {
    write(choice.fill);
    // At once: the next key may come before the next frame.
    const field = /** @type {HTMLInputElement | null} */ (document.querySelector('.palette-input'));
    if (field) field.value = text;
    redraw();
    return;
  }
  closeDialog();
  choice.run?.();
  redraw();
}
