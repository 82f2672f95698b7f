// Where one begins, and what one keeps: the first run, saved views, and two jobs or attempts side by side.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { axe, on, open } from './browser.js';
import { start } from './manager.js';
import * as jobs from './shop.js';

/** @type {import('playwright-core').Browser} */
let browser;
/** @type {import('./shop.js').Shop} */
let manager;
before(async () => {
  browser = await open();
  manager = await jobs.shop({ items: 40 });
});
after(async () => {
  await browser?.close();
  await manager?.stop();
});

const WIDTHS = [{}, { viewport: { width: 390, height: 844 } }];
/** @param {import('playwright-core').Page} page */
const wide = (page) => page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);

test('a manager without workflows says how to begin, one without jobs how to start one', async () => {
  const empty = await start({ workflows: [] });
  const idle = await start();
  try {
    for (const options of WIDTHS) {
      await on(browser, empty, async ({ page, go }) => {
        await go('#/');
        const first = page.locator('.first');
        await first.waitFor();
        const commands = await first.locator('.command code').allInnerTexts();
        for (const command of ['workflow-manager dev', 'workflow-manager init python hello', 'workflow-manager init --list', 'workflow-manager serve --workflows FILE']) assert.ok(commands.includes(command), `${command}: ${commands}`);
        assert.deepEqual(await axe(page), []);
        assert.equal(await wide(page), 0);
      }, options);
      await on(browser, idle, async ({ page, go }) => {
        await go('#/jobs');
        await page.getByText('There are no jobs yet.').waitFor();
        assert.match(await page.locator('main').innerText(), /workflow-manager run \S+ --message[^]*workflow-manager work QUEUE -- CMD/);
        await page.locator('main .none').getByRole('button', { name: 'New job' }).click();
        await page.waitForSelector('dialog[open]');
      }, options);
    }
  } finally {
    await empty.stop();
    await idle.stop();
  }
});

test('a view is saved under a name, and found by it and by its link', async () => {
  await on(browser, manager, async ({ page, go }) => {
    await go('#/jobs?workflow=orders&state=failed');
    await page.getByRole('button', { name: 'Save view' }).click();
    await page.getByLabel('Name').fill('What broke');
    await page.getByRole('button', { name: 'Save it' }).click();
    await page.waitForSelector('dialog', { state: 'detached' });
    // Another kind of view, from the palette; a name that is taken is given to the new one.
    for (const status of ['PASSED', 'FAILED']) {
      await go(`#/statuses/job-application?background-check=${status}`);
      await page.keyboard.press('Control+k');
      await page.keyboard.type('save this view');
      await page.keyboard.press('Enter');
      await page.getByLabel('Name').fill('Checks');
      await page.getByRole('button', { name: 'Save it' }).click();
      await page.waitForSelector('dialog', { state: 'detached' });
    }
    await page.reload();
    await go('#/view/What%20broke');
    await page.waitForFunction(() => location.hash === '#/jobs?workflow=orders&state=failed');
    await page.waitForSelector('.jobs-table');
    assert.deepEqual((await page.locator('.saved-view a').allInnerTexts()).map((name) => name.trim()), ['What broke', 'Checks']);
    await page.locator('.saved-view a', { hasText: 'Checks' }).click();
    await page.waitForFunction(() => location.hash === '#/statuses/job-application?background-check=FAILED');
    await go('#/jobs');
    await page.getByRole('button', { name: 'Forget the view Checks' }).click();
    await page.getByRole('button', { name: 'Forget the view Checks' }).waitFor({ state: 'detached' });
    await go('#/view/Checks');
    await page.getByText('No such view').waitFor();
    assert.deepEqual(await axe(page), []);
  });
});

