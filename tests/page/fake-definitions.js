// The workflows of the manager that stands in for one. They are made as `workflow-manager check --json` tells them.

const retry = (attempts, backoff = '1s') => ({ attempts, backoff, factor: 2, maxBackoff: '5m' });

const orders = {
  hash: 'a3f19c5b7d20e4886b1f3c9d5e7a20418f6b2d4c0e9a7351bd82f4c6e0917a35', vhost: '', name: 'orders', loaded: true, deadline: '3d', queues: ['price', 'risk', 'stock', 'invoice', 'ship', 'mail'], result: ['ship', 'mail'],
  steps: [
    { name: 'price-lines', depends: [], task: 'price-line' },
    { name: 'fraud-check', depends: [], queue: 'risk', timeout: '30s', retry: retry(3), onFailure: 'continue' },
    { name: 'approval', depends: ['price-lines'], external: true, when: 'input.lines.exists(line, line.cents > 100000)', statusKey: 'decision', statuses: ['ASKED', 'APPROVED', 'REJECTED'] },
    { name: 'stock', depends: ['price-lines'], queue: 'stock', timeout: '2m', retry: retry(5, '2s') },
    { name: 'invoice', depends: ['price-lines', '__start__', 'approval', 'fraud-check'], queue: 'invoice', timeout: '5m', retry: retry(3), when: 'steps.approval.status != "REJECTED"' },
    { name: 'ship', depends: ['invoice', 'stock'], queue: 'ship', timeout: '1d', cancelWhen: 'steps.invoice.state == "cancelled"' },
    { name: 'mail', depends: ['invoice'], queue: 'mail', timeout: '1m', retry: retry(10) },
  ],
  tasks: [{ name: 'price-line', itemListKey: 'lines', itemKey: 'line', tolerate: '1%', recursive: false, steps: [{ name: 'price', depends: [], queue: 'price', timeout: '30s', retry: retry(3) }] }],
};

const older = {
  ...orders, hash: '77c0de12ab5490fe31c8d2b7a96e5f04d3c2b1a09f8e7d6c5b4a39281706f5e4', loaded: false,
  steps: orders.steps.filter((step) => step.name !== 'fraud-check').map((step) => (step.name === 'invoice' ? { ...step, timeout: '30s', depends: ['price-lines', '__start__', 'approval'] } : step)),
};

const application = {
  hash: 'c41d8e72f9b05a36e1d7c8b4a2f60953d8e7c6b5a4f3021e9d8c7b6a5f4e3d2c', vhost: '', name: 'job-application', loaded: true, deadline: '90d', retention: '365d', queues: [], result: ['offer'],
  steps: [
    { name: 'application', depends: [], external: true, statusKey: 'status', statuses: ['DRAFT', 'SUBMITTED'] },
    { name: 'phone-screen', depends: ['application'], external: true, timeout: '14d', onFailure: 'continue', statusKey: 'status', statuses: ['PENDING', 'PASSED', 'FAILED'] },
    { name: 'on-site-interview', depends: ['phone-screen'], when: 'steps["phone-screen"].status == "PASSED"', external: true, statusKey: 'status', statuses: ['PENDING', 'PASSED', 'FAILED'], skippedStatus: '' },
    { name: 'background-check', depends: ['on-site-interview'], when: 'steps["on-site-interview"].status == "PASSED"', cancelWhen: 'steps["health-screening"].status == "FAILED"', external: true, statusKey: 'status', statuses: ['PENDING', 'PASSED', 'FAILED'] },
    { name: 'health-screening', depends: ['on-site-interview'], when: 'steps["on-site-interview"].status == "PASSED"', cancelWhen: 'steps["background-check"].status == "FAILED"', external: true, statusKey: 'status', statuses: ['PENDING', 'PASSED', 'FAILED'] },
    { name: 'offer', depends: ['background-check', 'health-screening'], external: true, statusKey: 'status', statuses: ['PENDING', 'ACCEPTED', 'DECLINED', 'RESCINDED'], skippedStatus: 'NO_OFFER' },
  ],
};

const books = {
  hash: 'e90a17b3c5d24f68a1b0c9d8e7f60514c3b2a19087f6e5d4c3b2a1908f7e6d5c', vhost: '', name: 'book-word-counts', loaded: true, queues: ['book_split', 'segment_word_counts', 'sum_splits', 'store_title'], result: ['sum-splits', 'store-title'],
  steps: [
    { name: 'book-split', depends: [], queue: 'book_split', timeout: '1m', retry: retry(3) },
    { name: 'segment-word-counts', depends: ['book-split'], task: 'segment' },
    { name: 'sum-splits', depends: ['segment-word-counts'], queue: 'sum_splits', timeout: '5m' },
    { name: 'store-title', depends: ['book-split'], queue: 'store_title', timeout: '1m' },
  ],
  tasks: [{ name: 'segment', itemListKey: 'bookSections', itemKey: 'bookSection', maxConcurrency: 500, recursive: false, steps: [{ name: 'segment-word-counts', depends: [], queue: 'segment_word_counts', timeout: '30s', retry: retry(3) }] }],
};

const report = { hash: '0b7e5a91d3c84f26b8a0c1d2e3f40516a7b8c9d0e1f2a3b4c5d6e7f8091a2b3c', vhost: '', name: 'nightly-report', loaded: false, queues: ['gather', 'render'], result: ['render'], steps: [{ name: 'gather', depends: [], queue: 'gather' }, { name: 'render', depends: ['gather'], queue: 'render', timeout: '10m' }] };

/** @type {Record<string, any[]>} newest first */
export const definitions = { orders: [orders, older], 'job-application': [application], 'book-word-counts': [books], 'nightly-report': [report] };
