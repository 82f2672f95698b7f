// Jobs on the page by their labels and columns, of a real manager.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { axe, on, open } from './browser.js';
import { LABELLED, start } from './manager.js';

const HOSTILE = '<img src=x onerror=alert(1)> of “Ada”';
const LONG = `A parcel ${'that is very heavy '.repeat(20)}`;

/** @type {import('playwright-core').Browser} */
let browser;
/** @type {Awaited<ReturnType<typeof start>>} */
let manager;
/** @type {string[]} */
let ids;
before(async () => {
  browser = await open();
  manager = await start({ workflows: [LABELLED] });
  ids = [
    await manager.create('parcels', { title: HOSTILE, order: 4711, customer: 'c1' }),
    await manager.create('parcels', { title: LONG, order: 4712, customer: '<b>c2</b>' }),
    await manager.create('parcels', { order: 4713 }),
  ];
  await manager.complete(ids[0], 'price', { cents: 1250 });
  await manager.reaches(ids[0], 'ship', 'running');
});
after(async () => {
  await browser?.close();
  await manager?.stop();
});

/**
 * The rows of the list, once there are so many.
 * @param {import('playwright-core').Page} page
 * @param {number} count
 */
async function rows(page, count) {
  await page.waitForFunction((most) => document.querySelectorAll('.jobs-table tbody tr').length === most, count);
  return page.locator('.jobs-table tbody tr').evaluateAll((all) => all.map((row) => [...row.querySelectorAll('td')].map((cell) => (cell.textContent ?? '').trim())));
}

test('the list shows labels, and the columns of the workflow that is chosen', async () => {
  await on(browser, manager, async ({ page, go }) => {
    await go('#/jobs?workflow=parcels');
    const told = await rows(page, 3);
    const heads = await page.locator('.jobs-table thead th').allInnerTexts();
    assert.deepEqual(heads.slice(-4, -1), ['order', 'customer', 'cents']);
    assert.deepEqual(told[2].slice(-4, -1).map((text) => text.replace(/^\w+ /, '')), ['4711', 'c1', '1250']);
    assert.equal(told[2][2], HOSTILE);
    assert.equal(told[0][2], ids[2].slice(0, 8), 'a job without a label has its id');
    assert.match(told[1][2], /^A parcel .*…$/);
    await go('#/jobs?workflow=parcels&column.order=4711');
    assert.equal((await rows(page, 1))[0][2], HOSTILE);
    await go('#/jobs?label=ADA');
    assert.equal((await rows(page, 1))[0][2], HOSTILE);
    assert.ok(!(await page.locator('.jobs-table thead th').allInnerTexts()).includes('order'), 'no workflow is chosen');
  });
});

test('a reason that has no room ends with …, beside columns too', async () => {
  const failing = await start({ workflows: [LABELLED] });
  try {
    const id = await failing.create('parcels', { title: 'A parcel for Maria Garcia', order: 4711, customer: 'c-4711' });
    await failing.fail(id, 'price', 'no price for this country. '.repeat(12));
    await failing.ends(id, 'failed');
    await on(browser, failing, async ({ page, go }) => {
      for (const hash of ['#/jobs', '#/jobs?workflow=parcels']) {
        await go(hash);
        await rows(page, 1);
        const [cut, style, wide, over] = await page.locator('.c-reason > span').evaluate((text) => [text.scrollWidth > text.clientWidth, getComputedStyle(text).textOverflow, text.clientWidth > 120, (text.closest('.table-wrap')?.scrollWidth ?? 0) - (text.closest('.table-wrap')?.clientWidth ?? 0)]);
        assert.deepEqual({ cut, style, wide, over }, { cut: true, style: 'ellipsis', wide: true, over: 0 }, hash);
      }
    }, { viewport: { width: 1280, height: 800 } });
  } finally {
    await failing.stop();
  }
});

test('a job is called by its label in its title and its view', async () => {
  await on(browser, manager, async ({ page, go }) => {
    await go(`#/job/${ids[0]}?step=__start__`);
    await page.waitForFunction((label) => document.querySelector('.job-title h1')?.textContent === label, HOSTILE);
    assert.ok((await page.title()).startsWith(HOSTILE), await page.title());
    const facts = await page.locator('.step-panel .facts > div').allInnerTexts();
    assert.ok(facts.some((fact) => /^order\s+4711$/.test(fact)), facts.join('; '));
  });
});

