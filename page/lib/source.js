// What a part of the page shows: the newest answer that it has, and whether a newer one is on its way. Old content stays until then.

import { Problem } from './api.js';
import { redraw } from './redraw.js';

/** @template T */
export class Source {
  /** @type {T | undefined} */
  data;
  /** @type {Problem | undefined} */
  error;
  loading = false;
  /** When the data came, by the page's clock. */
  at = 0;
  /** Whether the content is of another question than the one that is asked now. */
  stale = false;
  #load;
  /** @type {AbortController | undefined} */
  #now;
  #again = false;
  /** @type {number | undefined} */
  #timer;
  /** @type {Promise<void> | undefined} */
  #run;

  /** @param {(signal: AbortSignal) => Promise<T>} load */
  constructor(load) {
    this.#load = load;
  }

  /** The manager's answer if it was an error, or that there is none. Where there is something to show, no answer is told above the view alone. */
  get problem() {
    return this.error && (!this.data || this.error.status > 0) ? this.error : undefined;
  }

  /** Whether an empty list means that there is nothing: not while the manager refuses to list. */
  get told() {
    return this.data !== undefined && !this.problem;
  }

  /** Asks once more. While a question is under way, one more follows it, however often this is called. */
  refresh() {
    if (this.#now) {
      this.#again = true;
      return this.#run ?? Promise.resolve();
    }
    this.#run = this.#ask();
    return this.#run;
  }

  /** Asks something else: what is under way is of no interest any more. */
  restart() {
    this.#now?.abort();
    this.#now = undefined;
    this.#again = false;
    this.stale = true;
    return this.refresh();
  }

  async #ask() {
    const now = new AbortController();
    this.#now = now;
    this.loading = true;
    redraw();
    try {
      const data = await this.#load(now.signal);
      if (now.signal.aborted) return;
      this.data = data;
      this.error = undefined;
      this.stale = false;
      this.at = Date.now();
    } catch (error) {
      if (now.signal.aborted) return;
      this.error = error instanceof Problem ? error : new Problem(-1, error instanceof Error ? error.message : String(error));
    }
    this.#now = undefined;
    this.loading = false;
    redraw();
    if (this.#again) {
      this.#again = false;
      await this.refresh();
    }
  }

  /**
   * Asks again and again while the page can be seen; more rarely while there is no answer.
   * @param {number} pause in milliseconds, after each answer
   */
  every(pause) {
    this.stopTimer();
    const round = async () => {
      if (!document.hidden) await this.refresh();
      // What the manager does not have today it will not have in a minute.
      if (this.error?.notHere) this.stopTimer();
      const next = this.error ? Math.min(30_000, pause * 4) : pause;
      if (this.#timer !== undefined) this.#timer = setTimeout(round, next);
    };
    this.#timer = setTimeout(round, pause);
    document.addEventListener('visibilitychange', this.#visible);
  }

  #visible = () => {
    if (!document.hidden) void this.refresh();
  };

  stopTimer() {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    document.removeEventListener('visibilitychange', this.#visible);
  }

  stop() {
    this.stopTimer();
    this.#now?.abort();
    this.#now = undefined;
  }
}

/**
 * Calls a function at most once in a while; the last call is never lost.
 * @param {() => void} call
 * @param {number} pause
 */
export function atMostEvery(call, pause) {
  let last = 0;
  /** @type {number | undefined} */
  let timer;
  const run = () => {
    timer = undefined;
    last = Date.now();
    call();
  };
  const ask = () => {
    if (timer !== undefined) return;
    timer = setTimeout(run, Math.max(0, last + pause - Date.now()));
  };
  ask.stop = () => {
    clearTimeout(timer);
    timer = undefined;
  };
  return ask;
}
