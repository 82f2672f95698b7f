// What is loaded: each workflow's graph and steps, its older versions, and what is different between two.

import { html, nothing } from '../vendor/lit-html@3.3.3/lit-html.js';
import { live } from '../vendor/lit-html@3.3.3/directives/live.js';
import { get } from '../lib/api.js';
import { refusal, setQuery } from '../lib/app.js';
import { scrolls } from '../lib/dom.js';
import { compare } from '../lib/graph.js';
import { icon } from '../lib/icons.js';
import { redraw } from '../lib/redraw.js';
import { changed, link } from '../lib/route.js';
import { fullName, may, parted, workflows } from '../lib/shared.js';
import { Source } from '../lib/source.js';
import { count, counted, plain, shown } from '../lib/text.js';
import { duration, moment } from '../lib/time.js';
import { Checker } from './check.js';
import { openCreate } from './create.js';
import { DefinitionParts } from './definition-parts.js';
import { definitionOf } from './job.js';
import { pauseButton, pauseCommands } from './pauses.js';
import { Payload } from './payload.js';
import { Trends } from './trends.js';

/** @import { Definition, FoundPage, Job, Version } from '../lib/types.js' */
/** @import { Route } from '../lib/route.js' */
/** @import { View } from '../lib/app.js' */

/**
 * @param {Route} route
 * @returns {View}
 */
export function definitionsView(route) {
  return route.path.length > 1 ? new Definitions(route) : chooser(route);
}

/**
 * @param {Route} first
 * @returns {View}
 */
function chooser(first) {
  const checker = new Checker();
  let route = first;
  return {
    page: 'definitions',
    title: () => 'Definitions',
    ready: () => workflows.data !== undefined || workflows.error !== undefined,
    update(next) {
      route = next;
      redraw();
    },
    stop: () => checker.stop(),
    template: () => html`<div class="definitions"><header class="page-head"><h1>Definitions</h1><span class="space"></span><button class="button small" @click=${() => document.getElementById('check-text')?.focus()}>Check a file</button></header>${refusal(workflows.problem)}${workflows.told && !workflows.data?.length ? html`<p class="calm">No workflow is loaded.</p>` : nothing}<ul class="cards">${(workflows.data ?? []).map((workflow) => html`<li><a class="panel card" href=${link(['definitions', ...fullName(workflow).split('/')])}><b>${shown(fullName(workflow))}</b><span class="quiet">${workflow.loaded === false ? 'no longer in the files' : workflow.definition ? html`<code>${shown(workflow.definition.slice(0, 12))}</code>` : 'loaded'}</span></a></li>`)}</ul>${checker.template(route)}</div>`,
  };
}

class Definitions {
  page = 'definitions';
  #route;
  #workflow;
  /** @type {Source<{ definitions: Version[] }>} */
  #versions;
  /** @type {Definition | undefined} */
  #shown;
  /** @type {Definition | undefined} */
  #with;
  #problem = '';
  #parts = new DefinitionParts();
  #asked = '';
  #trends;
  /** @type {Promise<string | undefined> | undefined} */
  #guess;
  #guessed = false;
  /** @type {{ hash: string, payload: Payload } | undefined} */
  #payload;

