/** Over gRPC: a message in hand. */

import type { Session } from './grpc_session.js';
import type { StepMessage } from './grpc_wire.js';
import { factsOf, type StepFacts } from './step.js';
import { Delivery, type Reply } from './work.js';

/** A progress that waits for its answer: '' or why it could not be told. */
export interface Telling {
  session: Session;
  answer: (problem: string) => void;
}

const HEADERS = ['workflow', 'job', 'attempt', 'depth', 'traceparent', 'tracestate', 'priority'] as const;

export class GrpcDelivery extends Delivery {
  override readonly system = 'workflow_manager';
  override readonly queue: string;
  override readonly body: Buffer;
  readonly messageId: string;
  /** Of a message that came again there are several; the last one is in force. */
  readonly receipts: string[];
  extendAt = 0;
  hasLostLease = false;
  /** What is to become of it, and since when; settled once the manager has answered. */
  last: Reply | 'return' | undefined;
  lastSince = 0;
  /** The stream on which that was said. */
  saidOn: Session | undefined;
  telling: Telling | undefined;
  /** What was said so far has been told: the answers to a progress and to a reply look the same. */
  said: Promise<void> = Promise.resolve();
  readonly #message: StepMessage;
  readonly #tell: (delivery: GrpcDelivery, reply: Reply) => Promise<void>;

  constructor(queue: string, message: StepMessage, tell: (delivery: GrpcDelivery, reply: Reply) => Promise<void>) {
    super();
    this.queue = queue;
    this.body = message.body ?? Buffer.alloc(0);
    this.messageId = message.message_id;
    this.receipts = [message.receipt];
    this.#message = message;
    this.#tell = tell;
  }

  get receipt(): string {
    return this.receipts.at(-1)!;
  }

  override get replyTo(): string {
    return this.receipt;
  }

  override get correlationId(): string | undefined {
    return this.#message.correlation_id;
  }

  override facts(): StepFacts {
    const headers: Record<string, string | number> = {};
    for (const name of HEADERS) if (this.#message[name] !== undefined) headers[name] = this.#message[name];
    const delivery = this.#message.delivery ?? 1;
    return factsOf({ queue: this.queue, correlationId: this.correlationId, redelivered: delivery !== 1, delivery, headers });
  }

  override progress(reply: Reply): Promise<void> {
    // One after the other, in the order in which the function has said it.
    this.said = this.said.then(() => this.#tell(this, reply));
    return this.said;
  }

  override toString(): string {
    return `${this.queue}: message ${this.messageId}`;
  }
}
