// JSON as text. Payloads are shown as they came: reading them into values would round long numbers, drop keys that are given twice and
// put keys that look like numbers first. So a text is only cut into tokens, and white space between them is made anew.

/**
 * @typedef {'key' | 'string' | 'number' | 'word' | 'mark' | 'bad'} TokenKind
 * @typedef {{ kind: TokenKind, text: string }} Token
 * @typedef {{ indent: number, tokens: Token[] }} Line
 */

const NUMBER = /-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?/y;
const WORD = /true|false|null/y;
const SPACE = /[ \t\r\n]*/y;
const BAD = /[^\s"[\]{},:]+/y;

/**
 * The end of the string that begins at `from`, after its closing mark; the end of the text if there is none.
 * @param {string} text
 * @param {number} from
 */
function stringEnd(text, from) {
  let at = from + 1;
  for (;;) {
    const mark = text.indexOf('"', at);
    if (mark < 0) return text.length;
    let slashes = 0;
    while (text[mark - 1 - slashes] === '\\') slashes += 1;
    if (slashes % 2 === 0) return mark + 1;
    at = mark + 1;
  }
}

/**
 * @param {RegExp} pattern
 * @param {string} text
 * @param {number} at
 */
function matchAt(pattern, text, at) {
  pattern.lastIndex = at;
  return pattern.exec(text)?.[0] ?? '';
}

/** An escape as it is read from left to right: two halves of a sign, one sign, or any other. */
const ESCAPE = /\\u(d[89ab][0-9a-f]{2})\\u(d[c-f][0-9a-f]{2})|\\u([0-9a-f]{4})|\\./gis;
/** What can be seen, and cannot end the string or begin an escape. Spaces, controls and marks of direction are none of these. */
const SEEN = /^(?!["\\\u2800]|\p{Default_Ignorable_Code_Point})[\p{L}\p{N}\p{P}\p{S}]$/u;
/** It is drawn over what is before it: it has to be a letter. */
const MARK = /^(?!\p{Default_Ignorable_Code_Point})\p{M}$/u;
const BEFORE_MARK = /[\p{L}\p{M}]$/u;

/**
 * A string as it is read: signs that were written as \uXXXX only because a client writes ASCII stand there themselves. All other escapes stay.
 * @param {string} text
 */
export function readable(text) {
  if (!text.includes('\\u')) return text;
  let result = '';
  let done = 0;
  /** Where the last escape ends that stayed. */
  let kept = -1;
  for (const found of text.matchAll(ESCAPE)) {
    const [escape, high, low, one] = found;
    result += text.slice(done, found.index);
    done = found.index + escape.length;
    const sign = high ? String.fromCharCode(parseInt(high, 16), parseInt(low, 16)) : one ? String.fromCharCode(parseInt(one, 16)) : '';
    const seen = SEEN.test(sign) || (MARK.test(sign) && kept !== found.index && BEFORE_MARK.test(result.slice(-2)));
    result += seen ? sign : escape;
    if (!seen) kept = done;
  }
  return result + text.slice(done);
}

/**
 * The tokens of a text, which may be cut off or be no JSON at all: nothing of it is lost but white space between tokens.
 * @param {string} text
 * @returns {Generator<Token>}
 */
export function* tokens(text) {
  let at = 0;
  while (at < text.length) {
    at += matchAt(SPACE, text, at).length;
    if (at >= text.length) return;
    const sign = text[at];
    if (sign === '"') {
      const end = stringEnd(text, at);
      const after = end + matchAt(SPACE, text, end).length;
      yield { kind: text[after] === ':' ? 'key' : 'string', text: text.slice(at, end) };
      at = end;
      continue;
    }
    if ('[]{},:'.includes(sign)) {
      yield { kind: 'mark', text: sign };
      at += 1;
      continue;
    }
    const number = matchAt(NUMBER, text, at);
    const word = number || matchAt(WORD, text, at);
    const whole = matchAt(BAD, text, at) || sign;
    yield { kind: whole !== word ? 'bad' : number ? 'number' : 'word', text: whole };
    at += whole.length;
  }
}

/** How deep lines are indented at most: a text may nest a million levels. */
const DEEPEST = 24;

/**
 * The lines of a text, each value on its own. Empty lists and objects stay in one line, and so do short lists of plain values.
 * @param {string} text
 * @returns {Line[]}
 */
export function lines(text) {
  const all = [...tokens(text)];
  /** @type {Line[]} */
  const result = [];
  let depth = 0;
  /** @type {Line} */
  let line = { indent: 0, tokens: [] };
  const next = () => {
    if (line.tokens.length) result.push(line);
    line = { indent: Math.min(depth, DEEPEST), tokens: [] };
  };
  for (let index = 0; index < all.length; index += 1) {
    const token = all[index];
    if (token.kind !== 'mark') {
      line.tokens.push(token);
      continue;
    }
    switch (token.text) {
      case '{':
      case '[': {
        line.tokens.push(token);
        const short = shortEnd(all, index);
        if (short > index) {
          for (let inner = index + 1; inner <= short; inner += 1) line.tokens.push(all[inner]);
          index = short;
          break;
        }
        depth += 1;
        next();
        break;
      }
      case '}':
      case ']':
        depth = Math.max(0, depth - 1);
        next();
        line.tokens.push(token);
        break;
      case ',':
        line.tokens.push(token);
        next();
        break;
      default:
        line.tokens.push(token);
    }
  }
  if (line.tokens.length) result.push(line);
  return result;
}

/**
 * Where a list or object that fits into its line ends; `from` if it does not.
 * @param {Token[]} all
 * @param {number} from
 */
function shortEnd(all, from) {
  const close = all[from].text === '[' ? ']' : '}';
  let width = 0;
  for (let index = from + 1; index < all.length && width <= 64; index += 1) {
    const token = all[index];
    if (token.kind === 'mark') {
      if (token.text === close) return close === '}' && index > from + 1 ? from : index;
      if (token.text !== ',') return from;
    }
    width += token.text.length + 1;
  }
  return from;
}

/**
 * Reads JSON into values, but leaves the values under some keys as the text that they are.
 * @param {string} text
 * @param {ReadonlySet<string>} keep
 * @returns {any}
 */
export function parseKeeping(text, keep) {
  let at = 0;
  const space = () => {
    at += matchAt(SPACE, text, at).length;
  };
  /** @returns {never} */
  const fail = () => {
    throw new SyntaxError(`unexpected JSON at ${at}`);
  };
  /** @returns {any} */
  const value = () => {
    space();
    const sign = text[at];
    if (sign === '{') {
      /** @type {Record<string, any>} */
      const object = Object.create(null);
      at += 1;
      space();
      if (text[at] === '}') {
        at += 1;
        return object;
      }
      for (;;) {
        space();
        if (text[at] !== '"') fail();
        const key = JSON.parse(string());
        space();
        if (text[at] !== ':') fail();
        at += 1;
        space();
        const from = at;
        const read = value();
        object[key] = keep.has(key) ? text.slice(from, at) : read;
        space();
        if (text[at] === ',') at += 1;
        else break;
      }
      if (text[at] !== '}') fail();
      at += 1;
      return object;
    }
    if (sign === '[') {
      /** @type {any[]} */
      const list = [];
      at += 1;
      space();
      if (text[at] === ']') {
        at += 1;
        return list;
      }
      for (;;) {
        list.push(value());
        space();
        if (text[at] === ',') at += 1;
        else break;
      }
      if (text[at] !== ']') fail();
      at += 1;
      return list;
    }
    if (sign === '"') return JSON.parse(string());
    const plain = matchAt(NUMBER, text, at) || matchAt(WORD, text, at);
    if (!plain) fail();
    at += plain.length;
    return JSON.parse(plain);
  };
  const string = () => {
    const end = stringEnd(text, at);
    const found = text.slice(at, end);
    at = end;
    return found;
  };
  const result = value();
  space();
  if (at < text.length) fail();
  return result;
}
