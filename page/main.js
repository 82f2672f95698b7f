// The beginning: which address leads to which view.

import { render } from './vendor/lit-html@3.3.3/lit-html.js';
import { connection } from './lib/api.js';
import { app, arrive, startRouter } from './lib/app.js';
import { applyTheme } from './lib/preferences.js';
import { settle } from './lib/places.js';
import { drawWith, redraw } from './lib/redraw.js';
import { controls, manager, whoami, workflows } from './lib/shared.js';
import { compareView } from './views/compare.js';
import { fanoutView } from './views/fanout.js';
import { definitionsView } from './views/definitions.js';
import { inboxView, watchInbox } from './views/inbox.js';
import { jobView } from './views/job.js';
import { jobsView } from './views/jobs.js';
import { managerView } from './views/manager.js';
import { nothingView } from './views/nothing.js';
import { overviewView } from './views/overview.js';
import { savedView } from './views/saved.js';
import { schedulesView } from './views/schedules.js';
import { listenToKeys, shell } from './views/shell.js';
import { statusesView } from './views/statuses.js';

/** @import { Route } from './lib/route.js' */

/** How long the first answers may take before it is said that they are on their way. */
const FIRST_ANSWERS_MS = 150;

/** @param {Route} route */
function viewFor({ path }) {
  const [page = '', id, part, step] = path;
  if (page === '') return { key: '', make: overviewView };
  if (page === 'jobs') return { key: 'jobs', make: jobsView };
  if (page === 'job' && id && part === 'step' && step) return { key: `step ${id} ${step}`, make: fanoutView };
  if (page === 'job' && id) return { key: `job ${id}`, make: jobView };
  if (page === 'compare' && id) return { key: `compare ${id} ${part ?? ''}`, make: compareView };
  if (page === 'view' && id) return { key: `view ${id}`, make: savedView };
  if (page === 'inbox') return { key: 'inbox', make: inboxView };
  if (page === 'statuses') return { key: `statuses ${path.slice(1).join('/')}`, make: statusesView };
  if (page === 'schedules') return { key: 'schedules', make: schedulesView };
  if (page === 'definitions') return { key: `definitions ${path.slice(1).join('/')}`, make: definitionsView };
  if (page === 'manager') return { key: 'manager', make: managerView };
  return { key: 'nothing', make: nothingView };
}

applyTheme();
const root = /** @type {HTMLElement} */ (document.getElementById('page'));
/** Until it is drawn, there is what index.html has: the places of things. That stays until the view has its answers, which most often are there at once, or is late: to draw twice would take a quarter longer. @type {'early' | 'late' | 'drawn'} */
let stage = 'early';
setTimeout(() => {
  if (stage !== 'early') return;
  stage = 'late';
  redraw();
}, FIRST_ANSWERS_MS);
drawWith(() => {
  arrive();
  if (stage === 'early' && !app.view?.ready()) return;
  if (stage !== 'drawn') root.replaceChildren();
  stage = 'drawn';
  render(shell(), root);
  app.view?.drawn?.();
  settle();
  const title = (app.coming ?? app.view)?.title() ?? '';
  document.title = title ? `${title} · workflow-manager` : 'workflow-manager';
});
connection.changed = () => {
  // It answers again: what it said before it went away is not so any more.
  if (connection.state === 'good') {
    void manager.refresh().then(() => controls.refresh());
    void whoami.refresh();
  }
  redraw();
};
// The token may have been given other rights.
connection.forbidden = () => {
  if (!whoami.loading && !whoami.error) void whoami.refresh();
};
function begin() {
  startRouter(viewFor);
  listenToKeys();
  // The view that is opened may have asked already.
  if (!workflows.loading) void workflows.refresh();
  workflows.every(5000);
  // Whether it can do its work is told above every view; it is asked as soon as it answers anything.
  manager.every(3000);
  controls.every(5000);
  watchInbox();
  // Relative times grow old.
  setInterval(redraw, 10_000);
}

// Where someone looks on, as developers and tests do, a browser locates the caller of the first request. If that were this script itself, it would parse all of it again: 15 to 25 ms.
queueMicrotask(begin);
