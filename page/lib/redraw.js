// The page is drawn from its state, at most once in each frame.

let asked = false;
let draw = () => {};

/** @param {() => void} how */
export function drawWith(how) {
  draw = how;
}

export function redraw() {
  if (asked) return;
  asked = true;
  const run = () => {
    if (!asked) return;
    asked = false;
    draw();
  };
  // A hidden page gets no frames, but it must be right when it is seen again.
  if (globalThis.document?.hidden) setTimeout(run, 100);
  else requestAnimationFrame(run);
}

/** Draws without waiting for a frame: for what must be there before the next key. */
export function redrawNow() {
  asked = false;
  draw();
}
