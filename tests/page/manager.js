// Starts a real manager, with the embedded bus and a journal of its own in a temporary folder.

import { spawn } from 'node:child_process';
import { existsSync } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { serve } from './serve.js';

const here = (/** @type {string} */ path) => fileURLToPath(new URL(path, import.meta.url));

export const PROGRAM = process.env.WORKFLOW_MANAGER ?? here('../../target/debug/workflow-manager');
export const EXAMPLE = join(dirname(PROGRAM), 'examples/word-counts');
export const APPLICATIONS = here('../../examples/job-application/workflow.yaml');
export const BOOKS = here('../../examples/word-counts/workflow.yaml');
export const ORDERS = here('workflows/orders.yaml');
export const ORDERS_BEFORE = here('workflows/orders-before.yaml');
export const ODD = here('workflows/odd.yaml');
export const LIMITED = here('workflows/limited.yaml');
export const SCHEDULED = here('workflows/scheduled.yaml');
export const LABELLED = here('workflows/labelled.yaml');
export const FAILING = here('workflows/failing.yaml');
export const TOLERANT = here('workflows/tolerant.yaml');
/** It calls a web service that is not there. */
export const CALLING = here('workflows/calling.yaml');
const START_MS_MOST = 300_000;

/**
 * Waits until `look` gives something.
 * @template T
 * @param {string} what
 * @param {() => T | undefined | false | Promise<T | undefined | false>} look
 * @param {number} [most] milliseconds
 * @returns {Promise<T>}
 */
