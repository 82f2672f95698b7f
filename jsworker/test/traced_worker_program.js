/** `worker_program.js` with OpenTelemetry: each span leaves a line in DIRECTORY/spans. */

import { appendFileSync } from 'node:fs';
import { join } from 'node:path';
import { context, trace } from '@opentelemetry/api';
import { AsyncLocalStorageContextManager } from '@opentelemetry/context-async-hooks';
import { BasicTracerProvider, SimpleSpanProcessor } from '@opentelemetry/sdk-trace-base';

const file = join(process.argv[2], 'spans');

const exporter = {
  export(spans, done) {
    for (const span of spans) {
      const { name, kind, attributes, status, events, parentSpanContext: parent } = span;
      const { traceId: trace, traceState } = span.spanContext();
      appendFileSync(file, `${JSON.stringify({ name, kind, attributes, status, events, parent, trace, state: traceState?.serialize() })}\n`);
    }
    done({ code: 0 });
  },
  shutdown: async () => {},
};

context.setGlobalContextManager(new AsyncLocalStorageContextManager().enable());
trace.setGlobalTracerProvider(new BasicTracerProvider({ spanProcessors: [new SimpleSpanProcessor(exporter)] }));

await import('./worker_program.js');
