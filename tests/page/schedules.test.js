// The schedules of a real manager: when they start jobs, what became of their slots, and what is done to them.

import assert from 'node:assert/strict';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { axe, on, open } from './browser.js';
import { folder, ODD, SCHEDULED, start, until } from './manager.js';

/** @type {import('playwright-core').Browser} */
let browser;
/** @type {import('./manager.js').Manager} */
let manager;
before(async () => {
  browser = await open();
  manager = await start({ workflows: [SCHEDULED] });
  await until('a slot is skipped', async () => verdicts(await named('often')).includes('skipped'));
});
after(async () => {
  await browser?.close();
  await manager?.stop();
});

/** @param {string} name */
const named = async (name, of = manager) => (await of.get('schedules')).schedules.find((/** @type {any} */ schedule) => schedule.name === name);
/** The job of the schedule that fires often: no worker takes it. @returns {Promise<string>} */
const running = async () => (await named('often')).judgements.find((/** @type {any} */ judgement) => judgement.verdict === 'skipped').job;
/** @param {any} schedule @returns {string[]} */
const verdicts = ({ judgements }) => judgements.map((/** @type {any} */ judgement) => judgement.verdict);
/** @param {import('playwright-core').Page} page */
const panel = (page) => page.getByRole('region', { name: 'Schedule', exact: true });
/** @param {import('playwright-core').Page} page @param {string} name */
const shows = (page, name) => page.waitForFunction((expected) => document.querySelector('.schedule-panel h2')?.textContent === expected, name);
const text = (/** @type {import('playwright-core').Locator} */ part) => part.innerText().then((words) => words.replace(/\s+/g, ' ').trim());

test('each schedule is told with its next slots, and with what became of the last ones and why', async () => {
  await on(browser, manager, async ({ page, go }) => {
    await go('#/');
    await page.locator('.side-pages a', { hasText: 'Schedules' }).click();
    await page.waitForSelector('.schedules .letters');
    const names = (await manager.get('schedules')).schedules.map((/** @type {any} */ schedule) => schedule.name);
    assert.deepEqual(await page.locator('.letters .letter-name b').allInnerTexts(), names);
    await page.locator('.letters a', { hasText: 'nightly' }).click();
    await shows(page, 'nightly');
    assert.equal(await page.evaluate(() => location.hash), '#/schedules?schedule=nightly');
    assert.match(await text(panel(page).locator('.facts')), /starts report its jobs when 0 2 \* \* 1-5 Europe\/Berlin/);
    const { next } = await named('nightly');
    assert.equal(next.length, 5);
    assert.deepEqual(await panel(page).locator('.slots time').evaluateAll((all) => all.map((one) => one.getAttribute('datetime'))), next);
    // By the clock of the reader, who is in Berlin too.
    for (const slot of await panel(page).locator('.slots li').allInnerTexts()) assert.match(slot, / 02:00:00 /);
    await panel(page).getByText('None has passed yet').waitFor();
    await page.locator('.letters a', { hasText: 'often' }).click();
    await shows(page, 'often');
    await panel(page).locator('.judgements .badge', { hasText: 'skipped' }).first().waitFor();
    // It is the job that runs; its slot is long behind.
    const skipped = panel(page).locator('.judgements tbody tr', { hasText: 'skipped' }).first();
    assert.match(await text(skipped), /skipped .*an earlier (job|slot)/);
    assert.equal(await skipped.locator('a').getAttribute('href'), `#/job/${await running()}`);
    assert.match(await text(panel(page).locator('.facts')), /waits the slot .* until the earlier job has ended/);
  });
});

test('a job that a schedule started says which, and leads there', async () => {
  await on(browser, manager, async ({ page, go }) => {
    const job = await running();
    const { schedule, slot } = await manager.light(job);
    assert.equal(schedule, 'often');
    await go(`#/job/${job}`);
    await page.locator('.job-when a', { hasText: 'often' }).waitFor();
    await page.locator('.node-end').first().click();
    const facts = page.getByRole('region', { name: 'Job', exact: true }).locator('.facts');
    await facts.getByText('slot', { exact: true }).waitFor();
    assert.equal(await facts.locator('div', { hasText: /^slot/ }).locator('time').getAttribute('datetime'), slot);
    await facts.getByRole('link', { name: 'often' }).click();
    await shows(page, 'often');
  });
});

