/** Over AMQP nothing is lost: workers are killed and stopped, connections are cut, the broker stops and stops reading. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Done } from '../dist/amqp.js';
import { connections, eventually, Manager, rabbitmqctl, Relay, required, workersOf } from './parts.js';

test('killed between function and reply: the message comes again', async (t) => {
  const [manager, start] = [await Manager.open(t), workersOf(t)];
  const queue = manager.queue();
  const first = await start({ [queue]: 'diesOnce' });
  const correlationId = await manager.send(queue, { n: 1 });
  assert.equal(await first.end(), 'SIGKILL');
  assert.equal(await manager.ready(), 0, 'it died before its reply');

  const second = await start({ [queue]: 'diesOnce' });

  const reply = await manager.receive();
  assert.deepEqual([reply.correlationId, reply.text], [correlationId, '{"died":true}']);
  assert.deepEqual(second.calls(), ['1', '1']);
  assert.equal(await second.terminate(), 0);
  assert.equal((await manager.ready(queue)) + (await manager.ready()), 0, 'one reply, and the message is acknowledged');
});

test('cut before the broker has the reply: it goes on the next connection', async (t) => {
  const [manager, start] = [await Manager.open(t), workersOf(t)];
  const queue = manager.queue();
  let cuts = 0;
  const relay = await Relay.open(t, (method) => method === 'client basic.publish' && cuts++ === 0);
  const worker = await start({ [queue]: 'echo' }, { server: relay.url });
  const correlationId = await manager.send(queue, { n: 1 });
  assert.equal((await manager.receive()).correlationId, correlationId);
  await worker.awaitLog('trying again in');
  assert.equal(await worker.terminate(), 0);
  assert.deepEqual(worker.calls(), ['1']);
  await assertOneAnswer(manager, queue, correlationId);
});

test('cut between the reply and its confirm: it was not acknowledged, and is answered again', async (t) => {
  const [manager, start] = [await Manager.open(t), workersOf(t)];
  const queue = manager.queue();
  let seen;
  const relay = await Relay.open(t, (method, before) => {
    // The first confirm, from the broker, does not reach the worker.
    if (method !== 'broker basic.ack' || seen) return false;
    seen = [...before];
    return true;
  });
  const worker = await start({ [queue]: 'echo' }, { server: relay.url });
  const correlationId = await manager.send(queue, { n: 1 });
  assert.equal((await manager.receive()).correlationId, correlationId);
  assert.equal((await manager.receive(undefined, 'the second reply')).correlationId, correlationId);
  assert.ok(seen.includes('client basic.publish') && !seen.includes('client basic.ack'), `no acknowledgement before the confirm: ${seen}`);
  assert.equal(await worker.terminate(), 0);
  assert.deepEqual(worker.calls(), ['1']);
  await assertOneAnswer(manager, queue, correlationId);
});

test('cut before the broker has the acknowledgement: the message is answered again', async (t) => {
  const [manager, start] = [await Manager.open(t), workersOf(t)];
  const queue = manager.queue();
  let cuts = 0;
  const relay = await Relay.open(t, (method) => method === 'client basic.ack' && cuts++ === 0);
  const worker = await start({ [queue]: 'echo' }, { server: relay.url });
  await manager.send(queue, { n: 1 });
  assert.equal((await manager.receive()).text, (await manager.receive()).text);
  assert.equal(await worker.terminate(), 0);
  assert.equal(await manager.ready(queue), 0);
});

test('killed while the broker holds the confirm back: the message comes again', async (t) => {
  const [manager, start] = [await Manager.open(t), workersOf(t)];
  const queue = manager.queue();
  const first = await start({ [queue]: 'waits' });
  await manager.send(queue, { n: 1 });
  await first.awaitCalls(1);

  // A broker under memory alarm no longer reads from connections that publish: the reply leaves the worker, and no confirm comes back.
  await rabbitmqctl('set_vm_memory_high_watermark', '0.00001');
  try {
    await eventually(async () => (await rabbitmqctl('eval', 'rabbit_alarm:get_alarms().')).includes('memory'), 'the memory alarm');
    first.release();
    await eventually(async () => /blocked/.test(await stateOf(queue)), 'the broker to stop reading the reply');
    first.signal('SIGKILL');
    assert.equal(await first.end(), 'SIGKILL');
  } finally {
    await rabbitmqctl('set_vm_memory_high_watermark', '0.4');
  }

  const second = await start({ [queue]: 'waits' });
  await second.awaitCalls(2);
  await manager.receive();
  assert.equal(await second.terminate(), 0);
  assert.equal(await manager.ready(queue), 0);
});

test('a message in hand when the connection is closed is not begun again', async (t) => {
  const [manager, start] = [await Manager.open(t), workersOf(t)];
  const queue = manager.queue();
  const worker = await start({ [queue]: 'waits' });
  const correlationId = await manager.send(queue, { n: 1 });
  await worker.awaitCalls(1);
  const [connection] = await connections(queue);
  await rabbitmqctl('close_connection', connection, 'closed by a test');
  await worker.awaitLog('it came again, and is in hand already');
  worker.release();
  assert.equal((await manager.receive()).correlationId, correlationId);
  assert.equal(await worker.terminate(), 0);
  assert.deepEqual(worker.calls(), ['1']);
  assert.equal((await manager.ready(queue)) + (await manager.ready()), 0);
});

test('a result is told whatever has become of its delivery', async (t) => {
  // As behind the broker's consumer_timeout, when the message has gone to somebody else.
  const [manager, start] = [await Manager.open(t), workersOf(t)];
  const queue = manager.queue();
  const worker = await start({ [queue]: 'waits' });
  const correlationId = await manager.send(queue, { n: 1 });
  await worker.awaitCalls(1);
  const [connection] = await connections(queue);
  await rabbitmqctl('close_connection', connection, 'closed by a test');
  assert.equal((await manager.receive(queue, 'the message that nobody has acknowledged')).correlationId, correlationId);
  await worker.awaitLog('consuming from', 2);
  worker.release();
  const reply = await manager.receive();
  assert.deepEqual([reply.correlationId, reply.text], [correlationId, '{"n":1}']);
  assert.equal(await worker.terminate(), 0);
  assert.deepEqual(worker.calls(), ['1']);
});

test('a result that was made without a connection is told on the next', async (t) => {
  const [manager, start] = [await Manager.open(t), workersOf(t)];
  const queue = manager.queue();
  const worker = await start({ [queue]: 'waits' }, { options: ['--prefetch=2'] });
  const sent = [await manager.send(queue, { n: 1 }), await manager.send(queue, { n: 2 })];
  await worker.awaitCalls(2);
  const [connection] = await connections(queue);
  await rabbitmqctl('close_connection', connection, 'closed by a test');
  await worker.awaitLog('closed by a test');
  worker.release();
  const told = new Set();
  // One may come twice: the broker may deliver its message once more although its reply is there.
  while (told.size < 2) told.add((await manager.receive()).correlationId);
  assert.deepEqual([...told].sort(), sent.sort());
  assert.equal(await worker.terminate(), 0);
  assert.deepEqual(worker.calls().sort(), ['1', '2']);
  assert.equal(await manager.ready(queue), 0, 'both are acknowledged');
});

test('a message that is done and comes again is answered from memory', async (t) => {
  const [manager, start] = [await Manager.open(t), workersOf(t)];
  const queue = manager.queue();
  let cuts = 0;
  const relay = await Relay.open(t, (method) => method === 'client basic.ack' && cuts++ === 0);
  const worker = await start({ [queue]: 'echo' }, { server: relay.url });
  const correlationId = await manager.send(queue, { n: 1 });
  await worker.awaitLog('it came again, and is done already');
  assert.equal(await worker.terminate(), 0);
  assert.deepEqual(worker.calls(), ['1']);
  assert.equal((await manager.receive()).correlationId, correlationId);
  await assertOneAnswer(manager, queue, correlationId);
});

test('the replies that are remembered are bounded', () => {
  const done = new Done(3, 100);
  const reply = (bytes) => ({ body: Buffer.alloc(bytes) });
  const known = (...keys) => keys.map((key) => done.find(key) !== undefined);
  for (let n = 0; n < 5; n++) done.add(n, reply(10));
  assert.deepEqual(known(0, 1, 2, 3, 4), [false, false, true, true, true]);
  done.add('large', reply(90));
  assert.deepEqual(known(3, 4, 'large'), [false, true, true]);
  done.add('large', reply(100));
  assert.deepEqual(known(4, 'large'), [false, true]);
  done.add('too large', reply(101));
  assert.deepEqual(known('large', 'too large'), [false, false]);
});

test('a broker that is stopped and started again', async (t) => {
  const [manager, start] = [await Manager.open(t), workersOf(t)];
  const queue = manager.queue();
  const worker = await start({ [queue]: 'waits' }, { options: ['--prefetch=2'] });
  await manager.send(queue, { n: 1 });
  await worker.awaitCalls(1);
  await rabbitmqctl('stop_app');
  try {
    await worker.awaitLog('ECONNREFUSED');
    worker.release();
  } finally {
    await rabbitmqctl('start_app');
  }
  await manager.connect();
  assert.equal((await manager.receive()).text, '{"n":1}');
  await manager.send(queue, { n: 2 });
  // The result went on the new connection; the broker may give the message once more, which is answered from memory.
  let text;
  do ({ text } = await manager.receive()); while (text === '{"n":1}');
  assert.equal(text, '{"n":2}');
  assert.equal(worker.calls().length, 2);
  assert.equal(await worker.terminate(), 0);
  assert.equal((await manager.ready(queue)) + (await manager.ready()), 0);
});

test('it keeps trying with growing pauses and says why, without the password', async (t) => {
  const start = workersOf(t);
  const server = required('AMQP_SERVER').replace('guest:guest@', 'guest:wrong-secret@');
  const worker = await start({ unused: 'echo' }, { server, isReady: false });
  await worker.awaitLog('trying again in', 2);
  assert.match(worker.log, /ACCESS.REFUSED/);
  assert.ok(!worker.log.includes('wrong-secret'));
  const [first, second] = [...worker.log.matchAll(/trying again in ([\d.]+) s/g)].map(([, seconds]) => Number(seconds));
  assert.ok(first >= 0.8 && first <= 1.2 && second >= 1.6 && second <= 2.4, `${first} ${second}`);
  assert.equal(await worker.terminate(), 0);
});

test('a broker that is not there is waited for', async (t) => {
  const start = workersOf(t);
  const worker = await start({ unused: 'echo' }, { server: 'amqp://guest:guest@127.0.0.1:1/%2f', isReady: false });
  await worker.awaitLog('trying again in');
  assert.match(worker.log, /ECONNREFUSED/);
  assert.equal(await worker.terminate(), 0);
});

test('SIGTERM finishes the messages in hand and takes no other', async (t) => {
  const [manager, start] = [await Manager.open(t), workersOf(t)];
  const queue = manager.queue();
  const worker = await start({ [queue]: 'waits' }, { options: ['--prefetch=2'] });
  const inHand = [await manager.send(queue, { n: 1 }), await manager.send(queue, { n: 2 })];
  await worker.awaitCalls(2);
  worker.signal('SIGTERM');
  await eventually(async () => (await manager.consumers(queue)) === 0, 'the worker to stop consuming');
  const later = await manager.send(queue, { n: 3 });
  assert.ok(worker.isAlive, 'it waits for its functions');
  worker.release();
  const answered = [(await manager.receive()).correlationId, (await manager.receive()).correlationId];
  assert.deepEqual(answered.sort(), inHand.sort());
  assert.equal(await worker.end(), 0);
  await worker.awaitLog('run returned');
  assert.equal((await manager.receive(queue, 'the message that was not taken')).correlationId, later);
  assert.equal(await manager.ready(queue), 0, 'the finished messages were acknowledged');
});

test('SIGTERM gives back what was not begun', async (t) => {
  const [manager, start] = [await Manager.open(t), workersOf(t)];
  const queue = await manager.declare(manager.queue());
  const sent = [];
  for (let n = 0; n < 5; n++) sent.push(await manager.send(queue, { n }));
  const worker = await start({ [queue]: 'blocks' }, { options: ['--prefetch=5'], isReady: false });
  await worker.awaitCalls(1);
  await eventually(async () => (await manager.ready(queue)) === 0, 'all messages to be delivered');
  worker.signal('SIGTERM');
  worker.release();
  assert.equal(await worker.end(), 0);
  assert.deepEqual([worker.calls().length, await manager.ready(), await manager.ready(queue)], [1, 1, 4]);
});

test('an idle worker stops on SIGINT', async (t) => {
  const [manager, start] = [await Manager.open(t), workersOf(t)];
  const worker = await start({ [manager.queue()]: 'echo' });
  worker.signal('SIGINT');
  assert.equal(await worker.end(), 0);
});

test('a second signal ends it at once and loses nothing', async (t) => {
  const [manager, start] = [await Manager.open(t), workersOf(t)];
  const queue = manager.queue();
  const worker = await start({ [queue]: 'waits' });
  const correlationId = await manager.send(queue, { n: 1 });
  await worker.awaitCalls(1);
  worker.signal('SIGTERM');
  await eventually(async () => (await manager.consumers(queue)) === 0, 'the worker to stop consuming');
  worker.signal('SIGTERM');
  assert.equal(await worker.end(), 128 + 15);
  assert.equal((await manager.receive(queue, 'the message that was not acknowledged')).correlationId, correlationId);
});

test('a function that is told to stop at the end of the grace gives its message back', async (t) => {
  const [manager, start] = [await Manager.open(t), workersOf(t)];
  const queue = manager.queue();
  const worker = await start({ [queue]: 'waitsForItsEnd' }, { options: ['--grace=0.1'] });
  const correlationId = await manager.send(queue, { n: 1 });
  await worker.awaitCalls(1);
  assert.equal(await worker.terminate(), 0);
  assert.deepEqual(worker.calls(), ['1', 'the worker stops']);
  assert.equal((await manager.receive(queue, 'the message given back')).correlationId, correlationId);
  assert.equal(await manager.ready(), 0);
});

/** The message is acknowledged, and all replies that came besides are of it. */
async function assertOneAnswer(manager, queue, correlationId) {
  while ((await manager.ready()) > 0) assert.equal((await manager.receive()).correlationId, correlationId);
  assert.equal(await manager.ready(queue), 0);
}

async function stateOf(name) {
  const rows = (await rabbitmqctl('--no-table-headers', 'list_connections', 'state', 'client_properties')).split('\n');
  return rows.find((row) => row.includes(name)) ?? '';
}
