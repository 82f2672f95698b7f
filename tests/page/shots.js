// Takes pictures of all views, at two widths and in two themes.
//
//   node shots.js [FOLDER] [PART OF A NAME…]

import { mkdir } from 'node:fs/promises';
import { newPage, open } from './browser.js';
import { demo } from './fake.js';
import { serve } from './serve.js';

const [folder = 'shots', ...parts] = process.argv.slice(2);
await mkdir(folder, { recursive: true });
const fake = demo();
const { ids } = fake;
const site = await serve({ to: fake.answer });
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
  ['statuses', '#/statuses/job-application'],
  ['definitions', '#/definitions/orders?with=77c0de12ab5490fe31c8d2b7a96e5f04d3c2b1a09f8e7d6c5b4a39281706f5e4'],
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
    const { page, context, faults } = await newPage(browser, { viewport: { width, height: width === 390 ? 844 : 900 }, colorScheme, deviceScaleFactor: width === 390 ? 2 : 1 });
    await page.goto(site.url);
    for (const [name, hash, act] of VIEWS) {
      const file = `${name}-${width}-${colorScheme}`;
      if (parts.length && !parts.some((part) => file.includes(part))) continue;
      await page.goto(`${site.url}${hash}`);
      await page.waitForTimeout(900);
      if (act) {
        await act(page);
        await page.waitForTimeout(500);
      }
      await page.screenshot({ path: `${folder}/${file}.png`, fullPage: width === 390 && !act });
      if (act) await page.keyboard.press('Escape');
    }
    if (faults.length) console.log(colorScheme, width, [...new Set(faults)].slice(0, 6));
    await context.close();
  }
}
await browser.close();
await site.close();
process.exit(0);
