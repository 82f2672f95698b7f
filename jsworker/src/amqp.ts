/**
 * Over AMQP. The order is the promise: call the function, publish its reply, wait for the broker's confirm, acknowledge the
 * message. Whatever dies in between, the broker still has the message and delivers it again.
 */

import { randomUUID } from 'node:crypto';
import { hostname } from 'node:os';
import type { Duplex } from 'node:stream';
import type { ChannelModel, ConfirmChannel, ConsumeMessage } from 'amqplib';
import { reasonOf, withoutPassword, type Log } from './log.js';
import { factsOf, type StepFacts } from './step.js';
import { aborted, Backoff, now, sleep, turn } from './time.js';
import { Delivery, type Outcome, type Perform, type Reply } from './work.js';

/** How long a reply that the broker cannot route, or refuses, is held and sent again before the message is requeued. */
const UNROUTABLE_SECONDS_MAX = 60;
const CONNECT_SECONDS_MAX = 10;
const CLOSE_SECONDS_MAX = 5;
/** A larger message makes RabbitMQ close the channel, and the worker would meet it again and again. */
const REPLY_BYTES_MAX = 128 * 1024 * 1024;

const ACCESS_REFUSED = 403;
const PRECONDITION_FAILED = 406;

/** Serves queues of a broker. */
export class AmqpTransport {
  readonly #queues: readonly string[];
  readonly #server: string;
  readonly #prefetch: number;
  readonly #perform: Perform;
  readonly #log: Log;
  #session?: Session;
  /** Told of each connection, once it consumes. */
  onConsuming?: () => void;

  /** A `prefetch` of 0 is no limit. */
  constructor(queues: readonly string[], server: string, prefetch: number, perform: Perform, log: Log) {
    if (!URL.canParse(server)) throw new TypeError(`the broker's address is "${withoutPassword(server)}", but should look like amqp://user:password@host:5672/%2f`);
    this.#queues = queues;
    this.#server = server;
    this.#prefetch = prefetch;
    this.#perform = perform;
    this.#log = log;
  }

  get connection(): ChannelModel | undefined {
    return this.#session?.connection;
  }

  get channel(): ConfirmChannel | undefined {
    return this.#session?.channel;
  }

