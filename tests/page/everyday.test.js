// What a reader meets every day: texts that fit, the order of what needs somebody, the way back, and what a token may not.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { axe, on, open } from './browser.js';
import { ODD, start } from './manager.js';
import { shop } from './shop.js';

/** @type {import('playwright-core').Browser} */
let browser;
/** @type {import('./shop.js').Shop} */
let manager;
before(async () => {
  browser = await open();
  manager = await shop();
});
after(async () => {
  await browser?.close();
  await manager?.stop();
});

const PHONE = { viewport: { width: 390, height: 844 } };
const text = (/** @type {import('playwright-core').Locator} */ part) => part.innerText().then((words) => words.replace(/\s+/g, ' ').trim());

/**
 * Changes an answer on its way.
 * @param {import('playwright-core').Page} page
 * @param {RegExp} address
 * @param {(answer: any) => void} change
 */
const changing = (page, address, change) => page.route(address, async (route) => {
  const response = await route.fetch({ headers: { ...route.request().headers(), 'if-none-match': '' } });
  if (!response.ok()) return route.fulfill({ response });
  const answer = await response.json();
  change(answer);
  return route.fulfill({ response, json: answer });
});

test('large counts fit into the graph and the timeline', async () => {
  for (const [items, done, failed] of [[100_000, 99_874, 75], [1_000_000, 888_112, 98_765], [1_000_000, 999_999, 1]]) {
    for (const options of [{}, PHONE]) {
      await on(browser, manager, async ({ page, go }) => {
        await changing(page, /\/api\/job\/[^/]+\?/, (job) => {
          const step = job.steps.find((/** @type {any} */ one) => one.name === 'price-lines');
          if (step) Object.assign(step, { attempt: 10, children: { items, started: items, ended: done + failed, completed: done, failed, running: 0, waiting: 0 } });
        });
        await go(`#/job/${manager.ids.standing}`);
        await page.waitForSelector('.node[data-step=price-lines] .node-failed');
        const cut = await page.evaluate(() => {
          const over = (/** @type {Element} */ one, /** @type {Element} */ frame) => one.getBoundingClientRect().right - frame.getBoundingClientRect().right > 0.5 || one.getBoundingClientRect().left < frame.getBoundingClientRect().left - 0.5;
          return [
            ...[...document.querySelectorAll('.node-line')].filter((line) => line.scrollWidth > line.clientWidth || [...line.children].some((part) => part.scrollWidth > part.clientWidth)),
            ...[...document.querySelectorAll('.bar-label')].filter((label) => over(label, /** @type {Element} */ (label.closest('.time-track')))),
          ].map((one) => one.textContent);
        });
        assert.deepEqual(cut, []);
      }, options);
    }
  }
});

test('jobs that failed are drawn by the scale of those that ended well', async () => {
  await on(browser, manager, async ({ page, go }) => {
    await changing(page, /\/api\/workflows\?/, (workflows) => {
      for (const one of workflows) one.stats.perMinute = [[100, 0], [50, 50], [0, 1]];
    });
    await go('#/');
    const bars = (/** @type {string} */ kind) => page.locator(`.spark .spark-${kind}`).first().getAttribute('d').then((d) => [...(d ?? '').matchAll(/v(-?[\d.]+)/g)].map(([, height]) => Math.abs(Number(height))));
    const [done, failed] = [await bars('done'), await bars('failed')];
    assert.ok(Math.abs(done[0] - 2 * done[1]) <= 0.2, String(done));
    assert.ok(Math.abs(done[1] - failed[0]) <= 0.1, `${done} ${failed}`);
    assert.ok(failed[1] >= 1, 'a single one is seen');
  });
});

test('queues: what needs somebody comes first, and no word is squeezed', async () => {
  for (const options of [{}, PHONE]) {
    await on(browser, manager, async ({ page, go }) => {
      await go('#/');
      await page.waitForSelector('.queue-table tbody tr');
      const rows = await page.locator('.queue-table tbody tr').evaluateAll((all) => all.map((row) => ({ name: row.querySelector('code')?.textContent ?? '', bad: row.querySelector('.failed-text') !== null, high: row.querySelector('code')?.getClientRects().length })));
      const bad = rows.map((row) => row.bad);
      assert.ok(bad[0] && !bad.at(-1), JSON.stringify(rows));
      assert.deepEqual(bad, [...bad].sort((a, b) => Number(b) - Number(a)), JSON.stringify(rows));
      assert.deepEqual(rows.filter((row) => row.high !== 1 && row.name.length < 30), [], 'the name of a queue is broken');
      const wide = await page.locator('.queue-table').evaluate((table) => table.scrollWidth - /** @type {Element} */ (table.parentElement).clientWidth);
      assert.ok(wide <= 0, `the table is ${wide} px wider than its frame`);
      // Under the mouse no row moves.
      if (!('viewport' in options)) {
        const names = () => page.locator('.queue-table tbody code').allInnerTexts();
        const before = await names();
        await page.locator('.queue-table tbody tr').nth(1).hover();
        await changing(page, /\/api\/queues/, (answer) => { answer.queues.reverse(); for (const queue of answer.queues) Object.assign(queue, { messages: 0, oldest: undefined, looked: 1 }); });
        await page.evaluate(() => document.dispatchEvent(new Event('visibilitychange')));
        await page.waitForFunction(() => document.querySelectorAll('.queue-table .failed-text').length === 0);
        assert.deepEqual(await names(), before);
      }
    }, options);
  }
});

