// What is done on the page, with the mouse and with keys, and what has become of it on the real manager.

import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { after, before, test } from 'node:test';
import { on, open } from './browser.js';
import { folder, ODD, start, until } from './manager.js';
import * as jobs from './shop.js';

/** @type {import('playwright-core').Browser} */
let browser;
/** @type {jobs.Shop} */
let manager;
before(async () => {
  browser = await open();
  manager = await jobs.shop({ items: 40, settings: { HTTP__EVENT_HEARTBEAT: '200ms' } });
});
after(async () => {
  await browser?.close();
  await manager?.stop();
});

/** @param {import('playwright-core').Page} page */
const live = (page) => page.waitForFunction(() => document.querySelector('.light')?.textContent?.includes('Live'));
/** @param {import('playwright-core').Page} page @param {string} name */
const shows = (page, name) => page.waitForFunction((expected) => document.querySelector('.step-title h2')?.textContent === expected, name);

test('an order from its beginning to its end', async () => {
  await on(browser, manager, async ({ page, go, becomes }) => {
    await go('#/definitions/orders');
    await page.getByRole('button', { name: 'New job' }).click();
    await page.getByLabel('Message, a JSON object').fill('{"lines":');
    await page.getByRole('button', { name: 'Create it' }).click();
    await page.waitForSelector('dialog .problem');
    await page.getByLabel('Message, a JSON object').fill('{"lines":[{"article":"pen"},{"article":"ink"},{"article":"paper"},{"article":"wax"},{"article":"seal"}]}');
    await page.getByRole('button', { name: 'Create it' }).click();
    await page.waitForSelector('.job-head');
    const id = page.url().slice(-36);
    assert.equal((await manager.light(id)).workflow, 'orders');
    await live(page);
    // Child jobs: four by their worker, one by hand, and the page hears of all.
    const children = await manager.children(id, 'price-lines');
    await go(`#/job/${id}/step/price-lines`);
    for (const { job } of children.slice(0, 3)) await manager.complete(job, 'price', { line: { cents: 7 } });
    await manager.fail(children[3].job, 'price', 'no wax left');
    await page.waitForFunction(() => /80\.0 %/.test(document.querySelector('.fan-figures')?.textContent ?? ''));
    await page.waitForFunction(() => /no wax left/.test(document.querySelector('main')?.textContent ?? ''));
    await go(`#/job/${children[4].job}`);
    await page.getByRole('button', { name: 'Complete by hand…' }).click();
    await page.getByLabel('Output, a JSON object').fill('[1]');
    await page.getByRole('button', { name: 'Complete it' }).click();
    await page.waitForSelector('dialog .problem');
    assert.match(await page.locator('dialog .problem').innerText(), /not? (a )?JSON object/);
    await page.getByLabel('Output, a JSON object').fill('{"line":{"cents":1.50}}');
    await page.getByRole('button', { name: 'Complete it' }).click();
    await becomes('completed');
    assert.equal(await manager.text(`job/${children[4].job}/step/price/output`), '{"line":{"cents":1.50}}');
    await go(`#/job/${id}?step=fraud-check`);
    await page.getByRole('button', { name: 'Fail…' }).click();
    await page.getByLabel('Reason').fill('<b>no</b> \u202Eway');
    await page.getByLabel('Why').fill('asked by <i>phone</i>');
    await page.getByRole('button', { name: 'Fail it' }).click();
    await page.waitForSelector('.step-panel .reason-box');
    assert.equal((await manager.step(id, 'fraud-check')).state, 'failed');
    assert.ok((await manager.get(`job/${id}/entries`)).entries.some((/** @type {any} */ entry) => entry.reason === 'asked by <i>phone</i>'), 'the record has the reason');
    for (const [step, output] of [['stock', '{}'], ['invoice', '{"cents":19.90}'], ['ship', '{"parcel":"SENT"}'], ['mail', '{}']]) {
      await manager.reaches(id, step, 'running');
      await go(`#/job/${id}?step=${step}`);
      await shows(page, step);
      await page.getByRole('button', { name: 'Complete by hand…' }).click();
      await page.getByLabel('Output, a JSON object').fill(output);
      await page.getByRole('button', { name: 'Complete it' }).click();
      await page.waitForSelector('dialog', { state: 'detached' });
    }
    await becomes('completed');
    assert.equal((await manager.step(id, 'ship')).status, 'SENT');
    await go(`#/job/${id}?step=__end__`);
    await page.waitForFunction(() => /SENT/.test(document.querySelector('.step-panel .code')?.textContent ?? ''));
    await go(`#/job/${id}?step=invoice&tab=output`);
    await page.waitForFunction(() => /19\.90/.test(document.querySelector('.step-panel .code')?.textContent ?? ''));
    // Again from a step on, which says beforehand what it means.
    await go(`#/job/${id}?step=invoice`);
    await page.getByRole('button', { name: 'Run again from here…' }).click();
    assert.match(await page.locator('dialog').innerText(), /3 steps will be done again[\s\S]*invoice[\s\S]*ship[\s\S]*mail/);
    await page.locator('dialog').getByRole('button', { name: 'Run 3 steps again' }).click();
    await becomes('running');
    assert.deepEqual((await manager.light(id)).steps.map((/** @type {any} */ step) => step.state), ['completed', 'failed', 'skipped', 'completed', 'running', 'waiting', 'waiting']);
  }, { expected: /40[049]|422/ });
});

