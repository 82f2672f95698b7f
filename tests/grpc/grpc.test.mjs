// Workers over gRPC by Node's own client, and the example worker in Node.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, open, rm } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { connect, createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';

const root = new URL('../..', import.meta.url).pathname;
const example = join(root, 'examples/workers/grpc/price.mjs');
const require = createRequire(example);
const grpc = require('@grpc/grpc-js');
const loader = require('@grpc/proto-loader');

const DEADLINE_MS = 60_000;
const TOKEN = 'secret-of-these-tests';
const definition = loader.loadSync(join(root, 'proto/workers.proto'), { keepCase: true, defaults: true, oneofs: true, longs: String, enums: String });
const { Workers } = grpc.loadPackageDefinition(definition).workflow_manager.v1;

async function freePort() {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address();
  server.close();
  return port;
}

async function until(probe) {
  const end = Date.now() + DEADLINE_MS;
  while (Date.now() < end) {
    const seen = await probe();
    if (seen) return seen;
    await sleep(20);
  }
  throw new Error('not in time');
}

let folder, http, port, log, manager, client;

async function ask(path, body) {
  const headers = { Authorization: `Bearer ${TOKEN}` };
  const answer = await fetch(`http://127.0.0.1:${http}${path}`, { method: body === undefined ? 'GET' : 'POST', headers, body });
  assert.ok(answer.ok, `${path}: ${answer.status}`);
  return answer;
}

const create = async (message) => (await (await ask('/api/workflow/order', message)).json()).id;
const stateOf = async (job) => (await (await ask(`/api/job/${job}`)).json()).state;

async function result(job) {
  await until(async () => (await stateOf(job)) === 'completed');
  return (await ask(`/api/job/${job}/result`)).text();
}

before(async () => {
  folder = await mkdtemp(join(tmpdir(), 'grpc-'));
  [http, port] = [await freePort(), await freePort()];
  log = await open(join(folder, 'log'), 'w');
  const env = { ...process.env, WORKFLOW_MANAGER__HTTP__TOKEN: TOKEN, WORKFLOW_MANAGER__GRPC__LISTEN: `127.0.0.1:${port}` };
  delete env.AMQP_SERVER;
  const options = ['serve', '--listen', `127.0.0.1:${http}`, '--db', join(folder, 'journal.db'), '--workflows', join(root, 'tests/grpc/manager.yaml')];
  manager = spawn(process.env.WORKFLOW_MANAGER, options, { env, stdio: ['ignore', log.fd, log.fd] });
  await until(async () => (await fetch(`http://127.0.0.1:${http}/readyz`).catch(() => ({}))).ok);
  await until(() => new Promise((done) => {
    const socket = connect(port, '127.0.0.1', () => done(true)).on('error', () => done(false));
    socket.unref().end();
  }));
  client = new Workers(`127.0.0.1:${port}`, grpc.credentials.createInsecure());
});

after(async () => {
  client.close();
  manager.kill('SIGTERM');
  const [code] = manager.exitCode === null ? await once(manager, 'exit') : [manager.exitCode];
  await log.close();
  await rm(folder, { recursive: true });
  assert.equal(code, 0);
});

function metadata(token = TOKEN) {
  const metadata = new grpc.Metadata();
  if (token) metadata.set('authorization', `Bearer ${token}`);
  return metadata;
}

/** A stream: what is said and heard on it. */
class Worker {
  constructor(queues = ['price'], token = TOKEN) {
    this.heard = [];
    this.stream = client.Work(metadata(token), { deadline: Date.now() + DEADLINE_MS });
    this.stream.on('data', (say) => this.heard.push(say));
    this.stream.on('error', (error) => this.heard.push({ say: 'error', error }));
    this.stream.on('end', () => this.heard.push({ say: 'end' }));
    this.stream.write({ hello: { queues, worker: 'node' } });
  }

  async hear(kind) {
    const heard = await until(() => this.heard.shift());
    assert.equal(heard.say, kind, JSON.stringify(heard));
    return heard[kind];
  }

  want(messages) {
    this.stream.write({ want: { messages } });
  }

  reply(receipt, body, kind = 'RESULT') {
    this.stream.write({ reply: { receipt, kind, body: Buffer.from(body) } });
  }
}

test('every digit goes both ways', async () => {
  const worker = new Worker();
  worker.want(1);
  const body = '{"a":0.10,"long":12345678901234567890,"m":1e400}';
  const job = await create(body);
  const message = await worker.hear('message');
  assert.deepEqual([message.body.toString(), message.attempt, message.delivery], [body, 1, 1]);
  worker.reply(message.receipt, body);
  assert.equal((await worker.hear('taken')).changed, true);
  assert.equal(await result(job), body);
  worker.stream.end();
  await worker.hear('end');
});

