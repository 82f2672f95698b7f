// The worker for `price` of docs/learn/1-first-workflow.md, over gRPC, without a library for it:
// npm ci && node price.mjs [HOST:PORT]; WORKFLOW_MANAGER_TOKEN is sent if it is set.
import grpc from '@grpc/grpc-js';
import loader from '@grpc/proto-loader';

const proto = new URL('../../../proto/workers.proto', import.meta.url).pathname;
const { Workers } = grpc.loadPackageDefinition(loader.loadSync(proto, { keepCase: true })).workflow_manager.v1;
const CENTS = { pen: 250, ink: 990 };
const client = new Workers(process.argv[2] ?? '127.0.0.1:8089', grpc.credentials.createInsecure(), { 'grpc.max_reconnect_backoff_ms': 5000 });
const metadata = new grpc.Metadata();
if (process.env.WORKFLOW_MANAGER_TOKEN) metadata.set('authorization', `Bearer ${process.env.WORKFLOW_MANAGER_TOKEN}`);

function reply(message) {
  const { line } = JSON.parse(message.body);
  const cents = CENTS[line.article];
  if (cents === undefined) return ['ERROR', { error: `there is no price for ${line.article}`, retryable: false }];
  return ['RESULT', { line: { ...line, cents: cents * line.count } }];
}

let stream, pause;
function work() {
  pause = undefined;
  stream = client.Work(metadata);
  stream.on('data', ({ message }) => {
    if (!message) return;
    const [kind, body] = reply(message);
    stream.write({ reply: { receipt: message.receipt, kind, body: Buffer.from(JSON.stringify(body)) } });
    stream.write({ want: { messages: 1 } });
  });
  stream.on('error', ({ message }) => console.error(message));
  stream.on('status', () => { pause = setTimeout(work, 1000); }); // behind an error, too, where no `close` comes
  stream.write({ hello: { queues: ['price'], worker: 'price.mjs' } });
  stream.write({ want: { messages: 1 } });
}

process.on('SIGTERM', () => {
  if (pause) process.exit();
  stream.removeAllListeners('status').on('status', () => process.exit()).end(); // farewell: what it has goes back
});
work();
