/** A JSON array of objects, with the text of one member of each as it stands there: numbers keep all their digits. */

/** An object of the array, and the text of its member. */
export interface Part {
  value: Record<string, unknown>;
  /** The text of the member; undefined if there is none. */
  text: string | undefined;
}

const SPACE = /[ \t\n\r]*/y;
const QUOTE = 0x22;
const BACKSLASH = 0x5c;

/** The objects of an array, each with the text of its member `name`, which is left out of the value. Throws if it is not JSON of that form. */
export function partsOf(text: string, name: string): Part[] {
  const parts: Part[] = [];
  let at = expect(text, 0, '[');
  if (text[at] === ']') return parts;
  for (;;) {
    const [part, end] = partAt(text, at, name);
    parts.push(part);
    if (text[end] === ']') return parts;
    at = expect(text, end, ',');
  }
}

function partAt(text: string, start: number, name: string): [Part, number] {
  const members: string[] = [];
  let raw: string | undefined;
  let at = expect(text, start, '{');
  while (text[at] !== '}') {
    const key = endOf(text, at);
    const from = expect(text, skip(text, key), ':');
    const end = endOf(text, from);
    if (JSON.parse(text.slice(at, key)) === name) raw = text.slice(from, end);
    else members.push(text.slice(at, end));
    at = skip(text, end);
    if (text[at] !== '}') at = expect(text, at, ',');
  }
  return [{ value: JSON.parse(`{${members.join(',')}}`), text: raw }, skip(text, at + 1)];
}

/** The end of the value that begins here. What is within it is not looked at: it is parsed by whoever needs it. */
function endOf(text: string, start: number): number {
  let levels = 0;
  for (let at = start; at < text.length; at++) {
    switch (text.charCodeAt(at)) {
      case QUOTE:
        for (at++; at < text.length && text.charCodeAt(at) !== QUOTE; at++) {
          if (text.charCodeAt(at) === BACKSLASH) at++;
        }
        if (levels === 0) return at + 1;
        break;
      case 0x5b: // [
      case 0x7b: // {
        levels++;
        break;
      case 0x5d: // ]
      case 0x7d: // }
        if (levels === 0) return at;
        if (--levels === 0) return at + 1;
        break;
      case 0x2c: // ,
      case 0x20:
      case 0x09:
      case 0x0a:
      case 0x0d:
        if (levels === 0) return at;
    }
  }
  throw new SyntaxError('the array ends too soon');
}

function skip(text: string, at: number): number {
  SPACE.lastIndex = at;
  SPACE.test(text);
  return SPACE.lastIndex;
}

function expect(text: string, start: number, sign: string): number {
  const at = skip(text, start);
  if (text[at] !== sign) throw new SyntaxError(`${sign} is missing at ${at}`);
  return skip(text, at + 1);
}
