/** Over HTTP and gRPC, with a real manager that runs without a broker: the same functions, the same promises. */

import assert from 'node:assert/strict';
import { test as testOnce } from 'node:test';
import { Daemon, eventually, workersOf } from './parts.js';

const ORDERS = `
workflows:
  - name: orders
    steps:
      - name: price
        retry: { attempts: 2, backoff: 1ms }
`;

/** Over each of them. */
function test(name, run) {
  for (const transport of ['http', 'grpc']) testOnce(`${name} (${transport})`, (t) => run(t, transport));
}

/** A manager, and a way to start workers for its queue price. */
async function parts(t, transport, workflows = ORDERS, environment = {}) {
  const start = workersOf(t);
  const daemon = await Daemon.start(t, workflows, environment);
  return [daemon, (name, ...options) => start({ price: name }, { server: daemon.servers[transport], options })];
}

test('the result is that of the function', async (t, transport) => {
  const [daemon, start] = await parts(t, transport);
  const worker = await start('echo');
  const message = { n: 1, title: 'Straße \u2019 \u{1F40B}' };
  assert.deepEqual(JSON.parse(await daemon.result(await daemon.create('orders', message))), { echo: message });
  assert.equal(await daemon.result(await daemon.create('orders', '{"text":"\\ud800"}')), '{"echo":{"text":"\\ud800"}}');
  assert.equal(await worker.terminate(), 0);
});

for (const prefetch of [1, 20]) {
  test(`with raw text every digit passes, and the order of the keys, with ${prefetch} in hand`, async (t, transport) => {
    const [daemon, start] = await parts(t, transport);
    await start('raw', `--prefetch=${prefetch}`);
    const message = '{"2":9007199254740993,"1":0.1000,"long":12345678901234567890123,"text":"\\u0000ß"}';
    assert.equal(await daemon.result(await daemon.create('orders', message)), `{"echo":${message}}`);
  });
}

test('messages and replies go together, each with its own result', async (t, transport) => {
  const [daemon, start] = await parts(t, transport);
  const jobs = [];
  for (let n = 0; n < 150; n++) jobs.push(await daemon.create('orders', { n }));
  const worker = await start('echo', '--prefetch=100');
  for (const [n, job] of jobs.entries()) assert.deepEqual(JSON.parse(await daemon.result(job)), { echo: { n } });
  assert.equal(worker.calls().length, 150);
  assert.equal(await worker.terminate(), 0);
});

test('nothing is an empty object', async (t, transport) => {
  const [daemon, start] = await parts(t, transport);
  await start('nothing');
  assert.equal(await daemon.result(await daemon.create('orders', {})), '{}');
});

test('a step knows what it is', async (t, transport) => {
  const [daemon, start] = await parts(t, transport);
  await start('describe');
  const job = await daemon.create('orders', {});
  const { headers, ...told } = JSON.parse(await daemon.result(job));
  assert.deepEqual(told, { id: job, name: 'price', attempt: 1, job, workflow: 'orders', queue: 'price', redelivered: false, delivery: 1 });
  const { traceparent, ...others } = headers;
  assert.match(traceparent, /^00-/);
  assert.deepEqual(others, { workflow: 'orders', job, attempt: 1 });
});

test('an error is retried unless it is final', async (t, transport) => {
  const steps = { fails: 1, failsForNow: 2, throws: 2, array: 2 };
  const start = workersOf(t);
  const workflows = Object.keys(steps).map((name) => `{ name: ${name}, steps: [{ name: step-${name}, retry: { attempts: 2, backoff: 1ms } }] }`);
  const daemon = await Daemon.start(t, `workflows: [ ${workflows.join(', ')} ]`);
  const worker = await start(Object.fromEntries(Object.keys(steps).map((name) => [`step-${name}`, name])), { server: daemon.servers[transport] });
  const words = {
    fails: 'no such book',
    failsForNow: 'the disk is full',
    throws: "RangeError: the function's own mistake",
    array: "TypeError: a worker's function returns an object, RawJson or nothing, not an array",
  };
  for (const [name, attempts] of Object.entries(steps)) {
    const job = await daemon.ended(await daemon.create(name, { n: 1 }), 'failed');
    assert.ok(job.reason.includes(words[name]), job.reason);
    assert.equal(job.steps[0].attempt, attempts);
  }
  assert.equal(await worker.terminate(), 0);
});

