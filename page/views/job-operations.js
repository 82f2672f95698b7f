// What can be done to a job and its steps. What destroys something asks first, and says what it will do.

import { html, nothing } from '../vendor/lit-html@3.3.3/lit-html.js';
import { act, command, curl } from '../lib/api.js';
import { closeDialog, copied, messageOf, openDialog, tell } from '../lib/app.js';
import { after } from '../lib/graph.js';
import { icon } from '../lib/icons.js';
import { redraw } from '../lib/redraw.js';
import { counted, plain, shortId, shown } from '../lib/text.js';

/** @import { Definition, Job, Queue, Step, StepDefinition } from '../lib/types.js' */
/** @import { TemplateResult } from '../vendor/lit-html@3.3.3/lit-html.js' */

/**
 * @typedef {object} Operation
 * @property {string} name
 * @property {string} label
 * @property {keyof typeof import('../lib/icons.js').PATHS} icon
 * @property {(job: Job) => boolean} possible
 * @property {boolean} [child] whether it can be done to a child job
 * @property {string} says what it does
 * @property {boolean} [asks]
 */

/** @type {Operation[]} */
export const OPERATIONS = [
  { name: 'pause', label: 'Pause', icon: 'paused', possible: (job) => job.state === 'running', says: 'Nothing new is dispatched; replies are taken. Timeouts and the deadline go on.' },
  { name: 'resume', label: 'Resume', icon: 'play', possible: (job) => job.state === 'paused', says: 'The job goes on.' },
  { name: 'retry', label: 'Retry', icon: 'retry', possible: (job) => job.state === 'failed', says: 'It goes on from what failed; everything complete is kept. Attempts and the deadline begin anew.' },
  { name: 'cancel', label: 'Cancel', icon: 'cancelled', possible: (job) => job.state === 'running' || job.state === 'paused', child: true, says: 'The job and its child jobs end now. Later replies are ignored. This cannot be taken back; single steps can be run once more afterwards.', asks: true },
];

/**
 * Asks the manager, tells that it is done, and calls `done`. What the manager refuses is thrown.
 * @param {string} said
 * @param {() => Promise<unknown>} call
 * @param {() => void} done
 */
async function carryOut(said, call, done) {
  await call();
  tell(said);
  done();
}

/**
 * What an operation is for: the record keeps it.
 * @param {(reason: string) => void} take
 * @param {string} [value] what was said, where the field may go and come again
 */
export function whyField(take, value = '') {
  return html`<label class="label" for="ask-why">Why <span class="quiet">(the record keeps it; may be left empty)</span></label><input id="ask-why" class="field" maxlength="200" autocomplete="off" .value=${value} @input=${(/** @type {InputEvent} */ event) => take(/** @type {HTMLInputElement} */ (event.target).value)}>`;
}

/**
 * The output of a step by hand, as it is proposed.
 * @param {{ statusKey?: string } | undefined} step
 * @param {string} word its status
 */
export function outputOf(step, word) {
  return step?.statusKey ? `{\n  ${JSON.stringify(step.statusKey)}: ${JSON.stringify(word)}\n}` : '{}';
}

/**
 * Whether a status is to be chosen yet. What is no JSON object is for the manager to refuse.
 * @param {{ statusKey?: string, statuses?: string[] } | undefined} step
 * @param {string} output
 */
export function lacksStatus(step, output) {
  const { statusKey, statuses = [] } = step ?? {};
  if (!statusKey || !statuses.length) return false;
  try {
    const object = JSON.parse(output);
    return object !== null && typeof object === 'object' && !Array.isArray(object) && (!Object.hasOwn(object, statusKey) || object[statusKey] === '');
  } catch {
    return false;
  }
}

/**
 * The words that the status of a step may become, and below them that one is to be chosen.
 * @param {{ statusKey?: string } | undefined} step
 * @param {string[]} words
 * @param {string} output as it is now
 * @param {boolean} missing
 * @param {(output: string) => void} take
 */
