// What stands around every view: side bar, top bar, dialogs, messages, keys.

import { html, nothing } from '../vendor/lit-html@3.3.3/lit-html.js';
import { keyed } from '../vendor/lit-html@3.3.3/directives/keyed.js';
import { connection, token } from '../lib/api.js';
import { app, closeDialog, forTyping, go } from '../lib/app.js';
import { attached } from '../lib/dom.js';
import { icon } from '../lib/icons.js';
import { prefer, preferences } from '../lib/preferences.js';
import { redraw } from '../lib/redraw.js';
import { link } from '../lib/route.js';
import { badChecks, failedLately, fullName, manager, standsBy, whoami, workflows } from '../lib/shared.js';
import { count, few, plain, shown } from '../lib/text.js';
import { moment } from '../lib/time.js';
import { openHelp } from './help.js';
import { activeLink } from './cluster.js';
import { inbox } from './inbox.js';
import { openPalette } from './palette.js';
import { pausedBanner } from './pauses.js';

const PAGES = /** @type {const} */ ([
  ['overview', 'Overview', []],
  ['jobs', 'Jobs', ['jobs']],
  ['inbox', 'Inbox', ['inbox']],
  ['schedules', 'Schedules', ['schedules']],
  ['statuses', 'Statuses', ['statuses']],
  ['definitions', 'Definitions', ['definitions']],
  ['manager', 'Manager', ['manager']],
]);

const JUMPS = /** @type {Record<string, string>} */ ({ o: '#/', j: '#/jobs', i: '#/inbox', c: '#/schedules', s: '#/statuses', d: '#/definitions', m: '#/manager' });

export function shell() {
  const view = app.view;
  return html`
    <button class="skip" @click=${() => document.getElementById('main')?.focus()}>To the content</button>
    <div class="shell ${app.coming ? 'coming' : ''}">
      <nav class="side" aria-label="Main">
        <a class="brand" href="#/" aria-label="workflow-manager, overview"><span class="brand-sign">${icon('definitions')}</span><span>workflow-manager</span></a>
        <div class="side-pages">${PAGES.map(([page, name, path]) => html`<a href=${link([...path])} aria-current=${view?.page === page ? 'page' : nothing}>${icon(page)}<span>${name}</span>${page === 'inbox' ? letters() : nothing}</a>`)}</div>
        ${sideWorkflows()}
      </nav>
      <header class="top">
        <button class="search" @click=${() => openPalette('')}>
          ${icon('search')}<span class="search-text">Search, or paste an id</span><kbd aria-hidden="true">/</kbd>
        </button>
        <div class="top-tools">${rights()}${light()}
          <button class="tool wide-only" @click=${toggleZone} title="Times in ${preferences.utc ? 'UTC; change to local time' : 'local time; change to UTC'}">${icon('clock')}<span>${preferences.utc ? 'UTC' : 'Local'}</span></button>
          ${themeButton()}
          <button class="tool" @click=${openHelp} aria-label="Keys and help" title="Keys and help (?)">${icon('help')}</button>
        </div>
      </header>
      <div class="progress" aria-hidden="true"></div>
      <main id="main" tabindex="-1" aria-busy=${app.coming ? 'true' : 'false'}>${banner()}${pausedBanner()}${view ? keyed(view, begun(view) ? view.template() : skeleton(view)) : nothing}</main>
    </div>
    ${dialog()}
    <div class="toasts" role="status" aria-live="polite">${app.toast ? keyed(app.toast.id, html`<div class="toast ${app.toast.kind}">${icon(app.toast.kind === 'done' ? 'completed' : 'alert')}<span>${shown(app.toast.text)}</span></div>`) : nothing}</div>`;
}

/** Views that had something to show once: they keep it while they ask for more. @type {WeakSet<import('../lib/app.js').View>} */
const shownOnce = new WeakSet();

/** @param {import('../lib/app.js').View} view */
function begun(view) {
  if (!shownOnce.has(view) && view.ready()) shownOnce.add(view);
  return shownOnce.has(view);
}