test('progress is seen while the function runs', async (t, transport) => {
  const [daemon, start] = await parts(t, transport);
  const worker = await start('progressAndWaits');
  const job = await daemon.create('orders', { n: 1 });
  await eventually(async () => (await daemon.job(job)).steps[0].progress === 0.5, 'the progress');
  worker.release();
  assert.equal(await daemon.result(job), '{"n":1}');
});

test('cancelling a job aborts the signal, and nothing is replied', async (t, transport) => {
  const [daemon, start] = await parts(t, transport);
  const worker = await start('waitsForItsEnd', '--lease=6');
  const job = await daemon.create('orders', { n: 1 });
  await worker.awaitCalls(1);
  await daemon.ask(`/api/job/${job}/cancel`, '');
  await worker.awaitCalls(2);
  assert.match(worker.calls()[1], { http: /stop working on it$/, grpc: /^cancelled$/ }[transport]);
  await worker.awaitLog('stopped: ');
  assert.equal(await worker.terminate(), 0);
  assert.ok(!worker.log.includes('ERROR') && !worker.log.includes('WARN'), worker.log);
});

test('a lease is extended while the function runs', async (t, transport) => {
  const [daemon, start] = await parts(t, transport);
  const worker = await start('waits', '--lease=2');
  const job = await daemon.create('orders', { n: 1 });
  await worker.awaitCalls(1);
  // Asked for as long as three leases: what does not come has not been lent again.
  assert.deepEqual(await daemon.ask('/api/queue/price/receive?wait=6s&max=1', ''), []);
  assert.deepEqual(worker.calls(), ['1'], 'one call');
  worker.release();
  assert.equal(await daemon.result(job), '{"n":1}');
});

test("a killed worker's message comes to another", async (t, transport) => {
  const [daemon, start] = await parts(t, transport);
  const first = await start('diesOnce', '--lease=1');
  const job = await daemon.create('orders', { n: 1 });
  assert.equal(await first.end(), 'SIGKILL');
  const second = await start('diesOnce');
  assert.equal(await daemon.result(job), '{"died":true}');
  assert.deepEqual(second.calls(), ['1', '1']);
});

test('a manager that is killed and started again takes the reply', async (t, transport) => {
  const [daemon, start] = await parts(t, transport);
  const worker = await start('waits', '--lease=3');
  const job = await daemon.create('orders', { n: 1 });
  await worker.awaitCalls(1);
  await daemon.kill();
  worker.release();
  await worker.awaitLog('its reply was not taken');
  await daemon.start();
  assert.equal(await daemon.result(job), '{"n":1}');
  assert.equal(await daemon.result(await daemon.create('orders', { n: 2 })), '{"n":2}');
  assert.equal(await worker.terminate(), 0);
});

test('a message that comes again to the same process is not begun twice', async (t, transport) => {
  const [daemon, start] = await parts(t, transport);
  const worker = await start('waits', '--prefetch=2', '--lease=6');
  const job = await daemon.create('orders', { n: 1 });
  await worker.awaitCalls(1);
  await daemon.kill();
  await daemon.start();
  await worker.awaitLog('consuming from', 2);
  // The first message was given out again, to the same worker, before this one.
  const later = await daemon.create('orders', { n: 2 });
  await worker.awaitCalls(2);
  worker.release();
  assert.equal(await daemon.result(job), '{"n":1}');
  assert.equal(await daemon.result(later), '{"n":2}');
  assert.deepEqual(worker.calls(), ['1', '2']);
  assert.equal(await worker.terminate(), 0);
});

