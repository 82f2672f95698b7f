// The parts of the page that need no browser.

import './no-browser.js';
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { readFile, readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { labelled, segments, ticks, timeAt, xOf } from '../../page/lib/axis.js';
import { diff, folded } from '../../page/lib/diff.js';
import { eventReader } from '../../page/lib/events.js';
import { after, compare, END, graphOf, settings, START } from '../../page/lib/graph.js';
import { cells, COMPLETED, countIn, FAILED, grid, mapAt, nextIn, RUNNING, stateOf, WAITING } from '../../page/lib/itemmap.js';
import { lines, parseKeeping, readable, tokens } from '../../page/lib/json.js';
import { reasonParts, shortReason } from '../../page/lib/reason.js';
import { changed, link, parseRoute } from '../../page/lib/route.js';
import { topOf, visibleRows } from '../../page/lib/rows.js';
import { completions, faultOf, filterOptions, isIdBeginning, readSearch, searchAddress, searches, searchName, searchText, uuidOf } from '../../page/lib/search.js';
import { bytes, few, plain, share } from '../../page/lib/text.js';
import { agoBetween, firstPart, millis, span } from '../../page/lib/time.js';
import { fieldTime, timeOf } from '../../page/views/backfill.js';
import { lineAt } from '../../page/views/check.js';
import { inRows } from '../../page/views/schedules.js';
import { compared, roundUp } from '../../page/views/trends.js';
import { cause } from '../../page/views/why.js';

const PAGE = fileURLToPath(new URL('../../page/', import.meta.url));

test('addresses are read and written alike, whatever the names are', () => {
  for (const name of ['invoice', 'a b', 'ü/ö', '__proto__', 'constructor', '%', 'a+b', 'x&y=z', '‮', '#', '?']) {
    const address = link(['job', name], { step: name, at: 3, nothing: undefined, empty: '' });
    const route = parseRoute(address);
    assert.deepEqual(route.path, ['job', name]);
    assert.equal(route.query.get('step'), name);
    assert.equal(route.query.get('at'), '3');
    assert.equal(route.query.size, 2);
  }
  assert.deepEqual(parseRoute('').path, []);
  assert.deepEqual(parseRoute('#/job/%E0%A4%A?step=%').path, ['job', '%E0%A4%A']);
  const route = parseRoute('#/jobs?state=failed,running&status.a:b=C%20D');
  assert.equal(changed(route, { state: undefined, after: '24h' }), '#/jobs?status.a:b=C+D&after=24h');
});

test('a search is an id, a part of one, or words with values', () => {
  assert.equal(uuidOf(' {94641893-E5b0-4D6c-8a11-0123456789ab} '), '94641893-e5b0-4d6c-8a11-0123456789ab');
  assert.equal(uuidOf('urn:uuid:94641893e5b04d6c8a110123456789ab'), '94641893-e5b0-4d6c-8a11-0123456789ab');
  assert.equal(uuidOf('94641893'), undefined);
  assert.equal(searchAddress('94641893', []), undefined, 'it may be the key of something');
  assert.equal(searchAddress('state:failed', []), '#/jobs?state=failed');
  assert.equal(searchAddress('orders', ['orders']), '#/jobs?workflow=orders');
  assert.equal(searchAddress('bananas', ['orders']), undefined);
  const { query, unknown } = readSearch('workflow:orders state:failed,running status.sign:"NOT YET" after:24h javascript:alert');
  assert.deepEqual([...query], [['workflow', 'orders'], ['state', 'failed,running'], ['status.sign', 'NOT YET'], ['after', '24h']]);
  assert.deepEqual(unknown, [['javascript', 'alert']]);
  assert.deepEqual([...readSearch(searchText(query)).query], [...query]);
  assert.deepEqual(completions('sta', ['orders']), ['state:', 'status.']);
  assert.deepEqual(completions('state:failed workflow:o', ['orders', 'x']), ['state:failed workflow:orders']);
});

test('free text is the beginning of an id, a part of a label, or the value of a column', () => {
  const all = (/** @type {string} */ text, columns = ['order', 'country']) => searches(text, columns).map((query) => [...query].map((pair) => pair.join('=')).join('&'));
  assert.deepEqual(all('4711'), ['id=4711', 'label=4711', 'column.order=4711', 'column.country=4711']);
  assert.deepEqual(all('order 4711'), ['label=order 4711', 'column.order=order 4711', 'column.country=order 4711']);
  assert.deepEqual(all('state:failed "Ada  Lovelace"', []), ['state=failed&label=Ada  Lovelace']);
  assert.deepEqual(all('label:Ada Lovelace', []), ['label=Ada Lovelace']);
  assert.deepEqual(all('Country:DE'), ['column.country=DE', 'label=Country:DE']);
  assert.deepEqual(all('order:4711'), ['column.order=4711', 'label=order:4711']);
  assert.deepEqual(all('order:oldest'), ['order=oldest']);
  assert.deepEqual(all('https://a.b/c', []), ['label=https://a.b/c']);
  assert.deepEqual(all('x', Array.from({ length: 90 }, (_, index) => `c${index}`)).length, 7);
  assert.deepEqual(['4711', 'de-ad', '471', '----', 'f'.repeat(33)].map(isIdBeginning), [true, true, false, false, false]);
  assert.deepEqual(searches('state:failed 4711', ['order']).map((query) => searchName(query, 'state:failed 4711')), ['Jobs: id begins with 4711, state:failed', 'Jobs: label has “4711”, state:failed', 'Jobs: order is 4711, state:failed']);
  assert.equal(searchName(new Map([['column.country', 'DE']]), 'country:DE'), 'Jobs: column.country:DE');
  assert.deepEqual(completions('coun', [], ['country']), ['column.country:']);
  assert.deepEqual(completions('status.ch', [], [], ['charge']), ['status.charge:']);
});

test('a word that is no filter teaches the one that is meant', () => {
  const said = (/** @type {[string, string]} */ word) => {
    const { text, instead } = faultOf(word, ['order', 'country'], ['charge']);
    return `${text} ${searchText(instead ? [instead] : [])}`;
  };
  assert.equal(said(['country', 'DE']), 'country is a column: column.country:DE');
  assert.equal(said(['Country', 'the north']), 'country is a column: column.country:"the north"');
  assert.equal(said(['order', '4711']), 'order sorts the list: newest or oldest. The column is column.order:4711');
  assert.equal(said(['charge', 'OPEN']), 'charge is a step: status.charge:OPEN');
  assert.equal(said(['stat', 'failed']), '“stat” is no filter. Perhaps state:failed');
  assert.equal(said(['contry', 'DE']), '“contry” is no filter. Perhaps column.country:DE');
  assert.equal(said(['colum.order', '1']), '“colum.order” is no filter. Perhaps column.order:1');
  assert.equal(said(['https', '//a.b']), '“https” is no filter. Where it is part of a label: label:https://a.b');
  assert.equal(faultOf(['order', 'x'], [], []).instead?.join(':'), 'order:oldest');
});

test('filters are options of a command', () => {
  assert.deepEqual(filterOptions([['reasonId', '1e4fe7db95307bfd'], ['endedAfter', '1h'], ['status.a', 'OPEN'], ['column.order', '4711'], ['failedItems', 'true']]), ['--reason-id', '1e4fe7db95307bfd', '--ended-after', '1h', '--status', 'a=OPEN', '--column', 'order=4711', '--failed-items']);
});

test('a reason begins with what matters', () => {
  const child = '94641893-7a6b-4c2d-8e1f-0123456789ab';
  const nested = `step "price" of item 2: the worker reported an error: none (x) (child job ${child}, by way of item 1 of step "orders", item 2 of step "lines")`;
  assert.deepEqual(reasonParts(nested), { step: 'price', item: 2, text: 'none (x)', child, way: 'by way of item 1 of step "orders", item 2 of step "lines"' });
  assert.equal(shortReason(nested), 'price[2]: none (x)');
  assert.equal(reasonParts(`item 0: cancelled (child job ${child} of step "a")`).child, child);
  for (const plain of ['', 'deadline passed', 'step "a" waits', '(child job 7)']) assert.equal(shortReason(plain), plain);
  assert.equal(shortReason('step "a": the worker reported an error: no'), 'a: no');
});

test('JSON is set out without a change to any token', () => {
  const text = '{"a":12345678901234567890.10e+5,"1":{"__proto__":[]},"a":"\\u00e9 \\" } ,","deep":[[[{"x":null}]]],"list":[1,2,3]}';
  const all = [...tokens(text)];
  assert.equal(all.map((token) => token.text).join(''), text);
  assert.ok(all.every((token) => token.kind !== 'bad'));
  assert.deepEqual(all.filter((token) => token.kind === 'key').map((token) => token.text), ['"a"', '"1"', '"__proto__"', '"a"', '"deep"', '"x"', '"list"']);
  const set = lines(text);
  assert.equal(set.map((line) => line.tokens.map((token) => token.text).join('')).join(''), text);
  assert.equal(set[0].tokens[0].text, '{');
  assert.equal(set[0].indent, 0);
  assert.equal(set[1].indent, 1);
  assert.equal(set.at(-1)?.indent, 0);
});

test('signs that a client wrote as escapes are read as they are, where they can be seen', () => {
  const reads = /** @type {[string, string][]} */ ([
    ['"\\u00d6zg\\u00FCr Y\\u0131lmaz"', '"Özgür Yılmaz"'],
    ['"\\ud83d\\ude00 \\u20ac \\u003cb\\u003e \\u05d0 o\\u0308"', '"😀 € <b> א o\u0308"'],
    ['"A\\u030a\\u0301"', '"A\u030a\u0301"'],
  ]);
  for (const [text, read] of reads) assert.equal(readable(text), read);
  // Controls, spaces, marks of direction, what has no width, halves of a pair, what ends a string or begins an escape, a mark over nothing; and what is no escape.
  for (const text of ['\\u0000', '\\u000a', '\\u007f', '\\u0085', '\\u0020', '\\u00a0', '\\u2028', '\\u202e', '\\u200f', '\\u2066', '\\u200b', '\\u200d', '\\ufeff', '\\u00ad', '\\u3164', '\\u115f', '\\u2800', '\\ufe0f', '\\udb40\\udc41', '\\ud83d', '\\ude00', '\\ude00\\ud83d', '\\ud83d\\n', '\\ue000', '\\uffff', '\\u0022', '\\u005c', '\\u005C', '\\u0308', '\\n\\u0308', '\\u202e\\u0308', '\\\\u00d6', '\\\\\\\\u00d6', '\\u00d', '\\u00', '\\"', '\\n']) assert.equal(readable(`"${text}"`), `"${text}"`);
  assert.equal(readable('"\\\\\\u00d6"'), '"\\\\Ö"');
});

test('text that is cut, or no JSON at all, is shown all the same', () => {
  for (const text of ['{"a":"unfinish', '{"a":[1,2', 'Traceback (most recent call last):', '', '[', ']]]]', '01', 'nul', '"\\', '{"a":tru', '\u0000', 'truefalse', '1.2.3', '"a""b"']) {
    const shownText = lines(text).map((line) => line.tokens.map((token) => token.text).join('')).join('');
    assert.equal(shownText.replace(/\s/g, ''), text.replace(/\s/g, ''), text);
  }
  const deep = '['.repeat(100_000);
  assert.ok(lines(deep).every((line) => line.indent <= 24));
  const big = JSON.stringify({ a: 'x'.repeat(1_000_000) });
  const begun = performance.now();
  lines(big);
  assert.ok(performance.now() - begun < 500);
});

test('payloads in an answer keep their text', () => {
  const answer = parseKeeping('{"entries":[{"n":1,"payload":{"id":12345678901234567890,"1":1.0}, "kind":"step.completed"},{"n":2}],"next":2}', new Set(['payload']));
  assert.equal(answer.entries[0].payload, '{"id":12345678901234567890,"1":1.0}');
  assert.equal(answer.entries[0].n, 1);
  assert.equal(answer.entries[0].kind, 'step.completed');
  assert.equal(answer.next, 2);
  assert.equal(parseKeeping('{"__proto__":{"polluted":true}}', new Set()).polluted, undefined);
  assert.equal(/** @type {any} */ ({}).polluted, undefined);
  for (const bad of ['', '{', '{"a":1', '[1,]', '{"a" 1}', 'x', '1 2']) assert.throws(() => parseKeeping(bad, new Set()), SyntaxError);
});

test('a stream of events is read in whatever pieces it comes', () => {
  const text = ': hello\n\nid: a:1\nevent: step.completed\ndata: {"x":\ndata: 1}\n\r\nid: b\r\ndata: two\r\n\r\ndata: never ended';
  for (let size = 1; size < 12; size += 1) {
    /** @type {any[]} */
    const found = [];
    const read = eventReader((event) => found.push(event));
    for (let at = 0; at < text.length; at += size) read(text.slice(at, at + size));
    assert.deepEqual(found, [{ id: 'a:1', event: 'step.completed', data: '{"x":\n1}' }, { id: 'b', event: 'message', data: 'two' }]);
  }
});

test('the map counts items two bits each, and one failure is always seen', () => {
  const items = 1003;
  const map = new Uint8Array(Math.ceil(items / 4));
  const states = Array.from({ length: items }, (_, item) => (item === 777 ? FAILED : item < 500 ? COMPLETED : item < 600 ? RUNNING : WAITING));
  states.forEach((state, item) => { map[item >> 2] |= state << (2 * (item & 3)); });
  states.forEach((state, item) => assert.equal(stateOf(map, item), state));
  for (const [from, to] of [[0, 1003], [1, 2], [3, 9], [499, 501], [770, 781], [0, 0]]) {
    const counts = [0, 0, 0, 0];
    for (let item = from; item < to; item += 1) counts[states[item]] += 1;
    assert.deepEqual(countIn(map, from, to), counts);
  }
  const { worst } = cells(map, items, 100);
  assert.deepEqual([...worst], [2, 2, 2, 2, 2, 1, 0, 3, 0, 0, 0]);
  assert.equal(nextIn(map, items, 0, FAILED), 777);
  assert.equal(nextIn(map, items, 778, FAILED), 777);
  assert.equal(nextIn(new Uint8Array(3), 12, 5, FAILED), -1);
});

test('the map as it was: what had not begun waits, what had not ended runs', () => {
  const never = 4294967295;
  const map = new Uint8Array([0b01_11_10_10, 0b00]);
  const times = new Uint32Array([0, 10, 5, 20, 5, 15, 12, never, never, never]);
  const then = (/** @type {number} */ at) => [0, 1, 2, 3, 4].map((item) => stateOf(mapAt(map, times, 5, at), item));
  assert.deepEqual(then(0), [RUNNING, WAITING, WAITING, WAITING, WAITING]);
  assert.deepEqual(then(10), [COMPLETED, RUNNING, RUNNING, WAITING, WAITING]);
  assert.deepEqual(then(15), [COMPLETED, RUNNING, FAILED, RUNNING, WAITING]);
  assert.deepEqual(then(1000), [COMPLETED, COMPLETED, FAILED, RUNNING, WAITING]);
  assert.deepEqual(mapAt(map, new Uint32Array(0), 5, 9), new Uint8Array(2), 'nothing is known: all wait');
  const large = new Uint32Array(2_000_000).map((_, at) => at >> 1);
  const begun = performance.now();
  mapAt(new Uint8Array(250_000).fill(0b10101010), large, 1_000_000, 500_000);
  assert.ok(performance.now() - begun < 250, 'a million items within a blink');
});

test('the cells of a map fill its frame, each for a round number of items', () => {
  for (const items of [1, 7, 100, 999, 12_345, 100_000, 1_000_000]) {
    for (const width of [300, 660, 1200]) {
      const { cell, columns, rows, cells: many, each } = grid(items, width, 330, 6);
      assert.ok(columns * cell <= width, `${items} ${width}`);
      assert.ok(rows * cell <= 352, `${items} ${width}: ${rows} rows of ${cell}`);
      assert.ok(many * each >= items && (many - 1) * each < items);
      assert.ok(/^(1|2|25|5)0*$/.test(String(each)), String(each));
    }
  }
  const map = new Uint8Array(250_000).fill(0b10101010);
  const begun = performance.now();
  cells(map, 1_000_000, 200);
  assert.ok(performance.now() - begun < 200);
});

test('long idle stretches of the axis are folded, and nothing else', () => {
  const whole = { from: 0, to: 1_000_000 };
  const axis = segments([{ from: 0, to: 100 }, { from: 900_000, to: 900_300 }, { from: 999_900, to: 1_000_000 }], whole, true);
  assert.equal(axis.filter((part) => part.folded).length, 2);
  assert.ok(Math.abs(axis.reduce((sum, part) => sum + part.width, 0) - 1) < 1e-9);
  assert.equal(xOf(axis, 0), 0);
  assert.ok(Math.abs(xOf(axis, 1_000_000) - 1) < 1e-9);
  assert.ok(xOf(axis, 100) > 0.1);
  for (let at = 0; at <= 1_000_000; at += 9973) assert.ok(xOf(axis, at) <= xOf(axis, at + 9973));
  assert.ok(Math.abs(timeAt(axis, xOf(axis, 900_100)) - 900_100) < 1);
  assert.equal(segments([{ from: 0, to: 1_000_000 }], whole, true).length, 1);
  assert.equal(segments([{ from: 0, to: 1 }], whole, false).length, 1);
  assert.equal(segments([], { from: 5, to: 5 }, true).length, 1);
  const marks = ticks(axis, 0.1);
  assert.ok(marks.length > 1 && marks.length <= 60);
  for (let index = 1; index < marks.length; index += 1) assert.ok(marks[index].x > marks[index - 1].x);
});

test('the text of a mark never stands in the sign of a fold', () => {
  assert.deepEqual(labelled([{ at: 0, text: '0' }, { at: 47, text: '40 s' }, { at: 52, text: '50 s' }, { at: 80, text: '1 m' }], [50], 400), [true, false, false, true]);
  assert.deepEqual(labelled([{ at: 47, text: '40 s' }], [], 400), [true]);
});

test('counts where there is little room, and the beginning of a long sentence', () => {
  assert.deepEqual([0, 9999, 99_874, 999_999, 1_000_000, 12_345_678].map(few), ['0', '9,999', '99.8K', '999K', '1M', '12.3M']);
  assert.deepEqual(firstPart('no consumer on queue "invoice"; 3 messages wait there'), ['no consumer on queue "invoice"; 3 messages wait there', '']);
  const long = `no consumer on queue "invoice": start a worker for step "invoice"; ${'word '.repeat(90)}end`;
  const [first, rest] = firstPart(long);
  assert.equal(first, 'no consumer on queue "invoice": start a worker for step "invoice"');
  assert.match(rest, /^word .* end$/);
});

test('a difference has every line of both texts, in order', () => {
  for (const [before, after] of [['', ''], ['a', ''], ['', 'a'], ['a b c', 'a c'], ['a b c d', 'x b d y'], ['a a a', 'a a'], ['q w e r t', 'q e w r t']]) {
    const [a, b] = [before, after].map((text) => text.split(' ').filter(Boolean));
    const lines = diff(a, b);
    assert.deepEqual(lines.filter(({ kind }) => kind !== 'after').map(({ text }) => text), a);
    assert.deepEqual(lines.filter(({ kind }) => kind !== 'before').map(({ text }) => text), b);
  }
  const long = Array.from({ length: 20_000 }, (_, n) => `line ${n}`);
  const lines = diff(long, long.with(10_000, 'another'));
  assert.equal(lines.filter(({ kind }) => kind !== 'same').length, 2);
  assert.deepEqual(folded(lines, 1).map((one) => (typeof one === 'number' ? one : one.text)), [9999, 'line 9999', 'line 10000', 'another', 'line 10001', 9998]);
  assert.equal(diff(long, long.map((line) => `${line}!`)).length, 40_000, 'what is too large to be compared is replaced');
});

test('rows: what is seen is drawn, and a million of them can be reached', () => {
  assert.deepEqual(visibleRows({ rows: 10, rowHeight: 20, top: 0, height: 400 }), { space: 200, first: 0, last: 10, offset: 0 });
  const view = { rows: 1_000_000, rowHeight: 34, height: 500 };
  const end = visibleRows({ ...view, top: 4_000_000 - 500 });
  assert.equal(end.space, 4_000_000);
  assert.equal(end.last, 1_000_000);
  for (const row of [0, 1, 500_000, 999_999]) {
    const { first, last } = visibleRows({ ...view, top: topOf(view, row) });
    assert.ok(first <= row && row < last, String(row));
    assert.ok(last - first < 40);
  }
});

test('the graph of a definition, what a rerun does again, and what is different', () => {
  const steps = [{ name: 'a', depends: [] }, { name: 'b', depends: ['a', '__start__'] }, { name: 'c', depends: ['__start__'] }, { name: 'd', depends: ['b', 'c'] }];
  const { edges } = graphOf(steps);
  assert.deepEqual(edges, [{ from: START, to: 'a' }, { from: 'a', to: 'b' }, { from: START, to: 'c' }, { from: 'b', to: 'd' }, { from: 'c', to: 'd' }, { from: 'd', to: END }]);
  assert.deepEqual(after(steps, 'b'), ['b', 'd']);
  assert.deepEqual(after([{ name: '__proto__', depends: [] }], '__proto__'), ['__proto__']);
  const changes = compare([{ name: 'a', timeout: '30s' }, { name: 'gone' }], [{ name: 'a', timeout: '2m' }, { name: 'new', queue: 'q' }]);
  assert.deepEqual(changes.map(({ kind, name }) => [kind, name]), [['changed', 'a'], ['added', 'new'], ['removed', 'gone']]);
  assert.deepEqual(changes[0].keys, [{ key: 'timeout', before: '30s', after: '2m' }]);
  const step = { name: 'a', limit: ['bank', 'licence'], retry: { attempts: 3, backoff: '1s', factor: 2, maxBackoff: '5m' }, queueArguments: { 'x-delivery-limit': 5 } };
  assert.deepEqual(settings(/** @type {any} */ (step)), [['limit', 'bank, licence'], ['retry', '3 attempts, pauses from 1s, × 2, at most 5m'], ['queueArguments', '{"x-delivery-limit":5}']]);
});

test('times keep their nanoseconds, and durations are short', () => {
  assert.equal(millis('2026-11-21T10:40:14.614156975Z') - Date.parse('2026-11-21T10:40:14Z') > 614.15, true);
  assert.ok(Number.isNaN(millis(undefined)));
  assert.deepEqual([0.08, 12, 1234, 61_000, 3_600_000, 7_500_000, 90_000_000].map(span), ['80 µs', '12 ms', '1.2 s', '1 m 1 s', '1 h', '2 h 5 m', '1 d 1 h']);
  assert.deepEqual([[660_000, 600_000], [620_000, 600_000], [4000, 0]].map(([first, last]) => agoBetween(1e12 - first, 1e12 - last, 1e12)), ['11 m ago – 10 m ago', '10 m ago', 'now']);
  assert.equal(bytes(1024 * 1024 * 3.25), '3.3 MB');
  assert.deepEqual([share(1, 100_000), share(99_999, 100_000), share(5, 5), share(0, 9)], ['< 0.1 %', '> 99.9 %', '100 %', '0 %']);
});

test('marks that cannot be seen are written out', () => {
  assert.equal(plain('a\u202Eb\u0000c\nd\uD800e\u{1F600}'), 'a⟨U+202E⟩b⟨U+0000⟩c⟨\\n⟩d⟨U+D800⟩e\u{1F600}');
  assert.equal(plain('naïve ünïcode'), 'naïve ünïcode');
});

async function files(/** @type {string} */ folder) {
  /** @type {string[]} */
  const found = [];
  for (const entry of await readdir(join(PAGE, folder), { withFileTypes: true })) {
    if (entry.isDirectory()) found.push(...(await files(join(folder, entry.name))));
    else found.push(join(folder, entry.name));
  }
  return found;
}

test('the line of an error leads to what is wrong in the text, whatever letters stand before it', () => {
  const text = 'a: 1\n  𝄞é: [ wrong ]\nb: 2';
  const found = (/** @type {{ line: number, column: number }} */ place) => { const { start, end } = lineAt(text, place); return text.slice(start, end); };
  assert.equal(found({ line: 2, column: 9 }), 'wrong ]');
  assert.equal(found({ line: 1, column: 1 }), 'a: 1');
  assert.equal(found({ line: 9, column: 3 }), '');
});

test('vendored files are those of the manifest, and no others', async () => {
  const manifest = JSON.parse(await readFile(join(PAGE, 'vendor/manifest.json'), 'utf8'));
  for (const { file, sha256 } of manifest) assert.equal(createHash('sha256').update(await readFile(join(PAGE, 'vendor', file))).digest('hex'), sha256, file);
  const own = new Set(['vendor/manifest.json', 'vendor/dagre@3.1.3/dagre.esm.d.ts']);
  const known = new Set(manifest.map((/** @type {{ file: string }} */ { file }) => `vendor/${file}`));
  assert.deepEqual((await files('vendor')).filter((file) => !known.has(file) && !own.has(file)), []);
});

test('nothing of the page writes markup from text, or a style attribute', async () => {
  for (const file of (await files('.')).filter((name) => !name.startsWith('vendor/') && /\.(js|html|css)$/.test(name))) {
    const text = await readFile(join(PAGE, file), 'utf8');
    assert.doesNotMatch(text, /innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|unsafeHTML|unsafeSVG|styleMap|\sstyle=|\son[a-z]+="/, file);
    if (file !== 'index.html') assert.doesNotMatch(text, /https?:\/\/(?!www\.w3\.org|localhost|127\.0\.0\.1)/, file);
    assert.ok(text.split('\n').length < 600, `${file} is too long`);
  }
});

test('what a field of a time has is told in the zone that the page tells times in', () => {
  const at = Date.parse('2026-07-01T23:30:00Z');
  for (const utc of [true, false]) assert.equal(timeOf(fieldTime(at, utc), utc), new Date(at).toISOString());
  assert.equal(fieldTime(at, true), '2026-07-01T23:30');
  assert.equal(timeOf('2026-07-01T23:30', true), '2026-07-01T23:30:00.000Z');
  assert.equal(timeOf(''), undefined);
});

test('slots in a row of which the same became are one; each that was started stands for itself', () => {
  const judgement = (/** @type {string} */ verdict, /** @type {number} */ second, /** @type {object} */ more = {}) => ({ slot: `2026-11-28T10:00:0${second}Z`, at: '', verdict, slots: 1, ...more });
  const rows = inRows([judgement('skipped', 9, { job: 'a', reason: 'x' }), judgement('skipped', 8, { job: 'a', reason: 'x', slots: 3 }), judgement('skipped', 4, { job: 'b', reason: 'x' }), judgement('started', 3), judgement('started', 2), judgement('missed', 1)]);
  assert.deepEqual(rows.map(({ verdict, slot, slots }) => [verdict, slot.at(-2), slots]), [['skipped', '9', 4], ['skipped', '4', 1], ['started', '3', 1], ['started', '2', 1], ['missed', '1', 1]]);
});

test('why: what stands in the way has a word of the page', () => {
  const words = ['no_consumer', 'not_delivered', 'person', 'paused', 'back_off', 'limit', 'window_full', 'all_busy', 'working', 'lost', 'broker_gone', 'broker_blocked', 'queue_full', 'journal_full', 'starts_later'].map((one) => cause({ job: '', cause: one, why: '' }));
  assert.equal(words.at(-1), 'begins later');
  assert.ok(words.every((word) => word && !word.includes('_')));
  assert.equal(new Set(words).size, words.length);
  assert.equal(cause({ job: '', cause: 'something_new', why: '' }), 'something new');
});

test('what is different from the span before is said in words, as far as it was counted', () => {
  const minutes = (/** @type {number} */ now, /** @type {number} */ then) => /** @type {Parameters<typeof compared>[2]} */ (/** @type {unknown} */ ({ span: '7d', total: { minutes: now }, before: { minutes: then } }));
  const say = (/** @type {number | undefined} */ now, /** @type {number | undefined} */ then, between = minutes(100, 100)) => compared(now, then, between, String);
  assert.equal(say(5, 4), '25 % more than in the 7 d before (4)');
  assert.equal(say(3, 4), '25 % less than in the 7 d before (4)');
  assert.equal(say(1000, 999), '1 % more than in the 7 d before (999)', 'not the same');
  assert.equal(say(14, 4), '3.5 times that of the 7 d before (4)');
  assert.equal(say(4, 4), 'as in the 7 d before');
  assert.equal(say(4, 0), 'none in the 7 d before');
  assert.equal(say(0, 4), '4 in the 7 d before');
  assert.equal(say(undefined, 4), '4 in the 7 d before');
  assert.equal(say(4, undefined), 'none in the 7 d before');
  assert.equal(say(5, 4, minutes(100, 60)), '4 in the 7 d before, of which 1 h were counted');
  assert.equal(say(5, 0, minutes(100, 0)), 'the 7 d before: not counted');
  assert.deepEqual([0, 1, 3, 9, 10, 11, 450].map(roundUp), [1, 1, 5, 10, 10, 20, 500]);
});
