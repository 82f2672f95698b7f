// What the manager that stands in for one has in it: the jobs of a small shop.

import { Fake } from './fake.js';
import { definitions } from './fake-definitions.js';
import { FakeJob, uuid } from './fake-jobs.js';

const SECOND = 1000;
const MINUTE = 60 * SECOND;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;

const LINES = '[{"article":"fountain pen, broad","count":3,"cents":7450},{"article":"ink, violet","count":12,"cents":990},{"article":"blotting paper","count":1,"cents":320}]';
const MESSAGE = `{"customer":{"name":"Ada Lovelace","id":12345678901234567890,"mail":"ada@example.org"},"lines":${LINES.replaceAll(/,"cents":\d+/g, '')},"express":true,"note":"leave it with the neighbour\\nring twice"}`;

/** An order as far as the prices. */
function order(name, created, { items = 3, failed = 0 } = {}) {
  const job = new FakeJob(name, definitions.orders[0], created);
  job.message = MESSAGE;
  job.entries[0].payload = MESSAGE;
  job.entries[0].payloadBytes = MESSAGE.length;
  job.inputs['price-lines'] = MESSAGE;
  job.inputs['fraud-check'] = MESSAGE;
  job.push({ kind: 'step.started', step: 'price-lines', items }, 0);
  job.push({ kind: 'step.started', step: 'fraud-check', attempt: 1 }, 0);
  job.push({ kind: 'children.started', step: 'price-lines', from: 0, count: items }, 0);
  job.push({ kind: 'step.confirmed', step: 'fraud-check', attempt: 1 }, 4);
  if (items <= 10) for (let item = 0; item < items - failed; item += 1) job.push({ kind: 'child.completed', step: 'price-lines', item, payload: '{"article":"pen","cents":7450}', payloadBytes: 30 }, 180);
  return job;
}

function priced(job) {
  job.outputs['price-lines'] = `{"lines":${LINES}}`;
  job.push({ kind: 'step.completed', step: 'price-lines', payload: `{"lines":${LINES}}`, payloadBytes: LINES.length + 10 }, 30);
  job.push({ kind: 'step.skipped', step: 'approval' }, 0);
  job.push({ kind: 'step.started', step: 'stock', attempt: 1 }, 0);
  job.push({ kind: 'step.confirmed', step: 'stock', attempt: 1 }, 3);
  job.inputs.stock = `{"lines":${LINES}}`;
  job.push({ kind: 'step.completed', step: 'fraud-check', status: 'CLEAN', payload: '{"score":0.04,"status":"CLEAN"}', payloadBytes: 31 }, 240);
  job.outputs['fraud-check'] = '{"score":0.04,"status":"CLEAN"}';
  job.push({ kind: 'step.started', step: 'invoice', attempt: 1 }, 1);
  job.inputs.invoice = `{"lines":${LINES},"customer":{"name":"Ada Lovelace","id":12345678901234567890},"express":true}`;
  return job;
}

function invoiced(job) {
  job.push({ kind: 'step.completed', step: 'stock', payload: '{"reserved":16}', payloadBytes: 15 }, 820);
  job.outputs.stock = '{"reserved":16}';
  job.push({ kind: 'step.completed', step: 'invoice', payload: '{"cents":34550,"number":"2026-11-00412"}', payloadBytes: 40 }, 1900);
  job.outputs.invoice = '{"cents":34550,"number":"2026-11-00412"}';
  job.push({ kind: 'step.started', step: 'ship', attempt: 1 }, 0);
  job.push({ kind: 'step.started', step: 'mail', attempt: 1 }, 0);
  job.inputs.ship = '{"cents":34550,"number":"2026-11-00412","reserved":16}';
  job.inputs.mail = '{"cents":34550,"number":"2026-11-00412"}';
  return job;
}

function completed(name, created) {
  const job = invoiced(priced(order(name, created)));
  job.push({ kind: 'step.completed', step: 'mail', payload: '{"sent":true}', payloadBytes: 13 }, 300);
  job.push({ kind: 'step.completed', step: 'ship', status: 'HANDED OVER', payload: '{"parcel":"JJD000390007412389412"}', payloadBytes: 34 }, 14 * MINUTE);
  job.outputs.ship = '{"parcel":"JJD000390007412389412"}';
  job.outputs.mail = '{"sent":true}';
  job.result = '{"parcel":"JJD000390007412389412","sent":true}';
  return job.end('completed', undefined, 0);
}

