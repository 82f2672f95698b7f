/**
 * Over AMQP. The order is the promise: call the function, publish its reply, have the broker's confirm, acknowledge the
 * message. Whatever dies in between, the broker still has the message and delivers it again. No reply waits for the confirm of
 * another.
 *
 * What is in hand outlives its connection. A function that has begun goes on, and its reply is published on the next connection,
 * whatever has become of the delivery. If the broker gives the message to this process once more, it is not begun a second time:
 * it is acknowledged with the reply of the first, also if that was made a while ago.
 */

import { randomUUID } from 'node:crypto';
import { hostname } from 'node:os';
import type { Duplex } from 'node:stream';
import type { ChannelModel, ConfirmChannel, ConsumeMessage } from 'amqplib';
import { reasonOf, withoutPassword, type Log } from './log.js';
import { factsOf, type StepFacts } from './step.js';
import { aborted, Backoff, inTurn, now, sleep } from './time.js';
import { Delivery, type Perform, type Reply } from './work.js';

/** How long a reply that the broker cannot route, or refuses, is held and sent again before the message is requeued. */
const UNROUTABLE_SECONDS_MAX = 60;
const CONNECT_SECONDS_MAX = 10;
const CLOSE_SECONDS_MAX = 5;
/** A larger message makes RabbitMQ close the channel, and the worker would meet it again and again. */
const REPLY_BYTES_MAX = 128 * 1024 * 1024;

/** As many replies are remembered, and as many of their bytes. */
const DONE_MAX = 1000;
const DONE_BYTES_MAX = 16 * 1024 * 1024;

const ACCESS_REFUSED = 403;
const PRECONDITION_FAILED = 406;

