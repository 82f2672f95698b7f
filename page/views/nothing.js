// An address that leads nowhere.

import { html } from '../vendor/lit-html@3.3.3/lit-html.js';
import { app } from '../lib/app.js';
import { shown } from '../lib/text.js';

/** @returns {import('../lib/app.js').View} */
export function nothingView() {
  return {
    title: () => 'Nothing here',
    page: '',
    ready: () => true,
    update() {},
    stop() {},
    template: () => html`<div class="empty"><h1>There is nothing here</h1><p>The page has no view <code>${shown(`#/${app.route.path.join('/')}`)}</code>.</p><p><a class="button" href="#/">To the overview</a></p></div>`,
  };
}
