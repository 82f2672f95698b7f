// Stands in for a manager in the browser tests: it answers the API's calls out of memory, with jobs in every state. Times are fixed
// offsets from its start, and nothing is random, so that pictures can be compared.

import { definitions } from './fake-definitions.js';
import { fold, FakeJob, uuid } from './fake-jobs.js';

const MINUTE = 60_000;
const HOUR = 60 * MINUTE;

export class Fake {
  /** @type {Map<string, FakeJob>} */
  jobs = new Map();
  definitions = definitions;
  /** @type {string[]} what was asked */
  asked = [];
  /** @type {{ id: string, response: import('node:http').ServerResponse }[]} */
  streams = [];
  /** Calls that this manager does not have. @type {RegExp | undefined} */
  without;
  token = '';
  /** How long each answer takes. */
  delay = 0;
  now = Date.now();

  /** @param {FakeJob} job */
  add(job) {
    this.jobs.set(job.id, job);
    return job;
  }

  /** @type {(request: import('node:http').IncomingMessage, response: import('node:http').ServerResponse) => void} */
  answer = (request, response) => {
    const url = new URL(request.url ?? '/', 'http://localhost');
    const path = url.pathname.slice(5).split('/').map(decodeURIComponent);
    this.asked.push(`${request.method} ${url.pathname}${url.search}`);
    let body = '';
    request.on('data', (part) => { body += part; });
    request.on('end', () => setTimeout(() => {
      if (this.token && request.headers.authorization !== `Bearer ${this.token}`) return problem(response, 401, 'this call needs a token');
      if (this.without?.test(url.pathname)) return problem(response, 404, `there is nothing at ${url.pathname}; the API is described in docs/http-api.md`);
      try {
        this.#route(request, response, path, url.searchParams, body);
      } catch (error) {
        problem(response, 500, String(/** @type {Error} */ (error).stack));
      }
    }, this.delay));
  };