/** Serves queues of a broker. */
export class AmqpTransport {
  readonly #queues: readonly string[];
  readonly #server: string;
  readonly #prefetch: number;
  readonly #perform: Perform;
  readonly #log: Log;
  /** By their keys. */
  readonly inHand = new Map<unknown, AmqpDelivery>();
  readonly done = new Done();
  /** The connection in use. */
  session?: Session | undefined;
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
    return this.session?.connection;
  }

  get channel(): ConfirmChannel | undefined {
    return this.session?.channel;
  }

  /** Serves until `stopping`, through every loss of the broker. */
  async run(stopping: AbortSignal): Promise<void> {
    const address = withoutPassword(this.#server);
    const backoff = new Backoff();
    while (!stopping.aborted) {
      try {
        const session = await Session.open(this, this.#server, this.#queues, this.#prefetch, this.#perform, stopping, this.#log);
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
        this.session = undefined;
      }
    }
  }

  /** For deliveries: publishes what is said of one, on whatever connection there is. */
  publish(delivery: AmqpDelivery, reply: Reply): ReturnType<Session['publish']> {
    return this.session ? this.session.publish(delivery, reply) : Promise.reject(new Error('there is no connection'));
  }

  /** Asks all functions to stop. */
  interrupt(reason: string): void {
    for (const delivery of this.inHand.values()) delivery.interrupt(reason);
  }
}

/** The replies of what was done last, by the keys of their messages. */
export class Done {
  readonly #replies = new Map<unknown, Reply>();
  readonly #max: number;
  readonly #bytesMax: number;
  #bytes = 0;

  constructor(max = DONE_MAX, bytesMax = DONE_BYTES_MAX) {
    this.#max = max;
    this.#bytesMax = bytesMax;
  }

  find(key: unknown): Reply | undefined {
    return this.#replies.get(key);
  }

  add(key: unknown, reply: Reply): void {
    this.#remove(key);
    this.#replies.set(key, reply);
    this.#bytes += reply.body.length;
    for (const oldest of this.#replies.keys()) {
      if (this.#replies.size <= this.#max && this.#bytes <= this.#bytesMax) break;
      this.#remove(oldest);
    }
  }

  #remove(key: unknown): void {
    this.#bytes -= this.#replies.get(key)?.body.length ?? 0;
    this.#replies.delete(key);
  }
}

/** One connection to the broker, from its opening to its end. */
class Session {
  readonly connection: ChannelModel;
  /** Set before `open` is over. */
  channel!: ConfirmChannel;
  readonly #transport: AmqpTransport;
  readonly #prefetch: number;
  readonly #perform: Perform;
  readonly #stopping: AbortSignal;
  readonly #log: Log;
  readonly #lost = new AbortController();
  /** By consumer tag. */
  readonly #consumers = new Map<string, string>();
  /** The ids of messages that the broker could not route. */
  readonly #returned = new Set<string>();
  #whenSettled?: () => void;

  static async open(transport: AmqpTransport, server: string, queues: readonly string[], prefetch: number, perform: Perform, stopping: AbortSignal, log: Log): Promise<Session> {
    // Loaded where it is used: over HTTP it is not needed.
    const amqplib = await import('amqplib');
    const connection = await amqplib.connect(server, {
      timeout: CONNECT_SECONDS_MAX * 1000,
      noDelay: true,
      clientProperties: { connection_name: `jsworker ${queues.join(',')} ${hostname()}:${process.pid}` },
    });
    const session = new Session(transport, connection, prefetch, perform, stopping, log);
    try {
      await session.#start(queues);
    } catch (error) {
      await session.#close();
      throw session.#lost.signal.aborted ? session.#lost.signal.reason : error;
    }
    return session;
  }

  private constructor(transport: AmqpTransport, connection: ChannelModel, prefetch: number, perform: Perform, stopping: AbortSignal, log: Log) {
    this.#transport = transport;
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
      while (this.#transport.inHand.size > 0 && !lost.aborted) {
        await Promise.race([new Promise<void>((resolve) => (this.#whenSettled = resolve)), aborted(lost)]);
      }
      lost.throwIfAborted();
    } finally {
      const unacknowledged = [...this.#transport.inHand.values()].filter((delivery) => delivery.session === this).length;
      if (unacknowledged > 0) this.#log.warn(`${unacknowledged} unacknowledged messages will be delivered again`);
      await this.#close();
    }
  }

  get isLost(): boolean {
    return this.#lost.signal.aborted;
  }

  /** Publishes what is said of a message. Rejects if the connection is lost before the broker has answered. */
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
    this.#transport.session = this;
    for (const delivery of this.#transport.inHand.values()) if (delivery.reply) this.reply(delivery, delivery.reply);
    for (const queue of queues) await this.#subscribe(queue);
  }

  async #subscribe(queue: string): Promise<void> {
    await this.#declare(queue);
    const { consumerTag } = await this.channel.consume(queue, (message) => {
      if (message) this.#take(new AmqpDelivery(this.#transport, this, queue, message, this.#log));
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
    const { inHand, done } = this.#transport;
    const known = inHand.get(delivery.key);
    if (known) {
      this.#log.info(`${known}: it came again, and is in hand already`);
      // The broker has taken back what was delivered over another connection.
      known.messages = [...known.messagesOf(this), delivery.message];
      known.session = this;
      return;
    }
    inHand.set(delivery.key, delivery);
    delivery.reply = delivery.message.fields.redelivered ? done.find(delivery.key) : undefined;
    if (delivery.reply) {
      this.#log.info(`${delivery}: it came again, and is done already`);
      this.reply(delivery, delivery.reply);
      return;
    }
    this.#work(delivery).catch((error: unknown) => this.#lose(error));
  }

  async #work(delivery: AmqpDelivery): Promise<void> {
    // Between two functions that do not wait for anything there is room for a signal.
    await inTurn();
    if (this.#stopping.aborted) return delivery.session.#nack(delivery, true);
    // The broker delivers it again.
    if (delivery.session.isLost) return this.#forget(delivery);
    const outcome = await this.#perform(delivery);
    const { session } = delivery;
    switch (outcome.is) {
      case 'reply':
        delivery.reply = outcome;
        if (this.#transport.session?.isLost === false) this.#transport.session.reply(delivery, outcome);
        else this.#log.info(`${delivery}: done without a connection; its reply goes on the next`);
        return;
      case 'done':
        return session.#ack(delivery);
      case 'refusal':
        return session.#nack(delivery, false);
      case 'return':
        return session.#nack(delivery, true);
      case 'dropped':
        return this.#forget(delivery);
    }
  }

  /** Has it published until the broker has it; then the delivery is settled. If the connection is lost before, the next one does it. */
  reply(delivery: AmqpDelivery, reply: Reply): void {
    this.#reply(delivery, reply).catch((error: unknown) => this.#lose(error));
  }

  async #reply(delivery: AmqpDelivery, reply: Reply): Promise<void> {
    const since = now();
    const backoff = new Backoff();
    while (!this.isLost) {
      const answer = await this.publish(delivery, reply);
      if (answer === 'confirmed') {
        // Only after the confirm: a worker that died before it would have lost the reply.
        if (delivery.key !== delivery) this.#transport.done.add(delivery.key, reply);
        return this.#ack(delivery);
      }
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
    const messages = this.isLost ? [] : delivery.messagesOf(this);
    this.#forget(delivery);
    for (const message of messages) this.channel.ack(message);
  }

  #nack(delivery: AmqpDelivery, requeue: boolean): void {
    const messages = this.isLost ? [] : delivery.messagesOf(this);
    this.#forget(delivery);
    for (const message of messages) this.channel.nack(message, false, requeue);
  }

  #forget(delivery: AmqpDelivery): void {
    const { inHand, session } = this.#transport;
    inHand.delete(delivery.key);
    if (inHand.size === 0 && session) session.#whenSettled?.();
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
  /** What has delivered it last, with all that must be acknowledged there. */
  session: Session;
  messages: readonly ConsumeMessage[];
  /** What its function has made. */
  reply: Reply | undefined;
  /** The same for each delivery of the message, if it can be known by something. */
  readonly key: unknown;
  readonly #transport: AmqpTransport;
  readonly #log: Log;

  constructor(transport: AmqpTransport, session: Session, queue: string, message: ConsumeMessage, log: Log) {
    super();
    this.#transport = transport;
    this.session = session;
    this.queue = queue;
    this.message = message;
    this.messages = [message];
    const { messageId, correlationId, replyTo } = message.properties;
    this.key = messageId ? JSON.stringify([queue, messageId, correlationId, replyTo]) : this;
    this.#log = log;
  }

  /** What must be acknowledged there; nothing, if what has delivered it is lost. */
  messagesOf(session: Session): readonly ConsumeMessage[] {
    return this.session === session ? this.messages : [];
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
      const answer = await this.#transport.publish(this, reply);
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