test('operations: at once, or asked for first; and nothing in the past', async () => {
  const id = await jobs.standing(manager);
  const gone = await jobs.completed(manager);
  const broken = await jobs.failed(manager);
  await on(browser, manager, async ({ page, go, asked, becomes }) => {
    await go(`#/job/${id}`);
    await page.getByRole('button', { name: 'Pause' }).click();
    await becomes('paused');
    await manager.ends(id, 'paused');
    await page.getByRole('button', { name: 'Resume' }).click();
    await becomes('running');
    await page.getByRole('button', { name: 'Send again…' }).click();
    await page.getByRole('button', { name: 'No, leave it' }).click();
    await page.waitForSelector('dialog', { state: 'detached' });
    assert.ok(!asked.some((call) => call.includes('redispatch')));
    // What the manager refuses is told where it was asked: on this bus it still has the message.
    await page.getByRole('button', { name: 'Send again…' }).click();
    await page.getByRole('button', { name: 'Send it again' }).click();
    await page.waitForSelector('dialog .problem');
    await page.keyboard.press('Escape');
    await page.waitForSelector('dialog', { state: 'detached' });
    await page.getByRole('button', { name: 'Cancel…' }).click();
    assert.match(await page.locator('dialog').innerText(), /cannot be taken back/);
    assert.ok(!asked.some((call) => call.endsWith('/cancel')));
    await page.getByLabel('Why').fill('ordered <b>twice</b>');
    await page.getByRole('button', { name: 'Cancel it' }).click();
    await becomes('cancelled');
    const { state, reason } = await manager.light(id);
    assert.equal(state, 'cancelled');
    assert.match(reason, /ordered <b>twice<\/b>/);
    await go(`#/job/${id}?view=record`);
    await page.waitForFunction(() => /ordered <b>twice<\/b>/.test(document.querySelector('.record-row')?.parentElement?.textContent ?? ''));

    await go(`#/job/${broken}`);
    await page.getByRole('button', { name: 'Retry', exact: true }).click();
    await becomes('running');
    await manager.reaches(broken, 'invoice', 'running');

    await go(`#/job/${manager.ids.paused}?at=5`);
    await page.waitForSelector('.in-past');
    for (const button of await page.locator('.job-actions > .button, .panel-foot .button').all()) assert.ok(await button.isDisabled());

    await go(`#/job/${gone}`);
    await page.getByRole('button', { name: 'More' }).click();
    await page.getByRole('menuitem', { name: 'Erase…' }).click();
    await page.getByRole('button', { name: 'Erase it for good' }).click();
    await page.waitForFunction(() => location.hash.startsWith('#/jobs'));
    await assert.rejects(() => manager.light(gone), /404/);
  }, { expected: /40[049]/ });
});

