// {"words": [ … ]} becomes {"lengths": [ { word, length }, … ]}.
import { readFileSync } from 'node:fs';

const { words } = JSON.parse(readFileSync(0, 'utf8'));
console.log(JSON.stringify({ lengths: words.map((word) => ({ word, length: word.length })) }));
