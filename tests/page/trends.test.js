// What happened over time, on the overview and in a workflow's view: charts, gaps, words, a phone.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { axe, on, open } from './browser.js';
import { start } from './manager.js';

/** @type {import('playwright-core').Browser} */
let browser;
/** @type {Awaited<ReturnType<typeof start>>} */
let manager;
before(async () => {
  browser = await open();
  manager = await start();
});
after(async () => {
  await browser?.close();
  await manager?.stop();
});

const figures = (/** @type {number} */ jobs, more = {}) => ({ minutes: 15, created: jobs, completed: jobs, failed: jobs % 3, cancelled: 0, stepsCompleted: 4 * jobs, stepsFailed: jobs % 3, stepsRetried: 0, ...(jobs ? { stepP50: jobs * 1e6, stepP99: jobs * 9e6 } : {}), queued: jobs, queuedMax: jobs, ...more });

/**
 * The manager's answer, with a day that it would take a day to have.
 * @param {import('playwright-core').Page} page
 * @param {(answer: any) => void} [change]
 */
async function lived(page, change = () => {}) {
  await page.route(/\/api\/trends\?/, async (route) => {
    const response = await route.fetch();
    const answer = await response.json();
    const gap = (/** @type {number} */ at) => at >= 20 && at < 24;
    answer.buckets.forEach((/** @type {any} */ bucket, /** @type {number} */ at) => { bucket.figures = gap(at) ? undefined : figures(at % 10); });
    answer.total = figures(450, { minutes: 1380, failed: 12 });
    answer.before = figures(300, { minutes: 1440, failed: 0, queuedMax: 450 });
    change(answer);
    await route.fulfill({ response, json: answer });
  });
}

/** @param {import('playwright-core').Page} page @param {string} name */
const chart = (page, name) => page.locator('.trend', { hasText: name });

test('a new manager says that nothing is counted yet, of all and of a workflow', async () => {
  await on(browser, manager, async ({ page, go }) => {
    for (const view of ['#/', '#/definitions/orders']) {
      await go(view);
      const panel = page.getByRole('region', { name: 'Trends' });
      // Or it has counted a minute by now.
      await panel.locator('.calm, .trend').first().waitFor();
      const answer = await (await page.request.get(`${manager.url}api/trends?span=24h`)).json();
      if (!answer.total.minutes) assert.match(await panel.innerText(), /Nothing is counted yet/);
    }
  });
});

for (const [colorScheme, width] of /** @type {const} */ ([['light', 1440], ['dark', 1440], ['light', 390], ['dark', 390]])) {
  test(`each chart says what it shows and what is different, ${colorScheme}, ${width} pixels`, async () => {
    await on(browser, manager, async ({ page, go }) => {
      await lived(page);
      for (const view of ['#/', '#/definitions/orders']) {
        await go(view);
        await chart(page, 'Completed jobs').waitFor();
        assert.match(await chart(page, 'Completed jobs').innerText(), /450\s*50 % more than in the 24 h before \(300\)/);
        assert.match(await chart(page, 'Failed jobs').innerText(), /12\s*none in the 24 h before/);
        assert.match(await chart(page, 'Step durations').innerText(), /p50 450 ms p99 4\.0 s\s*p99: 50 % more than in the 24 h before \(2\.7 s\)/);
        assert.match(await chart(page, 'Waiting messages').innerText(), /at most 450\s*as in the 24 h before/);
        const label = await chart(page, 'Completed jobs').getByRole('img').getAttribute('aria-label');
        assert.match(label ?? '', /^Completed jobs over 24h, for each 15 m: at most 9; 1 h not counted\. 50 % more/);
        // A gap is a gap, and a bucket in which nothing happened is none.
        const gaps = await chart(page, 'Failed jobs').locator('.trend-gap').getAttribute('d');
        assert.deepEqual(gaps?.match(/M\d+/g), ['M20', 'M21', 'M22', 'M23']);
        assert.deepEqual(await axe(page), []);
        assert.ok((await page.evaluate(() => document.documentElement.scrollWidth)) <= width);
        await page.getByText('As a table').click();
        await page.locator('.trend-table tbody tr').nth(95).waitFor();
        assert.equal(await page.locator('.trend-table td', { hasText: 'not counted' }).count(), 4);
        assert.deepEqual(await axe(page), []);
        assert.ok((await page.evaluate(() => document.documentElement.scrollWidth)) <= width);
        await page.getByText('As a table').click();
        if (process.env.SHOTS) await page.screenshot({ path: `${process.env.SHOTS}/trends-${view.length}-${width}-${colorScheme}.png`, fullPage: true });
      }
    }, { colorScheme, viewport: { width, height: 900 } });
  });
}

test('the span is switched, and stays in the address', async () => {
  await on(browser, manager, async ({ page, go }) => {
    await lived(page);
    await go('#/');
    await page.getByRole('group', { name: 'Trends over' }).getByRole('button', { name: '7d' }).click();
    await page.waitForFunction(() => /for each 2 h/.test(document.querySelector('.trend [role=img]')?.getAttribute('aria-label') ?? ''));
    assert.match(page.url(), /trends=7d/);
    await go('#/?trends=1h');
    await page.waitForFunction(() => /for each 1 m/.test(document.querySelector('.trend [role=img]')?.getAttribute('aria-label') ?? ''));
    assert.match(await chart(page, 'Completed jobs').innerText(), /the hour before/);
  });
});

test('a span before that was hardly counted, and a workflow that is not kept, are told', async () => {
  await on(browser, manager, async ({ page, go }) => {
    await lived(page, (answer) => { answer.before.minutes = 180; });
    await go('#/');
    await chart(page, 'Completed jobs').waitFor();
    assert.match(await chart(page, 'Completed jobs').innerText(), /300 in the 24 h before, of which 3 h were counted/);
    await page.unroute(/\/api\/trends\?/);
    await lived(page, (answer) => { answer.omitted = true; });
    await go('#/definitions/orders');
    await page.getByText('Trends of 100 other workflows are kept').waitFor();
  });
});
