/** What is of gRPC alone: several addresses, the stop with room for more, what goes over the wire, and wrong use. */

import assert from 'node:assert/strict';
import { execFileSync, spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import * as grpc from '@grpc/grpc-js';
import { Addresses } from '../dist/addresses.js';
import { Outbox } from '../dist/grpc_outbox.js';
import { CHOICES, KINDS, loadWire, MESSAGES, PACKAGE } from '../dist/grpc_wire.js';
import { assertWorks, Daemon, eventually, freePort, ORDERS, partsWith, workersOf } from './parts.js';

const STANDS_BY = 'stands by; active is http://elsewhere:8088';
const { work } = loadWire();
const same = (bytes) => bytes;

/** A manager's other process: passes streams on to the real manager, or refuses them. */
class Front {
  /** Code and text of a refusal. Without one, streams are passed on. */
  refusal = undefined;
  /** Nothing is passed on any more, and no connection ends. */
  isSilent = false;
  /** As a manager that does not know batches. */
  isEarlier = false;
  hellos = [];
  /** What workers have said, by its kind. */
  said = [];
  calls = new Set();

  static async start(test, daemon, credentials = grpc.ServerCredentials.createInsecure()) {
    const front = new Front();
    front.client = new grpc.Client(`127.0.0.1:${daemon.grpcPort}`, grpc.credentials.createInsecure());
    front.server = new grpc.Server();
    const definition = { path: work.path, requestStream: true, responseStream: true, requestSerialize: same, requestDeserialize: same, responseSerialize: same, responseDeserialize: same };
    front.server.addService({ work: definition }, { work: (stream) => front.work(stream) });
    const port = await new Promise((resolve, reject) => front.server.bindAsync('127.0.0.1:0', credentials, (error, port) => (error ? reject(error) : resolve(port))));
    front.url = `${credentials._isSecure() ? 'grpcs' : 'grpc'}://127.0.0.1:${port}`;
    test.after(() => front.die());
    return front;
  }

  work(stream) {
    this.hellos.push(stream.metadata.get('authorization')[0]);
    if (this.refusal) return stream.emit('error', this.refusal);
    const call = this.client.makeBidiStreamRequest(work.path, same, same, new grpc.Metadata());
    this.calls.add(call);
    stream.on('data', (bytes) => {
      if (this.isSilent) return;
      const said = work.requestDeserialize(bytes);
      this.said.push(Object.keys(said)[0]);
      if (this.isEarlier && said.hello) delete said.hello.batches;
      call.write(work.requestSerialize(said));
    });
    stream.on('end', () => call.end());
    stream.on('cancelled', () => call.cancel());
    call.on('data', (bytes) => this.isSilent || stream.write(bytes));
    call.on('error', () => {});
    call.on('status', ({ code, details }) => (code === grpc.status.OK ? stream.end() : stream.emit('error', { code, details })));
  }

  /** Its streams break off, and no other one is taken. */
  die() {
    this.server.forceShutdown();
    for (const call of this.calls) call.cancel();
    this.client.close();
  }
}

const standsBy = { code: grpc.status.UNAVAILABLE, details: STANDS_BY };

test('an address that cannot be reached is left at once', async (t) => {
  const [daemon, , start] = await partsWith(t, Front);
  const dead = `grpc://127.0.0.1:${await freePort()}`;
  const worker = await start('echo', `${dead}, ${daemon.servers.grpc}`);
  await assertWorks(daemon, 1);
  assert.ok(worker.log.includes(`goes on at ${daemon.servers.grpc}, after ${dead}: UNAVAILABLE`), worker.log);
  assert.ok(!worker.log.includes('trying again'), worker.log);
  assert.equal(await worker.terminate(), 0);
});

test('one that stands by is left at once', async (t) => {
  const [daemon, [first, second], start] = await partsWith(t, Front);
  first.refusal = standsBy;
  const worker = await start('echo', `${first.url},${second.url}`, { environment: { WORKFLOW_MANAGER_TOKEN: 'secret' } });
  await assertWorks(daemon, 1);
  assert.ok(!worker.log.includes('trying again'), worker.log);
  assert.deepEqual([first.hellos, second.hellos], [['Bearer secret'], ['Bearer secret']]);
});

test('while all stand by each is asked once in a turn', async (t) => {
  const [daemon, [first, second], start] = await partsWith(t, Front);
  first.refusal = second.refusal = standsBy;
  const worker = await start('echo', `${first.url},${second.url}`, { isReady: false });
  await worker.awaitLog('trying again in', 2);
  assert.ok(first.hellos.length <= worker.log.split('trying again in').length);
  assert.ok(worker.log.includes(`no connection to ${first.url}: UNAVAILABLE ${STANDS_BY}; ${second.url}: UNAVAILABLE ${STANDS_BY}`), worker.log);
  second.refusal = undefined;
  await assertWorks(daemon, 1);
});

test('a refusal is told and waited for at the same address', async (t) => {
  const [daemon, [first, second], start] = await partsWith(t, Front);
  first.refusal = { code: grpc.status.PERMISSION_DENIED, details: 'not for this worker' };
  const worker = await start('echo', `${first.url},${second.url}`, { isReady: false });
  await worker.awaitLog('ERROR jsworker: price: PERMISSION_DENIED not for this worker; trying again in', 2);
  first.refusal = undefined;
  await assertWorks(daemon, 1);
  assert.deepEqual(second.hellos, []);
});

for (const end of ['dies', 'is silent']) {
  test(`what is in hand stays in hand and is replied to the next, when the first ${end}`, async (t) => {
    const [daemon, [first, second], start] = await partsWith(t, Front);
    const worker = await start('waits', `${first.url},${second.url}`, { options: ['--lease=3'] });
    const job = await daemon.create('orders', { n: 1 });
    await worker.awaitCalls(1);
    if (end === 'dies') first.die();
    else first.isSilent = true;
    // Its lease is lengthened there, for longer than it is.
    await eventually(() => second.said.filter((word) => word === 'extend').length > 9, 'the lease to be lengthened');
    worker.release();
    assert.equal(await daemon.result(job), '{"n":1}');
    assert.deepEqual(worker.calls(), ['1']);
    assert.equal(await worker.terminate(), 0);
  });
}

test('SIGTERM finishes what is in hand at the next', async (t) => {
  const [daemon, [first, second], start] = await partsWith(t, Front);
  second.refusal = standsBy;
  const worker = await start('waits', `${first.url},${second.url}`);
  const job = await daemon.create('orders', { n: 1 });
  await worker.awaitCalls(1);
  first.die();
  await worker.awaitLog('trying again in');
  worker.signal('SIGTERM');
  await worker.awaitLog('stopping');
  worker.release();
  await worker.awaitLog('its reply was not taken');
  second.refusal = undefined;
  assert.equal(await worker.end(), 0);
  assert.equal(await daemon.result(job), '{"n":1}');
  assert.deepEqual(worker.calls(), ['1']);
});

test('SIGTERM lets go of what was wanted and keeps what is in hand', async (t) => {
  const [daemon, , start] = await partsWith(t, Front);
  const worker = await start('progressAndWaits', daemon.servers.grpc, { options: ['--prefetch=10', '--lease=2'] });
  const job = await daemon.create('orders', { n: 1 });
  await worker.awaitCalls(1);
  worker.signal('SIGTERM');
  await worker.awaitLog('stopping');
  const later = await daemon.create('orders', { n: 2 });
  const [other] = await eventually(async () => {
    const messages = await daemon.ask('/api/queue/price/receive?max=1', '');
    return messages.length > 0 && messages;
  }, 'the second message');
  assert.deepEqual([other.job, other.delivery], [later, 1]);
  // Asked for as long as three leases: what is worked on has not been lent again.
  assert.deepEqual(await daemon.ask('/api/queue/price/receive?wait=6s&max=1', ''), []);
  assert.ok(worker.isAlive, 'it waits for its function');
  worker.release();
  assert.equal(await worker.end(), 0);
  assert.equal(await daemon.result(job), '{"n":1}');
  assert.deepEqual(worker.calls(), ['1']);
});

test('a manager that drains is left and found again', async (t) => {
  const [daemon, , start] = await partsWith(t, Front);
  const worker = await start('waits', daemon.servers.grpc, { options: ['--prefetch=2'] });
  const job = await daemon.create('orders', { n: 1 });
  await worker.awaitCalls(1);
  daemon.process.kill('SIGTERM');
  await eventually(() => daemon.process.exitCode !== null, "the manager's end");
  await daemon.start();
  await worker.awaitLog('consuming from', 2);
  worker.release();
  assert.equal(await daemon.result(job), '{"n":1}');
  assert.deepEqual(worker.calls(), ['1']);
});

test('over TLS only authorities of Node.js or its environment are believed', async (t) => {
  const start = workersOf(t);
  const daemon = await Daemon.start(t, ORDERS);
  const directory = mkdtempSync(join(tmpdir(), 'jsworker-'));
  t.after(() => rmSync(directory, { recursive: true, force: true }));
  const [key, certificate] = [join(directory, 'key.pem'), join(directory, 'certificate.pem')];
  const words = 'req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=manager -addext subjectAltName=IP:127.0.0.1';
  execFileSync('openssl', [...words.split(' '), '-keyout', key, '-out', certificate], { stdio: 'pipe' });
  const pair = { private_key: readFileSync(key), cert_chain: readFileSync(certificate) };
  const front = await Front.start(t, daemon, grpc.ServerCredentials.createSsl(null, [pair]));
  const wary = await start({ price: 'echo' }, { server: front.url, isReady: false });
  await wary.awaitLog('trying again in');
  await start({ price: 'echo' }, { server: front.url, environment: { NODE_EXTRA_CA_CERTS: certificate } });
  await assertWorks(daemon, 1);
  assert.equal(front.hellos.length, 1);
});

test('what waits goes together if the manager takes batches', async (t) => {
  const [daemon, [front], start] = await partsWith(t, Front);
  const worker = await start('echo', front.url, { options: ['--prefetch=40'] });
  let count = 0;
  const hasSaidABatch = async () => {
    const jobs = [];
    for (const end = count + 40; count < end; count++) jobs.push([count, await daemon.create('orders', { n: count })]);
    for (const [n, job] of jobs) assert.equal(await daemon.result(job), `{"echo":{"n":${n}}}`);
    return front.said.includes('batch');
  };
  // What is said in one turn goes together: with so many at once that comes soon.
  await eventually(hasSaidABatch, 'a batch');
  assert.equal(await worker.terminate(), 0);
  assert.deepEqual(worker.calls().map(Number).sort((a, b) => a - b), [...Array(count).keys()]);
});

test('a manager that does not know batches hears one thing at a time', async (t) => {
  const [daemon, [front], start] = await partsWith(t, Front);
  front.isEarlier = true;
  const jobs = [];
  for (let n = 0; n < 40; n++) jobs.push(await daemon.create('orders', { n }));
  const worker = await start('echo', front.url, { options: ['--prefetch=40'] });
  for (const [n, job] of jobs.entries()) assert.equal(await daemon.result(job), `{"echo":{"n":${n}}}`);
  assert.ok(!front.said.includes('batch'));
  assert.equal(await worker.terminate(), 0);
});

/** What an outbox makes of what was said in one turn: for each that goes out, its receipts and what it wants, or its kind. */
function saidTogether(said, { replies_max = 100, bytes_max = 1 << 20, takesBatches = true } = {}) {
  const [told, sizes] = [[], []];
  const outbox = new Outbox((what) => {
    sizes.push(work.requestSerialize(what).length);
    told.push(what.batch ? [what.batch.replies.map(({ receipt }) => receipt).join(' '), what.batch.want] : Object.keys(what)[0]);
  });
  if (takesBatches) outbox.allowBatches({ replies_max, bytes_max });
  for (const what of said) outbox.say(what);
  outbox.flush();
  return { told, sizes };
}

const aReply = (receipt, size = 2) => ({ reply: { receipt, kind: 'RESULT', body: Buffer.alloc(size, 'x') } });

test('what was said goes out in its order', () => {
  const [want, extend] = [{ want: { messages: 3 } }, { extend: { receipt: 'e' } }];
  const said = [aReply('a'), want, aReply('b'), want, extend, aReply('c'), want];
  assert.deepEqual(saidTogether(said).told, [['a b', 6], 'extend', ['c', 3]]);
  assert.deepEqual(saidTogether(said, { takesBatches: false }).told, ['reply', 'want', 'reply', 'want', 'extend', 'reply', 'want']);
  for (const takesBatches of [false, true]) {
    assert.deepEqual(saidTogether([want, want], { takesBatches }).told, ['want'], 'no batch is needed for it');
    assert.deepEqual(saidTogether([aReply('a')], { takesBatches }).told, ['reply'], 'alone as ever');
  }
});

test('a batch is bounded in replies and in bytes', () => {
  const seven = [...'0123456'].map((receipt) => aReply(receipt));
  assert.deepEqual(saidTogether(seven, { replies_max: 3 }).told, [['0 1 2', 0], ['3 4 5', 0], 'reply']);
  // A reply that is too large for the manager goes alone, so that its verdict is for no other one.
  const sizes = [400, 400, 400, 2000, 10].map((size, index) => aReply(String(index), size));
  const out = saidTogether(sizes, { bytes_max: 1000 });
  assert.deepEqual(out.told, [['0 1', 0], 'reply', 'reply', 'reply']);
  assert.deepEqual(out.sizes.map((size) => size <= 1000), [true, true, false, true]);
  const small = saidTogether(Array.from({ length: 90 }, () => aReply('r'.repeat(40), 0)), { bytes_max: 1000 });
  assert.ok(Math.max(...small.sizes) <= 1000, String(small.sizes));
  assert.equal(small.told.flatMap(([receipts]) => receipts.split(' ')).length, 90);
});

test('what goes over the wire is what the file says', () => {
  const text = readFileSync(new URL('../../proto/workers.proto', import.meta.url), 'utf8').replace(/\/\/.*/g, '');
  assert.ok(text.includes(`package ${PACKAGE};`));
  for (const [name, fields] of Object.entries(MESSAGES)) {
    const [, body = ''] = new RegExp(`^message ${name} \\{(?:\\}|(.*?)^\\})`, 'ms').exec(text);
    const found = [...body.matchAll(/((?:repeated |optional )?[\w.]+) (\w+) = (\d+);/g)].map(([, type, field, number]) => [field, [Number(number), type]]);
    const declared = Object.fromEntries(found);
    for (const [field, words] of Object.entries(fields)) assert.deepEqual(words, declared[field], `${name}.${field}`);
    assert.equal(name in CHOICES, body.includes('oneof'));
  }
  const [, kinds] = /^enum Kind \{(.*?)^\}/ms.exec(text);
  assert.deepEqual(Object.fromEntries([...kinds.matchAll(/(\w+) = (\d+);/g)].map(([, name, number]) => [name, Number(number)])), KINDS);
  assert.ok(text.includes('rpc Work(stream FromWorker) returns (stream ToWorker);'));
});

for (const [text, words] of [
  ['grpc://a,grpcs://b', 'mix grpc:// and grpcs://: the token would go both in clear and encrypted'],
  ['grpc://a,http://b', 'mix grpc:// and http://: they need the same scheme'],
  ['grpc://a/path', 'should look like grpc://host:8089'],
  ['grpc://me:pw@a', 'has no user'],
  ['grpc://a?vhost=v,grpc://b', 'the same vhost'],
]) {
  test(`a wrong address is refused: ${text}`, () => {
    assert.throws(() => new Addresses(text), (error) => error.message.includes(words) && !error.message.includes('pw'));
  });
}

test('an address has a port and may be of IPv6', () => {
  assert.equal(new Addresses('grpc://a').current.hostAndPort, 'a:8089');
  assert.equal(new Addresses('grpcs://[::1]:7?vhost=x').current.hostAndPort, '[::1]:7');
  assert.equal(new Addresses('grpc://a?vhost=x%20y').current.vhost, 'x y');
});

for (const missing of ['@grpc/grpc-js', '@grpc/proto-loader']) {
  test(`without ${missing} the program says what to install`, () => {
    const text = `
      import module from 'node:module';
      const load = module._load;
      module._load = (name, ...others) => {
        if (name === ${JSON.stringify(missing)}) throw new Error(\`Cannot find module '\${name}'\`);
        return load(name, ...others);
      };
      const { run } = await import('jsworker');
      await run('a', () => {}, { argv: ['--server', 'grpc://localhost'] });`;
    const { status, stderr } = spawnSync(process.execPath, ['--input-type=module', '-e', text], { cwd: import.meta.dirname, encoding: 'utf8', timeout: 60_000 });
    assert.equal(status, 2, stderr);
    assert.ok(stderr.includes(`Cannot find module '${missing}'`) && stderr.includes('npm install @grpc/grpc-js @grpc/proto-loader'), stderr);
  });
}

test('over HTTP grpc-js is not loaded', () => {
  const text = `
    import { createRequire } from 'node:module';
    import { Worker } from 'jsworker';
    new Worker({ a() {} }, 'http://localhost');
    console.log(Object.keys(createRequire(import.meta.url).cache).filter((file) => file.includes('grpc')).length);`;
  const { stdout } = spawnSync(process.execPath, ['--input-type=module', '-e', text], { cwd: import.meta.dirname, encoding: 'utf8', timeout: 60_000 });
  assert.equal(stdout.trim(), '0');
});
