// Pauses and other values of limits, on a real manager: begun on the page, told above every view, and ended there.

import assert from 'node:assert/strict';
import { after, afterEach, before, test } from 'node:test';
import { axe, on, open } from './browser.js';
import { LIMITED, start } from './manager.js';

/** @type {import('playwright-core').Browser} */
let browser;
/** @type {import('./manager.js').Manager} */
let manager;
/** @type {string} */
let job;
before(async () => {
  browser = await open();
  manager = await start({ workflows: [LIMITED] });
  job = await manager.create('payments', { customer: 'c1' });
});
afterEach(async () => {
  for (const { kind, name } of await inForce()) {
    if (kind === 'limitChange') await fetch(`${manager.api}/api/limits/${name}`, { method: 'DELETE' });
    else await manager.post(`${{ queuePause: 'queue', workflowPause: 'workflows', limitPause: 'limits' }[/** @type {'queuePause'} */ (kind)]}/${name}/resume`);
  }
});
after(async () => {
  await browser?.close();
  await manager?.stop();
});

/** @returns {Promise<any[]>} */
const inForce = async () => (await manager.get('controls')).controls;
/** @param {import('playwright-core').Page} page */
const banner = (page) => page.locator('main > .banner.held');
const text = (/** @type {import('playwright-core').Locator} */ part) => part.innerText().then((words) => words.replace(/\s+/g, ' ').trim());
/** In milliseconds. @param {any} control */
const lasts = ({ since, until }) => Date.parse(until) - Date.parse(since);

test('a queue is paused for a time, which is told above every view until it is resumed', async () => {
  await on(browser, manager, async ({ page, go }) => {
    await go('#/');
    await page.getByRole('button', { name: 'Pause queue pay…' }).click();
    const dialog = page.locator('dialog');
    await dialog.getByLabel('For how long').first().fill('soon');
    await dialog.getByLabel('Why').fill('the <b>bank</b> is down');
    await dialog.getByRole('button', { name: 'Pause it' }).click();
    await dialog.locator('.problem', { hasText: 'such as 90s, 30m, 1h or 2d' }).waitFor();
    assert.deepEqual(await inForce(), []);
    await dialog.getByRole('button', { name: '4 h' }).click();
    assert.match(await text(dialog.locator('.as-command')), /The same for a shell/);
    await dialog.getByRole('button', { name: 'Pause it' }).click();
    await banner(page).waitFor();
    const [control, ...others] = await inForce();
    assert.deepEqual([control.kind, control.name, control.reason, lasts(control), others.length], ['queuePause', 'pay', 'the <b>bank</b> is down', 4 * 3_600_000, 0]);
    for (const view of ['#/jobs', `#/job/${job}`, '#/inbox', '#/schedules', '#/statuses/payments', '#/definitions/payments', '#/manager', '#/nowhere', '#/']) {
      await go(view);
      assert.match(await text(banner(page)), /^Queue pay is paused until \d\d:\d\d:\d\d in [34] h: the <b>bank<\/b> is down Resume$/, view);
      assert.equal(await banner(page).locator('time').getAttribute('datetime'), control.until, view);
    }
    // In its row too.
    assert.match(await text(page.locator('.queue-table .control-note')), /^Paused until .*: the <b>bank<\/b> is down Resume$/);
    await banner(page).getByRole('button', { name: 'Resume queue pay' }).click();
    await banner(page).waitFor({ state: 'detached' });
    assert.deepEqual(await inForce(), []);
    await page.getByRole('button', { name: 'Pause queue pay…' }).waitFor();
  }, { expected: /400/ });
});

test('a step whose queue is paused says so, and names no limit', async () => {
  await manager.post('queue/pay/pause?reason=the+bank+is+down');
  const held = await manager.create('payments', { customer: 'c2' });
  await on(browser, manager, async ({ page, go }) => {
    await go(`#/job/${held}?step=pay`);
    const panel = page.locator('.step-panel .reason-box');
    await panel.waitFor();
    assert.match(await text(panel), /^It waits because queue pay is paused until it is resumed: the bank is down, since /);
    await banner(page).getByText('· 1 step waits').waitFor();
  });
});

