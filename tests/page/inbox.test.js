// The inbox: steps that wait for people, what is to be judged beside the decision, and what a browser tells of new ones.

import assert from 'node:assert/strict';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { axe, on, open } from './browser.js';
import { APPLICATIONS, folder, LABELLED, ODD, start, until } from './manager.js';
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
    // On the page of a job nothing is sent without a status either.
    await go(`#/job/${second}?step=application`);
    await page.getByRole('button', { name: 'Complete by hand…' }).click();
    const dialog = page.getByRole('dialog');
    const sent = asked.length;
    await dialog.getByRole('button', { name: 'Complete it' }).click();
    await dialog.getByText('Choose a status first: status is empty.').waitFor();
    assert.deepEqual(asked.slice(sent).filter((one) => one.startsWith('POST')), []);
    await dialog.locator('.choices button').last().click();
    await dialog.locator('.problem').waitFor({ state: 'detached' });
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
    // Child jobs are called by their items and by the jobs that they are for.
    await labelled.create('batches', { title: 'Batch', list: [1, 2] });
    await on(browser, labelled, async ({ page, go }) => {
      await go('#/inbox?workflow=batches');
      await has(page, 2);
      for (const item of [0, 1]) await page.getByRole('checkbox', { name: `Mark step judge of part ${item} of Batch` }).check();
      const panel = page.getByRole('region', { name: 'Decision' });
      await panel.getByRole('heading', { name: 'Decide 2 steps' }).waitFor();
      await panel.getByText('judge of batches, task part').waitFor();
      assert.deepEqual((await panel.locator('.facts-list li').allInnerTexts()).toSorted(), ['Batch part 0', 'Batch part 1']);
    });
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
    await on(browser, guarded, async ({ page, go, settled }) => {
      await page.addInitScript((token) => sessionStorage.setItem('workflow-manager.token', token), secret('looker'));
      await go(`#/inbox?job=${id}&step=only`);
      await page.getByText('Your token may look, and not decide.').waitFor();
      assert.equal(await page.getByRole('button', { name: 'Complete it' }).count(), 0);
      assert.equal(await page.getByRole('checkbox').count(), 0);
      await page.locator('.letters a').focus();
      await page.keyboard.press('x');
      await settled();
      assert.equal(await page.evaluate(() => location.hash), `#/inbox?job=${id}&step=only`);
    });
  } finally {
    await guarded.stop();
  }
});

/** Which rows are marked. @param {import('playwright-core').Page} page */
const marked = (page) => page.locator('.letters [data-row]:has(:checked)').evaluateAll((rows) => rows.map((row) => row.getAttribute('data-row')));
/** @param {string[]} asked @param {number} from */
const posts = (asked, from) => asked.slice(from).filter((one) => one.startsWith('POST'));

