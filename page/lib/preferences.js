// What a reader has chosen for this browser: theme and time zone. Nothing of it is in the address, and nothing is secret.

/** @typedef {'system' | 'light' | 'dark'} Theme */

const KEY = 'workflow-manager.preferences';

/** @returns {{ theme: Theme, utc: boolean, keys: boolean, notify: boolean, saved: { name: string, address: string }[] }} */
function read() {
  const preferences = { theme: /** @type {Theme} */ ('system'), utc: false, keys: true, notify: false, saved: /** @type {{ name: string, address: string }[]} */ ([]) };
  try {
    const found = JSON.parse(globalThis.localStorage?.getItem(KEY) ?? '{}');
    if (found.theme === 'light' || found.theme === 'dark') preferences.theme = found.theme;
    if (found.utc === true) preferences.utc = true;
    if (found.keys === false) preferences.keys = false;
    if (found.notify === true) preferences.notify = true;
    if (Array.isArray(found.saved)) {
      for (const view of found.saved.slice(0, 50)) {
        if (typeof view?.name === 'string' && typeof view?.address === 'string' && view.address.startsWith('#/')) preferences.saved.push({ name: view.name, address: view.address });
      }
    }
  } catch {
    // Storage may be forbidden or hold something else: the page works without.
  }
  return preferences;
}

export const preferences = read();

/** @param {Partial<typeof preferences>} changes */
export function prefer(changes) {
  Object.assign(preferences, changes);
  try {
    localStorage.setItem(KEY, JSON.stringify(preferences));
  } catch {
    // As above.
  }
  applyTheme();
}

export function applyTheme() {
  const root = document.documentElement;
  if (preferences.theme === 'system') delete root.dataset.theme;
  else root.dataset.theme = preferences.theme;
}
