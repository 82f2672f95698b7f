/**
 * Over gRPC: messages are lent on a stream of a manager that runs without a broker, one stream for each queue. A reply stays in
 * hand until the manager has answered that it is committed, and goes out once more on the next stream if this one ends before.
 * What is in hand when a stream ends stays in hand: its lease is taken up again on the next stream, at the address of whoever is
 * active then.
 */

import { Addresses } from './addresses.js';
import { GrpcDelivery } from './grpc_delivery.js';
import { Session, type End } from './grpc_session.js';
import { loadWire, type Gone, type StepMessage, type Taken, type ToWorker, type Wire } from './grpc_wire.js';
import { checkToken } from './http_client.js';
import { ANSWER_SECONDS_MAX, ANSWERS_PER_LEASE, EXTEND_SECONDS_MIN, EXTENDS_PER_LEASE, STOP_SECONDS_MAX } from './leases.js';
import type { Log } from './log.js';
import { Backoff, inTurn, now, sleep } from './time.js';
import { errorReply, type Perform, type Reply } from './work.js';

/** As many more messages are wanted at once: few enough for the manager's `grpc.credit_max`. */
const WANT_MAX = 100;
/** How long the manager may take to end a stream after the worker's farewell, and to answer what is open before another one begins. */
const FAREWELL_SECONDS_MAX = 5;
const TICK_SECONDS_MAX = 0.25;

/** Why the manager does not take a reply that it could never take. */
const REFUSED = ['malformed', 'forbidden', 'too_large'];
const TOO_LARGE = 'too_large';
const LEASE_EXPIRED = 'lease expired';

/** What all queues have in common. */
interface Common {
  readonly wire: Wire;
  readonly addresses: Addresses;
  readonly prefetch: number;
  readonly lease: number;
  readonly token: string;
  readonly perform: Perform;
  readonly log: Log;
}

/** Takes messages from queues of a manager. */
export class GrpcTransport {
  readonly #feeds: readonly Feed[];
  readonly #lease: number;

  constructor(queues: readonly string[], server: string, prefetch: number, lease: number, token: string, perform: Perform, log: Log) {
    checkToken(token);
    const common = { addresses: new Addresses(server), wire: loadWire(), prefetch, lease, token, perform, log };
    this.#feeds = queues.map((queue) => new Feed(queue, common));
    this.#lease = lease;
  }

