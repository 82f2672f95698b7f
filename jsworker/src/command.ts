/** `run`: a worker program's one line. Reads the command line and the environment, handles signals. */

import { constants } from 'node:os';
import { parseArgs } from 'node:util';
import type { Handler } from './step.js';
import { Worker, type Handlers, type WorkerOptions } from './worker.js';

const SERVER_DEFAULT = 'http://127.0.0.1:8088';

/** What `run` may be told; the program's command line overrides it. */
export interface RunOptions extends WorkerOptions {
  /** The address of a broker or a manager. Default: `AMQP_SERVER`, else `WORKFLOW_MANAGER_URL`, else http://127.0.0.1:8088. */
  server?: string | undefined;
  /** The command line. Default: that of the process. A program with a command line of its own passes `[]`. */
  argv?: readonly string[] | undefined;
}

/**
 * Serves one queue, `run('price', price)`, or several, `run({ a: fa, b: fb })`, until a signal.
 *
 * SIGTERM and SIGINT stop it cleanly: no new message is taken, those in hand are finished, replied and acknowledged; then the
 * promise is kept. A second signal ends the process at once; other workers then get the messages.
 */
export function run(queue: string, handler: Handler, options?: RunOptions): Promise<void>;
export function run(handlers: Handlers, options?: RunOptions): Promise<void>;
export async function run(first: string | Handlers, second?: Handler | RunOptions, third?: RunOptions): Promise<void> {
  if (typeof first === 'string') {
    if (typeof second !== 'function') throw new TypeError(`run('${first}', …) needs the function that does the work: run('${first}', handler)`);
    return serve({ [first]: second }, third ?? {});
  }
  if (typeof second === 'function') throw new TypeError('run takes a queue and a function, or one object of queues and functions, not both');
  return serve(first, second ?? {});
}

async function serve(handlers: Handlers, options: RunOptions): Promise<void> {
  const worker = workerFor(handlers, options);
  const onSignal = (signal: NodeJS.Signals) => {
    if (worker.stopping) process.exit(128 + constants.signals[signal]);
    worker.stop();
  };
  process.on('SIGTERM', onSignal);
  process.on('SIGINT', onSignal);
  try {
    await worker.run();
  } finally {
    process.off('SIGTERM', onSignal);
    process.off('SIGINT', onSignal);
  }
}

/** As the command line says; ends the process if it is wrong, or asks for help. */
function workerFor(handlers: Handlers, options: RunOptions): Worker {
  const { argv = process.argv.slice(2), server, ...others } = options;
  try {
    const { values } = parseArgs({
      args: [...argv],
      options: {
        server: { type: 'string' },
        prefetch: { type: 'string' },
        lease: { type: 'string' },
        grace: { type: 'string' },
        help: { type: 'boolean', short: 'h' },
      },
    });
    if (values.help) {
      process.stdout.write(usage(handlers, options));
      process.exit(0);
    }
    const address = values.server ?? (server || process.env['AMQP_SERVER'] || process.env['WORKFLOW_MANAGER_URL'] || SERVER_DEFAULT);
    return new Worker(handlers, address, {
      ...others,
      prefetch: number(values.prefetch) ?? options.prefetch,
      lease: number(values.lease) ?? options.lease,
      grace: number(values.grace) ?? options.grace,
    });
  } catch (error) {
    process.stderr.write(`${error instanceof Error ? error.message : error}\n\n${usage(handlers, options)}`);
    process.exit(2);
  }
}

function number(text: string | undefined): number | undefined {
  if (text === undefined) return undefined;
  // An empty text would be 0.
  return text.trim() === '' ? NaN : Number(text);
}

function usage(handlers: Handlers, { prefetch = 1, lease = 60, grace }: RunOptions): string {
  return `Worker for ${Object.keys(handlers).join(', ')}.

  --server URL   the manager, grpc://host:8089 or http://host:8088, or a broker, amqp://user:password@host:5672/%2f
                 [env: AMQP_SERVER, else WORKFLOW_MANAGER_URL] [default: ${SERVER_DEFAULT}]
  --prefetch N   messages held per queue, all worked on at once [default: ${prefetch}]
  --lease S      over gRPC and HTTP: seconds without a word of this process, after which others get its messages [default: ${lease}]
  --grace S      seconds that functions have when the worker stops, before their signal is aborted [default: ${grace ?? 'as many as they need'}]
  --help         prints this
`;
}
