// The managers that share a database: which one is active, which stand by.

import { html, nothing } from '../vendor/lit-html@3.3.3/lit-html.js';
import { scrolls } from '../lib/dom.js';
import { count, shown } from '../lib/text.js';
import { moment } from '../lib/time.js';

/** @import { ActiveManager, Cluster } from '../lib/types.js' */

/**
 * The address of a manager comes from the database: only one that leads to a web page is a link.
 * @param {string | undefined} text
 */
export function webAddress(text) {
  try {
    const url = new URL(text ?? '');
    return url.protocol === 'http:' || url.protocol === 'https:' ? url.href : undefined;
  } catch {
    return undefined;
  }
}

/** @param {string | undefined} text */
function addressLink(text) {
  const url = webAddress(text);
  return url ? html`<a href=${url} rel="noreferrer">${shown(text ?? '')}</a>` : html`<span class="quiet">${text ? shown(text) : 'no address'}</span>`;
}

/** @param {ActiveManager} active */
export function activeLink(active) {
  return webAddress(active.address) ? addressLink(active.address) : html`manager <code>${shown(active.manager)}</code>`;
}

const TONES = /** @type {Record<string, string>} */ ({ active: 'completed-text', dead: 'failed-text' });

/** @param {Cluster} cluster */
export function clusterPanel(cluster) {
  const { name, role, names, managers, problem } = cluster;
  return html`<section class="panel" aria-label="Cluster"><div class="panel-title wraps"><h2>Cluster</h2><span class="quiet small">this one ${role === 'active' ? 'is active' : 'stands by'} under the name ${shown(name)}</span></div>
    ${problem ? html`<p class="calm">${shown(problem)}</p>` : nothing}
    ${managers.length ? html`<div class="table-wrap" ${scrolls()}><table class="cluster-table stacked"><thead><tr><th>Name</th><th>State</th><th>Address</th><th>Version</th><th>Beat</th><th>Epoch</th><th>Active since</th><th>Manager</th></tr></thead><tbody>${managers.map((one) => {
      const owned = names.find(({ active }) => active?.manager === one.id);
      return html`<tr><td data-label="name"><b>${shown(one.name)}</b></td><td data-label="state"><span class=${TONES[one.state] ?? ''}>${shown(one.state)}</span></td><td data-label="address">${addressLink(one.address)}</td><td data-label="version">${shown(one.version)}</td><td data-label="beat">${count(one.seenAgo)} s ago</td><td data-label="epoch">${owned ? count(owned.epoch) : html`<span class="quiet">–</span>`}</td><td data-label="active since">${owned?.active ? moment(owned.active.since) : html`<span class="quiet">–</span>`}</td><td class="quiet" data-label="manager"><code>${shown(one.id)}</code></td></tr>`;
    })}</tbody></table></div>` : nothing}
    ${names.filter(({ active }) => !active).map((one) => html`<p class="calm">Nobody is active under the name <b>${shown(one.name)}</b>.</p>`)}
  </section>`;
}
