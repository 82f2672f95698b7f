import { nothingView } from './nothing.js';
/** @param {import('../lib/route.js').Route} _route */
export function statusesView(_route) { return nothingView(); }
