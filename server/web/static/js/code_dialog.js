// Copies a text and shows it, so that it is there even where the browser keeps pages from the clipboard.

import { announce, el } from "./dom.js";

const title = el("h2", { id: "code-title" });
const text = el("textarea", { class: "code", readonly: true, rows: "16", spellcheck: "false", "aria-labelledby": "code-title" });
const copied = el("p", { class: "muted", role: "status" });
const dialog = el("dialog", { class: "wide", "aria-labelledby": "code-title" },
  el("form", { method: "dialog", class: "stack" }, title, text,
    el("div", { class: "row end" }, copied,
      el("button", { type: "button", class: "quiet", onclick: () => copy() }, "Copy again"),
      el("button", { type: "submit", class: "primary" }, "Close"))));
document.body.append(dialog);

export async function offer(name, code) {
  title.textContent = name;
  text.value = code;
  dialog.showModal();
  text.focus();
  await copy();
}

async function copy() {
  try {
    await navigator.clipboard.writeText(text.value);
    copied.textContent = "Copied.";
    announce("Copied to the clipboard");
  } catch {
    text.select();
    copied.textContent = "Selected: press Ctrl+C to copy.";
  }
}
