/** Replies that go together, messages that come so, and what the log says: without a manager. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Answer } from '../dist/http_client.js';
import { partsOf } from '../dist/raw_list.js';
import { Replier } from '../dist/replies.js';
import { inTurn } from '../dist/time.js';
import { Delivery, performWith } from '../dist/work.js';
import { eventually } from './parts.js';

const OK = { status: 200, taken: true };

/** A manager whose answers the test gives, one after the other. */
function managerOf() {
  const calls = [];
  return {
    calls,
    post: (path, query, { body }) => new Promise((resolve, reject) => calls.push({ path, replies: JSON.parse(body.toString()), reject, answer: (status, value) => resolve(new Answer(status, new Map(), Buffer.from(JSON.stringify(value)))) })),
  };
}

function parts(secondsLeft = () => Infinity) {
  const manager = managerOf();
  const lines = [];
  const log = Object.fromEntries(['info', 'warn', 'error'].map((level) => [level, (line) => lines.push(`${level} ${line}`)]));
  const replier = new Replier(manager, log, secondsLeft);
  const send = (n, more = {}) => replier.send({ path: `/${n}/reply`, toString: () => `message ${n}` }, { body: Buffer.from(`{"n":${n}}`), ...more });
  /** Sends the first one, whose call is under way then. */
  const begin = async () => {
    const sent = [send(0)];
    await eventually(() => manager.calls.length === 1, 'the first call');
    return sent;
  };
  return { manager, lines, send, begin };
}

test('what is ready in the same turn goes in one call', async () => {
  const { manager, send } = parts();
  const sent = [send(0), send(1)];
  await eventually(() => manager.calls.length === 1, 'the call');
  manager.calls[0].answer(200, [OK, OK]);
  assert.deepEqual(await Promise.all(sent), [true, true]);
});

test('what comes while a call is under way goes with the next, up to a hundred', async () => {
  const { manager, send, begin } = parts();
  const sent = await begin();
  for (let n = 1; n < 103; n++) sent.push(send(n, n === 1 ? { type: 'error' } : {}));
  assert.deepEqual(manager.calls.map(({ replies }) => replies), [[{ reply_to: '/0/reply', body: { n: 0 } }]]);
  manager.calls[0].answer(200, [OK]);
  await eventually(() => manager.calls.length === 2, 'the second call');
  assert.equal(manager.calls[1].replies.length, 100);
  assert.deepEqual(manager.calls[1].replies[0], { reply_to: '/1/reply', type: 'error', body: { n: 1 } });
  manager.calls[1].answer(200, Array(100).fill(OK));
  await eventually(() => manager.calls.length === 3, 'the third call');
  manager.calls[2].answer(200, [OK, OK]);
  assert.deepEqual(await Promise.all(sent), Array(103).fill(true));
});

test('a call holds no more than its bytes, and a larger reply goes alone', async () => {
  const { manager, send, begin } = parts();
  const body = Buffer.from(JSON.stringify('x'.repeat(600_000)));
  const sent = [...(await begin()), send(1, { body }), send(2, { body })];
  assert.equal(await send(3, { body: Buffer.from(JSON.stringify('x'.repeat(1 << 20))) }), false);
  for (const index of [0, 1, 2]) {
    await eventually(() => manager.calls.length === index + 1, 'a call');
    assert.equal(manager.calls[index].replies.length, 1);
    manager.calls[index].answer(200, [OK]);
  }
  assert.deepEqual(await Promise.all(sent), [true, true, true]);
});

test('a verdict concerns its reply alone', async () => {
  const { manager, lines, send, begin } = parts();
  const [first] = await begin();
  const others = [1, 2, 3, 4].map((n) => send(n));
  manager.calls[0].answer(200, [OK]);
  assert.equal(await first, true);
  await eventually(() => manager.calls.length === 2, 'the second call');
  manager.calls[1].answer(200, [OK, { status: 400, detail: 'no' }, { status: 503, detail: 'later' }, { status: 200, taken: false, reason: 'duplicate' }]);
  assert.deepEqual(await Promise.all(others), [true, false, false, true]);
  assert.deepEqual(lines, ['info message 4: its reply changed nothing: duplicate']);
});