test('it is paused, resumed and triggered, with a reason that is kept', async () => {
  await on(browser, manager, async ({ page, go }) => {
    await go('#/schedules?schedule=nightly');
    await shows(page, 'nightly');
    await panel(page).getByRole('button', { name: 'Pause…' }).click();
    await page.getByLabel('Why').fill('the <b>figures</b> are wrong');
    await page.getByRole('button', { name: 'Pause it' }).click();
    await panel(page).getByText('Its slots are skipped since').waitFor();
    assert.equal((await named('nightly')).paused.reason, 'the <b>figures</b> are wrong');
    assert.match(await text(panel(page).locator('.reason-box')), /: the <b>figures<\/b> are wrong$/);
    assert.match(await text(page.locator('.letters a', { hasText: 'nightly' })), /paused/);
    await panel(page).getByRole('button', { name: 'Resume' }).click();
    await panel(page).getByRole('button', { name: 'Pause…' }).waitFor();
    assert.equal((await named('nightly')).paused, undefined);
    // From the palette.
    await page.keyboard.press('Control+k');
    await page.keyboard.type('trigger nightly');
    await page.keyboard.press('Enter');
    await page.getByLabel('Why').fill('once more');
    await page.getByRole('button', { name: 'Start it' }).click();
    const row = panel(page).locator('.judgements tbody tr', { hasText: 'once more' });
    await row.waitFor();
    const { judgements: [judgement] } = await named('nightly');
    assert.equal(await row.locator('a').getAttribute('href'), `#/job/${judgement.job}`);
    assert.equal((await manager.light(judgement.job)).workflow, 'report');
    await row.locator('a').click();
    await page.waitForFunction((id) => location.hash === `#/job/${id}`, judgement.job);
  });
});

test('a backfill shows first what it would start, and then starts that', async () => {
  await on(browser, manager, async ({ page, go, asked }) => {
    const name = 'quarters-of-the-day';
    await go(`#/schedules?schedule=${name}`);
    await shows(page, name);
    const dialog = page.locator('dialog');
    const calls = () => asked.filter((call) => call.startsWith('POST'));
    await panel(page).getByRole('button', { name: 'Backfill…' }).click();
    // The times are told from now on backwards, or written.
    await dialog.getByLabel('From').fill('2026-03-01T00:00');
    await dialog.getByLabel('To').fill('2026-02-01T00:00');
    await dialog.getByRole('button', { name: 'Show what it would start' }).click();
    await dialog.locator('.problem', { hasText: 'from has to be no later than to' }).waitFor();
    await dialog.getByLabel('From').fill('2026-02-01T01:00');
    await dialog.getByLabel('To').fill('2026-02-01T06:30');
    await dialog.getByRole('button', { name: 'Show what it would start' }).click();
    await dialog.getByText('No slot lies between these times.').or(dialog.getByText('1 slot:')).waitFor();
    // Midnight in London is one o'clock in Berlin.
    assert.match(await text(dialog.locator('[role=status]')), /^1 slot: 1 job would be started\.$/);
    assert.equal(await dialog.locator('.backfill-list time').getAttribute('datetime'), '2026-02-01T00:00:00.000000000Z');
    await dialog.getByLabel('To').fill('2026-02-02T01:00');
    // Other times are looked at anew.
    await dialog.locator('.backfill-list').waitFor({ state: 'detached' });
    await dialog.getByRole('button', { name: 'Show what it would start' }).click();
    await dialog.getByText('4 slots', { exact: true }).waitFor();
    assert.ok(calls().every((call) => call.includes('dryRun=true')), String(calls()));
    const period = 'from=2026-02-01T00:00:00Z&to=2026-02-02T00:00:00Z';
    const existing = async () => (await manager.post(`schedule/${name}/backfill?${period}&dryRun=true`)).slots.filter((/** @type {any} */ slot) => slot.existed).length;
    assert.equal(await existing(), 0, 'nothing was started');
    assert.deepEqual(await axe(page, 'dialog'), []);
    await dialog.getByLabel('Why').fill('they were lost');
    await dialog.getByRole('button', { name: 'Start 4 jobs' }).click();
    await dialog.waitFor({ state: 'detached' });
    assert.equal(await existing(), 4);
    await panel(page).locator('.judgements tbody tr', { hasText: 'they were lost' }).first().waitFor();
    // Once more: there is nothing to start.
    await panel(page).getByRole('button', { name: 'Backfill…' }).click();
    await dialog.getByLabel('From').fill('2026-02-01T01:00');
    await dialog.getByLabel('To').fill('2026-02-02T01:00');
    await dialog.getByRole('button', { name: 'Show what it would start' }).click();
    await dialog.getByText('each has its job already').waitFor();
    assert.equal(await dialog.getByRole('button', { name: /^Start/ }).count(), 0);
  }, { expected: /400/ });
});