test('the record: slider, keys and address say the same', async () => {
  const id = await jobs.standing(manager);
  await on(browser, manager, async ({ page, go }) => {
    const { entries } = await manager.light(id);
    await go(`#/job/${id}`);
    await page.waitForSelector('.node[data-step=invoice].running');
    await page.keyboard.press('[');
    await page.waitForSelector('.in-past');
    const at = Number(/at=(\d+)/.exec(page.url())?.[1]);
    assert.ok(at < entries, page.url());
    await page.waitForFunction((n) => document.querySelector('.why')?.textContent?.includes(`after entry ${n}`), at);
    await page.getByRole('slider').focus();
    await page.keyboard.press('Home');
    await page.waitForFunction(() => /at=1($|&)/.test(location.hash));
    await page.waitForSelector('.node[data-step=invoice].waiting');
    await page.keyboard.press('End');
    await page.waitForFunction(() => !location.hash.includes('at='));
    await page.waitForSelector('.node[data-step=invoice].running');
    await go(`#/job/${id}?at=999`);
    await page.waitForSelector('.problem');
    assert.match(await page.locator('.problem').innerText(), new RegExp(`1 to ${entries}`));
    await page.getByRole('button', { name: 'Back to now' }).click();
    await page.waitForSelector('.in-past', { state: 'detached' });
    await page.keyboard.press('r');
    await page.waitForSelector('.record-row');
    await page.locator('.record-row', { hasText: 'stock' }).locator('button', { hasText: '15 B' }).first().click();
    await page.waitForFunction(() => /"reserved": 16/.test(document.querySelector('.record-open')?.textContent ?? ''));
  }, { expected: /404/ });
});

test('what happens is shown as it happens, and a hidden page asks nothing', async () => {
  const id = await jobs.standing(manager);
  const streams = (/** @type {number} */ many) => until(`${many} streams`, async () => (await manager.get('manager')).streams === many);
  await streams(0);
  await on(browser, manager, async ({ page, go, asked, settled }) => {
    await page.clock.install();
    await go(`#/job/${id}`);
    await live(page);
    await streams(1);
    await manager.complete(id, 'invoice', { cents: 1 });
    await page.waitForSelector('.node[data-step=invoice].completed');
    const hide = (/** @type {boolean} */ hidden) => page.evaluate((value) => {
      Object.defineProperty(document, 'hidden', { value, configurable: true });
      document.dispatchEvent(new Event('visibilitychange'));
    }, hidden);
    await settled();
    await hide(true);
    await streams(0);
    const before = asked.length;
    await page.clock.fastForward('10:00');
    await settled();
    assert.deepEqual(asked.slice(before), []);
    await manager.complete(id, 'ship', { parcel: 'SENT' });
    await hide(false);
    await page.waitForSelector('.node[data-step=ship].completed');
    await streams(1);
  });
});

test('a manager that ends and comes back: the page says so, and goes on', async () => {
  const files = await folder();
  const journal = `${files.path}/journal.db`;
  let own = await start({ journal });
  const port = own.api.split(':')[2];
  try {
    const id = await jobs.standing(own);
    await on(browser, own, async ({ page, go }) => {
      await go(`#/job/${id}`);
      await live(page);
      await own.stop();
      await page.waitForFunction(() => !document.querySelector('.light')?.textContent?.includes('Live'));
      assert.match(await page.locator('main').innerText(), /invoice/);
      own = await start({ journal, listen: port, page: Number(new URL(own.url).port) });
      await own.complete(id, 'invoice', {});
      await live(page);
      await page.waitForSelector('.node[data-step=invoice].completed');
    }, { expected: /ERR_/ });
  } finally {
    await own.stop();
    await files.remove();
  }
});

