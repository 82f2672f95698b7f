// What the page shows, in Chromium, of a real manager: every state, hostile texts, each view at two widths and in two themes.

import assert from 'node:assert/strict';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { axe, on, open } from './browser.js';
import { CALLING, folder, ODD, start } from './manager.js';
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

const views = () => {
  const { ids, hashes } = manager;
  return ['#/', '#/jobs', '#/jobs?state=failed,running', `#/job/${ids.standing}`, `#/job/${ids.failed}?step=invoice`, `#/job/${ids.completed}`, `#/job/${ids.paused}?step=price-lines&tab=input`, `#/job/${ids.standing}?view=record&at=12&tab=settings&step=stock`, `#/job/${ids.large}/step/price-lines`, `#/job/${ids.person}`, '#/statuses/job-application?background-check=FAILED', '#/statuses/orders', '#/definitions', `#/definitions/orders?with=${hashes.then}`, '#/definitions/states', '#/schedules', '#/manager', '#/nowhere'];
};
/** Where a graph is drawn, it is drawn by a worker: nothing is under way, and it may not be there yet. @param {import('playwright-core').Page} page */
const graphs = (page) => page.waitForFunction(() => [...document.querySelectorAll('.graph')].every((one) => one.querySelector('.node')));

for (const [colorScheme, width] of /** @type {const} */ ([['light', 1440], ['dark', 1440], ['light', 390], ['dark', 390]])) {
  test(`axe finds nothing in any view or dialog, and no view says nonsense, ${colorScheme}, ${width} pixels`, async () => {
    await on(browser, manager, async ({ page, go }) => {
      /** @type {string[]} */
      const found = [];
      for (const view of views()) {
        await go(view);
        await graphs(page);
        assert.doesNotMatch(await page.locator('main').innerText(), /undefined|NaN|\[object/, view);
        found.push(...(await axe(page)).map((line) => `${view} ${line}`));
      }
      /** @type {[string, string][]} */
      const dialogs = [['#/', 'Keys and help'], ['#/jobs?workflow=orders', 'New job'], ['#/jobs?workflow=orders', 'All of these…'], [`#/job/${manager.ids.standing}`, 'Cancel…'], [`#/job/${manager.ids.person}`, 'Complete by hand…'], [`#/job/${manager.ids.person}`, 'Search, or paste an id']];
      for (const [view, button] of dialogs) {
        await go(view);
        await page.getByRole('button', { name: button }).click();
        await page.waitForSelector('dialog[open]');
        if (button === 'All of these…') {
          await page.locator('dialog').getByRole('button', { name: 'Erase' }).click();
          await page.waitForSelector('.bulk-list');
        }
        found.push(...(await axe(page, 'dialog')).map((line) => `${button} ${line}`));
        await page.keyboard.press('Escape');
        await page.waitForSelector('dialog', { state: 'detached' });
      }
      assert.deepEqual(found, []);
    }, { colorScheme, viewport: { width, height: 900 } });
  });
}

test('nothing is wider than a phone, nor hidden behind it', async () => {
  await on(browser, manager, async ({ page, go }) => {
    for (const view of views()) {
      await go(view);
      await graphs(page);
      assert.ok((await page.evaluate(() => document.documentElement.scrollWidth)) <= 390, view);
    }
  }, { viewport: { width: 390, height: 844 } });
});

test('the graph is laid out in a worker, under the strict policy', async () => {
  await on(browser, manager, async ({ page, go }) => {
    await go(`#/job/${manager.ids.standing}`);
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
  }, { expected: /TrustedHTML|require-trusted-types-for|blocked: / });
});

test('each graph of a definition is drawn, however many tasks with several steps it has', async () => {
  const many = 30;
  const files = await folder();
  const file = join(files.path, 'tasks.yaml');
  const each = (/** @type {(n: number) => string} */ line) => Array.from({ length: many }, (_, n) => line(n)).join('\n');
  await writeFile(file, `workflows:\n  - name: tasks\n    steps:\n${each((n) => `      - { name: over-${n}, task: task-${n} }`)}\n    tasks:\n${each((n) => `      - name: task-${n}\n        itemListKey: items\n        steps: [ { name: first-${n} }, { name: then-${n}, depends: [ first-${n} ] } ]`)}\n  - name: one\n    steps:\n      - { name: over, task: task }\n    tasks:\n      - name: task\n        itemListKey: items\n        steps: [ { name: first }, { name: then, depends: [ first ] } ]\n`);
  const own = await start({ workflows: [file] });
  try {
    for (const viewport of [{ width: 1440, height: 900 }, { width: 390, height: 844 }]) {
      await on(browser, own, async ({ page, go }) => {
        for (const [name, tasks] of /** @type {const} */ ([['one', 1], ['tasks', many]])) {
          await go(`#/definitions/${name}`);
          await page.waitForFunction((expected) => document.querySelectorAll('.graph .graph-plane').length === expected, tasks + 1);
          assert.equal(await page.locator('.node').count(), 3 * tasks);
          assert.doesNotMatch(await page.locator('main').innerText(), /could not be laid out/);
        }
        // The worker takes the next graph while another one is under way.
        await page.setViewportSize({ width: viewport.width === 390 ? 1440 : 390, height: 900 });
        await page.waitForFunction((expected) => document.querySelectorAll('.graph .graph-plane').length === expected, many + 1);
      }, { viewport });
    }
  } finally {
    await own.stop();
    await files.remove();
  }
});

test('behind a proxy, under any prefix', async () => {
  const behind = await start({ prefix: '/tools/workflows' });
  try {
    const id = await behind.create('orders', { lines: [] });
    await on(browser, behind, async ({ page, go }) => {
      await go(`#/job/${id}`);
      await page.waitForSelector('.node[data-step=price-lines].completed');
      await page.waitForFunction(() => document.querySelector('.light')?.textContent?.includes('Live'));
    });
  } finally {
    await behind.stop();
  }
});

/** Jobs of the workflow `states`, in each state with steps in every state that they can be in. @param {import('./manager.js').Manager} manager */
async function everyState(manager) {
  const items = ['a', 'b', 'c'];
  const made = async () => {
    const id = await manager.create('states', { items, go: false });
    await Promise.all([...(await manager.children(id, 'cancelled-many')), ...(await manager.children(id, 'running-many'))]);
    const children = await manager.children(id, 'failed-many');
    await manager.complete(id, 'completed', { items });
    await manager.fail(id, 'failed', 'it broke');
    for (const { job } of await manager.children(id, 'completed-many')) await manager.complete(job, 'work');
    await manager.fail(children[1].job, 'work', 'this item broke');
    await manager.reaches(id, 'failed-many', 'failed');
    await manager.reaches(id, 'completed-many', 'completed');
    return id;
  };
  const jobs = { running: await made(), paused: await made(), completed: await made(), failed: await made(), cancelled: await made() };
  await manager.post(`job/${jobs.paused}/pause`);
  await manager.post(`job/${jobs.cancelled}/cancel`);
  await manager.fail(jobs.failed, 'last', 'enough');
  await manager.complete(jobs.completed, 'running', { items });
  for (const step of ['running-many', 'waiting-many']) for (const { job } of await manager.children(jobs.completed, step)) await manager.complete(job, 'work');
  await manager.complete(jobs.completed, 'waiting');
  await manager.complete(jobs.completed, 'last');
  for (const [state, id] of Object.entries(jobs)) await manager.ends(id, state);
  return jobs;
}

test('every state of a step in every state of a job', async () => {
  const jobs = await everyState(manager);
  /** @type {Record<string, string[]>} */
  const reached = {};
  await on(browser, manager, async ({ page, go, becomes }) => {
    for (const [word, id] of Object.entries(jobs)) {
      const { steps } = await manager.light(id);
      reached[word] = [...new Set(steps.map((/** @type {any} */ step) => step.state))].sort();
      await go(`#/job/${id}`);
      await becomes(word);
      for (const step of steps) {
        const { name } = step;
        // Nothing runs in a job that has ended.
        const state = word === 'failed' && step.state === 'running' ? 'halted' : step.state;
        await page.waitForSelector(`.node[data-step="${name}"].${state}`);
        await go(`#/job/${id}?step=${name}`);
        await page.waitForFunction((expected) => document.querySelector('.step-title h2')?.textContent === expected, name);
        assert.equal(await page.locator('.step-title .badge').innerText(), state, `${word} ${name}`);
        for (const tab of word === 'paused' ? ['input', 'output', 'settings'] : []) {
          await page.locator('.step-panel .tabs a', { hasText: new RegExp(tab, 'i') }).click();
          await page.waitForFunction((expected) => location.hash.includes(`tab=${expected}`), tab);
        }
      }
      assert.equal(await page.locator('.time-row').count(), steps.length);
    }
  }, { expected: /40[49]/ });
  const all = ['cancelled', 'completed', 'failed', 'running', 'skipped', 'waiting'];
  assert.deepEqual(reached, { running: all, paused: all, completed: ['cancelled', 'completed', 'failed', 'skipped'], failed: all, cancelled: ['cancelled', 'completed', 'failed', 'skipped', 'waiting'] });
});

test('what the end of a job cut off is neither running nor failed, and a job that was mended has not failed', async () => {
  const own = await start({ workflows: [ODD] });
  try {
    const made = await everyState(own);
    await on(browser, own, async ({ page, go, becomes, asked, settled }) => {
      await page.clock.install();
      for (const [job, step] of [[made.failed, 'running-many'], [made.cancelled, 'running-many']]) {
        await go(`#/job/${job}/step/${step}`);
        const figures = page.locator('.fan-figures');
        await figures.getByText('cut off').waitFor();
        assert.match((await figures.innerText()).replace(/\s+/g, ' '), /^ended 0 % failed 0 completed 0 cut off 3 never started 0/);
        assert.equal(await page.locator('.fan-bar .running').evaluate((bar) => bar.getBoundingClientRect().width), 0);
        assert.match(await page.locator('.fan-bar').getAttribute('aria-label') ?? '', /3 cut off, 0 completed, 0 failed/);
        assert.match(await page.locator('section[aria-label=Items]').innerText(), /Failed\s*0[^]*Cut off\s*3[^]*None\./);
        await page.getByRole('link', { name: 'Cut off' }).click();
        await page.waitForFunction(() => document.querySelectorAll('.items-table .badge.halted').length === 3);
        await page.locator('canvas.map').focus();
        await page.keyboard.press('ArrowRight');
        await page.waitForFunction(() => /item 0:\s*1 cut off/.test(document.querySelector('.map-text')?.textContent ?? ''));
        assert.equal(await page.locator('.light').innerText(), 'Ended');
        // It is over: nothing is asked again and again.
        const before = asked.filter((call) => call.includes('/items')).length;
        await page.clock.fastForward('00:10');
        await settled();
        assert.equal(asked.filter((call) => call.includes('/items')).length, before);
      }
      await go(`#/job/${made.failed}?step=running`);
      await page.waitForSelector('.step-title .badge.halted');
      assert.equal(await page.locator('.node.running, .bar.running, .bar.open, .attempt .icon-running').count(), 0);
      await go('#/statuses/states');
      assert.equal(await page.locator(`[data-row="${made.failed}"] .status-word.running`).count(), 0);
      // Texts of what failed, and was allowed to.
      await go(`#/job/${made.completed}`);
      await becomes('completed');
      assert.match(await page.locator('.why').innerText(), /Step failed failed, which lets the job go on/);
      const tolerant = await own.create('many', { items: [1, 2, 3, 4] });
      for (const [n, { job }] of (await own.children(tolerant, 'all')).entries()) await (n ? own.complete(job, 'work') : own.fail(job, 'work', 'no'));
      await go(`#/job/${tolerant}`);
      await becomes('completed');
      assert.match(await page.locator('.why').innerText(), /1 of 4 items of all failed, which is tolerated/);
      // The red figure counts jobs that are failed, each once.
      const [one, two] = [await own.create('short', { go: true }), await own.create('short', { go: true })];
      const red = (/** @type {string} */ text) => page.waitForFunction((expected) => {
        document.dispatchEvent(new Event('visibilitychange'));
        return (document.querySelector('.side-workflows a[title=short] .side-count.failed')?.textContent ?? '').replace(/\D/g, '') === expected;
      }, text, { polling: 500 });
      await own.fail(one, 'only', 'no');
      await own.fail(two, 'only', 'no');
      await go('#/');
      await red('2');
      for (let again = 0; again < 2; again += 1) {
        await own.post(`job/${one}/retry`);
        await own.reaches(one, 'only', 'running');
        await red('1');
        await own.fail(one, 'only', 'no');
        await red('2');
      }
      await own.post(`job/${one}/retry`);
      await own.complete(one, 'only');
      await red('1');
      await fetch(`${own.api}/api/job/${two}?erase=true`, { method: 'DELETE' });
      await red('');
      await page.waitForFunction(() => [...document.querySelectorAll('.overview-table tbody tr')].find((row) => row.textContent?.includes('short'))?.querySelector('td[data-label="still failed, 1h"]')?.textContent === '0');
    });
  } finally {
    await own.stop();
  }
});

const HOSTILE = '<img src=x onerror=alert(1)></script><script>alert(2)</script>\u202Eevil\u0000\u200B${7*7}{{7*7}} javascript:alert(3)';

test('hostile texts are shown and nothing more', async () => {
  const message = `{"__proto__":{"polluted":true},"html":${JSON.stringify(HOSTILE)},"number":12345678901234567890123.4500,"10":"first","2":"second","line":"${'x'.repeat(1_000_000)}"}`;
  const id = await manager.create('hostile', message);
  await manager.post(`job/${id}/step/constructor?type=progress`, { message: HOSTILE, progress: 0.5 });
  await manager.fail(id, 'constructor', HOSTILE, true);
  await manager.fail(id, 'hasOwnProperty', HOSTILE);
  const done = await manager.create('hostile', message);
  await manager.complete(done, 'constructor', `{"word":${JSON.stringify(HOSTILE)},"__proto__":{"polluted":true},"constructor":{"prototype":1}}`);
  const broken = await manager.create('hostile', message);
  await manager.fail(broken, 'constructor', `${HOSTILE} ${'long '.repeat(3000)}`);
  await manager.ends(broken, 'failed');
  await on(browser, manager, async ({ page, go }) => {
    const check = async (/** @type {string} */ where) => {
      const found = await page.evaluate(() => ({ markup: document.querySelectorAll('main img, main script, main iframe, dialog img, main b b').length, polluted: /** @type {any} */ ({}).polluted, links: [...document.querySelectorAll('a')].filter((one) => !/^(#|$)/.test(one.getAttribute('href') ?? '')).length, text: document.body.textContent ?? '' }));
      assert.equal(found.markup, 0, where);
      assert.equal(found.polluted, undefined, where);
      assert.equal(found.links, 0, where);
      assert.ok(!found.text.includes('\u202E') && !found.text.includes('\u0000'), `${where}: a mark of direction is not made visible`);
    };
    const odd = encodeURIComponent(HOSTILE);
    for (const hash of ['#/', '#/jobs', '#/jobs?workflow=hostile', `#/jobs?workflow=${odd}&status.x=${odd}`, `#/job/${id}`, `#/job/${broken}`, `#/job/${done}?step=toString`, `#/job/${id}?step=constructor&tab=settings`, `#/job/${id}?step=hasOwnProperty`, `#/job/${id}?view=record`, `#/job/${done}?view=record`, `#/job/${id}?step=${odd}&at=${odd}`, `#/job/${id}?step=__proto__`, '#/statuses/hostile', `#/statuses/hostile?constructor=${odd}`, `#/statuses/${odd}`, '#/definitions/hostile', `#/definitions/${odd}`, `#/${odd}`, `#/job/${odd}`]) {
      await go(hash);
      await graphs(page);
      await check(hash);
    }
    await go(`#/job/${id}?step=__start__`);
    await page.waitForSelector('.step-panel .code-line');
    const text = await page.locator('.step-panel .code').innerText();
    // Nothing is rounded, put in another order, or left out.
    assert.match(text, /12345678901234567890123\.4500/);
    assert.ok(text.indexOf('"10"') < text.indexOf('"2"') && text.indexOf('"10"') > 0);
    assert.match(text, /U\+202E/);
    await go(`#/job/${id}?step=constructor&tab=input`);
    await page.waitForSelector('.step-panel .code-line');
    assert.match(await page.locator('.payload-bar').innerText(), /977 KB, the first 256 KB shown/);
    await page.getByRole('button', { name: 'Show all' }).click();
    await page.waitForFunction(() => !document.querySelector('.payload-bar')?.textContent?.includes('the first'));
    await check('input');
    await go(`#/job/${done}?step=constructor&tab=output`);
    await page.waitForSelector('.step-panel .code-line');
    assert.match(await page.locator('.step-panel .code').innerText(), /U\+202E/);
    await check('output');
    for (const button of ['Complete by hand…', 'Fail…']) {
      await go(`#/job/${done}?step=toString`);
      await page.getByRole('button', { name: button }).click();
      await page.waitForSelector('dialog[open]');
      await check(button);
      await page.keyboard.press('Escape');
      await page.waitForSelector('dialog', { state: 'detached' });
    }
    // What only a broker brings: a reply that was no JSON.
    await page.route('**/step/constructor', async (route) => {
      const response = await route.fetch();
      const step = await response.json();
      step.attempts[0].raw = `raw ${HOSTILE}\n  kept   as it came`;
      await route.fulfill({ response, json: step });
    });
    await go(`#/job/${id}?step=constructor`);
    await page.locator('.attempt summary').first().click();
    assert.match(await page.locator('.raw').first().innerText(), /kept {3}as it came/);
    await check('raw');
  }, { expected: /40[049]/ });
});

test('a click never blanks what is shown', async () => {
  await on(browser, manager, async ({ page, go, settled }) => {
    await go('#/jobs?workflow=orders');
    await page.waitForSelector('.jobs-table tbody tr');
    // Each answer takes its time.
    await page.route('**/api/**', async (route) => {
      await new Promise((resolve) => setTimeout(resolve, 250));
      await route.continue().catch(() => {});
    });
    await page.evaluate(() => {
      const seen = /** @type {any} */ (globalThis).seen = { least: Infinity };
      const look = () => {
        seen.least = Math.min(seen.least, (document.querySelector('main')?.textContent ?? '').trim().length);
        requestAnimationFrame(look);
      };
      look();
    });
    await page.locator('.chip-state.failed').click();
    await settled();
    await page.locator('.jobs-table tbody a').first().click();
    await page.waitForSelector('.job-head');
    await page.waitForSelector('.node');
    await page.locator('.node[data-step=stock]').click();
    await page.waitForFunction(() => document.querySelector('.step-title h2')?.textContent === 'stock');
    await page.keyboard.press('[');
    await page.waitForSelector('.in-past');
    await page.locator('.side-pages a', { hasText: 'Overview' }).click();
    await page.waitForSelector('.overview');
    assert.ok((await page.evaluate(() => /** @type {any} */ (globalThis).seen.least)) > 200);
  });
});

test('the overview says that nothing is delivered to a web service', async () => {
  const calling = await start({ workflows: [CALLING] });
  try {
    await calling.create('calling', {});
    await on(browser, calling, async ({ page, go }) => {
      await go('#/');
      const told = page.locator('.queue-trouble');
      await told.waitFor();
      assert.match((await told.textContent()) ?? '', /^Nothing is delivered: no connection: .*; the next call is /);
    });
  } finally {
    await calling.stop();
  }
});

test('a manager that refuses or lacks calls is no fault of the page', async () => {
  for (const [status, detail] of /** @type {[number, string][]} */ ([[404, 'there is nothing at this path; the API is described in docs/reference/http-api.md'], [503, 'no room for this read; try again in 1 s']])) {
    await on(browser, manager, async ({ page, go }) => {
      await page.route(/\/api\/(.*\/step\/[^/]+(\/.*)?$|definition|queues|manager|settings|.*\/(entries|message)(\?|$))/, (route) => route.fulfill({ status, contentType: 'application/problem+json', body: JSON.stringify({ status, title: 'Problem', detail }) }));
      for (const view of views()) {
        await go(view);
        assert.doesNotMatch(await page.locator('main').innerText(), /undefined|NaN|\[object/, view);
        if (status === 404) assert.doesNotMatch(await page.locator('main').innerText(), /there is nothing at/, view);
      }
      await go(`#/job/${manager.ids.standing}`);
      assert.match(await page.locator('main').innerText(), /no consumer on queue/);
    }, { expected: /404|503/ });
  }
});
