/**
 * A worker of workflow-manager is a function and one line:
 *
 * ```js
 * import { run } from 'jsworker';
 *
 * run('split', async (message) => ({ filename: message.filename, sections: [] }));
 * ```
 *
 * @packageDocumentation
 */

export { run, type RunOptions } from './command.js';
export { QueueListener as default, type MessageHandler } from './listener.js';
export type { Log } from './log.js';
export { Failed, RawJson, Retryable, type Handler, type Output, type ProgressWords, type Step } from './step.js';
export { Worker, type Handlers, type WorkerOptions } from './worker.js';
