/** Several addresses, with a real manager: the worker goes where the active one is, and keeps what it has in hand. */

import assert from 'node:assert/strict';
import http from 'node:http';
import { test } from 'node:test';
import { Addresses } from '../dist/addresses.js';
import { assertWorks, eventually, freePort, partsWith } from './parts.js';


/** A manager's other process, as a server: passes requests on to the real manager, or refuses them. */
class Front {
  static async start(test, daemon) {
    const front = new Front();
    front.daemon = daemon;
    front.server = http.createServer((request, response) => void front.answer(request, response));
    await new Promise((resolve) => front.server.listen(0, '127.0.0.1', resolve));
    front.url = `http://127.0.0.1:${front.server.address().port}`;
    test.after(() => front.die());
    return front;
  }

  /** Status, headers and body of a refusal. Without one, requests are passed on. */
  refusal = undefined;
  requests = [];

  async answer(request, response) {
    const parts = [];
    for await (const part of request) parts.push(part);
    this.requests.push({ path: request.url, token: request.headers.authorization });
    const [status, headers, text] = this.refusal ?? (await this.passOn(request.url, Buffer.concat(parts)));
    response.writeHead(status, headers);
    response.end(text);
  }

  async passOn(path, body) {
    // Not held open, so that a refusal reaches the worker soon.
    const answer = await fetch(this.daemon.url + path.replace('wait=30s', 'wait=0s'), { method: 'POST', body });
    const left = ['content-length', 'transfer-encoding', 'connection', 'date', 'keep-alive'];
    return [answer.status, Object.fromEntries([...answer.headers].filter(([name]) => !left.includes(name))), Buffer.from(await answer.arrayBuffer())];
  }

  /** Stands by, and names the active one. */
  name(url, { status = 503, byHeader = true } = {}) {
    const headers = { 'retry-after': '1', ...(byHeader && { 'workflow-manager-active': url }) };
    this.refusal = [status, headers, JSON.stringify({ detail: `stands by; active is ${url}`, active: url })];
  }

  /** Its connections break off, and no other one is taken. */
  die() {
    this.server.close();
    this.server.closeAllConnections();
  }
}

test('an address that cannot be reached is left at once', async (t) => {
  const [daemon, , start] = await partsWith(t, Front);
  const dead = `http://127.0.0.1:${await freePort()}`;
  const worker = await start('echo', `${dead}, ${daemon.url}`);
  await assertWorks(daemon, 1);
  assert.ok(worker.log.includes(`goes on at ${daemon.url}, after ${dead}: `), worker.log);
  assert.ok(!worker.log.includes('trying again'), worker.log);
  assert.equal(await worker.terminate(), 0);
});

for (const how of [{}, { byHeader: false }, { status: 421 }]) {
  test(`a named address is followed even if it is not of the list: ${JSON.stringify(how)}`, async (t) => {
    const [daemon, [front], start] = await partsWith(t, Front);
    front.name(daemon.url, how);
    const worker = await start('echo', front.url, { environment: { WORKFLOW_MANAGER_TOKEN: 'secret' } });
    await assertWorks(daemon, 1);
    assert.ok(!worker.log.includes('trying again'), worker.log);
    assert.deepEqual(front.requests.map(({ token }) => token), ['Bearer secret']);
  });
}

test('one that stands by and names nobody is left', async (t) => {
  const [daemon, [front], start] = await partsWith(t, Front);
  front.refusal = [503, { 'retry-after': '1' }, '{"detail":"stands by; the active one is unknown"}'];
  const worker = await start('echo', `${front.url},${daemon.url}`);
  await assertWorks(daemon, 1);
  assert.ok(!worker.log.includes('trying again'), worker.log);
});

test('an overload is waited for at the same address', async (t) => {
  const [daemon, [first, second], start] = await partsWith(t, Front);
  first.refusal = [503, { 'retry-after': '1' }, '{"detail":"too many wait already"}'];
  const worker = await start('echo', `${first.url},${second.url}`, { isReady: false });
  await worker.awaitLog('trying again in', 2);
  first.refusal = undefined;
  await assertWorks(daemon, 1);
  assert.deepEqual(second.requests, []);
});

