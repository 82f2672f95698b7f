// The worker for `price` of docs/learn/1-first-workflow.md, with jsworker:
// npm ci --prefix jsworker && npm install --prefix examples/workers/node && node examples/workers/node/price.mjs [--server URL]
import { Failed, run } from 'jsworker';

const CENTS = new Map([['pen', 250], ['ink', 990]]);

run('price', async ({ line }) => {
  const cents = CENTS.get(line.article);
  if (cents === undefined) throw new Failed(`there is no price for ${line.article}`);
  return { line: { ...line, cents: cents * line.count } };
});