test('two jobs side by side: inputs, outputs, times and definitions', async () => {
  const { ids, hashes } = manager;
  for (const options of WIDTHS) {
    await on(browser, manager, async ({ page, go }) => {
      if (!('viewport' in options)) {
        // From a list, the older one first.
        await go('#/jobs?workflow=orders&state=completed,failed');
        for (const id of [ids.failed, ids.completed]) await page.locator(`[data-row="${id}"] input`).check();
        await page.getByRole('link', { name: 'Compare them' }).click();
        await page.waitForFunction((address) => location.hash === address, `#/compare/${ids.completed}/${ids.failed}`);
      } else await go(`#/compare/${ids.completed}/${ids.failed}`);
      const steps = page.getByRole('region', { name: 'Steps' });
      await steps.waitFor();
      const differing = await steps.locator('tr.differs td:first-child b').allInnerTexts();
      assert.deepEqual(differing, ['invoice', 'ship', 'mail']);
      await page.getByRole('region', { name: 'Message', exact: true }).getByText('They are the same.').waitFor();
      await page.getByRole('region', { name: 'Result', exact: true }).getByText('Only the first has one.').waitFor();
      assert.deepEqual(await axe(page), []);
      assert.equal(await wide(page), 0);
      await page.getByRole('link', { name: 'Other way round' }).click();
      await page.waitForFunction((address) => location.hash === address, `#/compare/${ids.failed}/${ids.completed}`);
      // An older definition, and another message.
      await go(`#/compare/${ids.before}/${ids.large}`);
      const message = page.getByRole('region', { name: 'Message', exact: true });
      await message.locator('.diff-line.before', { hasText: 'Ada Lovelace' }).waitFor();
      await message.locator('.diff-line.after', { hasText: 'Babbage' }).waitFor();
      assert.ok((await message.locator('.diff-line.before').allInnerTexts()).some((line) => line.includes('12345678901234567890')), 'no digit is rounded');
      const link = page.getByRole('link', { name: 'What is different between the definitions' });
      assert.equal(await link.getAttribute('href'), `#/definitions/orders?hash=${hashes.now}&with=${hashes.then}`);
      await steps.getByRole('link', { name: 'price-lines' }).click();
      await page.getByRole('region', { name: 'Input of price-lines' }).locator('.diff-line').first().waitFor();
      assert.deepEqual(await axe(page), []);
      assert.equal(await wide(page), 0);
    }, { ...options, expected: /404/ });
  }
});

test('a job is compared with the one before it, or with one by its id', async () => {
  const first = await manager.create('nightly-report', {}).catch(() => undefined);
  assert.equal(first, undefined, 'the workflow is no longer loaded');
  const [one, other] = [await jobs.application(manager, 'One', 1), await jobs.application(manager, 'Other', 1)];
  await on(browser, manager, async ({ page, go }) => {
    const compare = async () => {
      await go(`#/job/${other}`);
      await page.getByRole('button', { name: 'More' }).click();
      await page.getByRole('menuitem', { name: 'Compare…' }).click();
    };
    const there = () => page.waitForFunction((address) => location.hash === address, `#/compare/${one}/${other}`);
    await compare();
    await page.getByRole('button', { name: 'With the one before it' }).click();
    await there();
    await compare();
    await page.getByLabel('With the job').fill('nothing');
    await page.getByRole('button', { name: 'Compare', exact: true }).click();
    await page.getByText('No other job is found by “nothing”.').waitFor();
    await page.getByLabel('With the job').fill(one.toUpperCase());
    await page.getByRole('button', { name: 'Compare', exact: true }).click();
    await there();
    await page.locator('.diff-line.before', { hasText: '"One"' }).waitFor();
    await go(`#/compare/${one}/00000000-0000-4000-8000-000000000000`);
    await page.getByText('They cannot be compared').waitFor();
  }, { expected: /404/ });
});

test('two attempts side by side', async () => {
  await on(browser, manager, async ({ page, go }) => {
    await go(`#/job/${manager.ids.failed}?step=invoice`);
    await page.getByRole('link', { name: 'Compare the last two' }).click();
    await page.waitForFunction(() => /attempts=1,2$/.test(location.hash));
    const row = page.locator('tr', { hasText: 'reason' });
    await row.waitFor();
    assert.deepEqual((await row.locator('td').allInnerTexts()).map((text) => text.trim()), ['failed by hand: the tax service does not answer', 'failed by hand: KeyError: \'vat\'']);
    assert.ok(await row.evaluate((one) => one.classList.contains('differs')));
    await page.getByLabel('First attempt').selectOption('2');
    await page.waitForFunction(() => /attempts=2,2$/.test(location.hash));
    await page.waitForFunction(() => document.querySelectorAll('.differs').length === 0);
    assert.deepEqual(await axe(page), []);
  });
});