test('steps are marked, with the mouse and the keyboard, and only while they are shown', async () => {
  const shop = await start({ workflows: [APPLICATIONS, ODD] });
  try {
    const ada = await application(shop, 'Ada Yonath', 1);
    const grace = await application(shop, 'Grace Hopper', 1);
    const short = await shop.create('short', { go: true });
    const [first, second, third] = [`${ada} phone-screen`, `${grace} phone-screen`, `${short} only`];
    await on(browser, shop, async ({ page, go, settled }) => {
      const panel = page.getByRole('region', { name: 'Decision' });
      const bar = page.locator('.marked-bar');
      const title = (/** @type {string} */ text) => panel.getByRole('heading', { name: text, exact: true }).waitFor();
      await go(`#/inbox?job=${short}&step=only`);
      await has(page, 3);
      await page.getByText('What it was given').waitFor();
      // The mark takes the place of what was looked at; the link beside it is another target.
      await page.getByRole('checkbox', { name: `Mark step phone-screen of job ${ada.slice(0, 8)}` }).check();
      await title('Decide 1 step');
      assert.equal(await page.evaluate(() => location.hash), '#/inbox');
      await page.keyboard.press('j');
      await page.keyboard.press('x');
      await title('Decide 2 steps');
      assert.deepEqual(await marked(page), [first, second]);
      assert.equal(await page.evaluate(() => document.activeElement?.closest('[data-row]')?.getAttribute('data-row')), second);
      await page.keyboard.press('x');
      await title('Decide 1 step');
      await page.keyboard.press('x');
      await bar.getByText('2 marked').waitFor();
      assert.equal(await bar.getByRole('checkbox').evaluate((/** @type {HTMLInputElement} */ box) => box.indeterminate), true);
      // What one of them was given can be read, and the marks stay.
      await panel.getByRole('link', { name: grace.slice(0, 8) }).click();
      await panel.getByRole('heading', { name: 'phone-screen', exact: true }).waitFor();
      assert.deepEqual(await marked(page), [first, second]);
      await panel.getByRole('button', { name: 'Complete it' }).waitFor();
      await bar.getByRole('button', { name: 'Decide 2 steps' }).click();
      await title('Decide 2 steps');
      assert.deepEqual(await page.evaluate(() => [document.activeElement?.tagName, document.activeElement?.textContent]), ['H2', 'Decide 2 steps']);
      // A row that is not shown is not marked, also when it comes back.
      await bar.getByRole('checkbox', { name: 'Mark all that are shown' }).click();
      await title('Decide 3 steps');
      await page.locator('.choices a', { hasText: 'short' }).click();
      await has(page, 1);
      await title('Decide 1 step');
      await page.locator('.choices a', { hasText: 'All' }).click();
      await has(page, 3);
      assert.deepEqual(await marked(page), [third]);
      await bar.getByRole('checkbox', { name: 'Mark all that are shown' }).click();
      await title('Decide 3 steps');
      // Nor is one that waits no more; the others are.
      await shop.complete(ada, 'phone-screen', { status: 'PASSED' });
      await page.waitForSelector(`[data-row="${ada} on-site-interview"]`);
      await title('Decide 2 steps');
      assert.deepEqual(await marked(page), [second, third]);
      await bar.getByRole('button', { name: 'Clear' }).click();
      await page.getByText('Choose a step').waitFor();
      assert.equal(await page.evaluate(() => document.activeElement?.getAttribute('aria-label')), 'Mark all that are shown');
      assert.deepEqual(await marked(page), []);
      // Without a row under the keyboard nothing is marked.
      await page.keyboard.press('x');
      await settled();
      assert.deepEqual(await marked(page), []);
      // After one of several has been decided by itself the others are there.
      for (const row of [second, third]) await page.locator(`[data-row="${row}"] input`).check();
      await title('Decide 2 steps');
      await panel.getByRole('link', { name: short.slice(0, 8) }).click();
      await panel.getByRole('button', { name: 'Complete it' }).click();
      await title('Decide 1 step');
      assert.deepEqual(await marked(page), [second]);
    });
  } finally {
    await shop.stop();
  }
});

