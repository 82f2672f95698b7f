/** Over gRPC: what is to be said on a stream, in its order. What waits together goes together, once the manager takes batches. */

import type { Batches, FromWorker, ReplyRequest } from './grpc_wire.js';

/** The replies of a batch, together. A larger one goes alone. */
const BATCH_BYTES_MAX = 1 << 16;
/** What a reply has besides its receipt and its body at most, and what a batch has besides its replies. */
const OVERHEAD_BYTES = 32;

export class Outbox {
  readonly #write: (what: FromWorker) => void;
  #waiting: FromWorker[] = [];
  /** What a batch may have: none until the manager has said that it takes batches. */
  #repliesMax = 0;
  #bytesMax = 0;

  constructor(write: (what: FromWorker) => void) {
    this.#write = write;
  }

  allowBatches({ replies_max = 0, bytes_max = 0 }: Batches): void {
    this.#repliesMax = replies_max;
    this.#bytesMax = Math.min(bytes_max, BATCH_BYTES_MAX) - OVERHEAD_BYTES;
  }

  /** What is said in the same turn of the event loop goes with it. */
  say(what: FromWorker): void {
    this.#waiting.push(what);
    if (this.#waiting.length === 1) setImmediate(() => this.flush());
  }

  /** Says now what waits. */
  flush(): void {
    const waiting = this.#waiting;
    this.#waiting = [];
    for (let at = 0; at < waiting.length; ) at = this.#next(waiting, at);
  }

  /** Says all from there on that can go together, or the first one alone. Gives where the rest begins. */
  #next(waiting: readonly FromWorker[], start: number): number {
    const replies: ReplyRequest[] = [];
    let want = 0;
    let room = this.#bytesMax;
    let at = start;
    for (; at < waiting.length; at++) {
      const what = waiting[at]!;
      if ('want' in what) {
        want += what.want.messages;
      } else if ('reply' in what) {
        room -= what.reply.body.length + Buffer.byteLength(what.reply.receipt) + OVERHEAD_BYTES;
        if (room < 0 || replies.length === this.#repliesMax) break;
        replies.push(what.reply);
      } else {
        break;
      }
    }
    if (at - start <= 1) {
      this.#write(waiting[start]!);
      return start + 1;
    }
    this.#write(replies.length > 0 ? { batch: { replies, want } } : { want: { messages: want } });
    return at;
  }
}
