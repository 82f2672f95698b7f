/**
 * Over HTTP: messages are lent by a manager that runs without a broker. Their leases are extended while they are in hand, and
 * a reply is sent again and again until the manager has committed it. Whatever dies in between, the lease ends, and the manager
 * gives the message to another worker. Of several addresses the one of the active manager is in use; when it changes, what is
 * in hand stays in hand.
 */

import { Client, type Answer } from './http_client.js';
import { ANSWER_SECONDS_MAX, ANSWERS_PER_LEASE, EXTEND_SECONDS_MIN, EXTENDS_PER_LEASE, STOP_SECONDS_MAX } from './leases.js';
import { reasonOf, type Log } from './log.js';
import { partsOf, type Part } from './raw_list.js';
import { Replier } from './replies.js';
import { factsOf, type StepFacts } from './step.js';
import { Backoff, inTurn, now, sleep, turn } from './time.js';
import { Delivery, errorReply, type Outcome, type Perform, type Reply } from './work.js';

/** How long the manager holds a question for a message open; its answer may take longer by as much as any. */
const WAIT_SECONDS = 30;
/** How often is looked for leases to extend. */
const TICK_SECONDS_MAX = 0.25;
/** As many messages the manager gives at once. */
const MESSAGES_MAX = 100;

/** The answers after which it is useless to send the same reply once more. */
const REFUSED = [400, 404, 405, 409, 410, 411, 415, 422];
const NO_MESSAGE = 204;
const GONE = 410;
const TOO_LARGE = 413;
const TEXT_HEADERS = ['workflow', 'job', 'traceparent', 'tracestate'];
const NUMBER_HEADERS = ['attempt', 'depth', 'priority'];

/** Takes messages from queues of a manager. */
export class HttpTransport {
  readonly #queues: readonly string[];
  readonly #client: Client;
  readonly #prefetch: number;
  readonly #lease: number;
  readonly #perform: Perform;
  readonly #log: Log;
  /** With one message in hand at a time nothing could go together. */
  readonly #replier: Replier | undefined;
  /** By their message ids. */
  readonly #inHand = new Map<string, HttpDelivery>();
  /** How many of each queue are in hand, and whom that keeps from asking for more. */
  readonly #held = new Map<string, number>();
  readonly #whenSettled = new Set<() => void>();
  #stoppedAt?: number;

  constructor(queues: readonly string[], server: string, prefetch: number, lease: number, token: string, perform: Perform, log: Log) {
    this.#queues = queues;
    this.#client = new Client(server, token, log);
    this.#prefetch = prefetch;
    this.#lease = lease;
    this.#perform = perform;
    this.#log = log;
    if (prefetch > 1) this.#replier = new Replier(this.#client, log, (since) => this.#secondsLeft(since));
  }