test('labels and columns are readable on a phone and in the dark', async () => {
  for (const colorScheme of /** @type {const} */ (['light', 'dark'])) {
    for (const width of [1280, 390]) {
      await on(browser, manager, async ({ page, go }) => {
        for (const [name, hash] of [['list', '#/jobs?workflow=parcels'], ['job', `#/job/${ids[1]}`]]) {
          await go(hash);
          await page.locator(name === 'list' ? '.jobs-table tbody tr' : '.job-title h1').first().waitFor();
          assert.deepEqual(await axe(page), []);
          assert.ok((await page.evaluate(() => document.documentElement.scrollWidth)) <= width, `${name} at ${width}`);
          if (process.env.SHOTS) await page.screenshot({ path: `${process.env.SHOTS}/label-${name}-${width}-${colorScheme}.png` });
        }
      }, { viewport: { width, height: 844 }, colorScheme });
    }
  }
});

test('the palette finds a job by what people know of it, and Enter does not depend on how fast it is pressed', async () => {
  await on(browser, manager, async ({ page, go, asked, settled }) => {
    await go('#/');
    assert.deepEqual(asked.filter((call) => /api\/definition/.test(call)), [], 'names are asked for when somebody searches');
    for (const [text, hash, name] of [
      ['4711', '#/jobs?column.order=4711', 'Jobs: order is 4711'],
      ['ADA', '#/jobs?label=ADA', 'Jobs: label has “ADA”'],
      ['a parcel that', '#/jobs?label=a+parcel+that', 'Jobs: label has “a parcel that”'],
      ['order:4712', '#/jobs?column.order=4712', 'Jobs: column.order:4712'],
      ['state:running c1', '#/jobs?state=running&column.customer=c1', 'Jobs: customer is c1, state:running'],
    ]) {
      for (const slow of [true, false]) {
        await go('#/');
        await page.keyboard.press('/');
        await page.waitForSelector('.palette');
        await page.keyboard.type(text);
        if (slow) {
          await page.waitForFunction((expected) => {
            const choice = document.querySelector('.palette-list li[aria-selected=true]');
            return choice?.querySelector('.palette-name')?.textContent === expected && choice.textContent?.includes('1 found');
          }, name);
        }
        await page.keyboard.press('Enter');
        await page.waitForFunction((expected) => location.hash === expected, hash);
        assert.equal((await rows(page, 1)).length, 1);
      }
    }
    // What was chosen by hand stays chosen.
    await page.keyboard.press('/');
    await page.keyboard.type('4711');
    await page.keyboard.press('ArrowDown');
    await page.locator('.palette-list li', { hasText: 'order is 4711' }).getByText('1 found').waitFor();
    await settled();
    assert.equal(await page.locator('.palette-list li[aria-selected=true] .palette-name').innerText(), 'Jobs: label has “4711”');
    assert.deepEqual(await axe(page, 'dialog'), []);
    await page.locator('.palette-input').fill('step pri');
    await page.locator('.palette-name', { hasText: 'Step price of parcels' }).waitFor();
  });
});

test('the filters of jobs take free text, and teach what they do not know', async () => {
  await on(browser, manager, async ({ page, go, asked }) => {
    await go('#/jobs?workflow=parcels');
    const field = page.getByLabel('More filters');
    await page.waitForFunction(() => /label:… column\.order:471\d status\./.test(document.querySelector('.words input')?.getAttribute('placeholder') ?? ''));
    await field.focus();
    await page.waitForFunction(() => document.querySelector('.words input')?.getAttribute('placeholder')?.includes('status.price:…'));
    const says = async (/** @type {string} */ text, /** @type {string} */ said) => {
      await field.fill(text);
      await field.press('Enter');
      await page.locator('.problem', { hasText: said }).waitFor();
      assert.equal(await field.inputValue(), text);
    };
    await says('customer:c1', 'customer is a column: column.customer:c1');
    await says('stat:failed', '“stat” is no filter. Perhaps state:failed');
    await says('order:4711', 'The column is column.order:4711');
    assert.deepEqual(asked.filter((call) => call.includes('order=4711')), []);
    assert.deepEqual(await axe(page), []);
    await page.locator('.problem a').click();
    assert.equal((await rows(page, 1))[0][2], HOSTILE);
    assert.equal(await page.locator('.problem').count(), 0);
    await go('#/jobs');
    await field.fill('of “ada”');
    await field.press('Enter');
    await page.waitForFunction(() => decodeURIComponent(location.hash) === '#/jobs?label=of+“ada”');
    await rows(page, 1);
    for (const [text, hash] of [[ids[1].slice(0, 8), `id=${ids[1].slice(0, 8)}`], ['00000000', 'label=00000000']]) {
      await go('#/jobs');
      await field.fill(text);
      await field.press('Enter');
      await page.waitForFunction((expected) => location.hash === `#/jobs?${expected}`, hash);
    }
    await page.getByRole('button', { name: 'Keys and help' }).click();
    await page.locator('dialog .help', { hasText: 'column.order:…' }).waitFor();
  });
});

