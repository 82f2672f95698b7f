/**
 * A span around a worker's function, where the package `@opentelemetry/api` is installed. Its parent is the attempt that the message is
 * of: the manager's span, or that of whoever asked for the job.
 */

import type { Attributes, SpanContext, TraceState } from '@opentelemetry/api';
import type { StepFacts } from './step.js';

/** A traceparent (W3C Trace Context); what later versions add to it is not read. */
const TRACEPARENT = /^(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(?:-|$)/;

let found: typeof import('@opentelemetry/api') | undefined;
let isSought = false;
/** Not awaited here: a module that awaits cannot be required. */
const seeking = import('@opentelemetry/api').then(
  (api) => {
    [found, isSought] = [api, true];
  },
  () => {
    isSought = true;
  },
);

/** Does the work of a step in a span of its own; `system` brought the message. */
export async function inSpan<T>(facts: StepFacts, system: string, work: () => Promise<T>): Promise<T> {
  if (!isSought) await seeking;
  const api = found;
  if (!api) return work();
  const attributes: Attributes = {
    'messaging.system': system,
    'messaging.operation.type': 'process',
    'messaging.operation.name': 'process',
    'messaging.destination.name': facts.queue,
    'messaging.message.conversation_id': `${facts.id}:${facts.name}`,
    'workflow.name': facts.workflow,
    'workflow.job.id': facts.id,
    'workflow.step.name': facts.name,
    'workflow.attempt': facts.attempt,
  };
  const state = facts.headers['tracestate'];
  const told = parentOf(facts.headers['traceparent'], typeof state === 'string' ? api.createTraceState(state) : undefined);
  const parent = told ? api.trace.setSpanContext(api.ROOT_CONTEXT, told) : api.ROOT_CONTEXT;
  const options = { kind: api.SpanKind.CONSUMER, attributes };
  return api.trace.getTracer('jsworker').startActiveSpan(`process ${facts.queue}`, options, parent, async (span) => {
    try {
      return await work();
    } catch (error) {
      span.setStatus({ code: api.SpanStatusCode.ERROR });
      try {
        span.recordException(error instanceof Error ? error : String(error));
      } catch {
        // Its text cannot be read: the error itself is what counts.
      }
      throw error;
    } finally {
      span.end();
    }
  });
}

function parentOf(traceparent: unknown, traceState: TraceState | undefined): SpanContext | undefined {
  const [, traceId, spanId, flags] = (typeof traceparent === 'string' && TRACEPARENT.exec(traceparent)) || [];
  if (!traceId || !spanId || !flags) return undefined;
  return { traceId, spanId, traceFlags: parseInt(flags, 16), isRemote: true, ...(traceState && { traceState }) };
}
