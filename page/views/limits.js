// The limits of rate and concurrency, on the overview: what each allows, who holds its places, and who waits.

import { html, nothing } from '../vendor/lit-html@3.3.3/lit-html.js';
import { refusal } from '../lib/app.js';
import { icon } from '../lib/icons.js';
import { link } from '../lib/route.js';
import { may } from '../lib/shared.js';
import { count, plain, shown } from '../lib/text.js';
import { millis, span } from '../lib/time.js';
import { allowed, controlNotes, openChange, pauseCommands, pauseSign } from './pauses.js';

/** @import { Source } from '../lib/source.js' */

/**
 * @typedef {{ key?: string, held: number, waiting: number, next?: string }} LimitKey
 *
 * @typedef {{ limit: string, vhost?: string, rate?: string, burst?: number, concurrency?: number, key?: string, fair?: string, inFile?: import('./pauses.js').Allowed, paused?: boolean, held: number, waiting: number, keys: LimitKey[], usedBy?: string[], noLongerInFiles?: boolean }} Limit
 */

/** So many keys of a limit are shown; those with the most waiting steps come first. */
const KEYS = 5;

/**
 * The panel of all limits; nothing where there is none, or where the manager does not tell of them.
 * @param {Source<{ limits: Limit[] }>} source
 */
export function limitPanel(source) {
  const limits = source.data?.limits ?? [];
  if (!limits.length) return source.error && !source.error.notHere && !source.data ? refusal(source.problem) : nothing;
  return html`<section class="panel" aria-label="Limits"><div class="panel-title"><h2>Limits</h2></div>
    <div class="table-wrap"><table class="limit-table stacked"><thead><tr><th>Limit</th><th>Allows</th><th>Key</th><th class="number">Held</th><th class="number">Waiting</th><th class="number">Next in</th><th>Used by</th><th><span class="sr">Operations</span></th></tr></thead><tbody>${limits.map((limit) => [row(source, limit, undefined), ...(limit.key === undefined ? [] : limit.keys.slice(0, KEYS).map((key) => row(source, limit, key)))])}</tbody></table></div>
  </section>`;
}

/** @param {Limit} limit @returns {import('./pauses.js').Subject} */
const subjectOf = ({ limit, vhost }) => ({ kind: 'limit', name: limit, vhost });

/**
 * What the palette offers.
 * @param {Source<{ limits: Limit[] }>} source
 */
export function limitCommands(source) {
  const again = () => void source.refresh();
  return !may() ? [] : (source.data?.limits ?? []).flatMap((limit) => [...pauseCommands(subjectOf(limit), again), { name: `Change limit ${limit.vhost ? `${limit.vhost}/` : ''}${limit.limit}`, run: () => openChange(subjectOf(limit), limit, again) }]);
}

/**
 * The row of a limit, all keys together, or of one of its keys.
 * @param {Source<{ limits: Limit[] }>} source
 * @param {Limit} limit
 * @param {LimitKey | undefined} key
 */
function row(source, limit, key) {
  const again = () => void source.refresh();
  const label = plain(`Change limit ${limit.limit}…`);
  const only = limit.key === undefined ? limit.keys[0] : undefined;
  const { held, waiting } = key ?? limit;
  return html`<tr class=${key ? 'limit-key' : ''}>
    <td>${key ? nothing : html`<b>${shown(limit.vhost ? `${limit.vhost}/${limit.limit}` : limit.limit)}</b>${limit.paused ? html` <span class="word">paused</span>` : nothing}${limit.noLongerInFiles ? html` <span class="quiet" title="Jobs that began before a reload use it">no longer in the files</span>` : nothing}${controlNotes(subjectOf(limit), again)}`}</td>
    <td data-label=${key ? nothing : 'allows'}>${key ? nothing : allows(limit)}</td>
    <td data-label="key">${key ? html`<code>${shown(key.key ?? '')}</code>` : limit.key === undefined ? html`<span class="quiet">–</span>` : html`<span class="quiet">all of ${shown(limit.key)}</span>`}</td>
    <td class="number" data-label="held">${count(held)}</td>
    <td class="number" data-label="waiting">${count(waiting)}</td>
    <td class="number" data-label="next in">${next((key ?? only)?.next)}</td>
    <td data-label=${key ? nothing : 'used by'}>${key ? nothing : (limit.usedBy ?? []).map((name, index) => html`${index ? ', ' : nothing}<a href=${link(['definitions', ...name.split('/')])}>${shown(name)}</a>`)}</td>
    <td class="queue-do">${key || !may() ? nothing : html`<button class="mini" aria-label=${label} title=${label} @click=${() => openChange(subjectOf(limit), limit, again)}>${icon('change')}</button>${pauseSign(subjectOf(limit), again)}`}</td>
  </tr>`;
}

/** @param {Limit} limit */
function allows(limit) {
  const { fair, inFile } = limit;
  return html`${shown([allowed(limit), fair && `in turn by ${fair}`].filter(Boolean).join('; '))}${inFile ? html` <span class="quiet">its file: ${shown(allowed(inFile))}</span>` : nothing}`;
}

/** @param {string | undefined} time */
function next(time) {
  const ms = time === undefined ? 0 : millis(time) - Date.now();
  return ms > 0 ? span(ms) : html`<span class="quiet">–</span>`;
}
