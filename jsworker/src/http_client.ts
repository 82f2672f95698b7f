/** POST to the active manager: over connections that are kept, and broken off where that is asked. */

import http from 'node:http';
import https from 'node:https';
import type { Socket } from 'node:net';
import { Addresses, type Address } from './addresses.js';
import { ANSWER_SECONDS_MAX } from './leases.js';
import { reasonOf, type Log } from './log.js';
import { turn } from './time.js';

const CONNECT_SECONDS_MAX = 10;

/** What a manager answers that is not the one to ask: it stands by, or does not have the workflow's name. */
const NOT_ACTIVE = [421, 503];
const MISDIRECTED = 421;
const ACTIVE_HEADER = 'workflow-manager-active';
/** So begins the reason of one that stands by; it need not know who is active. */
const STANDS_BY = 'stands by';

/** What was asked. */
export interface Question {
  body?: Buffer;
  /** How long the answer may take, if not 30 s. */
  seconds?: number;
  /** Breaks the question off, unless its answer has begun. */
  signal?: AbortSignal;
}

/** What was answered. */
export class Answer {
  readonly status: number;
  readonly headers: ReadonlyMap<string, string>;
  readonly body: Buffer;

  constructor(status: number, headers: ReadonlyMap<string, string>, body: Buffer) {
    this.status = status;
    this.headers = headers;
    this.body = body;
  }

  get isOk(): boolean {
    return this.status >= 200 && this.status < 300;
  }

  /** The seconds after which the manager wants to be asked again; 0 if it does not say. */
  get retryAfter(): number {
    const value = this.headers.get('retry-after') ?? '';
    return /^\d+$/.test(value) ? Number(value) : 0;
  }

  /** What is wrong, in the manager's words. */
  get detail(): string {
    const { detail } = this.json();
    return String(detail || this.body.subarray(0, 200).toString() || http.STATUS_CODES[this.status] || '');
  }

  /** The address of the active manager, if this one says that it is another one; '' if it does not. */
  get active(): string {
    const named = this.headers.get(ACTIVE_HEADER) || this.json()['active'];
    return NOT_ACTIVE.includes(this.status) && typeof named === 'string' ? named : '';
  }

  /** Whether another manager must be asked. A 503 by itself is an overload. */
  get isElsewhere(): boolean {
    if (!NOT_ACTIVE.includes(this.status)) return false;
    return this.active !== '' || this.status === MISDIRECTED || this.detail.startsWith(STANDS_BY);
  }

  json(): Record<string, unknown> {
    const value = this.#value();
    return isObject(value) ? value : {};
  }

  /** The objects of an array. */
  list(): Record<string, unknown>[] {
    const value = this.#value();
    return Array.isArray(value) ? value.filter(isObject) : [];
  }

  #value(): unknown {
    try {
      return JSON.parse(this.body.toString());
    } catch {
      return undefined;
    }
  }

  toString(): string {
    return `${this.status} ${this.detail}`;
  }
}

/** Throws if it cannot stand in a header. */
export function checkToken(token: string): void {
  if (!/^[\x21-\x7e]*$/.test(token)) throw new TypeError("the manager's token has a character that cannot stand in a header");
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null;
}

/** Asks the active manager. Proxies named in the environment are not used. */
export class Client {
  readonly #addresses: Addresses;
  readonly #headers: Record<string, string>;
  readonly #agents = { http: new http.Agent({ keepAlive: true }), https: new https.Agent({ keepAlive: true }) };
  readonly #log: Log;

  constructor(server: string, token: string, log: Log) {
    this.#addresses = new Addresses(server);
    this.#log = log;
    checkToken(token);
    this.#headers = { 'content-type': 'application/json', ...(token && { authorization: `Bearer ${token}` }) };
  }

  /** The address in use, for the log. */
  get address(): string {
    return this.#addresses.current.text;
  }

