// What an answer's speed looks like while it runs, and the line that reports it once it has ended.

import { el } from "./dom.js";
import { ENDS_ROUND, LOOSENED } from "./provenance.js";

export class Meter {
  constructor() {
    this.count = this.first = this.rounds = this.roundTokens = this.loosened = 0;
    this.begun = this.latest = 0;
  }

  /** Tokens that have just arrived, with their time in milliseconds. */
  add(entries, now = performance.now()) {
    if (this.count === 0) {
      this.begun = now;
      this.first = entries.length;
    }
    for (const { provenance } of entries) {
      // The prompt's own round, which gives the first token, is no verification round.
      if (this.count > 0) {
        this.roundTokens += 1;
        if (ENDS_ROUND.has(provenance)) this.rounds += 1;
      }
      if (LOOSENED.has(provenance)) this.loosened += 1;
      this.count += 1;
    }
    this.latest = now;
  }

  /** Tokens per second since the first ones arrived; null before there is anything to divide. */
  get rate() {
    const seconds = (this.latest - this.begun) / 1000;
    return seconds > 0 ? (this.count - this.first) / seconds : null;
  }

  /** Tokens per round so far; the server's own figure, where known, is exact. */
  get tau() {
    return this.rounds > 0 ? this.roundTokens / this.rounds : null;
  }
}

const figure = (value, digits, unit = "") => (value === null || value === undefined ? "–" : value.toFixed(digits) + unit);

/** [name, value, meaning] of what is known: from the meter while it runs, from the server's report afterwards. */
export function figures(meter, report) {
  const loosened = report ? Object.values(report.loosened_tokens).reduce((sum, some) => sum + some, 0) : meter.loosened;
  const tau = report ? report.mean_accepted_length : meter.tau;
  return [
    ["tokens", String(meter.count), "Tokens of the answer"],
    ["tokens/s", figure(meter.rate, 1), "Measured here, after the first token"],
    ["τ", figure(tau, 2), "Tokens per verification round, the target's own included"],
    ["est. speedup", figure(report?.estimated_speedup, 2, "×"), "What off would have taken over what it took, as the server estimates it"],
    ["loosened", String(loosened), "Tokens that are not the target's own choice"],
  ];
}

/** Figures as a list; `show` may be called again and again. */
export class FigureList {
  constructor() {
    this.element = el("dl", { class: "figures" });
  }

  show(meter, report = null) {
    const items = figures(meter, report).map(([name, value, meaning]) =>
      el("div", { title: meaning, data: { figure: name } }, el("dt", {}, name), el("dd", {}, value)));
    this.element.replaceChildren(...items);
  }
}

/** What the server has to say about the request, if anything. */
export function warningsOf(report) {
  return (report?.warnings ?? []).map((text) => el("p", { class: "warning" }, text));
}
