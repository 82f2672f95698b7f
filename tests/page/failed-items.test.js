// Items that failed in a completed job: found in the list of jobs, and run again from the step's view, of a real manager.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { axe, on, open } from './browser.js';
import { TOLERANT, start } from './manager.js';

/** @type {import('playwright-core').Browser} */
let browser;
/** @type {Awaited<ReturnType<typeof start>>} */
let manager;
/** @type {string} two of its three items have failed */
let job;
/** @type {string[]} the child jobs, by item */
let children;
before(async () => {
  browser = await open();
  manager = await start({ workflows: [TOLERANT] });
  for (const items of [[1], [1, 2, 3]]) {
    job = await manager.create('parcels', { items });
    children = (await manager.children(job, 'pack')).map((/** @type {{ job: string }} */ child) => child.job);
    await manager.complete(children[0], 'wrap', { item: 'kept' });
    for (const child of children.slice(1)) await manager.fail(child, 'wrap', 'no paper');
    await manager.reaches(job, 'send', 'running');
    await manager.complete(job, 'send');
    await manager.ends(job, 'completed');
  }
});
after(async () => {
  await browser?.close();
  await manager?.stop();
});

/** The list, once it has so many rows. @param {import('playwright-core').Page} page @param {number} count */
const listed = (page, count) => page.waitForFunction((most) => document.querySelectorAll('.jobs-table tbody tr').length === most, count);

test('the items of a reason are listed, and the page of all items runs the failed ones again', async () => {
  for (const viewport of [{ width: 1280, height: 800 }, { width: 390, height: 844 }]) {
    await on(browser, manager, async ({ page, go }) => {
      await go(`#/job/${job}/step/pack`);
      const all = page.getByRole('link', { name: 'List all items that failed so: wrap: failed by hand: no paper' });
      await all.waitFor();
      assert.deepEqual(await page.locator('.items-table td.reason').allInnerTexts(), ['wrap: failed by hand: no paper', 'wrap: failed by hand: no paper']);
      assert.deepEqual(await axe(page), []);
      assert.equal(await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth), 0);
      await page.getByRole('button', { name: 'Run the 2 failed items again…' }).click();
      const dialog = page.getByRole('dialog');
      assert.match(await dialog.innerText(), /1 step will be done again:[\s\S]*send/);
      await dialog.getByRole('button', { name: 'No, leave it' }).click();
      await all.click();
      await listed(page, 2);
      assert.match(page.url(), new RegExp(`#/jobs\\?parent=${job}&reasonId=[0-9a-f]{16}$`));
      assert.deepEqual((await page.locator('.jobs-table tbody tr').evaluateAll((rows) => rows.map((row) => row.getAttribute('data-row')))).sort(), children.slice(1).sort());
    }, { viewport });
  }
});

test('a filter leaves the completed jobs with failed items, and its failed items run again', async () => {
  await on(browser, manager, async ({ page, go }) => {
    await go('#/jobs?workflow=parcels');
    await listed(page, 2);
    assert.deepEqual((await page.locator('.c-reason').allInnerTexts()).sort(), ['', 'some items failed']);
    await page.getByRole('button', { name: 'with failed items' }).click();
    await listed(page, 1);
    assert.match(page.url(), /failedItems=true/);
    assert.deepEqual(await axe(page), []);
    await page.getByRole('button', { name: 'All of these…' }).click();
    await page.getByRole('button', { name: 'Run again', exact: true }).click();
    await page.getByLabel('From which step').fill('pack');
    assert.ok(await page.getByLabel('Only its failed items').isChecked(), 'the filter is about them');
    await page.getByRole('button', { name: 'Look', exact: true }).click();
    await page.locator('.bulk-typed').waitFor();
    assert.match((await page.locator('.bulk .command').last().textContent()) ?? '', /rerun --step pack --items failed --workflow parcels --failed-items/);
    await page.getByRole('button', { name: 'No, leave them' }).click();

    await go(`#/job/${job}?step=pack`);
    await page.locator('.fan-failed', { hasText: 'wrap: failed by hand: no paper' }).waitFor();
    await page.getByRole('button', { name: 'Run the 2 failed items again…' }).click();
    const dialog = page.getByRole('dialog');
    assert.match(await dialog.innerText(), /what the other items gave is kept[\s\S]*1 step will be done again:[\s\S]*send/);
    assert.match((await dialog.locator('.command').first().textContent()) ?? '', /rerun [0-9a-f-]{36} --step pack --items failed/);
    await dialog.getByRole('button', { name: 'Run 2 failed items again' }).click();
    await manager.ends(job, 'running');
    for (const child of children.slice(1)) {
      await manager.reaches(child, 'wrap', 'running');
      await manager.complete(child, 'wrap', { item: 'again' });
    }
    await manager.reaches(job, 'send', 'running');
    await manager.complete(job, 'send');
    await manager.ends(job, 'completed');
    assert.deepEqual((await manager.get(`job/${job}/step/pack/output`)).items, ['kept', 'again', 'again']);
    await go('#/jobs?failedItems=true');
    await page.getByText('No job is like that.').waitFor();
    await go(`#/job/${job}?step=pack`);
    await page.getByRole('button', { name: 'Run again from here…' }).waitFor();
    assert.equal(await page.getByRole('button', { name: /failed items? again/ }).count(), 0);
  });
});