  /** @param {Route} route */
  constructor(route) {
    this.#route = route;
    this.#workflow = route.path.slice(1).join('/');
    this.#trends = new Trends(route, this.#workflow);
    const { name, vhost } = parted(this.#workflow);
    this.#versions = new Source((signal) => get(['definitions'], { workflow: name, vhost }, signal));
    void this.#versions.refresh().then(() => this.#look());
    this.#versions.every(10_000);
    if (!workflows.data) void workflows.refresh().then(() => this.#look());
  }

  stop() {
    this.#versions.stop();
    this.#trends.stop();
    this.#parts.stop();
    this.#payload?.payload.stop();
  }

  /** @param {Route} route */
  update(route) {
    this.#route = route;
    this.#trends.update(route);
    void this.#look();
    redraw();
  }

  async #look() {
    const all = this.#versions.data?.definitions ?? [];
    const hash = this.#route.query.get('hash') ?? all[0]?.hash ?? workflows.data?.find((workflow) => fullName(workflow) === this.#workflow)?.definition ?? (this.#versions.error ? await this.#ofNewestJob() : undefined);
    const other = this.#route.query.get('with') ?? '';
    const asked = `${hash} ${other}`;
    if (!hash || asked === this.#asked) {
      redraw();
      return;
    }
    this.#asked = asked;
    try {
      const found = await Promise.all([definitionOf(hash), other ? definitionOf(other) : undefined]);
      if (this.#asked !== asked) return;
      [this.#shown, this.#with] = found;
      this.#problem = '';
    } catch (error) {
      this.#problem = error instanceof Error ? error.message : String(error);
      this.#asked = '';
    }
    redraw();
  }

  /** Of a manager that does not list definitions. */
  async #ofNewestJob() {
    this.#guess ??= (async () => {
      try {
        const { name, vhost } = parted(this.#workflow);
        /** @type {FoundPage} */
        const found = await get(['jobs', 'search'], { workflow: name, vhost, limit: 1 });
        if (!found.jobs.length) return undefined;
        /** @type {Job} */
        const job = await get(['job', found.jobs[0].job], { view: 'light' });
        return job.definition;
      } catch {
        return undefined;
      }
    })();
    const hash = await this.#guess;
    this.#guessed = true;
    return hash;
  }

  ready() {
    return this.#shown !== undefined || this.#problem !== '' || (this.#guessed && this.#asked === '');
  }

  title() {
    return plain(`Definition of ${this.#workflow}`);
  }

  commands() {
    return pauseCommands({ kind: 'workflow', ...parted(this.#workflow) });
  }

  template() {
    const definition = this.#shown;
    const versions = this.#versions.data?.definitions;
    const chosen = this.#route.query.get('step') ?? undefined;
    const asText = this.#route.query.get('view') === 'text';
    const drawn = (/** @type {Definition} */ definition) => ({ key: `definition ${definition.hash}`, definition, chosen, link: (/** @type {string | undefined} */ step) => changed(this.#route, { step }) });
    return html`<div class="definitions">
      <header class="page-head"><nav class="crumbs" aria-label="Where this is"><a href="#/definitions">Definitions</a><span class="quiet">/</span></nav><h1>${shown(this.#workflow)}</h1>
        ${definition ? html`<code class="quiet" title=${definition.hash}>${shown(definition.hash.slice(0, 12))}</code>${versions?.some((version) => version.hash === definition.hash && !version.loaded) ? html`<span class="word">not loaded</span>` : nothing}` : nothing}
        <span class="space"></span>${!may() ? nothing : html`<button class="button small" @click=${() => openCreate(this.#workflow)}>${icon('plus')}New job</button>`}${pauseButton({ kind: 'workflow', ...parted(this.#workflow) })}<a class="button small" href=${link(['jobs'], { workflow: this.#workflow })}>Jobs</a><a class="button small" href=${link(['statuses', ...this.#workflow.split('/')])}>Statuses</a></header>
      ${this.#problem ? html`<p class="calm">${/^there is nothing at/.test(this.#problem) ? 'This manager does not tell its definitions. The command line does: workflow-manager check FILE.' : shown(this.#problem)}</p>` : !definition && this.#versions.error ? html`<p class="calm">${this.#versions.error.notHere ? 'This manager does not tell its definitions. The command line does: workflow-manager check FILE.' : shown(this.#versions.error.message)}</p>` : nothing}
      ${definition ? html`
        ${definition.deadline || definition.retention ? html`<p class="quiet">${definition.deadline ? html`A job fails when it is not done within ${shown(duration(definition.deadline))}. ` : nothing}${definition.retention ? html`An ended job is kept for ${shown(duration(definition.retention))}.` : nothing}</p>` : nothing}
        ${this.#parts.graph(drawn(definition))}
        ${this.#trends.template()}
        ${this.#with ? this.#compared(this.#with, definition) : nothing}
        <nav class="tabs loose" aria-label="Of the definition"><a href=${changed(this.#route, { view: undefined })} aria-current=${asText ? nothing : 'page'}>Steps</a><a href=${changed(this.#route, { view: 'text' })} aria-current=${asText ? 'page' : nothing}>Text</a></nav>
        ${asText ? this.#text(definition) : this.#parts.steps(drawn(definition))}` : nothing}
      ${definition && !this.#versions.error?.notHere ? refusal(this.#versions.problem) : nothing}
      ${versions ? this.#list(versions) : this.#versions.error?.notHere && definition ? html`<p class="calm">This manager does not tell older versions.</p>` : nothing}
    </div>`;
  }

  /** @param {Definition} definition */
  #text(definition) {
    if (this.#payload?.hash !== definition.hash) {
      this.#payload?.payload.stop();
      this.#payload = { hash: definition.hash, payload: new Payload(['definition', definition.hash], { name: `definition ${definition.name}`, none: 'There is no text of it.' }) };
    }
    return html`<section class="panel" aria-label="Text"><div class="tab-body">${this.#payload.payload.template()}</div></section>`;
  }

  /**
   * @param {Definition} before
   * @param {Definition} now
   */
  #compared(before, now) {
    const parts = [{ title: 'Steps', changes: compare(before.steps, now.steps) }];
    for (const name of new Set([...(before.tasks ?? []), ...(now.tasks ?? [])].map((task) => task.name))) {
      parts.push({ title: `Task ${name}`, changes: compare(before.tasks?.find((task) => task.name === name)?.steps ?? [], now.tasks?.find((task) => task.name === name)?.steps ?? []) });
    }
    const all = parts.flatMap(({ changes }) => changes).filter((change) => change.kind !== 'same').length;
    const old = this.#versions.data?.definitions.find((version) => version.hash === before.hash);
    return html`<section class="panel" aria-label="Compared"><div class="panel-title wraps"><h2>What is new since <code>${shown(before.hash.slice(0, 12))}</code></h2><span class="quiet small">${all ? counted(all, 'change') : 'nothing in the steps'}</span><span class="space"></span><a class="mini" href=${changed(this.#route, { with: undefined })}>Close</a></div>
      ${old?.running ? html`<p class="calm">${counted(old.running, 'running job')} ${old.running === 1 ? 'keeps' : 'keep'} the old one.</p>` : nothing}
      ${parts.map(({ title, changes }) => (changes.some((change) => change.kind !== 'same') ? html`<div class="changes"><h3>${shown(title)}</h3>${changes.filter((change) => change.kind !== 'same').map((change) => html`<div class="change ${change.kind}"><span class="change-sign" aria-hidden="true">${{ added: '+', removed: '−', changed: '~', same: '' }[change.kind]}</span><b>${shown(change.name)}</b><span class="sr">${change.kind}</span><div>${change.keys.map(({ key, before: was, after: is }) => html`<div class="change-key"><span class="quiet">${shown(key)}</span> ${was ? html`<del>${shown(was)}</del>` : nothing}${was && is ? ' → ' : nothing}${is ? html`<ins>${shown(is)}</ins>` : nothing}</div>`)}</div></div>`)}</div>` : nothing))}
    </section>`;
  }

  /** @param {Version[]} versions */
  #list(versions) {
    const hash = this.#shown?.hash;
    const other = this.#route.query.get('with') ?? '';
    return html`<section class="panel" aria-label="Versions"><div class="panel-title"><h2>Versions</h2><span class="quiet small">a job keeps the one it started with</span></div>
      <div class="table-wrap" ${scrolls()}><table class="stacked"><thead><tr><th>Definition</th><th>Last job ended</th><th class="number">Running</th><th class="number">Ended</th><th>Compare with it</th></tr></thead><tbody>${versions.map((version) => html`<tr class=${version.hash === hash ? 'at' : ''}>
        <td><a href=${changed(this.#route, { hash: version.hash === versions[0].hash ? undefined : version.hash, with: undefined })}><code>${shown(version.hash.slice(0, 12))}</code></a> ${version.loaded ? html`<span class="badge completed">loaded</span>` : nothing}</td>
        <td data-label="last ended">${version.lastEnded ? moment(version.lastEnded) : html`<span class="quiet">–</span>`}</td>
        <td class="number" data-label="running">${count(version.running)}</td><td class="number" data-label="ended">${count(version.ended)}</td>
        <td data-label="compare">${version.hash === hash ? html`<span class="quiet">shown</span>` : html`<input type="checkbox" aria-label="Compare with ${version.hash.slice(0, 12)}" .checked=${live(other === version.hash)} @change=${() => setQuery({ with: other === version.hash ? undefined : version.hash })}>`}</td>
      </tr>`)}</tbody></table></div></section>`;
  }
}
