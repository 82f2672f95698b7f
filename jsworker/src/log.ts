/** Where the lines of the log go. */

import { debuglog } from 'node:util';

const isDebugging = debuglog('jsworker').enabled;

/** Takes the lines of the log; `console` is one. */
export interface Log {
  info(line: string): void;
  warn(line: string): void;
  error(line: string): void;
  /** One line for each message. Without it they are not told. */
  debug?(line: string): void;
}

/** Writes to standard error, with the time and the level. DEBUG is told with `NODE_DEBUG=jsworker` in the environment. */
export const standardError: Log = {
  info: (line) => write('INFO', line),
  warn: (line) => write('WARN', line),
  error: (line) => write('ERROR', line),
  debug: (line) => {
    if (isDebugging) write('DEBUG', line);
  },
};

function write(level: string, line: string): void {
  process.stderr.write(`${new Date().toISOString()} ${level} jsworker: ${line}\n`);
}

/** An address for the log, without its user and password. */
export function withoutPassword(address: string): string {
  const end = address.lastIndexOf('@');
  if (end < 0) return address;
  const start = address.indexOf('://');
  return (start >= 0 && start < end ? address.slice(0, start + 3) : '') + address.slice(end + 1);
}

/** The text of an error; those of several addresses of one host, and some of sockets, have none of their own. */
export function reasonOf(error: unknown): string {
  if (error instanceof AggregateError && error.errors.length > 0) return reasonOf(error.errors[0]);
  if (error instanceof Error) return error.message || String((error as NodeJS.ErrnoException).code ?? error.name);
  return String(error);
}
