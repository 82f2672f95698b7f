// Budgets, by the page's own clock: jobs with very many items, a list over very many jobs.

import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { on, open, quickest } from './browser.js';
import { folder, ODD, start, until } from './manager.js';

/** The journal with a million takes minutes to be made: `PAGE_JOBS=1000000`. */
const JOBS = Number(process.env.PAGE_JOBS ?? 100_000);
const settings = { FANOUT__CHILDREN_MAX: '1000000', FANOUT__WINDOW_BYTES: '1000000000' };

/** @type {import('playwright-core').Browser} */
let browser;
before(async () => { browser = await open(); });
after(() => browser?.close());

/** A list of so many items, as text. @param {number} many @param {(n: number) => string} item */
const list = (many, item) => `{"items":[${Array.from({ length: many }, (_, n) => item(n)).join(',')}]}`;

/** Whether the map of the items is drawn. */
const mapped = () => {
  const canvas = /** @type {HTMLCanvasElement | null} */ (document.querySelector('canvas.map'));
  const context = canvas?.getContext('2d');
  return !!canvas && !!context && canvas.width > 300 && context.getImageData(4, 4, 1, 1).data[3] > 0;
};

test('a job of 100,000 child jobs opens within 1 s; a map of 1,000,000 items within 1.5 s', async () => {
  const manager = await start({ workflows: [ODD], settings });
  try {
    const many = await manager.create('many', list(100_000, (n) => `{"n":${n}}`));
    const most = await until('the job with a million items is created', () => manager.create('most', list(1_000_000, (n) => String(n % 10))).catch((error) => {
      if (!/: 503 /.test(error.message)) throw error;
    }), 120_000);
    await until('100,000 child jobs', async () => (await manager.get(`job/${many}/step/all/items`)).running === 100_000, 120_000);
    await until('2,000 child jobs', async () => (await manager.get(`job/${most}/step/all/items`)).running === 2000, 120_000);
    // Their items count as running from the commit of their parent on, they themselves follow.
    const children = await until('60 child jobs are created', async () => {
      const { children } = await manager.get(`job/${most}/children?limit=60`);
      return children.length === 60 && children;
    });
    for (const { job, item } of children) await (item % 7 === 3 ? manager.fail(job, 'work', `item ${item} broke`) : manager.complete(job, 'work'));
    await until('60 have ended', async () => {
      const { completed, failed } = await manager.get(`job/${most}/step/all/items`);
      return completed + failed === 60;
    });
    await on(browser, manager, async (on) => {
      const { page } = on;
      const job = await quickest(on, '#/jobs', `#/job/${many}`, () => !!document.querySelector('.node[data-step=all].running'), 1000);
      assert.ok(job <= 1000, `the job took ${job} ms`);
      const map = await quickest(on, '#/jobs', `#/job/${most}/step/all`, mapped, 1500);
      assert.ok(map <= 1500, `the map took ${map} ms`);
      console.log(`a job of 100,000 child jobs: ${Math.round(job)} ms; a map of 1,000,000 items: ${Math.round(map)} ms`);
      await page.keyboard.press('f');
      await page.waitForFunction(() => /failed/.test(document.querySelector('.map-text')?.textContent ?? ''));
      await page.waitForSelector('.map-text a');
      await page.locator('canvas.map').click({ position: { x: 300, y: 100 } });
      await page.waitForFunction(() => /items [\d,]+ to [\d,]+:/.test(document.querySelector('.map-text')?.textContent ?? ''));
      // After its end a job's map comes from the journal.
      await manager.post(`job/${many}/cancel`);
      await until('the end is told to all child jobs', async () => (await manager.get(`job/${many}/step/all/items`)).running === 0 || (await manager.light(many)).state === 'cancelled', 120_000);
      const ended = await quickest(on, '#/jobs', `#/job/${many}`, () => !!document.querySelector('.node[data-step=all].cancelled'), 1000);
      assert.ok(ended <= 1000, `the ended job took ${ended} ms`);
    });
  } finally {
    await manager.stop();
  }
});

test(`a list over ${JOBS.toLocaleString('en-US')} jobs is there within 300 ms`, async () => {
  const files = await folder();
  const journal = join(files.path, 'journal.db');
  let manager = await start({ workflows: [ODD], journal });
  try {
    for (let n = 0; n < 20; n += 1) await manager.create('short', n % 5 ? { go: false } : {});
    await manager.stop();
    await promisify(execFile)('python3', [fileURLToPath(new URL('more-jobs.py', import.meta.url)), journal, String(JOBS)]);
    manager = await start({ workflows: [ODD], journal });
    assert.ok((await manager.get('workflow/short?interval=0&limit=1')).next);
    await on(browser, manager, async (on) => {
      for (const [address, row] of [['#/jobs', /completed/], ['#/jobs?workflow=short&state=failed', /failed/], ['#/statuses/short?only=SKIPPED', /SKIPPED/]]) {
        const took = await quickest(on, '#/manager', /** @type {string} */ (address), String(address).startsWith('#/jobs') ? () => document.querySelectorAll('.jobs-table tbody tr').length >= 50 : () => document.querySelectorAll('.sheet tbody tr').length >= 20, 300);
        assert.match(await on.page.locator('tbody tr').first().innerText(), /** @type {RegExp} */ (row));
        console.log(`${address}: ${Math.round(took)} ms`);
        assert.ok(took <= 300, `${address} took ${took} ms`);
      }
      await on.go('#/jobs?workflow=short&state=failed');
      assert.match(await on.page.locator('main').innerText(), /10,000|20,000/);
    });
  } finally {
    await manager.stop();
    await files.remove();
  }
});
