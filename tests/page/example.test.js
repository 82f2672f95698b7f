// The example counts a book and serves the page.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { on, open } from './browser.js';
import { EXAMPLE, run } from './manager.js';

test('word-counts --page: a whole book on the page, until Ctrl-C', async () => {
  const example = await run(EXAMPLE, ['--page=127.0.0.1:0'], {}, /the page: http:\/\/(\S+)/);
  const browser = await open();
  try {
    const [host, hash] = example.address.split('/#');
    await on(browser, { url: `http://${host}/` }, async ({ page, go, becomes }) => {
      await go(`#${hash}`);
      await becomes('completed');
      await page.waitForSelector('.node[data-step=section-counts].completed');
      await go(`#${hash}/step/section-counts`);
      await page.waitForFunction(() => /100(\.0)? %/.test(document.querySelector('.fan-figures')?.textContent ?? ''));
      await go(`#${hash}?step=store-title&tab=output`);
      await page.waitForFunction(() => /Non eram nescius/.test(document.querySelector('.step-panel .code')?.textContent ?? ''));
    });
    assert.match(example.said(), /7171 words/);
  } finally {
    await browser.close();
    assert.equal(await example.stop('SIGINT'), 0);
  }
});
