/** With `node --import`: the package `@opentelemetry/api` is not installed. */

import { register } from 'node:module';

const hooks = `export async function resolve(name, context, next) {
  if (name === '@opentelemetry/api') throw new Error('not installed');
  return next(name, context);
}`;
register(`data:text/javascript,${encodeURIComponent(hooks)}`);