test('those that are marked are decided together if they are alike', async () => {
  const shop = await start({ workflows: [APPLICATIONS, ODD] });
  try {
    const ids = [];
    for (let n = 0; n < 6; n += 1) ids.push(await application(shop, `Applicant ${n}`, 1));
    const beginners = [await application(shop, 'Beginner', 0), await application(shop, 'Another', 0)];
    await on(browser, shop, async ({ page, go, asked }) => {
      await go('#/inbox');
      await has(page, 8);
      const panel = page.getByRole('region', { name: 'Decision' });
      await page.getByRole('checkbox', { name: 'Mark all that are shown' }).check();
      // Different ones are told apart, and are not decided together.
      await panel.getByText('These are 2 different steps. Those of one name are decided together.').waitFor();
      assert.equal(await panel.locator('form').count(), 0);
      assert.deepEqual(await panel.getByRole('button').allInnerTexts(), ['Mark only the 6 phone-screen of job-application', 'Mark only the 2 application of job-application']);
      await panel.getByRole('button', { name: 'Mark only the 6 phone-screen' }).click();
      await panel.getByText('all 6 get the same').waitFor();
      assert.deepEqual(await marked(page), ids.map((id) => `${id} phone-screen`));
      assert.deepEqual(await panel.locator('.choices button').allInnerTexts(), ['PASSED', 'FAILED']);
      // A status, and why they fail, are asked for before anything is sent.
      const before = asked.length;
      const complete = panel.getByRole('button', { name: 'Complete 6 steps' });
      await complete.click();
      await panel.getByText('Choose a status first: status is empty.').waitFor();
      await panel.getByRole('button', { name: 'Fail them' }).click();
      await panel.getByText('Say why').waitFor();
      assert.deepEqual(posts(asked, before), []);
      // What was typed is there again after one of them was looked at.
      await panel.getByRole('button', { name: 'PASSED' }).click();
      await panel.getByLabel('Why').fill('spoke with all');
      await panel.getByRole('link', { name: ids[2].slice(0, 8) }).click();
      await page.getByText('What it was given').waitFor();
      assert.equal(await panel.getByLabel('Why').inputValue(), '');
      await page.goBack();
      await complete.waitFor();
      assert.equal(await panel.getByLabel('Why').inputValue(), 'spoke with all');
      // At most four are under way at once; a double click sends each once.
      let under = 0;
      let most = 0;
      let holds = true;
      /** @type {(() => void)[]} */
      const held = [];
      await page.route((url) => url.pathname.includes('/step/phone-screen'), async (route) => {
        if (route.request().method() !== 'POST') return route.continue();
        under += 1;
        most = Math.max(most, under);
        if (holds) await new Promise((letGo) => held.push(() => letGo(undefined)));
        under -= 1;
        return route.continue();
      });
      await complete.evaluate((/** @type {HTMLElement} */ button) => {
        button.click();
        button.click();
      });
      await panel.getByText('0 of 6 …').waitFor();
      await until('four are under way', () => held.length === 4);
      for (const letGo of held.splice(0)) letGo();
      await panel.getByText('4 of 6 …').waitFor();
      assert.deepEqual((await marked(page)).length, 2, 'what is decided is not marked any more');
      assert.equal(await panel.getByRole('button', { name: 'Complete 2 steps' }).isDisabled(), true);
      // Others wait until these are through.
      for (const id of beginners) await page.locator(`[data-row="${id} application"] input`).check();
      await panel.getByRole('button', { name: 'Mark only the 2 application' }).click();
      await panel.getByRole('button', { name: 'SUBMITTED' }).waitFor();
      assert.equal(await panel.getByRole('button', { name: 'Complete 2 steps' }).isDisabled(), true);
      holds = false;
      for (const letGo of held.splice(0)) letGo();
      await page.getByText('6 steps were completed by hand').waitFor();
      assert.equal(most, 4);
      assert.equal(posts(asked, before).length, 6);
      for (const id of ids) {
        assert.equal((await shop.step(id, 'phone-screen')).status, 'PASSED');
        assert.ok((await shop.get(`job/${id}/entries`)).entries.some((/** @type {any} */ entry) => entry.reason === 'spoke with all'));
      }
      await page.waitForSelector(`[data-row="${ids[5]} on-site-interview"]`);
      assert.deepEqual(await marked(page), beginners.map((id) => `${id} application`));
      await page.waitForFunction(() => !(/** @type {HTMLButtonElement} */ (document.querySelector('.inbox-form .primary')).disabled));
    });
    // They are failed with one reason.
    await on(browser, shop, async ({ page, go }) => {
      await go('#/inbox');
      await has(page, 8);
      for (const id of ids.slice(0, 2)) await page.locator(`[data-row="${id} on-site-interview"] input`).check();
      await page.getByLabel('Why').fill('the house burnt down');
      await page.getByRole('button', { name: 'Fail them' }).click();
      await page.getByText('2 steps were failed by hand').waitFor();
      await page.getByText('Choose a step').waitFor();
      await page.waitForFunction(() => document.activeElement?.getAttribute('aria-label') === 'Mark all that are shown');
      for (const id of ids.slice(0, 2)) assert.match((await shop.step(id, 'on-site-interview')).reason, /the house burnt down/);
    });
  } finally {
    await shop.stop();
  }
});

