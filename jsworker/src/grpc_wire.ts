/**
 * Over gRPC: what goes over the wire, as proto/workers.proto has it. Only what a worker on a stream says and hears is here.
 */

import { createRequire } from 'node:module';
import type * as Grpc from '@grpc/grpc-js';
import type * as Loader from '@grpc/proto-loader';

export const PACKAGE = 'workflow_manager.v1';
const DURATION = 'google.protobuf.Duration';

/** By message: number and type of each field. `repeated` and `optional` stand before the type, as in the file. */
export const MESSAGES: Readonly<Record<string, Readonly<Record<string, readonly [number, string]>>>> = {
  FromWorker: { hello: [1, 'Hello'], want: [2, 'Want'], reply: [3, 'ReplyRequest'], extend: [4, 'ExtendRequest'], nack: [5, 'NackRequest'], batch: [6, 'FromWorkerBatch'] },
  FromWorkerBatch: { replies: [1, 'repeated ReplyRequest'], want: [2, 'uint32'] },
  ToWorker: {
    message: [1, 'StepMessage'],
    taken: [2, 'Taken'],
    lease: [3, 'Lease'],
    gone: [4, 'Gone'],
    drain: [5, 'Drain'],
    batches: [6, 'Batches'],
    batch: [7, 'ToWorkerBatch'],
  },
  Batches: { replies_max: [1, 'uint32'], bytes_max: [2, 'uint32'] },
  ToWorkerBatch: { taken: [1, 'repeated Taken'], messages: [2, 'repeated StepMessage'] },
  Hello: { queues: [1, 'repeated string'], worker: [2, 'string'], lease: [3, DURATION], vhost: [4, 'string'], batches: [5, 'bool'] },
  Want: { messages: [1, 'uint32'] },
  StepMessage: {
    receipt: [1, 'string'],
    queue: [2, 'string'],
    correlation_id: [3, 'string'],
    message_id: [4, 'string'],
    workflow: [5, 'string'],
    job: [6, 'string'],
    attempt: [7, 'uint32'],
    delivery: [8, 'uint32'],
    priority: [9, 'optional uint32'],
    traceparent: [10, 'string'],
    body: [13, 'bytes'],
    depth: [14, 'optional uint32'],
    tracestate: [15, 'optional string'],
  },
  ReplyRequest: { receipt: [1, 'string'], kind: [2, 'Kind'], body: [3, 'bytes'] },
  Taken: { receipt: [1, 'string'], changed: [2, 'bool'], why_not: [3, 'string'], detail: [4, 'string'] },
  ExtendRequest: { receipt: [1, 'string'], lease: [2, DURATION] },
  Lease: { receipt: [1, 'string'] },
  NackRequest: { receipt: [1, 'string'], requeue: [2, 'bool'] },
  Gone: { receipt: [1, 'string'], reason: [2, 'string'] },
  Drain: {},
};

/** Kinds of a reply. */
export const KINDS = { RESULT: 0, ERROR: 1, PROGRESS: 2 } as const;

/** Of these messages one field at a time is there. */
export const CHOICES: Readonly<Record<string, string>> = { FromWorker: 'say', ToWorker: 'say' };

export interface StepMessage {
  receipt: string;
  correlation_id?: string;
  message_id: string;
  workflow?: string;
  job?: string;
  attempt?: number;
  delivery?: number;
  priority?: number;
  traceparent?: string;
  body?: Buffer;
  depth?: number;
  tracestate?: string;
}

export interface Taken {
  receipt?: string;
  changed?: boolean;
  why_not?: string;
  detail?: string;
}

export interface Gone {
  receipt?: string;
  reason?: string;
}

/** What a worker hears; a field that has the value of one that is missing is missing. */
export interface ToWorker {
  message?: StepMessage;
  taken?: Taken;
  lease?: { receipt?: string };
  gone?: Gone;
  drain?: object;
  batches?: Batches;
  batch?: { taken?: Taken[]; messages?: StepMessage[] };
}

/** The manager takes batches. */
export interface Batches {
  replies_max?: number;
  bytes_max?: number;
}

export interface ReplyRequest {
  receipt: string;
  kind: keyof typeof KINDS;
  body: Buffer;
}

/** A Duration. */
export interface Span {
  seconds: number;
  nanos: number;
}

/** What a worker says. */
export type FromWorker =
  | { hello: { queues: readonly string[]; lease: Span; vhost: string; batches: boolean } }
  | { want: { messages: number } }
  | { reply: ReplyRequest }
  | { extend: { receipt: string; lease?: Span } }
  | { nack: { receipt: string; requeue: boolean } }
  | { batch: { replies: readonly ReplyRequest[]; want: number } };

export function span(seconds: number): Span {
  const milliseconds = Math.round(seconds * 1000);
  return { seconds: Math.floor(milliseconds / 1000), nanos: (milliseconds % 1000) * 1_000_000 };
}

/** The packages for gRPC, which need not be installed, and the call. */
export interface Wire {
  grpc: typeof Grpc;
  work: Loader.MethodDefinition<FromWorker, ToWorker>;
}

/** Throws if a package is missing, and says how to install it. */
export function loadWire(): Wire {
  const load = createRequire(import.meta.url);
  let grpc: typeof Grpc, loader: typeof Loader;
  try {
    grpc = load('@grpc/grpc-js') as typeof Grpc;
    loader = load('@grpc/proto-loader') as typeof Loader;
  } catch (error) {
    const [first] = (error as Error).message.split('\n');
    throw new TypeError(`a worker over gRPC needs two more packages (${first}): npm install @grpc/grpc-js @grpc/proto-loader`);
  }
  const service = loader.fromJSON(description(), { keepCase: true, enums: String, oneofs: false })[`${PACKAGE}.Workers`];
  return { grpc, work: (service as Loader.ServiceDefinition)['Work'] as unknown as Wire['work'] };
}

function description(): Parameters<typeof Loader.fromJSON>[0] {
  const messages = Object.entries(MESSAGES).map(([name, fields]) => {
    const described = Object.entries(fields).map(([field, [id, words]]) => {
      const type = words.split(' ').at(-1)!;
      return [field, { id, type, ...(words.startsWith('repeated') && { rule: 'repeated' }), ...(words.startsWith('optional') && { options: { proto3_optional: true } }) }];
    });
    const oneofs = name in CHOICES ? { oneofs: { [CHOICES[name]!]: { oneof: Object.keys(fields) } } } : {};
    return [name, { ...oneofs, fields: Object.fromEntries(described) }];
  });
  const work = { requestType: 'FromWorker', requestStream: true, responseType: 'ToWorker', responseStream: true };
  const v1 = { ...Object.fromEntries(messages), Kind: { values: { ...KINDS } }, Workers: { methods: { Work: work } } };
  const duration = { fields: { seconds: { type: 'int64', id: 1 }, nanos: { type: 'int32', id: 2 } } };
  return { nested: { google: { nested: { protobuf: { nested: { Duration: duration } } } }, workflow_manager: { nested: { v1: { nested: v1 } } } } };
}
