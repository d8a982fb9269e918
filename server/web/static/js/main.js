// The page: connects to the server, then builds the views from what the server says it allows.

import { Compare } from "./compare.js";
import { el } from "./dom.js";
import { KeyDialog } from "./key.js";
import { Live } from "./live.js";
import { noticeOf } from "./notice.js";
import { Playground } from "./playground.js";
import { describe } from "./server_card.js";
import { startTabs } from "./tabs.js";
import { startTheme } from "./theme.js";

const by = (id) => document.getElementById(id);
const AGAIN = 2000; // milliseconds until a server that loads, or is away, is asked again

class Page {
  constructor() {
    this.views = null;
    this.key = new KeyDialog(by("key-button"), () => this.connect());
    this.live = new Live(by("live"), this);
    startTheme(by("theme-button"), () => this.live.redraw());
    startTabs(document.querySelector("[role=tablist]"), (name) => this.opened(name));
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !document.querySelector("dialog[open]")) this.views?.forEach((view) => view.stop());
    });
    this.connect();
  }

  opened(name) {
    this.open = name;
    this.live.show(name === "live" && this.views !== null);
  }

  model() {
    return by("model").value;
  }

  /** An error that some view has met: one about the key is asked for here. */
  refused(error) {
    if (error.status === 401) this.key.ask(error.message);
  }

  /** Ask the server what it allows; again and again while it loads or cannot be reached. */
  async connect() {
    clearTimeout(this.timer);
    try {
      this.card = await describe();
    } catch (error) {
      const waiting = error.status === 0 || error.status === 503;
      const more = error.status === 401 ? [["Enter the key", () => this.key.ask()]] : [];
      by("connection").replaceChildren(noticeOf(error, more));
      this.refused(error);
      if (waiting) this.timer = setTimeout(() => this.connect(), AGAIN);
      return;
    }
    by("connection").replaceChildren();
    this.build();
  }

  build() {
    const model = by("model");
    model.replaceChildren(...this.card.models.map((name) => el("option", {}, name)));
    model.disabled = this.card.models.length < 2;
    // Built once: a key entered later must not cost what has been typed and said.
    this.views ??= [new Playground(by("playground"), this), new Compare(by("compare"), this)];
    this.opened(this.open);
    if (this.open === "playground" && matchMedia("(hover: hover)").matches) this.views[0].composer.focus();
    document.documentElement.dataset.ready = "";
  }
}

new Page();