test('the value of a column leads to all jobs that have it, and the row to its job', async () => {
  await on(browser, manager, async ({ page, go }) => {
    for (const keys of [false, true]) {
      await go('#/jobs?workflow=parcels');
      await rows(page, 3);
      const value = page.locator('.c-column a', { hasText: '4711' });
      if (keys) {
        await value.focus();
        await page.keyboard.press('Enter');
      } else await value.click();
      await page.waitForFunction(() => location.hash === '#/jobs?workflow=parcels&column.order=4711');
      assert.equal((await rows(page, 1))[0][2], HOSTILE);
      assert.equal(await page.locator('.c-column a', { hasText: '4711' }).count(), 0, 'it is asked for already');
    }
    await page.locator('.c-created').click();
    await page.waitForFunction((id) => location.hash === `#/job/${id}`, ids[0]);
  });
});

test('a filter that was refused can be seen and taken out, and nothing looks like its answer', async () => {
  await on(browser, manager, async ({ page, go, asked }) => {
    for (const [words, said] of [['column.weight=1', 'no workflow has a column "weight"'], ['state=late', 'state is "late"'], ['order=4711', 'The column is column.order:4711'], ['failedItems=no', 'failedItems']]) {
      await go('#/jobs?workflow=parcels');
      await rows(page, 3);
      await page.evaluate((hash) => { location.hash = hash; }, words === 'column.weight=1' ? `#/jobs?${words}` : `#/jobs?workflow=parcels&${words}`);
      await page.locator('.problem', { hasText: said }).waitFor();
      assert.equal(await page.locator('.page-head .quiet').first().innerText(), '');
      assert.equal(await page.locator('.jobs-table').count(), 0);
      assert.ok(await page.getByRole('button', { name: 'All of these…' }).isDisabled());
      await page.locator('a.chip', { hasText: words.split('=')[1] }).click();
      await page.locator('.problem').waitFor({ state: 'detached' });
      await page.locator('.jobs-table').waitFor();
    }
    assert.deepEqual(asked.filter((call) => call.includes('order=4711')), [], 'what must be refused is not asked');
  }, { expected: /400/ });
});

test('the inbox and a comparison call jobs by their labels', async () => {
  await on(browser, manager, async ({ page, go, asked }) => {
    await go('#/inbox');
    await page.waitForFunction(() => document.querySelectorAll('.letters [data-row]').length === 3);
    const names = await page.locator('.letter-job').allInnerTexts();
    assert.ok(names.some((name) => name.startsWith('A parcel that is very heavy')), names.join('; '));
    assert.ok(names.includes(ids[2].slice(0, 8)), 'a job without a label has its id');
    await page.locator('.letters a', { hasText: 'A parcel' }).click();
    await page.locator('.inbox-panel .panel-head a', { hasText: 'A parcel' }).waitFor();
    await go(`#/compare/${ids[0]}/${ids[2]}`);
    await page.locator('.compare-table th', { hasText: HOSTILE }).waitFor();
    await page.waitForFunction((label) => document.title.startsWith(`${label} and `), HOSTILE);
    const row = page.locator('.compare-table tr', { has: page.locator('th', { hasText: /^order/ }) });
    assert.deepEqual(await row.locator('td').allInnerTexts(), ['4711', '4713']);
    assert.ok(await row.evaluate((one) => one.classList.contains('differs')));
    assert.deepEqual(asked.filter((call) => call.endsWith('/result')), [], 'a job that has not completed has none');
    // With one that is found by what people know of it.
    const compare = async (/** @type {string} */ text) => {
      await go(`#/job/${ids[2]}`);
      await page.getByRole('button', { name: 'More' }).click();
      await page.getByRole('menuitem', { name: 'Compare…' }).click();
      await page.getByLabel('With the job').fill(text);
      await page.getByRole('button', { name: 'Compare', exact: true }).click();
    };
    for (const text of ['4711', 'ADA', 'c1', 'order:4711', ids[0].slice(0, 8)]) {
      await compare(text);
      await page.waitForFunction((hash) => location.hash === hash, `#/compare/${ids[0]}/${ids[2]}`);
    }
    await compare('a');
    assert.deepEqual(await page.locator('dialog .bulk-list a').first().innerText().then((name) => name.startsWith('A parcel')), true);
    assert.deepEqual(await axe(page, 'dialog'), []);
    await page.locator('dialog .bulk-list a').last().click();
    await page.waitForFunction((hash) => location.hash === hash, `#/compare/${ids[0]}/${ids[2]}`);
  });
});

