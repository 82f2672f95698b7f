import { nothingView } from './nothing.js';
/** @param {import('../lib/route.js').Route} _route */
export function managerView(_route) { return nothingView(); }