export async function until(what, look, most = 30_000) {
  const end = performance.now() + most;
  for (;;) {
    const found = await look();
    if (found) return found;
    if (performance.now() > end) throw new Error(`it does not happen: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

/**
 * Does something with each of a list, a few at once.
 * @template T
 * @param {T[]} list
 * @param {(one: T) => Promise<unknown>} work
 */
export async function each(list, work) {
  const rest = list.values();
  await Promise.all(Array.from({ length: 16 }, async () => {
    for (const one of rest) await work(one);
  }));
}

/** A folder that is gone when the process is. */
export async function folder() {
  const path = await mkdtemp(join(tmpdir(), 'page-'));
  return { path, remove: () => rm(path, { recursive: true, force: true }) };
}

/**
 * Starts a program that logs where it listens, and waits until it does.
 * @param {string} program
 * @param {string[]} args
 * @param {NodeJS.ProcessEnv} env
 * @param {RegExp} listens its first group is the address
 */
export async function run(program, args, env, listens) {
  if (!existsSync(program)) throw new Error(`there is no ${program}: build it first, or name it in WORKFLOW_MANAGER`);
  const child = spawn(program, args, { stdio: ['ignore', 'pipe', 'pipe'], env: { ...process.env, ...env } });
  let said = '';
  const hear = (/** @type {Buffer} */ text) => { said += text; };
  child.stdout.on('data', hear);
  child.stderr.on('data', hear);
  const gone = new Promise((resolve) => child.once('exit', resolve));
  const end = () => child.kill('SIGKILL');
  process.once('exit', end);
  const address = await until(`${program} listens`, () => {
    if (child.exitCode !== null) throw new Error(`it has ended: ${said}`);
    return listens.exec(said)?.[1];
  }, START_MS_MOST).catch((error) => { end(); throw new Error(`${error.message}\n${said}`); });
  return {
    address,
    said: () => said,
    /** @param {NodeJS.Signals} [signal] */
    stop: async (signal = 'SIGTERM') => {
      child.kill(signal);
      await gone;
      process.off('exit', end);
      return child.exitCode;
    },
  };
}

/**
 * @param {{ workflows?: string[], settings?: Record<string, string>, broker?: string, journal?: string, listen?: string, prefix?: string, waits?: boolean, page?: number }} [options] `page`: the port of the page, where it is not the manager's own; `waits`: it stands by, and is never ready; `settings` as in the environment, without the name of the program
 */
export async function start({ workflows = [ORDERS, APPLICATIONS, ODD], settings = {}, broker = '', journal, listen = '0', prefix, waits = false, page } = {}) {
  const own = journal ? undefined : await folder();
  // A connection that the manager closes just as a call begins would fail that call.
  const env = Object.fromEntries(Object.entries({ HTTP__KEEP_ALIVE: '1h', ...settings }).map(([name, value]) => [`WORKFLOW_MANAGER__${name}`, value]));
  const daemon = await run(PROGRAM, ['serve', ...(workflows.length ? ['--workflows', ...workflows] : []), '--db', journal ?? join(own?.path ?? '', 'journal.db'), '--listen', listen], { ...env, AMQP_SERVER: broker }, waits ? /"message":"this manager stands by, and serves reads","address":"([^"]+)"/ : /"message":"listening","address":"([^"]+)"/);
  const api = `http://${daemon.address}`;
  const token = settings.HTTP__TOKEN;
  await until('the manager is ready', async () => (await fetch(`${api}/${waits ? 'livez' : 'readyz'}`)).ok);
  // The page as it is in the folder, or behind a proxy; else the one in the binary, with the manager's own headers.
  const site = prefix !== undefined || process.env.PAGE_FROM_FILES ? await serve({ to: api, prefix, port: page }) : undefined;

  /**
   * @param {string} method
   * @param {string} path
   * @param {unknown} [body] a text is sent as it is
   */
  const call = async (method, path, body) => {
    const response = await fetch(`${api}/api/${path}`, { method, body: body === undefined || typeof body === 'string' ? body : JSON.stringify(body), headers: token ? { Authorization: `Bearer ${token}` } : {} });
    const text = await response.text();
    if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${text}`);
    return text;
  };
  const get = async (/** @type {string} */ path) => JSON.parse(await call('GET', path));
  const post = async (/** @type {string} */ path, /** @type {unknown} */ body = '') => JSON.parse(await call('POST', path, body));
  const light = (/** @type {string} */ id) => get(`job/${id}?view=light`);
  return {
    api,
    url: site?.url ?? `${api}/`,
    said: daemon.said,
    get,
    post,
    text: (/** @type {string} */ path) => call('GET', path),
    light,
    /** @param {string} workflow @param {unknown} message @returns {Promise<string>} */
    create: async (workflow, message) => (await post(`workflow/${workflow}`, message)).id,
    /** @param {string} id @param {string} step */
    step: async (id, step) => (await light(id)).steps.find((/** @type {any} */ one) => one.name === step),
    /** In a worker's place. @param {string} id @param {string} step @param {unknown} [output] */
    complete: (id, step, output = {}) => post(`job/${id}/step/${step}`, output),
    /** @param {string} id @param {string} step @param {string} error @param {boolean} [retryable] */
    fail: (id, step, error, retryable = false) => post(`job/${id}/step/${step}?type=error`, { error, retryable }),
    /** All of them, as soon as they are there. @param {string} id @param {string} step @returns {Promise<any[]>} */
    children: (id, step) => until(`child jobs of step ${step}`, async () => {
      const { items } = await get(`job/${id}/step/${step}/items`);
      const { children } = await get(`job/${id}/children?step=${step}&limit=10000`);
      return children.length >= Math.min(items, 10_000) && children;
    }),
    /** @param {string} id @param {string} step @param {string} state */
    reaches: (id, step, state) => until(`step ${step} is ${state}`, async () => (await light(id)).steps.some((/** @type {any} */ one) => one.name === step && one.state === state)),
    /** The next attempt is under way, after a pause. @param {string} id @param {string} step @param {number} attempt */
    tries: (id, step, attempt) => until(`attempt ${attempt} of step ${step} is under way`, async () => (await light(id)).steps.some((/** @type {any} */ one) => one.name === step && one.attempt === attempt && !one.retryAt)),
    /** @param {string} id @param {string} state */
    ends: (id, state) => until(`job ${id} is ${state}`, async () => (await light(id)).state === state),
    stop: async () => {
      await site?.close();
      await daemon.stop();
      await own?.remove();
    },
  };
}

/** @typedef {Awaited<ReturnType<typeof start>>} Manager */
