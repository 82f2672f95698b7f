/** `QueueListener`: what workers of earlier days import, with safe acknowledgements inside. */

import type { ChannelModel, ConfirmChannel } from 'amqplib';
import { AmqpTransport } from './amqp.js';
import { standardError } from './log.js';
import { now } from './time.js';
import { encode, failure, refusal, textOf, unreadable, valueOf, type Delivery, type Outcome } from './work.js';

/**
 * Takes the `correlation_id` of a message and its body, read as JSON. What it returns, or promises, is the reply; nothing, or
 * anything else that is false, means that no reply is sent.
 */
// eslint-disable-next-line @typescript-eslint/no-explicit-any
export type MessageHandler = (correlationId: string, data: any) => any;

/**
 * Listens to one queue of a broker. New workers use `run`, which tells a function more and takes more from it.
 *
 * As many messages are worked on at once as the queue has.
 */
export class QueueListener {
  /** Itself: programs in ECMAScript modules found it here when this package was CommonJS. */
  static readonly default = QueueListener;
  readonly amqpServer: string;
  readonly queueName: string;
  readonly handler: MessageHandler;
  #transport?: AmqpTransport;
  #stopping?: AbortController;
  #running?: Promise<void>;

  /**
   * @param amqpServer the broker's address, such as amqp://guest:guest@localhost:5672/
   * @param queueName the worker's queue
   * @param handler does the work
   */
  constructor(amqpServer: string, queueName: string, handler: MessageHandler) {
    this.amqpServer = amqpServer;
    this.queueName = queueName;
    this.handler = handler;
  }

  /** The connection, while there is one. */
  get connection(): ChannelModel | undefined {
    return this.#transport?.connection;
  }

  /** Its channel, in confirm mode. */
  get channel(): ConfirmChannel | undefined {
    return this.#transport?.channel;
  }

  /** Connects, again and again where that is needed. The promise is kept once messages are consumed for the first time, or by `stop`. */
  connect(): Promise<void> {
    if (this.#running && !this.#stopping?.signal.aborted) throw new Error('the listener is connected already');
    const transport = new AmqpTransport([this.queueName], this.amqpServer, 0, (delivery) => this.#perform(delivery), standardError);
    const stopping = new AbortController();
    this.#transport = transport;
    this.#stopping = stopping;
    return new Promise((resolve, reject) => {
      transport.onConsuming = resolve;
      this.#running = transport.run(stopping.signal);
      this.#running.then(resolve, reject);
    });
  }

  /** Takes no more messages. The promise is kept once those in hand are finished and the connection is closed. */
  async stop(): Promise<void> {
    this.#stopping?.abort();
    await this.#running;
  }

  async #perform(delivery: Delivery): Promise<Outcome> {
    let data: unknown;
    try {
      data = valueOf(textOf(delivery.body));
    } catch (error) {
      return delivery.replyTo ? unreadable(delivery, error, standardError) : refusal(delivery, standardError);
    }
    const started = now();
    try {
      const result: unknown = await this.handler(delivery.correlationId!, data);
      if (result && !delivery.replyTo) return refusal(delivery, standardError);
      standardError.debug!(`${delivery}: done in ${(now() - started).toFixed(3)} s${result ? '' : ', without a reply'}`);
      return result ? { is: 'reply', body: encode(result) } : { is: 'done' };
    } catch (error) {
      const outcome = failure(delivery, error, standardError);
      return outcome.is === 'reply' && !delivery.replyTo ? refusal(delivery, standardError) : outcome;
    }
  }
}
