// Which keys there are, and what the signs mean.

import { html } from '../vendor/lit-html@3.3.3/lit-html.js';
import { openDialog } from '../lib/app.js';
import { badge, JOB, JOB_STATES, STEP, STEP_STATES } from '../lib/states.js';

const KEYS = [
  ['Anywhere', [['Ctrl K', 'palette: go anywhere, do anything'], ['/', 'search'], ['g then o j s d m', 'overview, jobs, statuses, definitions, manager'], ['?', 'this help']]],
  ['Lists', [['j k', 'next, previous row'], ['Enter', 'open it'], ['x', 'mark it']]],
  ['Job', [['[ ]', 'an entry of the record back, forth'], ['f', 'next failed step or item'], ['Esc', 'back to now'], ['t r', 'timeline, record'], ['+ - 0', 'graph larger, smaller, all of it']]],
  ['Timeline', [['W S', 'closer, farther'], ['A D', 'earlier, later']]],
];

export function openHelp() {
  openDialog({
    title: 'Keys and signs',
    wide: true,
    body: () => html`<div class="help">
      <div>${KEYS.map(([title, keys]) => html`<h3>${title}</h3><dl class="keys">${/** @type {string[][]} */ (keys).map(([key, what]) => html`<div><dt>${key.split(' ').map((part) => (part === 'then' ? html` then ` : html`<kbd>${part}</kbd>`))}</dt><dd>${what}</dd></div>`)}</dl>`)}</div>
      <div>
        <h3>Jobs</h3><dl class="signs">${JOB_STATES.map((state) => html`<div><dt>${badge(state)}</dt><dd>${JOB[state].means}</dd></div>`)}</dl>
        <h3>Steps</h3><dl class="signs">${STEP_STATES.map((state) => html`<div><dt>${badge(state)}</dt><dd>${STEP[state].means}</dd></div>`)}</dl>
        <p class="quiet">Everything that is shown is in the address: copy it to show it to somebody else.</p>
      </div>
    </div>`,
  });
}