test('a decision is about what was seen, and leads nobody away', async () => {
  const shop = await start({ workflows: [ODD] });
  try {
    const ids = [];
    for (let n = 0; n < 6; n += 1) ids.push(await shop.create('short', { go: true }));
    await on(browser, shop, async ({ page, go }) => {
      /** @type {(() => void)[]} */
      const held = [];
      let holds = false;
      await page.route((url) => url.pathname.endsWith('/api/inbox') || url.pathname.includes('/step/only'), async (route) => {
        const judged = route.request().method() === 'POST' || route.request().url().includes('/inbox');
        if (holds && judged) await new Promise((letGo) => { held.push(() => letGo(undefined)); });
        return route.continue();
      });
      const letAllGo = () => {
        holds = false;
        for (const letGo of held.splice(0)) letGo();
      };
      const panel = page.getByRole('region', { name: 'Decision' });
      const mark = (/** @type {number} */ n) => page.locator(`[data-row="${ids[n]} only"] input`).check();
      await go('#/inbox');
      await has(page, 6);
      // What was said of some is not said of the next, nor what was said before the marks were cleared.
      for (const [n, button] of /** @type {const} */ ([[0, 'Clear'], [1, 'Complete 1 step']])) {
        await mark(n);
        await panel.getByRole('heading', { name: 'Decide 1 step' }).waitFor();
        assert.equal(await panel.getByLabel('Why').inputValue(), '');
        await panel.getByLabel('Why').fill('I know her');
        await page.getByRole('button', { name: button }).click();
        await page.getByText('Choose a step').waitFor();
      }
      await has(page, 5);
      await mark(2);
      await panel.getByRole('heading', { name: 'Decide 1 step' }).waitFor();
      assert.equal(await panel.getByLabel('Why').inputValue(), '');
      // Another attempt is another decision: its row comes without the mark, and its panel with its own form.
      await mark(3);
      await panel.getByRole('heading', { name: 'Decide 2 steps' }).waitFor();
      holds = true;
      await until('the inbox is asked', () => held.length > 0);
      await shop.complete(ids[2], 'only');
      await shop.ends(ids[2], 'completed');
      await shop.post(`job/${ids[2]}/rerun?step=only`);
      await shop.reaches(ids[2], 'only', 'running');
      letAllGo();
      await panel.getByRole('heading', { name: 'Decide 1 step' }).waitFor();
      await has(page, 5);
      assert.deepEqual(await marked(page), [`${ids[3]} only`]);
      // Who went elsewhere before the answer came stays there.
      await page.getByRole('button', { name: 'Clear' }).click();
      for (const leave of [() => page.locator(`[data-row="${ids[5]} only"] a`).click(), () => page.locator('.side-pages a', { hasText: 'Jobs' }).click()]) {
        await go(`#/inbox?job=${ids[4]}&step=only`);
        await panel.getByRole('button', { name: 'Complete it' }).waitFor();
        holds = true;
        await panel.getByRole('button', { name: 'Complete it' }).click();
        await until('it is sent', () => held.length > 0);
        await leave();
        await page.waitForFunction((id) => !location.hash.includes(id), ids[4]);
        const there = page.url();
        letAllGo();
        await page.getByText('Step only was completed by hand').waitFor();
        assert.equal(page.url(), there);
        ids[4] = ids[3];
        await page.locator('.toast').waitFor({ state: 'detached' });
      }
    });
  } finally {
    await shop.stop();
  }
});

test('keys alone decide, and a decision that was begun is found again', async () => {
  const shop = await start({ workflows: [APPLICATIONS, ODD] });
  try {
    const ada = await application(shop, 'Ada Yonath', 1);
    const short = await shop.create('short', { go: true });
    await on(browser, shop, async ({ page, go, asked }) => {
      const panel = page.getByRole('region', { name: 'Decision' });
      const open = async (/** @type {string} */ key) => {
        await page.locator(`[data-row="${key}"] a`).click();
        await panel.getByRole('heading', { name: key.split(' ')[1], exact: true }).waitFor();
      };
      await go('#/inbox');
      await has(page, 2);
      await open(`${short} only`);
      await panel.getByLabel('Why').fill('half of a rea');
      await open(`${ada} phone-screen`);
      assert.equal(await panel.getByLabel('Why').inputValue(), '');
      await open(`${short} only`);
      assert.equal(await panel.getByLabel('Why').inputValue(), 'half of a rea');
      await page.locator(`[data-row="${ada} phone-screen"] a`).focus();
      await page.keyboard.press('Enter');
      await panel.getByRole('heading', { name: 'phone-screen', exact: true }).waitFor();
      await page.keyboard.press('d');
      const focused = () => page.evaluate(() => document.activeElement?.textContent);
      assert.equal(await focused(), 'PASSED');
      // Nothing is sent without a status.
      const before = asked.length;
      await page.keyboard.press('Control+Enter');
      await panel.getByText('Choose a status first').waitFor();
      assert.deepEqual(posts(asked, before), []);
      await page.keyboard.press('Space');
      await page.keyboard.press('Control+Enter');
      await page.getByText('Step phone-screen was completed by hand').waitFor();
      assert.equal((await shop.step(ada, 'phone-screen')).status, 'PASSED');
    });
  } finally {
    await shop.stop();
  }
});

