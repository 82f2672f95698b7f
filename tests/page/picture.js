// Takes the picture of the README: a real order, on a real manager, that waits for a worker. The workers are played here.
//
//   tests/rabbitmq start FOLDER; . FOLDER/env
//   node picture.js ../../docs/page.png
//
// Without AMQP_SERVER the manager runs on the embedded bus, and says so on the picture.

import { writeFile } from 'node:fs/promises';
import { newPage, open } from './browser.js';
import { ORDERS, start } from './manager.js';

const [file = 'page.png'] = process.argv.slice(2);
const WIDTH = 1200;
const HEIGHT = 812;
const LINES = ['fountain pen, broad', 'fountain pen, fine', 'ink, violet', 'ink, black', 'blotting paper', 'notebook', 'envelopes', 'sealing wax', 'pencil', 'ruler', 'compasses', 'eraser'];
const after = (/** @type {number} */ ms) => new Promise((resolve) => setTimeout(resolve, ms));

const manager = await start({ workflows: [ORDERS], broker: process.env.AMQP_SERVER });
const browser = await open();
try {
  const id = await manager.create('orders', { customer: 'Ada Lovelace', lines: LINES.map((article, n) => ({ article, count: 1 + (n % 4) })) });
  const children = await manager.children(id, 'price-lines');
  for (const { job, item } of children) {
    await after(90 + 13 * (item % 5));
    if (item === 7) await manager.fail(job, 'price', 'no price for "sealing wax" since 1 November');
    else await manager.complete(job, 'price', { line: { article: LINES[item], cents: 250 + 120 * item } });
    if (item === 8) await manager.complete(id, 'fraud-check', { score: 0.04, status: 'CLEAN' });
  }
  await manager.reaches(id, 'invoice', 'running');
  await after(420);
  await manager.complete(id, 'stock', { reserved: 16 });
  await after(310);
  await manager.fail(id, 'invoice', 'the tax service does not answer', true);
  await manager.reaches(id, 'invoice', 'running');
  await after(900);
  const { page, settled } = await newPage(browser, { viewport: { width: WIDTH, height: HEIGHT } });
  await page.goto(`${manager.url}#/job/${id}`);
  await page.waitForSelector('.node[data-step=invoice].running');
  await page.waitForFunction(() => document.querySelector('.light')?.textContent?.includes('Live'));
  await page.waitForFunction(() => document.querySelector('.why')?.textContent?.includes('no consumer'));
  await settled();
  await writeFile(file, await page.screenshot());
} finally {
  await browser.close();
  await manager.stop();
}
