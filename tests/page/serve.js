// Serves page/ as the manager does, with the same headers, and passes /api on to a manager.
//
//   node serve.js [PORT] [http://127.0.0.1:8088]

import { createHash } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { createServer, request } from 'node:http';
import { extname, join, normalize } from 'node:path';
import { fileURLToPath } from 'node:url';

const PAGE = fileURLToPath(new URL('../../page/', import.meta.url));

export const HEADERS = {
  'Content-Security-Policy':
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; worker-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types lit-html page",
  'X-Content-Type-Options': 'nosniff',
  'Referrer-Policy': 'no-referrer',
  'Cross-Origin-Opener-Policy': 'same-origin',
  'Cross-Origin-Resource-Policy': 'same-origin',
};

const TYPES = { '.html': 'text/html; charset=utf-8', '.js': 'text/javascript; charset=utf-8', '.css': 'text/css; charset=utf-8', '.svg': 'image/svg+xml', '.json': 'application/json' };

/**
 * @param {{ port?: number, to: string, prefix?: string }} options
 */
export async function serve({ port = 0, to, prefix = '' }) {
  const server = createServer(async (incoming, response) => {
    const url = new URL(incoming.url ?? '/', 'http://localhost');
    if (!url.pathname.startsWith(`${prefix}/`)) {
      response.writeHead(404).end();
      return;
    }
    const path = url.pathname.slice(prefix.length);
    if (path.startsWith('/api/') || path === '/metrics' || path.startsWith('/readyz')) {
      incoming.url = path + url.search;
      pass(to, incoming, response);
      return;
    }
    const asset = /^\/assets\/[^/]+\/(.+)$/.exec(path);
    const name = path === '/' ? 'index.html' : asset ? normalize(decodeURIComponent(asset[1])) : '';
    if (!name || name.startsWith('..')) {
      response.writeHead(404, HEADERS).end();
      return;
    }
    try {
      const body = await readFile(join(PAGE, name));
      const etag = `"${createHash('sha256').update(body).digest('hex').slice(0, 16)}"`;
      response.writeHead(200, { ...HEADERS, 'Content-Type': TYPES[extname(name)] ?? 'text/plain; charset=utf-8', 'Cache-Control': 'no-cache', ETag: etag }).end(body);
    } catch {
      response.writeHead(404, HEADERS).end();
    }
  });
  await new Promise((resolve) => server.listen(port, '127.0.0.1', () => resolve(undefined)));
  const address = /** @type {import('node:net').AddressInfo} */ (server.address());
  return {
    url: `http://127.0.0.1:${address.port}${prefix}/`,
    close: () => {
      server.closeAllConnections();
      return new Promise((resolve) => server.close(() => resolve(undefined)));
    },
  };
}

/** Streams included: nothing is gathered on the way. */
function pass(to, incoming, response) {
  const url = new URL(incoming.url, to);
  const headers = { ...incoming.headers, host: url.host };
  if (headers.origin) headers.origin = url.origin;
  const onward = request(url, { method: incoming.method, headers }, (answer) => {
    response.writeHead(answer.statusCode ?? 502, answer.headers);
    answer.pipe(response);
  });
  onward.on('error', () => response.writeHead(502).end());
  response.on('close', () => onward.destroy());
  incoming.pipe(onward);
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const [port = '8090', to = 'http://127.0.0.1:8088'] = process.argv.slice(2);
  console.log((await serve({ port: Number(port), to })).url);
}
