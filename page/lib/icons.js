// Signs, drawn on a square of 16. They take the colour of the text around them.

import { html, svg } from '../vendor/lit-html@3.3.3/lit-html.js';

export const PATHS = {
  waiting: svg`<circle cx="8" cy="8" r="5.25" stroke-dasharray="2.2 1.9"/>`,
  running: svg`<circle cx="8" cy="8" r="5.75" opacity=".35"/><path d="M8 2.25a5.75 5.75 0 0 1 5.75 5.75"/>`,
  paused: svg`<path d="M5.75 4v8M10.25 4v8" stroke-width="2"/>`,
  completed: svg`<path d="m3.5 8.4 3 3 6-6.6" stroke-width="1.75"/>`,
  failed: svg`<path d="m4.25 4.25 7.5 7.5m0-7.5-7.5 7.5" stroke-width="1.75"/>`,
  skipped: svg`<path d="M3 8h7.5M8 4.75 11.25 8 8 11.25M13.25 4.5v7"/>`,
  cancelled: svg`<circle cx="8" cy="8" r="5.25"/><path d="m4.4 11.6 7.2-7.2"/>`,
  unknown: svg`<circle cx="8" cy="8" r="5.25"/><path d="M8 5v3.5M8 11h.01"/>`,
  overview: svg`<rect x="2.5" y="2.5" width="4.5" height="4.5" rx="1"/><rect x="9" y="2.5" width="4.5" height="4.5" rx="1"/><rect x="2.5" y="9" width="4.5" height="4.5" rx="1"/><rect x="9" y="9" width="4.5" height="4.5" rx="1"/>`,
  jobs: svg`<path d="M5.5 4h8M5.5 8h8M5.5 12h8M2.5 4h.01M2.5 8h.01M2.5 12h.01"/>`,
  inbox: svg`<path d="M2.5 9.5v3.25c0 .4.35.75.75.75h9.5c.4 0 .75-.35.75-.75V9.5M2.5 9.5 4.6 3.2a1 1 0 0 1 .95-.7h4.9a1 1 0 0 1 .95.7l2.1 6.3M2.5 9.5h3l1 2h3l1-2h3"/>`,
  schedules: svg`<rect x="2.5" y="3.25" width="11" height="10.25" rx="1.5"/><path d="M2.5 6.5h11M5.5 1.9v2.6M10.5 1.9v2.6M8 8.4v1.9l1.4.9"/>`,
  statuses: svg`<rect x="2.25" y="3" width="11.5" height="10" rx="1.5"/><path d="M2.25 6.5h11.5M6.5 6.5V13"/>`,
  definitions: svg`<rect x="2" y="6" width="4" height="4" rx="1"/><rect x="10" y="2.5" width="4" height="4" rx="1"/><rect x="10" y="9.5" width="4" height="4" rx="1"/><path d="M6 8c2.5 0 1.5-3.5 4-3.5M6 8c2.5 0 1.5 3.5 4 3.5"/>`,
  manager: svg`<rect x="2.5" y="3" width="11" height="4" rx="1"/><rect x="2.5" y="9" width="11" height="4" rx="1"/><path d="M5 5h.01M5 11h.01"/>`,
  search: svg`<circle cx="7" cy="7" r="4"/><path d="m10 10 3.5 3.5"/>`,
  sun: svg`<circle cx="8" cy="8" r="2.75"/><path d="M8 1.75v1.5M8 12.75v1.5M1.75 8h1.5M12.75 8h1.5M3.6 3.6l1 1M11.4 11.4l1 1M3.6 12.4l1-1M11.4 4.6l1-1"/>`,
  moon: svg`<path d="M13 9.6A5.5 5.5 0 0 1 6.4 3a5.5 5.5 0 1 0 6.6 6.6Z"/>`,
  screen: svg`<rect x="2" y="3" width="12" height="8" rx="1.25"/><path d="M6 13.5h4"/>`,
  clock: svg`<circle cx="8" cy="8" r="5.75"/><path d="M8 4.75V8l2.25 1.5"/>`,
  help: svg`<circle cx="8" cy="8" r="5.75"/><path d="M6.3 6.4a1.75 1.75 0 1 1 2.5 1.6c-.5.25-.8.6-.8 1.1M8 11.25h.01"/>`,
  close: svg`<path d="m4.5 4.5 7 7m0-7-7 7"/>`,
  more: svg`<path d="M3.75 8h.01M8 8h.01M12.25 8h.01" stroke-width="2"/>`,
  copy: svg`<rect x="5.5" y="5.5" width="8" height="8" rx="1.5"/><path d="M10.5 3.5v-.25a.75.75 0 0 0-.75-.75H3.25a.75.75 0 0 0-.75.75v6.5c0 .4.35.75.75.75h.25"/>`,
  left: svg`<path d="M10 3.5 5.5 8l4.5 4.5"/>`,
  right: svg`<path d="M6 3.5 10.5 8 6 12.5"/>`,
  down: svg`<path d="M3.5 6 8 10.5 12.5 6"/>`,
  play: svg`<path d="M5 3.5v9l7.5-4.5Z"/>`,
  retry: svg`<path d="M13 4v3.25H9.75M12.7 7A5 5 0 1 0 13 9.5"/>`,
  fan: svg`<rect x="2.5" y="2.5" width="3" height="3"/><rect x="6.75" y="2.5" width="3" height="3"/><rect x="11" y="2.5" width="3" height="3"/><rect x="2.5" y="6.75" width="3" height="3"/><rect x="6.75" y="6.75" width="3" height="3"/><rect x="11" y="6.75" width="3" height="3"/><rect x="2.5" y="11" width="3" height="3"/><rect x="6.75" y="11" width="3" height="3"/>`,
  person: svg`<circle cx="8" cy="5.25" r="2.5"/><path d="M3 13.25c.5-2.75 2.5-4 5-4s4.5 1.25 5 4"/>`,
  alert: svg`<path d="M8 2.5 14.25 13.25H1.75ZM8 6.5v3M8 11.5h.01"/>`,
  change: svg`<path d="M2.5 5h5.75M12 5h1.5M2.5 11H4M7.75 11h5.75"/><circle cx="10.1" cy="5" r="1.75"/><circle cx="5.9" cy="11" r="1.75"/>`,
  link: svg`<path d="M6.75 9.25a2.5 2.5 0 0 0 3.5 0l2.25-2.25a2.5 2.5 0 0 0-3.5-3.5l-.6.6M9.25 6.75a2.5 2.5 0 0 0-3.5 0L3.5 9a2.5 2.5 0 0 0 3.5 3.5l.6-.6"/>`,
  download: svg`<path d="M8 2.5v7.5M4.75 7 8 10.25 11.25 7M3 13.25h10"/>`,
  expand: svg`<path d="M9.5 2.5h4v4M13.5 2.5 9 7M6.5 13.5h-4v-4M2.5 13.5 7 9"/>`,
  plus: svg`<path d="M8 3.5v9M3.5 8h9"/>`,
  minus: svg`<path d="M3.5 8h9"/>`,
  filter: svg`<path d="M2.5 4h11M4.5 8h7M6.5 12h3"/>`,
  star: svg`<path d="m8 2.25 1.75 3.6 3.950.55-2.85 2.800.7 3.95L8 11.25l-3.55 1.900.7-3.95L2.3 6.4l3.95-.55Z"/>`,
};

/**
 * @param {keyof typeof PATHS} name
 * @param {string} [label] what it says; without, the text beside it does
 */
export function icon(name, label = '') {
  return html`<svg class="icon icon-${name}" viewBox="0 0 16 16" width="16" height="16" fill="none" stroke="currentColor" stroke-width="1.5" stroke-linecap="round" stroke-linejoin="round" aria-hidden=${label ? 'false' : 'true'} role=${label ? 'img' : 'presentation'} aria-label=${label}>${PATHS[name]}</svg>`;
}
