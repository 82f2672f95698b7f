// What several views look at: the workflows with their figures, and how the manager fares.

import { get } from './api.js';
import { Source } from './source.js';

/** @import { Control, Definition, Manager, Version, Whoami, Workflow } from './types.js' */

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

/** The columns and steps of loaded workflows, by the workflows' names. @type {Map<string, { hash: string, columns: string[], steps: string[] }>} */
const definedNames = new Map();
/** Of so many workflows, so many at once, and not again before so many milliseconds. */
const LEARNT_MOST = 40;
const LEARNT_AT_ONCE = 3;
const LEARNT_FOR = 60_000;
let learnt = { at: -Infinity, done: Promise.resolve() };

/** Looks what columns and steps the loaded workflows have. It is called when somebody is about to type a name of them, not before. */
export function learnNames() {
  if (Date.now() - learnt.at > LEARNT_FOR) learnt = { at: Date.now(), done: learnAll() };
  return learnt.done;
}

async function learnAll() {
  if (!workflows.data) await workflows.refresh();
  const rest = (workflows.data ?? []).filter(({ loaded }) => loaded !== false).slice(0, LEARNT_MOST).values();
  await Promise.all(Array.from({ length: LEARNT_AT_ONCE }, async () => {
    // Names are a help: whoever knows them can type them all the same.
    for (const workflow of rest) await learn(workflow).catch(() => {});
  }));
}

/** @param {Workflow} workflow */
async function learn(workflow) {
  /** @type {{ definitions: Version[] }} */
  const { definitions } = await get(['definitions'], { workflow: workflow.name, vhost: workflow.vhost });
  const hash = definitions.find(({ loaded }) => loaded)?.hash;
  if (!hash || definedNames.get(fullName(workflow))?.hash === hash) return;
  /** @type {Definition} */
  const { columns = [], steps } = await get(['definition', hash]);
  definedNames.set(fullName(workflow), { hash, columns: columns.map(({ name }) => name), steps: steps.map(({ name }) => name) });
}

/**
 * The columns of loaded workflows, as far as they are known.
 * @param {string} [workflow] of this one alone
 */
export function columnNames(workflow) {
  return namesOf('columns', workflow);
}

/** The steps of loaded workflows, as far as they are known. @param {string} [workflow] of this one alone */
export function stepNames(workflow) {
  return namesOf('steps', workflow);
}

/** The same steps, each with its workflow. */
export function stepsByWorkflow() {
  return workflowNames().flatMap((workflow) => (definedNames.get(workflow)?.steps ?? []).map((step) => ({ workflow, step })));
}

/** @param {'columns' | 'steps'} what @param {string} [workflow] */
function namesOf(what, workflow) {
  return [...new Set((workflow ? [workflow] : workflowNames()).flatMap((name) => definedNames.get(name)?.[what] ?? []))];
}
