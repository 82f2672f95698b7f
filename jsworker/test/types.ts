/** What programs in TypeScript may write; compiled, not run. */

import QueueListener, { Failed, RawJson, Retryable, run, Worker, type Handler, type Step } from 'jsworker';

interface Line {
  article: string;
  count: number;
}

interface Priced {
  line: Line & { cents: number };
}

const price = async (message: { line: Line }, step: Step): Promise<Priced> => {
  await step.progress(0.5, { message: 'half way' });
  await fetch('http://localhost', { signal: step.signal });
  if (step.attempt > 3) throw new Failed('no price', { cause: step.headers['traceparent'] });
  if (message.line.count < 0) throw new Retryable('no count');
  return { line: { ...message.line, cents: 250 } };
};

const raw: Handler = (_message, step) => new RawJson(step.raw);

export function program(server: string | undefined): Promise<void> {
  return run('price', price, { server, prefetch: 8, lease: 30, grace: 20, token: 'word', argv: [], log: console });
}

export const all = (): Promise<void> => run({ price, raw, nothing: () => {}, none: async () => null });

export function inside(): Worker {
  const worker: Worker = new Worker({ price, raw }, 'amqp://localhost', { prefetch: 2 });
  worker.stop();
  return worker;
}

const listener = new QueueListener('amqp://localhost', 'price', (correlationId: string, data: Line) => ({ correlationId, ...data }));
listener.connect().then(() => listener.channel?.publish('', 'price', Buffer.from('{}')));
void listener.stop();

// @ts-expect-error A function that returns no object is no worker.
export const wrong: Handler = () => 'text';
// @ts-expect-error An option with a wrong name.
void run('price', price, { prefech: 1 });
// @ts-expect-error A queue without a function.
void run('price');
