/** The addresses of managers of which one is active, and the one in use. */

import { withoutPassword } from './log.js';

const SECURE = ['https:', 'grpcs:'];
const SCHEMES = ['http:', 'grpc:', ...SECURE];
/** That of gRPC is the one of the documentation's examples. */
const GRPC_PORT = '8089';

/** A manager's address. */
export class Address {
  /** For the log. */
  readonly text: string;
  readonly url: URL;

  constructor(text: string) {
    this.text = withoutPassword(text);
    try {
      this.url = new URL(text);
    } catch {
      throw new TypeError(`the manager's address is "${this.text}", but should look like http://host:8088`);
    }
    const { username, password, hash, searchParams, protocol } = this.url;
    if (username || password) throw new TypeError(`the address of a manager (${this.text}) has no user: give its token in WORKFLOW_MANAGER_TOKEN`);
    const isGrpc = protocol.startsWith('grpc');
    if (!SCHEMES.includes(protocol) || !this.url.hostname || (isGrpc && this.prefix) || hash || [...searchParams.keys()].some((key) => key !== 'vhost')) {
      const example = isGrpc ? `grpc://host:${GRPC_PORT}` : 'http://host:8088';
      throw new TypeError(`the manager's address is "${this.text}", but should look like ${example} or ${example}?vhost=name`);
    }
  }

  get isSecure(): boolean {
    return SECURE.includes(this.url.protocol);
  }

  /** The virtual host of the queues; '' if none is named. */
  get vhost(): string {
    return this.url.searchParams.get('vhost') ?? '';
  }

  /** For gRPC: the host, and the port. */
  get hostAndPort(): string {
    return `${this.url.hostname}:${this.url.port || GRPC_PORT}`;
  }

  /** What the same address has in common, however it is written. */
  get place(): string {
    return `${this.url.protocol}//${this.url.host}${this.prefix}`;
  }

  get prefix(): string {
    return this.url.pathname.replace(/\/+$/, '');
  }

  /** The address that a manager at this one has named. It has the same virtual host. */
  named(text: string): Address {
    const address = new Address(text);
    if (address.url.search) throw new TypeError('it is not the address of a manager');
    address.url.search = this.url.search;
    return address;
  }

  /** The target of a request. `path` may have a query. */
  target(path: string, query: Record<string, string | undefined>): string {
    const [before = '', given] = path.split('?', 2);
    const values = { ...Object.fromEntries(this.url.searchParams), ...Object.fromEntries(new URLSearchParams(given)), ...query };
    const pairs = Object.entries(values).flatMap(([key, value]) => (value === undefined ? [] : `${key}=${encodeURIComponent(value)}`));
    return this.prefix + before + (pairs.length > 0 ? `?${pairs.join('&')}` : '');
  }
}

/** What was given, with commas in between, and the one in use. */
export class Addresses {
  readonly #listed: readonly Address[];
  #index = 0;
  #current: Address;

  constructor(text: string) {
    this.#listed = text.split(',').map((part) => new Address(part.trim()));
    const shown = this.#listed.map((address) => address.text).join(', ');
    this.#current = this.#listed[0]!;
    const schemes = [...new Set(this.#listed.map((address) => `${address.url.protocol}//`))].sort();
    if (schemes.length > 1) {
      const isMixed = this.#listed.some((address) => address.isSecure !== this.#current.isSecure);
      throw new TypeError(`the addresses ${shown} mix ${schemes.join(' and ')}: ${isMixed ? 'the token would go both in clear and encrypted' : 'they need the same scheme'}`);
    }
    if (this.#listed.some((address) => address.url.search !== this.#current.url.search)) throw new TypeError(`the addresses ${shown} need the same vhost`);
  }

  get current(): Address {
    return this.#current;
  }

  /** Goes to the next of the list, unless another call has left this one already. */
  leave(address: Address): void {
    if (this.#current.place !== address.place) return;
    this.#index = (this.#index + 1) % this.#listed.length;
    this.#current = this.#listed[this.#index]!;
  }

  /**
   * Goes where the manager at this address says that the active one is, be it of the list or not. Gives '' or why that is not
   * done: it is no address, or the token would go there in clear. Then it is as `leave`.
   */
  follow(address: Address, text: string): string {
    let named: Address;
    try {
      named = address.named(text);
      if (this.#listed[0]!.isSecure && !named.isSecure) throw new TypeError('the token would go there in clear');
    } catch (error) {
      this.leave(address);
      return `; it names ${JSON.stringify(text)}, which is not asked: ${(error as Error).message}`;
    }
    if (this.#current.place !== address.place) return '';
    const index = this.#listed.findIndex((listed) => listed.place === named.place);
    if (index >= 0) this.#index = index;
    this.#current = named;
    return '';
  }
}
