/** What both transports share: a message is given to its function, and what becomes of it is an outcome. */

import { reasonOf, type Log } from './log.js';
import { Failed, RawJson, Step, type Handler, type StepFacts } from './step.js';
import { now } from './time.js';
import { inSpan } from './trace.js';

/** How much of an error's text is told, in characters; the manager keeps 4 KiB. The log has all of it. */
const ERROR_CHARS_MAX = 4000;
/** Deeper ones are refused: functions that walk through a message would run out of stack. The manager takes 127 levels. */
const LEVELS_MAX = 1000;

const UTF_8 = new TextDecoder('utf-8', { fatal: true });

/** What is published, or posted. */
export interface Reply {
  body: Buffer;
  type?: 'error' | 'progress';
}

/** What became of a message. */
export type Outcome =
  | ({ is: 'reply' } & Reply)
  /** It is done, and nothing is to be said. */
  | { is: 'done' }
  /** It is rejected, as nobody could be told; why has been logged. */
  | { is: 'refusal' }
  /** It goes back to its queue. */
  | { is: 'return' }
  /** It counts no more: nothing is to be told. */
  | { is: 'dropped' };

/** Makes an outcome of a message. */
export type Perform = (delivery: Delivery) => Promise<Outcome>;

/** A message in hand, whatever brought it. */
export abstract class Delivery {
  /** What brings it, by the name that OpenTelemetry has for it. */
  abstract readonly system: string;
  abstract readonly queue: string;
  abstract readonly body: Buffer;
  abstract readonly replyTo: string;
  abstract readonly correlationId: string | undefined;
  /** A larger reply must not be sent. */
  readonly replyBytesMax: number = Infinity;
  /** Made when somebody asks for it: most functions do not. */
  #abort: AbortController | undefined;
  #isOver = false;

  abstract facts(): StepFacts;
  /** Tells users how far it is. Never rejects. */
  abstract progress(reply: Reply): Promise<void>;
  /** For the log. */
  abstract toString(): string;

