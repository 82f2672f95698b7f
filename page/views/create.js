// A new job, from the page. The same id with the same message starts nothing twice, so asking again after a lost answer is safe.

import { html, nothing } from '../vendor/lit-html@3.3.3/lit-html.js';
import { act, command } from '../lib/api.js';
import { closeDialog, copied, go, messageOf, openDialog, tell } from '../lib/app.js';
import { icon } from '../lib/icons.js';
import { redraw } from '../lib/redraw.js';
import { link } from '../lib/route.js';
import { fullName, parted, workflows } from '../lib/shared.js';
import { plain, shortId, shown } from '../lib/text.js';

/** @param {string} [chosen] the workflow */
export function openCreate(chosen) {
  const names = (workflows.data ?? []).filter((workflow) => workflow.loaded !== false).map(fullName);
  let workflow = chosen && names.includes(chosen) ? chosen : (names[0] ?? '');
  let message = '{}';
  let problem = '';
  let busy = false;
  const id = randomId();

  async function create() {
    busy = true;
    problem = '';
    redraw();
    try {
      const { name, vhost } = parted(workflow);
      await act('POST', ['workflow', name], { id, vhost }, message);
      closeDialog();
      tell(`Job ${shortId(id)} is created`);
      go(link(['job', id]));
    } catch (error) {
      problem = messageOf(error);
    }
    busy = false;
    redraw();
  }

  openDialog({
    title: 'New job',
    body: () => html`<form class="dialog-form" @submit=${(/** @type {Event} */ event) => { event.preventDefault(); void create(); }}>
      <label class="label" for="create-workflow">Workflow</label>
      <select class="field" id="create-workflow" @change=${(/** @type {Event} */ event) => { workflow = /** @type {HTMLSelectElement} */ (event.target).value; redraw(); }}>${names.map((name) => html`<option value=${name} ?selected=${name === workflow}>${plain(name)}</option>`)}</select>
      <label class="label" for="create-message">Message, a JSON object</label>
      <textarea class="field code-field" id="create-message" rows="8" spellcheck="false" .value=${message} @input=${(/** @type {InputEvent} */ event) => { message = /** @type {HTMLTextAreaElement} */ (event.target).value; redraw(); }}></textarea>
      ${problem ? html`<p class="problem" role="alert">${icon('alert')}<span>${shown(problem)}</span></p>` : nothing}
      <details class="as-command"><summary>The same for a shell</summary><div class="command"><code>${shown(command('run', workflow, '--message', message))}</code><button type="button" class="tool" aria-label="Copy" @click=${() => copied(command('run', workflow, '--message', message), 'Command')}>${icon('copy')}</button></div></details>
      <footer class="dialog-foot"><button type="button" class="button" @click=${closeDialog}>No, leave it</button><button class="button primary" ?disabled=${busy || !workflow}>Create it</button></footer>
    </form>`,
  });
}

/** `crypto.randomUUID` is only there on secure origins; a manager may be on plain HTTP. */
function randomId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  bytes[6] = (bytes[6] & 15) | 64;
  bytes[8] = (bytes[8] & 63) | 128;
  const hex = [...bytes].map((byte) => byte.toString(16).padStart(2, '0')).join('');
  return `${hex.slice(0, 8)}-${hex.slice(8, 12)}-${hex.slice(12, 16)}-${hex.slice(16, 20)}-${hex.slice(20)}`;
}
