// What several views look at: the workflows with their figures, and how the manager fares.

import { get } from './api.js';
import { Source } from './source.js';

/** @import { Control, Manager, Whoami, Workflow } from './types.js' */

export const figures = { span: '1h' };

/** @type {Source<Workflow[]>} */
export const workflows = new Source((signal) => get(['workflows'], { all: true, stats: figures.span }, signal));

/** @type {Source<Manager>} */
export const manager = new Source((signal) => get(['manager'], {}, signal));

/** The checks that are not good, as `/readyz` has them. */
export function badChecks() {
  return (manager.data?.checks ?? []).filter((check) => !check.ok);
}

/** Whether this manager waits until it can become active: it shows everything and changes nothing. */
export function standsBy() {
  return manager.data?.cluster?.role === 'standby';
}

/** What is paused or changed for a time. Only the active manager knows it. @type {Source<{ controls: Control[] }>} */
export const controls = new Source(async (signal) => (standsBy() ? { controls: [] } : get(['controls'], {}, signal)));

/** What the token of this tab is good for. @type {Source<Whoami>} */
export const whoami = new Source((signal) => get(['whoami'], {}, signal));

const SCOPES = /** @type {const} */ (['read', 'operate', 'admin']);

/**
 * Whether something may be offered: this manager does it, and the token allows it. What is not known is offered; the manager judges.
 * @param {'operate' | 'admin'} [scope] which it needs
 */
export function may(scope = 'operate') {
  if (standsBy()) return false;
  const own = whoami.data;
  return !own?.asksForToken || (own.scope !== undefined && SCOPES.indexOf(own.scope) >= SCOPES.indexOf(scope));
}

/** How many jobs of a workflow failed lately and have neither gone on nor been erased since. @param {Workflow} workflow */
export function failedLately({ stats }) {
  return stats ? Math.min(stats.failed ?? 0, stats.states.failed ?? 0) : 0;
}

/** @param {{ vhost?: string, name: string }} workflow the name by which jobs tell it */
export function fullName({ vhost, name }) {
  return vhost ? `${vhost}/${name}` : name;
}

export function workflowNames() {
  return (workflows.data ?? []).map(fullName);
}

/**
 * A workflow's name as the API's paths and filters want it.
 * @param {string} full
 */
export function parted(full) {
  const slash = full.indexOf('/');
  return slash < 0 ? { name: full, vhost: undefined } : { name: full.slice(slash + 1), vhost: full.slice(0, slash) };
}