test('Back leads to where one was, also in a sheet and after the page was loaded anew', async () => {
  const many = await start({ workflows: [ODD] });
  try {
    for (let n = 0; n < 45; n += 1) await many.create('short', { go: true });
    await on(browser, many, async ({ page, go }) => {
      /** @param {() => boolean} look */
      const becomes = (look) => page.waitForFunction(look);
      await go('#/jobs');
      await becomes(() => document.querySelectorAll('.jobs-table tbody tr').length === 45);
      await page.mouse.wheel(0, 900);
      await becomes(() => scrollY === 900);
      await page.locator('.jobs-table tbody tr a').nth(28).click();
      await page.waitForSelector('.job-head');
      await becomes(() => scrollY === 0);
      await page.goBack();
      await becomes(() => document.querySelector('.jobs-table') !== null && scrollY === 900);
      await page.goForward();
      await becomes(() => document.querySelector('.job-head') !== null && scrollY === 0);
      await page.reload();
      await page.goBack();
      await becomes(() => document.querySelector('.jobs-table') !== null && scrollY === 900);
      // What is new begins at its top.
      await page.locator('.side-pages a', { hasText: 'Jobs' }).evaluate((link) => /** @type {HTMLElement} */ (link).click());
      await page.locator('.side-pages a', { hasText: 'Overview' }).click();
      await becomes(() => document.querySelector('.overview') !== null && scrollY === 0);
      await go('#/statuses/short');
      await page.locator('.sheet-wrap').evaluate((sheet) => sheet.scrollTo(0, 400));
      await becomes(() => document.querySelector('.sheet-wrap')?.scrollTop === 400);
      await page.locator('.side-pages a', { hasText: 'Manager' }).click();
      await page.waitForSelector('.manager');
      await page.goBack();
      await becomes(() => document.querySelector('.sheet-wrap')?.scrollTop === 400);
    });
  } finally {
    await many.stop();
  }
});

const TOKENS = { looker: 'read', keeper: 'operate', owner: 'admin' };
const OPERATIONS = /^(New job|Cancel…|Pause.*|Retry|Complete by hand…|Fail…|Send again…|Run again from here…|All of these…)$/;

test('what a token may not do is not offered', async () => {
  const secret = (/** @type {string} */ name) => `${name}-${'x'.repeat(40)}`;
  const guarded = await start({ workflows: [ODD], settings: { HTTP__TOKEN: secret('root'), ...Object.fromEntries(Object.entries(TOKENS).flatMap(([name, scope]) => [[`HTTP__TOKENS__${name.toUpperCase()}__TOKEN`, secret(name)], [`HTTP__TOKENS__${name.toUpperCase()}__SCOPE`, scope]])) } });
  try {
    const id = await guarded.create('short', { go: true });
    const ended = await guarded.create('short', { go: true });
    await guarded.complete(ended, 'only');
    for (const [name, scope] of Object.entries(TOKENS)) {
      await on(browser, guarded, async ({ page, go, asked }) => {
        await page.addInitScript((token) => sessionStorage.setItem('workflow-manager.token', token), secret(name));
        const seen = new Set();
        for (const view of ['#/', '#/jobs?state=running', '#/definitions/short', '#/manager', `#/job/${id}?step=only`, `#/job/${ended}`]) {
          await go(view);
          for (const button of await page.locator('main button').allInnerTexts()) seen.add(button.trim());
        }
        await page.getByRole('button', { name: 'More' }).click();
        await page.waitForSelector('.menu-list');
        for (const item of await page.getByRole('menuitem').allInnerTexts()) seen.add(item.trim());
        await page.keyboard.press('Escape');
        await page.keyboard.press('/');
        await page.waitForSelector('.palette');
        const commands = await page.locator('.palette-name').allInnerTexts();
        await page.keyboard.press('Escape');
        const offered = [...seen];
        assert.equal(offered.some((one) => OPERATIONS.test(one)), scope !== 'read', `${scope}: ${offered}`);
        assert.equal(offered.includes('Erase…'), scope === 'admin', `${scope}: ${offered}`);
        assert.equal(offered.includes('Reload the workflow files…'), scope === 'admin', `${scope}: ${offered}`);
        assert.equal(commands.includes('Pause this job') || commands.includes('New job'), false, 'an ended job is not paused');
        assert.equal(await page.locator('.rights').allInnerTexts().then(String), { read: 'read only', operate: 'operator', admin: '' }[scope]);
        if (scope === 'operate') {
          await go('#/jobs?state=running');
          await page.getByRole('button', { name: 'All of these…' }).click();
          await page.waitForSelector('.bulk-choices button');
          assert.deepEqual(await page.locator('.bulk-choices button').allInnerTexts(), ['Retry', 'Pause', 'Resume', 'Run again', 'Cancel']);
          await page.keyboard.press('Escape');
        }
        if (scope === 'read') {
          await go(`#/job/${id}`);
          await page.keyboard.press('/');
          await page.waitForSelector('.palette');
          assert.ok(!(await page.locator('.palette-name').allInnerTexts()).some((one) => /this job$/.test(one) && !/^Copy|^Step/.test(one)));
        }
        assert.ok(asked.every((call) => !call.startsWith('POST')), 'nothing was tried');
      });
    }
  } finally {
    await guarded.stop();
  }
});

