// What the real manager of the tests and pictures has in it: the jobs of a small shop that also hires.

import { copyFile } from 'node:fs/promises';
import { join } from 'node:path';
import { APPLICATIONS, BOOKS, each, folder, ODD, ORDERS, ORDERS_BEFORE, start } from './manager.js';

/** @import { Manager } from './manager.js' */

export const LINES = [{ article: 'fountain pen, broad', count: 3 }, { article: 'ink, violet', count: 12 }, { article: 'blotting paper', count: 1 }];
/** As text, since a number has more digits than JavaScript keeps. */
export const MESSAGE = `{"customer":{"name":"Ada Lovelace","id":12345678901234567890,"mail":"ada@example.org"},"lines":${JSON.stringify(LINES)},"express":true,"note":"leave it with the neighbour\\nring twice"}`;
const REFUSED = ['KeyError: \'quill\'', 'no price for "blotting paper" since 1 November', 'the price list answers 502 Bad Gateway'];

/** @param {Manager} manager @param {string} id @param {(child: any) => unknown} [output] */
export async function price(manager, id, output = () => ({ line: { cents: 990 } })) {
  await each(await manager.children(id, 'price-lines'), (child) => manager.complete(child.job, 'price', output(child)));
  await manager.reaches(id, 'price-lines', 'completed');
}

/** An order that waits for its invoice. @param {Manager} manager @param {string} [message] */
export async function standing(manager, message = MESSAGE) {
  const id = await manager.create('orders', message);
  await price(manager, id, (child) => ({ line: { ...LINES[child.item], cents: [7450, 990, 320][child.item] } }));
  await manager.complete(id, 'fraud-check', { score: 0.04 });
  await manager.complete(id, 'stock', { reserved: 16 });
  await manager.reaches(id, 'invoice', 'running');
  return id;
}

/** @param {Manager} manager */
export async function completed(manager) {
  const id = await standing(manager);
  await manager.complete(id, 'invoice', '{"cents":34550,"number":"2026-11-00412"}');
  await manager.complete(id, 'mail', { sent: true });
  await manager.complete(id, 'ship', { parcel: 'HANDED OVER', code: 'JJD000390007412389412' });
  await manager.ends(id, 'completed');
  return id;
}

/** @param {Manager} manager */
export async function failed(manager) {
  const id = await standing(manager);
  await manager.fail(id, 'invoice', 'the tax service does not answer', true);
  await manager.tries(id, 'invoice', 2);
  await manager.fail(id, 'invoice', 'KeyError: \'vat\'');
  await manager.ends(id, 'failed');
  return id;
}

/** An order with so many lines that a map shows them. @param {Manager} manager @param {number} items */
export async function large(manager, items) {
  const id = await manager.create('orders', { customer: { name: 'Babbage & Co.' }, lines: Array.from({ length: items }, (_, n) => ({ article: `part ${n}`, count: 1 + (n % 5) })) });
  const children = await manager.children(id, 'price-lines');
  const done = children.slice(0, Math.floor(items * 0.8)).filter((_, n) => n % 41 !== 7);
  const broken = done.filter(({ item }) => item % 29 === 3 || (item > items * 0.4 && item < items * 0.43));
  for (const { job, item } of broken) await manager.fail(job, 'price', REFUSED[item % 11 === 0 ? 2 : item % 4 === 0 ? 1 : 0]);
  const well = done.filter((child) => !broken.includes(child));
  await each(well, ({ job }) => manager.complete(job, 'price', { line: { cents: 100 } }));
  return id;
}

const WAY = [['application', 'SUBMITTED'], ['phone-screen', 'PASSED'], ['on-site-interview', 'PASSED'], ['background-check', 'PASSED'], ['health-screening', 'PASSED'], ['offer', 'ACCEPTED']];

/** @param {Manager} manager @param {string} name @param {number} done @param {string} [last] the last word */
export async function application(manager, name, done, last) {
  const id = await manager.create('job-application', { name, position: 'compiler engineer' });
  for (const [at, [step, status]] of WAY.slice(0, done).entries()) await manager.complete(id, step, { status: at === done - 1 && last ? last : status });
  return id;
}

/**
 * A manager with a shop. The workflow `orders` was changed once, and another is no longer in the files.
 * @param {{ items?: number, many?: number, odd?: boolean, more?: string[], settings?: Record<string, string>, prefix?: string }} [options]
 */
export async function shop({ items = 300, many = 1, odd = true, more = [], settings, prefix } = {}) {
  const files = await folder();
  const orders = join(files.path, 'orders.yaml');
  await copyFile(ORDERS_BEFORE, orders);
  const manager = await start({ workflows: [orders, APPLICATIONS, BOOKS, ...(odd ? [ODD] : []), ...more], settings, prefix });
  const before = await manager.create('orders', MESSAGE);
  await manager.create('nightly-report', {});
  await copyFile(ORDERS, orders);
  await manager.post('reload');
  const [now, then] = (await manager.get('definitions?workflow=orders')).definitions;

  for (let n = 0; n < 4 * many; n += 1) await completed(manager);
  for (const [n, name] of ['Grace Hopper', 'Edsger Dijkstra', 'Barbara Liskov', 'Kathleen Booth', 'Konrad Zuse', 'Jean Bartik'].entries()) await application(manager, name, n);
  await application(manager, 'Alan Turing', 6);
  for (let n = 0; n < 2 * many; n += 1) await failed(manager);
  const withdrawn = await application(manager, 'John Backus', 2);
  await manager.post(`job/${withdrawn}/cancel`);
  const retried = await standing(manager);
  await manager.fail(retried, 'invoice', 'timeout of the tax service after 30 s', true);
  await manager.tries(retried, 'invoice', 2);
  await manager.post(`job/${retried}/step/invoice?type=progress`, { progress: 0.4, message: 'asking for the rate of each line' });
  const paused = await standing(manager);
  await manager.post(`job/${paused}/pause`);
  const ids = {
    before,
    completed: await completed(manager),
    failed: await failed(manager),
    standing: retried,
    paused,
    cancelled: withdrawn,
    person: await application(manager, 'Ada Yonath', 3),
    declined: await application(manager, 'Charles Babbage', 4, 'FAILED'),
    large: await large(manager, items),
  };
  return { ...manager, ids, hashes: { now: now.hash, then: then.hash }, stop: async () => { await manager.stop(); await files.remove(); } };
}

/** @typedef {Awaited<ReturnType<typeof shop>>} Shop */