export function statusChoices(step, words, output, missing, take) {
  return html`${step?.statusKey && words.length ? html`<div class="choices" role="group" aria-label="Status" aria-describedby=${missing ? 'missing-status' : nothing}>${words.map((word) => html`<button type="button" class="chip" aria-pressed=${output === outputOf(step, word) ? 'true' : 'false'} @click=${() => { take(outputOf(step, word)); redraw(); }}>${shown(word)}</button>`)}</div>` : nothing}
    ${missing ? html`<p class="problem" id="missing-status" role="alert">${icon('alert')}<span>Choose a status first: <code>${shown(step?.statusKey)}</code> is empty.</span></p>` : nothing}`;
}

/**
 * A question before something is done. With `why` one can say what it is for; `run` is given that, and the record keeps it.
 * @param {{ title: string, text: TemplateResult | string, button: string, danger?: boolean, why?: boolean, shell: string[], run: (reason: string | undefined) => Promise<void> }} of
 */
export function ask({ title, text, button, danger = false, why = false, shell, run }) {
  let busy = false;
  let reason = '';
  let problem = '';
  openDialog({
    title,
    body: () => html`<div class="dialog-text">${text}</div>
      ${why ? html`<div class="dialog-form ask-why">${whyField((text) => { reason = text; })}</div>` : nothing}
      ${problem ? html`<p class="problem" role="alert">${icon('alert')}<span>${shown(problem)}</span></p>` : nothing}
      <details class="as-command"><summary>The same for a shell</summary>${shell.map((line) => html`<div class="command"><code>${shown(line)}</code><button class="tool" aria-label="Copy" @click=${() => copied(line, 'Command')}>${icon('copy')}</button></div>`)}</details>
      <footer class="dialog-foot"><button class="button" @click=${closeDialog}>No, leave it</button><button class="button ${danger ? 'danger' : 'primary'}" ?disabled=${busy} @click=${async () => {
        busy = true;
        problem = '';
        redraw();
        try {
          await run(reason.trim() || undefined);
          closeDialog();
        } catch (error) {
          problem = messageOf(error);
        }
        busy = false;
        redraw();
      }}>${button}</button></footer>`,
  });
}

/**
 * @param {Job} job
 * @param {Operation} operation
 * @param {() => void} done
 */
export function operate(job, operation, done) {
  const { name, label } = operation;
  const id = job.uuid;
  const called = plain(job.label ?? shortId(id));
  const call = (/** @type {string | undefined} */ reason) => act('POST', ['job', id, name], { reason });
  const word = { pause: 'paused', resume: 'resumed', retry: 'retried', cancel: 'cancelled' }[name] ?? name;
  if (!operation.asks) {
    carryOut(`Job ${called} is ${word}`, () => call(undefined), done).catch((error) => tell(messageOf(error), 'problem'));
    return;
  }
  const running = job.steps.filter((step) => step.state === 'running');
  const children = job.steps.reduce((sum, step) => sum + (step.state === 'running' && step.children ? (step.children.items ?? 0) - step.children.ended : 0), 0);
  ask({
    title: `${label} job ${called}?`,
    text: html`<p>${operation.says}</p><ul class="facts-list"><li>${counted(running.length, 'step')} under way: ${running.length ? running.slice(0, 8).map((step, index) => html`${index ? ', ' : ''}<b>${shown(step.name)}</b>`) : 'none'}${running.length > 8 ? ' …' : ''}</li>${children ? html`<li>${counted(children, 'child job')} not ended yet</li>` : nothing}</ul>`,
    button: `${label} it`,
    danger: true,
    shell: [command(name, id), curl('POST', ['job', id, name])],
    why: true,
    run: (reason) => carryOut(`Job ${called} is ${word}`, () => call(reason), done),
  });
}

/**
 * @param {Job} job
 * @param {() => void} done
 */
export function erase(job, done) {
  const id = job.uuid;
  const called = plain(job.label ?? shortId(id));
  ask({
    title: `Erase job ${called}?`,
    text: html`<p>The job, its record, its payloads and all its child jobs are erased from the journal. This cannot be taken back.</p>`,
    button: 'Erase it for good',
    danger: true,
    shell: [command('delete', id), curl('DELETE', ['job', id], { erase: true })],
    run: () => carryOut(`Job ${called} is erased`, () => act('DELETE', ['job', id], { erase: true }), done),
  });
}

