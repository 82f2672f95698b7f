// The manager itself: whether all is well with it, what it has to do, and how it is set up.

import { html, nothing } from '../vendor/lit-html@3.3.3/lit-html.js';
import { act, command, get } from '../lib/api.js';
import { copied, messageOf, openDialog, refusal } from '../lib/app.js';
import { scrolls } from '../lib/dom.js';
import { icon } from '../lib/icons.js';
import { redraw } from '../lib/redraw.js';
import { manager, may, standsBy, workflows } from '../lib/shared.js';
import { Source } from '../lib/source.js';
import { bytes, count, shown } from '../lib/text.js';
import { moment, nanos } from '../lib/time.js';
import { clusterPanel } from './cluster.js';
import { ask } from './job-operations.js';

/** @import { Manager } from '../lib/types.js' */
/** @import { Route } from '../lib/route.js' */
/** @import { View } from '../lib/app.js' */

/**
 * @typedef {{ name: string, value: unknown, source?: string, place?: string }} Setting
 */

/**
 * Settings as a list, with the names that flags and files have for them.
 * @param {unknown} settings
 * @param {string} [before]
 * @returns {Setting[]}
 */
function flat(settings, before = '') {
  if (Array.isArray(settings) && settings.every((one) => typeof one?.name === 'string' && 'value' in one)) return settings;
  if (typeof settings !== 'object' || settings === null || Array.isArray(settings)) return [{ name: before, value: Array.isArray(settings) ? settings.join('\n') : settings }];
  return Object.entries(settings).flatMap(([key, value]) => flat(value, before ? `${before}.${key}` : key));
}

/**
 * @param {Route} _route
 * @returns {View}
 */
export function managerView(_route) {
  return new ManagerView();
}

class ManagerView {
  page = 'manager';
  /** @type {Source<Setting[]>} */
  #settings = new Source(async (signal) => flat(await get(['settings'], { sources: 'true' }, signal)));
  #word = '';
  #changed = false;

  constructor() {
    void manager.refresh();
    void this.#settings.refresh();
  }

  stop() {
    this.#settings.stop();
  }

  update() {}

  ready() {
    return manager.data !== undefined || manager.error !== undefined;
  }

  title() {
    return 'Manager';
  }

  live() {
    return 'every 3 s';
  }

