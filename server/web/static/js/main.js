// The page: connects to the server, then builds the views from what the server says it allows.

import { AWAY } from "./api.js";
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
    this.told = null; // what the notice about the connection says
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

  /** Ask the server what it allows; again and again while it loads or is away. */
  async connect() {
    clearTimeout(this.timer);
    try {
      this.card = await describe();
    } catch (error) {
      this.unconnected(error);
      return;
    }
    this.unconnected(null);
    this.build();
  }

  /** Say why there is no connection, once however often it is tried; null: there is one. */
  unconnected(error) {
    clearTimeout(this.timer);
    if (error && AWAY.has(error.status)) this.timer = setTimeout(() => this.connect(), AGAIN);
    const told = error && `${error.status} ${error.message}`;
    if (told !== this.told) {
      const help = error?.status === 401 ? ["Enter the key", () => this.key.ask()] : ["Try again", () => this.connect()];
      by("connection").replaceChildren(...(error ? [noticeOf(error, [help])] : []));
    }
    this.told = told;
    if (error) this.refused(error);
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
