// Lists that grow while they are used: no row moves under the keyboard or the mouse, and what is done is done to the row that was meant.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { on, open } from './browser.js';
import { APPLICATIONS, ODD, start } from './manager.js';

/** @type {import('playwright-core').Browser} */
let browser;
/** @type {import('./manager.js').Manager} */
let manager;
before(async () => { browser = await open(); });
after(() => browser?.close());

/** @typedef {import('playwright-core').Page} Page */

/** The ids of the rows, from the top. @param {Page} page */
const shown = (page) => page.evaluate(() => [...document.querySelectorAll('tbody [data-row], tbody[data-row]')].map((row) => row.getAttribute('data-row')));
/** The row with the focus. @param {Page} page */
const focused = (page) => page.evaluate(() => document.activeElement?.closest('[data-row]')?.getAttribute('data-row') ?? '');
/** @param {Page} page @param {string} text */
const says = (page, text) => page.waitForFunction((expected) => document.querySelector('.fresh')?.textContent === expected, text);
/** @param {Page} page @param {number} many */
const rows = (page, many) => page.waitForFunction((expected) => document.querySelectorAll('tbody [data-row]').length === expected, many);
/** @param {Page} page @param {string} id */
const opens = async (page, id) => {
  await page.waitForFunction((expected) => location.hash.split('?')[0] === `#/job/${expected}`, id);
  await page.waitForSelector('.job-head');
};

/** Jobs that run, one after the other. @param {number} many @param {string} [workflow] */
async function jobs(many, workflow = 'short') {
  const made = [];
  for (let n = 0; n < many; n += 1) made.push(await manager.create(workflow, { go: true }));
  return made;
}

for (const [name, run] of /** @type {[string, (page: Page, go: (hash: string) => Promise<void>, made: string[]) => Promise<void>][]} */ ([
  ['the keyboard stays on its job, whatever comes', async (page, go, made) => {
    await page.keyboard.press('j');
    await page.keyboard.press('j');
    const [, second] = await shown(page);
    assert.equal(second, made[3]);
    assert.equal(await focused(page), second, 'the row has the focus');
    const before = await shown(page);
    await jobs(12);
    await says(page, '12 new');
    assert.deepEqual(await shown(page), before);
    assert.equal(await focused(page), second);
    await page.keyboard.press('x');
    await page.waitForFunction((id) => /** @type {HTMLInputElement} */ (document.querySelector(`[data-row="${id}"] input`)).checked, second);
    assert.equal(await page.locator('tbody input:checked').count(), 1);
    await page.keyboard.press('ArrowDown');
    assert.equal(await focused(page), made[2]);
    await page.keyboard.press('k');
    await page.keyboard.press('Enter');
    await opens(page, /** @type {string} */ (second));
  }],
  ['the mouse hits what it points at, and what came is shown when it goes', async (page, go, made) => {
    await page.locator(`[data-row="${made[1]}"] .c-reason`).hover();
    const place = await page.locator(`[data-row="${made[1]}"]`).boundingBox();
    await jobs(3);
    await says(page, '3 new');
    assert.deepEqual(await page.locator(`[data-row="${made[1]}"]`).boundingBox(), place, 'it has not moved');
    await page.mouse.move(400, 5);
    await rows(page, 8);
    await page.waitForSelector('.fresh', { state: 'detached' });
    await page.locator(`[data-row="${made[0]}"] .c-reason`).hover();
    await jobs(1);
    await says(page, '1 new');
    await page.mouse.down();
    await page.mouse.up();
    await opens(page, made[0]);
  }],
  ['after a click the keys belong to the row', async (page, go, made) => {
    await page.locator(`[data-row="${made[2]}"] input`).click();
    await page.waitForSelector('.marked-bar');
    await page.keyboard.press('Enter');
    await opens(page, made[2]);
    await go('#/jobs?workflow=short');
    // A button that is pressed, and then the list.
    await page.locator('.chip-state.running').click();
    // The address is there before the list is.
    await page.waitForSelector('.chip-state.running[aria-pressed=true]');
    await page.keyboard.press('j');
    await page.keyboard.press('j');
    await page.keyboard.press('Enter');
    await opens(page, made[3]);
    await go('#/jobs?workflow=short');
    // A button that goes away by its click leaves the keyboard where it was.
    await page.keyboard.press('j');
    await page.keyboard.press('x');
    await page.locator('.marked-bar').getByRole('button', { name: 'Clear' }).click();
    await page.waitForSelector('.marked-bar', { state: 'detached' });
    assert.equal(await focused(page), made[4]);
    await page.keyboard.press('Enter');
    await opens(page, made[4]);
    await go('#/jobs?workflow=short');
    // So does a dialog.
    await page.keyboard.press('j');
    await page.keyboard.press('j');
    await page.keyboard.press('?');
    await page.waitForSelector('dialog .help');
    await page.locator('dialog').getByRole('button', { name: 'Close' }).click();
    await page.waitForSelector('dialog', { state: 'detached' });
    await page.waitForFunction((id) => document.activeElement?.getAttribute('data-row') === id, made[3]);
    // With no row under the keyboard nothing is marked.
    await page.keyboard.press('Escape');
    await page.keyboard.press('x');
    assert.equal(await page.locator('tbody input:checked').count(), 0);
  }],
  ['a held list shows what becomes of its jobs', async (page, go, made) => {
    await go('#/jobs?workflow=short&state=running');
    await rows(page, 5);
    await page.keyboard.press('j');
    await jobs(70);
    await says(page, '70 new');
    await manager.complete(made[2], 'only');
    await page.waitForSelector(`[data-row="${made[2]}"].not-found`);
    assert.equal(await page.locator('.not-found').count(), 1);
    assert.deepEqual(await shown(page), made.toReversed());
    // It can be had all the same, a page long, and the next page begins behind it.
    await page.locator('.fresh').click();
    await rows(page, 50);
    await page.getByRole('link', { name: 'Older' }).click();
    await rows(page, 24);
    assert.deepEqual((await shown(page)).slice(-4), [made[4], made[3], made[1], made[0]]);
  }],
])) {
  test(`jobs: ${name}`, async () => {
    manager = await start({ workflows: [ODD] });
    try {
      const made = await jobs(5);
      await on(browser, manager, async ({ page, go }) => {
        await go('#/jobs?workflow=short');
        await rows(page, 5);
        await run(page, go, made);
      });
    } finally {
      await manager.stop();
    }
  });
}