test('a reply that comes second changes nothing', async (t, transport) => {
  const [daemon, start] = await parts(t, transport);
  const worker = await start('waits');
  const job = await daemon.create('orders', { n: 1 });
  await worker.awaitCalls(1);
  assert.deepEqual(await daemon.ask(`/api/queue/price/message/${job}:price:1/1/reply`, '{"by":"another"}'), { taken: true });
  worker.release();
  assert.equal(await daemon.result(job), '{"by":"another"}');
  await worker.awaitLog('its reply changed nothing');
  assert.equal(await worker.terminate(), 0);
});

test('SIGTERM finishes the message in hand and takes no other', async (t, transport) => {
  const [daemon, start] = await parts(t, transport);
  const worker = await start('waits', '--prefetch=2');
  const first = await daemon.create('orders', { n: 1 });
  await worker.awaitCalls(1);
  worker.signal('SIGTERM');
  await worker.awaitLog('stopping');
  const second = await daemon.create('orders', { n: 2 });
  const [message] = await daemon.ask('/api/queue/price/receive?max=1', '');
  assert.equal(message.job, second);
  assert.ok(worker.isAlive, 'it waits for its function');
  worker.release();
  assert.equal(await worker.end(), 0);
  await worker.awaitLog('run returned');
  assert.equal(await daemon.result(first), '{"n":1}');
  assert.deepEqual(worker.calls(), ['1']);
});

test('SIGTERM gives back what came too late to be begun', async (t, transport) => {
  const [daemon, start] = await parts(t, transport);
  const worker = await start('blocks', '--prefetch=2');
  await daemon.create('orders', { n: 1 });
  await worker.awaitCalls(1);
  // The worker, whose only thread is blocked, has asked for one more; its answer waits to be read.
  const second = await daemon.create('orders', { n: 2 });
  await eventually(async () => (await daemon.queue()).unacknowledged === 2, 'the second message to be lent');
  worker.signal('SIGTERM');
  worker.release();
  assert.equal(await worker.end(), 0);
  assert.deepEqual(worker.calls(), ['1']);
  const [message] = await daemon.ask('/api/queue/price/receive?max=1', '');
  // The end of a stream gives it back without a delivery being counted.
  assert.deepEqual([message.job, message.delivery], [second, { http: 2, grpc: 1 }[transport]]);
});

test('a worker that waits for a message stops at once and takes none with it', async (t, transport) => {
  const [daemon, start] = await parts(t, transport);
  const worker = await start('echo');
  await eventually(async () => (await daemon.queue()).consumers === 1, 'the worker to wait');
  assert.equal(await worker.terminate(), 0);
  const job = await daemon.create('orders', { n: 1 });
  const [message] = await daemon.ask('/api/queue/price/receive?max=1', '');
  assert.deepEqual([message.job, message.delivery], [job, 1]);
});

test('a second signal ends it at once', async (t, transport) => {
  const [daemon, start] = await parts(t, transport);
  const worker = await start('waits', '--lease=1');
  const job = await daemon.create('orders', { n: 1 });
  await worker.awaitCalls(1);
  worker.signal('SIGTERM');
  // Until the first has been noticed, further ones may be one signal.
  await eventually(() => !worker.isAlive || void worker.signal('SIGTERM'), 'its end');
  assert.equal(await worker.end(), 128 + 15);
  const [message] = await daemon.ask('/api/queue/price/receive?max=1', '');
  assert.deepEqual([message.job, message.delivery], [job, 2]);
});

test('a function that is told to stop at the end of the grace gives its message back', async (t, transport) => {
  const [daemon, start] = await parts(t, transport);
  const worker = await start('waitsForItsEnd', '--grace=0.1');
  const job = await daemon.create('orders', { n: 1 });
  await worker.awaitCalls(1);
  assert.equal(await worker.terminate(), 0);
  assert.deepEqual(worker.calls(), ['1', 'the worker stops']);
  const [message] = await daemon.ask('/api/queue/price/receive?max=1', '');
  assert.deepEqual([message.job, message.delivery], [job, 2]);
});