  /**
   * Asks the active manager: each address at most once, and no other one once the question is broken off. Rejects if no answer
   * comes. `path` may have a query.
   */
  async post(path: string, query: Record<string, string | undefined>, question: Question = {}): Promise<Answer> {
    const tried = new Map<string, string>();
    const several = () => [...tried.values()].join('; ');
    for (;;) {
      const address = this.#addresses.current;
      let answer: Answer | undefined;
      let told: string;
      try {
        answer = await this.#postTo(address, address.target(path, query), question);
        if (!answer.isElsewhere) {
          if (tried.size > 0) this.#log.info(`goes on at ${address.text}, after ${several()}`);
          return answer;
        }
        told = String(answer);
        if (answer.active) told += this.#addresses.follow(address, answer.active);
        else this.#addresses.leave(address);
      } catch (error) {
        this.#addresses.leave(address);
        told = reasonOf(error);
      }
      tried.set(address.place, `${address.text}: ${told}`);
      if (question.signal?.aborted || tried.has(this.#addresses.current.place)) {
        if (answer && tried.size === 1) return answer;
        throw new Error(several());
      }
    }
  }

  async #postTo(address: Address, target: string, question: Question): Promise<Answer> {
    const agent = address.isSecure ? this.#agents.https : this.#agents.http;
    for (;;) {
      const exchange = new Exchange(address.url, target, this.#headers, agent, question);
      try {
        return await exchange.answer;
      } catch (error) {
        // The server closes a connection that was silent for some seconds, perhaps at this moment.
        if (!exchange.metClosedConnection(error) || question.signal?.aborted) throw error;
      }
    }
  }

  close(): void {
    this.#agents.http.destroy();
    this.#agents.https.destroy();
  }
}

/** One question and its answer. */
class Exchange {
  readonly answer: Promise<Answer>;
  readonly #request: http.ClientRequest;
  #hasBegun = false;

  constructor(url: URL, target: string, headers: Record<string, string>, agent: http.Agent, question: Question) {
    const { body = Buffer.alloc(0), seconds = ANSWER_SECONDS_MAX, signal } = question;
    const isSecure = url.protocol === 'https:';
    const request = (isSecure ? https : http).request({
      protocol: url.protocol,
      // Of an IPv6 address, without its brackets.
      hostname: url.hostname.replace(/^\[|\]$/g, ''),
      port: url.port,
      path: target,
      method: 'POST',
      headers: { ...headers, 'content-length': body.length },
      agent,
    });
    this.#request = request;
    const breakOff = () => void this.#breakOff();
    const timer = setTimeout(() => request.destroy(new Error(`no answer within ${seconds} s`)), seconds * 1000);
    request.on('socket', (socket) => limitConnecting(request, socket, isSecure));
    this.answer = new Promise<Answer>((resolve, reject) => {
      request.on('error', reject);
      request.on('response', (response) => {
        this.#hasBegun = true;
        const parts: Buffer[] = [];
        response.on('data', (part: Buffer) => parts.push(part));
        response.on('error', reject);
        response.on('end', () => resolve(new Answer(response.statusCode ?? 0, headersOf(response), Buffer.concat(parts))));
      });
    }).finally(() => {
      clearTimeout(timer);
      signal?.removeEventListener('abort', breakOff);
    });
    if (signal?.aborted) breakOff();
    else signal?.addEventListener('abort', breakOff);
    request.end(body);
  }

  metClosedConnection(error: unknown): boolean {
    const { code } = error as NodeJS.ErrnoException;
    return this.#request.reusedSocket && !this.#hasBegun && (code === 'ECONNRESET' || code === 'EPIPE');
  }

  async #breakOff(): Promise<void> {
    // An answer that is here already is read still.
    await turn();
    await turn();
    if (this.#hasBegun) return;
    // Without a farewell, which the manager would take for a client that still listens.
    const { socket } = this.#request;
    if (socket && !socket.destroyed && !('encrypted' in socket)) socket.resetAndDestroy();
    this.#request.destroy(new Error('broken off'));
  }
}

function limitConnecting(request: http.ClientRequest, socket: Socket, isSecure: boolean): void {
  if (!socket.connecting) return;
  const timer = setTimeout(() => request.destroy(new Error(`not connected within ${CONNECT_SECONDS_MAX} s`)), CONNECT_SECONDS_MAX * 1000);
  const clear = () => clearTimeout(timer);
  socket.once(isSecure ? 'secureConnect' : 'connect', clear);
  socket.once('close', clear);
}

/** Headers are in UTF-8; Node reads them as Latin-1. */
function headersOf(response: http.IncomingMessage): Map<string, string> {
  const headers = new Map<string, string>();
  for (const [name, value] of Object.entries(response.headers)) {
    headers.set(name, Buffer.from(String(value), 'latin1').toString());
  }
  return headers;
}
