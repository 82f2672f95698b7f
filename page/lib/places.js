// Where a reader was on each page of the way back: Back leads there again, also after the page was loaded anew.

const KEY = 'workflow-manager.places';
/** How long the way back is remembered. */
const MOST = 50;
/** How long a place is waited for, in milliseconds: a list may come shorter than it was. */
const PATIENCE = 3000;

/** @typedef {{ top: number, inner: { top: number, left: number }[] }} Place */

/** Places by the key of their entry in the browser's history. @type {Map<string, Place>} */
const places = read();
let key = '';
/** Where to go as soon as the page is long enough. @type {{ place: Place, until: number } | undefined} */
let wanted;
/** The view that was asked for is not there yet: what moves is the one before. */
let between = false;
/** The view is there, and not drawn yet; `another`: it is another one than before. @type {{ another: boolean } | undefined} */
let fresh;

function read() {
  try {
    return /** @type {Map<string, Place>} */ (new Map(JSON.parse(sessionStorage.getItem(KEY) ?? '[]')));
  } catch {
    return new Map();
  }
}

/** What scrolls within a view. */
const inside = () => /** @type {HTMLElement[]} */ ([...document.querySelectorAll('main [data-place]')]);

function keep() {
  if (!key || wanted || between) return;
  places.delete(key);
  places.set(key, { top: scrollY, inner: inside().map(({ scrollTop, scrollLeft }) => ({ top: scrollTop, left: scrollLeft })) });
  if (places.size > MOST) places.delete(/** @type {string} */ (places.keys().next().value));
}

export function watchPlaces() {
  history.scrollRestoration = 'manual';
  addEventListener('scroll', keep, { capture: true, passive: true });
  // Who moves it decides.
  for (const kind of ['wheel', 'touchmove', 'pointerdown', 'keydown']) addEventListener(kind, () => { if (!between) wanted = undefined; }, { capture: true, passive: true });
  addEventListener('pagehide', () => {
    try {
      sessionStorage.setItem(KEY, JSON.stringify([...places]));
    } catch {
      // Without storage Back begins at the top after the page was loaded anew.
    }
  });
}

/** An entry of the history begins, or one comes back. */
export function enterPlace() {
  const known = typeof history.state?.place === 'string' ? history.state.place : '';
  if (known && known === key) return;
  key = known || `${Date.now().toString(36)}-${Math.random().toString(36).slice(2)}`;
  if (!known) history.replaceState({ ...history.state, place: key }, '');
  wanted = undefined;
  fresh = undefined;
  between = true;
}

/**
 * The view is there: the next drawing has it. Within the same view a new address moves nothing; Back moves it in any case.
 * @param {boolean} another whether it is another view than before
 */
export function arrived(another) {
  if (between) fresh = { another };
}

/** After each drawing, until the place is reached. */
export function settle() {
  if (fresh) {
    const place = places.get(key);
    if (place) wanted = { place, until: Date.now() + PATIENCE };
    else if (fresh.another) scrollTo(0, 0);
    between = false;
    fresh = undefined;
  }
  if (!wanted || between) return;
  const { place, until } = wanted;
  scrollTo(0, place.top);
  const boxes = inside();
  place.inner.forEach((box, index) => boxes[index]?.scrollTo(box.left, box.top));
  const there = Math.abs(scrollY - place.top) < 2 && place.inner.every((box, index) => boxes[index] && Math.abs(boxes[index].scrollTop - box.top) < 2);
  if (there || Date.now() > until) wanted = undefined;
}