test('all of a search: looked at first, a number typed, refusals told', async () => {
  for (let n = 0; n < 12; n += 1) await manager.fail(await manager.create('short', { go: true }), 'only', `fault ${n}`);
  const runs = await manager.create('short', { go: true });
  await on(browser, manager, async ({ page, go, asked }) => {
    await go('#/jobs?workflow=short&state=failed,running');
    await page.getByRole('button', { name: 'All of these…' }).click();
    await page.locator('dialog').getByRole('button', { name: 'Retry' }).click();
    const run = page.locator('dialog').getByRole('button', { name: /^Retry 13 jobs$/ });
    await run.waitFor();
    assert.ok(await run.isDisabled());
    assert.ok(asked.every((call) => !call.startsWith('POST') || call.includes('dryRun=true')));
    await page.getByLabel('Why').fill('the <i>disk</i> is back');
    await page.locator('.bulk-typed input').fill('13');
    await run.click();
    await page.waitForFunction(() => /12 done, 1 refused/.test(document.querySelector('dialog')?.textContent ?? ''));
    await page.getByRole('button', { name: 'Close', exact: true }).last().click();
    await page.waitForSelector('dialog', { state: 'detached' });
    assert.equal((await manager.get('jobs/search?workflow=short&state=running&count=true')).count, 13);
    assert.equal((await manager.light(runs)).state, 'running');
    const [{ job }] = (await manager.get('jobs/search?workflow=short&state=running&order=oldest&limit=1')).jobs;
    assert.ok((await manager.get(`job/${job}/entries`)).entries.some((/** @type {any} */ entry) => entry.reason === 'the <i>disk</i> is back'), 'each record has the reason');
    // What cannot be undone has no record that could keep one.
    await page.getByRole('button', { name: 'All of these…' }).click();
    await page.locator('dialog').getByRole('button', { name: 'Erase' }).click();
    await page.locator('.bulk-typed, dialog p').first().waitFor();
    assert.equal(await page.getByLabel('Why').count(), 0);
  });
});

test('an operation on jobs that are gone meanwhile says that there are none', async () => {
  const id = await manager.create('short', { go: true });
  await on(browser, manager, async ({ page, go }) => {
    await go(`#/jobs?workflow=short&state=running&id=${id}`);
    await page.getByRole('button', { name: 'All of these…' }).click();
    await manager.complete(id, 'only');
    await manager.ends(id, 'completed');
    await page.locator('dialog').getByRole('button', { name: 'Retry' }).click();
    await page.locator('dialog').getByText('No jobs to retry.').waitFor();
  });
});

test('payloads and sheets are saved as files, copied as they are', async () => {
  const { ids } = manager;
  await on(browser, manager, async ({ page, go, asked }) => {
    await go(`#/job/${ids.completed}?step=__start__`);
    await page.waitForSelector('.step-panel .code-line');
    let [download] = await Promise.all([page.waitForEvent('download'), page.getByRole('button', { name: 'Save as a file' }).click()]);
    assert.equal(download.suggestedFilename(), 'message.json');
    assert.equal(await readFile(await download.path(), 'utf8'), jobs.MESSAGE);
    await page.context().grantPermissions(['clipboard-read', 'clipboard-write']);
    await page.locator('.payload-bar').getByRole('button', { name: 'Copy' }).click();
    await page.waitForSelector('.toast');
    assert.equal(await page.evaluate(() => navigator.clipboard.readText()), jobs.MESSAGE);
    await go('#/statuses/job-application?offer=ACCEPTED');
    await page.waitForSelector('.sheet');
    assert.equal(await page.locator('.sheet tbody tr').count(), 1);
    await page.waitForFunction(() => /\b1 job\b/.test(document.querySelector('.page-head')?.textContent ?? ''));
    [download] = await Promise.all([page.waitForEvent('download'), page.getByRole('button', { name: 'CSV' }).click()]);
    assert.equal(download.suggestedFilename(), 'job-application.csv');
    assert.ok(asked.some((call) => call.includes('step.offer=ACCEPTED')));
    assert.equal((await readFile(await download.path(), 'utf8')).trim().split('\n').length, 2);
    // Steps that wait have no status; they can be filtered by all the same.
    await go('#/statuses/job-application?phone-screen=-');
    await page.waitForFunction(() => document.querySelectorAll('.sheet tbody tr').length === 1);
  });
});

test('definitions are compared, and files read again', async () => {
  const { hashes } = manager;
  await on(browser, manager, async ({ page, go }) => {
    await go(`#/definitions/orders?with=${hashes.then}`);
    const text = await page.locator('main').innerText();
    for (const part of [/fraud-check/, /timeout/, /30\s?s/]) assert.match(text, part);
    await go('#/manager');
    await page.getByRole('button', { name: /Reload/ }).click();
    await page.getByRole('button', { name: 'Reload them' }).click();
    await page.waitForFunction(() => /unchanged/.test(document.querySelector('dialog')?.textContent ?? ''));
  });
});

