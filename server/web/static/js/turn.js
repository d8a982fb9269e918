// One answer in the making: asks, shows the tokens as they come, and what they amounted to.

import { AnswerView } from "./answer_view.js";
import { isAbort } from "./api.js";
import { blankAnswer, complete } from "./completion.js";
import { announce, el } from "./dom.js";
import { FigureList, Meter, warningsOf } from "./meter.js";

export class AnswerTurn {
  /** settings: the verifier's, whose name is the title. grown: called whenever there is more to see. */
  constructor(settings, grown) {
    const title = settings.name;
    this.title = title;
    this.grown = grown;
    this.answer = blankAnswer();
    this.meter = new Meter();
    this.view = new AnswerView(`Answer of ${title}; arrow keys step through its tokens`, settings.entropyUnit);
    this.figures = new FigureList();
    this.end = el("div", { class: "ending" });
    this.element = el("article", { class: "turn assistant", "aria-label": `Answer of ${title}` },
      el("h3", { class: "who" }, title), this.view.element, this.figures.element, this.end);
  }

  get started() {
    return this.meter.count > 0;
  }

  /** Resolves when the answer has ended, true, or has been stopped, false; ApiError if it failed. */
  async run(body, signal) {
    this.element.classList.add("running");
    try {
      await complete(body, signal, this.answer, (entries, thought) => this.add(entries, thought));
      this.finish(this.answer.finish === "length" ? "Ended at the token limit." : "");
      return true;
    } catch (error) {
      if (!isAbort(error)) {
        this.finish("Interrupted.");
        throw error;
      }
      this.finish("Stopped.");
      return false;
    } finally {
      this.element.classList.remove("running");
    }
  }

  add(entries, thought) {
    this.view.add(entries, thought);
    this.meter.add(entries);
    if (this.drawing) return;
    this.drawing = requestAnimationFrame(() => {
      this.drawing = 0;
      if (this.answer.report === null) this.figures.show(this.meter);
      this.grown(this);
    });
  }

  finish(remark) {
    this.figures.show(this.meter, this.answer.report);
    this.view.summarize();
    this.end.replaceChildren(...(remark ? [el("p", { class: "muted small" }, remark)] : []), ...warningsOf(this.answer.report));
    announce(`${remark} ${this.meter.count} tokens, ${this.meter.loosened} of them loosened.`.trim());
    this.grown(this);
  }
}