  /**
   * @param {import('node:http').IncomingMessage} request
   * @param {import('node:http').ServerResponse} response
   * @param {string[]} path
   * @param {URLSearchParams} query
   * @param {string} body
   */
  #route(request, response, path, query, body) {
    const [area, id, part, step, last] = path;
    if (area === 'workflows') return json(response, this.#workflows(query), request);
    if (area === 'queue') return json(response, { operation: 'redispatch', queue: id, vhost: '', steps: 15, jobs: 15 });
    if (area === 'queues') return json(response, this.#queues());
    if (area === 'manager') return json(response, this.#manager());
    if (area === 'settings') return json(response, SETTINGS);
    if (area === 'jobs' && id === 'search') return json(response, this.#search(query));
    if (area === 'jobs' && request.method === 'POST') return json(response, this.#bulk(id, query));
    if (area === 'status') return this.#status(request, response, id, query);
    if (area === 'definition') {
      const found = Object.values(this.definitions).flat().find((definition) => definition.hash === id);
      return found ? json(response, found) : problem(response, 404, `unknown definition ${id}`);
    }
    if (area === 'workflow' && part === undefined && request.method === 'POST') {
      try {
        JSON.parse(body);
      } catch {
        return problem(response, 400, 'the message is no JSON object: it ends too early');
      }
      const job = new FakeJob('new', this.definitions[id][0], Date.now());
      job.id = query.get('id') ?? job.id;
      job.message = body;
      this.add(job);
      return json(response, { id: job.id });
    }
    if (area === 'definitions') return json(response, { definitions: this.#versions(query.get('workflow')) });
    if (area === 'job') {
      const job = this.jobs.get(id);
      if (!job) return problem(response, 404, `unknown job id ${id}: there is none, or its retention is over`);
      if (request.method === 'DELETE') {
        this.jobs.delete(id);
        return json(response, { id, state: 'deleted' });
      }
      if (part === undefined) return this.#job(request, response, job, query);
      if (part === 'why') return json(response, job.why ?? { job: id, cause: 'working', why: 'a worker has the message of step "invoice" since 4 s, as far as the broker tells', step: job.light().steps.find((one) => one.state === 'running')?.name });
      if (part === 'entries') return text(response, 'application/json', job.entriesText(Number(query.get('after') ?? 0), Number(query.get('limit') ?? 1000)));
      if (part === 'events') return this.#events(response, job);
      if (part === 'message') return raw(request, response, job.message);
      if (part === 'result') return job.result === undefined ? problem(response, 409, `job ${id} is ${job.state}: it has no result`) : raw(request, response, job.result);
      if (part === 'children') return json(response, this.#children(job, query));
      if (part === 'step' && request.method === 'POST') return this.#step(response, job, step, query, body);
      if (part === 'step' && last === undefined) return json(response, job.step(step, query.get('at')));
      if (part === 'step' && (last === 'input' || last === 'output')) {
        const payload = last === 'input' ? job.inputs[step] : job.outputs[step];
        return payload === undefined ? problem(response, 404, `step "${step}" has no ${last}`) : raw(request, response, payload);
      }
      if (part === 'step' && last === 'items') return this.#items(response, job, query);
      if (part === 'step' && last === 'reasons') return json(response, job.reasons ?? { groups: [], looked: 0, more: false });
      if (request.method === 'POST') return this.#operate(response, job, part);
    }
    return problem(response, 404, `there is nothing at /api/${path.join('/')}; the API is described in docs/http-api.md`);
  }

  #job(request, response, job, query) {
    const at = query.get('at');
    if (at !== null && (Number(at) < 1 || Number(at) > job.entries.length)) return problem(response, 400, `the record has the entries 1 to ${job.entries.length}`);
    return json(response, at === null ? job.light() : fold(job, Number(at)), request, at === null ? `"${job.entries.length}-${job.state}"` : undefined);
  }

  #events(response, job) {
    response.writeHead(200, { 'Content-Type': 'text/event-stream' });
    response.write(': events\n\n');
    if (['completed', 'failed', 'cancelled'].includes(job.state)) {
      response.end(`id: ${job.id}:1:${job.entries.length}\nevent: job.${job.state}\ndata: {}\n\n`);
      return;
    }
    const stream = { id: job.id, response };
    this.streams.push(stream);
    response.on('close', () => this.streams.splice(this.streams.indexOf(stream), 1));
  }

  /** Tells the readers of a job's stream that something has happened. */
  happened(id, event = 'step.completed') {
    for (const stream of this.streams) if (stream.id === id) stream.response.write(`id: ${id}:1:9\nevent: ${event}\ndata: {}\n\n`);
  }

  #operate(response, job, operation) {
    const states = { pause: 'paused', resume: 'running', retry: 'running', cancel: 'cancelled', rerun: 'running' };
    if (!states[operation]) return problem(response, 404, 'no such operation');
    job.push({ kind: `job.${{ pause: 'paused', resume: 'resumed', retry: 'retried', cancel: 'cancelled', rerun: 'rerun' }[operation]}` });
    job.state = states[operation];
    if (operation === 'cancel') {
      job.ended = new Date(this.now).toISOString();
      job.reason = 'cancelled by a call of the API';
    } else {
      job.ended = undefined;
      job.reason = undefined;
    }
    this.happened(job.id, `job.${job.state}`);
    return json(response, { id: job.id, state: job.state });
  }

  #step(response, job, step, query, body) {
    if (query.get('type') !== 'error') {
      try {
        const value = JSON.parse(body);
        if (typeof value !== 'object' || value === null || Array.isArray(value)) throw new Error();
      } catch {
        return problem(response, 422, 'the reply is no JSON object');
      }
    }
    job.push(query.get('type') === 'error' ? { kind: 'step.failed', step, reason: `the worker reported an error: ${JSON.parse(body).error}` } : { kind: 'step.completed', step, payload: body, payloadBytes: body.length });
    job.outputs[step] = body;
    this.happened(job.id);
    return json(response, { id: job.id, state: job.state, step: job.light().steps.find((one) => one.name === step) });
  }

  #children(job, query) {
    const list = job.children ?? [];
    const state = query.get('state');
    const limit = Number(query.get('limit') ?? 1000);
    const after = Number(query.get('after') ?? 0);
    const found = list.filter((child) => !state || child.state === state);
    return { children: found.slice(after, after + limit), ...(found.length > after + limit && { next: String(after + limit) }) };
  }

  #items(response, job, query) {
    if (query.get('format') === 'map') {
      response.writeHead(200, { 'Content-Type': 'application/octet-stream' }).end(Buffer.from(job.map));
      return;
    }
    const children = job.light().steps.find((one) => one.children).children;
    json(response, { items: children.items, waiting: children.items - children.started, running: children.started - children.ended, completed: children.ended - children.failed, failed: children.failed, window: 10_000, tolerate: '1%' });
  }

  #workflows(query) {
    const stats = query.get('stats');
    return Object.keys(this.definitions).map((name) => {
      const jobs = [...this.jobs.values()].filter((job) => job.workflow === name && !job.parent);
      const by = (/** @type {string} */ state) => jobs.filter((job) => job.state === state);
      const running = by('running').sort((a, b) => a.created.localeCompare(b.created));
      const failed = by('failed').sort((a, b) => b.created.localeCompare(a.created));
      const seed = name.length;
      const scale = { orders: 300, 'book-word-counts': 40, 'nightly-report': 0 }[name] ?? 4;
      const perMinute = Array.from({ length: 60 }, (_, i) => [Math.round(scale * (0.55 + 0.3 * Math.sin((i + seed) / 6) + 0.15 * Math.sin(i * 2.3))), name === 'orders' && i % 17 === 4 ? 3 : 0]);
      return {
        vhost: '', name, job_count: running.length + by('paused').length, loaded: name !== 'nightly-report', definition: this.definitions[name][0].hash,
        ...(stats && { stats: {
          running: running.length, paused: by('paused').length, failed: failed.length, completed: by('completed').length, cancelled: by('cancelled').length,
          ...(running[0] && { oldestRunning: { job: running[0].id, created: running[0].created } }),
          ended: { completed: perMinute.reduce((sum, [c]) => sum + c, 0), failed: name === 'orders' ? 12 : failed.length ? 1 : 0, cancelled: 0 },
          perMinute, ...(scale && { p50: { orders: 1.2e9, 'book-word-counts': 41e9, 'job-application': 1.7e14 }[name] ?? 3e8, p95: { orders: 9e9, 'book-word-counts': 130e9, 'job-application': 5.2e14 }[name] ?? 1e9 }),
          ...(failed[0] && { lastFailure: { job: failed[0].id, at: failed[0].created, reason: failed[0].reason } }),
        } }),
      };
    });
  }

