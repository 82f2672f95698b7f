/** A worker program as it was written for the earlier jsworker, a CommonJS package: nothing in it is changed. */

const QueueListener = require('jsworker').default;

const [, , directory, queue] = process.argv;
void directory;

const listener = new QueueListener(process.env.AMQP_SERVER, queue.split('=')[0], (correlationId, data) => {
  if (data.error === 'now') throw new Error('the function has failed');
  if (data.error === 'later') return Promise.reject(new Error('the promise has failed'));
  if (data.nothing) return null;
  if (data.later) return new Promise((resolve) => setTimeout(() => resolve({ correlationId, later: data.n }), 10));
  return { correlationId, n: data.n };
});

listener.connect();
process.once('SIGTERM', () => listener.stop().then(() => console.log('stopped')));