test('the jobs of a schedule are found, and why its next job is refused', async () => {
  await on(browser, manager, async ({ page, go }) => {
    await go('#/schedules?schedule=often');
    await shows(page, 'often');
    await panel(page).getByRole('link', { name: 'its jobs' }).click();
    await page.waitForSelector('.jobs-table');
    assert.equal(await page.evaluate(() => location.hash), '#/jobs?schedule=often');
    const found = (await manager.get('jobs/search?schedule=often')).jobs.map((/** @type {any} */ one) => one.job);
    assert.ok(found.includes(await running()));
    assert.equal(await page.locator('.jobs-table tbody tr').first().getAttribute('data-row'), found[0]);
    await page.locator('.filters .chip', { hasText: 'often' }).waitFor();
    await page.route(/\/api\/schedules$/, async (route) => {
      const told = await (await route.fetch()).json();
      for (const schedule of told.schedules) schedule.refused = { since: schedule.next[0], reason: 'limit <b>one</b> has no place' };
      await route.fulfill({ json: told });
    });
    await go('#/schedules?schedule=nightly');
    await shows(page, 'nightly');
    await panel(page).locator('.facts', { hasText: 'limit <b>one</b> has no place' }).waitFor();
    assert.deepEqual(await axe(page), []);
    if (process.env.SHOTS) await page.screenshot({ path: `${process.env.SHOTS}/schedule-refused.png` });
  });
});

test('a job that starts later says when, and can be cancelled', async () => {
  const { id } = await manager.post('workflow/sync?after=2h', {});
  await on(browser, manager, async ({ page, go, becomes, asked }) => {
    await go(`#/job/${id}`);
    const { startsAt } = await manager.light(id);
    const head = page.locator('.job-when');
    await page.waitForFunction(() => /^starts at/.test(document.querySelector('.job-when')?.textContent ?? ''));
    assert.equal(await head.locator('time').getAttribute('datetime'), startsAt);
    assert.match(await text(head), /^starts at \d+ \w+ [\d:]+ in [12] h$/);
    await page.waitForFunction(() => /it begins at/.test(document.querySelector('.why.calm')?.textContent ?? ''));
    if (process.env.SHOTS) await page.screenshot({ path: `${process.env.SHOTS}/later-job.png` });
    // In the list too, and of that job alone.
    const before = asked.length;
    await go('#/jobs?state=running');
    const rows = page.locator('.jobs-table tbody tr');
    const row = page.locator(`.jobs-table tr[data-row="${id}"]`);
    await row.getByText('starts at').waitFor();
    assert.equal(await row.locator('.c-reason time').getAttribute('datetime'), startsAt);
    assert.equal(await row.locator('.c-took').innerText(), '–');
    assert.ok((await rows.count()) > 1);
    assert.equal(await rows.getByText('starts at').count(), 1);
    assert.deepEqual(asked.slice(before).filter((url) => url.includes('/api/job/') && !url.includes(id)), [], 'the list tells it: no other job is asked');
    assert.deepEqual(await axe(page), []);
    if (process.env.SHOTS) await page.screenshot({ path: `${process.env.SHOTS}/later-list.png` });
    await go(`#/job/${id}`);
    await page.getByRole('button', { name: 'Cancel…' }).click();
    await page.getByRole('button', { name: 'Cancel it' }).click();
    await becomes('cancelled');
    assert.doesNotMatch(await text(head), /starts at/);
  });
});

