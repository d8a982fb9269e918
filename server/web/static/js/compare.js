// Side by side: one prompt under two verifiers, and where their answers part.

import { announce, el, freshId } from "./dom.js";
import { noticeOf } from "./notice.js";
import { bodyOf, checked, SamplingSettings, VerifierSettings } from "./settings.js";
import { AnswerTurn } from "./turn.js";

const same = (one, other) => one.token === other.token && String(one.bytes) === String(other.bytes);

/** Where two lists of tokens part: an index, or -1 as long as one begins like the other. ended: whether both are whole. */
export function parting(left, right, ended, from = 0) {
  const common = Math.min(left.length, right.length);
  for (let index = from; index < common; index += 1) if (!same(left[index], right[index])) return index;
  return ended && left.length !== right.length ? common : -1;
}

class Side {
  constructor(card, title, preset) {
    this.settings = new VerifierSettings(card, preset, title);
    this.place = el("div", { class: "place" });
    this.element = el("section", { class: "half", "aria-label": title }, this.settings.element, this.place);
  }

  async run(body, signal, grown) {
    this.turn = new AnswerTurn(this.settings, grown);
    this.place.replaceChildren(this.turn.element);
    this.ended = false;
    try {
      this.ended = await this.turn.run(body, signal);
      return null;
    } catch (error) {
      this.settings.blame(error.param);
      this.place.append(noticeOf(error));
      return error;
    }
  }
}

export class Compare {
  constructor(panel, server) {
    this.server = server;
    this.running = null;
    const names = Object.keys(server.card.verifiers);
    const first = names.includes("off") ? "off" : names[0];
    this.sides = [new Side(server.card, "Left", first), new Side(server.card, "Right", names.includes("fly") ? "fly" : names.at(-1))];
    this.sampling = new SamplingSettings(server.card, { max_tokens: "256" });
    this.prompt = el("textarea", { id: freshId("prompt"), rows: "3", placeholder: "One prompt for both" });
    this.order = el("select", { id: freshId("order") },
      el("option", { value: "turns" }, "one after the other"), el("option", { value: "together" }, "at the same time"));
    this.runButton = el("button", { type: "submit", class: "primary" }, "Run both");
    this.stopButton = el("button", { type: "button", class: "stop", hidden: true, onclick: () => this.stop() }, "Stop");
    this.verdict = el("p", { class: "verdict" });
    this.form = el("form", { class: "stack" },
      el("div", { class: "field" }, el("label", { for: this.prompt.id }, "prompt"), this.prompt),
      this.sampling.element,
      el("div", { class: "row" }, this.runButton, this.stopButton,
        el("label", { for: this.order.id, class: "small" }, "run"), this.order,
        el("span", { class: "muted small keys" }, "Ctrl+Enter runs, Esc stops")),
      this.verdict,
      el("div", { class: "halves" }, ...this.sides.map((side) => side.element)));
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.run();
    });
    this.prompt.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
      event.preventDefault();
      this.run();
    });
    panel.replaceChildren(this.form);
  }

  async run() {
    const text = this.prompt.value.trim();
    if (this.running || !text || !checked(this.form)) return;
    this.running = new AbortController();
    this.busy(true);
    this.compared = 0;
    this.parted = -1;
    this.verdict.textContent = "";
    for (const side of this.sides) Object.assign(side, { turn: null, ended: false });
    const bodies = this.sides.map(({ settings }) =>
      bodyOf(this.server.model(), [{ role: "user", content: text }], settings, this.sampling));
    const start = (index) => this.sides[index].run(bodies[index], this.running.signal, () => this.judge());
    const together = this.order.value === "together";
    const errors = together ? await Promise.all([start(0), start(1)]) : [await start(0), await start(1)];
    this.running = null;
    this.busy(false);
    this.judge();
    if (this.verdict.textContent) announce(this.verdict.textContent);
    errors.filter(Boolean).slice(0, 1).forEach((error) => this.server.refused(error));
  }

  /** Mark where the answers part, and say how their speeds compare. */
  judge() {
    const turns = this.sides.map(({ turn }) => turn);
    if (!turns.every(Boolean)) return;
    const [left, right] = turns.map(({ view }) => view);
    const ended = this.sides.every((side) => side.ended);
    if (this.parted < 0) {
      this.parted = parting(left.entries, right.entries, ended, this.compared);
      this.compared = Math.min(left.entries.length, right.entries.length);
      if (this.parted >= 0) for (const view of [left, right]) view.tokens[this.parted]?.classList.add("parts");
    }
    this.verdict.textContent = [this.wording(ended), this.speeds(turns)].filter(Boolean).join(" ");
  }

  wording(ended) {
    if (this.parted >= 0) return `The answers part at token ${this.parted + 1}.`;
    return ended ? "The answers are the same, token for token." : "";
  }

  speeds(turns) {
    const [left, right] = turns.map(({ meter }) => meter.rate);
    if (!left || !right) return "";
    const [one, other] = turns.map(({ title }) => title);
    // A round with an answer in it that never drafts is kept short for its sake: then both go at nearly one pace.
    const shared = this.order.value === "together" ? " while both share the server, where drafts wait for a neighbour under off" : "";
    return `${other} runs at ${(right / left).toFixed(2)}× the tokens per second of ${one}, measured here${shared}.`;
  }

  busy(busy) {
    this.runButton.hidden = busy;
    this.stopButton.hidden = !busy;
  }

  stop() {
    this.running?.abort();
  }
}