/**
 * @param {Job} job
 * @param {StepDefinition[] | undefined} steps
 * @param {string} step
 * @param {() => void} done
 */
export function rerun(job, steps, step, done) {
  const id = job.uuid;
  const again = steps ? after(steps, step) : undefined;
  ask({
    title: `Run ${step} once more?`,
    text: html`<p>The step and all that depends on it are run again; their outputs are replaced, and child jobs of theirs are new ones. Everything else is kept.</p>${again ? html`<p>${counted(again.length, 'step')} will be done again:</p><ol class="facts-list">${again.slice(0, 30).map((name) => html`<li><b>${shown(name)}</b> <span class="quiet">${shown(job.steps.find((other) => other.name === name)?.state ?? '')} now</span></li>`)}${again.length > 30 ? html`<li>… ${again.length - 30} more</li>` : nothing}</ol>` : nothing}`,
    button: again ? `Run ${counted(again.length, 'step')} again` : 'Run it again',
    danger: true,
    shell: [command('rerun', id, '--step', step), curl('POST', ['job', id, 'rerun'], { step })],
    why: true,
    run: (reason) => carryOut(`Step ${step} is run again`, () => act('POST', ['job', id, 'rerun'], { step, reason }), done),
  });
}

/**
 * @param {Job} job
 * @param {StepDefinition[] | undefined} steps
 * @param {string} step
 * @param {number} failed how many of its items
 * @param {() => void} done
 */
export function rerunItems(job, steps, step, failed, done) {
  const id = job.uuid;
  const items = counted(failed, 'failed item');
  const dependents = steps ? after(steps, step).filter((name) => name !== step) : [];
  ask({
    title: `Run the ${items} of ${step} again?`,
    text: html`<p>The child jobs of these items go on from what failed; what the other items gave is kept. Then the list is gathered anew, and all that depends on the step is run again.</p>${dependents.length ? html`<p>${counted(dependents.length, 'step')} will be done again:</p><ol class="facts-list">${dependents.slice(0, 30).map((name) => html`<li><b>${shown(name)}</b></li>`)}${dependents.length > 30 ? html`<li>… ${dependents.length - 30} more</li>` : nothing}</ol>` : nothing}`,
    button: `Run ${items} again`,
    danger: true,
    shell: [command('rerun', id, '--step', step, '--items', 'failed'), curl('POST', ['job', id, 'rerun'], { step, items: 'failed' })],
    why: true,
    run: (reason) => carryOut(`${items} of ${step} run again`, () => act('POST', ['job', id, 'rerun'], { step, items: 'failed', reason }), done),
  });
}

/**
 * @param {Job} job
 * @param {Step} step
 * @param {() => void} done
 */
export function redispatch(job, step, done) {
  const path = ['job', job.uuid, 'step', step.name, 'redispatch'];
  ask({
    title: `Send the message of ${step.name} once more?`,
    text: html`<p>For a message that was lost: purged, rejected, or gone with its queue. It is the same attempt, and its timeout goes on. If the message was not lost, its worker gets it twice; the first reply counts.</p>`,
    button: 'Send it again',
    shell: [command('redispatch', job.uuid, step.name), curl('POST', path)],
    why: true,
    run: (reason) => carryOut(`The message of ${step.name} was sent again`, () => act('POST', path, { reason }), done),
  });
}

/**
 * For messages that were lost with their queue. The manager says first how many steps wait on it.
 * @param {Queue} queue
 */
