// The limits on the overview, of a real manager: what they allow, who holds, and who waits.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { axe, on, open } from './browser.js';
import { LIMITED, start } from './manager.js';

/** @type {import('playwright-core').Browser} */
let browser;
/** @type {Awaited<ReturnType<typeof start>>} */
let manager;
before(async () => {
  browser = await open();
  manager = await start({ workflows: [LIMITED] });
  for (const customer of ['<b>c1</b>', '<b>c1</b>', '<b>c1</b>', 'c2']) await manager.create('accounts', { customer });
  await manager.create('payments', { customer: 'c1' });
});
after(async () => {
  await browser?.close();
  await manager?.stop();
});

/**
 * The texts of the cells of the limits' table, once it says that so many hold.
 * @param {import('playwright-core').Page} page
 */
async function rows(page) {
  await page.waitForFunction(() => [...document.querySelectorAll('.limit-table tbody tr')].some((row) => /customer/.test(row.textContent ?? '') && row.querySelectorAll('td')[4]?.textContent === '2'));
  return page.locator('.limit-table tbody tr').evaluateAll((all) => all.map((row) => [...row.querySelectorAll('td')].map((cell) => (cell.textContent ?? '').trim())));
}

test('each limit and key is told with who holds it and who waits', async () => {
  await on(browser, manager, async ({ page, go }) => {
    await go('#/');
    const told = await rows(page);
    const of = (/** @type {number} */ at, /** @type {string} */ text) => told.find((cells) => cells[at] === text) ?? [];
    assert.deepEqual(of(0, 'customer').slice(1, 7), ['1 at once', 'all of job.customer', '2', '2', '–', 'accounts']);
    assert.deepEqual(of(2, '<b>c1</b>').slice(3, 5), ['1', '2']);
    assert.deepEqual(of(2, 'c2').slice(3, 5), ['1', '0']);
    assert.deepEqual(of(0, 'bank').slice(1, 5), ['100/m, burst 1; 50 at once', '–', '1', '0']);
  });
});

test('a job says for which place it waits before it begins', async () => {
  const first = await manager.create('exports', { tenant: '<i>t1</i>' });
  const second = await manager.create('exports', { tenant: '<i>t1</i>' });
  await manager.reaches(first, 'write', 'running');
  await on(browser, manager, async ({ page, go }) => {
    await go(`#/job/${second}?step=__start__`);
    await page.waitForFunction(() => /waits for a place of limit export for <i>t1<\/i>/.test(document.querySelector('.job-when')?.textContent ?? ''));
    const fact = page.locator('.step-panel .facts > div', { hasText: 'waits for' });
    assert.match(await fact.innerText(), /a place of limit export for <i>t1<\/i>, since /);
    assert.deepEqual(await axe(page), []);
    if (process.env.SHOTS) await page.screenshot({ path: `${process.env.SHOTS}/job-waits.png` });
    await page.setViewportSize({ width: 390, height: 844 });
    assert.ok((await page.evaluate(() => document.documentElement.scrollWidth)) <= 390);
    if (process.env.SHOTS) await page.screenshot({ path: `${process.env.SHOTS}/job-waits-390.png` });
    await page.setViewportSize({ width: 1440, height: 844 });
    await manager.complete(first, 'write');
    await page.waitForFunction(() => !/waits for/.test(document.querySelector('main')?.textContent ?? 'waits for'));
  });
});

for (const colorScheme of /** @type {const} */ (['light', 'dark'])) {
  for (const width of [390, 1440]) {
    test(`the limits fit in ${width} pixels, and axe finds nothing, ${colorScheme}`, async () => {
      await on(browser, manager, async ({ page, go }) => {
        await go('#/');
        await rows(page);
        assert.ok((await page.evaluate(() => document.documentElement.scrollWidth)) <= width);
        assert.doesNotMatch(await page.locator('main').innerText(), /undefined|NaN|\[object/);
        assert.deepEqual(await axe(page), []);
        if (process.env.SHOTS) await page.screenshot({ path: `${process.env.SHOTS}/limits-${width}-${colorScheme}.png`, fullPage: true });
      }, { colorScheme, viewport: { width, height: 844 } });
    });
  }
}

test('a manager without limits shows no table of them', async () => {
  await on(browser, manager, async ({ page, go }) => {
    await page.route(/\/api\/limits(\?|$)/, (route) => route.fulfill({ contentType: 'application/json', body: '{"limits":[]}' }));
    await go('#/');
    await page.waitForSelector('.queue-table');
    assert.equal(await page.locator('.limit-table').count(), 0);
  });
});
