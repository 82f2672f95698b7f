// Which keys there are, what the signs mean, and what can be chosen for this browser.

import { html } from '../vendor/lit-html@3.3.3/lit-html.js';
import { openDialog } from '../lib/app.js';
import { prefer, preferences } from '../lib/preferences.js';
import { redraw } from '../lib/redraw.js';
import { columnNames, learnNames, stepNames } from '../lib/shared.js';
import { badge, JOB, JOB_STATES, STEP, STEP_STATES } from '../lib/states.js';
import { shown } from '../lib/text.js';

/** So many columns or steps are named. */
const NAMES_MOST = 12;

const KEYS = [
  ['Anywhere', [['Ctrl K', 'palette: go anywhere, do anything'], ['/', 'search'], ['g then o j i c s d m', 'overview, jobs, inbox, schedules, statuses, definitions, manager'], ['?', 'this help']]],
  ['Lists', [['j k', 'next, previous row; the list stands still'], ['Enter', 'open it'], ['x', 'mark it: a job, a step of the inbox'], ['Esc', 'leave it: what is new is shown']]],
  ['Inbox', [['d', 'to the decision'], ['Ctrl Enter', 'complete it']]],
  ['Job', [['[ ]', 'an entry of the record back, forth'], ['f', 'next failed step or item'], ['Esc', 'back to now'], ['t r', 'timeline, record'], ['+ - 0', 'graph larger, smaller, all of it']]],
  ['Timeline', [['w s', 'closer, farther'], ['a d', 'earlier, later']]],
];

/** What can be typed into the search and the filters of jobs, with names that the loaded workflows have. */
const filters = () => [
  ['Ada', 'jobs whose label has this text'],
  ['label:"Ada L"', 'the same; a value with spaces has quotes'],
  [`column.${columnNames()[0] ?? 'NAME'}:…`, `whose column has this value in full${more('Columns', columnNames())}`],
  [`status.${stepNames()[0] ?? 'STEP'}:…`, `in which the step has this status; together with workflow:${more('Steps', stepNames())}`],
  ['id:94641893', 'whose id begins with these digits'],
  ['workflow: state: schedule:', 'of a workflow, in a state, started by a schedule'],
  ['after:24h before:', 'created since then, or before; endedAfter: and endedBefore: too'],
  ['order:oldest', 'the oldest first'],
];

/** @param {string} what @param {string[]} names */
const more = (what, names) => (names.length > 1 ? `. ${what}: ${names.slice(0, NAMES_MOST).join(', ')}${names.length > NAMES_MOST ? ' …' : ''}` : '');

/** @param {Parameters<typeof prefer>[0]} changes */
function choose(changes) {
  prefer(changes);
  document.dispatchEvent(new Event('theme'));
  redraw();
}

export function openHelp() {
  void learnNames().then(redraw);
  openDialog({
    title: 'Keys and signs',
    wide: true,
    body: () => html`<div class="help">
      <div>${KEYS.map(([title, keys]) => html`<h3>${title}</h3><dl class="keys">${/** @type {string[][]} */ (keys).map(([key, what]) => html`<div><dt>${key.split(' ').map((part) => (part === 'then' ? html` then ` : html`<kbd>${part}</kbd>`))}</dt><dd>${what}</dd></div>`)}</dl>`)}
        <h3>Search and filters</h3><dl class="keys words-help">${filters().map(([word, what]) => html`<div><dt><code>${shown(word)}</code></dt><dd>${shown(what)}</dd></div>`)}</dl></div>
      <div>
        <h3>Jobs</h3><dl class="signs">${JOB_STATES.map((state) => html`<div><dt>${badge(state)}</dt><dd>${JOB[state].means}</dd></div>`)}</dl>
        <h3>Steps</h3><dl class="signs">${STEP_STATES.map((state) => html`<div><dt>${badge(state)}</dt><dd>${STEP[state].means}</dd></div>`)}</dl>
        <h3>In this browser</h3>
        <div class="choices">
          <div class="segments" role="group" aria-label="Theme">${(/** @type {const} */ (['system', 'light', 'dark'])).map((theme) => html`<button aria-pressed=${preferences.theme === theme ? 'true' : 'false'} @click=${() => choose({ theme })}>${theme}</button>`)}</div>
          <div class="segments" role="group" aria-label="Times"><button aria-pressed=${preferences.utc ? 'false' : 'true'} @click=${() => choose({ utc: false })}>local time</button><button aria-pressed=${preferences.utc ? 'true' : 'false'} @click=${() => choose({ utc: true })}>UTC</button></div>
          <div class="segments" role="group" aria-label="Single keys"><button aria-pressed=${preferences.keys ? 'true' : 'false'} @click=${() => choose({ keys: true })}>single keys</button><button aria-pressed=${preferences.keys ? 'false' : 'true'} @click=${() => choose({ keys: false })}>only Ctrl K</button></div>
        </div>
        <p class="quiet">Everything that is shown is in the address: copy it to show it to somebody else.</p>
      </div>
    </div>`,
  });
}