test('why: the times are local, and a long sentence begins short', async () => {
  await on(browser, manager, async ({ page, go }) => {
    const long = `no connection to the broker since 2026-11-28T06:10:00.5Z: the address "amqp://broker" cannot be reached; ${'and so on and on '.repeat(20)}`;
    await changing(page, /\/why$/, (why) => Object.assign(why, { cause: 'broker_gone', why: long }));
    await go(`#/job/${manager.ids.standing}`);
    const line = page.locator('.why');
    await page.waitForSelector('.why details');
    const first = await text(line.locator('.why-text > p').first());
    assert.match(first, /since 28 Nov 07:10:00/, 'the time of Berlin');
    assert.ok(first.split(' ').length <= 36, first);
    assert.equal(await line.locator('time').first().getAttribute('datetime'), '2026-11-28T06:10:00.5Z');
    await line.getByText('More').click();
    assert.match(await text(line), /and so on and on invoice$/);
    await page.getByRole('button', { name: 'Local' }).click();
    await page.waitForFunction(() => /since 28 Nov 06:10:00/.test(document.querySelector('.why')?.textContent ?? ''));
  });
});

test('a healthy fan-out is not said to be full', async () => {
  await on(browser, manager, async ({ page, go }) => {
    const why = 'window full: 9,000 child jobs wait for a place, step "price-lines" has 12 of 9,020 child jobs done';
    await changing(page, /\/why$/, (answer) => Object.assign(answer, { cause: 'window_full', step: 'price-lines', why }));
    await changing(page, /\/api\/workflows\?/, (workflows) => {
      for (const one of workflows) if (one.stats.oldestRunning) one.stats.oldestRunning.created = '2026-11-01T00:00:00Z';
    });
    await go(`#/job/${manager.ids.large}`);
    await page.waitForFunction(() => /works on its items/.test(document.querySelector('.why')?.textContent ?? ''));
    assert.match(await text(page.locator('.why-text > p').first()), /^Step price-lines works on its items: [\d,]+ of 300 items ended, \d+ at once\.$/);
    await go('#/');
    await page.getByText('items under way').first().waitFor();
    assert.doesNotMatch(await page.locator('main').innerText(), /window full/);
  });
});

test('what waits longest can be told from the words beside it on a phone', async () => {
  for (const colorScheme of /** @type {const} */ (['light', 'dark'])) {
    await on(browser, manager, async ({ page, go }) => {
      await changing(page, /\/api\/workflows\?/, (workflows) => {
        for (const one of workflows) if (one.stats.oldestRunning) one.stats.oldestRunning.created = '2026-11-01T00:00:00Z';
      });
      await go('#/');
      await page.waitForFunction(() => [...document.querySelectorAll('.overview-oldest .quiet')].some((one) => /\w/.test(one.textContent ?? '')));
      assert.deepEqual(await axe(page), []);
    }, { ...PHONE, colorScheme });
  }
});

test('attempts are counted from the retry of the job, and each has its reason', async () => {
  const own = await start({ workflows: [ODD] });
  try {
    const id = await own.create('attempts', {});
    const fail = async (/** @type {number} */ attempt) => {
      await own.tries(id, 'flaky', attempt);
      await own.fail(id, 'flaky', 'the same as ever', true);
    };
    for (const attempt of [1, 2, 3]) await fail(attempt);
    await own.ends(id, 'failed');
    await own.post(`job/${id}/retry`);
    for (const attempt of [4, 5]) await fail(attempt);
    await own.tries(id, 'flaky', 6);
    await on(browser, own, async ({ page, go }) => {
      await go(`#/job/${id}?step=flaky`);
      await page.waitForFunction(() => document.querySelectorAll('.attempt').length === 6);
      assert.match(await text(page.locator('.step-line')), /attempt 3 of 3, 6 in all/);
      assert.equal(await text(page.locator('.node[data-step=flaky] .node-attempt')), '6');
      assert.equal(await page.locator('.attempt .reason', { hasText: 'the same as ever' }).count(), 5);
    });
  } finally {
    await own.stop();
  }
});