  /** Serves until `stopping`, through every restart of the manager. */
  async run(stopping: AbortSignal): Promise<void> {
    const seconds = Math.min(TICK_SECONDS_MAX, this.#lease / EXTENDS_PER_LEASE / 4);
    const timer = setInterval(() => this.#feeds.forEach((feed) => feed.tick()), seconds * 1000);
    await Promise.all(this.#feeds.map((feed) => feed.run(stopping)));
    clearInterval(timer);
  }

  /** Asks all functions to stop. */
  interrupt(reason: string): void {
    for (const feed of this.#feeds) feed.interrupt(reason);
  }
}

/** What brings the messages of a queue: one stream after the other. */
class Feed {
  readonly #queue: string;
  readonly #common: Common;
  readonly #log: Log;
  /** By their message ids. */
  readonly #inHand = new Map<string, GrpcDelivery>();
  /** A message that came twice has two. */
  readonly #byReceipt = new Map<string, GrpcDelivery>();
  /** How many replies have been said and not been answered. */
  #replying = 0;
  /** The stream on which things are said. */
  #session: Session | undefined;
  /** The one that is to take its place at the end. */
  #successor: Session | undefined;
  #isHandingOver = false;
  /** All whose end has not come. */
  readonly #open = new Set<Session>();
  #problem = 'no stream';
  #stoppedAt: number | undefined;
  /** Serves what is in hand at the end, while the stream that brought it ends. */
  #rest: Promise<void> | undefined;
  /** Nothing is in hand, and nothing more comes. */
  readonly #over = new AbortController();
  #changed = new AbortController();

  constructor(queue: string, common: Common) {
    this.#queue = queue;
    this.#common = common;
    this.#log = common.log;
  }

  async run(stopping: AbortSignal): Promise<void> {
    if (stopping.aborted) return;
    const stop = (): void => {
      this.#stoppedAt = now();
      if (this.#inHand.size === 0) this.#end();
      else this.#handOver();
    };
    stopping.addEventListener('abort', stop, { once: true });
    await this.#serve(() => this.#isOver || this.#rest !== undefined);
    await this.#rest;
  }

  interrupt(reason: string): void {
    for (const delivery of this.#inHand.values()) delivery.interrupt(reason);
  }

  get #isOver(): boolean {
    return this.#over.signal.aborted;
  }

  #end(): void {
    this.#over.abort();
    for (const session of this.#open) session.farewell();
  }

  // ---- one stream after the other

  async #serve(isDone: () => boolean): Promise<void> {
    const { wire, addresses, token } = this.#common;
    const backoff = new Backoff();
    let tried = new Map<string, string>();
    while (!isDone()) {
      await this.#prepare();
      if (isDone()) return;
      const session = new Session(wire, addresses.current, token, [...tried.values()].join('; '));
      this.#begin(session);
      const end = await session.run((heard) => this.#hear(session, heard));
      if (session.isEstablished) {
        backoff.reset();
        tried = new Map();
      }
      let told = end.text;
      let isElsewhere = false;
      if (!end.isRefusal) {
        tried.set(session.address.place, `${session.address.text}: ${end.text}`);
        addresses.leave(session.address);
        isElsewhere = !tried.has(addresses.current.place);
        told = `no connection to ${[...tried.values()].join('; ')}`;
      }
      this.#ended(session, end);
      if (isElsewhere || isDone()) continue;
      tried = new Map();
      const pause = backoff.next();
      this.#log[end.isRefusal ? 'error' : 'warn'](`${this.#queue}: ${told}; trying again in ${pause.toFixed(1)} s`);
      await sleep(pause, this.#over.signal);
    }
  }

  /** A stream has begun: what is in hand goes along. */
  #begin(session: Session): void {
    this.#open.add(session);
    session.hello(this.#queue, this.#common.lease);
    if (this.#session) {
      this.#successor = session;
    } else {
      this.#session = session;
      this.#isHandingOver = false;
      this.#sayLast();
    }
    for (const delivery of this.#inHand.values()) if (!delivery.last && !delivery.isOver) this.#extend(session, delivery);
    session.askForASign();
    this.#want();
    if (this.#isOver) session.farewell();
  }

  #sayLast(): void {
    for (const delivery of this.#inHand.values()) if (delivery.last && !delivery.saidOn) this.#session!.settle(delivery, delivery.last);
  }

  #extend(session: Session, delivery: GrpcDelivery): void {
    delivery.extendAt = now() + this.#common.lease / EXTENDS_PER_LEASE;
    session.extend(delivery, this.#common.lease);
  }

  #ended(session: Session, end: End): void {
    this.#problem = end.text;
    this.#open.delete(session);
    if (this.#session === session) this.#session = undefined;
    if (this.#successor === session) {
      this.#successor = undefined;
      this.#isHandingOver = false;
    }
    const left = [...this.#inHand.values()].filter((delivery) => delivery.saidOn === session);
    for (const delivery of left) delivery.saidOn = undefined;
    if (this.#session) {
      this.#sayLast();
    } else if (left.length > 0) {
      const others = left.length > 1 ? ` and ${left.length - 1} more` : '';
      this.#log.warn(`${left[0]}: its reply was not taken${others}: ${end.text}; it goes on the next stream`);
    }
    for (const { telling } of this.#inHand.values()) if (telling?.session === session) telling.answer(end.text);
    this.#tellChange();
  }

  // ---- what the manager says

  #hear(session: Session, { message, taken, lease, gone, drain, batches, batch }: ToWorker): void {
    if (!session.isEstablished) {
      session.isEstablished = true;
      if (session.tried) this.#log.info(`goes on at ${session.address.text}, after ${session.tried}`);
      this.#log.info(`consuming from ${this.#queue} at ${session.address.text}`);
    }
    if (batch) {
      for (const taken of batch.taken ?? []) this.#taken(session, taken);
      for (const message of batch.messages ?? []) this.#take(session, message);
    } else if (message) {
      this.#take(session, message);
    } else if (taken) {
      this.#taken(session, taken);
    } else if (lease) {
      session.extending.delete(lease.receipt ?? '');
      const delivery = this.#byReceipt.get(lease.receipt ?? '');
      if (delivery) delivery.hasLostLease = false;
    } else if (gone) {
      session.extending.delete(gone.receipt ?? '');
      this.#gone(session, gone);
    } else if (drain) {
      session.isDraining = true;
    } else if (batches) {
      session.allowBatches(batches);
    }
    if (session === this.#successor && session.extending.size === 0) this.#succeed(session);
    if (this.#isHandingOver) this.#tellChange();
    this.#want();
  }

  #take(session: Session, message: StepMessage): void {
    session.credit--;
    // The end of the stream gives it back.
    if (this.#stoppedAt !== undefined) return;
    const known = this.#inHand.get(message.message_id);
    if (known) {
      // It is worked on already, and stays in hand as this delivery.
      known.receipts.push(message.receipt);
      known.hasLostLease = false;
      this.#byReceipt.set(message.receipt, known);
      return;
    }
    const delivery = new GrpcDelivery(this.#queue, message, (delivery, reply) => this.#progress(delivery, reply));
    delivery.extendAt = now() + this.#common.lease / EXTENDS_PER_LEASE;
    this.#inHand.set(delivery.messageId, delivery);
    this.#byReceipt.set(delivery.receipt, delivery);
    void this.#work(delivery);
  }

  async #work(delivery: GrpcDelivery): Promise<void> {
    // Between two functions that do not wait for anything there is room for a signal.
    await inTurn();
    if (this.#stoppedAt !== undefined || delivery.isOver || delivery.hasLostLease) {
      // The end of the stream gives it back, if it has not been given back already.
      this.#settled(delivery);
      if (this.#stoppedAt !== undefined) this.#handOver(true);
      return;
    }
    const outcome = await this.#common.perform(delivery);
    // What was said before goes first.
    await delivery.said;
    if (outcome.is !== 'reply' && outcome.is !== 'return') {
      this.#settled(delivery);
      return;
    }
    delivery.last = outcome.is === 'reply' ? outcome : 'return';
    delivery.lastSince = now();
    this.#replying++;
    if (this.#session) this.#session.settle(delivery, delivery.last);
    else this.#log.warn(`${delivery}: its reply was not taken: ${this.#problem}; it goes on the next stream`);
  }

  #taken(session: Session, { receipt = '', changed = false, why_not = '', detail = '' }: Taken): void {
    session.extending.delete(receipt);
    const delivery = this.#byReceipt.get(receipt);
    if (!delivery) return;
    const why = `${why_not} ${detail}`.trim();
    const { last } = delivery;
    if (delivery.telling) {
      delivery.telling.answer(changed ? '' : why);
    } else if (!last || delivery.saidOn !== session) {
      if (REFUSED.includes(why_not)) this.#log.warn(`${delivery}: its lease could not be extended: ${why}`);
    } else if (why_not === TOO_LARGE && last !== 'return' && !last.type) {
      this.#log.error(`${delivery}: failed (not retryable): its reply is too large: ${detail}`);
      delivery.last = errorReply(`the reply has ${last.body.length} bytes: ${detail}`, false);
      session.settle(delivery, delivery.last);
    } else {
      if (REFUSED.includes(why_not)) this.#log.error(`${delivery}: the manager does not take its reply: ${why}`);
      else if (!changed) this.#log.info(`${delivery}: its reply changed nothing: ${why}`);
      this.#settled(delivery);
    }
  }

  #gone(session: Session, { receipt = '', reason = '' }: Gone): void {
    const delivery = this.#byReceipt.get(receipt);
    if (!delivery || delivery.receipt !== receipt) return;
    if (delivery.last === 'return') {
      this.#settled(delivery);
    } else if (!reason.startsWith(LEASE_EXPIRED)) {
      if (delivery.isOver) return;
      this.#log.info(`${delivery}: ${reason}`);
      delivery.end(reason);
    } else if (session === (this.#successor ?? this.#session) && !delivery.hasLostLease) {
      // Another worker may have it, or will: after a restart of the manager, say. The first reply counts.
      delivery.hasLostLease = true;
      this.#log.warn(`${delivery}: its lease has ended; it may be given out again, and the first reply counts`);
    }
  }

  #settled(delivery: GrpcDelivery): void {
    if (!this.#inHand.delete(delivery.messageId)) return;
    if (delivery.last) this.#replying--;
    for (const receipt of delivery.receipts) this.#byReceipt.delete(receipt);
    this.#want();
    if (this.#stoppedAt !== undefined && this.#inHand.size === 0) this.#end();
  }

  /** As many messages as there is room for, but not a few at a time while more answers are to come. */
  #want(): void {
    const session = this.#session;
    if (!session || session.isDraining || this.#stoppedAt !== undefined) return;
    const { prefetch } = this.#common;
    const wanted = Math.min(prefetch - this.#inHand.size, WANT_MAX) - session.credit;
    if (wanted > 0 && (session.credit === 0 || this.#replying === 0 || wanted >= Math.floor(Math.min(prefetch, WANT_MAX) / 4))) session.want(wanted);
  }

  // ---- what is said of them

  async #progress(delivery: GrpcDelivery, reply: Reply): Promise<void> {
    await this.#until(() => !this.#isHandingOver);
    const session = this.#session;
    let problem = this.#problem;
    if (session) {
      const answered = new Promise<string>((resolve) => (delivery.telling = { session, answer: resolve }));
      session.progress(delivery, reply.body);
      problem = await answered;
      delivery.telling = undefined;
      this.#tellChange();
    }
    if (problem) this.#log.warn(`${delivery}: progress could not be told: ${problem}`);
  }

  /** Extends leases, and gives up streams on which nothing is heard and replies that nobody takes. */
  tick(): void {
    const time = now();
    const { lease } = this.#common;
    // While another stream takes over, a word on this one would take a message back.
    if (this.#session && !this.#isHandingOver) {
      for (const delivery of this.#inHand.values()) if (delivery.extendAt <= time && !delivery.isOver) this.#extend(this.#session, delivery);
    }
    const seconds = this.#inHand.size > 0 ? Math.max(lease / ANSWERS_PER_LEASE, EXTEND_SECONDS_MIN) : ANSWER_SECONDS_MAX;
    for (const session of this.#open) {
      if (session.silentSince !== undefined && time - session.silentSince > seconds) session.abort(`no answer within ${seconds} s`);
      else if (session.farewellAt !== undefined && time - session.farewellAt > FAREWELL_SECONDS_MAX) session.abort('the manager has not ended the stream');
    }
    if (this.#stoppedAt === undefined) return;
    for (const delivery of [...this.#inHand.values()]) {
      if (!delivery.last || time - Math.max(delivery.lastSince, this.#stoppedAt) <= STOP_SECONDS_MAX) continue;
      this.#log.error(`${delivery}: its reply could not be sent while stopping: ${this.#problem}; the message will be given out again`);
      this.#settled(delivery);
    }
  }

  // ---- the end

  /**
   * The farewell on a stream gives back whatever it has, and counts no delivery for it. So what is being worked on goes to another
   * stream before, on which nothing is wanted.
   */
  #handOver(hasLeftSome = false): void {
    if (this.#rest || this.#isOver || !this.#session || (this.#session.credit === 0 && !hasLeftSome)) return;
    this.#isHandingOver = true;
    this.#rest = this.#serve(() => this.#isOver);
  }

  /** Nothing may be open on the old stream that would take a message back to it. */
  async #prepare(): Promise<void> {
    const old = this.#session;
    if (!old) return;
    this.#isHandingOver = true;
    await this.#until(() => this.#session !== old || (old.extending.size === 0 && ![...this.#inHand.values()].some(({ telling }) => telling)));
  }

  /** This stream has all that is being worked on. */
  #succeed(session: Session): void {
    const old = this.#session;
    this.#session = session;
    this.#successor = undefined;
    this.#isHandingOver = false;
    this.#sayLast();
    old?.farewell();
    this.#tellChange();
  }

  #tellChange(): void {
    const changed = this.#changed;
    this.#changed = new AbortController();
    changed.abort();
  }

  /** Waits for the condition, for some seconds. */
  async #until(condition: () => boolean): Promise<void> {
    const end = now() + FAREWELL_SECONDS_MAX;
    while (!condition() && now() < end) await sleep(end - now(), this.#changed.signal);
  }
}
