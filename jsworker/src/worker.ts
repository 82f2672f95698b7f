/** The worker: the scheme of the server's address chooses what brings the messages. */

import { setMaxListeners } from 'node:events';
import { AmqpTransport } from './amqp.js';
import { GrpcTransport } from './grpc.js';
import { HttpTransport } from './http.js';
import { standardError, withoutPassword, type Log } from './log.js';
import type { Handler } from './step.js';
import { performWith } from './work.js';

const PREFETCH_DEFAULT = 1;
const LEASE_SECONDS_DEFAULT = 60;
const GRACE_SECONDS_MAX = 86400;

/** What a worker may be told besides its queues and its server. */
export interface WorkerOptions {
  /** How many messages are held per queue; their functions all run at once. Default: 1. */
  prefetch?: number | undefined;
  /** Over gRPC and HTTP: after so many seconds without a word of this process a manager gives its messages to others. Default: 60. */
  lease?: number | undefined;
  /** Over gRPC and HTTP: the manager's token. Default: the environment's `WORKFLOW_MANAGER_TOKEN`. */
  token?: string | undefined;
  /** How many seconds a function has once the worker stops; then its `step.signal` is aborted. Default: as long as it needs. */
  grace?: number | undefined;
  /** Takes the lines of the log. Default: standard error. */
  log?: Log | undefined;
}

/** The functions, by queue. */
export type Handlers = Readonly<Record<string, Handler>>;

/** Serves queues, each with its function; `run` wraps it into a program. */
export class Worker {
  readonly #stopping = new AbortController();
  readonly #transport: AmqpTransport | GrpcTransport | HttpTransport;
  readonly #grace: number;
  readonly #log: Log;

  /**
   * @param handlers the functions, by queue
   * @param server the address of a manager that runs without a broker, `grpc://`, `grpcs://`, `http://` or `https://`, or that of a broker, `amqp://` or `amqps://`
   */
  constructor(handlers: Handlers, server: string, options: WorkerOptions = {}) {
    const { prefetch = PREFETCH_DEFAULT, lease = LEASE_SECONDS_DEFAULT, grace = Infinity, log = standardError } = options;
    const queues = Object.keys(handlers);
    if (queues.length === 0) throw new TypeError('a worker needs at least one queue');
    for (const queue of queues) {
      if (typeof handlers[queue] !== 'function') throw new TypeError(`the queue ${queue} needs a function`);
    }
    if (!(Number.isInteger(prefetch) && prefetch >= 1 && prefetch <= 65535)) throw new RangeError(`prefetch is from 1 to 65535, not ${prefetch}`);
    if (!(lease >= 1 && lease <= 43200)) throw new RangeError(`lease is from 1 to 43200 seconds, not ${lease}`);
    if (!(grace >= 0 && (grace <= GRACE_SECONDS_MAX || grace === Infinity))) throw new RangeError(`grace is from 0 to ${GRACE_SECONDS_MAX} seconds, not ${grace}`);
    // Each queue and each message in hand may wait for it.
    setMaxListeners(0, this.#stopping.signal);
    this.#grace = grace;
    this.#log = log;
    const perform = performWith(new Map(Object.entries(handlers)), log);
    const wrong = `the server's address is "${withoutPassword(server)}", but should look like http://host:8088 or grpc://host:8089 (the manager), or amqp://user:password@host:5672/%2f (a broker)`;
    const token = options.token ?? process.env['WORKFLOW_MANAGER_TOKEN'] ?? '';
    switch (/^(\w+):\/\//.exec(server)?.[1]) {
      case 'amqp':
      case 'amqps':
        this.#transport = new AmqpTransport(queues, server, prefetch, perform, log);
        break;
      case 'grpc':
      case 'grpcs':
        this.#transport = new GrpcTransport(queues, server, prefetch, lease, token, perform, log);
        break;
      case 'http':
      case 'https':
        this.#transport = new HttpTransport(queues, server, prefetch, lease, token, perform, log);
        break;
      default:
        throw new TypeError(wrong);
    }
  }

  /** Whether `stop` was called. */
  get stopping(): boolean {
    return this.#stopping.signal.aborted;
  }

  /** Takes no new message and makes `run` return once those in hand are finished. */
  stop(): void {
    this.#stopping.abort();
  }

  /** Serves until `stop` is called, through every loss of the server. */
  async run(): Promise<void> {
    const { signal } = this.#stopping;
    let timer: NodeJS.Timeout | undefined;
    signal.addEventListener('abort', () => {
      this.#log.info('stopping: what is in hand is finished');
      if (this.#grace !== Infinity) timer = setTimeout(() => this.#transport.interrupt('the worker stops'), this.#grace * 1000);
    });
    await this.#transport.run(signal);
    clearTimeout(timer);
    this.#log.info('stopped');
  }
}
