/** Pauses, all in seconds. */

import { setMaxListeners } from 'node:events';

const SECONDS_MIN = 1;
const SECONDS_MAX = 30;

/** The pauses between tries: 1 s, 2 s, 4 s, up to 30 s. */
export class Backoff {
  #seconds = SECONDS_MIN;

  /** The next pause: at least `seconds`, if somebody has asked for that, and up to a fifth shorter or longer, so that workers do not all come at once. */
  next(seconds = 0): number {
    const pause = Math.max(this.#seconds, Math.min(seconds, SECONDS_MAX));
    this.#seconds = Math.min(pause * 2, SECONDS_MAX);
    return pause * (0.8 + 0.4 * Math.random());
  }

  reset(): void {
    this.#seconds = SECONDS_MIN;
  }
}

/** Waits; not longer than until one of the signals. */
export async function sleep(seconds: number, ...signals: AbortSignal[]): Promise<void> {
  const over = new AbortController();
  const timer = setTimeout(() => over.abort(), seconds * 1000);
  await Promise.race([aborted(over.signal), ...signals.map((signal) => aborted(signal, over.signal))]);
  clearTimeout(timer);
  over.abort();
}

/** Waits for the signal. `end` takes its listener away, as the signal may live long. */
export function aborted(signal: AbortSignal, end?: AbortSignal): Promise<void> {
  if (signal.aborted) return Promise.resolve();
  // All that is in hand may wait for it.
  setMaxListeners(0, signal);
  return new Promise((resolve) => signal.addEventListener('abort', () => resolve(), { once: true, ...(end && { signal: end }) }));
}

/** Until the event loop has looked for signals and data once more. */
export function turn(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve));
}

/** How long those whose turn it is may keep the event loop from looking for signals and data. */
const TURN_SECONDS_MAX = 0.002;
const inLine: (() => void)[] = [];

/** Until all that asked before have done what they do at once. Now and then the event loop looks for signals and data in between. */
export function inTurn(): Promise<void> {
  return new Promise((resolve) => {
    if (inLine.push(resolve) === 1) setImmediate(giveTurns);
  });
}

function giveTurns(): void {
  const end = now() + TURN_SECONDS_MAX;
  const next = (): void => {
    inLine[0]!();
    // Behind its promises, and theirs.
    queueMicrotask(() => process.nextTick(passOn));
  };
  const passOn = (): void => {
    inLine.shift();
    if (inLine.length === 0) return;
    if (now() < end) next();
    else setImmediate(giveTurns);
  };
  next();
}

/** The seconds of a clock that nobody sets. */
export function now(): number {
  return performance.now() / 1000;
}
