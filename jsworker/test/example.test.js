/** The worker of the examples, in a directory that has the package as users have it. */

import assert from 'node:assert/strict';
import { execFileSync, spawn } from 'node:child_process';
import { cpSync, mkdirSync, mkdtempSync, rmSync, symlinkSync } from 'node:fs';
import { once } from 'node:events';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { Daemon } from './parts.js';

const PACKAGE = join(import.meta.dirname, '..');
const EXAMPLE = join(PACKAGE, '../examples/workers/node/price.mjs');

test('examples/workers/node prices a line', async (t) => {
  const directory = mkdtempSync(join(tmpdir(), 'jsworker-'));
  t.after(() => rmSync(directory, { recursive: true }));
  mkdirSync(join(directory, 'node_modules'));
  symlinkSync(PACKAGE, join(directory, 'node_modules/jsworker'));
  cpSync(EXAMPLE, join(directory, 'price.mjs'));
  const daemon = await Daemon.start(t, 'workflows: [{ name: orders, steps: [{ name: price }] }]');
  const worker = spawn(process.execPath, ['price.mjs', '--server', daemon.url], { cwd: directory, stdio: 'inherit' });
  t.after(async () => {
    worker.kill();
    if (worker.exitCode === null) await once(worker, 'exit');
  });
  const result = await daemon.result(await daemon.create('orders', { line: { article: 'pen', count: 3 } }));
  assert.equal(result, '{"line":{"article":"pen","count":3,"cents":750}}');
  const { reason } = await daemon.ended(await daemon.create('orders', { line: { article: 'quill', count: 2 } }), 'failed');
  assert.ok(reason.includes('there is no price for quill'), reason);
});

test('the package has what it needs, and no more', () => {
  const [{ files }] = JSON.parse(execFileSync('npm', ['pack', '--dry-run', '--json', '--ignore-scripts'], { cwd: PACKAGE, encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] }));
  const names = files.map(({ path }) => path);
  assert.ok(['package.json', 'README.md', 'dist/index.js', 'dist/index.d.ts'].every((name) => names.includes(name)), `${names}`);
  assert.deepEqual(names.filter((name) => !name.startsWith('dist/')).sort(), ['README.md', 'package.json']);
});
