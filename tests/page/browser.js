// The browser of a test file. It fails what a reader would not see: errors in the console, what the content security policy stopped,
// and requests to another origin.

import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { chromium } from 'playwright-core';
import { until } from './manager.js';

/** @import { Browser, BrowserContextOptions, Page } from 'playwright-core' */

const AXE = await readFile(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
/** How long a condition may take on a loaded machine. Budgets are looked at apart. */
const PATIENCE_MS = 60_000;

export async function open() {
  return chromium.launch({ executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium', args: ['--no-sandbox', '--disable-dev-shm-usage', '--disable-gpu', '--font-render-hinting=none'] });
}

/**
 * @param {Browser} browser
 * @param {BrowserContextOptions & { expected?: RegExp }} [options] `expected`: messages that belong to the test
 */
export async function newPage(browser, { expected, ...options } = {}) {
  const context = await browser.newContext({ viewport: { width: 1440, height: 900 }, timezoneId: 'Europe/Berlin', locale: 'en-GB', reducedMotion: 'reduce', ...options });
  context.setDefaultTimeout(PATIENCE_MS);
  const page = await context.newPage();
  /** @type {string[]} */
  const faults = [];
  /** @type {Set<string>} */
  const origins = new Set();
  /** What was asked, the newest last. @type {string[]} */
  const asked = [];
  /** @type {Set<unknown>} */
  const open = new Set();
  page.on('console', (message) => {
    const text = `${message.text()} ${message.location().url.replace(/^https?:..[^/]*/, '').replaceAll(/[0-9a-f-]{32,}/g, '…')}`;
    if (['error', 'warning'].includes(message.type()) && !expected?.test(text)) faults.push(`console: ${text}`);
  });
  page.on('pageerror', (error) => faults.push(`error: ${error.stack ?? error.message}`));
  page.on('request', (request) => {
    const url = new URL(request.url());
    if (url.protocol !== 'blob:') origins.add(url.origin);
    asked.push(`${request.method()} ${url.pathname}${url.search}`);
    if (!url.pathname.endsWith('/events')) open.add(request);
  });
  page.on('requestfinished', (request) => open.delete(request));
  page.on('requestfailed', (request) => open.delete(request));
  page.on('dialog', (dialog) => {
    faults.push(`dialog: ${dialog.message()}`);
    void dialog.dismiss();
  });
  await page.addInitScript(() => {
    document.addEventListener('securitypolicyviolation', (event) => console.error(`blocked: ${event.violatedDirective} ${event.blockedURI} ${event.sourceFile}:${event.lineNumber}`));
  });
  /** Until nothing is under way and all of it is drawn. */
  const settled = () => until('the page comes to rest', async () => {
    const before = asked.length;
    await page.evaluate(() => new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve))));
    return open.size === 0 && asked.length === before;
  }, PATIENCE_MS);
  return { page, context, faults, origins, asked, settled };
}

/** @typedef {{ page: Page, go: (hash: string) => Promise<void>, settled: () => Promise<unknown>, asked: string[], becomes: (word: string) => Promise<unknown> }} On */

/**
 * A page on a manager. At the end nothing may have gone wrong that nobody saw.
 * @param {Browser} browser
 * @param {{ url: string }} manager
 * @param {(on: On) => Promise<void>} run
 * @param {BrowserContextOptions & { expected?: RegExp }} [options]
 */
export async function on(browser, manager, run, options) {
  const { page, context, faults, origins, asked, settled } = await newPage(browser, options);
  try {
    const go = async (/** @type {string} */ hash) => {
      await page.goto(`${manager.url}${hash}`);
      await page.waitForSelector('main > *');
      await settled();
    };
    const becomes = (/** @type {string} */ word) => page.waitForFunction((expected) => document.querySelector('.job-title .badge')?.textContent?.trim() === expected, word);
    await run({ page, go, settled, asked, becomes });
    assert.deepEqual([...new Set(faults)], []);
    assert.deepEqual([...origins], [new URL(manager.url).origin], 'a request has left the origin');
  } finally {
    await context.close();
  }
}

/**
 * What axe finds in the page, or in a part of it.
 * @param {Page} page
 * @param {string} [part]
 * @returns {Promise<string[]>}
 */
export async function axe(page, part) {
  if (!(await page.evaluate(() => 'axe' in globalThis))) await page.evaluate(AXE);
  const { violations } = await page.evaluate((selector) => /** @type {any} */ (globalThis).axe.run((selector && document.querySelector(selector)) || document, { resultTypes: ['violations'] }), part);
  return violations.map((/** @type {any} */ one) => `${one.id}: ${one.nodes.map((/** @type {any} */ node) => `${node.target} ${node.any?.[0]?.message ?? node.failureSummary ?? ''}`).slice(0, 4).join(' | ')}`);
}

/**
 * Milliseconds, by the page's own clock, from the moment its address changes until `there` is true; the best of three tries, each on a
 * page that was loaded anew, so that a slow moment of the machine is not what is measured.
 * @param {On} on
 * @param {string} from
 * @param {string} hash
 * @param {() => boolean} there it may use nothing from outside
 * @param {number} budget
 */
export async function quickest({ page, go }, from, hash, there, budget) {
  let best = Infinity;
  for (let tries = 0; tries < 3 && best > budget; tries += 1) {
    await go(from);
    await page.reload();
    await go(from);
    const look = await page.evaluateHandle(`(${there})`);
    const took = await look.evaluate((look, hash) => new Promise((resolve) => {
      const begun = performance.now();
      location.hash = hash;
      const again = () => (/** @type {any} */ (look)() ? resolve(performance.now() - begun) : requestAnimationFrame(again));
      again();
    }), hash);
    best = Math.min(best, /** @type {number} */ (took));
  }
  return best;
}