test('a workflow is paused from its definition, its jobs and the palette', async () => {
  await on(browser, manager, async ({ page, go }) => {
    for (const view of ['#/definitions/payments', '#/jobs?workflow=payments']) {
      await go(view);
      await page.getByRole('button', { name: 'Pause workflow payments…' }).click();
      await page.locator('dialog').getByRole('button', { name: 'until it is resumed' }).click();
      await page.locator('dialog').getByRole('button', { name: 'Pause it' }).click();
      await banner(page).waitFor();
      assert.equal(await text(banner(page)), 'Workflow payments is paused until it is resumed Resume', view);
      assert.deepEqual((await inForce()).map(({ kind, name, until }) => [kind, name, until]), [['workflowPause', 'payments', undefined]]);
      await page.locator('.page-head').getByRole('button', { name: 'Resume workflow payments' }).click();
      await page.getByRole('button', { name: 'Pause workflow payments…' }).waitFor();
      assert.deepEqual(await inForce(), [], view);
    }
    await go('#/jobs?workflow=no-such-one');
    assert.equal(await page.getByRole('button', { name: /^Pause workflow/ }).count(), 0);
    await go('#/');
    await page.getByRole('button', { name: 'Pause queue pay…' }).waitFor();
    await page.keyboard.press('Control+k');
    // What every view has is not behind what each workflow, queue and limit has.
    assert.deepEqual(await page.locator('.palette-name').allInnerTexts().then((names) => names.slice(0, 2)), ['Overview', 'Jobs']);
    await page.keyboard.type('pause workflow payments');
    await page.keyboard.press('Enter');
    await page.locator('dialog').getByRole('button', { name: 'Pause it' }).click();
    await page.locator('.overview-name .control-note', { hasText: 'Paused until' }).waitFor();
    assert.equal((await inForce()).length, 1);
  }, { expected: /404/ });
});

test('a limit gets other values for a time, and its own again', async () => {
  await on(browser, manager, async ({ page, go }) => {
    await go('#/');
    const row = page.locator('.limit-table tbody tr', { hasText: 'bank' });
    assert.match(await text(row), /100\/m, burst 1; 50 at once/);
    await page.getByRole('button', { name: 'Change limit bank…' }).click();
    const dialog = page.locator('dialog');
    assert.equal(await dialog.getByLabel('Rate').inputValue(), '100/m');
    await dialog.getByLabel('Rate').fill('0/s');
    await dialog.getByRole('button', { name: 'Change it' }).click();
    await dialog.locator('.problem', { hasText: 'pause the limit' }).waitFor();
    await dialog.getByLabel('Rate').fill('20/m');
    await dialog.getByLabel('Burst').fill('3');
    await dialog.getByLabel('Concurrency').fill('');
    await dialog.getByLabel('Why').fill('the bank is slow');
    await dialog.getByRole('button', { name: 'Change it' }).click();
    await row.locator('.control-note', { hasText: 'Changed until' }).waitFor();
    await row.getByText('20/m, burst 3; 50 at once its file: 100/m, burst 1; 50 at once').waitFor();
    await page.getByRole('button', { name: 'Change limit bank…' }).click();
    await dialog.getByText('instead of what its file says (100/m, burst 1; 50 at once).').waitFor();
    await page.keyboard.press('Escape');
    assert.match(await text(row.locator('.control-note')), /^Changed until \d\d:\d\d:\d\d in .*: the bank is slow End the change$/);
    assert.deepEqual((await inForce()).map((control) => [control.kind, control.name, control.rate, control.burst, control.concurrency, control.reason, lasts(control)]), [['limitChange', 'bank', '20/m', 3, undefined, 'the bank is slow', 3_600_000]]);
    assert.equal(await banner(page).count(), 0, 'nothing is paused');
    await row.getByRole('button', { name: 'End the change of limit bank' }).click();
    await row.getByText('100/m, burst 1; 50 at once', { exact: true }).waitFor();
    assert.equal(await row.locator('.control-note').count(), 0);
    assert.deepEqual(await inForce(), []);
    // And it is paused.
    await page.getByRole('button', { name: 'Pause limit bank…' }).click();
    await dialog.getByRole('button', { name: 'Pause it' }).click();
    await row.locator('.control-note.paused').waitFor();
    await row.locator('.word', { hasText: 'paused' }).waitFor();
    await banner(page).getByRole('button', { name: 'Resume limit bank' }).click();
    await row.locator('.word').waitFor({ state: 'detached' });
    assert.deepEqual(await inForce(), []);
  }, { expected: /400/ });
});

test('what somebody else ended meanwhile is told, and is not shown any more', async () => {
  await manager.post('queue/pay/pause?for=1h');
  await on(browser, manager, async ({ page, go }) => {
    await go('#/manager');
    await banner(page).waitFor();
    // The page has not looked since: it hears what was so before, until it is refused.
    const before = await manager.text('controls');
    let refused = false;
    page.on('response', (response) => { refused ||= response.status() === 409; });
    await page.route(/\/api\/controls$/, (route) => (refused ? route.continue() : route.fulfill({ contentType: 'application/json', body: before })));
    await manager.post('queue/pay/resume');
    await banner(page).getByRole('button', { name: 'Resume queue pay' }).click();
    await page.locator('.toast.problem', { hasText: 'is not paused' }).waitFor();
    await banner(page).waitFor({ state: 'detached' });
  }, { expected: /409/ });
});

