// The API key: kept for this browser tab alone (sessionStorage), sent as a header and shown nowhere.

import { el } from "./dom.js";

const NAME = "slipstream-api-key";

export const getKey = () => sessionStorage.getItem(NAME) ?? "";

/** The dialog that asks for the key. `changed` is called when another one has been saved. */
export class KeyDialog {
  constructor(button, changed) {
    this.button = button;
    this.changed = changed;
    this.reason = el("p", { class: "error-text", role: "alert", hidden: true });
    this.input = el("input", { type: "password", id: "key-input", autocomplete: "off", spellcheck: "false" });
    const form = el("form", { method: "dialog", class: "stack" },
      el("h2", { id: "key-title" }, "API key"),
      this.reason,
      el("label", { for: "key-input" }, "Key for this server"),
      this.input,
      el("p", { class: "muted" }, "Kept in this tab until it is closed. Empty for a server that asks for none."),
      el("div", { class: "row end" },
        el("button", { type: "button", class: "quiet", onclick: () => this.dialog.close() }, "Cancel"),
        el("button", { type: "submit", class: "primary" }, "Save")));
    form.addEventListener("submit", () => this.save());
    this.dialog = el("dialog", { "aria-labelledby": "key-title" }, form);
    document.body.append(this.dialog);
    button.addEventListener("click", () => this.ask());
    this.show();
  }

  /** Open it; reason: why the key is asked for, if not by the reader's own wish. */
  ask(reason = "") {
    this.reason.textContent = reason;
    this.reason.hidden = !reason;
    this.input.value = getKey();
    if (!this.dialog.open) this.dialog.showModal();
    this.input.focus();
  }

  save() {
    const key = this.input.value.trim();
    if (key) sessionStorage.setItem(NAME, key);
    else sessionStorage.removeItem(NAME);
    this.input.value = "";
    this.show();
    this.changed();
  }

  show() {
    this.button.textContent = getKey() ? "API key ✓" : "API key";
    this.button.setAttribute("aria-label", getKey() ? "API key, set" : "API key, not set");
  }
}
