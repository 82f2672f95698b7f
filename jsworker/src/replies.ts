/**
 * Over HTTP: replies that go to the manager together. Those that come while a call is under way go with the next one, so that a
 * worker with much to do makes few calls, and one with little to do waits for nobody. Each is sent until the manager has
 * committed it.
 */

import type { Answer, Client } from './http_client.js';
import { reasonOf, type Log } from './log.js';
import { Backoff, now, sleep, turn } from './time.js';
import type { Reply } from './work.js';

/** As many the manager takes in one call. */
const REPLIES_MAX = 100;
/** The bodies of one call, together. A larger reply goes alone. */
export const BYTES_MAX = 1 << 20;

const PATH = '/api/replies';
/** The answers of a manager that does not know the call. */
const UNKNOWN = [404, 405];
const LATER = 500;

/** A reply that is not committed yet. */
interface Pending {
  /** The path of the delivery as it is when it is sent; its text is for the log. */
  delivery: { readonly path: string };
  reply: Reply;
  since: number;
  /** With how it ended: false if it is to be sent alone. */
  resolve: (isSettled: boolean) => void;
}

/** Sends replies together. */
export class Replier {
  readonly #client: Pick<Client, 'post'>;
  readonly #log: Log;
  /** Of a reply that waits since then: the seconds for which it is still worth trying. */
  readonly #secondsLeft: (since: number) => number;
  #pending: Pending[] = [];
  #isSending = false;
  #isUsable = true;

  constructor(client: Pick<Client, 'post'>, log: Log, secondsLeft: (since: number) => number) {
    this.#client = client;
    this.#log = log;
    this.#secondsLeft = secondsLeft;
  }

  /** Sends it with others, until it is settled. False: it must be sent alone. */
  send(delivery: { readonly path: string }, reply: Reply): Promise<boolean> {
    if (!this.#isUsable || reply.body.length > BYTES_MAX) return Promise.resolve(false);
    return new Promise((resolve) => {
      this.#pending.push({ delivery, reply, since: now(), resolve });
      if (!this.#isSending) void this.#sendAll();
    });
  }

  async #sendAll(): Promise<void> {
    this.#isSending = true;
    // Those of the same turn of the event loop go along.
    await turn();
    const backoff = new Backoff();
    while (this.#pending.length > 0) {
      const { told, retryAfter, again } = await this.#sendSome(this.#next());
      if (again.length === 0) {
        backoff.reset();
        continue;
      }
      const pause = backoff.next(retryAfter);
      const worthwhile = again.filter((pending) => this.#isWorthwhile(pending, told));
      const [first] = worthwhile;
      if (!first) continue;
      const others = worthwhile.length > 1 ? ` and ${worthwhile.length - 1} more` : '';
      this.#log.warn(`${first.delivery}: its reply was not taken${others}: ${told}; trying again in ${pause.toFixed(1)} s`);
      this.#pending = [...worthwhile, ...this.#pending];
      await sleep(Math.min(pause, this.#secondsLeft(first.since)));
    }
    this.#isSending = false;
  }

  #next(): Pending[] {
    let count = 0;
    for (let bytes = 0; count < Math.min(this.#pending.length, REPLIES_MAX); count++) {
      bytes += this.#pending[count]!.reply.body.length;
      if (count > 0 && bytes > BYTES_MAX) break;
    }
    return this.#pending.splice(0, count);
  }

  /** Sends these. Gives those that must be sent again, and why. */
  async #sendSome(parts: Pending[]): Promise<{ told: string; retryAfter: number; again: Pending[] }> {
    const body = Buffer.concat(parts.flatMap((pending, index) => [Buffer.from(`${index ? ',' : '['}${headOf(pending)}`), pending.reply.body, Buffer.from('}')]).concat(Buffer.from(']')));
    let answer: Answer;
    try {
      answer = await this.#client.post(PATH, {}, { body });
    } catch (error) {
      return { told: reasonOf(error), retryAfter: 0, again: parts };
    }
    if (answer.status >= LATER) return { told: String(answer), retryAfter: answer.retryAfter, again: parts };
    const verdicts = answer.isOk ? answer.list() : [];
    if (verdicts.length !== parts.length) {
      if (UNKNOWN.includes(answer.status)) this.#isUsable = false;
      for (const pending of parts) pending.resolve(false);
      return { told: '', retryAfter: 0, again: [] };
    }
    let told = '';
    const again = parts.filter((pending, index) => {
      const { status, taken, reason, detail } = verdicts[index]!;
      if (typeof status === 'number' && status >= LATER) {
        told = `${status} ${detail}`;
        return true;
      }
      if (status === 200 && taken !== true) this.#log.info(`${pending.delivery}: its reply changed nothing: ${reason}`);
      pending.resolve(status === 200);
      return false;
    });
    if (again.length === parts.length) return { told, retryAfter: 0, again };
    // The manager takes others: those behind these are not to wait for them.
    for (const pending of again) pending.resolve(false);
    return { told, retryAfter: 0, again: [] };
  }

  #isWorthwhile(pending: Pending, told: string): boolean {
    if (this.#secondsLeft(pending.since) > 0) return true;
    this.#log.error(`${pending.delivery}: its reply could not be sent while stopping: ${told}; the message will be given out again`);
    pending.resolve(true);
    return false;
  }
}

function headOf({ delivery, reply }: Pending): string {
  const type = reply.type ? `,"type":"${reply.type}"` : '';
  return `{"reply_to":${JSON.stringify(delivery.path)}${type},"body":`;
}
