// Jobs of the manager that stands in for one. A job is what its entries make of it, as with the real one, only simpler.

import { createHash } from 'node:crypto';

/** @param {string} name always the same id for the same name */
export function uuid(name) {
  const hex = createHash('sha256').update(name).digest('hex');
  return `${hex.slice(0, 8)}-${hex.slice(8, 12)}-4${hex.slice(13, 16)}-8${hex.slice(17, 20)}-${hex.slice(20, 32)}`;
}

const iso = (/** @type {number} */ at) => new Date(at).toISOString().replace(/(\.\d{3})Z$/, '$1461597Z');

export class FakeJob {
  /** @type {any[]} */
  entries = [];
  state = 'running';
  /** @type {string | undefined} */
  ended;
  /** @type {string | undefined} */
  reason;
  /** @type {any} */
  parent;
  /** @type {string | undefined} */
  task;
  /** @type {any} */
  why;
  message = '{}';
  /** @type {string | undefined} */
  result;
  /** @type {Record<string, string>} */
  inputs = Object.create(null);
  /** @type {Record<string, string>} */
  outputs = Object.create(null);
  /** What a test sets of a step, over what the entries say. @type {Record<string, any>} */
  over = Object.create(null);
  /** @type {any[] | undefined} */
  children;
  /** @type {Uint8Array | undefined} */
  map;
  /** @type {any} */
  reasons;

  /**
   * @param {string} name
   * @param {any} definition
   * @param {number} created
   */
  constructor(name, definition, created) {
    this.id = uuid(name);
    this.workflow = definition.name;
    this.definition = definition;
    this.at = created;
    this.created = iso(created);
    this.push({ kind: 'job.created' }, 0);
  }

  /**
   * @param {any} entry
   * @param {number} [after] milliseconds since the entry before
   */
  push(entry, after = 40) {
    this.at += after;
    this.entries.push({ n: this.entries.length + 1, at: iso(this.at), ...entry });
    return this;
  }

  end(state, reason = undefined, after = 1) {
    this.push({ kind: `job.${state}`, ...(reason && { reason }) }, after);
    this.state = state;
    this.reason = reason;
    this.ended = iso(this.at);
    return this;
  }

  light() {
    return { ...fold(this, this.entries.length), state: this.state, ...(this.ended && { ended: this.ended }), ...(this.reason && { reason: this.reason }) };
  }

  step(name, at) {
    const step = fold(this, at ? Number(at) : this.entries.length).steps.find((one) => one.name === name) ?? { name, state: 'waiting', attempt: 0 };
    const attempts = [];
    for (const entry of this.entries) {
      if (entry.step !== name || (at && entry.n > Number(at))) continue;
      const last = attempts.at(-1);
      if (entry.kind === 'step.started') attempts.push({ attempt: entry.attempt ?? attempts.length + 1, startTime: entry.at, state: 'running' });
      else if (entry.kind === 'step.confirmed' && last) last.confirmed = entry.at;
      else if (last && /step\.(attempt-failed|failed|completed|cancelled)/.test(entry.kind)) Object.assign(last, { endTime: entry.at, state: entry.kind === 'step.completed' ? 'completed' : entry.kind === 'step.cancelled' ? 'cancelled' : 'failed', reason: entry.reason, raw: entry.raw, retryAt: entry.retryAt });
    }
    return { ...step, attempts, ...(this.inputs[name] && { inputBytes: this.inputs[name].length }), ...(this.outputs[name] && { outputBytes: this.outputs[name].length }) };
  }

  /** Payloads go out as the text that they are. */
  entriesText(after, limit) {
    // As with the real one, a page may end earlier.
    const rows = Math.min(limit, 7);
    const page = this.entries.slice(after, after + rows);
    const list = page.map(({ payload, ...entry }) => `${JSON.stringify(entry).slice(0, -1)}${payload === undefined ? '' : `,"payload":${payload}`}}`);
    return `{"entries":[${list.join(',')}]${after + rows < this.entries.length ? `,"next":${after + rows}` : ''}}`;
  }
}

/**
 * @param {FakeJob} job
 * @param {number} n
 */
export function fold(job, n) {
  const defined = job.task ? job.definition.tasks.find((task) => task.name === job.task).steps : job.definition.steps;
  const steps = new Map(defined.map((step) => [step.name, { name: step.name, state: 'waiting', status: '', ...(step.queue && { queue: step.queue }), ...(step.external && { external: true }), attempt: 0 }]));
  let state = 'running';
  let last = job.created;
  for (const entry of job.entries.slice(0, n)) {
    last = entry.at;
    const end = /^job\.(completed|failed|cancelled|paused)$/.exec(entry.kind);
    if (end) state = end[1];
    if (/^job\.(resumed|retried|rerun)$/.test(entry.kind)) state = 'running';
    const step = steps.get(entry.step);
    if (!step) continue;
    const settle = (/** @type {string} */ to, /** @type {string} */ status) => Object.assign(step, { state: to, status: entry.status ?? status, endTime: entry.at, retryAt: undefined, deadline: undefined, elapsed: step.startTime ? (Date.parse(entry.at) - Date.parse(step.startTime)) * 1e6 : undefined, reason: entry.reason });
    switch (entry.kind) {
      case 'step.started':
        Object.assign(step, { state: 'running', status: defined.find((one) => one.name === step.name).statuses?.[0] ?? 'PENDING', attempt: entry.attempt ?? 1, startTime: step.startTime ?? entry.at, attemptStartTime: entry.at, deadline: entry.deadline, retryAt: undefined, reason: undefined });
        if (entry.items !== undefined) step.children = { items: entry.items, started: 0, ended: 0, failed: 0, withoutItem: 0 };
        break;
      case 'children.started': step.children.started += entry.count; break;
      case 'child.completed': step.children.ended += entry.count ?? 1; break;
      case 'child.failed': step.children.ended += entry.count ?? 1; step.children.failed += entry.count ?? 1; break;
      case 'step.progressed': Object.assign(step, { progress: entry.progress, message: entry.message }); break;
      case 'step.attempt-failed': Object.assign(step, { reason: entry.reason, raw: entry.raw, retryAt: entry.retryAt, deadline: undefined }); break;
      case 'step.completed': settle('completed', 'COMPLETED'); break;
      case 'step.failed': settle('failed', 'FAILED'); break;
      case 'step.skipped': settle('skipped', 'SKIPPED'); break;
      case 'step.cancelled': settle('cancelled', 'CANCELLED'); break;
      default:
    }
  }
  return { uuid: job.id, workflow: job.workflow, ...(job.task && { task: job.task }), state, created: job.created, ...(job.parent && { parent: job.parent }), definition: job.definition.hash, entries: job.entries.length, ...(n < job.entries.length && { at: n, atTime: last }), steps: [...steps.values()].map((step) => ({ ...step, ...job.over[step.name] })) };
}
