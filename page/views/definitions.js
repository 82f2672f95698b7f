import { nothingView } from './nothing.js';
/** @param {import('../lib/route.js').Route} _route */
export function definitionsView(_route) { return nothingView(); }
