/**
 * Puts gRPC before `workflow-manager worker-test`, which speaks HTTP: `node over_grpc.js WORKER…`. It is the command that worker-test
 * starts, and starts the worker, with the address of a server for streams in place of that of worker-test. What the worker says
 * on a stream becomes calls over HTTP, one for one; a connection that is cut ends the stream.
 */

import { spawn } from 'node:child_process';
import { constants } from 'node:os';
import * as grpc from '@grpc/grpc-js';
import { loadWire } from '../dist/grpc_wire.js';

const URL_BASE = process.env.WORKFLOW_MANAGER_URL;
const { work } = loadWire();
const cut = { code: grpc.status.UNAVAILABLE, details: 'the connection was cut' };

/** Status, headers and body; undefined if no answer came. */
async function post(path, body) {
  try {
    const answer = await fetch(URL_BASE + path, { method: 'POST', body: body ?? '' });
    if (answer.status === 503) return undefined;
    return { status: answer.status, headers: answer.headers, body: Buffer.from(await answer.arrayBuffer()) };
  } catch {
    return undefined;
  }
}

const span = ({ seconds = 0, nanos = 0 }) => `${Number(seconds) * 1000 + nanos / 1_000_000}ms`;

function serve(stream) {
  let hello, isOver = false, credit = 0, isReceiving = false, before = Promise.resolve();
  const say = (answered) => (answered ? stream.write(answered) : stream.emit('error', cut));

  async function receive() {
    if (isReceiving) return;
    isReceiving = true;
    while (!isOver && credit > 0) {
      const answer = await post(`/api/queue/${hello.queues[0]}/receive?wait=1s&lease=${span(hello.lease)}`);
      if (!answer) {
        say(undefined);
      } else if (answer.status === 200 && isOver) {
        await post(`${answer.headers.get('reply-to').replace('/reply', '/nack')}?requeue=true`);
      } else if (answer.status === 200) {
        credit--;
        say({ message: messageOf(answer) });
      }
      if (!answer) return;
    }
    isReceiving = false;
  }

  async function settle(word, { receipt = '', kind = 'RESULT', body, lease, requeue }) {
    if (!receipt) return { taken: { why_not: 'malformed' } };
    const calls = {
      reply: () => post(`${receipt}?type=${kind.toLowerCase()}`, body),
      extend: () => post(`${receipt.replace('/reply', '/extend')}?lease=${span(lease)}`),
      nack: () => post(`${receipt.replace('/reply', '/nack')}?requeue=${requeue}`),
    };
    const answer = await calls[word]();
    if (!answer) return undefined;
    const told = JSON.parse(answer.body);
    if (answer.status === 410) return { gone: { receipt, reason: told.detail.split(':')[0] } };
    return word === 'extend' ? { lease: { receipt } } : { taken: { receipt, changed: told.taken ?? false, why_not: told.reason ?? '' } };
  }

  stream.on('data', (request) => {
    const [[word, said]] = Object.entries(request);
    if (word === 'hello') {
      hello = said;
    } else if (word === 'want') {
      credit += said.messages;
      void receive();
    } else {
      before = before.then(async () => say(await settle(word, said)));
    }
  });
  stream.on('end', () => {
    isOver = true;
    before = before.then(() => stream.end());
  });
  stream.on('cancelled', () => (isOver = true));
}

function messageOf({ headers, body }) {
  return {
    receipt: headers.get('reply-to'),
    correlation_id: headers.get('correlation-id'),
    message_id: headers.get('message-id'),
    workflow: headers.get('workflow'),
    job: headers.get('job'),
    attempt: Number(headers.get('attempt')),
    delivery: Number(headers.get('delivery')),
    traceparent: headers.get('traceparent'),
    body,
  };
}

const server = new grpc.Server({ 'grpc.max_receive_message_length': -1 });
server.addService({ work: { ...work, path: work.path } }, { work: serve });
server.bindAsync('127.0.0.1:0', grpc.ServerCredentials.createInsecure(), (_, port) => {
  const [command, ...words] = process.argv.slice(2);
  const worker = spawn(command, words, { env: { ...process.env, WORKFLOW_MANAGER_URL: `grpc://127.0.0.1:${port}` }, stdio: 'inherit' });
  for (const name of ['SIGTERM', 'SIGINT']) process.on(name, () => worker.kill(name));
  worker.on('exit', (code, name) => process.exit(code ?? 128 + constants.signals[name]));
});
