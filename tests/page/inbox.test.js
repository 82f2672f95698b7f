// The inbox: steps that wait for people, what is to be judged beside the decision, and what a browser tells of new ones.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { axe, on, open } from './browser.js';
import { APPLICATIONS, LABELLED, ODD, start } from './manager.js';
import { application } from './shop.js';

/** @type {import('playwright-core').Browser} */
let browser;
/** @type {import('./manager.js').Manager} */
let manager;
before(async () => {
  browser = await open();
  manager = await start({ workflows: [APPLICATIONS, ODD] });
});
after(async () => {
  await browser?.close();
  await manager?.stop();
});

/** @param {import('playwright-core').Page} page */
const letters = (page) => page.locator('.letters [data-row]').evaluateAll((rows) => rows.map((row) => row.getAttribute('data-row')));
/** @param {import('playwright-core').Page} page @param {number} many */
const has = (page, many) => page.waitForFunction((expected) => document.querySelectorAll('.letters [data-row]').length === expected, many);

test('what waits for people, the longest first, and decided beside what was given', async () => {
  const first = await application(manager, 'Ada Yonath', 1);
  const second = await application(manager, 'Grace Hopper', 0);
  const short = await manager.create('short', { go: true, text: 'to be judged' });
  // It is over, although its last word is the one of a step that waits.
  const over = await application(manager, 'Konrad Zuse', 0);
  await manager.complete(over, 'application', { status: 'DRAFT' });
  const [next] = (await manager.light(over)).steps.filter((/** @type {any} */ step) => step.state === 'running');
  for (const viewport of [{ width: 1440, height: 900 }, { width: 390, height: 844 }]) {
    await on(browser, manager, async ({ page, go }) => {
      await go('#/inbox');
      const expected = [`${first} phone-screen`, `${second} application`, `${short} only`, ...(next ? [`${over} ${next.name}`] : [])];
      await has(page, expected.length);
      assert.deepEqual(await letters(page), expected);
      assert.deepEqual(await axe(page), []);
      await page.locator('.choices a', { hasText: 'short' }).click();
      await has(page, 1);
      await page.locator('.letters a').click();
      await page.getByText('to be judged').waitFor();
      assert.deepEqual(await axe(page), []);
      assert.equal(await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth), 0);
    }, { viewport });
  }
  await on(browser, manager, async ({ page, go, asked }) => {
    // A deep link; a word that the step may have.
    await go(`#/inbox?job=${first}&step=phone-screen`);
    const panel = page.getByRole('region', { name: 'Decision' });
    await panel.locator('.code', { hasText: '"SUBMITTED"' }).waitFor();
    await page.setViewportSize({ width: 1280, height: 800 });
    const complete = await panel.getByRole('button', { name: 'Complete it' }).boundingBox();
    assert.ok(complete && complete.y + complete.height < 800, 'it is seen without scrolling');
    await panel.getByText('The job’s message').click();
    await panel.getByText('Ada Yonath').waitFor();
    assert.deepEqual(await panel.locator('.choices button').allInnerTexts(), ['PASSED', 'FAILED']);
    // Without a status nothing is sent: what is missing is said, until one is chosen.
    const before = asked.length;
    await panel.getByRole('button', { name: 'Complete it' }).click();
    await panel.getByText('Choose a status first: status is empty.').waitFor();
    assert.equal(await page.evaluate(() => document.activeElement?.textContent), 'PASSED');
    assert.deepEqual(asked.slice(before).filter((one) => one.startsWith('POST')), []);
    assert.deepEqual(await axe(page), []);
    await panel.getByRole('button', { name: 'PASSED' }).click();
    await panel.locator('.problem').waitFor({ state: 'detached' });
    await panel.getByLabel('Why').fill('spoke with her');
    // A double click decides once.
    await panel.getByRole('button', { name: 'Complete it' }).evaluate((/** @type {HTMLElement} */ button) => {
      button.click();
      button.click();
    });
    // The next one is there at once.
    await page.waitForFunction((job) => location.hash.includes(job), second);
    assert.equal(asked.slice(before).filter((one) => one.startsWith('POST')).length, 1);
    assert.equal((await manager.step(first, 'phone-screen')).status, 'PASSED');
    assert.ok((await manager.get(`job/${first}/entries`)).entries.some((/** @type {any} */ entry) => entry.reason === 'spoke with her'));
    await page.waitForFunction((key) => [...document.querySelectorAll('.letters [data-row]')].some((row) => row.getAttribute('data-row') === key), `${first} on-site-interview`);
    // What somebody else decides meanwhile is said.
    await go(`#/inbox?job=${short}&step=only`);
    await panel.getByText('to be judged').waitFor();
    await manager.complete(short, 'only');
    await panel.getByText('It does not wait any more.').waitFor();
    await go(`#/inbox?job=${short}&step=only`);
    await page.reload();
    await page.getByText('does not wait for a person any more').waitFor();
  });
});