test('everything can be done with the keyboard alone', async () => {
  const { ids } = manager;
  await on(browser, manager, async ({ page, go }) => {
    await go('#/');
    await page.keyboard.press('Tab');
    assert.equal(await page.evaluate(() => document.activeElement?.className), 'skip');
    await page.keyboard.press('Enter');
    assert.equal(await page.evaluate(() => document.activeElement?.id), 'main');
    await page.keyboard.press('g');
    await page.keyboard.press('j');
    await page.waitForSelector('.jobs-table tbody tr');
    for (const key of ['j', 'j', 'x', 'k']) await page.keyboard.press(key);
    await page.waitForFunction(() => /1 marked/.test(document.querySelector('.marked-bar')?.textContent ?? ''));
    await page.keyboard.press('Enter');
    await page.waitForSelector('.job-head');
    await page.keyboard.press('Control+k');
    await page.waitForSelector('.palette');
    await page.keyboard.type(ids.failed);
    await page.keyboard.press('Enter');
    await page.waitForFunction((id) => location.hash === `#/job/${id}`, ids.failed);
    await page.waitForSelector('.node[data-step=fraud-check].completed');
    await page.locator('.node[data-step=stock]').focus();
    await page.keyboard.press('Enter');
    await shows(page, 'stock');
    await page.keyboard.press('f');
    await shows(page, 'invoice');
    await page.keyboard.press('/');
    await page.waitForSelector('.palette');
    await page.keyboard.type('workflow:ord');
    await page.keyboard.press('Tab');
    await page.keyboard.type(' state:failed');
    await page.keyboard.press('Enter');
    await page.waitForFunction(() => location.hash === '#/jobs?workflow=orders&state=failed');
    // Until it is closed, keys are text in it.
    await page.waitForSelector('.palette', { state: 'detached' });
    await page.keyboard.press('?');
    await page.waitForSelector('dialog .help');
    // Single keys can be turned off, for those who speak to their computer.
    await page.getByRole('button', { name: 'only Ctrl K' }).click();
    await page.keyboard.press('Escape');
    await page.waitForSelector('dialog', { state: 'detached' });
    await page.keyboard.press('?');
    await page.keyboard.press('Control+k');
    await page.waitForSelector('.palette');
    await page.keyboard.press('Escape');
    await page.waitForSelector('dialog', { state: 'detached' });
    await page.evaluate(() => localStorage.clear());
    await page.reload();
    await go('#/statuses/job-application');
    await page.waitForSelector('.sheet');
    for (const key of ['ArrowDown', 'ArrowDown', 'ArrowRight', 'Enter']) await page.keyboard.press(key);
    await page.waitForFunction(() => /step=phone-screen/.test(location.hash));
    // In front of each focused element there is a ring.
    const ring = await page.evaluate(() => {
      const link = /** @type {HTMLElement} */ (document.querySelector('.side-pages a'));
      link.focus();
      return getComputedStyle(link).outlineStyle;
    });
    assert.notEqual(ring, 'none');
  });
});

test('what is opened while the page goes to a new address stays, and what was open before is closed', async () => {
  await on(browser, manager, async ({ page, go }) => {
    await go('#/');
    // In one breath: the browser tells of the address when both are done.
    const opened = (/** @type {string} */ hash) => page.evaluate((hash) => new Promise((resolve) => {
      addEventListener('hashchange', resolve, { once: true });
      location.hash = hash;
      dispatchEvent(new KeyboardEvent('keydown', { key: 'k', ctrlKey: true }));
    }).then(() => undefined), hash);
    await opened('#/jobs');
    await page.waitForSelector('.jobs-table');
    assert.equal(await page.locator('dialog.palette').count(), 1);
    await page.evaluate(() => { location.hash = '#/manager'; });
    await page.waitForSelector('.palette', { state: 'detached' });
  });
});

