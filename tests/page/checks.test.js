// A workflow file that is pasted into Definitions: what `check` says of it, its graphs, and that nothing is saved.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { axe, on, open } from './browser.js';
import { ODD, start } from './manager.js';

const ADMIN = 'admin-0123456789';
const READER = 'reader-0123456789';
const GOOD = `workflows:
  - name: pasted
    vhosts: [ prod, test ]
    deadline: 1h
    steps:
      - { name: split, timeout: 2h }
      - { name: each, task: piece, depends: [ split ] }
      - { name: sum, depends: [ each ] }
    tasks:
      - name: piece
        itemListKey: items
        steps: [ { name: count }, { name: store, depends: [ count ] } ]
  - { name: other, steps: [ { name: split } ] }
`;
/** An error in the seventh line, after a letter that takes two units of the field. */
const BAD = GOOD.replace('{ name: each, task: piece, depends: [ split ] }', '{ name: each, x-note: "𝄞", task: piece, depends: [ splitt ] }');

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

/** @param {import('playwright-core').Page} page @param {string} text */
async function check(page, text) {
  await page.getByLabel('A workflow file, YAML or JSON').fill(text);
  await page.getByRole('button', { name: 'Check it' }).click();
}
/** @param {import('playwright-core').Page} page @param {number} many */
const drawn = (page, many) => page.waitForFunction((many) => document.querySelectorAll('.checked .node').length === many, many);

for (const [colorScheme, width] of /** @type {const} */ ([['light', 1440], ['dark', 1440], ['light', 390], ['dark', 390]])) {
  test(`a file is pasted: errors with their lines, then the graph of each workflow, ${colorScheme}, ${width} pixels`, async () => {
    await on(browser, manager, async ({ page, go, asked }) => {
      const before = await manager.get('workflows?all=true');
      await go('#/definitions');
      assert.ok(await page.getByRole('button', { name: 'Check it' }).isDisabled(), 'there is nothing to check');
      await page.getByRole('button', { name: 'Check a file' }).click();
      assert.equal(await page.evaluate(() => document.activeElement?.id), 'check-text');
      await check(page, BAD);
      await page.waitForSelector('.check-list li');
      assert.match(await page.locator('.check-verdict').innerText(), /not valid\s+\d+ errors?/);
      const said = await page.locator('.check-list').innerText();
      assert.match(said, /line 7:\d+[\s\S]*workflow pasted, step each: .*splitt.*did you mean "split"/);
      assert.deepEqual(await axe(page), []);
      assert.equal(await page.locator('.checked').count(), 0);
      // The line leads to the word that is wrong.
      await page.getByRole('button', { name: /^line 7:/ }).last().click();
      assert.equal(await page.evaluate(() => { const field = /** @type {HTMLTextAreaElement} */ (document.activeElement); return field.value.slice(field.selectionStart, field.selectionEnd); }), 'splitt ] }');

      await check(page, GOOD);
      // Three steps, the two of the task, and that of the other workflow; two ends each are no nodes.
      await drawn(page, 6);
      assert.match(await page.locator('.check-verdict').innerText(), /valid\s+2 workflows, \d+ warnings/);
      assert.match(await page.locator('.check-list').innerText(), /line 6:\d+[\s\S]*"timeout" is 2h and has no effect/);
      assert.deepEqual(await page.locator('.check-name').allInnerTexts().then((names) => names.map((name) => name.replaceAll(/\s+/g, ' '))), ['pasted in the virtual hosts prod, test', 'other']);
      assert.deepEqual(await axe(page), []);
      assert.ok((await page.evaluate(() => document.documentElement.scrollWidth)) <= width);
      // A step of one workflow is not that of the other.
      await page.locator('.checked').first().locator('.steps-table a').first().click();
      await page.waitForFunction(() => document.querySelectorAll('.checked tr.at').length === 1);
      await page.waitForFunction(() => document.querySelectorAll('.checked .node.chosen').length === 1);

      await page.getByLabel('A workflow file, YAML or JSON').press('End');
      await page.keyboard.type(' ');
      await page.waitForFunction(() => /changed since it was checked/.test(document.querySelector('.check-do')?.textContent ?? ''));
      // What was pasted is still there after a look at something else.
      await go('#/manager');
      await page.goBack();
      await page.waitForSelector('#check-text');
      assert.match(await page.locator('#check-text').inputValue(), /name: pasted/);
      assert.deepEqual(await manager.get('workflows?all=true'), before);
      assert.deepEqual([...new Set(asked.filter((call) => !call.startsWith('GET')))], ['POST /api/check']);
    }, { colorScheme, viewport: { width, height: 900 } });
  });
}

test('limits, retries, the label and the columns are told', async () => {
  await on(browser, manager, async ({ page, go }) => {
    await go('#/definitions');
    await page.getByRole('button', { name: 'Check a file' }).click();
    await check(page, `limits:
  - { name: places, concurrency: 2 }
  - { name: rate, rate: 5/s }
workflows:
  - name: parcels
    limit: { use: places, then: latest, delay: 5s, waitAtMost: 1h }
    label: job.title
    columns: { order: job.order, cents: steps.price.output.cents }
    steps:
      - { name: price, limit: rate, waitAtMost: 10m, timeout: 1m, retry: { attempts: 4, backoff: 2s, factor: 3, maxBackoff: 1m } }
`);
    await page.locator('.checked .facts').waitFor();
    const text = (await page.locator('.checked').innerText()).replaceAll(/\s+/g, ' ');
    for (const part of ['limit of its jobs places: the newest job waits for a place, begins after 5s, fails after waiting 1h', 'label job.title', 'columns order job.order, cents steps.price.output.cents', '4, pauses from 2s × 3, at most 1m', 'waitAtMost 10m']) assert.ok(text.includes(part), `${part} in ${text}`);
    assert.deepEqual(await axe(page), []);
  });
});

test('who may only look may check, and what the manager refuses is told', async () => {
  const guarded = await start({ workflows: [ODD], settings: { HTTP__TOKEN: ADMIN, HTTP__TOKENS__LOOKER__TOKEN: READER, HTTP__TOKENS__LOOKER__SCOPE: 'read' } });
  try {
    await on(browser, guarded, async ({ page, go }) => {
      await page.addInitScript((token) => sessionStorage.setItem('workflow-manager.token', token), READER);
      await page.route(/\/api\/check$/, (route) => route.fulfill({ status: 503, contentType: 'application/problem+json', body: '{"detail":"too many reads at once"}' }), { times: 1 });
      await go('#/definitions');
      await check(page, GOOD);
      await page.waitForFunction(() => /too many reads at once/.test(document.querySelector('.check-form .problem')?.textContent ?? ''));
      await page.getByRole('button', { name: 'Check it' }).click();
      await drawn(page, 6);
      assert.equal(await page.locator('.check-form .problem').count(), 0);
      // A manager of before.
      await page.route(/\/api\/check$/, (route) => route.fulfill({ status: 404, contentType: 'application/problem+json', body: '{"detail":"there is nothing at /api/check"}' }), { times: 1 });
      await page.getByRole('button', { name: 'Check it' }).click();
      await page.waitForFunction(() => /does not check texts/.test(document.querySelector('.check-form .problem')?.textContent ?? ''));
    }, { expected: /503|404/ });
  } finally {
    await guarded.stop();
  }
});