test('what nobody has taken is sent again, in its order', async () => {
  const { manager, lines, send, begin } = parts();
  const sent = [...(await begin()), send(1)];
  manager.calls[0].reject(new Error('refused'));
  await eventually(() => manager.calls.length === 2, 'the second call');
  assert.match(lines[0], /^warn message 0: its reply was not taken: refused; trying again in /);
  assert.deepEqual(manager.calls[1].replies.map(({ reply_to }) => reply_to), ['/0/reply', '/1/reply']);
  manager.calls[1].answer(200, [{ status: 503, detail: 'later' }, { status: 503, detail: 'later' }]);
  await eventually(() => manager.calls.length === 3, 'the third call');
  assert.match(lines[1], /^warn message 0: its reply was not taken and 1 more: 503 later; trying again in /);
  manager.calls[2].answer(200, [OK, OK]);
  assert.deepEqual(await Promise.all(sent), [true, true]);
});

test('a manager that does not know the call is sent one reply at a time', async () => {
  const { manager, send, begin } = parts();
  const [sent] = await begin();
  manager.calls[0].answer(404, { detail: 'there is nothing' });
  assert.equal(await sent, false);
  assert.equal(await send(1), false);
  assert.equal(manager.calls.length, 1);
});

test('a worker that stops gives up in the end', async () => {
  const { manager, lines, begin } = parts(() => 0);
  const [sent] = await begin();
  manager.calls[0].reject(new Error('refused'));
  assert.equal(await sent, true);
  assert.match(lines[0], /^error message 0: its reply could not be sent while stopping: refused/);
});

test('what takes no time begins in few turns of the event loop, and what takes long leaves a turn behind it', async () => {
  let turns = 0;
  let counting = setImmediate(function count() {
    turns++;
    counting = setImmediate(count);
  });
  await Promise.all(Array.from({ length: 100 }, inTurn));
  assert.ok(turns < 50, `${turns} turns`);
  const seen = [];
  const spin = async () => {
    await inTurn();
    const end = performance.now() + 5;
    while (performance.now() < end);
    seen.push(turns);
  };
  await Promise.all([spin(), spin(), spin()]);
  clearImmediate(counting);
  assert.equal(new Set(seen).size, 3, `${seen}`);
});

test('a body among several keeps its text', () => {
  const bodies = ['{ "2":9007199254740993 , "1":0.1000}', '{"text":"\\"]},{ß"}', '"\\u0000"', '12.50', '[[],{"a":[1]}]', 'null'];
  for (const space of ['', ' ', '\n\t']) {
    const text = `${space}[${bodies.map((body, n) => `{"message_id":"id \\"${n}",${space}"attempt":${n}${space},"body"${space}:${space}${body}${space}}`).join(`${space},${space}`)}]`;
    const read = partsOf(text, 'body');
    assert.deepEqual(read.map((part) => part.text), bodies);
    assert.deepEqual(read.map((part) => part.value), bodies.map((_, n) => ({ message_id: `id "${n}`, attempt: n })));
  }
  assert.deepEqual(partsOf(' [ ] ', 'body'), []);
  assert.deepEqual(partsOf('[{"body":{},"a":1}, {}]', 'body'), [{ value: { a: 1 }, text: '{}' }, { value: {}, text: undefined }]);
  for (const text of ['', '{}', '[', '[{]', '[{"a"}]', '[{"a":1]', '[{"a":1}{}]', '[{"a":}]', '[{"a":1,']) assert.throws(() => partsOf(text, 'body'), SyntaxError, text);
});

test('a message that is done is told at DEBUG, to a log that has it', async () => {
  class Message extends Delivery {
    system = 'none';
    queue = 'price';
    body = Buffer.from('{"n":1}');
    replyTo = '/reply';
    facts() {
      return { queue: 'price', headers: {} };
    }
    toString() {
      return 'price: message 1';
    }
  }
  const lines = [];
  const told = (level) => (line) => lines.push(`${level} ${line}`);
  const log = { info: told('info'), warn: told('warn'), error: told('error') };
  const handlers = new Map([['price', (message) => message]]);
  assert.deepEqual(await performWith(handlers, log)(new Message()), { is: 'reply', body: Buffer.from('{"n":1}') });
  assert.deepEqual(lines, []);
  await performWith(handlers, { ...log, debug: told('debug') })(new Message());
  assert.equal(lines.length, 1);
  assert.match(lines[0], /^debug price: message 1: done in /);
});
