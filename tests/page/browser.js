// One browser for a test file. It fails what a reader would not see: errors in the console, and what the content security policy stopped.

import { chromium } from 'playwright-core';

export async function open() {
  const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium', args: ['--no-sandbox', '--disable-dev-shm-usage', '--disable-gpu', '--font-render-hinting=none'] });
  return browser;
}

/**
 * @param {import('playwright-core').Browser} browser
 * @param {import('playwright-core').BrowserContextOptions & { expected?: RegExp }} [options] `expected`: messages that belong to the test
 */
export async function newPage(browser, { expected, ...options } = {}) {
  const context = await browser.newContext({ viewport: { width: 1440, height: 900 }, timezoneId: 'Europe/Berlin', locale: 'en-GB', reducedMotion: 'reduce', ...options });
  const page = await context.newPage();
  /** @type {string[]} */
  const faults = [];
  /** @type {Set<string>} */
  const origins = new Set();
  page.on('console', (message) => {
    if ((message.type() === 'error' || message.type() === 'warning') && !expected?.test(message.text())) faults.push(`console: ${message.text()}`);
  });
  page.on('pageerror', (error) => faults.push(`error: ${error.stack ?? error.message}`));
  page.on('request', (request) => origins.add(new URL(request.url()).origin));
  page.on('dialog', (dialog) => {
    faults.push(`dialog: ${dialog.message()}`);
    void dialog.dismiss();
  });
  await page.addInitScript(() => {
    document.addEventListener('securitypolicyviolation', (event) => console.error(`blocked: ${event.violatedDirective} ${event.blockedURI} ${event.sourceFile}:${event.lineNumber}`));
  });
  return { page, context, faults, origins };
}
