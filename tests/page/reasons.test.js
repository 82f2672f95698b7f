// Why jobs failed, grouped by reason on the overview, and what leads on from there, of a real manager.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { axe, on, open } from './browser.js';
import { FAILING, start } from './manager.js';

const HOSTILE = '<img src=x onerror=alert(1)> is no paper';

/** @type {import('playwright-core').Browser} */
let browser;
/** @type {Awaited<ReturnType<typeof start>>} */
let manager;
/** @type {string} */
let basket;
/** @type {string} the child job that failed */
let line;
before(async () => {
  browser = await open();
  manager = await start({ workflows: [FAILING] });
  for (const [number, error] of [`no page 17 of ${HOSTILE}`, `no page 4711 of ${HOSTILE}`, 'out of ink'].entries()) {
    const id = await manager.create('letters', { number });
    await manager.reaches(id, 'print', 'running');
    await manager.fail(id, 'print', error);
    await manager.ends(id, 'failed');
  }
  basket = await manager.create('baskets', { lines: [1, 2] });
  line = (await manager.children(basket, 'lines'))[1].job;
  await manager.fail(line, 'price', 'no article 8');
  await manager.ends(basket, 'failed');
});
after(async () => {
  await browser?.close();
  await manager?.stop();
});

/** The groups on the overview, once they are there. @param {import('playwright-core').Page} page */
async function groups(page) {
  await page.locator('.why-failed li').nth(2).waitFor();
  return page.locator('.why-failed li').evaluateAll((all) => all.map((row) => (row.textContent ?? '').replace(/\s+/g, ' ').trim()));
}

/** The list, once it has so many rows. @param {import('playwright-core').Page} page @param {number} count */
const listed = (page, count) => page.waitForFunction((most) => document.querySelectorAll('.jobs-table tbody tr').length === most, count);

test('the overview groups failures, and a click lists the jobs of one reason', async () => {
  await on(browser, manager, async ({ page, go }) => {
    await go('#/');
    const told = await groups(page);
    assert.equal(told.length, 3);
    // What is counted is said: the same jobs in the table, and child jobs beside them.
    assert.match(await page.getByRole('region', { name: 'Failed, by reason' }).innerText(), /4 jobs and 1 child job failed within 1h/);
    assert.match(await page.locator('.overview-table thead').innerText(), /Still failed, 1h/);
    assert.match(await page.getByRole('region', { name: 'Trends' }).innerText(), /a job counts each time that it ends, also if it was retried/);
    assert.ok(told.every((text) => !text.includes('the worker reported')), told.join('; '));
    const alike = told.find((text) => text.includes('no page #'));
    assert.match(alike ?? '', /^2 ?print: failed by hand: no page # of <img src=x onerror=alert\(#\)> is no paper letters/);
    assert.match(told.find((text) => text.includes('no article')) ?? '', /^2 ?price: failed by hand: no article # baskets ?1 child job/);
    await page.locator('a.reason', { hasText: 'no page' }).click();
    await listed(page, 2);
    await page.waitForFunction(() => document.querySelector('.filters')?.textContent?.includes('no page #'));
    await page.getByRole('button', { name: 'All of these…' }).click();
    await page.getByRole('button', { name: 'Retry', exact: true }).click();
    await page.locator('.bulk-typed').waitFor();
    assert.match(await page.locator('.bulk').innerText(), /2 jobs would be asked/);
    // The time of the overview goes along: older failures are not meant.
    const filters = await page.locator('.bulk > .row').first().innerText();
    assert.match(filters, /workflow: letters\s+reason: print: failed by hand: no page # of/);
    assert.match(filters, /ended within: 1h/);
    assert.match(await page.title(), /reason:"print: failed by hand: no page #/);
    assert.match((await page.locator('.bulk .command').last().textContent()) ?? '', /retry --workflow letters --reason-id [0-9a-f]{16} --ended-after 1h/);
  });
});

test('a reason leads to the child job that it names', async () => {
  await on(browser, manager, async ({ page, go }) => {
    await go(`#/job/${basket}`);
    const reason = page.locator('.why.failed .reason');
    await reason.waitFor();
    assert.match(await reason.innerText(), /^price of item 1: failed by hand: no article 8 \(child job .* of step "lines"\)$/);
    await reason.getByRole('link').click();
    await page.waitForFunction((id) => location.hash.includes(id), line);
  });
});

test('on a phone all states can be chosen, and the second job of a comparison is in view', async () => {
  const failed = (await manager.get('jobs/search?workflow=letters&limit=2')).jobs.map((/** @type {{ job: string }} */ one) => one.job);
  for (const colorScheme of /** @type {const} */ (['light', 'dark'])) {
    await on(browser, manager, async ({ page, go }) => {
      await go('#/jobs?state=running,paused,failed,completed,cancelled');
      const right = (/** @type {string} */ part) => page.locator(part).evaluateAll((all) => Math.max(...all.map((one) => one.getBoundingClientRect().right)));
      assert.ok((await right('.chip-state')) <= (await right('.states')) + 0.5);
      await go(`#/compare/${failed.join('/')}`);
      await page.locator('.compare-steps tbody tr').waitFor();
      assert.ok((await right('.compare td, .compare th[scope]')) <= 390);
      assert.deepEqual(await page.locator('.compare .table-wrap').evaluateAll((all) => all.map((one) => one.scrollWidth - one.clientWidth)), [0, 0]);
      assert.deepEqual(await axe(page), []);
    }, { viewport: { width: 390, height: 844 }, colorScheme, expected: /409/ });
  }
});

test('reasons are readable on a phone and in the dark', async () => {
  for (const colorScheme of /** @type {const} */ (['light', 'dark'])) {
    for (const width of [1440, 390]) {
      await on(browser, manager, async ({ page, go }) => {
        for (const [name, hash] of [['overview', '#/'], ['job', `#/job/${basket}`]]) {
          await go(hash);
          await page.locator(name === 'overview' ? '.why-failed li' : '.why.failed .reason a').first().waitFor();
          assert.deepEqual(await axe(page), []);
          assert.ok((await page.evaluate(() => document.documentElement.scrollWidth)) <= width, `${name} at ${width}`);
          if (process.env.SHOTS) await page.screenshot({ path: `${process.env.SHOTS}/reasons-${name}-${width}-${colorScheme}.png`, fullPage: true });
        }
      }, { viewport: { width, height: 844 }, colorScheme });
    }
  }
});