test('a farewell gives back, and costs no delivery', async () => {
  const job = await create('{}');
  for (let turn = 0; turn < 7; turn++) {
    const worker = new Worker();
    worker.want(3);
    assert.equal((await worker.hear('message')).delivery, 1);
    worker.stream.end();
    await worker.hear('end');
  }
  const worker = new Worker();
  worker.want(1);
  const { receipt } = await worker.hear('message');
  worker.reply(receipt, '{}');
  await worker.hear('taken');
  await result(job);
  worker.stream.end();
});

test('a cancelled stream gives back', async () => {
  const job = await create('{}');
  const cancelled = new Worker();
  cancelled.want(3);
  await cancelled.hear('message');
  cancelled.stream.cancel();
  const worker = new Worker();
  worker.want(1);
  const { receipt } = await worker.hear('message');
  worker.reply(receipt, '{}');
  await worker.hear('taken');
  await result(job);
  worker.stream.end();
});

test('a message of a job that is cancelled is gone', async () => {
  const worker = new Worker();
  worker.want(1);
  const job = await create('{}');
  const { receipt } = await worker.hear('message');
  await ask(`/api/job/${job}/cancel`, '');
  assert.deepEqual(await worker.hear('gone'), { receipt, reason: 'cancelled' });
  worker.stream.end();
});

test('refusals say what is wrong', async () => {
  for (const [queues, token, code, words] of [
    [['price'], '', grpc.status.UNAUTHENTICATED, 'this manager needs a token'],
    [['price'], 'other', grpc.status.UNAUTHENTICATED, 'http.token'],
    [['prise'], TOKEN, grpc.status.NOT_FOUND, 'did you mean "price"'],
  ]) {
    const worker = new Worker(queues, token);
    const error = await worker.hear('error');
    assert.equal(error.code, code);
    assert.ok(error.details.includes(words), error.details);
  }
});

test('single calls', async () => {
  const call = (name, request) => new Promise((done, failed) => {
    client[name](request, metadata(), (error, answer) => (error ? failed(error) : done(answer)));
  });
  const job = await create('{"b":1.50}');
  const { messages: [{ receipt, body }] } = await call('Receive', { queue: 'price' });
  assert.equal((await call('Extend', { receipt })).receipt, receipt);
  assert.equal((await call('Reply', { receipt, body })).changed, true);
  assert.equal(await result(job), '{"b":1.50}');
  const again = await call('Reply', { receipt, body });
  assert.deepEqual([again.changed, again.why_not], [false, 'unknown_job']);
});

/** The way to the manager, which can be cut: a port of its own. */
class Way {
  async open(own) {
    this.sockets = new Set();
    this.server = createServer((socket) => {
      const onward = connect(port, '127.0.0.1');
      for (const [one, other] of [[socket, onward], [onward, socket]]) {
        this.sockets.add(one.pipe(other) && one);
        one.on('error', () => {}).on('close', () => other.destroy());
      }
    }).listen(own, '127.0.0.1');
    await once(this.server, 'listening');
  }

  cut() {
    this.server.close();
    for (const socket of this.sockets) socket.destroy();
  }
}

test('the example waits for a manager that is away, at the start and in the middle', async () => {
  const [own, way] = [await freePort(), new Way()];
  const worker = spawn(process.execPath, [example, `127.0.0.1:${own}`], { env: { ...process.env, WORKFLOW_MANAGER_TOKEN: TOKEN }, stdio: ['ignore', 'inherit', 'pipe'] });
  let failures = 0;
  worker.stderr.on('data', () => failures++);
  const isAway = async () => {
    const before = failures;
    await until(() => failures > before + 1 || worker.exitCode !== null);
    assert.equal(worker.exitCode, null, 'it goes on trying');
  };
  const work = async () => {
    const job = await create('{"line":{"article":"ink","count":2}}');
    assert.deepEqual(JSON.parse(await result(job)), { line: { article: 'ink', count: 2, cents: 1980 } });
  };
  await isAway();
  await way.open(own);
  await work();
  way.cut();
  await isAway();
  await way.open(own);
  await work();
  way.cut();
  await isAway();
  worker.kill('SIGTERM');
  assert.deepEqual(await once(worker, 'exit'), [0, null]);
});

test('the example does a job and says farewell', async () => {
  const worker = spawn(process.execPath, [example, `127.0.0.1:${port}`], { env: { ...process.env, WORKFLOW_MANAGER_TOKEN: TOKEN }, stdio: 'inherit' });
  const job = await create('{"line":{"article":"pen","count":3}}');
  assert.deepEqual(JSON.parse(await result(job)), { line: { article: 'pen', count: 3, cents: 750 } });
  const bad = await create('{"line":{"article":"cow","count":3}}');
  await until(async () => (await stateOf(bad)) === 'failed');
  worker.kill('SIGTERM');
  assert.deepEqual(await once(worker, 'exit'), [0, null]);
});
