// lit-html asks for a document when it is loaded. Units that draw nothing get one that can do nothing.
// It must be imported first.

/** @type {any} */ (globalThis).document ??= { createComment: () => ({}), createTreeWalker: () => ({}), hidden: false };
