// An answer's tokens, each a span that tells where it came from; details by pointer, focus or arrow keys.

import { el } from "./dom.js";
import { KINDS } from "./provenance.js";
import { hideCard, showCard } from "./token_card.js";
import { TokenText } from "./token_text.js";

export class AnswerView {
  /** unit: what its tokens' entropies are measured in. */
  constructor(label, unit) {
    this.unit = unit;
    this.entries = [];
    this.tokens = []; // the spans, in the order of the entries
    this.text = new TokenText();
    this.body = el("div", { class: "tokens", role: "group", tabindex: "0", "aria-label": label });
    this.legend = el("ul", { class: "legend", "aria-label": "Where the tokens came from" });
    this.element = el("div", { class: "answer" }, this.body, this.legend);
    this.listen();
  }

  add(entries, thought) {
    for (const entry of entries) {
      const text = this.text.next(entry);
      const token = el("span", { class: thought ? "token thought" : "token", tabindex: "-1" }, text ?? entry.token);
      if (text === null) token.classList.add("control");
      if (text?.startsWith("\n")) token.classList.add("break"); // a line's end alone would be nothing to see or point at
      token.dataset.provenance = entry.provenance;
      token.dataset.index = this.entries.length;
      this.entries.push(entry);
      this.tokens.push(token);
      this.body.append(token);
    }
  }

  /** How many tokens of each kind, as samples of how they look. */
  summarize() {
    const counts = Object.groupBy(this.entries, (entry) => entry.provenance);
    const items = Object.keys(KINDS).filter((kind) => counts[kind]).map((kind) =>
      el("li", { title: KINDS[kind].says },
        el("span", { class: "sample", data: { provenance: kind } }, KINDS[kind].label), ` ${counts[kind].length}`));
    this.legend.replaceChildren(...items);
  }

  listen() {
    const of = (event) => event.target.closest?.(".token");
    const show = (event) => of(event) && showCard(of(event), this.entries[of(event).dataset.index], this.unit);
    this.body.addEventListener("pointerover", show);
    this.body.addEventListener("focusin", show);
    this.body.addEventListener("pointerleave", hideCard);
    this.body.addEventListener("focusout", hideCard);
    this.body.addEventListener("keydown", (event) => this.step(event));
  }

  /** Arrow keys walk from token to token; Escape leaves them. */
  step(event) {
    const steps = { ArrowRight: 1, ArrowLeft: -1 };
    const index = Number(document.activeElement?.dataset?.index ?? -1);
    let next = null;
    if (event.key in steps) next = index + steps[event.key];
    else if (event.key === "Home") next = 0;
    else if (event.key === "End") next = this.tokens.length - 1;
    else if (event.key === "Escape" && index >= 0) {
      event.stopPropagation();
      this.body.focus();
    }
    if (next === null) return;
    event.preventDefault();
    this.tokens[Math.max(0, Math.min(next, this.tokens.length - 1))]?.focus();
  }
}