export async function redispatchQueue({ queue, vhost, bus }) {
  const path = ['queue', queue, 'redispatch'];
  try {
    /** @type {{ steps: number, jobs: number }} */
    const dry = await act('POST', path, { bus, vhost, dryRun: true });
    ask({
      title: `Send messages again on ${queue}?`,
      text: html`<p>${dry.steps ? html`<b>${counted(dry.steps, 'step')}</b> of ${counted(dry.jobs, 'job')} ${dry.steps === 1 ? 'waits' : 'wait'} on this queue; the message of each is sent once more, as the same attempt. Where it was not lost, a worker gets it twice; the first reply counts.` : 'No step waits on this queue.'}</p>`,
      button: dry.steps ? `Send ${counted(dry.steps, 'message')}` : 'Send nothing',
      shell: [command('redispatch', '--queue', queue, ...(bus ? ['--bus', bus] : []), ...(vhost ? ['--vhost', vhost] : [])), curl('POST', path, { bus, vhost })],
      run: () => carryOut(`Messages on ${queue} were sent again`, () => act('POST', path, { bus, vhost }), () => {}),
    });
  } catch (error) {
    tell(messageOf(error), 'problem');
  }
}

/**
 * Completes or fails a step in its worker's place.
 * @param {Job} job
 * @param {Step} step
 * @param {StepDefinition | undefined} defined
 * @param {'result' | 'error'} type
 * @param {() => void} done
 */
export function byHand(job, step, defined, type, done) {
  const words = defined?.statuses ?? [];
  let text = type === 'error' ? '' : outputOf(defined, '');
  let retryable = false;
  let reason = '';
  let refused = '';
  let busy = false;
  /** It was to be completed without a status. */
  let asked = false;
  const path = ['job', job.uuid, 'step', step.name];
  const send = async () => {
    asked = type === 'result' && lacksStatus(defined, text);
    if (asked) {
      redraw();
      /** @type {HTMLElement | null} */ (document.querySelector('.by-hand .choices button'))?.focus();
      return;
    }
    busy = true;
    refused = '';
    redraw();
    try {
      const body = type === 'error' ? JSON.stringify({ error: text, retryable }) : text;
      await act('POST', path, { type, reason: reason.trim() || undefined }, body);
      tell(type === 'error' ? `Step ${step.name} was failed by hand` : `Step ${step.name} was completed by hand`);
      closeDialog();
      done();
    } catch (error) {
      refused = messageOf(error);
    }
    busy = false;
    redraw();
  };
  openDialog({
    title: type === 'error' ? `Fail ${step.name} by hand` : `Complete ${step.name} by hand`,
    body: () => html`<form class="dialog-form by-hand" @submit=${(/** @type {Event} */ event) => { event.preventDefault(); void send(); }}>
      <p class="quiet">${type === 'error' ? 'The attempt fails by hand. The reason is kept in the record, and who gave it.' : 'As if its worker had replied: the text becomes the output, exactly as it stands here. A later reply of a worker changes nothing.'}</p>
      ${type === 'result' ? statusChoices(defined, words, text, asked && lacksStatus(defined, text), (output) => { text = output; }) : nothing}
      <label class="label" for="by-hand">${type === 'error' ? 'Reason' : 'Output, a JSON object'}</label>
      <textarea id="by-hand" class="field code-field" rows=${type === 'error' ? 3 : 9} spellcheck="false" required .value=${text} @input=${(/** @type {InputEvent} */ event) => { text = /** @type {HTMLTextAreaElement} */ (event.target).value; redraw(); }}></textarea>
      ${type === 'error' ? html`<label class="check"><input type="checkbox" .checked=${retryable} @change=${(/** @type {Event} */ event) => { retryable = /** @type {HTMLInputElement} */ (event.target).checked; }}> It may be tried again, if attempts are left</label>` : nothing}
      ${whyField((text) => { reason = text; })}
      ${refused ? html`<p class="problem" role="alert">${icon('alert')}<span>${shown(refused)}</span></p>` : nothing}
      <footer class="dialog-foot"><button type="button" class="button" @click=${closeDialog}>No, leave it</button><button class="button ${type === 'error' ? 'danger' : 'primary'}" ?disabled=${busy}>${type === 'error' ? 'Fail it' : 'Complete it'}</button></footer>
    </form>`,
  });
}

/**
 * @param {Job} job
 * @param {Definition | undefined} definition
 */
export function stepsOf(job, definition) {
  if (!definition) return undefined;
  if (!job.task) return definition.steps;
  return definition.tasks?.find((task) => task.name === job.task)?.steps;
}