/**
 * What is shown until a view has something to show: where its parts will be.
 * @param {import('../lib/app.js').View} view
 */
function skeleton(view) {
  return html`<div class="skeleton" aria-busy="true"><h1 class="sr">${plain(view.title())}: loading</h1><i class="skeleton-title"></i><i></i><i></i></div>`;
}

/** How many steps wait for a person. */
function letters() {
  const data = inbox.data;
  return data?.total ? html`<span class="side-count letters-count" title="wait for a person">${few(data.total)}<span class="sr"> wait for a person</span></span>` : nothing;
}

function sideWorkflows() {
  const all = workflows.data ?? [];
  if (!all.length) return nothing;
  const current = app.route.path[0] === 'jobs' ? app.route.query.get('workflow') : undefined;
  return html`<div class="side-workflows">
    <h2 class="side-heading" id="side-workflows">Workflows</h2>
    <ul aria-labelledby="side-workflows">${all.slice(0, 60).map((workflow) => {
      const name = fullName(workflow);
      const failing = failedLately(workflow);
      return html`<li><a href=${link(['jobs'], { workflow: name })} class=${workflow.loaded === false ? 'gone' : ''} aria-current=${current === name ? 'page' : nothing} title=${plain(name)}>
        <span class="side-name">${shown(name)}</span>
        ${failing ? html`<span class="side-count failed" title="failed lately">${count(failing)}<span class="sr"> failed lately</span></span>` : workflow.job_count ? html`<span class="side-count" title="under way">${count(workflow.job_count)}<span class="sr"> under way</span></span>` : nothing}
      </a></li>`;
    })}</ul>
    ${all.length > 60 ? html`<a class="side-more" href="#/">${count(all.length - 60)} more</a>` : nothing}
  </div>`;
}

function light() {
  const live = app.view?.live?.() ?? '';
  const asks = /^every /.test(live);
  const words = { unknown: 'Connecting', good: asks || !live ? 'Connected' : live, lost: 'No answer', refused: 'Token needed' };
  const standby = connection.state === 'good' && standsBy();
  const unready = connection.state === 'good' && !standby && badChecks().length > 0;
  return html`<span class="light ${standby ? 'standby' : unready ? 'unready' : connection.state}" role="status" title=${standby ? 'The manager stands by: it shows everything and changes nothing' : unready ? 'The manager answers, but it is not ready' : connection.detail || (asks ? `The page looks again ${live}` : 'The manager answers')}><span class="dot"></span><span>${standby ? 'Stands by' : unready ? 'Not ready' : words[connection.state]}</span></span>`;
}

/** A token that may not do everything: what it may do is said before somebody looks for the rest. */
function rights() {
  const own = whoami.data;
  if (!own?.asksForToken || own.scope === undefined || own.scope === 'admin') return nothing;
  const reads = own.scope === 'read';
  return html`<span class="word rights" title=${plain(`The token${own.name ? ` “${own.name}”` : ''} has the scope ${own.scope}: ${reads ? 'it shows everything and changes nothing' : 'it erases no jobs and does not reload'}`)}>${reads ? 'read only' : 'operator'}</span>`;
}

function themeButton() {
  const next = { system: 'light', light: 'dark', dark: 'system' }[preferences.theme];
  const sign = /** @type {const} */ ({ system: 'screen', light: 'sun', dark: 'moon' })[preferences.theme];
  const label = `Theme: ${preferences.theme}; change to ${next}`;
  return html`<button class="tool wide-only" aria-label=${label} title=${label} @click=${() => setTheme(/** @type {any} */ (next))}>${icon(sign)}</button>`;
}

/** @param {'system' | 'light' | 'dark'} theme */
function setTheme(theme) {
  prefer({ theme });
  document.dispatchEvent(new Event('theme'));
  redraw();
}

function toggleZone() {
  prefer({ utc: !preferences.utc });
  redraw();
}

