// Runs once for each message: the step's input comes on standard input, its output goes to standard output.
import { readFileSync } from 'node:fs';

const message = JSON.parse(readFileSync(0, 'utf8'));
if (!message.name) {
  console.error('nobody to greet: the message has no name'); // this fails the attempt, with these words
  process.exit(1);
}
console.log(JSON.stringify({ greeting: `Hello, ${message.name}!` }));
