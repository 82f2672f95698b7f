/** Real worker processes. Over AMQP with a real broker, where the tests play the manager; over HTTP and gRPC with a real manager. */

import assert from 'node:assert/strict';
import { execFile, spawn } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { existsSync, mkdtempSync, openSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { connect, createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as pause } from 'node:timers/promises';
import { promisify } from 'node:util';
import * as amqplib from 'amqplib';

export const DEADLINE_SECONDS = 30;

/** The first true value of `condition()`; fails when there is none before the deadline. */
export async function eventually(condition, what, seconds = DEADLINE_SECONDS) {
  const end = performance.now() + seconds * 1000;
  for (;;) {
    const value = await condition();
    if (value) return value;
    if (performance.now() > end) assert.fail(`not within ${seconds} s: ${typeof what === 'function' ? what() : what}`);
    await pause(20);
  }
}

export function required(variable) {
  const value = process.env[variable];
  assert.ok(value, `${variable} is not set: tests/run jsworker brings all that these tests need; jsworker/README.md says how to do it by hand`);
  return value;
}

/** rabbitmqctl for the broker of the tests; gives what it prints. */
export async function rabbitmqctl(...args) {
  const [program, ...first] = required('RABBITMQCTL').split(' ');
  const { stdout } = await promisify(execFile)(program, [...first, '--quiet', ...args], { timeout: 60_000 });
  return stdout;
}

/** The broker's connections whose client names itself with the given text in it: their Erlang pids. */
export async function connections(text) {
  const rows = (await rabbitmqctl('--no-table-headers', 'list_connections', 'pid', 'client_properties')).split('\n');
  return rows.filter((row) => row.includes(text)).map((row) => row.split('\t')[0]);
}

/** A directory for one test. */
function directoryFor(test) {
  const directory = mkdtempSync(join(tmpdir(), 'jsworker-'));
  test.after(() => rmSync(directory, { recursive: true, force: true }));
  return directory;
}

/** Sends step messages and takes replies, as workflow-manager does. */
export class Manager {
  static async open(test) {
    const manager = new Manager();
    await manager.connect();
    await manager.declare(manager.replyQueue);
    test.after(() => manager.close());
    return manager;
  }

  name = `jsworker-test-${randomUUID().slice(0, 13)}`;
  replyQueue = `${this.name}-replies`;
  queues = [this.replyQueue];

  async connect() {
    this.connection = await amqplib.connect(required('AMQP_SERVER'));
    this.connection.on('error', () => {});
    this.channel = await this.connection.createConfirmChannel();
    this.channel.on('error', () => {});
  }

  /** A queue name that nobody has used; it is deleted when the test ends. */
  queue() {
    this.queues.push(`${this.name}-${this.queues.length}`);
    return this.queues.at(-1);
  }

  async declare(name, args = {}) {
    await this.channel.assertQueue(name, { durable: true, arguments: args });
    return name;
  }

  /** A queue whose rejected messages can be seen, in a second one. */
  async rejecting() {
    const dead = await this.declare(this.queue());
    const queue = await this.declare(this.queue(), { 'x-dead-letter-exchange': '', 'x-dead-letter-routing-key': dead });
    return [queue, dead];
  }

  /** Publishes a step message; gives its correlation id. A body that is no object is sent as it is. */
  async send(queue, body, properties = {}) {
    const correlationId = `${randomUUID()}:${queue}`;
    const values = { correlationId, replyTo: this.replyQueue, contentType: 'application/json', persistent: true, messageId: `${correlationId}:1`, ...properties };
    const bytes = typeof body === 'string' || Buffer.isBuffer(body) ? Buffer.from(body) : Buffer.from(JSON.stringify(body));
    this.channel.sendToQueue(queue, bytes, values);
    await this.channel.waitForConfirms();
    return values.correlationId;
  }

  /** The next message of a queue (the reply queue unless another is named): properties and text. */
  async receive(queue = this.replyQueue, what = 'a message') {
    const message = await eventually(() => this.channel.get(queue, { noAck: true }), `${what} in ${queue}`);
    return { ...message.properties, text: message.content.toString() };
  }

  async ready(queue = this.replyQueue) {
    return (await this.channel.checkQueue(queue)).messageCount;
  }

  async consumers(queue) {
    return (await this.channel.checkQueue(queue)).consumerCount;
  }

  async close() {
    for (const queue of this.queues) await this.channel.deleteQueue(queue);
    await this.connection.close();
  }
}

export class WorkerProcess {
  constructor(process, directory, log) {
    this.process = process;
    this.directory = directory;
    this.logFile = log;
    this.ended = once(process, 'exit');
  }

  get log() {
    return readFileSync(this.logFile, 'utf8');
  }

  get isAlive() {
    return this.process.exitCode === null && this.process.signalCode === null;
  }

  /** The calls of its functions, and of those of other workers in the same directory. */
  calls() {
    const file = join(this.directory, 'calls');
    return existsSync(file) ? readFileSync(file, 'utf8').trim().split('\n') : [];
  }

  awaitCalls(count) {
    return eventually(() => this.calls().length >= count, () => `${count} calls of the function; the log:\n${this.log}`);
  }

  awaitLog(text, times = 1) {
    return eventually(() => this.log.split(text).length > times, () => `"${text}" ${times}x in the worker's log:\n${this.log}`);
  }

  /** Lets the functions that wait for it return. */
  release() {
    writeFileSync(join(this.directory, 'release'), '');
  }

  signal(name) {
    this.process.kill(name);
  }

  /** Its exit code, or the signal that ended it. */
  async end() {
    await eventually(() => !this.isAlive, () => `the worker's end; its log:\n${this.log}`);
    return this.process.exitCode ?? this.process.signalCode;
  }

  async terminate() {
    this.signal('SIGTERM');
    return this.end();
  }
}

/** Starts workers of one test: `start({ queue: function of worker_program.js }, …)`, which waits until it consumes. */
export function workersOf(test) {
  const directory = directoryFor(test);
  const started = [];
  test.after(async () => {
    for (const worker of started) {
      if (worker.isAlive) worker.signal('SIGKILL');
      await worker.end();
    }
  });

  return async (functions, { options = [], server = required('AMQP_SERVER'), isReady = true, program = 'worker_program.js', environment = {} } = {}) => {
    const log = join(directory, `worker-${started.length}.log`);
    const output = openSync(log, 'w');
    const words = Object.entries(functions).map(([queue, name]) => `${queue}=${name}`);
    const child = spawn(process.execPath, [join(import.meta.dirname, program), directory, ...words, ...options], {
      env: { ...process.env, AMQP_SERVER: server, ...environment },
      stdio: ['ignore', output, output],
    });
    const worker = new WorkerProcess(child, directory, log);
    started.push(worker);
    if (isReady) await worker.awaitLog('consuming from', server.startsWith('amqp') ? 1 : words.length);
    return worker;
  };
}

/** A manager without a broker. */
export class Daemon {
  static async start(test, workflows, environment = {}) {
    const daemon = new Daemon();
    daemon.program = required('WORKFLOW_MANAGER');
    daemon.directory = directoryFor(test);
    daemon.environment = environment;
    daemon.address = `127.0.0.1:${await freePort()}`;
    daemon.url = `http://${daemon.address}`;
    do daemon.grpcPort = await freePort();
    while (daemon.address.endsWith(`:${daemon.grpcPort}`));
    /** Where its workers go, by transport. */
    daemon.servers = { http: daemon.url, grpc: `grpc://127.0.0.1:${daemon.grpcPort}` };
    writeFileSync(join(daemon.directory, 'workflows.yaml'), workflows);
    test.after(() => daemon.kill());
    await daemon.start();
    return daemon;
  }

  async start() {
    const environment = Object.fromEntries(Object.entries(process.env).filter(([name]) => !/^(AMQP|WORKFLOW_MANAGER)/.test(name)));
    const log = openSync(join(this.directory, 'manager.log'), 'a');
    this.process = spawn(this.program, ['serve', '--workflows', 'workflows.yaml', '--db', 'journal.db', '--listen', this.address], {
      cwd: this.directory,
      env: { ...environment, WORKFLOW_MANAGER__GRPC__LISTEN: `127.0.0.1:${this.grpcPort}`, ...this.environment },
      stdio: ['ignore', log, log],
    });
    await eventually(async () => {
      assert.equal(this.process.exitCode, null, `the manager has ended:\n${this.log}`);
      try {
        return (await fetch(`${this.url}/readyz`)).ok && (await isOpen(this.grpcPort));
      } catch {
        return false;
      }
    }, () => `the manager to be ready:\n${this.log}`);
  }

  get log() {
    return readFileSync(join(this.directory, 'manager.log'), 'utf8');
  }

  async kill() {
    if (this.process.exitCode !== null || this.process.signalCode !== null) return;
    this.process.kill('SIGKILL');
    await once(this.process, 'exit');
  }

  async text(path, body) {
    const token = this.environment.WORKFLOW_MANAGER__HTTP__TOKEN;
    const answer = await fetch(this.url + path, {
      ...(body !== undefined && { method: 'POST', body }),
      headers: token ? { authorization: `Bearer ${token}` } : {},
      signal: AbortSignal.timeout(DEADLINE_SECONDS * 1000),
    });
    const text = await answer.text();
    assert.ok(answer.ok, `${path}: ${answer.status} ${text}`);
    return text;
  }

  async ask(path, body) {
    return JSON.parse(await this.text(path, body));
  }

  /** Creates a job; gives its id. A message that is no object is sent as it is. */
  async create(workflow, message) {
    return (await this.ask(`/api/workflow/${workflow}`, typeof message === 'string' ? message : JSON.stringify(message))).id;
  }

  job(id) {
    return this.ask(`/api/job/${id}`);
  }

  /** The job, once it has ended. */
  async ended(id, state = 'completed') {
    const job = await eventually(async () => {
      const seen = await this.job(id);
      return seen.state !== 'running' && seen;
    }, `the end of job ${id}`);
    assert.equal(job.state, state, JSON.stringify(job));
    return job;
  }

  /** The result as it was written, once the job is completed. */
  async result(id) {
    await this.ended(id);
    return (await this.text(`/api/job/${id}/result`)).trim();
  }

  async queue() {
    return (await this.ask('/api/queues')).queues[0];
  }
}

/** A relay in front of the broker, which reads the methods that pass. It passes nothing on once it is cut. */
export class Relay {
  /** The methods that have passed, such as `client basic.ack`. */
  methods = [];
  #sockets = new Set();

  /** `cutAt(method)`: whether to cut the connection before that one. */
  static async open(test, cutAt) {
    const relay = new Relay();
    const url = new URL(required('AMQP_SERVER').replace(/^amqp/, 'http'));
    const { hostname, port } = url;
    const server = createServer((client) => {
      const broker = connect({ host: hostname, port: Number(port) });
      const cut = () => {
        client.destroy();
        broker.destroy();
      };
      for (const socket of [client, broker]) {
        relay.#sockets.add(socket);
        socket.on('error', cut);
        socket.on('close', cut);
      }
      relay.#pass('client', client, broker, cutAt, cut);
      relay.#pass('broker', broker, client, cutAt, cut);
    });
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    test.after(() => {
      for (const socket of relay.#sockets) socket.destroy();
      server.close();
    });
    url.port = server.address().port;
    relay.url = url.href.replace(/^http/, 'amqp');
    return relay;
  }

  #pass(who, from, to, cutAt, cut) {
    let rest = Buffer.alloc(0);
    let isGreeted = who === 'broker';
    from.on('data', (bytes) => {
      rest = Buffer.concat([rest, bytes]);
      if (!isGreeted && rest.length >= 8) {
        to.write(rest.subarray(0, 8));
        rest = rest.subarray(8);
        isGreeted = true;
      }
      while (isGreeted && rest.length >= 7 && rest.length >= 8 + rest.readUInt32BE(3)) {
        const frame = rest.subarray(0, 8 + rest.readUInt32BE(3));
        rest = rest.subarray(frame.length);
        if (frame[0] === 1) {
          const method = `${who} ${METHODS[`${frame.readUInt16BE(7)}.${frame.readUInt16BE(9)}`] ?? 'other'}`;
          if (cutAt(method, this.methods)) return cut();
          this.methods.push(method);
        }
        if (!to.destroyed) to.write(frame);
      }
    });
  }
}

const METHODS = { '60.40': 'basic.publish', '60.50': 'basic.return', '60.60': 'basic.deliver', '60.80': 'basic.ack', '60.120': 'basic.nack' };

async function isOpen(port) {
  const socket = connect(port, '127.0.0.1');
  try {
    await once(socket, 'connect');
    return true;
  } finally {
    socket.destroy();
  }
}

export async function freePort() {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address();
  server.close();
  await once(server, 'close');
  return port;
}

/** Of managers of which one is active: one step is enough. */
export const ORDERS = 'workflows: [{ name: orders, steps: [{ name: price }] }]';

/** A manager, two fronts of it, of the class `Front`, and a way to start workers for its queue price. */
export async function partsWith(t, Front) {
  const start = workersOf(t);
  const daemon = await Daemon.start(t, ORDERS);
  const fronts = [await Front.start(t, daemon), await Front.start(t, daemon)];
  return [daemon, fronts, (name, server, more = {}) => start({ price: name }, { server, ...more })];
}

export async function assertWorks(daemon, n) {
  assert.equal(await daemon.result(await daemon.create('orders', { n })), `{"echo":{"n":${n}}}`);
}