  /** For the function. */
  get signal(): AbortSignal {
    return (this.#abort ??= new AbortController()).signal;
  }

  /** Nothing that is done for it counts any more. */
  get isOver(): boolean {
    return this.#isOver;
  }

  /** What is done for it from now on is done for nothing. */
  end(reason: string): void {
    this.#isOver = true;
    this.interrupt(reason);
  }

  /** Its function is asked to stop. */
  interrupt(reason: string): void {
    (this.#abort ??= new AbortController()).abort(new DOMException(reason, 'AbortError'));
  }
}

/** The usual way: the function's output is the reply, and so is its error. */
export function performWith(handlers: ReadonlyMap<string, Handler>, log: Log): Perform {
  return async (delivery) => {
    if (!delivery.replyTo) return refusal(delivery, log);
    let text, message;
    try {
      text = textOf(delivery.body);
      message = objectOf(text);
    } catch (error) {
      return unreadable(delivery, error, log);
    }
    const started = now();
    const facts = delivery.facts();
    const step = new Step(facts, text, () => delivery.signal, (told) => delivery.progress({ body: encode(told), type: 'progress' }));
    try {
      const body = await inSpan(facts, delivery.system, async () => {
        const body = bodyOf(await handlers.get(delivery.queue)!(message, step));
        if (body.length > delivery.replyBytesMax) {
          throw new Failed(`the reply has ${body.length} bytes; RabbitMQ takes ${delivery.replyBytesMax} at most`);
        }
        return body;
      });
      log.debug?.(`${delivery}: done in ${(now() - started).toFixed(3)} s`);
      return { is: 'reply', body };
    } catch (error) {
      return failure(delivery, error, log);
    }
  };
}

export function refusal(delivery: Delivery, log: Log): Outcome {
  log.error(`${delivery}: rejected: it has no reply_to, so nobody could learn its result`);
  return { is: 'refusal' };
}

export function unreadable(delivery: Delivery, error: unknown, log: Log): Outcome {
  log.error(`${delivery}: failed (not retryable): ${reasonOf(error)}`);
  return errorReply(`the worker cannot read the message: ${reasonOf(error)}`, false);
}

export function failure(delivery: Delivery, error: unknown, log: Log): Outcome {
  if (delivery.isOver) {
    log.info(`${delivery}: stopped: ${reasonOf(delivery.signal.reason)}`);
    return { is: 'dropped' };
  }
  if (delivery.signal.aborted) {
    log.warn(`${delivery}: stopped: ${reasonOf(delivery.signal.reason)}; it goes back to its queue`);
    return { is: 'return' };
  }
  if (error instanceof Failed) {
    log.warn(`${delivery}: failed (${error.retryable ? 'retryable' : 'not retryable'}): ${wordsOf(error)}`);
    return errorReply(wordsOf(error), error.retryable);
  }
  log.error(`${delivery}: failed (retryable): its function threw ${stackOf(error)}`);
  return errorReply([nameOf(error), wordsOf(error)].filter(Boolean).join(': '), true);
}

/** A reply that says that the attempt failed. */
export function errorReply(text: string, retryable: boolean): Outcome & Reply {
  if (text.length > ERROR_CHARS_MAX) {
    text = `${text.slice(0, ERROR_CHARS_MAX)}… (${text.length} characters; the worker's log has all)`;
  }
  // A surrogate that stands alone, by the cut or before, would make the text unreadable.
  return { is: 'reply', body: encode({ error: text.toWellFormed(), retryable }), type: 'error' };
}

/** The text of a body; throws if it is not UTF-8. */
export function textOf(body: Buffer): string {
  try {
    return UTF_8.decode(body);
  } catch {
    throw new SyntaxError('its body is not JSON: it is not UTF-8');
  }
}

/** The value of a JSON text; throws with what is wrong. */
export function valueOf(text: string): unknown {
  if (isTooDeep(text)) throw new SyntaxError('its body is nested too deeply');
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new SyntaxError(`its body is not JSON: ${reasonOf(error)}`);
  }
}

function objectOf(text: string): object {
  const value = valueOf(text);
  if (value === null || typeof value !== 'object' || Array.isArray(value)) {
    throw new TypeError(`its body is a JSON ${jsonType(value)}, not an object`);
  }
  return value;
}

function jsonType(value: unknown): string {
  if (value === null) return 'null';
  return Array.isArray(value) ? 'array' : typeof value;
}

function isTooDeep(text: string): boolean {
  if (text.length <= LEVELS_MAX) return false;
  let levels = 0;
  for (let at = 0; at < text.length; at++) {
    switch (text.charCodeAt(at)) {
      case 0x22: // "
        for (at++; at < text.length && text.charCodeAt(at) !== 0x22; at++) {
          if (text.charCodeAt(at) === 0x5c) at++; // \
        }
        break;
      case 0x5b: // [
      case 0x7b: // {
        if (++levels > LEVELS_MAX) return true;
        break;
      case 0x5d: // ]
      case 0x7d: // }
        levels--;
    }
  }
  return false;
}

function bodyOf(output: unknown): Buffer {
  if (output === null || output === undefined) return Buffer.from('{}');
  if (output instanceof RawJson) {
    const value: unknown = JSON.parse(output.text);
    if (jsonType(value) !== 'object') throw new TypeError(`RawJson is the text of an object, not of a JSON ${jsonType(value)}`);
    return Buffer.from(output.text);
  }
  if (typeof output !== 'object' || Array.isArray(output) || output instanceof Map || output instanceof Set) {
    throw new TypeError(`a worker's function returns an object, RawJson or nothing, not ${Array.isArray(output) ? 'an array' : nameOf(output)}`);
  }
  const body = encode(output);
  // An object can turn itself into something else, as a Date does.
  if (body[0] !== 0x7b) throw new TypeError(`a worker's function returns what is a JSON object, not ${nameOf(output)}`);
  return body;
}

/** As JSON. Numbers that JSON does not have are refused, where `JSON.stringify` alone would make them null. */
export function encode(value: unknown): Buffer {
  const text = JSON.stringify(value, (key, value: unknown) => {
    if (typeof value === 'number' && !Number.isFinite(value)) throw new TypeError(`${value} is not JSON: ${key || 'the output'} must be finite`);
    return value;
  });
  return Buffer.from(text ?? '');
}

function nameOf(error: unknown): string {
  if (typeof error !== 'object' || error === null) return error instanceof Function ? 'a function' : typeof error;
  try {
    const { name } = error as Error;
    return typeof name === 'string' && name && name !== 'Error' ? name : (error.constructor?.name ?? 'object');
  } catch {
    return 'object';
  }
}

function wordsOf(error: unknown): string {
  try {
    return error instanceof Error ? String(error.message) : String(error);
  } catch (second) {
    return `(its text cannot be read: ${nameOf(second)})`;
  }
}

function stackOf(error: unknown): string {
  try {
    if (error instanceof Error && error.stack) {
      return error.cause === undefined ? error.stack : `${error.stack}\n  caused by ${stackOf(error.cause)}`;
    }
  } catch {
    // Without it.
  }
  return `${nameOf(error)}: ${wordsOf(error)}`;
}
