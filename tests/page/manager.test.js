// The page on a real manager, with the embedded bus: steps are completed by hand. It runs if WORKFLOW_MANAGER names the program.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { newPage, open } from './browser.js';
import { serve } from './serve.js';

const PROGRAM = process.env.WORKFLOW_MANAGER;

/** @param {string} folder @param {number} port */
async function start(folder, port) {
  const manager = spawn(/** @type {string} */ (PROGRAM), ['serve', '--workflows', fileURLToPath(new URL('shop.yaml', import.meta.url)), '--db', join(folder, 'journal.db'), '--listen', String(port)], { stdio: ['ignore', 'ignore', 'pipe'], env: { ...process.env, AMQP_SERVER: '' } });
  let said = '';
  manager.stderr.on('data', (text) => { said += text; });
  for (let tries = 0; tries < 100; tries += 1) {
    try {
      if ((await fetch(`http://127.0.0.1:${port}/readyz`)).ok) return manager;
    } catch {
      // Not yet.
    }
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
  throw new Error(`the manager does not start: ${said}`);
}

test('an order from its beginning to its end, on a real manager', { skip: PROGRAM ? false : 'WORKFLOW_MANAGER is not set' }, async () => {
  const folder = await mkdtemp(join(tmpdir(), 'page-'));
  const port = 20_000 + Math.floor(Math.random() * 20_000);
  const manager = await start(folder, port);
  const api = `http://127.0.0.1:${port}`;
  // A manager that serves the page itself is tested with its own headers, unless PAGE_FROM_FILES asks for the page as it is in the folder.
  const own = !process.env.PAGE_FROM_FILES && (await fetch(`${api}/`)).headers.get('content-type')?.startsWith('text/html') === true;
  const site = own ? { url: `${api}/`, close: async () => {} } : await serve({ to: api });
  const browser = await open();
  const post = async (/** @type {string} */ path, /** @type {unknown} */ body) => {
    const response = await fetch(`${api}${path}`, { method: 'POST', body: JSON.stringify(body) });
    const text = await response.text();
    assert.ok(response.ok, `${path}: ${text}`);
    return JSON.parse(text);
  };
  const get = async (/** @type {string} */ path) => (await fetch(`${api}${path}`)).json();
  try {
    const { page, faults, origins } = await newPage(browser, { expected: /40[049]/ });
    const { id } = await post('/api/workflow/orders', { customer: 'Ada', number: 12345678901234567890n.toString(), lines: [{ article: 'pen', cents: 3 }, { article: 'ink', cents: 4 }, { article: 'paper', cents: 5 }] });
    await page.goto(`${site.url}#/job/${id}`);
    await page.waitForSelector('.node[data-step=price-lines].running, .outline a');
    await page.waitForFunction(() => document.querySelector('.light')?.textContent?.includes('Live'));
    const { children } = await get(`/api/job/${id}/children`);
    for (const child of children.slice(0, 2)) await post(`/api/job/${child.job}/step/price`, { line: { cents: 7 } });
    await page.goto(`${site.url}#/job/${id}/step/price-lines`);
    await page.waitForSelector('.fanout');
    await page.waitForFunction(() => /66\.7 %/.test(document.querySelector('.fan-figures')?.textContent ?? ''));
    await page.goto(`${site.url}#/job/${children[2].job}`);
    await page.getByRole('button', { name: 'Complete by hand…' }).click();
    await page.getByLabel('Output, a JSON object').fill('{"line":{"article":"paper","cents":5}}');
    await page.getByRole('button', { name: 'Complete it' }).click();
    await page.waitForFunction(() => document.querySelector('.job-title .badge')?.textContent?.trim() === 'completed');
    await page.goto(`${site.url}#/job/${id}?step=fraud-check`);
    await page.getByRole('button', { name: 'Fail…' }).click();
    await page.getByLabel('Reason').fill('<b>no</b> \u202Eway');
    await page.getByRole('button', { name: 'Fail it' }).click();
    await page.waitForSelector('.step-panel .reason-box');
    await post(`/api/job/${id}/step/fraud-check`, { score: 0.5 }).catch(() => {});
    await page.waitForFunction(() => [...document.querySelectorAll('.time-row')].some((row) => row.textContent?.includes('invoice') && !row.textContent.includes('waiting')), undefined, { timeout: 10_000 });
    await page.goto(`${site.url}#/job/${id}?step=invoice&tab=input`);
    await page.getByRole('button', { name: 'Complete by hand…' }).click();
    await page.getByLabel('Output, a JSON object').fill('{"cents":19.90}');
    await page.getByRole('button', { name: 'Complete it' }).click();
    await page.waitForFunction(() => document.querySelector('.job-title .badge')?.textContent?.trim() === 'completed');
    await page.goto(`${site.url}#/job/${id}?step=__end__`);
    await page.waitForFunction(() => /19\.90/.test(document.querySelector('.step-panel .code')?.textContent ?? ''));
    // Back in the record.
    await page.goto(`${site.url}#/job/${id}?view=record`);
    await page.waitForSelector('.record-row a');
    await page.keyboard.press('[');
    await page.waitForSelector('.in-past');
    await page.waitForFunction(() => /running/.test(document.querySelector('.job-title .badge')?.textContent ?? ''));
    await page.goto(`${site.url}#/job/${id}?step=invoice`);
    await page.getByRole('button', { name: 'Run again from here…' }).click();
    await page.locator('dialog').getByRole('button', { name: /^Run (1 step|it) again$/ }).click();
    await page.waitForFunction(() => document.querySelector('.job-title .badge')?.textContent?.trim() === 'running');
    await page.getByRole('button', { name: 'Cancel…' }).click();
    await page.getByRole('button', { name: 'Cancel it' }).click();
    await page.waitForFunction(() => document.querySelector('.job-title .badge')?.textContent?.trim() === 'cancelled');
    for (const hash of ['#/', '#/jobs?workflow=orders', '#/statuses/orders', '#/definitions/orders', '#/manager']) {
      await page.goto(`${site.url}${hash}`);
      await page.waitForTimeout(500);
      assert.doesNotMatch(await page.locator('main').innerText(), /undefined|NaN|\[object/, hash);
      if (process.env.SHOTS) await page.screenshot({ path: join(process.env.SHOTS, `real-${hash.replace(/\W+/g, '-')}.png`) });
    }
    if (process.env.SHOTS) {
      await page.goto(`${site.url}#/job/${id}`);
      await page.waitForTimeout(700);
      await page.screenshot({ path: join(process.env.SHOTS, 'real-job.png') });
    }
    assert.deepEqual([...new Set(faults)], []);
    assert.deepEqual([...origins], [new URL(site.url).origin]);
  } finally {
    await browser.close();
    await site.close();
    manager.kill('SIGTERM');
    await new Promise((resolve) => manager.once('exit', resolve));
    await rm(folder, { recursive: true, force: true });
  }
});
