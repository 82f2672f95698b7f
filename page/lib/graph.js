// The graph of a definition: what waits for what. Only definitions are laid out, never instances, so its size is that of the file.

/** @import { StepDefinition } from './types.js' */

export const START = '__start__';
export const END = '__end__';

/**
 * @typedef {{ nodes: string[], edges: { from: string, to: string }[] }} Graph
 */

/**
 * @param {StepDefinition[]} steps
 * @returns {Graph}
 */
export function graphOf(steps) {
  const names = new Set(steps.map((step) => step.name));
  /** @type {Graph['edges']} */
  const edges = [];
  const followed = new Set();
  for (const step of steps) {
    const depends = (step.depends ?? []).filter((name) => names.has(name));
    for (const from of depends) {
      edges.push({ from, to: step.name });
      followed.add(from);
    }
    // That the job's message is merged in as well is told in the panel; an edge from the start would only clutter.
    if (depends.length === 0) edges.push({ from: START, to: step.name });
  }
  for (const step of steps) if (!followed.has(step.name)) edges.push({ from: step.name, to: END });
  return { nodes: [START, ...steps.map((step) => step.name), END], edges };
}

/**
 * A step and all that depend on it: what a rerun does once more.
 * @param {StepDefinition[]} steps
 * @param {string} name
 */
export function after(steps, name) {
  const found = new Set([name]);
  for (let grown = true; grown; ) {
    grown = false;
    for (const step of steps) {
      if (!found.has(step.name) && (step.depends ?? []).some((other) => found.has(other))) {
        found.add(step.name);
        grown = true;
      }
    }
  }
  return steps.filter((step) => found.has(step.name)).map((step) => step.name);
}

/**
 * @typedef {{ kind: 'added' | 'removed' | 'changed' | 'same', name: string, keys: { key: string, before: string, after: string }[] }} StepChange
 */

/**
 * What is different between two definitions, step by step.
 * @param {StepDefinition[]} before
 * @param {StepDefinition[]} now
 * @returns {StepChange[]}
 */
export function compare(before, now) {
  const old = new Map(before.map((step) => [step.name, step]));
  const young = new Map(now.map((step) => [step.name, step]));
  /** @type {StepChange[]} */
  const changes = [];
  for (const [name, step] of young) {
    const other = old.get(name);
    if (!other) {
      changes.push({ kind: 'added', name, keys: settings(step).map(([key, after]) => ({ key, before: '', after })) });
      continue;
    }
    const was = new Map(settings(other));
    const is = new Map(settings(step));
    const keys = [...new Set([...was.keys(), ...is.keys()])].filter((key) => was.get(key) !== is.get(key)).map((key) => ({ key, before: was.get(key) ?? '', after: is.get(key) ?? '' }));
    changes.push({ kind: keys.length ? 'changed' : 'same', name, keys });
  }
  for (const [name, step] of old) if (!young.has(name)) changes.push({ kind: 'removed', name, keys: settings(step).map(([key, value]) => ({ key, before: value, after: '' })) });
  return changes;
}

/**
 * The settings of a step as texts.
 * @param {StepDefinition} step
 * @returns {[string, string][]}
 */
export function settings(step) {
  /** @type {[string, string][]} */
  const list = [];
  for (const [key, value] of Object.entries(step)) {
    if (key === 'name' || value === undefined || value === null || value === false) continue;
    if (Array.isArray(value)) {
      if (value.length) list.push([key, value.join(', ')]);
    } else if (key !== 'retry' && typeof value === 'object') {
      list.push([key, JSON.stringify(value)]);
    } else if (typeof value === 'object') {
      const { attempts, backoff, factor, maxBackoff } = /** @type {Record<string, unknown>} */ (value);
      list.push([key, `${attempts} attempts, pauses from ${backoff}, × ${factor}, at most ${maxBackoff}`]);
    } else list.push([key, String(value)]);
  }
  return list;
}
