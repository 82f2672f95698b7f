// Views that were saved in this browser: an address with a name. `#/view/NAME` leads there.

import { html, nothing } from '../vendor/lit-html@3.3.3/lit-html.js';
import { app, closeDialog, copied, go, openDialog, tell } from '../lib/app.js';
import { icon } from '../lib/icons.js';
import { prefer, preferences } from '../lib/preferences.js';
import { redraw } from '../lib/redraw.js';
import { link } from '../lib/route.js';
import { plain, shown } from '../lib/text.js';

/** @import { Route } from '../lib/route.js' */
/** @import { View } from '../lib/app.js' */

const MOST = 30;

/** The address of what is shown, as it may be kept: without the place in a list. */
const placeNow = () => link(app.route.path, [...app.route.query].filter(([key]) => key !== 'cursor' && key !== 'after' || (key === 'after' && app.route.path[0] === 'jobs')));

/**
 * Asks for a name and saves what is shown under it.
 * @param {string} suggestion
 */
export function openSave(suggestion) {
  const address = placeNow();
  let name = suggestion;
  const taken = () => preferences.saved.find((view) => view.name === name.trim());
  openDialog({
    title: 'Save this view',
    body: () => html`<form class="dialog-form" @submit=${(/** @type {Event} */ event) => {
      event.preventDefault();
      const kept = name.trim();
      if (!kept) return;
      prefer({ saved: [...preferences.saved.filter((view) => view.name !== kept), { name: kept, address }].slice(-MOST) });
      closeDialog();
      tell('The view is saved in this browser');
    }}>
      <label class="label" for="save-name">Name</label>
      <input class="field" id="save-name" maxlength="60" autocomplete="off" required .value=${name} @input=${(/** @type {InputEvent} */ event) => { name = /** @type {HTMLInputElement} */ (event.target).value; redraw(); }}>
      ${taken() ? html`<p class="quiet">There is a view with this name: this one takes its place.</p>` : nothing}
      <div class="command"><code>${shown(address)}</code><button type="button" class="tool" aria-label="Copy the link" @click=${() => copied(new URL(address, location.href).href, 'Link')}>${icon('copy')}</button></div>
      <p class="quiet">The name is kept in this browser. The link leads everybody there.</p>
      <footer class="dialog-foot"><button type="button" class="button" @click=${closeDialog}>No, leave it</button><button class="button primary">Save it</button></footer>
    </form>`,
  });
}

/** The saved views, each with a way to forget it. */
export function savedList() {
  if (!preferences.saved.length) return nothing;
  return html`<div class="saved" role="group" aria-label="Saved views">${preferences.saved.map((view) => html`<span class="saved-view"><a href=${view.address} title=${plain(view.address)}>${icon('star')}${shown(view.name)}</a><button class="tool tiny" aria-label=${plain(`Forget the view ${view.name}`)} @click=${() => { prefer({ saved: preferences.saved.filter((other) => other !== view) }); redraw(); }}>${icon('close')}</button></span>`)}</div>`;
}

/**
 * A view by its name.
 * @param {Route} route
 * @returns {View}
 */
export function savedView(route) {
  const name = route.path[1];
  const found = preferences.saved.find((view) => view.name === name);
  // Not before the router is done with this one.
  if (found) setTimeout(() => go(found.address, { replace: true }));
  return {
    page: '',
    title: () => plain(name),
    ready: () => !found,
    update() {},
    stop() {},
    template: () => (found ? html`` : html`<div class="empty"><h1>No such view</h1><p>No view <b>${shown(name)}</b> is saved in this browser. A name is kept where it was given; a link leads everybody to the same place.</p>${savedList()}<p><a class="button" href="#/">To the overview</a></p></div>`),
  };
}
