// How the page opens: something is there at once, in its place, and an empty view within its budget.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { axe, newPage, on, open } from './browser.js';
import { ODD, start, until } from './manager.js';

/** The promise is 0.3 s on an idle machine. Others may be at work on this one. */
const BUDGET = 3000;

/** @type {import('playwright-core').Browser} */
let browser;
/** @type {import('./manager.js').Manager} */
let manager;
before(async () => {
  browser = await open();
  manager = await start({ workflows: [ODD] });
});
after(async () => {
  await browser?.close();
  await manager?.stop();
});

/** Holds what is asked for until it is let go. @param {import('playwright-core').Page} page @param {RegExp} address */
async function holding(page, address) {
  let letGo = () => {};
  const free = new Promise((resolve) => { letGo = () => resolve(undefined); });
  await page.route(address, async (route) => {
    await free;
    await route.continue().catch(() => {});
  });
  return () => letGo();
}

test('before the page has its files and its answers it shows where they will be', async () => {
  const id = await manager.create('short', { go: true });
  for (const viewport of [{ width: 1440, height: 900 }, { width: 390, height: 844 }]) {
    for (const [view, there] of [['#/', '.overview'], ['#/jobs', '.jobs'], [`#/job/${id}`, '.job'], ['#/statuses/short', '.statuses'], ['#/definitions/short', '.definitions'], ['#/manager', '.manager'], ['#/inbox', '.inbox'], ['#/schedules', '.schedules']]) {
      await on(browser, manager, async ({ page }) => {
        const files = await holding(page, /\/main\.js$/);
        const answers = await holding(page, /\/api\//);
        await page.goto(`${manager.url}${view}`, { waitUntil: 'commit' });
        await page.waitForSelector('#page > .shell .skeleton i');
        assert.equal(await page.locator('nav').count(), 0, 'the page itself is not there yet');
        files();
        await page.waitForSelector('nav');
        await page.waitForSelector('main .skeleton i');
        assert.match(await page.locator('main h1').innerText(), /: loading$/, view);
        assert.deepEqual(await axe(page), []);
        assert.equal(await page.locator(there).count(), 0, view);
        answers();
        await page.waitForSelector(there);
        assert.equal(await page.locator('.skeleton').count(), 0, view);
      }, { viewport });
    }
  }
});

test('all modules come with the first script: none is asked for by itself', async () => {
  await on(browser, manager, async ({ page, go, asked }) => {
    await page.goto(manager.url);
    await page.waitForSelector('.overview');
    for (const [view, there] of [['#/jobs', '.jobs'], ['#/inbox', '.inbox'], ['#/definitions/short', '.definitions'], ['#/manager', '.manager']]) {
      await go(view);
      await page.waitForSelector(there);
    }
    const scripts = asked.filter((call) => /\/assets\/.*\.js$/.test(call)).map((call) => call.replace(/.*\/assets\/[^/]+\//, ''));
    const first = scripts.filter((file) => !['lib/layout-worker.js', 'vendor/dagre@3.1.3/dagre.esm.js'].includes(file));
    assert.deepEqual([...new Set(first)], ['main.js']);
  });
});

test('an empty view opens at once, with nothing in the cache', async () => {
  const empty = await start({ workflows: [] });
  try {
    let best = Infinity;
    for (let tries = 0; tries < 5 && best > 300; tries += 1) {
      // Each context has a cache of its own.
      const { page, context } = await newPage(browser);
      await page.addInitScript(() => {
        const look = () => {
          if (document.querySelector('.overview .first')) /** @type {any} */ (globalThis).opened = performance.now();
          else requestAnimationFrame(look);
        };
        look();
      });
      await page.goto(empty.url);
      best = Math.min(best, await (await page.waitForFunction(() => /** @type {any} */ (globalThis).opened)).jsonValue());
      // The clock asks for them again after 5 s.
      const asked = await page.evaluate(() => performance.getEntriesByType('resource').filter(({ name }) => name.includes('/api/workflows')).map(({ startTime }) => startTime));
      assert.ok(asked.length === 1 || asked[1] - asked[0] > 4000, `the workflows are asked for twice: ${asked}`);
      await context.close();
    }
    console.log(`an empty view, cold: ${Math.round(best)} ms`);
    assert.ok(best <= BUDGET, `it took ${best} ms`);
  } finally {
    await empty.stop();
  }
});