function banner() {
  if (connection.state === 'refused') {
    return html`<section class="banner warn">
      <div><strong>This manager asks for a token.</strong> ${connection.detail}. It stays in this tab until it is closed.</div>
      <form class="row" @submit=${giveToken}><input class="field" type="password" name="token" autocomplete="off" aria-label="Token" placeholder="Token" required><button class="button primary">Use it</button></form>
    </section>`;
  }
  if (connection.state === 'lost') return html`<section class="banner warn" role="status"><div><strong>The manager does not answer.</strong> What is shown is what it said last; the page tries again by itself.</div></section>`;
  return standsBy() ? waiting() : unready();
}

/** Who is active in this manager's place, with the way there. */
function waiting() {
  const active = manager.data?.cluster?.active;
  return html`<section class="banner warn standby" role="status" aria-label="Stands by">
    ${icon('clock')}<div><strong>This manager stands by.</strong> ${active ? html`Active is ${activeLink(active)} since ${moment(active.since)}.` : 'Which one is active is not known now.'} Everything is shown as the database has it; operations are done there.</div>
  </section>`;
}

/** What keeps the manager from its work, in the words of `/readyz`. */
function unready() {
  const bad = badChecks();
  if (!bad.length) return nothing;
  return html`<section class="banner failed unready" role="alert" aria-label="Not ready">
    ${icon('alert')}<div><strong>The manager is not ready.</strong><ul>${bad.map((check) => html`<li><b>${shown(check.name)}</b>: ${shown(check.detail ?? 'not good')}</li>`)}</ul></div>
    ${app.view?.page === 'manager' ? nothing : html`<a class="button small" href="#/manager">Manager</a>`}
  </section>`;
}

/** @param {SubmitEvent} event */
function giveToken(event) {
  event.preventDefault();
  const form = /** @type {HTMLFormElement} */ (event.currentTarget);
  token.set(String(new FormData(form).get('token') ?? '').trim());
  location.reload();
}

function dialog() {
  const { dialog } = app;
  if (!dialog) return nothing;
  return keyed(
    dialog,
    html`<dialog class="dialog ${dialog.kind ?? ''} ${dialog.wide ? 'wide' : ''}" aria-label=${plain(dialog.title)} @close=${() => app.dialog === dialog && closeDialog()} @click=${outside} ${attached((element) => /** @type {HTMLDialogElement} */ (element).isConnected && /** @type {HTMLDialogElement} */ (element).showModal())}>
      ${dialog.kind === 'palette' ? dialog.body() : html`<div class="dialog-inside"><header class="dialog-head"><h2 tabindex="-1" autofocus>${shown(dialog.title)}</h2><button class="tool" aria-label="Close" @click=${closeDialog}>${icon('close')}</button></header>${dialog.body()}</div>`}
    </dialog>`,
  );
}

/** @param {MouseEvent} event */
function outside(event) {
  const element = /** @type {HTMLElement} */ (event.currentTarget);
  if (event.target !== element) return;
  const box = element.getBoundingClientRect();
  if (event.clientX < box.left || event.clientX > box.right || event.clientY < box.top || event.clientY > box.bottom) closeDialog();
}

export function listenToKeys() {
  let jump = 0;
  addEventListener('keydown', (event) => {
    if ((event.ctrlKey || event.metaKey) && !event.altKey && event.key.toLowerCase() === 'k') {
      event.preventDefault();
      if (app.dialog?.kind === 'palette') closeDialog();
      else openPalette('');
      return;
    }
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing || app.dialog || forTyping(event) || !preferences.keys) return;
    if (jump && Date.now() - jump < 1500 && JUMPS[event.key]) {
      jump = 0;
      go(JUMPS[event.key]);
      event.preventDefault();
      return;
    }
    jump = 0;
    if (event.key === 'g') jump = Date.now();
    else if (event.key === '?') openHelp();
    else if (event.key === '/') openPalette('');
    else if (!app.view?.key?.(event)) return;
    event.preventDefault();
  });
}

