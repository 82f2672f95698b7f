// What is different between two texts, line by line.

/** @typedef {{ kind: 'same' | 'before' | 'after', text: string }} DiffLine */

/** Above this many cells of the table the middle is not compared line by line. */
const CELLS_MOST = 2_000_000;

/**
 * @param {string[]} before
 * @param {string[]} after
 * @returns {DiffLine[]}
 */
export function diff(before, after) {
  let start = 0;
  while (start < before.length && start < after.length && before[start] === after[start]) start += 1;
  let end = 0;
  while (end < before.length - start && end < after.length - start && before[before.length - 1 - end] === after[after.length - 1 - end]) end += 1;
  const line = (/** @type {DiffLine['kind']} */ kind) => (/** @type {string} */ text) => ({ kind, text });
  return [
    ...before.slice(0, start).map(line('same')),
    ...middle(before.slice(start, before.length - end), after.slice(start, after.length - end)),
    ...before.slice(before.length - end).map(line('same')),
  ];
}

/**
 * By the longest common subsequence.
 * @param {string[]} a
 * @param {string[]} b
 * @returns {DiffLine[]}
 */
function middle(a, b) {
  /** @type {DiffLine[]} */
  const lines = [];
  let i = 0;
  let j = 0;
  if (a.length * b.length <= CELLS_MOST) {
    const width = b.length + 1;
    const longest = new Uint16Array((a.length + 1) * width);
    for (let row = a.length - 1; row >= 0; row -= 1) {
      for (let column = b.length - 1; column >= 0; column -= 1) {
        longest[row * width + column] = a[row] === b[column] ? longest[(row + 1) * width + column + 1] + 1 : Math.max(longest[(row + 1) * width + column], longest[row * width + column + 1]);
      }
    }
    while (i < a.length && j < b.length) {
      if (a[i] === b[j]) {
        lines.push({ kind: 'same', text: a[i] });
        i += 1;
        j += 1;
      } else if (longest[(i + 1) * width + j] >= longest[i * width + j + 1]) {
        lines.push({ kind: 'before', text: a[i] });
        i += 1;
      } else {
        lines.push({ kind: 'after', text: b[j] });
        j += 1;
      }
    }
  }
  for (; i < a.length; i += 1) lines.push({ kind: 'before', text: a[i] });
  for (; j < b.length; j += 1) lines.push({ kind: 'after', text: b[j] });
  return lines;
}

/**
 * The lines that are different, with a few around them; `undefined` stands for lines that are left out.
 * @param {DiffLine[]} lines
 * @param {number} [around]
 * @returns {(DiffLine | number)[]} a number: so many lines are left out
 */
export function folded(lines, around = 3) {
  const kept = new Uint8Array(lines.length);
  lines.forEach(({ kind }, index) => {
    if (kind !== 'same') kept.fill(1, Math.max(0, index - around), index + around + 1);
  });
  /** @type {(DiffLine | number)[]} */
  const result = [];
  let left = 0;
  lines.forEach((line, index) => {
    if (!kept[index]) {
      left += 1;
      return;
    }
    if (left) result.push(left);
    left = 0;
    result.push(line);
  });
  if (left) result.push(left);
  return result;
}