  #found(query) {
    const states = query.get('state')?.split(',');
    const since = (/** @type {string} */ text) => {
      const match = /^(\d+)([mhd])$/.exec(text);
      return match ? this.now - Number(match[1]) * { m: MINUTE, h: HOUR, d: 24 * HOUR }[match[2]] : Date.parse(text);
    };
    let list = [...this.jobs.values()].filter((job) => !job.parent).filter((job) => (!query.get('workflow') || job.workflow === query.get('workflow')) && (!states || states.includes(job.state)) && (!query.get('id') || job.id.replaceAll('-', '').startsWith(query.get('id').replaceAll('-', ''))) && (!query.get('after') || Date.parse(job.created) >= since(query.get('after'))) && (!query.get('before') || Date.parse(job.created) < since(query.get('before'))));
    list.sort((a, b) => b.created.localeCompare(a.created) || a.id.localeCompare(b.id));
    if (query.get('order') === 'oldest') list.reverse();
    return list;
  }

  #search(query) {
    const list = this.#found(query);
    const limit = Number(query.get('limit') ?? 1000);
    const from = Number(query.get('cursor') ?? 0);
    const more = list.length > from + limit;
    return {
      jobs: list.slice(from, from + limit).map((job) => {
        const { steps } = job.light();
        return { job: job.id, workflow: job.workflow, state: job.state, created: job.created, ended: job.ended, reason: job.reason?.slice(0, 200), stepsDone: steps.filter((one) => ['completed', 'skipped', 'cancelled'].includes(one.state)).length, steps: steps.length };
      }),
      ...(more && { next: String(from + limit) }),
      ...(query.get('count') && { count: list.length }),
    };
  }

  #bulk(operation, query) {
    const limit = Number(query.get('limit') ?? 1000);
    const list = this.#found(query).slice(0, limit);
    const possible = { retry: ['failed'], pause: ['running'], resume: ['paused'], cancel: ['running', 'paused'], delete: ['completed', 'failed', 'cancelled'] }[operation] ?? [];
    if (query.get('dryRun')) return { operation, dryRun: true, matched: list.length, jobs: this.#search(query).jobs };
    const refused = list.filter((job) => !possible.includes(job.state));
    for (const job of list) if (possible.includes(job.state)) { if (operation === 'delete') this.jobs.delete(job.id); else job.state = { retry: 'running', pause: 'paused', resume: 'running', cancel: 'cancelled' }[operation]; }
    return { operation, matched: list.length, done: list.length - refused.length, refused: refused.length, refusals: refused.map((job) => ({ job: job.id, reason: `job ${job.id} is ${job.state}: it cannot be done` })) };
  }

  #status(request, response, workflow, query) {
    const names = this.definitions[workflow]?.[0].steps.map((step) => step.name);
    if (!names) return problem(response, 404, `unknown workflow ${workflow}`);
    const rows = [...this.jobs.values()].filter((job) => job.workflow === workflow && !job.parent).map((job) => ({ job: job.id, state: job.state, created: job.created, updated: job.ended ?? job.created, steps: Object.fromEntries(job.light().steps.map((step) => [step.name, step.status ?? ''])) }));
    const filters = [...query].filter(([key]) => !['limit', 'cursor', 'count', 'sort', 'vhost'].includes(key));
    const found = rows.filter((row) => filters.every(([key, value]) => (key === 'state' ? row.state === value : (row.steps[key.replace(/^step\./, '')] ?? '') === value))).sort((a, b) => b.created.localeCompare(a.created));
    if (request.headers.accept === 'text/csv') return text(response, 'text/csv', `job,state\n${found.map((row) => `${row.job},${row.state}`).join('\n')}\n`);
    const limit = Number(query.get('limit') ?? 1000);
    const from = Number(query.get('cursor') ?? 0);
    json(response, { rows: found.slice(from, from + limit), ...(found.length > from + limit && { next: String(from + limit) }), ...(query.get('count') && { count: found.length }) });
  }

  #versions(name) {
    return (this.definitions[name] ?? []).map((definition, index) => {
      const jobs = [...this.jobs.values()].filter((job) => job.definition?.hash === definition.hash && !job.parent);
      return { hash: definition.hash, loaded: definition.loaded, running: index === 0 ? jobs.filter((job) => job.state === 'running').length : 14, ended: index === 0 ? 18_412 : 220_114, lastEnded: new Date(this.now - (index ? 26 * HOUR : 4 * MINUTE)).toISOString() };
    });
  }

  #queues() {
    const looked = new Date(this.now - 3000).toISOString();
    return { looked, queues: [
      { queue: 'invoice', vhost: '', bus: '', messages: 212, unacknowledged: 0, consumers: 0, usedBy: [{ workflow: 'orders', step: 'invoice' }]  },
      { queue: 'price', vhost: '', bus: '', messages: 8112, unacknowledged: 96, consumers: 24, usedBy: [{ workflow: 'orders', task: 'price-line', step: 'price' }]  },
      { queue: 'stock', vhost: '', bus: '', messages: 0, consumers: 4, usedBy: [{ workflow: 'orders', step: 'stock' }]  },
      { queue: 'risk', vhost: '', bus: '', messages: 3, consumers: 2, usedBy: [{ workflow: 'orders', step: 'fraud-check' }]  },
      { queue: 'segment_word_counts', vhost: '', bus: '', messages: 540, consumers: 8, usedBy: [{ workflow: 'book-word-counts', task: 'segment', step: 'segment-word-counts' }]  },
    ] };
  }

  #manager() {
    return {
      version: '0.1.0', started: new Date(this.now - 76 * HOUR).toISOString(), uptime: 76 * 3600e9, ready: false,
      checks: [{ name: 'journal', ok: true, detail: 'commits take 3 ms' }, { name: 'process', ok: true, detail: 'ok' }, { name: 'bus', ok: true, detail: 'connected' }, { name: 'reply queue', ok: false, detail: '212 replies wait: the manager is behind' }],
      journal: { file: '/var/lib/workflow-manager/workflow-manager.db', bytes: 1_288_490_188, walBytes: 12_582_912 },
      actors: [{ kind: 'router', mailbox: 3, mailboxMax: 412, handled: 5_120_331, restarts: 0 }, { kind: 'job', mailbox: 0, mailboxMax: 18, handled: 21_004_112, restarts: 1 }, { kind: 'journal', mailbox: 12, mailboxMax: 2048, handled: 8_220_019, restarts: 0 }, { kind: 'bus', mailbox: 0, mailboxMax: 99, handled: 10_331_204, restarts: 2 }],
      streams: 3, webhookWaiting: 0,
    };
  }
}

