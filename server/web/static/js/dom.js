// Making elements. Children that are strings become text, never markup: what a model writes is shown, not run.

/** An element; keys of `props` beginning with "on" are listeners, `data` is its dataset, the rest are attributes. */
export function el(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "data") Object.assign(element.dataset, value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== undefined && child !== null));
  return element;
}

/** Say something to screen readers, once, without moving the focus. */
export function announce(text) {
  document.getElementById("status").textContent = text;
}

let made = 0;
export const freshId = (prefix) => `${prefix}-${(made += 1)}`;
