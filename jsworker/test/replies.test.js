/** Over AMQP: what becomes of a message: the reply, the error reply, the rejection. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { eventually, Manager, workersOf } from './parts.js';

test('the result goes to reply_to with the correlation id, persistent', async (t) => {
  const [manager, start] = [await Manager.open(t), workersOf(t)];
  const queue = manager.queue();
  const worker = await start({ [queue]: 'echo' });
  const message = { n: 1, title: 'Straße \u2019 \u{1F40B}' };
  const correlationId = await manager.send(queue, message);

  const reply = await manager.receive();

  assert.deepEqual(JSON.parse(reply.text), { echo: message });
  assert.equal(reply.correlationId, correlationId);
  assert.equal(reply.contentType, 'application/json');
  assert.equal(reply.deliveryMode, 2);
  assert.equal(reply.type, undefined);
  assert.equal(await worker.terminate(), 0);
  assert.equal(await manager.ready(queue), 0, 'the message was acknowledged');
});

test('a message waits in the durable queue for the worker', async (t) => {
  const [manager, start] = [await Manager.open(t), workersOf(t)];
  const queue = await manager.declare(manager.queue());
  await manager.send(queue, {});
  await start({ [queue]: 'plain' });
  await manager.receive();
});

test('nothing is an empty object', async (t) => {
  const [manager, start] = [await Manager.open(t), workersOf(t)];
  const queue = manager.queue();
  await start({ [queue]: 'nothing' });
  await manager.send(queue, {});
  assert.equal((await manager.receive()).text, '{}');
});

test('a lone surrogate passes as it came', async (t) => {
  const [manager, start] = [await Manager.open(t), workersOf(t)];
  const queue = manager.queue();
  await start({ [queue]: 'plain' });
  await manager.send(queue, '{"text":"\\ud800"}');
  assert.equal((await manager.receive()).text, '{"echo":{"text":"\\ud800"}}');
});

test('with raw text every digit passes, and the order of the keys', async (t) => {
  const [manager, start] = [await Manager.open(t), workersOf(t)];
  const queue = manager.queue();
  await start({ [queue]: 'raw' });
  const message = '{"2":9007199254740993,"1":0.1000,"long":12345678901234567890123,"text":"\\u0000ß"}';
  await manager.send(queue, message);
  assert.equal((await manager.receive()).text, `{"echo":${message}}`);
});

test('a step knows what it is', async (t) => {
  const [manager, start] = [await Manager.open(t), workersOf(t)];
  const queue = manager.queue();
  await start({ [queue]: 'describe' });
  const headers = { attempt: 2, job: 'b00c', workflow: 'books', traceparent: '00-1-2-01' };
  await manager.send(queue, {}, { correlationId: 'c0ffee:count:all', headers });
  const step = { id: 'c0ffee', name: 'count:all', attempt: 2, job: 'b00c', workflow: 'books', queue, redelivered: false, delivery: 1, headers };
  assert.deepEqual(JSON.parse((await manager.receive()).text), step);
});

for (const [name, kinds] of [['plain', [undefined]], ['fails', ['error']], ['progress', ['progress', undefined]]]) {
  test(`the attempt is given back with all that is said: ${name}`, async (t) => {
    const [manager, start] = [await Manager.open(t), workersOf(t)];
    const queue = manager.queue();
    await start({ [queue]: name });
    await manager.send(queue, {}, { headers: { attempt: 3, job: 'b00c', traceparent: '00-1-2-01' } });
    for (const kind of kinds) {
      const { type, headers } = await manager.receive();
      assert.deepEqual([type, headers], [kind, { attempt: 3 }]);
    }
  });
}

test('without an attempt none is made up', async (t) => {
  const [manager, start] = [await Manager.open(t), workersOf(t)];
  const queue = manager.queue();
  await start({ [queue]: 'plain' });
  await manager.send(queue, {});
  assert.deepEqual((await manager.receive()).headers ?? {}, {});
});

test('progress comes before the result', async (t) => {
  const [manager, start] = [await Manager.open(t), workersOf(t)];
  const queue = manager.queue();
  await start({ [queue]: 'progress' });
  const correlationId = await manager.send(queue, {});
  const progress = await manager.receive();
  assert.deepEqual([progress.type, progress.correlationId], ['progress', correlationId]);
  assert.deepEqual(JSON.parse(progress.text), { progress: 0.5, message: 'half way', status: 'HALF' });
  const result = await manager.receive();
  assert.deepEqual([result.type, result.text], [undefined, '{}']);
});

test('progress that is not awaited comes in its order, before the result', async (t) => {
  const [manager, start] = [await Manager.open(t), workersOf(t)];
  const queue = manager.queue();
  await start({ [queue]: 'progressTwice' });
  await manager.send(queue, {});
  const said = [await manager.receive(), await manager.receive(), await manager.receive()].map(({ text }) => text);
  assert.deepEqual(said, ['{"progress":0.1}', '{"progress":0.2}', '{}']);
});

for (const [name, error, retryable] of [['fails', 'no such book', false], ['failsForNow', 'the disk is full', true]]) {
  test(`Failed and Retryable are error replies: ${name}`, async (t) => {
    const [manager, start] = [await Manager.open(t), workersOf(t)];
    const queue = manager.queue();
    const worker = await start({ [queue]: name });
    const correlationId = await manager.send(queue, {});
    const reply = await manager.receive();
    assert.deepEqual([reply.type, reply.correlationId], ['error', correlationId]);
    assert.deepEqual(JSON.parse(reply.text), { error, retryable });
    assert.equal(await worker.terminate(), 0);
    assert.equal(await manager.ready(queue), 0, 'the message was acknowledged');
  });
}

test('an exception is a retryable error reply, and the worker lives on', async (t) => {
  const [manager, start] = [await Manager.open(t), workersOf(t)];
  const errors = {
    throws: "RangeError: the function's own mistake",
    throwsAtOnce: 'TypeError: Cannot read properties of null',
    throwsText: 'string: a text',
    throwsNothing: 'undefined: undefined',
    throwsUnreadably: 'Unreadable: (its text cannot be read: EvalError)',
    notJson: 'TypeError: NaN is not JSON: value must be finite',
    bigInt: 'TypeError: Do not know how to serialize a BigInt',
    circular: 'TypeError: Converting circular structure to JSON',
    array: "TypeError: a worker's function returns an object, RawJson or nothing, not an array",
    text: "TypeError: a worker's function returns an object, RawJson or nothing, not string",
    map: "TypeError: a worker's function returns an object, RawJson or nothing, not Map",
    rawArray: 'TypeError: RawJson is the text of an object, not of a JSON array',
    rawNonsense: 'SyntaxError: ',
    progressTooFar: 'RangeError: progress is from 0 to 1, not 1.5',
  };
  const queues = {};
  for (const name of Object.keys(errors)) {
    const [queue, dead] = await manager.rejecting();
    queues[name] = { queue, dead };
  }
  const good = manager.queue();
  const worker = await start({ ...Object.fromEntries(Object.entries(queues).map(([name, { queue }]) => [queue, name])), [good]: 'plain' });
  for (const [name, error] of Object.entries(errors)) {
    const correlationId = await manager.send(queues[name].queue, { n: 1 }, { headers: { attempt: 2 } });
    const reply = await manager.receive(undefined, `the error reply of ${name}`);
    assert.deepEqual([reply.type, reply.correlationId, reply.headers], ['error', correlationId, { attempt: 2 }]);
    const told = JSON.parse(reply.text);
    assert.ok(told.error.startsWith(error), `${name}: ${told.error}`);
    assert.equal(told.retryable, true);
    assert.equal((await manager.send(good, {})) && (await manager.receive()).type, undefined);
  }
  await worker.awaitLog('worker_program.js');
  assert.equal(await worker.terminate(), 0);
  for (const { queue, dead } of Object.values(queues)) assert.equal((await manager.ready(queue)) + (await manager.ready(dead)), 0, 'acknowledged, not rejected');
});

for (const [name, retryable] of [['throwsAtLength', true], ['failsAtLength', false]]) {
  test(`a long text of an error is cut, and the log has it all: ${name}`, async (t) => {
    const [manager, start] = [await Manager.open(t), workersOf(t)];
    const queue = manager.queue();
    const worker = await start({ [queue]: name });
    await manager.send(queue, {});
    const told = JSON.parse((await manager.receive()).text);
    assert.equal(told.retryable, retryable);
    assert.ok(told.error.length < 4100 && told.error.includes("characters; the worker's log has all)"));
    await worker.awaitLog('x'.repeat(100_000));
  });
}

test('the text of an error has no half of a character', async (t) => {
  const [manager, start] = [await Manager.open(t), workersOf(t)];
  const queue = manager.queue();
  await start({ [queue]: 'failsInHalf' });
  await manager.send(queue, {});
  assert.ok(JSON.parse((await manager.receive()).text).error.isWellFormed());
});

test('a body that is no JSON object fails for good', async (t) => {
  const [manager, start] = [await Manager.open(t), workersOf(t)];
  const [queue, dead] = await manager.rejecting();
  const worker = await start({ [queue]: 'echo' });
  for (const [body, error] of [
    ['nonsense', 'its body is not JSON'],
    ['', 'its body is not JSON'],
    [Buffer.from([0xff, 0xfe, 0xfd]), 'its body is not JSON'],
    ['{"n":NaN}', 'its body is not JSON'],
    ['[1]', 'its body is a JSON array, not an object'],
    ['null', 'its body is a JSON null, not an object'],
    ['"text"', 'its body is a JSON string, not an object'],
    ['['.repeat(100_000), 'its body is nested too deeply'],
    ['{"a":'.repeat(100_000) + '1' + '}'.repeat(100_000), 'its body is nested too deeply'],
  ]) {
    await manager.send(queue, body);
    const reply = await manager.receive(undefined, 'the error reply');
    assert.equal(reply.type, 'error');
    const told = JSON.parse(reply.text);
    assert.equal(told.retryable, false);
    assert.ok(told.error.includes(error), told.error);
    await worker.awaitLog(error);
  }
  assert.deepEqual(worker.calls(), [], 'the function was not called');
  await manager.send(queue, { n: 2 });
  assert.equal((await manager.receive(undefined, 'the reply to a good message afterwards')).type, undefined);
  assert.equal(await worker.terminate(), 0);
  assert.equal(await manager.ready(dead), 0);
});

test('a body of 100 levels and one of 1 MiB are worked on, brackets in texts are no levels', async (t) => {
  const [manager, start] = [await Manager.open(t), workersOf(t)];
  const queue = manager.queue();
  await start({ [queue]: 'plain' });
  for (const body of ['{"a":'.repeat(100) + '1' + '}'.repeat(100), JSON.stringify({ text: '[{"\\'.repeat(1 << 18) })]) {
    await manager.send(queue, body);
    assert.equal((await manager.receive()).text, `{"echo":${body}}`);
  }
});

test('a message without reply_to is rejected', async (t) => {
  const [manager, start] = [await Manager.open(t), workersOf(t)];
  const [queue, dead] = await manager.rejecting();
  const worker = await start({ [queue]: 'echo' });
  await manager.send(queue, { n: 1 }, { replyTo: undefined });
  await manager.receive(dead, 'the rejected message');
  await worker.awaitLog('it has no reply_to');
  assert.deepEqual(worker.calls(), [], 'the function was not called');
});

test('a message without a correlation id, and with odd headers, is answered', async (t) => {
  const [manager, start] = [await Manager.open(t), workersOf(t)];
  const queue = manager.queue();
  await start({ [queue]: 'plain' });
  await manager.send(queue, {}, { correlationId: undefined, messageId: undefined, headers: { attempt: { deep: ['x'.repeat(60_000)] }, odd: null } });
  const reply = await manager.receive();
  assert.deepEqual([reply.text, reply.correlationId], ['{"echo":{}}', undefined]);
});

test('several queues, each with its function', async (t) => {
  const [manager, start] = [await Manager.open(t), workersOf(t)];
  const [one, other] = [manager.queue(), manager.queue()];
  await start({ [one]: 'plain', [other]: 'nothing' });
  await manager.send(other, {});
  assert.equal((await manager.receive()).text, '{}');
  await manager.send(one, { n: 2 });
  assert.equal((await manager.receive()).text, '{"echo":{"n":2}}');
});

test('prefetch says how many run at once, and leaves the rest for others', async (t) => {
  const [manager, start] = [await Manager.open(t), workersOf(t)];
  const queue = manager.queue();
  const worker = await start({ [queue]: 'waits' }, { options: ['--prefetch=2'] });
  const sent = new Set();
  for (let n = 0; n < 5; n++) sent.add(await manager.send(queue, { n }));
  await worker.awaitCalls(2);
  assert.equal(await eventually(() => manager.ready(queue), 'messages left in the queue'), 3);
  worker.release();
  const answered = new Set();
  for (let n = 0; n < 5; n++) answered.add((await manager.receive()).correlationId);
  assert.deepEqual(answered, sent);
});

test('each of 500 messages is answered once', async (t) => {
  const [manager, start] = [await Manager.open(t), workersOf(t)];
  const queue = manager.queue();
  const worker = await start({ [queue]: 'echo' }, { options: ['--prefetch=50'] });
  const sent = await Promise.all(Array.from({ length: 500 }, (_, n) => manager.send(queue, { n })));
  const answered = [];
  while (answered.length < sent.length) answered.push((await manager.receive()).correlationId);
  assert.deepEqual(answered.sort(), sent.sort());
  assert.equal(await worker.terminate(), 0);
  assert.equal((await manager.ready()) + (await manager.ready(queue)), 0);
  assert.ok(!worker.log.includes('Warning'), worker.log);
});

test('a missing reply queue is waited for', async (t) => {
  const [manager, start] = [await Manager.open(t), workersOf(t)];
  const [queue, late] = [manager.queue(), manager.queue()];
  const worker = await start({ [queue]: 'echo' });
  await manager.send(queue, { n: 1 }, { replyTo: late });
  await worker.awaitLog('does not exist; trying again');
  await manager.declare(late);
  await manager.receive(late);
  assert.equal(await worker.terminate(), 0);
  assert.deepEqual(worker.calls(), ['1'], 'the function was not called again');
  assert.equal(await manager.ready(queue), 0);
});

test('a message whose reply cannot be sent goes back when the worker stops', async (t) => {
  const [manager, start] = [await Manager.open(t), workersOf(t)];
  const [queue, missing] = [manager.queue(), manager.queue()];
  const worker = await start({ [queue]: 'echo' });
  await manager.send(queue, { n: 1 }, { replyTo: missing });
  await worker.awaitLog('does not exist; trying again');
  assert.equal(await worker.terminate(), 0);
  await manager.receive(queue, 'the message given back');
});

test('progress to a missing reply queue is a line in the log', async (t) => {
  const [manager, start] = [await Manager.open(t), workersOf(t)];
  const [queue, missing] = [manager.queue(), manager.queue()];
  const worker = await start({ [queue]: 'progress' });
  await manager.send(queue, {}, { replyTo: missing });
  await worker.awaitLog('progress could not be told');
});

test('a queue with other arguments is used as it is', async (t) => {
  const [manager, start] = [await Manager.open(t), workersOf(t)];
  const queue = await manager.declare(manager.queue(), { 'x-max-priority': 9 });
  const worker = await start({ [queue]: 'plain' });
  await manager.send(queue, {});
  await manager.receive();
  assert.ok(worker.log.includes('exists with other arguments'));
});

test('a quorum queue counts the deliveries', async (t) => {
  const [manager, start] = [await Manager.open(t), workersOf(t)];
  const queue = await manager.declare(manager.queue(), { 'x-queue-type': 'quorum' });
  await manager.send(queue, {});
  for (const delivery of [1, 2]) {
    const message = await eventually(() => manager.channel.get(queue), `delivery ${delivery}`);
    manager.channel.nack(message);
  }
  await start({ [queue]: 'describe' });
  const { delivery, redelivered } = JSON.parse((await manager.receive()).text);
  assert.deepEqual([delivery, redelivered], [3, true]);
});

test('a deleted queue is declared again', async (t) => {
  const [manager, start] = [await Manager.open(t), workersOf(t)];
  const queue = manager.queue();
  const worker = await start({ [queue]: 'plain' });
  await manager.channel.deleteQueue(queue);
  await worker.awaitLog('was deleted; declaring it again');
  await manager.declare(queue);
  await eventually(() => manager.consumers(queue), 'a consumer on the new queue');
  await manager.send(queue, {});
  await manager.receive();
  assert.equal(await worker.terminate(), 0);
});
