// The map of all items of a fan-out: two bits each, the lowest first within a byte. A cell of the picture stands for many items.

export const WAITING = 0;
export const RUNNING = 1;
export const COMPLETED = 2;
export const FAILED = 3;
export const ITEM_STATES = /** @type {const} */ (['waiting', 'running', 'completed', 'failed']);
/** What the numbers mean once the step or its job has ended: nothing runs any more. */
export const ENDED_STATES = /** @type {const} */ (['waiting', 'cancelled', 'completed', 'failed']);
/** What each is called, then. */
const ENDED_WORDS = { waiting: 'never started', cancelled: 'cut off' };

/** @param {string} state @param {boolean} over whether the step has ended */
export function itemWord(state, over) {
  return (over && ENDED_WORDS[/** @type {'waiting' | 'cancelled'} */ (state)]) || state;
}

/**
 * @param {Uint8Array} map
 * @param {number} item
 */
export function stateOf(map, item) {
  return (map[item >> 2] >> (2 * (item & 3))) & 3;
}

/** For each byte, how many of its four items are in each state: four bits for each state. */
const inByte = new Uint16Array(256);
for (let byte = 0; byte < 256; byte += 1) {
  for (let slot = 0; slot < 4; slot += 1) inByte[byte] += 1 << (4 * ((byte >> (2 * slot)) & 3));
}

/**
 * @param {Uint8Array} map
 * @param {number} from
 * @param {number} to
 * @returns {[number, number, number, number]} waiting, running, completed, failed
 */
export function countIn(map, from, to) {
  /** @type {[number, number, number, number]} */
  const counts = [0, 0, 0, 0];
  let item = from;
  while (item < to && (item & 3) !== 0) counts[stateOf(map, item++)] += 1;
  while (item + 4 <= to) {
    const found = inByte[map[item >> 2]];
    counts[0] += found & 15;
    counts[1] += (found >> 4) & 15;
    counts[2] += (found >> 8) & 15;
    counts[3] += found >> 12;
    item += 4;
  }
  while (item < to) counts[stateOf(map, item++)] += 1;
  return counts;
}

/**
 * The map as it was so many milliseconds after the step began.
 * @param {Uint8Array} map as it is
 * @param {Uint32Array} times two numbers for each item: when it began and ended
 * @param {number} items
 * @param {number} at
 */
export function mapAt(map, times, items, at) {
  const then = new Uint8Array(map.length);
  const known = Math.min(items, times.length >> 1);
  for (let item = 0; item < known; item += 1) {
    if (times[2 * item] > at) continue;
    const now = stateOf(map, item);
    const state = times[2 * item + 1] > at || now < COMPLETED ? RUNNING : now;
    then[item >> 2] |= state << (2 * (item & 3));
  }
  return then;
}

/**
 * How many columns and rows there are, and for how many items a cell stands: a round number, so that cells can be counted.
 * @param {number} items
 * @param {number} width of the picture
 * @param {number} height at most
 * @param {number} least the smallest cell
 */
export function grid(items, width, height, least) {
  let cell = Math.max(least, Math.min(22, Math.floor(Math.sqrt((width * height) / Math.max(1, items)))));
  let columns = Math.max(1, Math.floor(width / cell));
  const most = columns * Math.max(1, Math.floor(height / cell));
  const each = items <= most ? 1 : rounded(items / most);
  const cells = Math.ceil(items / each);
  // With few items the cells are larger, up to a size at which they still look like a map.
  while (cell < 22 && Math.floor(width / (cell + 1)) * Math.floor(height / (cell + 1)) >= cells) {
    cell += 1;
    columns = Math.floor(width / cell);
  }
  return { cell, columns, rows: Math.max(1, Math.ceil(cells / columns)), cells, each };
}

/** The next of 1, 2, 2.5, 5 times a power of ten. @param {number} value */
function rounded(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  for (const factor of [1, 2, 2.5, 5, 10]) if (factor * power >= value && Number.isInteger(factor * power)) return factor * power;
  return 10 * power;
}

/**
 * The cells of a picture: the worst state of each, and how strong it is to be drawn. One failure among a thousand is always seen.
 * @param {Uint8Array} map
 * @param {number} items
 * @param {number} each
 */
export function cells(map, items, each) {
  const many = Math.ceil(items / each);
  const worst = new Uint8Array(many);
  const strength = new Float32Array(many);
  for (let index = 0; index < many; index += 1) {
    const from = index * each;
    const to = Math.min(items, from + each);
    const [waiting, running, completed, failed] = countIn(map, from, to);
    const all = to - from;
    if (failed) {
      worst[index] = FAILED;
      strength[index] = 0.8 + 0.2 * (failed / all);
    } else if (running) {
      worst[index] = RUNNING;
      strength[index] = 0.45 + 0.55 * ((running + completed) / all);
    } else if (waiting && completed) {
      worst[index] = COMPLETED;
      strength[index] = 0.25 + 0.75 * (completed / all);
    } else {
      worst[index] = waiting ? WAITING : COMPLETED;
      strength[index] = 1;
    }
  }
  return { worst, strength };
}

/**
 * The next item in a state from a place on, going round at the end; -1 if there is none.
 * @param {Uint8Array} map
 * @param {number} items
 * @param {number} from
 * @param {number} state
 */
export function nextIn(map, items, from, state) {
  for (let step = 0; step < items; step += 1) {
    const item = (from + step) % items;
    if (stateOf(map, item) === state) return item;
  }
  return -1;
}
