/** The addresses of managers of which one is active, and the one in use. */

import { withoutPassword } from './log.js';

const SECURE = 'https:';

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
    if (!['http:', SECURE].includes(protocol) || hash || [...searchParams.keys()].some((key) => key !== 'vhost')) {
      throw new TypeError(`the manager's address is "${this.text}", but should look like http://host:8088 or http://host:8088?vhost=name`);
    }
  }

  get isSecure(): boolean {
    return this.url.protocol === SECURE;
  }

  /** What the same address has in common, however it is written. */
  get place(): string {
    return this.url.origin + this.prefix;
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
    if (this.#listed.some((address) => address.isSecure !== this.#current.isSecure)) {
      throw new TypeError(`the addresses ${shown} mix http:// and https://: the token would go both in clear and encrypted`);
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
