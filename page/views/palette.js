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
import { completions, searchAddress, uuidOf } from '../lib/search.js';
import { workflowNames } from '../lib/shared.js';
import { shown } from '../lib/text.js';
import { openSave } from './saved.js';

/** @import { PATHS } from '../lib/icons.js' */
/** @import { FoundPage } from '../lib/types.js' */

/** @typedef {{ name: string, hint: string, sign: keyof typeof PATHS, run?: () => void, fill?: string }} Choice */

let text = '';
let chosen = 0;
/** What can be chosen. It changes with the text alone, not with what happens to a job meanwhile: Enter is for what is read. @type {Choice[]} */
let list = [];

/** @param {string} start */
export function openPalette(start) {
  write(start);
  openDialog({ title: 'Search and commands', kind: 'palette', body: template });
  redrawNow();
}

/** @param {string} to */
function write(to) {
  text = to;
  chosen = 0;
  list = choices();
  const id = uuidOf(to.trim());
  if (id) void askLabel(to, id);
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
  const complete = completions(text, names);
  if (to) found.push({ name: uuidOf(typed) ? `Open job ${uuidOf(typed)}` : names.includes(typed) ? `Jobs of ${typed}` : `Search jobs: ${typed}`, hint: 'Enter', sign: uuidOf(typed) ? 'right' : 'search', run: () => go(to) });
  for (const whole of complete.slice(0, 7)) found.push({ name: whole, hint: 'Tab', sign: 'filter', fill: whole });
  const words = typed.toLowerCase().split(/\s+/).filter(Boolean);
  const matches = (/** @type {string} */ name) => words.every((word) => name.toLowerCase().includes(word));
  const commands = app.view?.commands?.() ?? [];
  const own = (/** @type {boolean} */ late) => commands.filter((command) => (command.late ?? false) === late).map((command) => ({ name: command.name, hint: command.keys ?? command.hint ?? '', sign: /** @type {const} */ ('play'), run: command.run }));
  /** @type {Choice[]} */
  const rest = [
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
  ];
  found.push(...rest.filter((choice) => matches(choice.name)));
  return found.slice(0, 40);
}

function template() {
  return html`<div class="palette">
    <div class="palette-field">${icon('search')}<input class="palette-input" type="text" autocomplete="off" spellcheck="false" role="combobox" aria-expanded="true" aria-controls="palette-list" aria-activedescendant=${list.length ? `palette-${chosen}` : ''} aria-label="Search and commands" placeholder="An id, workflow:orders state:failed after:24h, or a command" .value=${live(text)} @input=${typed} @keydown=${keys} ${attached((element) => element.focus())}></div>
    <ul class="palette-list" id="palette-list" role="listbox" aria-label="Choices">${list.map((choice, index) => html`<li id="palette-${index}" role="option" aria-selected=${index === chosen ? 'true' : 'false'} @click=${() => choose(choice)} @pointermove=${() => point(index)}>${icon(choice.sign)}<span class="palette-name">${shown(choice.name)}</span><span class="quiet">${shown(choice.hint)}</span></li>`)}</ul>
    ${list.length ? '' : html`<p class="calm">Nothing by that name. A search has words such as <code>workflow:orders state:failed status.invoice:OPEN after:24h</code>.</p>`}
  </div>`;
}

/** @param {number} index */
function point(index) {
  if (chosen === index) return;
  chosen = index;
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
    chosen = (chosen + (event.key === 'ArrowDown' ? 1 : list.length - 1)) % Math.max(1, list.length);
    document.getElementById(`palette-${chosen}`)?.scrollIntoView({ block: 'nearest' });
  } else if (event.key === 'Tab' && list.some((choice) => choice.fill)) {
    choose(/** @type {Choice} */ (list.find((choice) => choice.fill)));
  } else if (event.key === 'Enter') {
    if (list[chosen]) choose(list[chosen]);
  } else return;
  event.preventDefault();
  redraw();
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
