/** Over gRPC: one stream, from its connection to its end. */

import { createSecureContext } from 'node:tls';
import type { ClientDuplexStream, StatusObject } from '@grpc/grpc-js';
import type { Address } from './addresses.js';
import type { GrpcDelivery } from './grpc_delivery.js';
import { Outbox } from './grpc_outbox.js';
import { span, type Batches, type FromWorker, type ToWorker, type Wire } from './grpc_wire.js';
import { now } from './time.js';
import type { Reply } from './work.js';

/** How often a connection is asked whether its other end is there, and how long the answer may take. */
const KEEP_ALIVE_SECONDS = 30;
const KEEP_ALIVE_ANSWER_SECONDS_MAX = 10;

const OPTIONS = {
  // A message may be as large as the manager takes it.
  'grpc.max_receive_message_length': -1,
  'grpc.max_send_message_length': -1,
  'grpc.keepalive_time_ms': KEEP_ALIVE_SECONDS * 1000,
  'grpc.keepalive_timeout_ms': KEEP_ALIVE_ANSWER_SECONDS_MAX * 1000,
  // Each stream makes its own connection; the pauses between two are this library's.
  'grpc.use_local_subchannel_pool': 1,
  // As over HTTP, proxies named in the environment are not used.
  'grpc.enable_http_proxy': 0,
};

/** With these the manager says that it will not have this worker. With any other one it may be elsewhere. */
const REFUSALS = ['UNAUTHENTICATED', 'PERMISSION_DENIED', 'NOT_FOUND', 'INVALID_ARGUMENT', 'FAILED_PRECONDITION', 'RESOURCE_EXHAUSTED', 'UNIMPLEMENTED'];

/** How a stream has ended. */
export interface End {
  text: string;
  isRefusal: boolean;
}

/** A stream. */
export class Session {
  readonly address: Address;
  /** What was tried before. */
  readonly tried: string;
  /** Something was heard: the manager has taken the worker's hello. */
  isEstablished = false;
  isDraining = false;
  /** How many messages are wanted that have not come. */
  credit = 0;
  /** The receipts whose leases are to be extended, until the manager has answered. */
  readonly extending = new Set<string>();
  /** Since when nothing was heard although something was asked. */
  silentSince: number | undefined = now();
  farewellAt: number | undefined;
  readonly #wire: Wire;
  readonly #call: ClientDuplexStream<FromWorker, ToWorker>;
  readonly #outbox: Outbox;
  readonly #close: () => void;
  #aborted = '';

  constructor(wire: Wire, address: Address, token: string, tried: string) {
    this.address = address;
    this.tried = tried;
    this.#wire = wire;
    const { grpc, work } = wire;
    // The authorities are those of Node.js, as over HTTP.
    const credentials = address.isSecure ? grpc.credentials.createFromSecureContext(createSecureContext()) : grpc.credentials.createInsecure();
    const client = new grpc.Client(address.hostAndPort, credentials, OPTIONS);
    const metadata = new grpc.Metadata();
    if (token) metadata.set('authorization', `Bearer ${token}`);
    this.#close = () => client.close();
    this.#call = client.makeBidiStreamRequest<FromWorker, ToWorker>(work.path, work.requestSerialize, work.responseDeserialize, metadata);
    this.#outbox = new Outbox((what) => this.#call.write(what));
  }

  /** Until the stream ends. */
  async run(hear: (heard: ToWorker) => void): Promise<End> {
    const status = await new Promise<StatusObject>((resolve) => {
      this.#call.on('data', (heard: ToWorker) => {
        this.silentSince = undefined;
        hear(heard);
      });
      // Behind an error no `close` comes, but this.
      this.#call.on('status', resolve);
      this.#call.on('error', () => {});
    });
    this.#close();
    if (this.#aborted) return { text: this.#aborted, isRefusal: false };
    const { status: codes } = this.#wire.grpc;
    if (status.code === codes.OK) return { text: 'the manager has ended the stream', isRefusal: false };
    const name = codes[status.code];
    return { text: `${name} ${status.details}`, isRefusal: REFUSALS.includes(name) };
  }

  hello(queue: string, lease: number): void {
    this.#say({ hello: { queues: [queue], lease: span(lease), vhost: this.address.vhost, batches: true } });
  }

  /** The manager takes them. An earlier one never says so, and hears one thing at a time. */
  allowBatches(batches: Batches): void {
    this.#outbox.allowBatches(batches);
  }

  want(messages: number): void {
    this.credit += messages;
    this.#say({ want: { messages } });
  }

  extend(delivery: GrpcDelivery, lease: number): void {
    this.extending.add(delivery.receipt);
    this.#ask({ extend: { receipt: delivery.receipt, lease: span(lease) } });
  }

  /** A hello has no answer of its own. The answer to this, which is for no message, says that it was taken. */
  askForASign(): void {
    this.#ask({ extend: { receipt: '' } });
  }

  /** Says what is to become of a message. */
  settle(delivery: GrpcDelivery, last: Reply | 'return'): void {
    const { receipt } = delivery;
    delivery.saidOn = this;
    if (last === 'return') this.#ask({ nack: { receipt, requeue: true } });
    else this.#ask({ reply: { receipt, kind: last.type ? 'ERROR' : 'RESULT', body: last.body } });
  }

  progress(delivery: GrpcDelivery, body: Buffer): void {
    this.#ask({ reply: { receipt: delivery.receipt, kind: 'PROGRESS', body } });
  }

  /** Nothing more is said; what is still open is answered. */
  farewell(): void {
    if (this.farewellAt !== undefined) return;
    this.farewellAt = now();
    this.#outbox.flush();
    this.#call.end();
  }

  abort(why: string): void {
    this.#aborted = why;
    this.#call.cancel();
  }

  #ask(what: FromWorker): void {
    this.silentSince ??= now();
    this.#say(what);
  }

  #say(what: FromWorker): void {
    if (this.farewellAt === undefined) this.#outbox.say(what);
  }
}