  /** Serves until `stopping`, through every restart of the manager. */
  async run(stopping: AbortSignal): Promise<void> {
    stopping.addEventListener('abort', () => (this.#stoppedAt = now()), { once: true });
    const seconds = Math.min(TICK_SECONDS_MAX, this.#lease / EXTENDS_PER_LEASE / 4);
    const timer = setInterval(() => this.#extendDue(), seconds * 1000);
    await Promise.all(this.#queues.map((queue) => this.#receiveAll(queue, stopping)));
    while (this.#inHand.size > 0) await this.#oneSettled();
    clearInterval(timer);
    this.#client.close();
  }

  /** Asks all functions to stop. */
  interrupt(reason: string): void {
    for (const delivery of this.#inHand.values()) delivery.interrupt(reason);
  }

  // ---- messages

  /** Asks for as many messages of a queue as there is room for. */
  async #receiveAll(queue: string, stopping: AbortSignal): Promise<void> {
    const backoff = new Backoff();
    let isConnected = false;
    let takesSeveral = this.#prefetch > 1;
    while (!stopping.aborted) {
      const room = this.#prefetch - (this.#held.get(queue) ?? 0);
      if (room <= 0) {
        await this.#oneSettled(stopping);
        // Those that are settled with it make room too.
        if (takesSeveral) await turn();
        continue;
      }
      let told: string;
      let level: 'warn' | 'error' = 'error';
      let retryAfter = 0;
      try {
        const wait = isConnected ? WAIT_SECONDS : 0;
        const path = `/api/queue/${encodeURIComponent(queue)}/receive`;
        const max = takesSeveral ? String(Math.min(room, MESSAGES_MAX)) : undefined;
        const answer = await this.#client.post(path, { wait: `${wait}s`, lease: this.#span(), max }, { seconds: wait + ANSWER_SECONDS_MAX, signal: stopping });
        if (answer.isOk) {
          if (!isConnected) this.#log.info(`consuming from ${queue} at ${this.#client.address}`);
          isConnected = true;
          backoff.reset();
          if (answer.status === NO_MESSAGE) continue;
          if (!takesSeveral) this.#take(new HttpDelivery(this, queue, answer.headers, answer.body), stopping);
          else takesSeveral = this.#takeAll(queue, answer, stopping);
          continue;
        }
        told = String(answer);
        retryAfter = answer.retryAfter;
      } catch (error) {
        if (stopping.aborted) return;
        told = `no connection to ${reasonOf(error)}`;
        level = 'warn';
      }
      isConnected = false;
      const pause = backoff.next(retryAfter);
      this.#log[level](`${queue}: ${told}; trying again in ${pause.toFixed(1)} s`);
      await sleep(pause, stopping);
    }
  }

  /** False if they cannot be read: then they come one at a time, so that what cannot be read costs itself alone. */
  #takeAll(queue: string, answer: Answer, stopping: AbortSignal): boolean {
    let parts: Part[];
    try {
      parts = partsOf(answer.body.toString(), 'body');
    } catch (error) {
      this.#log.error(`${queue}: several messages at once cannot be read: ${reasonOf(error)}; asking for one at a time`);
      return false;
    }
    for (const { value, text } of parts) {
      const headers = Object.entries(value).map(([name, value]) => [name.replaceAll('_', '-'), String(value)] as const);
      this.#take(new HttpDelivery(this, queue, new Map(headers), Buffer.from(text ?? '')), stopping);
    }
    return true;
  }

  #take(delivery: HttpDelivery, stopping: AbortSignal): void {
    const known = this.#inHand.get(delivery.messageId);
    if (known) {
      // It is worked on already, and stays in hand as this delivery.
      known.path = delivery.path;
      return;
    }
    this.#inHand.set(delivery.messageId, delivery);
    this.#held.set(delivery.queue, (this.#held.get(delivery.queue) ?? 0) + 1);
    void this.#work(delivery, stopping);
  }

  async #work(delivery: HttpDelivery, stopping: AbortSignal): Promise<void> {
    delivery.extendAt = now() + this.#lease / EXTENDS_PER_LEASE;
    try {
      // Between two functions that do not wait for anything there is room for a signal.
      await inTurn();
      await this.#settle(delivery, stopping.aborted ? { is: 'return' } : await this.#perform(delivery));
    } finally {
      this.#inHand.delete(delivery.messageId);
      this.#held.set(delivery.queue, this.#held.get(delivery.queue)! - 1);
      for (const tell of this.#whenSettled) tell();
    }
  }

  #oneSettled(stopping?: AbortSignal): Promise<void> {
    if (stopping?.aborted) return Promise.resolve();
    return new Promise((resolve) => {
      const tell = (): void => {
        this.#whenSettled.delete(tell);
        stopping?.removeEventListener('abort', tell);
        resolve();
      };
      this.#whenSettled.add(tell);
      stopping?.addEventListener('abort', tell);
    });
  }

  async #settle(delivery: HttpDelivery, outcome: Outcome): Promise<void> {
    // What was said before goes first.
    await delivery.said;
    switch (outcome.is) {
      case 'reply':
        return this.#reply(delivery, outcome);
      case 'return':
        return this.#nack(delivery, true);
      case 'refusal':
        return this.#nack(delivery, false);
      case 'done':
      case 'dropped':
        return;
    }
  }

  async #nack(delivery: HttpDelivery, requeue: boolean): Promise<void> {
    try {
      const answer = await this.#client.post(delivery.pathOf('nack'), requeue ? { requeue: 'true' } : {});
      if (!answer.isOk && answer.status !== GONE) this.#log.warn(`${delivery}: could not be given back: ${answer}; its lease ends by itself`);
    } catch (error) {
      this.#log.warn(`${delivery}: could not be given back: ${reasonOf(error)}; its lease ends by itself`);
    }
  }

  // ---- what is said of them

  #secondsLeft(since: number): number {
    return this.#stoppedAt === undefined ? Infinity : STOP_SECONDS_MAX - (now() - Math.max(since, this.#stoppedAt));
  }

