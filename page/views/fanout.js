import { nothingView } from './nothing.js';
/** @param {import('../lib/route.js').Route} _route */
export function fanoutView(_route) { return nothingView(); }