function failed(name, created) {
  const job = priced(order(name, created));
  const reason = 'the worker reported an error: KeyError: \'vat\'';
  for (let attempt = 1; attempt <= 3; attempt += 1) {
    job.push({ kind: 'step.confirmed', step: 'invoice', attempt }, 3);
    if (attempt < 3) {
      job.push({ kind: 'step.attempt-failed', step: 'invoice', attempt, reason: attempt === 1 ? 'the reply is no JSON object' : reason, ...(attempt === 1 && { raw: 'Traceback (most recent call last):\n  File "invoice.py", line 41, in work\n    vat = message["vat"]\nKeyError: \'vat\'\n' }), retryAt: new Date(job.at + 2400).toISOString() }, 900);
      job.push({ kind: 'step.started', step: 'invoice', attempt: attempt + 1 }, 1500 * attempt);
    } else job.push({ kind: 'step.failed', step: 'invoice', attempt, reason }, 700);
  }
  job.push({ kind: 'step.completed', step: 'stock', payload: '{"reserved":16}', payloadBytes: 15 }, 0);
  return job.end('failed', `step "invoice": ${reason}`);
}

/** The job of the wireframes: it stands still, since nobody takes invoices. */
export function standing(name, created) {
  const job = priced(order(name, created));
  job.push({ kind: 'step.confirmed', step: 'invoice', attempt: 1 }, 3);
  job.push({ kind: 'step.attempt-failed', step: 'invoice', attempt: 1, reason: 'timeout after 5m', retryAt: new Date(job.at + 5 * MINUTE + 700).toISOString() }, 5 * MINUTE);
  job.push({ kind: 'step.completed', step: 'stock', payload: '{"reserved":16}', payloadBytes: 15 }, 20);
  job.outputs.stock = '{"reserved":16}';
  job.push({ kind: 'step.started', step: 'invoice', attempt: 2, deadline: new Date(Date.now() + 3 * MINUTE).toISOString() }, 700);
  job.push({ kind: 'step.confirmed', step: 'invoice', attempt: 2 }, 3);
  job.why = { job: job.id, cause: 'no_consumer', step: 'invoice', why: 'no consumer on queue "invoice": start a worker for step "invoice"; 212 messages wait there' };
  return job;
}

/** A fan-out with a map. */
export function large(name, created, items, { worst = 1204 } = {}) {
  const job = order(name, created, { items });
  const map = new Uint8Array(Math.ceil(items / 4));
  const counts = [0, 0, 0, 0];
  const step = Math.max(1, Math.floor((items * 0.9) / worst));
  for (let item = 0; item < items; item += 1) {
    const part = item / items;
    let state = part < 0.888 ? 2 : part < 0.899 ? (item % 3 ? 1 : 2) : 0;
    if (state === 2 && (item % (step * 7) === step || (part > 0.41 && part < 0.416 && item % 13 === 4 && counts[3] < worst))) state = 3;
    counts[state] += 1;
    map[item >> 2] |= state << (2 * (item & 3));
  }
  job.map = map;
  job.push({ kind: 'child.completed', step: 'price-lines', count: counts[2] }, 100);
  job.push({ kind: 'child.failed', step: 'price-lines', count: counts[3] }, 1);
  job.over['price-lines'] = { children: { items, started: items - counts[0], ended: counts[2] + counts[3], failed: counts[3], withoutItem: 0, waiting: counts[0], running: counts[1], completed: counts[2] } };
  const reasons = ['step "price": rejected by queue "price"', 'step "price": timeout after 30s', 'step "price": the worker reported an error: KeyError: \'quill\''];
  job.children = [];
  for (let item = 0; item < items && job.children.length < 1500; item += 1) {
    if (((map[item >> 2] >> (2 * (item & 3))) & 3) !== 3) continue;
    const at = created + 200 + (item % 5000);
    job.children.push({ job: uuid(`${name} ${item}`), step: 'price-lines', item, state: 'failed', created: new Date(at).toISOString(), ended: new Date(at + 300 + (item % 977)).toISOString(), reason: reasons[item % 23 === 0 ? 2 : item % 9 === 0 ? 1 : 0] });
  }
  const groups = reasons.map((reason) => ({ reason, count: job.children?.filter((child) => child.reason === reason).length ?? 0, firstItem: job.children?.find((child) => child.reason === reason)?.item ?? 0, firstJob: job.children?.find((child) => child.reason === reason)?.job ?? '' })).filter((group) => group.count);
  job.reasons = { groups, looked: job.children.length, more: counts[3] > 1500 };
  job.why = { job: job.id, cause: 'working', step: 'price-lines', why: `step "price-lines" has ${counts[2].toLocaleString('en-US')} of ${items.toLocaleString('en-US')} child jobs done, ${counts[1].toLocaleString('en-US')} under way; 24 workers take from queue "price"` };
  return job;
}

