/** Wrong use is told at once, in words that help. */

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { test } from 'node:test';
import { run, Worker } from 'jsworker';

const echo = (message) => message;

/** Runs a program in an environment that names no server. */
function program(text, ...args) {
  const environment = Object.fromEntries(Object.entries(process.env).filter(([name]) => !/^(AMQP|WORKFLOW_MANAGER)/.test(name)));
  return spawnSync(process.execPath, ['--input-type=module', '-e', text, '--', 'program', ...args], { cwd: import.meta.dirname, env: environment, encoding: 'utf8', timeout: 30_000 });
}

for (const [args, options, told] of [
  [['--server', 'localhost:5672'], {}, 'or amqp://user:password@host:5672'],
  [['--server', 'ftp://localhost'], {}, 'should look like http://host:8088'],
  [['--server', 'amqp://localhost:port'], {}, 'should look like amqp://'],
  [['--server', 'http://localhost:port'], {}, 'http://localhost:port'],
  [['--server', 'http://localhost?queue=a'], {}, 'should look like http://host:8088'],
  [['--server', 'http://localhost', '--lease', '0.5'], {}, 'lease is from 1 to 43200 seconds, not 0.5'],
  [['--server', 'http://localhost'], { token: 'two\nlines' }, 'cannot stand in a header'],
  [['--prefetch', '0'], { server: 'amqp://localhost' }, 'prefetch is from 1 to 65535, not 0'],
  [['--prefetch='], {}, 'prefetch is from 1 to 65535, not NaN'],
  [['--grace', '-1'], {}, "argument is ambiguous"],
  [['--grace=-1'], {}, 'grace is from 0 to 86400 seconds, not -1'],
  [['--prefech', '2'], {}, "Unknown option '--prefech'"],
  [['word'], {}, "Unexpected argument 'word'"],
]) {
  test(`a wrong command line ends the program with code 2: ${args.join(' ')}`, () => {
    const { status, stderr } = program(`import { run } from 'jsworker'; run('a', () => {}, ${JSON.stringify(options)})`, ...args);
    assert.equal(status, 2, stderr);
    assert.ok(stderr.includes(told), stderr);
    assert.ok(stderr.includes('--server URL'), stderr);
  });
}

test('--help says what there is', () => {
  const { status, stdout } = program("import { run } from 'jsworker'; run({ a() {}, b() {} }, { prefetch: 7 })", '--help');
  assert.equal(status, 0);
  assert.match(stdout, /Worker for a, b\.[^]*--server URL[^]*default: 7[^]*--lease S[^]*--grace S/);
});

for (const server of ['http://user:secret@host', 'http://secret@host', 'ftp://user:secret@host', 'ftp://user:sec@ret@host', 'amqp://user:secret@host:port']) {
  test(`a password is not told: ${server}`, () => {
    assert.throws(() => new Worker({ a: echo }, server), (error) => !/sec|ret@/.test(error.message));
  });
}

test('over HTTP amqplib is not loaded', () => {
  const text = `
    import { createRequire } from 'node:module';
    import { Worker } from 'jsworker';
    new Worker({ a() {} }, 'http://localhost');
    console.log(Object.keys(createRequire(import.meta.url).cache).filter((file) => file.includes('amqplib')).length);`;
  assert.equal(program(text).stdout.trim(), '0');
});

test('a queue needs a function', async () => {
  await assert.rejects(run('a'), /needs the function/);
  await assert.rejects(run({ a: echo }, echo), /not both/);
  assert.throws(() => new Worker({}, 'http://localhost'), /at least one queue/);
  assert.throws(() => new Worker({ a: 1 }, 'http://localhost'), /the queue a needs a function/);
});

test('it can be required', () => {
  const { stdout, stderr } = program(`
    import { createRequire } from 'node:module';
    const { default: QueueListener, run, __esModule } = createRequire(import.meta.url)('jsworker');
    console.log(typeof run, new QueueListener('amqp://localhost', 'a', () => {}).queueName, __esModule);`);
  assert.equal(stdout.trim(), 'function a true', stderr);
});

test('a worker inside a larger program is stopped by stop', async () => {
  const lines = [];
  const log = { info: (line) => lines.push(line), warn: (line) => lines.push(line), error: (line) => lines.push(line) };
  const worker = new Worker({ a: echo }, 'http://127.0.0.1:1', { log });
  const running = worker.run();
  assert.equal(worker.stopping, false);
  worker.stop();
  await running;
  assert.equal(worker.stopping, true);
  assert.equal(lines.at(-1), 'stopped');
});
