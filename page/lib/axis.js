// The axis of time on which steps are drawn. Long stretches in which nothing happens are folded, so that what happens can be seen.

/**
 * @typedef {{ from: number, to: number }} Span
 * @typedef {{ from: number, to: number, x: number, width: number, folded: boolean }} Segment a part of the axis; x and width are shares of 1
 */

/** How wide a folded stretch is drawn. */
const FOLD = 0.045;
/** A stretch is folded if it takes more than this share of the time. */
const LONG = 0.2;

/**
 * @param {Span[]} busy in which something happens
 * @param {Span} whole
 * @param {boolean} fold
 * @returns {Segment[]}
 */
export function segments(busy, whole, fold) {
  const length = whole.to - whole.from;
  if (!(length > 0)) return [{ from: whole.from, to: whole.from + 1, x: 0, width: 1, folded: false }];
  if (!fold) return [{ ...whole, x: 0, width: 1, folded: false }];
  /** @type {Span[]} */
  const merged = [];
  for (const { from, to } of [...busy].sort((a, b) => a.from - b.from)) {
    const start = Math.max(whole.from, from);
    const end = Math.min(whole.to, Math.max(to, from));
    if (end < whole.from || start > whole.to) continue;
    const last = merged.at(-1);
    if (last && start <= last.to) last.to = Math.max(last.to, end);
    else merged.push({ from: start, to: end });
  }
  // What is folded is long compared with the rest, so the longest goes first, then again with what is left.
  /** @type {Span[]} */
  let gaps = [];
  let before = whole.from;
  for (const { from, to } of merged) {
    if (from > before) gaps.push({ from: before, to: from });
    before = Math.max(before, to);
  }
  if (before < whole.to) gaps.push({ from: before, to: whole.to });
  gaps.sort((a, b) => b.to - b.from - (a.to - a.from));
  let shownLength = length;
  const folded = [];
  for (const gap of gaps) {
    const gapLength = gap.to - gap.from;
    if (folded.length >= 8 || gapLength <= LONG * shownLength) break;
    folded.push(gap);
    shownLength -= gapLength;
  }
  folded.sort((a, b) => a.from - b.from);
  const room = 1 - FOLD * folded.length;
  /** @type {Segment[]} */
  const result = [];
  let at = whole.from;
  let x = 0;
  /** @param {number} from @param {number} to @param {boolean} isFold */
  const add = (from, to, isFold) => {
    const width = isFold ? FOLD : shownLength > 0 ? (room * (to - from)) / shownLength : 0;
    result.push({ from, to, x, width, folded: isFold });
    x += width;
  };
  for (const gap of folded) {
    if (gap.from > at) add(at, gap.from, false);
    add(gap.from, gap.to, true);
    at = gap.to;
  }
  if (at < whole.to) add(at, whole.to, false);
  return result;
}

/**
 * @param {Segment[]} axis
 * @param {number} at
 */
export function xOf(axis, at) {
  const first = axis[0];
  if (at <= first.from) return 0;
  for (const part of axis) {
    if (at <= part.to) return part.x + (part.width * (at - part.from)) / (part.to - part.from || 1);
  }
  return 1;
}

/**
 * @param {Segment[]} axis
 * @param {number} x
 */
export function timeAt(axis, x) {
  for (const part of axis) {
    if (x <= part.x + part.width) return part.from + ((part.to - part.from) * Math.max(0, x - part.x)) / (part.width || 1);
  }
  return axis[axis.length - 1].to;
}

const STEPS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 15_000, 30_000, 60_000, 120_000, 300_000, 600_000, 1_200_000, 1_800_000, 3_600_000, 7_200_000, 14_400_000, 28_800_000, 86_400_000, 172_800_000, 604_800_000, 1_209_600_000, 2_592_000_000];

/**
 * Marks on the axis at round offsets from its beginning, not nearer to each other than a share of the width.
 * @param {Segment[]} axis
 * @param {number} apart
 */
export function ticks(axis, apart) {
  const begin = axis[0].from;
  const open = axis.filter((part) => !part.folded);
  const time = open.reduce((sum, part) => sum + part.to - part.from, 0);
  const width = open.reduce((sum, part) => sum + part.width, 0) || 1;
  const least = (time / width) * apart;
  const step = STEPS.find((value) => value >= least) ?? Math.ceil(least / 2_592_000_000) * 2_592_000_000;
  /** @type {{ x: number, offset: number }[]} */
  const result = [];
  for (const part of open) {
    for (let offset = Math.ceil((part.from - begin) / step) * step; offset <= part.to - begin && result.length < 60; offset += step) {
      const x = xOf([part], begin + offset);
      if (!result.length || x - result[result.length - 1].x >= apart * 0.8) result.push({ x, offset });
    }
  }
  return result;
}

/** How wide a digit or letter of the axis is at most, in pixels, and the room beside a text. */
const LETTER = 7.5;
const BESIDE = 6;
/** How wide the sign of a fold is, in pixels. */
const FOLD_SIGN = 14;

/**
 * Which marks have room for their text: the sign of a fold stands alone.
 * @param {{ at: number, text: string }[]} marks `at` in percent of the width
 * @param {number[]} folds where their signs stand, in percent
 * @param {number} width in pixels
 */
export function labelled(marks, folds, width) {
  return marks.map(({ at, text }) => {
    const from = (at * width) / 100 - BESIDE;
    const to = from + text.length * LETTER + 2 * BESIDE;
    return folds.every((fold) => Math.abs((fold * width) / 100 - (from + to) / 2) >= (to - from + FOLD_SIGN) / 2);
  });
}
