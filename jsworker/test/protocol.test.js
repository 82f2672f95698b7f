/** The worker under `workflow-manager worker-test`, which judges it by docs/reference/worker-protocol.md, over each transport. */

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { required } from './parts.js';

// The last is one for the earlier jsworker, which knows AMQP alone.
for (const [program, bus] of [['worker_program.js', 'amqp'], ['worker_program.js', 'http'], ['worker_program.js', 'grpc'], ['earlier_worker.cjs', 'amqp']]) {
  test(`${program} keeps the worker protocol over ${bus}`, (t) => {
    const directory = mkdtempSync(join(tmpdir(), 'jsworker-'));
    t.after(() => rmSync(directory, { recursive: true, force: true }));
    const queue = `jsworker-protocol-${process.pid}-${program}-${bus}`;
    const worker = [process.execPath, join(import.meta.dirname, program), directory, `${queue}=raw`];
    const options = ['worker-test', queue, '--bus', bus, '--message', '{"n":1}', '--', ...worker];
    const { status, stdout, stderr } = spawnSync(required('WORKFLOW_MANAGER'), options, { encoding: 'utf8', timeout: 300_000, env: { ...process.env, AMQP_SERVER: required('AMQP_SERVER') } });
    assert.equal(status, 0, stdout + stderr);
    assert.doesNotMatch(stdout, / # advice$/m);
  });
}
