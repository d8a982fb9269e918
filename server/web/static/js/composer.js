// Where the next message is typed, with what can be done to it.

import { el } from "./dom.js";

export class Composer {
  /** actions: {send, stop, again, clear, curl, python}. */
  constructor(actions) {
    this.input = el("textarea", { id: "message", rows: "2", placeholder: "Ask something", "aria-describedby": "composer-keys" });
    const button = (label, action, more = {}) => el("button", { type: "button", class: "quiet", onclick: action, ...more }, label);
    this.sendButton = el("button", { type: "submit", class: "primary" }, "Send");
    this.stopButton = button("Stop", actions.stop, { class: "stop", hidden: true });
    this.againButton = button("Try again", actions.again, { hidden: true });
    this.clearButton = button("New chat", actions.clear, { hidden: true });
    this.element = el("form", { class: "composer" },
      el("label", { for: "message", class: "sr-only" }, "Message"), this.input,
      el("div", { class: "row" }, this.sendButton, this.stopButton, this.againButton, this.clearButton,
        el("span", { class: "muted small keys", id: "composer-keys" }, "Ctrl+Enter sends, Esc stops"),
        button("Copy as curl", actions.curl), button("Copy as Python", actions.python)));
    this.element.addEventListener("submit", (event) => {
      event.preventDefault();
      actions.send();
    });
    this.input.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
        event.preventDefault();
        actions.send();
      }
    });
    this.input.addEventListener("input", () => this.fit());
  }

  get text() {
    return this.input.value.trim();
  }

  write(text) {
    this.input.value = text;
    this.fit();
    this.focus();
  }

  focus() {
    this.input.focus();
  }

  /** As tall as what is typed, within reason (CSS says what that is). */
  fit() {
    this.input.style.height = "auto";
    this.input.style.height = `${this.input.scrollHeight + 2}px`;
  }

  /** Whether an answer is being made; talked: whether there is a conversation to go back to. */
  busy(busy, talked = true) {
    this.sendButton.hidden = busy;
    this.stopButton.hidden = !busy;
    this.againButton.hidden = busy || !talked;
    this.clearButton.hidden = busy || !talked;
  }
}