function application(name, created, done, { end = undefined, word = undefined } = {}) {
  const job = new FakeJob(name, definitions['job-application'][0], created);
  job.message = '{"name":"Grace Hopper","position":"compiler engineer"}';
  const way = [['application', 'SUBMITTED'], ['phone-screen', 'PASSED'], ['on-site-interview', 'PASSED'], ['background-check', 'PASSED'], ['health-screening', 'PASSED'], ['offer', 'ACCEPTED']];
  way.forEach(([step, status], index) => {
    if (index > done) return;
    job.inputs[step] = job.message;
    job.push({ kind: 'step.started', step, attempt: 1 }, 2);
    if (index < done) {
      job.push({ kind: 'step.completed', step, status: index === done - 1 && word ? word : status, payload: `{"status":"${status}"}`, payloadBytes: 22 }, (7 + 5 * index) * HOUR);
      job.outputs[step] = `{"status":"${status}"}`;
    }
  });
  if (end === 'declined') {
    job.push({ kind: 'step.cancelled', step: 'health-screening' }, 1);
    job.push({ kind: 'step.skipped', step: 'offer', status: 'NO_OFFER' }, 1);
    job.result = '{"status":"FAILED"}';
    job.end('completed');
  } else if (end) {
    if (end === 'completed') job.result = '{"status":"ACCEPTED","salary":120000.00}';
    job.end(end, end === 'cancelled' ? 'cancelled by a call of the API: withdrawn by the applicant' : undefined);
  } else job.why = { job: job.id, cause: 'person', step: way[done][0], why: `step "${way[done][0]}" waits for a call of the API since 3 d 4 h: a person or another system completes it` };
  return job;
}

/** Everything, and the ids of what tests and pictures look at. */
export function demo() {
  const fake = new Fake();
  const { now } = fake;
  const ids = {
    standing: fake.add(standing('standing', now - 14 * MINUTE)).id,
    failed: fake.add(failed('failed', now - 3 * MINUTE)).id,
    completed: fake.add(completed('completed', now - 42 * MINUTE)).id,
    large: fake.add(large('large', now - 4 * MINUTE, 100_000, { worst: 300 })).id,
    person: fake.add(application('person', now - 3 * DAY, 3)).id,
    declined: fake.add(application('declined', now - 5 * DAY, 4, { end: 'declined', word: 'FAILED' })).id,
    cancelled: fake.add(application('cancelled', now - 2 * DAY, 2, { end: 'cancelled' })).id,
    paused: fake.add(Object.assign(standing('paused', now - 50 * MINUTE).push({ kind: 'job.paused' }, MINUTE), { state: 'paused', why: { cause: 'paused', why: 'the job is paused; resume it to go on' } })).id,
  };
  for (let n = 0; n < 60; n += 1) fake.add(completed(`order ${n}`, now - n * n * 9 * SECOND - 20 * MINUTE));
  for (let n = 0; n < 9; n += 1) fake.add(failed(`broken ${n}`, now - (n * n * 4 + 7) * MINUTE));
  for (let n = 0; n < 14; n += 1) fake.add(standing(`standing ${n}`, now - 15 * MINUTE - n * 47 * SECOND));
  for (let n = 0; n < 11; n += 1) fake.add(application(`application ${n}`, now - (n + 1) * 17 * HOUR, n % 6));
  for (let n = 0; n < 6; n += 1) fake.add(application(`hired ${n}`, now - (n + 2) * 31 * HOUR, 6, { end: 'completed' }));
  for (let n = 0; n < 5; n += 1) {
    const job = fake.add(new FakeJob(`book ${n}`, definitions['book-word-counts'][0], now - n * 11 * MINUTE));
    job.message = '{"title":"The Analytical Engine","bookSections":[]}';
    job.push({ kind: 'step.started', step: 'book-split', attempt: 1 }, 0).push({ kind: 'step.completed', step: 'book-split' }, 2100).push({ kind: 'step.started', step: 'segment-word-counts', items: 540 }, 1).push({ kind: 'children.started', step: 'segment-word-counts', from: 0, count: 500 }, 0).push({ kind: 'child.completed', step: 'segment-word-counts', count: 90 * n + 60 }, 4000).push({ kind: 'step.started', step: 'store-title', attempt: 1 }, 0).push({ kind: 'step.completed', step: 'store-title' }, 90);
  }
  // Of a workflow that is not loaded any more.
  const old = fake.add(new FakeJob('report', definitions['nightly-report'][0], now - 9 * HOUR));
  old.push({ kind: 'step.started', step: 'gather', attempt: 1 }, 0);
  return Object.assign(fake, { ids });
}
