// The page in a real browser, with a stand-in for the manager: every state, hostile texts, keys, and what the security policy stops.

import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { after, before, test } from 'node:test';
import { newPage, open } from './browser.js';
import { demo, Fake } from './fake.js';
import { large } from './fake-demo.js';
import { FakeJob } from './fake-jobs.js';
import { serve } from './serve.js';

const AXE = await readFile(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');

/** @type {import('playwright-core').Browser} */
let browser;
before(async () => { browser = await open(); });
after(() => browser?.close());

/**
 * A page on a manager of its own. At the end nothing may have gone wrong that nobody saw.
 * @param {(on: { page: import('playwright-core').Page, fake: any, go: (hash: string) => Promise<void>, site: { url: string } }) => Promise<void>} run
 * @param {{ fake?: any, expected?: RegExp, viewport?: { width: number, height: number }, colorScheme?: 'light' | 'dark', prefix?: string }} [options]
 */
async function on(run, { fake = demo(), expected, prefix, ...options } = {}) {
  const site = await serve({ to: fake.answer, prefix });
  const { page, context, faults, origins } = await newPage(browser, { expected, ...options });
  try {
    const go = async (/** @type {string} */ hash) => {
      await page.goto(`${site.url}${hash}`);
      await page.waitForSelector('main > *');
    };
    await run({ page, fake, go, site });
    assert.deepEqual([...new Set(faults)], []);
    assert.deepEqual([...origins], [new URL(site.url).origin], 'a request has left the origin');
  } finally {
    await context.close();
    await site.close();
  }
}

const VIEWS = (/** @type {any} */ ids) => ['#/', '#/jobs?state=failed,running', `#/job/${ids.standing}`, `#/job/${ids.failed}?step=invoice`, `#/job/${ids.completed}`, `#/job/${ids.paused}?step=price-lines&tab=input`, `#/job/${ids.standing}?view=record&at=12&tab=settings&step=stock`, `#/job/${ids.large}/step/price-lines`, '#/statuses/job-application?background-check=FAILED', '#/definitions', '#/definitions/orders?with=77c0de12ab5490fe31c8d2b7a96e5f04d3c2b1a09f8e7d6c5b4a39281706f5e4', '#/manager', '#/nowhere'];

test('the graph is laid out in a worker, under the strict policy, behind any prefix', async () => {
  await on(async ({ page, fake, go }) => {
    await go(`#/job/${fake.ids.standing}`);
    await page.waitForSelector('.node[data-step=invoice].running');
    assert.equal(await page.locator('.node').count(), 7);
    assert.equal(await page.locator('.edge').count(), 12);
    assert.ok(page.workers().some((worker) => worker.url().endsWith('/lib/layout-worker.js')));
    // The policy for scripts makes no other address, and no markup gets in.
    const refused = await page.evaluate(() => {
      try {
        document.createElement('div').innerHTML = '<b>x</b>';
        return 'taken';
      } catch (error) {
        return /** @type {Error} */ (error).name;
      }
    });
    assert.equal(refused, 'TypeError');
  }, { prefix: '/tools/workflows', expected: /TrustedHTML|require-trusted-types-for|blocked: / });
});

for (const colorScheme of /** @type {const} */ (['light', 'dark'])) {
  test(`axe finds nothing in any view, ${colorScheme}`, async () => {
    const fake = demo();
    await on(async ({ page, go }) => {
      /** @type {string[]} */
      const found = [];
      await go('#/');
      await page.evaluate(AXE);
      for (const view of VIEWS(fake.ids)) {
        await go(view);
        await page.waitForTimeout(500);
        const { violations } = await page.evaluate(() => /** @type {any} */ (globalThis).axe.run(document, { resultTypes: ['violations'] }));
        found.push(...violations.map((/** @type {any} */ one) => `${view} ${one.id}: ${one.nodes.map((/** @type {any} */ node) => `${node.target} ${node.any?.[0]?.message ?? node.failureSummary ?? ''}`).slice(0, 4).join(' | ')}`));
      }
      /** @type {[string, string][]} */
      const dialogs = [['#/', 'Keys and help'], ['#/jobs?workflow=orders', 'New job'], ['#/jobs?workflow=orders', 'All of these…'], [`#/job/${fake.ids.standing}`, 'Cancel…'], [`#/job/${fake.ids.person}`, 'Complete by hand…'], [`#/job/${fake.ids.person}`, 'Search, or paste an id']];
      for (const [view, button] of dialogs) {
        await go(view);
        await page.getByRole('button', { name: button }).click();
        await page.waitForSelector('dialog[open]');
        if (button === 'All of these…') {
          await page.locator('dialog').getByRole('button', { name: 'Erase' }).click();
          await page.waitForSelector('.bulk-list');
        }
        const { violations } = await page.evaluate(() => /** @type {any} */ (globalThis).axe.run(document.querySelector('dialog'), { resultTypes: ['violations'] }));
        found.push(...violations.map((/** @type {any} */ one) => `${button} ${one.id}: ${one.nodes.map((/** @type {any} */ node) => `${node.target} ${node.any?.[0]?.message ?? ''}`).slice(0, 3).join(' | ')}`));
        await page.keyboard.press('Escape');
        await page.waitForSelector('dialog', { state: 'detached' });
      }
      assert.deepEqual(found, []);
    }, { fake, colorScheme, expected: /^$/ });
  });
}

test('every state of a step in every state of a job', async () => {
  const fake = new Fake();
  const definition = { hash: 'f'.repeat(64), vhost: '', name: 'states', loaded: true, steps: ['waiting', 'running', 'completed', 'failed', 'skipped', 'cancelled'].flatMap((state, index, all) => [{ name: state, depends: index ? [all[index - 1]] : [], queue: 'q' }, { name: `${state}-many`, depends: [state], task: 't' }]), tasks: [{ name: 't', itemListKey: 'items', steps: [{ name: 'one', depends: [] }] }] };
  fake.definitions = { states: [definition] };
  const jobs = ['running', 'paused', 'completed', 'failed', 'cancelled'].map((state) => {
    const job = new FakeJob(`states ${state}`, definition, Date.now() - 60_000);
    for (const step of definition.steps) {
      const [own] = step.name.split('-');
      const began = own !== 'waiting' && own !== 'skipped';
      job.over[step.name] = { state: own, status: own.toUpperCase(), attempt: began ? 2 : 0, ...(began && { startTime: new Date(Date.now() - 50_000).toISOString(), attemptStartTime: new Date(Date.now() - 40_000).toISOString() }), ...(['completed', 'failed', 'cancelled', 'skipped'].includes(own) && { endTime: new Date(Date.now() - 30_000).toISOString(), elapsed: 2e10 }), ...(own === 'failed' && { reason: 'it broke' }), ...(step.task && began && { children: { items: 9, started: 7, ended: 5, failed: 2, withoutItem: 0 } }) };
    }
    job.state = state;
    if (!['running', 'paused'].includes(state)) job.ended = new Date().toISOString();
    if (state === 'failed') job.reason = 'step "failed": it broke';
    if (state === 'completed') job.result = '{}';
    return fake.add(job);
  });
  await on(async ({ page, go }) => {
    for (const job of jobs) {
      await go(`#/job/${job.id}`);
      await page.waitForSelector('.node');
      assert.equal(await page.locator('.job-title .badge').innerText(), job.state);
      for (const step of definition.steps) {
        const [state] = step.name.split('-');
        assert.ok(await page.locator(`.node[data-step="${step.name}"].${state}`).count(), `${job.state} ${step.name}`);
        await go(`#/job/${job.id}?step=${step.name}`);
        await page.waitForFunction((name) => document.querySelector('.step-title h2')?.textContent === name, step.name);
        assert.equal(await page.locator('.step-title .badge').innerText(), state);
        for (const tab of ['input', 'output', 'settings']) {
          await page.locator(`.step-panel .tabs a`, { hasText: new RegExp(tab, 'i') }).click();
          await page.waitForFunction((name) => location.hash.includes(`tab=${name}`), tab);
        }
      }
      assert.equal(await page.locator('.time-row').count(), definition.steps.length);
    }
  }, { fake, expected: /404/ });
});

const HOSTILE = '<img src=x onerror=alert(1)></script><script>alert(2)</script>\u202Eevil\u0000\u200B${7*7}{{7*7}} javascript:alert(3)';

test('hostile texts are shown and nothing more', async () => {
  const fake = new Fake();
  const name = '__proto__';
  const definition = { hash: 'e'.repeat(64), vhost: '', name: HOSTILE, loaded: true, deadline: HOSTILE, steps: [{ name, depends: [], queue: HOSTILE, when: HOSTILE, statuses: [HOSTILE] }, { name: 'constructor', depends: [name, 'toString'], queue: 'q' }, { name: 'toString', depends: [], queue: 'q' }], tasks: [] };
  fake.definitions = { [HOSTILE]: [definition] };
  const job = fake.add(new FakeJob('hostile', definition, Date.now() - 5000));
  job.message = `{"__proto__":{"polluted":true},"html":${JSON.stringify(HOSTILE)},"id":12345678901234567890123.4500,"id":"twice","10":"first","2":"second"}`;
  job.inputs[name] = `{"line":"${'x'.repeat(1_000_000)}"}`;
  job.outputs[name] = `not json at all ${HOSTILE}`;
  job.push({ kind: 'step.started', step: name, attempt: 1 });
  job.push({ kind: 'step.attempt-failed', step: name, attempt: 1, reason: `an earlier fault ${HOSTILE}`, raw: `raw ${HOSTILE}\n  kept   as it came` });
  job.push({ kind: 'step.started', step: name, attempt: 2 });
  job.push({ kind: 'step.progressed', step: name, message: HOSTILE, progress: 0.5 });
  job.over[name] = { reason: HOSTILE, warning: HOSTILE, status: HOSTILE, queue: HOSTILE };
  job.why = { job: job.id, cause: HOSTILE, why: HOSTILE, step: name };
  job.push({ kind: `odd.${HOSTILE}`, message: HOSTILE, payload: job.message, payloadBytes: 3 });
  const failed = fake.add(new FakeJob('hostile failed', definition, Date.now() - 9000).end('failed', HOSTILE));
  await on(async ({ page, go }) => {
    const check = async (/** @type {string} */ where) => {
      const found = await page.evaluate(() => ({ markup: document.querySelectorAll('main img, main script, main iframe, dialog img').length, polluted: /** @type {any} */ ({}).polluted, links: [...document.querySelectorAll('a')].filter((one) => !/^(#|$)/.test(one.getAttribute('href') ?? '')).length, text: document.body.textContent ?? '' }));
      assert.equal(found.markup, 0, where);
      assert.equal(found.polluted, undefined, where);
      assert.equal(found.links, 0, where);
      assert.ok(!found.text.includes('\u202E') && !found.text.includes('\u0000'), `${where}: a mark of direction is not made visible`);
    };
    for (const hash of ['#/', '#/jobs', `#/jobs?workflow=${encodeURIComponent(HOSTILE)}&status.x=${encodeURIComponent(HOSTILE)}`, `#/job/${job.id}`, `#/job/${failed.id}`, `#/job/${job.id}?step=${name}&tab=settings`, `#/job/${job.id}?step=constructor`, `#/job/${job.id}?view=record`, `#/job/${job.id}?step=${encodeURIComponent(HOSTILE)}&at=${encodeURIComponent(HOSTILE)}`, `#/statuses/${encodeURIComponent(HOSTILE)}`, `#/definitions/${encodeURIComponent(HOSTILE)}`, `#/${encodeURIComponent(HOSTILE)}`, `#/job/${encodeURIComponent(HOSTILE)}`]) {
      await go(hash);
      await page.waitForTimeout(350);
      await check(hash);
    }
    await go(`#/job/${job.id}?step=__start__`);
    await page.waitForSelector('.step-panel .code-line', { timeout: 5000 }).catch(async () => assert.fail(await page.locator('main').innerText()));
    const text = await page.locator('.step-panel .code').innerText();
    // Nothing is rounded, put in another order, or left out.
    assert.match(text, /12345678901234567890123\.4500/);
    assert.match(text, /"twice"/);
    assert.ok(text.indexOf('"10"') < text.indexOf('"2"') && text.indexOf('"10"') > 0);
    assert.match(text, /U\+202E/);
    await go(`#/job/${job.id}?step=${name}&tab=input`);
    await page.waitForSelector('.step-panel .code-line');
    assert.match(await page.locator('.payload-bar').innerText(), /977 KB, the first 256 KB shown/);
    await page.getByRole('button', { name: 'Show all' }).click();
    await page.waitForFunction(() => !document.querySelector('.payload-bar')?.textContent?.includes('the first'));
    await go(`#/job/${job.id}?step=${name}&tab=output`);
    await page.waitForSelector('.step-panel .t-bad');
    await check('output');
    await go(`#/job/${job.id}?step=${name}`);
    await page.locator('.attempt summary').click();
    assert.match(await page.locator('.raw').innerText(), /kept {3}as it came/);
    await check('raw');
  }, { fake, expected: /40[04]/ });
});

test('operations: at once, or asked for first; and nothing in the past', async () => {
  await on(async ({ page, fake, go }) => {
    const { ids } = fake;
    const becomes = (/** @type {string} */ word) => page.waitForFunction((expected) => document.querySelector('.job-title .badge')?.textContent?.trim() === expected, word);
    await go(`#/job/${ids.standing}`);
    await page.getByRole('button', { name: 'Pause' }).click();
    await becomes('paused');
    await page.getByRole('button', { name: 'Resume' }).click();
    await becomes('running');
    await page.getByRole('button', { name: 'Send again…' }).click();
    await page.getByRole('button', { name: 'No, leave it' }).click();
    assert.ok(!fake.asked.some((/** @type {string} */ call) => call.includes('redispatch')));
    // By hand, first with a fault that the manager names.
    await page.getByRole('button', { name: 'Complete by hand…' }).click();
    await page.getByLabel('Output, a JSON object').fill('[1]');
    await page.getByRole('button', { name: 'Complete it' }).click();
    await page.waitForSelector('dialog .problem');
    assert.match(await page.locator('dialog .problem').innerText(), /no JSON object/);
    await page.getByLabel('Output, a JSON object').fill('{"cents":1}');
    await page.getByRole('button', { name: 'Complete it' }).click();
    await page.waitForSelector('.node[data-step=invoice].completed');
    await page.getByRole('button', { name: 'Cancel…' }).click();
    assert.match(await page.locator('dialog').innerText(), /cannot be taken back/);
    assert.ok(!fake.asked.includes(`POST /api/job/${ids.standing}/cancel`));
    // What the manager refuses is told where it was asked.
    fake.without = /cancel$/;
    await page.getByRole('button', { name: 'Cancel it' }).click();
    await page.waitForSelector('dialog .problem');
    fake.without = undefined;
    await page.getByRole('button', { name: 'Cancel it' }).click();
    await becomes('cancelled');
    await go(`#/job/${ids.failed}?step=price-lines`);
    await page.getByRole('button', { name: 'Run again from here…' }).click();
    assert.match(await page.locator('dialog').innerText(), /6 steps will be done again[\s\S]*price-lines[\s\S]*approval[\s\S]*stock[\s\S]*invoice[\s\S]*ship[\s\S]*mail/);
    await page.keyboard.press('Escape');
    await page.waitForSelector('dialog', { state: 'detached' });
    await page.getByRole('button', { name: 'Retry', exact: true }).click();
    await becomes('running');
    await go(`#/job/${ids.paused}?at=5`);
    await page.waitForSelector('.in-past');
    for (const button of await page.locator('.job-actions > .button, .panel-foot .button').all()) assert.ok(await button.isDisabled());
    await go(`#/job/${ids.completed}`);
    await page.getByRole('button', { name: 'More' }).click();
    await page.getByRole('menuitem', { name: 'Erase…' }).click();
    await page.getByRole('button', { name: 'Erase it for good' }).click();
    await page.waitForFunction(() => location.hash.startsWith('#/jobs'));
    assert.ok(!fake.jobs.has(ids.completed));
  }, { expected: /4\d\d/ });
});

test('the record: slider, keys and address say the same', async () => {
  await on(async ({ page, fake, go }) => {
    await go(`#/job/${fake.ids.standing}`);
    await page.waitForSelector('.node[data-step=invoice].running');
    await page.keyboard.press('[');
    await page.waitForFunction(() => location.hash.includes('at=18'));
    await page.waitForSelector('.in-past');
    assert.match(await page.locator('.why').innerText(), /after entry 18/);
    await page.getByRole('slider').focus();
    await page.keyboard.press('Home');
    await page.waitForFunction(() => location.hash.includes('at=1') && !location.hash.includes('at=18'));
    await page.waitForSelector('.node[data-step=invoice].waiting');
    await page.keyboard.press('End');
    await page.waitForFunction(() => !location.hash.includes('at='));
    await page.waitForSelector('.node[data-step=invoice].running');
    await go(`#/job/${fake.ids.standing}?at=999`);
    await page.waitForSelector('.problem');
    assert.match(await page.locator('.problem').innerText(), /entries 1 to 19/);
    await page.getByRole('button', { name: 'Back to now' }).click();
    await page.waitForSelector('.in-past', { state: 'detached' });
    await page.keyboard.press('r');
    await page.waitForSelector('.record-row');
    await page.locator('.record-row button', { hasText: '15 B' }).first().click();
    assert.match(await page.locator('.record-open').innerText(), /"reserved": 16/);
  }, { expected: /400/ });
});

test('what happens is shown as it happens, and a hidden page asks nothing', async () => {
  await on(async ({ page, fake, go }) => {
    const id = fake.ids.standing;
    await go(`#/job/${id}`);
    await page.waitForFunction(() => document.querySelector('.light')?.textContent?.includes('Live'));
    fake.jobs.get(id).push({ kind: 'step.completed', step: 'invoice', payload: '{}', payloadBytes: 2 });
    fake.happened(id);
    await page.waitForSelector('.node[data-step=invoice].completed', { timeout: 2000 });
    await page.evaluate(() => {
      Object.defineProperty(document, 'hidden', { value: true, configurable: true });
      document.dispatchEvent(new Event('visibilitychange'));
    });
    await page.waitForTimeout(300);
    assert.equal(fake.streams.length, 0);
    const asked = fake.asked.length;
    await page.waitForTimeout(2500);
    assert.equal(fake.asked.length, asked);
    fake.jobs.get(id).push({ kind: 'step.started', step: 'ship', attempt: 1 });
    await page.evaluate(() => {
      Object.defineProperty(document, 'hidden', { value: false, configurable: true });
      document.dispatchEvent(new Event('visibilitychange'));
    });
    await page.waitForSelector('.node[data-step=ship].running', { timeout: 3000 });
    assert.equal(fake.streams.length, 1);
    for (const { response } of [...fake.streams]) response.destroy();
    for (let tries = 0; tries < 50 && fake.streams.length !== 1; tries += 1) await page.waitForTimeout(100);
    assert.equal(fake.streams.length, 1);
    await page.waitForFunction(() => document.querySelector('.light')?.textContent?.includes('Live'), undefined, { timeout: 5000 });
  }, { expected: /ERR_INCOMPLETE_CHUNKED|ERR_CONNECTION/ });
});

test('all of a search: looked at first, a number typed, refusals told', async () => {
  await on(async ({ page, fake, go }) => {
    await go('#/jobs?workflow=orders&state=failed,running');
    await page.getByRole('button', { name: 'All of these…' }).click();
    await page.locator('dialog').getByRole('button', { name: 'Retry' }).click();
    const run = page.locator('dialog').getByRole('button', { name: /^Retry \d+ jobs$/ });
    await run.waitFor();
    const many = /\d+/.exec(await run.innerText())?.[0] ?? '';
    assert.ok(Number(many) > 10);
    assert.ok(await run.isDisabled());
    assert.ok(fake.asked.every((/** @type {string} */ call) => !call.startsWith('POST') || call.includes('dryRun=true')));
    await page.locator('.bulk-typed input').fill(many);
    await run.click();
    await page.waitForFunction(() => /refused/.test(document.querySelector('dialog [role=status]')?.textContent ?? ''));
    assert.match(await page.locator('dialog').innerText(), /10 done, \d+ refused/);
    await page.getByRole('button', { name: 'Close', exact: true }).last().click();
    await page.waitForSelector('dialog', { state: 'detached' });
  });
});

test('payloads and sheets are saved as files, copied as they are', async () => {
  await on(async ({ page, fake, go }) => {
    const { ids } = fake;
    await go(`#/job/${ids.completed}?step=__start__`);
    await page.waitForSelector('.step-panel .code-line');
    let [download] = await Promise.all([page.waitForEvent('download'), page.getByRole('button', { name: 'Save as a file' }).click()]);
    assert.equal(download.suggestedFilename(), 'message.json');
    assert.equal(await readFile(await download.path(), 'utf8'), fake.jobs.get(ids.completed).message);
    await page.context().grantPermissions(['clipboard-read', 'clipboard-write']);
    await page.locator('.payload-bar').getByRole('button', { name: 'Copy' }).click();
    await page.waitForSelector('.toast');
    assert.equal(await page.evaluate(() => navigator.clipboard.readText()), fake.jobs.get(ids.completed).message);
    await go('#/statuses/job-application?offer=ACCEPTED');
    await page.waitForSelector('.sheet');
    [download] = await Promise.all([page.waitForEvent('download'), page.getByRole('button', { name: 'CSV' }).click()]);
    assert.equal(download.suggestedFilename(), 'job-application.csv');
    assert.ok(fake.asked.some((/** @type {string} */ call) => call.includes('step.offer=ACCEPTED')));
  });
});

test('a job is created from the page; a fault of its message is told', async () => {
  await on(async ({ page, fake, go }) => {
    await go('#/definitions/orders');
    await page.getByRole('button', { name: 'New job' }).click();
    await page.getByLabel('Message, a JSON object').fill('{"lines":');
    await page.getByRole('button', { name: 'Create it' }).click();
    await page.waitForSelector('dialog .problem');
    await page.getByLabel('Message, a JSON object').fill('{"lines":[]}');
    await page.getByRole('button', { name: 'Create it' }).click();
    await page.waitForSelector('.job-head');
    const [id] = [...fake.jobs.keys()].slice(-1);
    assert.ok(page.url().endsWith(`#/job/${id}`));
    assert.equal(fake.jobs.get(id).message, '{"lines":[]}');
  }, { expected: /400/ });
});

test('everything can be done with the keyboard alone', async () => {
  await on(async ({ page, fake, go }) => {
    await go('#/');
    await page.keyboard.press('Tab');
    assert.equal(await page.evaluate(() => document.activeElement?.className), 'skip');
    await page.keyboard.press('Enter');
    assert.equal(await page.evaluate(() => document.activeElement?.id), 'main');
    await page.keyboard.press('g');
    await page.keyboard.press('j');
    await page.waitForSelector('.jobs-table');
    for (const key of ['j', 'j', 'x', 'k']) await page.keyboard.press(key);
    assert.match(await page.locator('.marked-bar').innerText(), /1 marked/);
    await page.keyboard.press('Enter');
    await page.waitForSelector('.job-head');
    await page.keyboard.press('Control+k');
    await page.keyboard.type(fake.ids.failed);
    await page.keyboard.press('Enter');
    await page.waitForFunction((id) => location.hash === `#/job/${id}`, fake.ids.failed);
    await page.waitForSelector('.node');
    await page.locator('.node[data-step=stock]').focus();
    await page.keyboard.press('Enter');
    await page.waitForFunction(() => document.querySelector('.step-title h2')?.textContent === 'stock');
    await page.keyboard.press('f');
    await page.waitForFunction(() => document.querySelector('.step-title h2')?.textContent === 'invoice');
    await page.keyboard.press('/');
    await page.keyboard.type('workflow:ord');
    await page.keyboard.press('Tab');
    await page.keyboard.type(' state:failed');
    await page.keyboard.press('Enter');
    await page.waitForFunction(() => location.hash === '#/jobs?workflow=orders&state=failed');
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
    await page.goto(page.url().replace(/#.*/, '#/statuses/job-application'));
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

test('a click never blanks what is shown', async () => {
  await on(async ({ page, fake, go }) => {
    await go('#/jobs?workflow=orders');
    await page.waitForSelector('.jobs-table tbody tr');
    fake.delay = 250;
    await page.evaluate(() => {
      const seen = /** @type {any} */ (globalThis).seen = { least: Infinity };
      const look = () => {
        seen.least = Math.min(seen.least, (document.querySelector('main')?.textContent ?? '').trim().length);
        requestAnimationFrame(look);
      };
      look();
    });
    await page.locator('.chip-state.failed').click();
    await page.waitForTimeout(700);
    await page.locator('.jobs-table tbody a').first().click();
    await page.waitForSelector('.job-head');
    await page.waitForSelector('.node');
    await page.locator('.node[data-step=stock]').click();
    await page.waitForTimeout(400);
    await page.keyboard.press('[');
    await page.waitForSelector('.in-past');
    await page.locator('.side-pages a', { hasText: 'Overview' }).click();
    await page.waitForSelector('.overview');
    assert.ok((await page.evaluate(() => /** @type {any} */ (globalThis).seen.least)) > 200);
  });
});

test('a manager that lacks the newer calls is no fault', async () => {
  const fake = demo();
  fake.without = /definition|\/step\/[^/]+(\/.*)?$|queues|manager|settings|entries|message/;
  await on(async ({ page, go }) => {
    for (const view of VIEWS(fake.ids)) {
      await go(view);
      await page.waitForTimeout(300);
      assert.doesNotMatch(await page.locator('main').innerText(), /there is nothing at|undefined|NaN|\[object/, view);
    }
    await go(`#/job/${fake.ids.standing}`);
    await page.waitForTimeout(300);
    assert.match(await page.locator('main').innerText(), /no consumer on queue/);
  }, { fake, expected: /404/ });
});

test('a token is asked for, kept in the tab, and never in an address', async () => {
  const fake = demo();
  fake.token = 'a secret';
  await on(async ({ page, go }) => {
    await go('#/');
    await page.getByLabel('Token').fill('wrong');
    await page.getByRole('button', { name: 'Use it' }).click();
    await page.waitForFunction(() => document.querySelector('.banner')?.textContent?.includes('not the right one'));
    await page.getByLabel('Token').fill('a secret');
    await page.getByRole('button', { name: 'Use it' }).click();
    await page.waitForSelector('.overview-table');
    assert.equal(await page.locator('.banner').count(), 0);
    assert.ok(fake.asked.every((/** @type {string} */ call) => !call.includes('secret')));
    assert.ok(!page.url().includes('secret'));
    await go(`#/job/${fake.ids.standing}`);
    await page.waitForFunction(() => document.querySelector('.light')?.textContent?.includes('Live'));
  }, { fake, expected: /401/ });
});

test('nothing is wider than a phone, nor hidden behind it', async () => {
  const fake = demo();
  await on(async ({ page, go }) => {
    for (const view of VIEWS(fake.ids)) {
      await go(view);
      await page.waitForTimeout(300);
      assert.ok((await page.evaluate(() => document.documentElement.scrollWidth)) <= 390, view);
    }
  }, { fake, viewport: { width: 390, height: 844 } });
});

test('large fan-outs are quick: a job of 100,000 items, a map of 1,000,000', async () => {
  const fake = demo();
  const million = fake.add(large('million', Date.now() - 60_000, 1_000_000));
  await on(async ({ page, go }) => {
    await go('#/jobs');
    let begun = Date.now();
    await page.evaluate((hash) => { location.hash = hash; }, `#/job/${fake.ids.large}`);
    await page.waitForSelector('.node[data-step=price-lines]');
    const job = Date.now() - begun;
    begun = Date.now();
    await page.evaluate((hash) => { location.hash = hash; }, `#/job/${million.id}/step/price-lines`);
    await page.waitForFunction(() => {
      const canvas = /** @type {HTMLCanvasElement | null} */ (document.querySelector('canvas.map'));
      const context = canvas?.getContext('2d');
      return !!canvas && !!context && canvas.width > 300 && context.getImageData(4, 4, 1, 1).data[3] > 0;
    });
    const map = Date.now() - begun;
    assert.ok(job < 1000, `the job took ${job} ms`);
    assert.ok(map < 1500, `the map took ${map} ms`);
    await page.keyboard.press('f');
    await page.waitForFunction(() => /failed/.test(document.querySelector('.map-text')?.textContent ?? ''));
    await page.waitForSelector('.map-text a');
    await page.locator('canvas.map').click({ position: { x: 300, y: 100 } });
    await page.waitForFunction(() => /items [\d,]+ to [\d,]+:/.test(document.querySelector('.map-text')?.textContent ?? ''));
  }, { fake });
});