test('who may only look sees what is paused, and is offered nothing', async () => {
  const secret = (/** @type {string} */ name) => `${name}-${'x'.repeat(40)}`;
  const guarded = await start({ workflows: [LIMITED], settings: { HTTP__TOKEN: secret('root'), HTTP__TOKENS__LOOKER__TOKEN: secret('looker'), HTTP__TOKENS__LOOKER__SCOPE: 'read' } });
  try {
    await guarded.post('queue/pay/pause?for=1d&reason=the+bank+is+down');
    await guarded.post('limits/bank?rate=20/m');
    await on(browser, guarded, async ({ page, go, asked }) => {
      await page.addInitScript((token) => sessionStorage.setItem('workflow-manager.token', token), secret('looker'));
      for (const view of ['#/', '#/definitions/payments', '#/jobs?workflow=payments']) {
        await go(view);
        await banner(page).waitFor();
        // One that ends on another day has it.
        assert.match(await text(banner(page)), /^Queue pay is paused until \d+ \w+ [\d:]+ in \d+ [hd], by http\.token: the bank is down$/);
        const offered = await page.locator('main button').evaluateAll((all) => all.map((one) => one.getAttribute('aria-label') ?? one.textContent ?? ''));
        assert.deepEqual(offered.filter((name) => /^(Pause|Resume|Change|End)/.test(name)), [], view);
      }
      await go('#/');
      await page.locator('.limit-table .control-note', { hasText: 'Changed until it is ended' }).waitFor();
      await page.keyboard.press('/');
      await page.waitForSelector('.palette');
      await page.keyboard.type('limit bank');
      await page.locator('.palette-name', { hasText: 'label has “limit bank”' }).waitFor();
      assert.deepEqual((await page.locator('.palette-name').allInnerTexts()).filter((name) => !name.startsWith('Jobs: ')), [], 'nothing that would be refused');
      assert.ok(asked.every((call) => call.startsWith('GET')), 'nothing was tried');
    });
  } finally {
    await guarded.stop();
  }
});

for (const colorScheme of /** @type {const} */ (['light', 'dark'])) {
  for (const width of [390, 1440]) {
    test(`what is paused and changed fits in ${width} pixels, and axe finds nothing, ${colorScheme}`, async () => {
      await manager.post('queue/pay/pause?for=1h&reason=the+bank+is+down');
      await manager.post('workflows/accounts/pause?reason=somebody+looks+at+the+accounts,+which+takes+a+while,+and+all+who+wait+for+them+should+know+whom+to+ask');
      await manager.post('limits/customer/pause?for=2d');
      await manager.post('limits/bank/pause');
      await manager.post('limits/bank?rate=20/m&for=1h&reason=the+bank+is+slow');
      await on(browser, manager, async ({ page, go }) => {
        for (const view of ['#/', `#/job/${job}`, '#/definitions/accounts']) {
          await go(view);
          await page.waitForFunction(() => document.querySelectorAll('.banner.held li').length === 4);
          await page.waitForFunction(() => [...document.querySelectorAll('.graph')].every((one) => one.querySelector('.node')));
          assert.ok((await page.evaluate(() => document.documentElement.scrollWidth)) <= width, view);
          assert.doesNotMatch(await page.locator('main').innerText(), /undefined|NaN|\[object/, view);
          assert.deepEqual(await axe(page), [], view);
          if (process.env.SHOTS) await page.screenshot({ path: `${process.env.SHOTS}/pauses-${view.slice(2, 5) || 'overview'}-${width}-${colorScheme}.png`, fullPage: width === 390 });
        }
        await go('#/');
        for (const name of ['Change limit bank…', 'Pause queue book…']) {
          await page.getByRole('button', { name }).click();
          await page.waitForSelector('dialog[open]');
          assert.deepEqual(await axe(page, 'dialog'), [], name);
          if (process.env.SHOTS) await page.screenshot({ path: `${process.env.SHOTS}/pauses-${name.slice(0, 5)}-${width}-${colorScheme}.png` });
          await page.keyboard.press('Escape');
          await page.waitForSelector('dialog', { state: 'detached' });
        }
      }, { colorScheme, viewport: { width, height: 844 } });
    });
  }
}