test('who may only look is offered nothing that changes a schedule', async () => {
  const secret = (/** @type {string} */ name) => `${name}-${'x'.repeat(40)}`;
  const guarded = await start({ workflows: [SCHEDULED], settings: { HTTP__TOKEN: secret('root'), ...Object.fromEntries(['read', 'operate'].flatMap((scope) => [[`HTTP__TOKENS__${scope.toUpperCase()}__TOKEN`, secret(scope)], [`HTTP__TOKENS__${scope.toUpperCase()}__SCOPE`, scope]])) } });
  try {
    for (const scope of ['read', 'operate']) {
      await on(browser, guarded, async ({ page, go }) => {
        await page.addInitScript((token) => sessionStorage.setItem('workflow-manager.token', token), secret(scope));
        await go('#/schedules?schedule=nightly');
        await shows(page, 'nightly');
        assert.deepEqual(await page.locator('main button').allInnerTexts(), scope === 'read' ? [] : ['Pause…', 'Trigger…', 'Backfill…']);
        await page.keyboard.press('/');
        await page.waitForSelector('.palette');
        const commands = await page.locator('.palette-name').allInnerTexts();
        assert.ok(commands.includes('Schedule often'));
        assert.equal(commands.some((one) => /^(Pause|Trigger|Backfill)/.test(one)), scope !== 'read', String(commands));
      });
    }
  } finally {
    await guarded.stop();
  }
});

test('without a schedule the view teaches one, and its example is right', async () => {
  const none = await start({ workflows: [ODD] });
  const files = await folder();
  try {
    let example = '';
    await on(browser, none, async ({ page, go }) => {
      await go('#/schedules');
      await page.getByText('No schedule is loaded.').waitFor();
      example = await page.locator('.yaml pre').innerText();
      assert.deepEqual(await axe(page), []);
    });
    await writeFile(join(files.path, 'example.yaml'), `workflows:\n  - { name: report, steps: [ { name: build } ] }\n  - { name: sync, steps: [ { name: pull } ] }\n${example}\n`);
    const taught = await start({ workflows: [join(files.path, 'example.yaml')] });
    const { schedules } = await taught.get('schedules');
    await taught.stop();
    assert.deepEqual(schedules.map((/** @type {any} */ schedule) => `${schedule.name}: ${schedule.timing}`), ['nightly: 0 2 * * 1-5 Europe/Berlin', 'often: every 1m30s']);
  } finally {
    await none.stop();
    await files.remove();
  }
});

for (const colorScheme of /** @type {const} */ (['light', 'dark'])) {
  for (const width of [390, 1440]) {
    test(`the schedules fit in ${width} pixels, and axe finds nothing, ${colorScheme}`, async () => {
      await manager.post('schedule/nightly/pause?reason=the+figures+are+wrong');
      await on(browser, manager, async ({ page, go }) => {
        for (const name of ['', 'nightly', 'often', 'no-such-one', 'a-schedule-with-a-name-that-is-rather-long-for-a-phone']) {
          await go(`#/schedules${name && `?schedule=${name}`}`);
          await page.waitForSelector('.schedule-panel');
          assert.ok((await page.evaluate(() => document.documentElement.scrollWidth)) <= width, name);
          assert.doesNotMatch(await page.locator('main').innerText(), /undefined|NaN|\[object/, name);
          assert.deepEqual(await axe(page), [], name);
          if (process.env.SHOTS) await page.screenshot({ path: `${process.env.SHOTS}/schedules-${name.slice(0, 8) || 'first'}-${width}-${colorScheme}.png`, fullPage: width === 390 });
        }
        await go('#/schedules?schedule=quarters-of-the-day');
        await panel(page).getByRole('button', { name: 'Backfill…' }).click();
        await page.locator('dialog').getByRole('button', { name: '7 d' }).click();
        await page.locator('dialog').getByRole('button', { name: 'Show what it would start' }).click();
        await page.waitForSelector('.backfill-list');
        assert.deepEqual(await axe(page, 'dialog'), []);
        if (process.env.SHOTS) await page.screenshot({ path: `${process.env.SHOTS}/backfill-${width}-${colorScheme}.png` });
      }, { colorScheme, viewport: { width, height: 844 } });
    });
  }
}