  template() {
    const { data, error } = manager;
    return html`<div class="manager">
      <header class="page-head"><h1>Manager</h1>${data ? html`<span class="quiet">v${shown(data.version)}${data.commit ? html` (<code>${shown(data.commit)}</code>)` : nothing}, up ${nanos(data.uptime)}</span>` : nothing}<span class="space"></span>${!may('admin') ? nothing : html`<button class="button small" @click=${this.#reload}>${icon('retry')}Reload the workflow files…</button>`}</header>
      ${error?.notHere ? html`<p class="calm">This manager does not tell of itself. The calls /readyz?verbose and /metrics, and serve --print-settings, do.</p>` : refusal(manager.problem)}
      ${data ? this.#parts(data) : nothing}
      ${this.#settingsPanel()}
    </div>`;
  }

  /** @param {Manager} data */
  #parts(data) {
    const { journal, checks = [], buses = [], actors = [] } = data;
    const counts = actors.some((actor) => actor.count !== undefined);
    const actorPanel = actors.length ? html`<section class="panel" aria-label="Actors"><div class="panel-title"><h2>Actors</h2><span class="quiet small">what the manager is made of, and what waits in their mailboxes</span></div><div class="table-wrap" ${scrolls()}><table><thead><tr><th>Kind</th>${counts ? html`<th class="number">Now</th>` : nothing}<th class="number">Mailbox</th><th class="number">At most so far</th><th class="number">Handled</th><th class="number">Restarts</th></tr></thead><tbody>${actors.map((actor) => html`<tr><td><b>${shown(actor.kind)}</b></td>${counts ? html`<td class="number">${count(actor.count)}</td>` : nothing}<td class="number">${count(actor.mailbox)}</td><td class="number quiet">${count(actor.mailboxMax)}</td><td class="number">${count(actor.handled)}</td><td class="number">${actor.restarts ? html`<span class="failed-text">${count(actor.restarts)}</span>` : html`<span class="quiet">0</span>`}</td></tr>`)}</tbody></table></div></section>` : nothing;
    return html`
      <ul class="checks">${(standsBy() ? [] : checks).map((check) => html`<li class="panel check-card ${check.ok ? 'completed' : 'failed'}"><span class="sign-of ${check.ok ? 'completed' : 'failed'}">${icon(check.ok ? 'completed' : 'failed', check.ok ? 'well' : 'not well')}</span><b>${shown(check.name)}</b><span class="quiet">${shown(check.detail ?? (check.ok ? 'well' : 'not well'))}</span></li>`)}</ul>
      ${data.cluster ? clusterPanel(data.cluster) : nothing}
      <div class="manager-parts">
        <section class="panel" aria-label="Journal"><div class="panel-title"><h2>Journal</h2></div><dl class="facts inside">${journal ? html`<div><dt>file</dt><dd><code>${shown(journal.file)}</code></dd></div><div><dt>size</dt><dd>${bytes(journal.bytes)}${journal.walBytes !== undefined ? html` <span class="quiet">and ${bytes(journal.walBytes)} not merged yet</span>` : nothing}</dd></div>${journal.freeBytes !== undefined ? html`<div><dt>free on the disk</dt><dd>${bytes(journal.freeBytes)}</dd></div>` : nothing}` : nothing}<div><dt>started</dt><dd>${moment(data.started)}</dd></div>${data.lastReload ? html`<div><dt>files last read</dt><dd>${moment(data.lastReload)}</dd></div>` : nothing}${data.streams !== undefined ? html`<div><dt>open streams</dt><dd>${count(data.streams)}</dd></div>` : nothing}${data.webhookWaiting !== undefined ? html`<div><dt>for the webhook</dt><dd>${data.webhookWaiting ? html`${count(data.webhookWaiting)} wait` : 'nothing waits'}</dd></div>` : nothing}</dl></section>
        ${buses.length ? html`<section class="panel" aria-label="Buses"><div class="panel-title"><h2>Buses</h2></div>${buses.map((bus) => html`<dl class="facts inside">${Object.entries(bus).map(([key, value]) => html`<div><dt>${shown(key)}</dt><dd>${value === '' ? html`<span class="quiet">the default</span>` : typeof value === 'number' ? count(value) : typeof value === 'object' ? shown(JSON.stringify(value)) : /^\d{4}-\d\d-\d\dT/.test(String(value)) ? moment(String(value)) : shown(value)}</dd></div>`)}</dl>`)}</section>` : actorPanel}
      </div>
      ${buses.length ? actorPanel : nothing}`;
  }

  #settingsPanel() {
    const { data, error } = this.#settings;
    if (!data) return error?.notHere ? (manager.data ? html`<p class="calm">This manager does not tell its settings.</p>` : nothing) : refusal(this.#settings.problem);
    const sources = data.some((setting) => setting.source !== undefined);
    const word = this.#word.toLowerCase();
    const list = data.filter((setting) => (!word || setting.name.toLowerCase().includes(word)) && (!this.#changed || setting.source !== 'default'));
    return html`<section class="panel" aria-label="Settings"><div class="panel-title wraps"><h2>Settings</h2><span class="space"></span>${sources ? html`<label class="check small"><input type="checkbox" .checked=${this.#changed} @change=${() => { this.#changed = !this.#changed; redraw(); }}> only what is set</label>` : nothing}<input class="field small-field" aria-label="Filter settings" placeholder="Filter" .value=${this.#word} @input=${(/** @type {InputEvent} */ event) => { this.#word = /** @type {HTMLInputElement} */ (event.target).value; redraw(); }}></div>
      <div class="table-wrap" ${scrolls()}><table class="settings-table stacked"><thead><tr><th>Setting</th><th>Value</th>${sources ? html`<th>From</th>` : nothing}</tr></thead><tbody>${list.map((setting) => html`<tr><td><code>${shown(setting.name)}</code></td><td class="setting-value"><code>${setting.value === '' || setting.value === null || (Array.isArray(setting.value) && !setting.value.length) ? html`<span class="quiet">empty</span>` : shown(typeof setting.value === 'object' ? JSON.stringify(setting.value) : setting.value)}</code></td>${sources ? html`<td class=${setting.source === 'default' ? 'quiet' : ''} data-label="from">${shown(setting.source)}${setting.place ? html` <code class="setting-place">${shown(setting.place)}</code>` : nothing}</td>` : nothing}</tr>`)}</tbody></table></div></section>`;
  }

  #reload = () => {
    ask({
      title: 'Reload the workflow files?',
      text: html`<p>All files are read again: all, or nothing if one has an error. New jobs use the new definitions, running jobs keep theirs.</p>`,
      button: 'Reload them',
      shell: [command('reload')],
      run: async () => {
        try {
          /** @type {{ added: string[], changed: string[], removed: string[], unchanged: string[], warnings: unknown[] }} */
          const done = await act('POST', ['reload']);
          void workflows.refresh();
          void manager.refresh();
          const line = (/** @type {string} */ word, /** @type {string[]} */ names) => (names.length ? html`<li><b>${word}</b> ${shown(names.join(', '))}</li>` : nothing);
          setTimeout(() => openDialog({ title: 'Reloaded', body: () => html`<ul class="facts-list">${line('added', done.added)}${line('changed', done.changed)}${line('removed', done.removed)}${line('unchanged', done.unchanged)}</ul>${done.warnings.length ? html`<p class="reason">${shown(done.warnings.map((warning) => (typeof warning === 'string' ? warning : JSON.stringify(warning))).join('\n'))}</p>` : nothing}` }));
        } catch (error) {
          const text = messageOf(error);
          setTimeout(() => openDialog({ title: 'Nothing was reloaded', wide: true, body: () => html`<pre class="raw">${shown(text)}</pre><footer class="dialog-foot"><button class="button" @click=${() => copied(text, 'Errors')}>${icon('copy')}Copy</button></footer>` }));
        }
      },
    });
  };

  commands() {
    return !may('admin') ? [] : [{ name: 'Reload the workflow files', run: this.#reload }];
  }
}

