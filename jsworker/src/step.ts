/** What a worker's function sees: the step that it works on, and the errors that say how it failed. */

/** Thrown by a worker's function: the attempt failed, for the reason given, and another one would too. */
export class Failed extends Error {
  override name = 'Failed';
  /** Whether the step's `retry` may follow with another attempt. */
  get retryable(): boolean {
    return false;
  }
}

/** Thrown by a worker's function: the attempt failed, for the reason given; another one may succeed. */
export class Retryable extends Failed {
  override name = 'Retryable';
  override get retryable(): boolean {
    return true;
  }
}

/**
 * Returned by a worker's function: an output that is JSON already, an object as text. It is sent byte for byte, with every digit
 * of its numbers and the order of its keys.
 */
export class RawJson {
  /** The JSON text. */
  readonly text: string;

  constructor(text: string) {
    this.text = text;
  }
}

/** A step's output: an object, or nothing, which is `{}`. */
export type Output = object | null | undefined | void;

/** Takes a step's message, gives its output. */
// The message is whatever the workflow makes of it: a function says itself which type it expects.
// eslint-disable-next-line @typescript-eslint/no-explicit-any
export type Handler = (message: any, step: Step) => Output | Promise<Output>;

/** What else users are told with progress. */
export interface ProgressWords {
  /** One of the step's `statuses`: the step's status from now on. */
  status?: string;
  /** A sentence for the reader. */
  message?: string;
}

/** What a transport knows about a step. */
export interface StepFacts {
  queue: string;
  id: string;
  name: string;
  attempt: number;
  job: string;
  workflow: string;
  redelivered: boolean;
  delivery: number;
  headers: Readonly<Record<string, unknown>>;
}

/** The facts of a step, from the correlation id of its message and its headers. */
export function factsOf(message: Pick<StepFacts, 'queue' | 'redelivered' | 'delivery' | 'headers'> & { correlationId: string | undefined }): StepFacts {
  const { queue, redelivered, delivery, headers, correlationId: correlation = '' } = message;
  const [id = ''] = correlation.split(':', 1);
  return {
    queue,
    id,
    name: correlation.slice(id.length + 1),
    attempt: Number(headers['attempt'] ?? 1),
    job: String(headers['job'] ?? id),
    workflow: String(headers['workflow'] ?? ''),
    redelivered,
    delivery,
    headers,
  };
}

/** The step that a worker's function works on. */
export class Step {
  /** The queue that the message came from. */
  readonly queue: string;
  /** UUID of the job, or of the child job, that the step belongs to. */
  readonly id: string;
  /** Name of the step in its workflow. */
  readonly name: string;
  /** 1 for the first dispatch of the step, 2 for the first retry, and so on. */
  readonly attempt: number;
  /** UUID of the top-level job; the same as `id` unless this is a step of a child job. */
  readonly job: string;
  /** The workflow's name, or `<vhost>/<name>`. */
  readonly workflow: string;
  /** This message was delivered before, perhaps to a worker that died: its work may be done in part. */
  readonly redelivered: boolean;
  /** Which delivery of this message it is, from 1. A classic queue of a broker does not count: then 2 means 2 or more. */
  readonly delivery: number;
  /** All headers of the message, `traceparent` among them. */
  readonly headers: Readonly<Record<string, unknown>>;
  /** The message as it came. `JSON.parse` rounds numbers beyond 2^53, and drops the zeros at the end of `0.10`; this has all digits. */
  readonly raw: string;
  readonly #signal: () => AbortSignal;
  readonly #tell: (told: object) => Promise<void>;

  /** @internal */
  constructor(facts: StepFacts, raw: string, signal: () => AbortSignal, tell: (told: object) => Promise<void>) {
    this.queue = facts.queue;
    this.id = facts.id;
    this.name = facts.name;
    this.attempt = facts.attempt;
    this.job = facts.job;
    this.workflow = facts.workflow;
    this.redelivered = facts.redelivered;
    this.delivery = facts.delivery;
    this.headers = facts.headers;
    this.raw = raw;
    this.#signal = signal;
    this.#tell = tell;
  }

  /**
   * Aborted when the work is done for nothing: the manager has said over gRPC or HTTP that the attempt is over, or the
   * worker stops and its `grace` has passed. `signal.reason` is an error that says which.
   */
  get signal(): AbortSignal {
    return this.#signal();
  }

  /**
   * Tells users how far the work is (0 to 1), in words, or by a status; it also restarts the step's timeout.
   *
   * @returns a promise that is kept once it is told. Progress that cannot be told is a line in the log, and never rejects.
   */
  progress(fraction?: number | null, words: ProgressWords = {}): Promise<void> {
    if (fraction != null && !(fraction >= 0 && fraction <= 1)) {
      throw new RangeError(`progress is from 0 to 1, not ${fraction}`);
    }
    return this.#tell({ progress: fraction ?? undefined, message: words.message, status: words.status });
  }
}