test('the overview, the items of a fan-out and the record stand still under the mouse too', async () => {
  manager = await start({ workflows: [ODD] });
  try {
    const fail = async (/** @type {number} */ many) => {
      for (const id of await jobs(many)) await manager.fail(id, 'only', 'it broke');
    };
    const held = async (/** @type {import('./browser.js').On} */ { page, settled }, /** @type {string} */ row, /** @type {() => Promise<string>} */ grow) => {
      await settled();
      await page.locator(row).nth(1).hover();
      const before = await page.locator(row).allInnerTexts();
      await says(page, await grow());
      const now = await page.locator(row).allInnerTexts();
      // Times go on.
      const kept = (/** @type {string[]} */ texts) => texts.map((one) => one.replaceAll(/\d+ (s|ms|m)( ago)?\b|\bnow\b/g, ''));
      assert.deepEqual(kept(now).slice(0, kept(before).length), kept(before));
      await page.mouse.move(400, 5);
      await page.waitForSelector('.fresh', { state: 'detached' });
      assert.notDeepEqual(kept(await page.locator(row).allInnerTexts()), kept(before));
    };
    await fail(4);
    const many = await manager.create('many', { items: Array.from({ length: 40 }, (_, n) => n) });
    const children = await manager.children(many, 'all');
    for (const { job } of children.slice(10, 14)) await manager.fail(job, 'work', 'no');
    await on(browser, manager, async (view) => {
      const { page, go } = view;
      await go('#/');
      await page.waitForSelector('.failed-list li');
      await held(view, '.failed-list li', async () => { await fail(3); return '3 new'; });
      await go(`#/job/${many}/step/all`);
      await page.waitForFunction(() => document.querySelectorAll('.items-table tbody tr').length === 4);
      await held(view, '.items-table tbody tr', async () => { for (const { job } of children.slice(0, 2)) await manager.fail(job, 'work', 'no'); return '2 new'; });
      await go(`#/job/${children[20].job}?view=record`);
      await page.waitForSelector('.record-row:nth-child(2) .record-kind');
      const { entries } = await manager.light(children[20].job);
      await held(view, '.record-row', async () => {
        for (let n = 1; n < 4; n += 1) await manager.post(`job/${children[20].job}/step/work?type=progress`, { message: `${n} of 3` });
        return `${(await manager.light(children[20].job)).entries - entries} new`;
      });
    });
  } finally {
    await manager.stop();
  }
});

test('the palette: Enter is for what is read, whatever happens to the job meanwhile', async () => {
  manager = await start({ workflows: [ODD] });
  try {
    const [id] = await jobs(1);
    await on(browser, manager, async ({ page, go, becomes, asked }) => {
      await go(`#/job/${id}`);
      await page.keyboard.press('/');
      await page.waitForSelector('.palette');
      const choice = (/** @type {string} */ name) => page.waitForFunction((expected) => document.querySelector('.palette-list li[aria-selected=true] .palette-name')?.textContent === expected, name);
      for (const name of ['Pause this job', 'Cancel this job']) {
        await choice(name);
        await page.keyboard.press('ArrowDown');
      }
      await choice('Step only');
      await manager.complete(id, 'only');
      await becomes('completed');
      await choice('Step only');
      await page.keyboard.press('Enter');
      await page.waitForFunction(() => location.hash.endsWith('?step=only'));
      assert.ok(asked.every((call) => !call.startsWith('POST')));
    });
  } finally {
    await manager.stop();
  }
});

test('statuses: the keyboard stays in its cell, whatever comes', async () => {
  manager = await start({ workflows: [APPLICATIONS] });
  try {
    const made = await jobs(4, 'job-application');
    for (const id of made) await manager.complete(id, 'application', { status: 'SUBMITTED' });
    await on(browser, manager, async ({ page, go }) => {
      await go('#/statuses/job-application');
      await rows(page, 4);
      for (const key of ['ArrowDown', 'j', 'ArrowRight']) await page.keyboard.press(key);
      assert.equal(await focused(page), made[2]);
      const step = await page.evaluate(() => document.activeElement?.getAttribute('data-step'));
      assert.equal(step, 'phone-screen');
      await jobs(7, 'job-application');
      await says(page, '7 new');
      assert.deepEqual(await shown(page), made.toReversed());
      await page.keyboard.press('Enter');
      await opens(page, made[2]);
      assert.match(page.url(), /step=phone-screen/);
    });
  } finally {
    await manager.stop();
  }
});
