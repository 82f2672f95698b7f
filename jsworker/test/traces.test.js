/** Spans of workers' functions: inside those of the manager's attempts, where OpenTelemetry is installed. */

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { existsSync, readFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { dirname, join } from 'node:path';
import test from 'node:test';
import { pathToFileURL } from 'node:url';
import { Daemon, eventually, Manager, workersOf } from './parts.js';

const TRACE = '0af7651916cd43dd8448eb211c80319c';
const PARENT = 'b7ad6b7169203331';
const TRACEPARENT = `00-${TRACE}-${PARENT}-01`;
const TRACESTATE = 'rojo=00f067aa0ba902b7,congo=t61rcWkgMzE';
const traced = { program: 'traced_worker_program.js' };

async function spansOf(worker, count = 1) {
  const file = join(dirname(worker.logFile), 'spans');
  const lines = () => (existsSync(file) ? readFileSync(file, 'utf8').trim().split('\n') : []);
  await eventually(() => lines().length >= count, `${count} spans`);
  assert.equal(lines().length, count);
  return lines().map((line) => JSON.parse(line));
}

/** A receiver of OTLP: its address, and the bodies of what was posted to it. */
async function receiver(t) {
  const bodies = [];
  const server = createServer(async (request, response) => {
    const parts = [];
    for await (const part of request) parts.push(part);
    bodies.push(Buffer.concat(parts));
    response.end();
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.after(() => server.close());
  return { bodies, endpoint: `http://127.0.0.1:${server.address().port}` };
}

test('over HTTP the span is inside the attempt that the manager tells of', async (t) => {
  const [{ bodies, endpoint }, start] = [await receiver(t), workersOf(t)];
  const environment = { WORKFLOW_MANAGER__TRACES__ENDPOINT: endpoint, WORKFLOW_MANAGER__TRACES__DELAY: '10ms' };
  const daemon = await Daemon.start(t, 'workflows: [{ name: orders, steps: [{ name: price, queue: prices }] }]', environment);
  const worker = await start({ prices: 'plain' }, { server: daemon.url, ...traced });
  const job = await daemon.create('orders', {});
  await daemon.ended(job);
  const [span] = await spansOf(worker);
  assert.deepEqual([span.name, span.kind, span.trace], ['process prices', 4, job.replaceAll('-', '')]);
  assert.equal(span.attributes['messaging.system'], 'workflow_manager');
  assert.equal(span.attributes['messaging.message.conversation_id'], `${job}:price`);
  assert.deepEqual([span.attributes['workflow.name'], span.attributes['workflow.attempt']], ['orders', 1]);
  const parent = Buffer.from(span.parent.spanId, 'hex');
  await eventually(() => bodies.some((body) => body.includes(parent) && body.includes('send prices')), 'the span of the attempt');
});

test('an error whose text cannot be read is told as without a span', async (t) => {
  const [manager, start] = [await Manager.open(t), workersOf(t)];
  const queue = manager.queue();
  const worker = await start({ [queue]: 'throwsUnreadably' }, traced);
  await manager.send(queue, {}, { headers: { traceparent: TRACEPARENT } });
  assert.match((await manager.receive()).text, /Unreadable: \(its text cannot be read/);
  assert.deepEqual((await spansOf(worker)).map((span) => span.status.code), [2]);
});

for (const name of ['fails', 'throws']) {
  test(`over AMQP the span has the message's parent and the error: ${name}`, async (t) => {
    const [manager, start] = [await Manager.open(t), workersOf(t)];
    const queue = manager.queue();
    const worker = await start({ [queue]: name }, traced);
    await manager.send(queue, {}, { headers: { traceparent: TRACEPARENT, tracestate: TRACESTATE } });
    assert.equal((await manager.receive()).type, 'error');
    const [span] = await spansOf(worker);
    assert.deepEqual([span.trace, span.parent.spanId, span.state], [TRACE, PARENT, TRACESTATE]);
    assert.equal(span.attributes['messaging.system'], 'rabbitmq');
    assert.equal(span.status.code, 2);
    assert.deepEqual(span.events.map((event) => event.name), ['exception']);
  });
}

test('a message that is not sampled or has no parent is worked on all the same', async (t) => {
  const [manager, start] = [await Manager.open(t), workersOf(t)];
  const queue = manager.queue();
  const worker = await start({ [queue]: 'plain' }, traced);
  for (const traceparent of [TRACEPARENT.replace(/01$/, '00'), 7, 'nonsense', `00-${'0'.repeat(32)}-${PARENT}-01`]) {
    await manager.send(queue, {}, { headers: { traceparent } });
    assert.equal((await manager.receive()).type, undefined);
  }
  for (const span of await spansOf(worker, 3)) assert.equal(span.parent, undefined);
});

test('without the package nothing changes', async (t) => {
  const [manager, start] = [await Manager.open(t), workersOf(t)];
  const queue = manager.queue();
  const hidden = pathToFileURL(join(import.meta.dirname, 'without_opentelemetry.js'));
  const worker = await start({ [queue]: 'plain' }, { environment: { NODE_OPTIONS: `--import=${hidden}` } });
  await manager.send(queue, { n: 1 }, { headers: { traceparent: TRACEPARENT } });
  assert.equal((await manager.receive()).text, '{"echo":{"n":1}}');
  assert.ok(worker.isAlive);
});
