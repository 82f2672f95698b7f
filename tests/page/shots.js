// Takes pictures of all views with the jobs of shop.js on a real manager, at two widths and in two themes.
//
//   node shots.js [FOLDER] [PART OF A NAME…]

import { mkdir, readFile } from 'node:fs/promises';
import { newPage, open } from './browser.js';
import { LIMITED, ORDERS, SCHEDULED } from './manager.js';
import { shop } from './shop.js';

const [folder = 'shots', ...parts] = process.argv.slice(2);
await mkdir(folder, { recursive: true });
const manager = await shop({ items: 4000, many: 6, odd: false, more: [SCHEDULED, LIMITED] });
const { ids, hashes } = manager;
const orders = await readFile(ORDERS, 'utf8');
/** Pastes a workflow file, and waits for what is said of it. @param {import('playwright-core').Page} page @param {string} text */
async function check(page, text) {
  await page.locator('#check-text').fill(text);
  await page.getByRole('button', { name: 'Check it' }).click();
  await page.waitForSelector('.check-verdict');
}
/** Name, address, and what is done there before the picture. @type {[string, string, ((page: import('playwright-core').Page) => Promise<unknown>)?][]} */
const VIEWS = [
  ['overview', '#/'],
  ['jobs', '#/jobs?state=failed,running'],
  ['job', `#/job/${ids.standing}`],
  ['job-failed', `#/job/${ids.failed}`],
  ['job-completed', `#/job/${ids.completed}`],
  ['job-person', `#/job/${ids.person}?tab=input`],
  ['job-record', `#/job/${ids.standing}?view=record&at=12&step=price-lines&tab=settings`],
  ['fanout', `#/job/${ids.large}/step/price-lines`],
  ['fanout-item', `#/job/${ids.large}/step/price-lines`, async (page) => { await page.keyboard.press('f'); await page.waitForSelector('.map-text a'); }],
  ['job-paused', `#/job/${ids.paused}?step=price-lines&tab=output`],
  ['schedules', '#/schedules?schedule=nightly'],
  ['backfill', '#/schedules?schedule=quarters-of-the-day', async (page) => { await page.getByRole('button', { name: 'Backfill…' }).click(); await page.locator('dialog').getByRole('button', { name: '7 d' }).click(); await page.getByRole('button', { name: 'Show what it would start' }).click(); }],
  ['pause', '#/', (page) => page.getByRole('button', { name: 'Pause queue pay…' }).click()],
  ['inbox', `#/inbox?job=${ids.person}&step=background-check`],
  ['inbox-marked', '#/inbox', (page) => page.getByRole('checkbox', { name: 'Mark all that are shown' }).check()],
  ['compare', `#/compare/${ids.before}/${ids.failed}?step=invoice`],
  ['attempts', `#/compare/${ids.failed}/${ids.failed}?step=invoice&attempts=1,2`],
  ['statuses', '#/statuses/job-application'],
  ['definitions', `#/definitions/orders?with=${hashes.then}`],
  ['check', '#/definitions', (page) => check(page, orders)],
  ['check-wrong', '#/definitions', (page) => check(page, orders.replaceAll('depends: [ invoice ]', 'depnds: [ invoice ]').replaceAll('timeout: ', 'timeout: x'))],
  ['manager', '#/manager'],
  ['palette', '#/', async (page) => { await page.keyboard.press('Control+k'); await page.keyboard.type('workflow:orders st'); }],
  ['help', '#/', (page) => page.keyboard.press('?')],
  ['cancel', `#/job/${ids.large}`, (page) => page.getByRole('button', { name: 'Cancel…' }).click()],
  ['complete', `#/job/${ids.person}`, (page) => page.getByRole('button', { name: 'Complete by hand…' }).click()],
  ['bulk', '#/jobs?workflow=orders&state=failed', async (page) => { await page.getByRole('button', { name: 'All of these…' }).click(); await page.locator('dialog').getByRole('button', { name: 'Retry' }).click(); }],
  ['create', '#/jobs', (page) => page.getByRole('button', { name: 'New job' }).click()],
];
const browser = await open();
for (const colorScheme of /** @type {const} */ (['light', 'dark'])) {
  for (const width of [1440, 390]) {
    const { page, context, faults, settled } = await newPage(browser, { viewport: { width, height: width === 390 ? 844 : 900 }, colorScheme, deviceScaleFactor: width === 390 ? 2 : 1 });
    await page.goto(manager.url);
    for (const [name, hash, act] of VIEWS) {
      const file = `${name}-${width}-${colorScheme}`;
      if (parts.length && !parts.some((part) => file.includes(part))) continue;
      await page.goto(`${manager.url}${hash}`);
      await settled();
      await page.waitForFunction(() => [...document.querySelectorAll('.graph')].every((one) => one.querySelector('.node')));
      if (act) {
        await act(page);
        await settled();
      }
      await page.screenshot({ path: `${folder}/${file}.png`, fullPage: width === 390 && !act });
      if (act) await page.keyboard.press('Escape');
    }
    if (faults.length) console.log(colorScheme, width, [...new Set(faults)].slice(0, 6));
    await context.close();
  }
}
await browser.close();
await manager.stop();