  /** Sends it until the manager has committed it. */
  async #reply(delivery: HttpDelivery, reply: Reply): Promise<void> {
    if (this.#replier && (await this.#replier.send(delivery, reply))) return;
    const since = now();
    const backoff = new Backoff();
    for (;;) {
      let told: string;
      let retryAfter = 0;
      try {
        const answer = await this.#client.post(delivery.pathOf('reply'), { type: reply.type }, { body: reply.body });
        if (answer.isOk) {
          const { taken, reason } = answer.json();
          if (taken !== true) this.#log.info(`${delivery}: its reply changed nothing: ${reason}`);
          return;
        }
        if (answer.status === TOO_LARGE && !reply.type) {
          this.#log.error(`${delivery}: failed (not retryable): its reply is too large: ${answer}`);
          reply = errorReply(`the reply has ${reply.body.length} bytes: ${answer.detail}`, false);
          continue;
        }
        if (REFUSED.includes(answer.status) || answer.status === TOO_LARGE) {
          this.#log.error(`${delivery}: the manager does not take its reply: ${answer}`);
          return;
        }
        told = String(answer);
        retryAfter = answer.retryAfter;
      } catch (error) {
        told = reasonOf(error);
      }
      if (this.#secondsLeft(since) <= 0) {
        this.#log.error(`${delivery}: its reply could not be sent while stopping: ${told}; the message will be given out again`);
        return;
      }
      const pause = backoff.next(retryAfter);
      this.#log.warn(`${delivery}: its reply was not taken: ${told}; trying again in ${pause.toFixed(1)} s`);
      await sleep(Math.min(pause, this.#secondsLeft(since)));
    }
  }

  /** For deliveries. Never rejects. */
  async progress(delivery: HttpDelivery, reply: Reply): Promise<void> {
    try {
      const answer = await this.#client.post(delivery.pathOf('reply'), { type: reply.type }, { body: reply.body });
      if (!answer.isOk) this.#log.warn(`${delivery}: progress could not be told: ${answer}`);
    } catch (error) {
      this.#log.warn(`${delivery}: progress could not be told: ${reasonOf(error)}`);
    }
  }

  // ---- leases

  #extendDue(): void {
    const time = now();
    for (const delivery of this.#inHand.values()) {
      if (delivery.extendAt > time || delivery.isOver) continue;
      delivery.extendAt = Infinity;
      void this.#extend(delivery).then(() => (delivery.extendAt = now() + this.#lease / EXTENDS_PER_LEASE));
    }
  }

  async #extend(delivery: HttpDelivery): Promise<void> {
    const seconds = Math.max(this.#lease / ANSWERS_PER_LEASE, EXTEND_SECONDS_MIN);
    let answer: Answer;
    try {
      answer = await this.#client.post(delivery.pathOf('extend'), { lease: this.#span() }, { seconds });
    } catch {
      // Whether the manager is away is told by those who ask for messages or reply.
      return;
    }
    if (answer.status === GONE && answer.detail.startsWith('lease expired')) {
      // Another worker may have it, or will: after a restart of the manager, say. The first reply counts.
      if (!delivery.hasLostLease) this.#log.warn(`${delivery}: its lease has ended; it may be given out again, and the first reply counts`);
      delivery.hasLostLease = true;
    } else if (answer.status === GONE) {
      this.#log.info(`${delivery}: ${answer.detail}`);
      delivery.end(answer.detail);
    } else if (answer.isOk) {
      delivery.hasLostLease = false;
    } else {
      this.#log.warn(`${delivery}: its lease could not be extended: ${answer}`);
    }
  }

  #span(): string {
    return `${Math.round(this.#lease * 1000)}ms`;
  }
}

class HttpDelivery extends Delivery {
  override readonly system = 'workflow_manager';
  override readonly queue: string;
  override readonly body: Buffer;
  readonly messageId: string;
  /** That of its replies; another one if the message has come again meanwhile. */
  path: string;
  extendAt = 0;
  hasLostLease = false;
  /** What was said so far has been told. */
  said: Promise<void> = Promise.resolve();
  readonly #headers: ReadonlyMap<string, string>;
  readonly #transport: HttpTransport;

  constructor(transport: HttpTransport, queue: string, headers: ReadonlyMap<string, string>, body: Buffer) {
    super();
    this.#transport = transport;
    this.#headers = headers;
    this.queue = queue;
    this.body = body;
    this.path = headers.get('reply-to') ?? '';
    this.messageId = headers.get('message-id') ?? this.path;
  }

  override get replyTo(): string {
    return this.path;
  }

  override get correlationId(): string | undefined {
    return this.#headers.get('correlation-id');
  }

  /** The path of a call about this delivery: that of its replies, or one beside it. */
  pathOf(word: 'reply' | 'extend' | 'nack'): string {
    return this.path.replace(/reply(?=$|\?)/, word);
  }

  override facts(): StepFacts {
    const headers: Record<string, string | number> = {};
    for (const name of TEXT_HEADERS) if (this.#headers.has(name)) headers[name] = this.#headers.get(name)!;
    for (const name of NUMBER_HEADERS) if (this.#headers.has(name)) headers[name] = Number(this.#headers.get(name));
    const delivery = Number(this.#headers.get('delivery') ?? 1);
    return factsOf({ queue: this.queue, correlationId: this.correlationId, redelivered: delivery !== 1, delivery, headers });
  }

  override progress(reply: Reply): Promise<void> {
    // One after the other, in the order in which the function has said it.
    this.said = this.said.then(() => this.#transport.progress(this, reply));
    return this.said;
  }

  override toString(): string {
    return `${this.queue}: message ${this.messageId}`;
  }
}
