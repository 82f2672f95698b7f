/**
 * The worker processes that the tests start: `node worker_program.js DIRECTORY QUEUE=FUNCTION… --OPTION=…`.
 *
 * Each call of a function leaves a line in DIRECTORY/calls, so that a test sees work begin, and how often.
 */

import { appendFileSync, existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as pause } from 'node:timers/promises';
import { Failed, RawJson, Retryable, run } from 'jsworker';

const [, , directory, ...words] = process.argv;
const called = (n) => appendFileSync(join(directory, 'calls'), `${n}\n`);
const calls = () => readFileSync(join(directory, 'calls'), 'utf8').trim().split('\n');

const functions = {
  async echo(message) {
    called(message.n);
    return { echo: message };
  },

  /** Without `async`. */
  plain(message) {
    return { echo: message };
  },

  raw(_message, step) {
    return new RawJson(`{"echo":${step.raw}}`);
  },

  async nothing(message) {
    called(message.n);
  },

  describe(_message, { id, name, attempt, job, workflow, queue, redelivered, delivery, headers }) {
    return { id, name, attempt, job, workflow, queue, redelivered, delivery, headers };
  },

  async progress(_message, step) {
    await step.progress(0.5, { message: 'half way', status: 'HALF' });
  },

  /** It does not wait until its progress is told. */
  async progressTwice(_message, step) {
    step.progress(0.1);
    step.progress(0.2);
    return {};
  },

  async progressTooFar(_message, step) {
    await step.progress(1.5);
  },

  async throws(message) {
    called(message.n);
    throw new RangeError("the function's own mistake");
  },

  throwsAtOnce() {
    null.field;
  },

  throwsText() {
    throw 'a text';
  },

  throwsNothing() {
    throw undefined;
  },

  throwsUnreadably() {
    class Unreadable extends Error {
      get message() {
        throw new EvalError('no text');
      }
    }
    throw new Unreadable();
  },

  throwsAtLength() {
    throw new SyntaxError('x'.repeat(100_000));
  },

  failsAtLength() {
    throw new Failed('x'.repeat(100_000));
  },

  failsInHalf() {
    throw new Failed('\u{1F40B}'.repeat(10_000) + '\ud800');
  },

  notJson() {
    return { value: NaN };
  },

  bigInt() {
    return { value: 1n };
  },

  circular() {
    const value = {};
    return (value.value = value);
  },

  array() {
    return [1];
  },

  text() {
    return 'text';
  },

  map() {
    return new Map([['a', 1]]);
  },

  rawArray() {
    return new RawJson('[1]');
  },

  rawNonsense() {
    return new RawJson('{"a":');
  },

  fails() {
    throw new Failed('no such book');
  },

  async failsForNow() {
    throw new Retryable('the disk is full');
  },

  /** Does its work and dies by SIGKILL before a reply can be sent; the second call returns. */
  async diesOnce(message) {
    called(message.n);
    if (calls().length === 1) process.kill(process.pid, 'SIGKILL');
    return { died: true };
  },

  /** Takes until the test says so. */
  async waits(message) {
    called(message.n);
    while (!existsSync(join(directory, 'release'))) await pause(10);
    return { n: message.n };
  },

  /** Holds up everything else of its process, until the test says so. */
  blocks(message) {
    called(message.n);
    while (!existsSync(join(directory, 'release')));
    return { n: message.n };
  },

  async progressAndWaits(message, step) {
    await step.progress(0.5);
    return functions.waits(message);
  },

  /** Takes until it is told to stop; it passes the signal on. */
  async waitsForItsEnd(message, step) {
    called(message.n);
    try {
      await pause(3_600_000, undefined, { signal: step.signal });
    } finally {
      called(step.signal.reason.message);
    }
  },

  large(message) {
    return { text: 'x'.repeat(message.bytes) };
  },
};

const handlers = Object.fromEntries(
  words.filter((word) => !word.startsWith('-')).map((word) => [word.slice(0, word.lastIndexOf('=')), functions[word.slice(word.lastIndexOf('=') + 1)]]),
);
await run(handlers, { argv: words.filter((word) => word.startsWith('-')) });
process.stderr.write('run returned\n');
