// The playground: a conversation of many turns under any verifier.

import { Composer } from "./composer.js";
import { offer } from "./code_dialog.js";
import { announce, el } from "./dom.js";
import { noticeOf } from "./notice.js";
import { KINDS } from "./provenance.js";
import { bodyOf, checked, SamplingSettings, VerifierSettings } from "./settings.js";
import { getKey } from "./key.js";
import { curl, pythonSdk } from "./snippets.js";
import { AnswerTurn } from "./turn.js";

const EXAMPLES = [
  "Write a Python function that reverses a linked list.",
  "Explain Python's global interpreter lock in a few sentences.",
  "Rewrite this with type hints:\n\ndef add(first, second):\n    return first + second",
];

export class Playground {
  /** server: {card, model(), refused(error)}; refused tells the page about a missing key. */
  constructor(panel, server) {
    this.server = server;
    this.turns = []; // {role, content, element}, ended ones
    this.running = null; // the AbortController of the answer being made
    this.verifier = new VerifierSettings(server.card, "strict" in server.card.verifiers ? "strict" : undefined);
    this.sampling = new SamplingSettings(server.card);
    this.system = el("textarea", { id: "system", rows: "2", placeholder: "none" });
    this.log = el("div", { class: "log", role: "log", "aria-live": "off", "aria-label": "Conversation", tabindex: "0" });
    this.problem = el("div", { class: "problem" });
    this.composer = new Composer({
      send: () => this.send(), stop: () => this.stop(), again: () => this.again(), clear: () => this.clear(),
      curl: () => offer("As curl", curl(this.nextBody(), getKey() !== "")),
      python: () => offer("In Python, with OpenAI's SDK", pythonSdk(this.nextBody(), getKey() !== "")),
    });
    this.settings = el("form", { class: "stack", novalidate: false },
      el("div", { class: "field" }, el("label", { for: "system" }, "system prompt"), this.system),
      this.verifier.element, this.sampling.element);
    this.settings.addEventListener("submit", (event) => event.preventDefault());
    panel.replaceChildren(
      el("div", { class: "chat" }, this.log, this.problem, this.composer.element),
      el("aside", { class: "side", "aria-label": "Settings" },
        foldable("Settings", this.settings), foldable("What the colours mean", legend())));
    this.welcome();
  }

  welcome() {
    const pick = (text) => () => this.composer.write(text);
    this.log.replaceChildren(el("div", { class: "welcome" },
      el("h2", {}, "Ask, and see where each token came from"),
      el("p", { class: "muted" }, "Drafted, corrected or loosened: every token says how it was decided. Point at one, or step through them with the arrow keys."),
      el("ul", { class: "examples" }, ...EXAMPLES.map((text) =>
        el("li", {}, el("button", { type: "button", class: "quiet", onclick: pick(text) }, text.split("\n")[0]))))));
  }

  /** The messages of a request that asks `text` next; without one, those of the last request again. */
  messages(text) {
    const said = this.turns.map(({ role, content }) => ({ role, content }));
    if (text) said.push({ role: "user", content: text });
    else if (said.length) said.splice(said.findLastIndex(({ role }) => role === "user") + 1);
    else said.push({ role: "user", content: EXAMPLES[0] });
    const system = this.system.value.trim();
    return system ? [{ role: "system", content: system }, ...said] : said;
  }

  nextBody(text = this.composer.text) {
    return bodyOf(this.server.model(), this.messages(text), this.verifier, this.sampling);
  }

  send() {
    const text = this.composer.text;
    if (this.running || !text || !checked(this.settings)) return;
    const body = this.nextBody(text);
    const asked = el("article", { class: "turn user", "aria-label": "You" }, el("h3", { class: "who" }, "You"), el("p", {}, text));
    this.composer.write("");
    this.answer(body, { role: "user", content: text, element: asked });
  }

  /** The last question once more, under the settings of now. */
  again() {
    if (this.running || !checked(this.settings) || this.turns.length < 2) return;
    const former = this.turns.pop();
    const asked = this.turns.pop();
    former.element.remove();
    this.answer(bodyOf(this.server.model(), this.messages(asked.content), this.verifier, this.sampling), asked, former);
  }

  /** former: the answer in whose place this one comes, and which stays if none does. */
  async answer(body, asked, former = null) {
    const turn = new AnswerTurn(this.verifier, () => this.follow());
    this.log.querySelector(".welcome")?.remove();
    this.log.append(asked.element, turn.element);
    this.problem.replaceChildren();
    this.follow(true);
    const run = (this.running = new AbortController());
    this.composer.busy(true);
    announce("Answering");
    let failed = null;
    try {
      await turn.run(body, run.signal);
    } catch (error) {
      failed = error;
    }
    if (this.running !== run) return; // a new chat has begun
    this.running = null;
    const answered = turn.started ? { role: "assistant", content: turn.answer.content, element: turn.element } : former;
    if (!turn.started) turn.element.replaceWith(...(former ? [former.element] : []));
    if (answered) this.turns.push(asked, answered);
    else this.takeBack(asked);
    this.composer.busy(false, this.turns.length > 0);
    if (failed) this.fail(failed, answered !== null);
  }

  /** Nothing came of it: as if it had not been sent, with the text back where it was typed, before what is there now. */
  takeBack(asked) {
    asked.element.remove();
    this.composer.write([asked.content, this.composer.text].filter(Boolean).join("\n\n"));
    if (!this.turns.length) this.welcome();
  }

  fail(error, answered) {
    if (error.param && !this.verifier.blame(error.param)) this.sampling.blame(error.param);
    const again = answered ? ["Try again", () => this.again()] : ["Send again", () => this.send()];
    this.problem.replaceChildren(noticeOf(error, error.status === 401 ? [] : [again]));
    this.server.refused(error);
  }

  stop() {
    this.running?.abort();
  }

  clear() {
    this.stop();
    this.running = null;
    this.turns = [];
    this.problem.replaceChildren();
    this.welcome();
    this.composer.busy(false, false);
    this.composer.focus();
  }

  /** Keep the newest words in sight, unless the reader has scrolled up. */
  follow(always = false) {
    // On a phone the page itself scrolls, not the conversation.
    const scroller = getComputedStyle(this.log).overflowY === "auto" ? this.log : document.scrollingElement;
    const { scrollTop, scrollHeight, clientHeight } = scroller;
    if (always || scrollHeight - scrollTop - clientHeight < 200) scroller.scrollTop = scrollHeight;
  }
}

/** Open where there is room beside the conversation, closed on a phone. */
function foldable(title, content) {
  const wide = matchMedia("(min-width: 60rem)");
  const box = el("details", { class: "fold", open: wide.matches }, el("summary", {}, title), content);
  wide.addEventListener("change", () => (box.open = wide.matches));
  return box;
}

function legend() {
  return el("ul", { class: "legend long" }, ...Object.entries(KINDS).map(([kind, { label, says }]) =>
    el("li", {}, el("span", { class: "sample", data: { provenance: kind } }, label), el("span", { class: "muted" }, says))));
}
