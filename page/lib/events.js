// A stream of server-sent events, read with fetch: `EventSource` cannot send a token. It is closed while the page is hidden, because a
// browser allows few connections to one origin, and opened again with a growing pause after it breaks.

import { address, send, Problem } from './api.js';

/** @typedef {{ id: string, event: string, data: string }} ServerEvent */

/**
 * Takes the text of a stream piece by piece and gives the events that are complete.
 * @param {(event: ServerEvent) => void} take
 */
export function eventReader(take) {
  let rest = '';
  let id = '';
  let event = '';
  /** @type {string[]} */
  let data = [];
  /** @param {string} line */
  function line(line) {
    if (line === '') {
      if (data.length) take({ id, event: event || 'message', data: data.join('\n') });
      event = '';
      data = [];
      return;
    }
    const colon = line.indexOf(':');
    if (colon === 0) return;
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? '' : line.slice(colon + 1).replace(/^ /, '');
    if (field === 'data') data.push(value);
    else if (field === 'event') event = value;
    else if (field === 'id') id = value;
  }
  return (/** @type {string} */ piece) => {
    const text = rest + piece;
    let from = 0;
    for (;;) {
      const to = text.indexOf('\n', from);
      if (to < 0) break;
      line(text.slice(from, to > from && text[to - 1] === '\r' ? to - 1 : to));
      from = to + 1;
    }
    rest = text.slice(from);
  };
}

const PAUSES = [500, 1000, 2000, 5000, 10_000];

export class Stream {
  /** @type {'closed' | 'opening' | 'open' | 'broken' | 'hidden' | 'ended'} */
  state = 'closed';
  #path;
  #query;
  #on;
  /** @type {AbortController | undefined} */
  #now;
  /** @type {number | undefined} */
  #timer;
  #broken = 0;
  #last = '';

  /**
   * @param {string[]} path
   * @param {Record<string, string>} query
   * @param {{ event: (event: ServerEvent) => void, state: () => void, opened: () => void }} on `opened`: look again, something may be missed
   */
  constructor(path, query, on) {
    this.#path = path;
    this.#query = query;
    this.#on = on;
  }

  open() {
    if (this.state !== 'closed') return;
    document.addEventListener('visibilitychange', this.#visible);
    void this.#run();
  }

  close() {
    document.removeEventListener('visibilitychange', this.#visible);
    clearTimeout(this.#timer);
    this.#now?.abort();
    this.#now = undefined;
    this.state = 'closed';
  }

  #visible = () => {
    if (document.hidden) {
      clearTimeout(this.#timer);
      this.#now?.abort();
      this.#now = undefined;
      if (this.state !== 'ended') this.#set('hidden');
    } else if (this.state === 'hidden') {
      void this.#run();
    }
  };

  /** @param {Stream['state']} state */
  #set(state) {
    if (this.state === state) return;
    this.state = state;
    this.#on.state();
  }

  async #run() {
    const now = new AbortController();
    this.#now = now;
    this.#set('opening');
    try {
      const response = await send(address(this.#path, this.#query), { signal: now.signal, headers: { Accept: 'text/event-stream', ...(this.#last && { 'Last-Event-ID': this.#last }) } });
      if (response.status === 204 || !response.body) {
        this.#set('ended');
        return;
      }
      this.#broken = 0;
      this.#set('open');
      this.#on.opened();
      let ended = false;
      const read = eventReader((event) => {
        this.#last = event.id;
        if (/^job\.(completed|failed|cancelled)$/.test(event.event)) ended = true;
        this.#on.event(event);
      });
      const decoder = new TextDecoder();
      const reader = response.body.getReader();
      for (;;) {
        const { done, value } = await reader.read();
        if (done) break;
        read(decoder.decode(value, { stream: true }));
      }
      if (now.signal.aborted) return;
      if (ended && this.#path[0] === 'job') {
        this.#set('ended');
        return;
      }
    } catch (error) {
      if (now.signal.aborted) return;
      if (error instanceof Problem && (error.status === 404 || error.status === 401 || error.status === 400)) {
        this.#set('ended');
        return;
      }
    }
    this.#set('broken');
    const pause = PAUSES[Math.min(this.#broken, PAUSES.length - 1)];
    this.#broken += 1;
    this.#timer = setTimeout(() => void this.#run(), pause * (0.75 + Math.random() / 2));
  }
}
