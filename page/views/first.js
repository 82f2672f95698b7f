// What a manager shows that has nothing yet: how to begin.

import { html, nothing } from '../vendor/lit-html@3.3.3/lit-html.js';
import { command } from '../lib/api.js';
import { copied } from '../lib/app.js';
import { icon } from '../lib/icons.js';
import { shown } from '../lib/text.js';

/** @param {string} title @param {string} text @param {string[]} lines */
const way = (title, text, lines) => html`<li class="panel first-way"><h3>${title}</h3><p class="quiet">${text}</p>${lines.map((line) => html`<div class="command"><code>${shown(line)}</code><button class="tool" aria-label="Copy ${line}" title="Copy" @click=${() => copied(line, 'Command')}>${icon('copy')}</button></div>`)}</li>`;

/** No workflow is loaded. */
export function firstSteps() {
  return html`<div class="first"><p><b>No workflow is loaded.</b> <span class="quiet">Three ways to begin:</span></p><ul>
    ${way('Look at an example', 'A manager in memory with an example and its workers. It prints the address of its own page.', [command('dev')])}
    ${way('Begin one of your own', 'A folder with a workflow file, a worker, tests and a README. There are more templates: node, rust, shell, go, and recipes.', [command('init', 'python', 'hello'), command('dev', 'hello/workflow.yaml'), command('init', '--list')])}
    ${way('Load a file that is there', 'This manager takes the files that its settings name.', [command('check', 'FILE'), command('serve', '--workflows', 'FILE')])}
  </ul></div>`;
}

/**
 * There are workflows, and no job yet.
 * @param {string} workflow
 * @param {(() => void) | undefined} create
 */
export function firstJob(workflow, create) {
  return html`<div class="none"><p>There are no jobs yet.</p>${create ? html`<button class="button primary" @click=${create}>${icon('plus')}New job</button>` : nothing}<p class="quiet">or <code>${command('run', workflow, '--message', '{}')}</code></p><p class="quiet">Any program is a worker: <code>${command('work', 'QUEUE', '--', 'CMD')}</code></p></div>`;
}