test('the columns of its workflow tell a step from others that are called alike', async () => {
  const labelled = await start({ workflows: [LABELLED] });
  try {
    for (const order of [4711, 4712]) await labelled.create('parcels', { title: 'Parcel', order, customer: `Ada ${'Lovelace '.repeat(12)}` });
    await labelled.create('parcels', { title: 'Nothing else' });
    for (const viewport of [{ width: 1280, height: 800 }, { width: 390, height: 844 }]) {
      await on(browser, labelled, async ({ page, go }) => {
        await go('#/inbox');
        await has(page, 3);
        const columns = page.locator('.letter-columns');
        assert.equal(await columns.count(), 2);
        assert.match(await columns.first().innerText(), /order 4711/);
        assert.match(await columns.last().innerText(), /order 4712/);
        assert.match((await columns.first().getAttribute('title')) ?? '', /order 4711/);
        // Long ones end with …, in one line.
        assert.deepEqual(await columns.first().evaluate((one) => [one.scrollWidth > one.clientWidth, getComputedStyle(one).textOverflow, one.clientHeight < 30]), [true, 'ellipsis', true]);
        assert.equal(await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth), 0);
        assert.deepEqual(await axe(page), []);
      }, { viewport });
    }
  } finally {
    await labelled.stop();
  }
});

test('a new one is told by the browser if one wants that, and it leads there', async () => {
  await on(browser, manager, async ({ page, go }) => {
    await page.addInitScript(() => {
      const told = /** @type {any} */ (globalThis).told = /** @type {any[]} */ ([]);
      /** @type {any} */ (globalThis).Notification = class {
        static permission = 'default';
        static async requestPermission() {
          this.permission = 'granted';
          return 'granted';
        }
        constructor(/** @type {string} */ title, /** @type {any} */ options) {
          told.push(Object.assign(this, { title, ...options }));
        }
        close() {}
      };
    });
    const told = () => page.evaluate(() => /** @type {any} */ (globalThis).told.length);
    await page.reload();
    await go('#/inbox');
    await page.reload();
    await page.getByRole('button', { name: 'Notify me' }).click();
    await page.getByRole('button', { name: 'Notifications are on' }).waitFor();
    await page.locator('.side-pages a', { hasText: 'Jobs' }).click();
    await page.waitForSelector('.jobs');
    assert.equal(await told(), 0, 'what was there is not told');
    const id = await manager.create('short', { go: true });
    await page.waitForFunction(() => {
      document.dispatchEvent(new Event('visibilitychange'));
      return /** @type {any} */ (globalThis).told.length === 1;
    }, undefined, { polling: 1000 });
    assert.equal(await page.evaluate(() => /** @type {any} */ (globalThis).told[0].title), 'short: only');
    await page.evaluate(() => /** @type {any} */ (globalThis).told[0].onclick());
    await page.waitForFunction((job) => location.hash === `#/inbox?job=${job}&step=only`, id);
    // Where more wait than are shown, the number tells.
    await page.locator('.side-pages a', { hasText: 'Jobs' }).click();
    await page.waitForSelector('.jobs');
    for (let more = 0; more < 100; more += 1) await manager.create('short', { go: true });
    const { count } = await manager.get('inbox?limit=1');
    const tells = (/** @type {string} */ title, /** @type {number} */ total) => page.waitForFunction(([expected, body]) => {
      document.dispatchEvent(new Event('visibilitychange'));
      const last = /** @type {any} */ (globalThis).told.at(-1);
      return last.title.includes(expected) && last.body === body;
    }, [title, `${total} steps in all`], { polling: 1000 });
    await tells('for a person', count);
    await manager.create('short', { go: true });
    await tells('1 more step waits for a person', count + 1);
  });
});

test('a token that may only look decides nothing', async () => {
  const secret = (/** @type {string} */ name) => `${name}-${'x'.repeat(12)}`;
  const guarded = await start({ workflows: [ODD], settings: { HTTP__TOKEN: secret('root'), HTTP__TOKENS__LOOKER__TOKEN: secret('looker'), HTTP__TOKENS__LOOKER__SCOPE: 'read' } });
  try {
    const id = await guarded.create('short', { go: true });
    await on(browser, guarded, async ({ page, go }) => {
      await page.addInitScript((token) => sessionStorage.setItem('workflow-manager.token', token), secret('looker'));
      await go(`#/inbox?job=${id}&step=only`);
      await page.getByText('Your token may look, and not decide.').waitFor();
      assert.equal(await page.getByRole('button', { name: 'Complete it' }).count(), 0);
    });
  } finally {
    await guarded.stop();
  }
});
