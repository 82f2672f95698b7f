import { nothingView } from './nothing.js';
/** @param {import('../lib/route.js').Route} _route */
export function jobsView(_route) { return nothingView(); }
