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
const VIEWS = /** @type {[string, string][]} */ ([
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
]);
const browser = await open();
for (const colorScheme of /** @type {const} */ (['light', 'dark'])) {
  for (const width of [1440, 390]) {
    const { page, context, faults } = await newPage(browser, { viewport: { width, height: width === 390 ? 844 : 900 }, colorScheme, deviceScaleFactor: width === 390 ? 2 : 1 });
    await page.goto(site.url);
    for (const [name, hash] of VIEWS) {
      const file = `${name}-${width}-${colorScheme}`;
      if (parts.length && !parts.some((part) => file.includes(part))) continue;
      await page.goto(`${site.url}${hash}`);
      await page.waitForTimeout(900);
      await page.screenshot({ path: `${folder}/${file}.png`, fullPage: width === 390 });
    }
    if (faults.length) console.log(colorScheme, width, [...new Set(faults)].slice(0, 6));
    await context.close();
  }
}
await browser.close();
await site.close();
process.exit(0);