test('a token is asked for, kept in the tab, and never in an address', async () => {
  const guarded = await start({ settings: { HTTP__TOKEN: 'a-secret-of-this-test' } });
  try {
    const id = await jobs.standing(guarded);
    await on(browser, guarded, async ({ page, go, asked }) => {
      await go('#/');
      await page.getByLabel('Token').fill('wrong');
      await page.getByRole('button', { name: 'Use it' }).click();
      await page.waitForFunction(() => document.querySelector('.banner')?.textContent?.includes('not the right one'));
      await page.getByLabel('Token').fill('a-secret-of-this-test');
      await page.getByRole('button', { name: 'Use it' }).click();
      await page.waitForSelector('.overview-table');
      assert.equal(await page.locator('.banner').count(), 0);
      await go(`#/job/${id}`);
      await live(page);
      assert.ok(asked.every((call) => !call.includes('secret')));
      assert.ok(!page.url().includes('secret'));
      await go('#/manager');
      assert.doesNotMatch(await page.locator('main').innerText(), /a-secret/);
    }, { expected: /401/ });
  } finally {
    await guarded.stop();
  }
});

test('a manager without the page has the API alone', async () => {
  const bare = await start({ workflows: [ODD], settings: { HTTP__PAGE: 'false' } });
  try {
    assert.equal((await fetch(`${bare.api}/`)).status, 404);
    assert.ok(Array.isArray(await bare.get('workflows')));
  } finally {
    await bare.stop();
  }
});

test('how far jobs are, what waits longest, where settings come from, and child jobs in the list', async () => {
  const id = await jobs.standing(manager);
  await on(browser, manager, async ({ page, go }) => {
    await go(`#/jobs?id=${id}`);
    await page.waitForFunction(() => /^4 \/ 7$/.test(document.querySelector('td.c-steps')?.textContent?.trim() ?? ''));
    await manager.complete(id, 'invoice', '{"cents":1}');
    await page.waitForFunction(() => /^5 \/ 7$/.test(document.querySelector('td.c-steps')?.textContent?.trim() ?? ''));
    await go(`#/jobs?id=${manager.ids.failed}`);
    await page.waitForFunction(() => /^– \/ 7$/.test(document.querySelector('td.c-steps')?.textContent?.trim() ?? ''));

    const children = await manager.children(id, 'price-lines');
    await go(`#/jobs?parent=${id}&order=oldest`);
    await page.waitForFunction((many) => document.querySelectorAll('.jobs-table tbody tr').length === many, children.length);
    assert.match(await page.locator('td.c-workflow').nth(1).innerText(), /price-lines\[1\]/);
    assert.ok(await page.getByRole('button', { name: 'All of these…' }).isDisabled());

    await go(`#/job/${id}/step/price-lines`);
    await page.getByLabel('The map at a time').fill('0');
    // Some may have been started within its first millisecond, and others after it.
    await page.waitForFunction((many) => {
      const text = document.querySelector('.map-scrub')?.textContent ?? '';
      const counts = [...text.matchAll(/(\d+) (?:waiting|running)/g)].map(([, number]) => Number(number));
      return text.includes('at the beginning') && counts.reduce((sum, number) => sum + number, 0) === many;
    }, children.length);
    await page.getByRole('button', { name: 'As it is' }).click();
    await page.waitForFunction(() => /as it was/.test(document.querySelector('.map-scrub')?.textContent ?? ''));

    await go('#/');
    const oldest = (await manager.get('queues')).queues.find((/** @type {any} */ queue) => queue.oldest);
    const row = page.locator('.queue-table tr', { has: page.locator('code', { hasText: new RegExp(`^${oldest.queue}$`) }) });
    const address = await row.locator('.queue-oldest a').getAttribute('href');
    assert.ok(address?.endsWith(`?step=${oldest.oldest.step}`), address ?? '');
    await row.locator('.queue-oldest a').click();
    await page.waitForFunction((hash) => location.hash === hash, address);

    await go('#/manager');
    const setting = page.locator('.settings-table tr', { hasText: 'http.event_heartbeat' });
    assert.match(await setting.innerText(), /environment\s+WORKFLOW_MANAGER__HTTP__EVENT_HEARTBEAT/);
    await page.getByLabel('only what is set').check();
    await page.locator('.settings-table tr', { hasText: 'fanout.window_bytes' }).waitFor({ state: 'detached' });
    assert.ok(await setting.isVisible());
  });
});