test('prefetch functions run at the same time', async (t, transport) => {
  const [daemon, start] = await parts(t, transport);
  const worker = await start('waits', '--prefetch=20');
  const jobs = await Promise.all(Array.from({ length: 20 }, (_, n) => daemon.create('orders', { n })));
  await worker.awaitCalls(20);
  worker.release();
  for (const [n, job] of jobs.entries()) assert.equal(await daemon.result(job), `{"n":${n}}`);
  assert.equal(await worker.terminate(), 0);
  assert.ok(!worker.log.includes('Warning'), worker.log);
});

test('several queues, each with its function', async (t, transport) => {
  const start = workersOf(t);
  const names = Array.from({ length: 15 }, (_, n) => `q${n}`);
  const steps = names.map((name, n) => `{ name: ${name}${n > 0 ? `, depends: [ ${names[n - 1]} ]` : ''} }`);
  const daemon = await Daemon.start(t, `workflows: [{ name: all, steps: [ ${steps.join(', ')} ] }]`);
  const functions = Object.fromEntries(names.map((name) => [name, 'plain']));
  const worker = await start({ ...functions, q14: 'describe' }, { server: daemon.servers[transport] });
  assert.equal(JSON.parse(await daemon.result(await daemon.create('all', { n: 1 }))).name, 'q14');
  assert.equal(await worker.terminate(), 0);
  assert.ok(!worker.log.includes('Warning'), worker.log);
});

test('a virtual host and a queue of any name', async (t, transport) => {
  const start = workersOf(t);
  const daemon = await Daemon.start(t, "workflows: [{ name: w, vhosts: [ 'shop one' ], steps: [{ name: a, queue: 'a/b ü' }] }]");
  await start({ 'a/b ü': 'describe' }, { server: `${daemon.servers[transport]}/?vhost=shop%20one` });
  const { id } = await daemon.ask('/api/workflow/w?vhost=shop%20one', '{}');
  assert.equal(JSON.parse(await daemon.result(id)).workflow, 'shop one/w');
});

test('the token comes from the environment, and is not told', async (t, transport) => {
  const start = workersOf(t);
  const daemon = await Daemon.start(t, ORDERS, { WORKFLOW_MANAGER__HTTP__TOKEN: 'a-secret-word-of-ours' });
  const wrong = await start({ price: 'echo' }, { server: daemon.servers[transport], isReady: false, environment: { WORKFLOW_MANAGER_TOKEN: 'another-secret' } });
  await wrong.awaitLog({ http: '401', grpc: 'UNAUTHENTICATED' }[transport]);
  await start({ price: 'echo' }, { server: daemon.servers[transport], environment: { WORKFLOW_MANAGER_TOKEN: 'a-secret-word-of-ours' } });
  assert.equal(await daemon.result(await daemon.create('orders', { n: 1 })), '{"echo":{"n":1}}');
  assert.ok(!wrong.log.includes('secret'));
});

test('a wrong name of a queue is told with a guess, and it tries again', async (t, transport) => {
  const start = workersOf(t);
  const daemon = await Daemon.start(t, ORDERS);
  const worker = await start({ prise: 'echo' }, { server: daemon.servers[transport], isReady: false });
  await worker.awaitLog('did you mean "price"', 2);
  await worker.awaitLog('ERROR');
  assert.equal(await worker.terminate(), 0);
});

test('a manager that is not there is waited for', async (t, transport) => {
  const start = workersOf(t);
  const daemon = await Daemon.start(t, ORDERS);
  await daemon.kill();
  const worker = await start({ price: 'echo' }, { server: daemon.servers[transport], isReady: false });
  await worker.awaitLog('trying again in', 2);
  assert.match(worker.log, /ECONNREFUSED/);
  await daemon.start();
  assert.equal(await daemon.result(await daemon.create('orders', { n: 1 })), '{"echo":{"n":1}}');
});

test('a reply that is too large fails the step for good', async (t, transport) => {
  const [daemon, start] = await parts(t, transport, ORDERS, { WORKFLOW_MANAGER__HTTP__BODY_BYTES_MAX: '1000000' });
  await start('large');
  const job = await daemon.ended(await daemon.create('orders', { bytes: 2_000_000 }), 'failed');
  assert.ok(job.reason.includes('the reply has 2000011 bytes'), job.reason);
  assert.equal(job.steps[0].attempt, 1);
});