for (const end of ['refuses', 'is gone']) {
  test(`what is in hand stays in hand and is replied to the new active one, when the first ${end}`, async (t) => {
    const [daemon, [first, second], start] = await partsWith(t, Front);
    second.name(first.url);
    const worker = await start('waits', `${first.url},${second.url}`, { options: ['--prefetch=2', '--lease=2'] });
    const job = await daemon.create('orders', { n: 1 });
    await worker.awaitCalls(1);
    second.refusal = undefined;
    if (end === 'refuses') first.name(second.url);
    else first.die();
    // Its lease is lengthened there, for longer than it is.
    const count = (word) => second.requests.filter(({ path }) => path.includes(word)).length;
    await eventually(() => count('/extend') > 9, 'the lease to be lengthened');
    worker.release();
    assert.equal(await daemon.result(job), '{"n":1}');
    // Alone, or in a list of replies.
    assert.equal(count('/repl'), 1);
    assert.deepEqual(worker.calls(), ['1']);
    assert.equal(await worker.terminate(), 0);
  });
}

test('SIGTERM finishes what is in hand at the new active one', async (t) => {
  const [daemon, [first, second], start] = await partsWith(t, Front);
  const worker = await start('waits', `${first.url},${second.url}`);
  const job = await daemon.create('orders', { n: 1 });
  await worker.awaitCalls(1);
  second.name(first.url);
  first.name(second.url);
  worker.signal('SIGTERM');
  worker.release();
  await worker.awaitLog('its reply was not taken');
  second.refusal = undefined;
  assert.equal(await worker.end(), 0);
  assert.equal(await daemon.result(job), '{"n":1}');
  assert.deepEqual(worker.calls(), ['1']);
});

test('two that name each other are each asked once in a turn', async (t) => {
  const [daemon, [first, second], start] = await partsWith(t, Front);
  first.name(second.url);
  second.name(first.url);
  const worker = await start('echo', `${first.url},${second.url}`, { isReady: false });
  await worker.awaitLog('trying again in', 2);
  assert.ok(first.requests.length <= worker.log.split('trying again in').length);
  assert.ok(worker.log.includes(`no connection to ${first.url}: 503 stands by; active is ${second.url}; ${second.url}: 503`), worker.log);
  second.refusal = undefined;
  await assertWorks(daemon, 1);
});

test('a named address is never less safe', () => {
  const addresses = new Addresses('https://a:1/x,https://b');
  assert.match(addresses.follow(addresses.current, 'http://b'), /in clear/);
  assert.equal(addresses.current.text, 'https://b', 'the next of the list');
  for (const named of ['ftp://c', 'c', 'https://me:pw@c', 'https://c?x=y', 'https://c:port', 'https://']) {
    const before = addresses.current;
    assert.match(addresses.follow(before, named), /which is not asked/, named);
    assert.notEqual(addresses.current, before);
  }
  assert.equal(addresses.follow(addresses.current, 'https://elsewhere/y/'), '');
  assert.equal(addresses.current.text, 'https://elsewhere/y/');
  const plain = new Addresses('http://a?vhost=v');
  assert.equal(plain.follow(plain.current, 'https://b'), '');
  assert.equal(plain.current.target('/p?q=1', {}), '/p?vhost=v&q=1');
});

test('a wrong list is refused', () => {
  for (const [text, words] of [
    ['http://a,https://b', /mix http:\/\/ and https:\/\//],
    ['http://a,', /should look like/],
    ['http://a,http://me:pw@b', /has no user/],
    ['http://a?vhost=v,http://b', /the same vhost/],
  ]) {
    assert.throws(() => new Addresses(text), (error) => words.test(error.message) && !error.message.includes('pw'));
  }
});
