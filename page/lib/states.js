// States of jobs and steps: a word, a sign and a colour. Never the colour alone.

import { html } from '../vendor/lit-html@3.3.3/lit-html.js';
import { icon } from './icons.js';
import { shown } from './text.js';

/** @import { Job } from './types.js' */

/** @typedef {'running' | 'paused' | 'completed' | 'failed' | 'cancelled'} JobState */
/** @typedef {'waiting' | 'running' | 'halted' | 'completed' | 'failed' | 'skipped' | 'cancelled'} StepState */
/** @typedef {{ icon: keyof typeof import('./icons.js').PATHS, means: string }} Look */

export const JOB = /** @satisfies {Record<JobState, Look>} */ ({
  running: { icon: 'running', means: 'steps are under way, or wait for something' },
  paused: { icon: 'paused', means: 'nothing new is dispatched until it is resumed' },
  completed: { icon: 'completed', means: 'all steps are done' },
  failed: { icon: 'failed', means: 'a step has failed for good' },
  cancelled: { icon: 'cancelled', means: 'it was ended by an operation' },
});

export const STEP = /** @satisfies {Record<StepState, Look>} */ ({
  waiting: { icon: 'waiting', means: 'something that it depends on is not done' },
  running: { icon: 'running', means: 'an attempt is under way, or the next one is due' },
  halted: { icon: 'paused', means: 'it was under way when its job ended: a retry goes on with it' },
  completed: { icon: 'completed', means: 'its output is there' },
  failed: { icon: 'failed', means: 'its attempts are spent' },
  skipped: { icon: 'skipped', means: 'its condition was false' },
  cancelled: { icon: 'cancelled', means: 'it is not needed any more' },
});

/** @type {readonly JobState[]} */
export const JOB_STATES = ['running', 'paused', 'failed', 'completed', 'cancelled'];
/** @type {readonly StepState[]} */
export const STEP_STATES = ['waiting', 'running', 'halted', 'completed', 'failed', 'skipped', 'cancelled'];

/** @param {string} state of a job */
export const isEnd = (state) => state === 'completed' || state === 'failed' || state === 'cancelled';

/**
 * A job as it is shown: what was under way when it ended runs no more, although a late reply is still taken.
 * @param {Job} job
 * @returns {Job}
 */
export function settled(job) {
  if (!isEnd(job.state)) return job;
  return { ...job, steps: job.steps.map((step) => (step.state === 'running' ? { ...step, state: 'halted' } : step)) };
}

/** @param {string | undefined} state */
export function look(state) {
  const all = /** @type {Record<string, Look | undefined>} */ ({ ...JOB, ...STEP });
  return (state !== undefined && Object.hasOwn(all, state) && all[state]) || { icon: /** @type {const} */ ('unknown'), means: 'this page does not know the state' };
}

/** @param {string | undefined} state a class name that is known to the style sheet */
export function tone(state) {
  return state !== undefined && (Object.hasOwn(JOB, state) || Object.hasOwn(STEP, state)) ? state : 'unknown';
}

/** @param {string | undefined} state */
export function sign(state) {
  return html`<span class="sign-of ${tone(state)}">${icon(look(state).icon)}</span>`;
}

/** @param {string | undefined} state */
export function badge(state) {
  return html`<span class="badge ${tone(state)}" title=${look(state).means}>${icon(look(state).icon)}<span>${shown(state ?? 'unknown')}</span></span>`;
}
