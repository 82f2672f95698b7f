// What the page shows when the manager cannot do its work: its own words, in every view, and never an empty world.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { axe, on, open } from './browser.js';
import { ODD, start, until } from './manager.js';

/** @type {import('playwright-core').Browser} */
let browser;
before(async () => { browser = await open(); });
after(() => browser?.close());

const FULL = 'no room on the disk: nothing is accepted until there is';
const VIEWS = ['#/', '#/schedules', '#/jobs', '#/statuses', '#/statuses/short', '#/definitions', '#/definitions/short', '#/manager', '#/nowhere'];
/** What is said of a list that is known to be empty. */
const NOTHING = /There are no jobs yet|No job is like that|No job has failed|No workflow is loaded|No step uses a queue|No schedule is loaded|\bNone\./;

test('a manager that is not ready: every view says so, with the words of the check, until it is', async () => {
  const full = await start({ workflows: [ODD], settings: { JOURNAL__PAGES_MAX: '400' } });
  try {
    const id = await full.create('short', { go: true });
    for (let n = 0; n < 8; n += 1) await full.create('short', { go: false, text: 'x'.repeat(100_000) });
    const message = { go: true, text: 'x'.repeat(100_000) };
    const isFull = async () => !(await full.get('manager')).ready;
    await until('the journal is full', async () => {
      // The last one waits for room.
      await Promise.race([full.create('short', message).catch(() => {}), new Promise((resolve) => setTimeout(resolve, 500))]);
      return isFull();
    });
    await on(browser, full, async ({ page }) => {
      for (const view of [...VIEWS, `#/job/${id}`]) {
        // It does not come to rest: each look at the journal takes a while.
        await page.goto(`${full.url}${view}`);
        const bar = page.locator('main > .unready');
        await bar.waitFor();
        assert.match(await bar.innerText(), new RegExp(`not ready[^]*journal: ${FULL}`), view);
        await page.waitForFunction(() => document.querySelector('.light')?.textContent === 'Not ready');
      }
      assert.deepEqual(await axe(page), []);
      // There is room again: nobody has to load the page anew.
      await until('there is room', async () => {
        await full.post('jobs/delete?workflow=short&state=completed');
        return !(await isFull());
      });
      await page.locator('main > .unready').waitFor({ state: 'detached' });
      await page.waitForFunction(() => document.querySelector('.light')?.textContent !== 'Not ready');
    }, { expected: /503/ });
  } finally {
    await full.stop();
  }
});

test('what cannot be listed is not empty: the words of the answer are shown', async () => {
  const empty = await start({ workflows: [ODD] });
  const detail = 'the lists cannot follow: no room on the disk';
  try {
    await on(browser, empty, async ({ page, go }) => {
      // Empty, and known to be.
      await go('#/jobs');
      assert.match(await page.locator('main').innerText(), /There are no jobs yet/);
      let refused = false;
      await page.route(/\/api\/(workflows|schedules|jobs\/search|status\/|queues|definitions|settings)/, (route) => (refused ? route.fulfill({ status: 503, contentType: 'application/problem+json', body: JSON.stringify({ status: 503, title: 'Service Unavailable', detail }) }) : route.continue()));
      // Views that have something already, and such that have nothing yet.
      for (const loaded of [true, false]) {
        // The settings are asked for once.
        for (const view of VIEWS.slice(0, loaded ? -2 : -1)) {
          refused = !loaded;
          await page.goto('about:blank');
          await go(view);
          refused = true;
          // As if one came back to the page: it looks again at once.
          await page.evaluate(() => document.dispatchEvent(new Event('visibilitychange')));
          await page.waitForFunction((words) => document.querySelector('main')?.textContent?.includes(words), detail);
          // Each part of a view has an answer of its own.
          await until(`${view} says of nothing that it is empty`, async () => !NOTHING.test(await page.locator('main').innerText()));
        }
      }
    }, { expected: /503/ });
  } finally {
    await empty.stop();
  }
});