const SETTINGS = {
  workflows: ['/etc/workflow-manager/orders.yaml', '/etc/workflow-manager/hiring.yaml'],
  amqp: { server: 'amqp://orders:***@rabbit.example:5672/', management: '', reply_queue: 'workflow-manager', prefetch: 2000, linger: '5ms' },
  journal: { file: '/var/lib/workflow-manager/workflow-manager.db', retention: '7d' },
  http: { listen: '127.0.0.1:8088', token: '***', hosts: [] },
  fanout: { window: 10_000 },
};

function json(response, value, request = undefined, etag = undefined) {
  const body = JSON.stringify(value);
  if (etag && request?.headers['if-none-match'] === etag) return response.writeHead(304, { ETag: etag }).end();
  response.writeHead(200, { 'Content-Type': 'application/json', ...(etag && { ETag: etag }) }).end(body);
}

function text(response, type, body) {
  response.writeHead(200, { 'Content-Type': type }).end(body);
}

function raw(request, response, body) {
  const bytes = Buffer.from(body);
  const range = /^bytes=0-(\d+)$/.exec(request.headers.range ?? '');
  if (range && bytes.length > Number(range[1]) + 1) return response.writeHead(206, { 'Content-Type': 'application/json', 'Content-Range': `bytes 0-${range[1]}/${bytes.length}` }).end(bytes.subarray(0, Number(range[1]) + 1));
  response.writeHead(200, { 'Content-Type': 'application/json' }).end(bytes);
}

function problem(response, status, detail) {
  response.writeHead(status, { 'Content-Type': 'application/problem+json' }).end(JSON.stringify({ type: 'about:blank', title: 'Problem', status, detail }));
}

export { demo } from './fake-demo.js';
export { uuid };