test('the sheet of statuses calls jobs by their labels, and has their columns behind the steps', async () => {
  await on(browser, manager, async ({ page, go }) => {
    await go('#/statuses/parcels');
    await page.waitForFunction(() => document.querySelectorAll('.sheet tbody tr').length === 3);
    const heads = await page.locator('.sheet thead th').allInnerTexts();
    assert.deepEqual(heads.slice(-3), ['order', 'customer', 'cents']);
    const cells = await page.locator('.sheet tbody tr').nth(2).locator('th, td').allInnerTexts();
    assert.equal(cells[0], HOSTILE);
    assert.deepEqual(cells.slice(-3), ['4711', 'c1', '1250']);
    assert.deepEqual(await axe(page), []);
  });
});

test('steps of child jobs are in the inbox, and are called by the label of their root job', async () => {
  const id = await manager.create('batches', { title: 'Batch of May', list: [1, 2] });
  await on(browser, manager, async ({ page, go }) => {
    await go('#/inbox?workflow=batches');
    await page.waitForFunction(() => document.querySelectorAll('.letters [data-row]').length === 2);
    assert.deepEqual(await page.locator('.letter-job').allInnerTexts(), ['Batch of May', 'Batch of May']);
    assert.match(await page.locator('.letters a').first().innerText(), /judge\s+batches\s+part \d/);
    assert.deepEqual(await axe(page), []);
    await page.locator('.letters a').first().click();
    const panel = page.getByRole('region', { name: 'Decision' });
    await panel.locator('.step-line a', { hasText: 'Batch of May' }).waitFor();
    await panel.getByRole('button', { name: 'Complete it' }).click();
    await page.waitForFunction(() => document.querySelectorAll('.letters [data-row]').length === 1);
    // The breadcrumb of a child job leads to its root job by its label.
    await page.locator('.inbox-panel .panel-head a').click();
    await page.locator('.crumbs a', { hasText: 'Batch of May' }).click();
    await page.waitForFunction((job) => location.hash.includes(job), id);
    // The palette names the job of an id.
    await page.keyboard.press('Control+k');
    await page.locator('.palette-input').fill(id);
    await page.locator('.palette-list', { hasText: 'Open job Batch of May' }).waitFor();
  });
});

test('the jobs of a schedule, of its backfill and of refusals are called by their labels', async () => {
  // The judgement of a backfill is about several slots; that of a trigger has a job.
  await manager.post('schedule/weekly/backfill?from=2026-01-01T00:00:00Z&to=2026-01-16T00:00:00Z');
  await manager.post('schedule/weekly/trigger');
  await on(browser, manager, async ({ page, go }) => {
    await go('#/schedules?schedule=weekly');
    await page.locator('.judgements a', { hasText: /^Weekly parcel$/ }).first().waitFor();
    assert.deepEqual(await axe(page), []);
    await page.getByRole('button', { name: 'Backfill…' }).click();
    const dialog = page.locator('dialog');
    await dialog.getByLabel('From').fill('2026-01-01T01:00');
    await dialog.getByLabel('To').fill('2026-01-16T01:00');
    await dialog.getByRole('button', { name: 'Show what it would start' }).click();
    await dialog.locator('.backfill-list a', { hasText: /^Weekly parcel$/ }).first().waitFor();
    await page.keyboard.press('Escape');
    // They run, so there is nothing to resume.
    for (const marked of [false, true]) {
      await go('#/jobs?workflow=parcels&column.order=1&state=running');
      await rows(page, 4);
      if (marked) {
        await page.getByLabel('Mark all on this page').check();
        await page.getByRole('button', { name: 'Do something with them…' }).click();
      } else await page.getByRole('button', { name: 'All of these…' }).click();
      await dialog.getByRole('button', { name: 'Resume' }).click();
      await dialog.locator('.bulk-typed input').fill('4');
      await dialog.getByRole('button', { name: 'Resume 4 jobs' }).click();
      await dialog.getByText('4 refused').waitFor();
      assert.deepEqual(await dialog.locator('.facts-list').last().locator('a').allInnerTexts(), Array(4).fill('Weekly parcel'));
      await dialog.getByRole('button', { name: 'Close', exact: true }).last().click();
      await go('#/');
    }
  }, { expected: /409/ });
});

test('a child job is told by the label of its root job, and an item by its number', async () => {
  const id = await manager.create('batches', { title: 'Batch of June', list: [1, 2] });
  await on(browser, manager, async ({ page, go }) => {
    await go(`#/job/${id}/step/parts?items=all`);
    await page.waitForFunction(() => document.querySelectorAll('.items-table tbody tr').length === 2);
    const link = page.locator('.items-table tbody a').first();
    const [item, child] = [await link.innerText(), await link.getAttribute('title')];
    await link.click();
    await page.waitForFunction((job) => location.hash.includes(job ?? ''), child);
    await go(`#/job/${child}?step=__start__`);
    await page.locator('.step-panel .facts div', { hasText: `job Batch of June, item ${item}` }).waitFor();
  });
});
