// The page itself: which view is shown, what lies over it, and how one goes from view to view.

import { html, nothing } from '../vendor/lit-html@3.3.3/lit-html.js';
import { copy } from './dom.js';
import { icon } from './icons.js';
import { arrived, enterPlace, watchPlaces } from './places.js';
import { redraw } from './redraw.js';
import { changed, parseRoute } from './route.js';
import { shown } from './text.js';

/** @import { TemplateResult } from '../vendor/lit-html@3.3.3/lit-html.js' */
/** @import { Problem } from './api.js' */
/** @import { Route } from './route.js' */

/**
 * @typedef {object} Command what the palette offers
 * @property {string} name
 * @property {string} [hint]
 * @property {string} [keys]
 * @property {boolean} [late] it comes after what every view has
 * @property {() => void} run
 *
 * @typedef {object} View
 * @property {() => string} title
 * @property {string} page which entry of the side bar it belongs to
 * @property {() => boolean} ready whether there is something to show: until then the view before it stays
 * @property {() => TemplateResult} template
 * @property {(route: Route) => void} update
 * @property {() => void} stop
 * @property {(event: KeyboardEvent) => boolean} [key] whether the key was for it
 * @property {() => Command[]} [commands]
 * @property {() => string} [live] how it learns of what is new
 * @property {() => void} [drawn] after each drawing
 *
 * @typedef {{ title: string, body: () => TemplateResult, closed?: () => void, wide?: boolean, kind?: string }} Dialog
 */

export const app = {
  /** @type {Route} */
  route: { path: [], query: new Map() },
  /** @type {View | undefined} */
  view: undefined,
  /** The view that was asked for, while it has nothing to show yet. @type {View | undefined} */
  coming: undefined,
  /** @type {Dialog | undefined} */
  dialog: undefined,
  /** @type {{ text: string, kind: 'done' | 'problem', id: number } | undefined} */
  toast: undefined,
};

/** How long the view before stays at most. */
const PATIENCE = 4000;

/** @type {(route: Route) => { key: string, make: (route: Route) => View }} */
let viewFor;
let shownKey = '';
let comingKey = '';
/** @type {number | undefined} */
let patience;

/** @param {typeof viewFor} find */
export function startRouter(find) {
  viewFor = find;
  watchPlaces();
  addEventListener('hashchange', follow);
  follow();
}

function follow() {
  const route = parseRoute(location.hash);
  app.route = route;
  const { key, make } = viewFor(route);
  if (app.dialog && openedAt !== location.hash) closeDialog();
  enterPlace();
  if (app.view && key === shownKey) {
    forget();
    app.view.update(route);
    arrived(false);
  } else if (app.coming && key === comingKey) {
    app.coming.update(route);
  } else {
    forget();
    app.coming = make(route);
    comingKey = key;
    clearTimeout(patience);
    patience = setTimeout(() => arrive(true), PATIENCE);
    arrive(!app.view);
  }
  redraw();
}

function forget() {
  app.coming?.stop();
  app.coming = undefined;
  comingKey = '';
  clearTimeout(patience);
}

/** @param {boolean} [anyhow] */
export function arrive(anyhow = false) {
  if (!app.coming || !(anyhow || app.coming.ready())) return;
  const first = app.view === undefined;
  app.view?.stop();
  app.view = app.coming;
  shownKey = comingKey;
  app.coming = undefined;
  comingKey = '';
  clearTimeout(patience);
  redraw();
  arrived(!first);
  if (!first) {
    // Those who hear the page must learn that it is another one.
    setTimeout(() => {
      const main = document.getElementById('main');
      if (main && !main.contains(document.activeElement) && !app.dialog) main.focus({ preventScroll: true });
    });
  }
}

/**
 * @param {string} address
 * @param {{ replace?: boolean }} [options] `replace`: the way back leads to the place before
 */
export function go(address, { replace = false } = {}) {
  if (address === location.hash) return;
  if (replace) {
    history.replaceState(history.state, '', address);
    follow();
  } else location.hash = address;
}

/**
 * @param {Record<string, string | number | undefined>} changes
 * @param {{ replace?: boolean }} [options]
 */
export function setQuery(changes, options) {
  go(changed(app.route, changes), options);
}

/** Where the keyboard was when the dialog came. @type {Element | null} */
let opener = null;
/** The address where it came. The page hears of a new address a moment after it is there: what was opened in that moment stays. */
let openedAt = '';

/** @param {Dialog} dialog */
export function openDialog(dialog) {
  if (!app.dialog) opener = document.activeElement;
  app.dialog?.closed?.();
  app.dialog = dialog;
  openedAt = location.hash;
  redraw();
}

export function closeDialog() {
  const { dialog } = app;
  app.dialog = undefined;
  dialog?.closed?.();
  redraw();
  const before = opener;
  requestAnimationFrame(() => setTimeout(() => {
    if (!app.dialog && document.activeElement === document.body && before instanceof HTMLElement) before.focus({ preventScroll: true });
  }));
}

let toasts = 0;

/**
 * @param {string} text
 * @param {'done' | 'problem'} [kind]
 */
export function tell(text, kind = 'done') {
  const id = ++toasts;
  app.toast = { text, kind, id };
  redraw();
  setTimeout(
    () => {
      if (app.toast?.id === id) app.toast = undefined;
      redraw();
    },
    kind === 'done' ? 3500 : 9000,
  );
}

/**
 * @param {string} text
 * @param {string} what
 */
export async function copied(text, what) {
  tell((await copy(text)) ? `${what} copied` : `${what} could not be copied`, 'done');
}

/** @param {unknown} error */
export function messageOf(error) {
  return error instanceof Error ? error.message : String(error);
}

/** @param {KeyboardEvent} event */
export function forTyping(event) {
  const target = /** @type {HTMLElement | null} */ (event.target);
  return !!target?.closest('input:not([type=checkbox]):not([type=range]), textarea, select, [contenteditable]');
}

/**
 * What the manager answered instead, in its own words.
 * @param {Problem | undefined} problem
 */
export function refusal(problem) {
  return problem ? html`<p class="problem" role="alert">${icon('alert')}<span>${shown(problem.message)}</span></p>` : nothing;
}

/**
 * A line that says that something is not there, calmly.
 * @param {unknown} text
 */
export function calm(text) {
  return html`<p class="calm">${text}</p>`;
}
