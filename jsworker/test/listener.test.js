/** `QueueListener`, for the worker programs of earlier days. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import QueueListener from 'jsworker';
import { Daemon, eventually, Manager, Relay, required, workersOf } from './parts.js';

const EARLIER = { program: 'earlier_worker.cjs' };

test('an earlier program runs unmodified', async (t) => {
  const [manager, start] = [await Manager.open(t), workersOf(t)];
  const queue = manager.queue();
  const worker = await start({ [queue]: '' }, EARLIER);
  for (const [message, answer] of [[{ n: 1 }, { n: 1 }], [{ n: 2, later: true }, { later: 2 }]]) {
    const correlationId = await manager.send(queue, message, { headers: { attempt: 2 } });
    const reply = await manager.receive();
    assert.deepEqual(JSON.parse(reply.text), { correlationId, ...answer });
    assert.deepEqual([reply.correlationId, reply.deliveryMode, reply.type, reply.headers], [correlationId, 2, undefined, { attempt: 2 }]);
  }
  assert.equal(await worker.terminate(), 0);
  assert.equal(await manager.ready(queue), 0);
});

test('what it throws is an error reply, once', async (t) => {
  const [manager, start] = [await Manager.open(t), workersOf(t)];
  const [queue, dead] = await manager.rejecting();
  const worker = await start({ [queue]: '' }, EARLIER);
  for (const [error, told] of [['now', 'Error: the function has failed'], ['later', 'Error: the promise has failed']]) {
    await manager.send(queue, { error });
    const reply = await manager.receive();
    assert.deepEqual([reply.type, JSON.parse(reply.text)], ['error', { error: told, retryable: true }]);
  }
  await manager.send(queue, 'nonsense');
  assert.equal(JSON.parse((await manager.receive()).text).retryable, false);
  assert.equal(await worker.terminate(), 0);
  assert.equal((await manager.ready(queue)) + (await manager.ready()) + (await manager.ready(dead)), 0);
});

test('nothing is no reply; without reply_to its result is rejected', async (t) => {
  const [manager, start] = [await Manager.open(t), workersOf(t)];
  const [queue, dead] = await manager.rejecting();
  const worker = await start({ [queue]: '' }, { ...EARLIER, environment: { NODE_DEBUG: 'jsworker' } });
  await manager.send(queue, { nothing: true });
  await manager.send(queue, { nothing: true }, { replyTo: undefined });
  await worker.awaitLog('without a reply', 2);
  await manager.send(queue, { n: 1 }, { replyTo: undefined });
  await manager.send(queue, { error: 'now' }, { replyTo: undefined });
  await manager.receive(dead);
  await manager.receive(dead);
  await worker.awaitLog('it has no reply_to', 2);
  assert.equal(await worker.terminate(), 0);
  assert.equal((await manager.ready(queue)) + (await manager.ready()) + (await manager.ready(dead)), 0);
});

test('it acknowledges after the confirm, and connects again', async (t) => {
  const [manager, start] = [await Manager.open(t), workersOf(t)];
  const queue = manager.queue();
  let seen;
  const relay = await Relay.open(t, (method, before) => {
    if (method !== 'broker basic.ack' || seen) return false;
    seen = [...before];
    return true;
  });
  const worker = await start({ [queue]: '' }, { ...EARLIER, server: relay.url });
  await manager.send(queue, { n: 1 });
  assert.equal((await manager.receive()).text, (await manager.receive()).text);
  assert.ok(seen.includes('client basic.publish') && !seen.includes('client basic.ack'), `no acknowledgement before the confirm: ${seen}`);
  assert.equal(await worker.terminate(), 0);
  assert.equal(await manager.ready(queue), 0);
});

test('inside a program: connect, channel, all messages at once, stop', async (t) => {
  const manager = await Manager.open(t);
  const queue = manager.queue();
  let begun = 0;
  let release;
  const released = new Promise((resolve) => (release = resolve));
  const listener = new QueueListener(required('AMQP_SERVER'), queue, async (correlationId, data) => {
    begun++;
    await released;
    return data;
  });
  assert.deepEqual([listener.amqpServer, listener.queueName, listener.channel, QueueListener.default], [required('AMQP_SERVER'), queue, undefined, QueueListener]);
  await listener.connect();
  for (let n = 0; n < 20; n++) {
    listener.channel.publish('', queue, Buffer.from(JSON.stringify({ n })), { persistent: true, correlationId: '1:step', replyTo: manager.replyQueue });
  }
  await eventually(() => begun === 20, 'all calls');
  const stopped = listener.stop();
  release();
  await stopped;
  assert.deepEqual([listener.channel, listener.connection], [undefined, undefined]);
  assert.deepEqual([await manager.ready(), await manager.ready(queue)], [20, 0]);
});

test('it works for a real manager, beside a worker of these days', async (t) => {
  const [manager, start] = [await Manager.open(t), workersOf(t)];
  const [earlier, now] = [manager.queue(), manager.queue()];
  manager.queues.push(`${manager.name}-daemon`, 'workflow.two');
  const workflows = `workflows: [{ name: two, steps: [{ name: a, queue: ${earlier} }, { name: b, queue: ${now}, depends: [ a ] }] }]`;
  const daemon = await Daemon.start(t, workflows, { AMQP_SERVER: required('AMQP_SERVER'), WORKFLOW_MANAGER__AMQP__REPLY_QUEUE: `${manager.name}-daemon` });
  await start({ [earlier]: '' }, EARLIER);
  await start({ [now]: 'raw' });
  const job = await daemon.create('two', { n: 1 });
  assert.equal(await daemon.result(job), `{"echo":{"correlationId":"${job}:a","n":1}}`);
});
