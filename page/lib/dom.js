// Small helps for templates. Styles are set through the CSS object model: the content security policy forbids style attributes.

import { noChange } from '../vendor/lit-html@3.3.3/lit-html.js';
import { Directive, directive, PartType } from '../vendor/lit-html@3.3.3/directive.js';

/** @import { ElementPart } from '../vendor/lit-html@3.3.3/lit-html.js' */
/** @import { PartInfo } from '../vendor/lit-html@3.3.3/directive.js' */

/** @typedef {Record<string, string | number | undefined>} Properties */

class Css extends Directive {
  /** @type {Properties} */
  #before = {};

  /** @param {PartInfo} part */
  constructor(part) {
    super(part);
    if (part.type !== PartType.ELEMENT) throw new Error('css() stands in the tag itself');
  }

  /** @param {Properties} _properties */
  render(_properties) {
    return noChange;
  }

  /**
   * @override
   * @param {ElementPart} part
   * @param {[Properties]} values
   */
  update(part, [properties]) {
    const { style } = /** @type {HTMLElement} */ (part.element);
    for (const name of Object.keys(this.#before)) if (!(name in properties)) style.removeProperty(name);
    for (const [name, value] of Object.entries(properties)) {
      if (this.#before[name] === value) continue;
      if (value === undefined) style.removeProperty(name);
      else style.setProperty(name, String(value));
    }
    this.#before = { ...properties };
    return noChange;
  }
}

/** Sets properties of the element's style: `<div ${css({ width: '3px' })}>`. */
export const css = directive(Css);

class Attached extends Directive {
  /** @type {((element: HTMLElement) => void) | undefined} */
  #done;

  /** @param {(element: HTMLElement) => void} _call */
  render(_call) {
    return noChange;
  }

  /**
   * @override
   * @param {ElementPart} part
   * @param {[(element: HTMLElement) => void]} values
   */
  update(part, [call]) {
    if (!this.#done) {
      this.#done = call;
      const element = /** @type {HTMLElement} */ (part.element);
      queueMicrotask(() => call(element));
    }
    return noChange;
  }
}

/** Calls once, when the element stands in the page: for canvases, focus, observers. */
export const attached = directive(Attached);

const sizes = globalThis.ResizeObserver && new ResizeObserver((changes) => {
  for (const { target } of changes) {
    const frame = /** @type {HTMLElement} */ (target.closest('.scrolls') ?? target);
    // Who has no mouse moves it with the keys. What does not scroll is no stop on their way.
    if (frame.scrollWidth > frame.clientWidth || frame.scrollHeight > frame.clientHeight) frame.tabIndex = 0;
    else frame.removeAttribute('tabindex');
  }
});

/** For what may be larger than its frame: `<div class="table-wrap" ${scrolls()}>`. */
export const scrolls = () => attached((element) => {
  element.classList.add('scrolls');
  element.setAttribute('role', 'group');
  sizes.observe(element);
  if (element.firstElementChild) sizes.observe(element.firstElementChild);
});

/** @param {string} text */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = document.createElement('textarea');
    area.value = text;
    area.className = 'out-of-sight';
    (document.querySelector('dialog[open]') ?? document.body).append(area);
    area.select();
    const done = document.execCommand('copy');
    area.remove();
    return done;
  }
}
