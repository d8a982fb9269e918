// The API key: kept for this browser tab alone, sent as a header and shown nowhere.

import { el } from "./dom.js";
import { ofTab } from "./storage.js";

const NAME = "slipstream-api-key";

export const getKey = () => ofTab.get(NAME);

/** What about a key cannot be sent in a header, in words; "" if nothing. Mostly what came along when it was copied: an
 *  ellipsis in place of its end, a blank that nobody sees. */
export function faultOf(key) {
  const odd = /[^\x20-\x7e\xa1-\xac\xae-\xff]/u.exec(key);
  if (!odd) return "";
  const code = odd[0].codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
  const shown = /[\p{L}\p{N}\p{P}\p{S}]/u.test(odd[0]) ? `“${odd[0]}” (U+${code})` : `an invisible character (U+${code})`;
  return `This key holds ${shown}, which no key can. Was it copied whole, and nothing else with it?`;
}

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
    form.addEventListener("submit", (event) => this.save(event));
    this.dialog = el("dialog", { "aria-labelledby": "key-title" }, form);
    document.body.append(this.dialog);
    button.addEventListener("click", () => this.ask());
    this.show();
  }

  /** Open it; reason: why the key is asked for, if not by the reader's own wish. */
  ask(reason = "") {
    this.explain(reason);
    this.input.value = getKey();
    if (!this.dialog.open) this.dialog.showModal();
    this.input.focus();
  }

  explain(reason) {
    this.reason.textContent = reason;
    this.reason.hidden = !reason;
  }

  save(event) {
    const key = this.input.value.trim();
    const fault = faultOf(key);
    if (fault) {
      event.preventDefault(); // the dialog stays open, with what was typed
      this.explain(fault);
      return;
    }
    ofTab.set(NAME, key);
    this.input.value = "";
    this.show();
    this.changed();
  }

  show() {
    this.button.textContent = getKey() ? "API key ✓" : "API key";
    this.button.setAttribute("aria-label", getKey() ? "API key, set" : "API key, not set");
  }
}