  /** Serves until `stopping`, through every loss of the broker. */
  async run(stopping: AbortSignal): Promise<void> {
    const address = withoutPassword(this.#server);
    const backoff = new Backoff();
    while (!stopping.aborted) {
      try {
        const session = await Session.open(this.#server, this.#queues, this.#prefetch, this.#perform, stopping, this.#log);
        this.#session = session;
        this.#log.info(`consuming from ${this.#queues.join(', ')} at ${address}`);
        this.onConsuming?.();
        backoff.reset();
        await session.serve();
      } catch (error) {
        if (stopping.aborted) {
          this.#log.warn(`lost the connection to ${address} while stopping: ${reasonOf(error)}`);
          break;
        }
        const pause = backoff.next();
        this.#log.warn(`no connection to ${address}: ${reasonOf(error)}; trying again in ${pause.toFixed(1)} s`);
        await sleep(pause, stopping);
      } finally {
        this.#session = undefined;
      }
    }
  }

  /** Asks all functions to stop. */
  interrupt(reason: string): void {
    this.#session?.interrupt(reason);
  }
}

/** One connection to the broker, from its opening to its end. */
class Session {
  readonly connection: ChannelModel;
  /** Set before `open` is over. */
  channel!: ConfirmChannel;
  readonly #prefetch: number;
  readonly #perform: Perform;
  readonly #stopping: AbortSignal;
  readonly #log: Log;
  readonly #lost = new AbortController();
  readonly #unsettled = new Set<AmqpDelivery>();
  /** By consumer tag. */
  readonly #consumers = new Map<string, string>();
  /** The ids of messages that the broker could not route. */
  readonly #returned = new Set<string>();
  #whenSettled?: () => void;

  static async open(server: string, queues: readonly string[], prefetch: number, perform: Perform, stopping: AbortSignal, log: Log): Promise<Session> {
    // Loaded where it is used: over HTTP it is not needed.
    const amqplib = await import('amqplib');
    const connection = await amqplib.connect(server, {
      timeout: CONNECT_SECONDS_MAX * 1000,
      noDelay: true,
      clientProperties: { connection_name: `jsworker ${queues.join(',')} ${hostname()}:${process.pid}` },
    });
    const session = new Session(connection, prefetch, perform, stopping, log);
    try {
      await session.#start(queues);
    } catch (error) {
      await session.#close();
      throw session.#lost.signal.aborted ? session.#lost.signal.reason : error;
    }
    return session;
  }

  private constructor(connection: ChannelModel, prefetch: number, perform: Perform, stopping: AbortSignal, log: Log) {
    this.connection = connection;
    this.#prefetch = prefetch;
    this.#perform = perform;
    this.#stopping = stopping;
    this.#log = log;
    connection.on('error', (error: Error) => this.#lose(error));
    connection.on('close', (error?: Error) => this.#lose(error ?? new Error('the connection was closed')));
  }

  /** Takes messages and settles them until the worker stops and nothing is in hand. Throws if the connection is lost. */
  async serve(): Promise<void> {
    const lost = this.#lost.signal;
    await Promise.race([aborted(this.#stopping, lost), aborted(lost)]);
    try {
      lost.throwIfAborted();
      await this.#takeNoMore();
      while (this.#unsettled.size > 0 && !lost.aborted) {
        await Promise.race([new Promise<void>((resolve) => (this.#whenSettled = resolve)), aborted(lost)]);
      }
      lost.throwIfAborted();
    } finally {
      if (this.#unsettled.size > 0) this.#log.warn(`${this.#unsettled.size} unacknowledged messages will be delivered again`);
      await this.#close();
    }
  }

  interrupt(reason: string): void {
    for (const delivery of this.#unsettled) delivery.interrupt(reason);
  }

  /** For deliveries: publishes what is said of one. Rejects if the connection is lost before the broker has answered. */
  publish(delivery: AmqpDelivery, reply: Reply): Promise<'confirmed' | 'does not exist' | 'refuses messages'> {
    return new Promise((resolve, reject) => {
      this.#lost.signal.throwIfAborted();
      const messageId = randomUUID();
      const options = {
        contentType: 'application/json',
        persistent: true,
        mandatory: true,
        messageId,
        ...(delivery.correlationId !== undefined && { correlationId: delivery.correlationId }),
        ...(reply.type && { type: reply.type }),
        headers: delivery.givenBack,
      };
      this.channel.publish('', delivery.replyTo, reply.body, options, (error: Error | null) => {
        // The broker returns what it cannot route before it confirms it.
        const isReturned = this.#returned.delete(messageId);
        if (error === null) resolve(isReturned ? 'does not exist' : 'confirmed');
        else if (error.message === 'message nacked') resolve('refuses messages');
        else reject(error);
      });
    });
  }

  async #start(queues: readonly string[]): Promise<void> {
    this.channel = await this.connection.createConfirmChannel();
    this.channel.on('error', (error: Error) => this.#lose(error));
    // A connection that is closed closes its channels first, and tells its reason then.
    this.channel.on('close', () => queueMicrotask(() => this.#lose(new Error('the channel was closed'))));
    this.channel.on('return', ({ properties }) => this.#returned.add(properties.messageId));
    await this.channel.prefetch(this.#prefetch);
    for (const queue of queues) await this.#subscribe(queue);
  }

  async #subscribe(queue: string): Promise<void> {
    await this.#declare(queue);
    const { consumerTag } = await this.channel.consume(queue, (message) => {
      if (message) this.#take(new AmqpDelivery(this, queue, message, this.#log));
      else this.#subscribeAgain(queue);
    });
    this.#consumers.set(consumerTag, queue);
  }

  async #declare(queue: string): Promise<void> {
    // A refused declaration closes its channel, so each has one of its own.
    const channel = await this.connection.createChannel();
    channel.on('error', () => {});
    try {
      await channel.assertQueue(queue, { durable: true });
      await channel.close();
    } catch (error) {
      const { code } = error as { code?: number };
      if (code !== PRECONDITION_FAILED && code !== ACCESS_REFUSED) throw error;
      this.#log.info(`queue ${queue} exists with other arguments, or may not be declared; used as it is: ${reasonOf(error)}`);
    }
  }

  #subscribeAgain(queue: string): void {
    for (const [tag, name] of this.#consumers) {
      if (name === queue) this.#consumers.delete(tag);
    }
    if (this.#stopping.aborted || this.#lost.signal.aborted) return;
    this.#log.warn(`queue ${queue} was deleted; declaring it again`);
    this.#subscribe(queue).catch((error: unknown) => this.#lose(error));
  }

  #take(delivery: AmqpDelivery): void {
    this.#unsettled.add(delivery);
    this.#work(delivery).catch((error: unknown) => this.#lose(error));
  }

  async #work(delivery: AmqpDelivery): Promise<void> {
    // Between two functions that do not wait for anything there is room for a signal.
    await turn();
    if (this.#stopping.aborted) return this.#nack(delivery, true);
    if (delivery.isOver) return;
    const outcome = await this.#perform(delivery);
    if (this.#lost.signal.aborted) {
      if (outcome.is === 'reply') this.#log.warn(`${delivery}: done, but its connection was lost; the broker delivers it again`);
      return;
    }
    await this.#settle(delivery, outcome);
  }

  async #settle(delivery: AmqpDelivery, outcome: Outcome): Promise<void> {
    switch (outcome.is) {
      case 'reply':
        return this.#reply(delivery, outcome);
      case 'done':
        return this.#ack(delivery);
      case 'refusal':
        return this.#nack(delivery, false);
      case 'return':
        return this.#nack(delivery, true);
      case 'dropped':
        return;
    }
  }

  async #reply(delivery: AmqpDelivery, reply: Reply): Promise<void> {
    const since = now();
    const backoff = new Backoff();
    for (;;) {
      const answer = await this.publish(delivery, reply);
      // Only after the confirm: a worker that died before it would have lost the reply.
      if (answer === 'confirmed') return this.#ack(delivery);
      const told = `${delivery}: its reply queue "${delivery.replyTo}" ${answer}`;
      if (this.#stopping.aborted || now() - since > UNROUTABLE_SECONDS_MAX) {
        this.#log.error(`${told}; giving the message back`);
        return this.#nack(delivery, true);
      }
      const pause = backoff.next();
      this.#log.warn(`${told}; trying again in ${pause.toFixed(1)} s`);
      await sleep(pause, this.#stopping, this.#lost.signal);
    }
  }

  #ack(delivery: AmqpDelivery): void {
    this.channel.ack(delivery.message);
    this.#settled(delivery);
  }

  #nack(delivery: AmqpDelivery, requeue: boolean): void {
    this.channel.nack(delivery.message, false, requeue);
    this.#settled(delivery);
  }

  #settled(delivery: AmqpDelivery): void {
    this.#unsettled.delete(delivery);
    if (this.#unsettled.size === 0) this.#whenSettled?.();
  }

  async #takeNoMore(): Promise<void> {
    const tags = [...this.#consumers.keys()];
    this.#consumers.clear();
    await Promise.all(tags.map((tag) => this.channel.cancel(tag)));
  }

  /** The connection, or the channel, is no more: the broker delivers again what was not acknowledged. */
  #lose(error: unknown): void {
    if (this.#lost.signal.aborted) return;
    this.#lost.abort(error instanceof Error ? error : new Error(String(error)));
    for (const delivery of this.#unsettled) delivery.end('the connection to the broker was lost; the message is delivered again');
  }

  async #close(): Promise<void> {
    const lost = this.#lost.signal;
    const closing = new AbortController();
    const close = async () => {
      // The channel first: what it has still to send goes before its own farewell, but not before the connection's.
      if (!lost.aborted) await this.channel?.close();
      await this.connection.close();
    };
    const closed = close().catch(() => {}).finally(() => closing.abort());
    await Promise.race([closed, sleep(CLOSE_SECONDS_MAX, closing.signal)]);
    // Whatever has not been said by now; a peer that does not answer must not keep the process alive.
    (this.connection.connection as { stream?: Duplex }).stream?.destroy();
  }
}

class AmqpDelivery extends Delivery {
  override readonly system = 'rabbitmq';
  override readonly queue: string;
  override readonly replyBytesMax = REPLY_BYTES_MAX;
  readonly message: ConsumeMessage;
  readonly #session: Session;
  readonly #log: Log;

  constructor(session: Session, queue: string, message: ConsumeMessage, log: Log) {
    super();
    this.#session = session;
    this.queue = queue;
    this.message = message;
    this.#log = log;
  }

  override get body(): Buffer {
    return this.message.content;
  }

  override get replyTo(): string {
    return this.message.properties.replyTo ?? '';
  }

  override get correlationId(): string | undefined {
    return this.message.properties.correlationId;
  }

  /** The headers of what is said of this message: with its attempt, so that a late failure counts for no other. */
  get givenBack(): object {
    const attempt: unknown = this.message.properties.headers?.['attempt'];
    return typeof attempt === 'number' || (typeof attempt === 'string' && attempt.length < 20) ? { attempt } : {};
  }

  override facts(): StepFacts {
    const { properties, fields } = this.message;
    const headers: Record<string, unknown> = properties.headers ?? {};
    // A quorum queue counts the deliveries before this one.
    const before = Number(headers['x-delivery-count'] ?? (fields.redelivered ? 1 : 0));
    return factsOf({ queue: this.queue, correlationId: this.correlationId, redelivered: fields.redelivered, delivery: before + 1, headers });
  }

  override async progress(reply: Reply): Promise<void> {
    try {
      const answer = await this.#session.publish(this, reply);
      if (answer !== 'confirmed') this.#log.warn(`${this}: progress could not be told: its reply queue "${this.replyTo}" ${answer}`);
    } catch (error) {
      this.#log.warn(`${this}: progress could not be told: ${reasonOf(error)}`);
    }
  }

  override toString(): string {
    const { messageId, correlationId } = this.message.properties;
    return `${this.queue}: message ${messageId ?? correlationId ?? this.message.fields.deliveryTag}`;
  }
}