test('what the manager refuses is told, and stays marked while it waits', async () => {
  const shop = await start({ workflows: [ODD] });
  try {
    const ids = [];
    for (let n = 0; n < 3; n += 1) ids.push(await shop.create('short', { go: true }));
    await on(browser, shop, async ({ page, go }) => {
      await go('#/inbox');
      await has(page, 3);
      const panel = page.getByRole('region', { name: 'Decision' });
      await page.getByRole('checkbox', { name: 'Mark all that are shown' }).check();
      await panel.getByRole('button', { name: 'Complete 3 steps' }).waitFor();
      // Somebody else decides the first, and the manager is busy with the second.
      await page.route((url) => url.pathname.includes('/step/only'), async (route) => {
        if (route.request().url().includes(ids[0])) await shop.complete(ids[0], 'only');
        else if (route.request().url().includes(ids[1])) return route.fulfill({ status: 503, contentType: 'application/problem+json', body: '{"detail":"the disk is full"}' });
        return route.continue();
      });
      await panel.getByRole('button', { name: 'Complete 3 steps' }).click();
      await page.getByText('1 of 3 steps was completed by hand, 2 refused').waitFor();
      await panel.getByText('2 of 3 were refused').waitFor();
      await has(page, 1);
      const told = await panel.locator('.refused li').allInnerTexts();
      assert.equal(told.length, 2);
      assert.ok(told.some((text) => text.startsWith(ids[0].slice(0, 8)) && /completed|not running/.test(text)), told.join());
      assert.ok(told.some((text) => text === `${ids[1].slice(0, 8)} the disk is full`), told.join());
      assert.deepEqual(await marked(page), [`${ids[1]} only`]);
      assert.deepEqual(await axe(page), []);
      // They are told although nothing is marked any more, until they are put away.
      await shop.complete(ids[1], 'only');
      await has(page, 0);
      await panel.getByRole('heading', { name: 'Decided' }).waitFor();
      await panel.getByRole('button', { name: 'Put away' }).click();
      await panel.waitFor({ state: 'detached' });
    }, { expected: /status of (409|503)/ });
  } finally {
    await shop.stop();
  }
});

test('many are sent after their number is typed, and words that differ by definition are told apart', async () => {
  const files = await folder();
  const file = join(files.path, 'leave.yaml');
  const write = (/** @type {string} */ statuses) => writeFile(file, `workflows: [ { name: leave, label: job.who, steps: [ { name: grant, external: true, statusKey: status, statuses: [ ${statuses} ] } ] } ]`);
  await write('ASKED, GRANTED');
  const shop = await start({ workflows: [file] });
  try {
    for (let n = 0; n < 20; n += 1) await shop.create('leave', { who: `Person ${n}` });
    await write('ASKED, GRANTED, REFUSED');
    await shop.post('reload');
    await shop.create('leave', { who: `Somebody with a long name ${'and a longer one '.repeat(8)}` });
    for (const colorScheme of /** @type {const} */ (['light', 'dark'])) {
      for (const viewport of [{ width: 1280, height: 800 }, { width: 390, height: 844 }]) {
        await on(browser, shop, async ({ page, go, settled }) => {
          const looksWell = async () => {
            await settled();
            assert.deepEqual(await axe(page), []);
            assert.equal(await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth), 0);
          };
          await go('#/inbox');
          await has(page, 21);
          const panel = page.getByRole('region', { name: 'Decision' });
          await page.getByRole('checkbox', { name: 'Mark step grant of Person 7', exact: true }).check();
          await page.getByRole('checkbox', { name: 'Mark all that are shown' }).click();
          await panel.getByRole('button', { name: 'Mark only the 1 grant of leave, status: GRANTED, REFUSED' }).waitFor();
          await looksWell();
          await panel.getByRole('button', { name: 'Mark only the 20 grant of leave, status: GRANTED' }).click();
          await panel.getByRole('button', { name: 'GRANTED', exact: true }).click();
          await panel.getByLabel('Type 20 to go on').fill('19');
          const complete = panel.getByRole('button', { name: 'Complete 20 steps' });
          await complete.waitFor();
          assert.equal(await complete.isDisabled(), true);
          assert.equal(await panel.getByRole('button', { name: 'Fail them' }).isDisabled(), true);
          await looksWell();
          await panel.getByLabel('Type 20 to go on').fill('20');
          await page.waitForFunction(() => !(/** @type {HTMLButtonElement} */ (document.querySelector('.inbox-form .primary')).disabled));
          // On a phone the marks are in sight, and what is marked is one touch away.
          await page.locator('.letters [data-row]').last().scrollIntoViewIfNeeded();
          assert.ok(await page.locator('.marked-bar').evaluate((bar) => bar.getBoundingClientRect().top >= 0));
          await page.locator('.marked-bar').getByRole('button', { name: 'Decide 20 steps' }).click();
          await page.waitForFunction(() => document.activeElement?.tagName === 'H2' && document.activeElement.textContent === 'Decide 20 steps');
          if (colorScheme === 'dark' && viewport.width === 390) {
            await complete.click();
            await page.getByText('20 steps were completed by hand').waitFor();
          }
        }, { viewport, colorScheme });
      }
    }
  } finally {
    await shop.stop();
    await files.remove();
  }
});
