// What the page shows at a manager that stands by, and that it goes on by itself when that one becomes active.
// The journal is a database of PostgreSQL: POSTGRES_URL and POSTGRES_BIN name a server, as `tests/postgres` starts it.

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { axe, on, open } from './browser.js';
import { ODD, start, until } from './manager.js';

const { POSTGRES_URL = '', POSTGRES_BIN = '' } = process.env;
const DATABASE = `page_${process.pid}`;
const ACTIVE = 'http://active.example:8088';

/** @type {import('playwright-core').Browser} */
let browser;
/** @type {import('./manager.js').Manager} */
let active;
/** @type {import('./manager.js').Manager} */
let standby;

/** @param {string} command */
const sql = (command) => execFileSync(join(POSTGRES_BIN, 'psql'), ['-qXc', command, `${POSTGRES_URL}/postgres`]);

/** @param {string} address @param {boolean} [waits] */
const manager = (address, waits) => start({ workflows: [ODD], waits, settings: { JOURNAL__URL: `${POSTGRES_URL}/${DATABASE}`, HTTP__PUBLIC_URL: address } });

before(async () => {
  assert.ok(POSTGRES_URL, 'POSTGRES_URL is needed: tests/postgres start FOLDER, . FOLDER/env');
  sql(`CREATE DATABASE ${DATABASE} TEMPLATE template0 ENCODING 'UTF8'`);
  browser = await open();
  active = await manager(ACTIVE);
  standby = await manager('http://standby.example:8088', true);
});
after(async () => {
  await browser?.close();
  await standby?.stop();
  await active?.stop();
  sql(`DROP DATABASE IF EXISTS ${DATABASE} WITH (FORCE)`);
});

const VIEWS = ['#/', '#/schedules', '#/jobs', '#/statuses/short', '#/definitions/short', '#/manager'];
/** What changes something. */
const OPERATIONS = /^(New job|Cancel…|Pause.*|Resume|Trigger…|Backfill…|Retry|Complete by hand…|Fail…|Send again…|Reload the workflow files…|All of these…)$/;

test('a standby shows everything, names the active one, and offers no operation', async () => {
  const id = await active.create('short', { go: true });
  for (const options of [{}, { viewport: { width: 390, height: 844 } }, { viewport: { width: 390, height: 844 }, colorScheme: /** @type {const} */ ('dark') }, { colorScheme: /** @type {const} */ ('dark') }]) {
    await on(browser, standby, async ({ page, go }) => {
      for (const view of [...VIEWS, `#/job/${id}`]) {
        await go(view);
        const bar = page.locator('main > .standby');
        await bar.waitFor();
        assert.match(await bar.innerText(), /This manager stands by\.[^]*Active is http:\/\/active\.example:8088 since/, view);
        assert.equal(await bar.locator('a').getAttribute('href'), `${ACTIVE}/`, view);
        assert.equal(await page.locator('main > .unready').count(), 0, view);
        const offered = await page.locator('main button').allInnerTexts();
        assert.deepEqual(offered.filter((name) => OPERATIONS.test(name.trim())), [], view);
        const wide = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
        assert.equal(wide, 0, `${view} is wider than the screen`);
        if (process.env.SHOTS) await page.screenshot({ path: `${process.env.SHOTS}/${view.replaceAll(/\W/g, '').slice(0, 8) || 'overview'}-${options.viewport?.width ?? 1440}-${options.colorScheme ?? 'light'}.png`, fullPage: true });
      }
      await page.locator('.job-title').getByText(id.slice(0, 8)).waitFor();
      await go('#/manager');
      const panel = page.getByRole('region', { name: 'Cluster' });
      await panel.getByText('http://standby.example:8088').waitFor();
      const rows = (await panel.locator('tbody tr').allInnerTexts()).map((row) => /\b(active|standby)\b/.exec(row)?.[1]);
      assert.deepEqual(rows.sort(), ['active', 'standby']);
      assert.deepEqual(await axe(page), []);
    }, { ...options, expected: /503/ });
  }
});

test('a page at a standby that becomes active goes on by itself', async () => {
  const id = await active.create('short', { go: true });
  await on(browser, standby, async ({ page }) => {
    await page.goto(`${standby.url}#/job/${id}`);
    await page.locator('main > .standby').waitFor();
    await active.stop();
    await page.locator('main > .standby').waitFor({ state: 'detached' });
    await page.getByRole('button', { name: 'Cancel…' }).waitFor();
    await page.waitForFunction(() => document.querySelector('.light')?.textContent === 'Live');
    await until('the job can be cancelled', () => standby.post(`job/${id}/cancel`).then(() => true));
    await page.locator('.job-title').getByText('cancelled').waitFor();
    // What did not get an answer while the servers changed belongs to it.
  }, { expected: /503|ERR_/ });
});
