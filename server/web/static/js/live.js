// The live view: /metrics every two seconds while somebody looks, as figures and charts of the last minutes.

import { ask, isAbort, unreachable } from "./api.js";
import { Chart } from "./chart.js";
import { el } from "./dom.js";
import { Readings } from "./live_figures.js";
import { noticeOf } from "./notice.js";
import { parse } from "./prometheus.js";

const EVERY = 2000; // milliseconds
const MINUTES = 5;

const plain = (value) => (value >= 100 ? value.toFixed(0) : value.toFixed(value < 10 && value % 1 ? 1 : 0));
const whole = (value) => value.toFixed(0);
const times = (value) => `${value.toFixed(2)}`;
const percent = (value) => `${value.toFixed(value > 0 && value < 10 ? 1 : 0)} %`;
const seconds = (value) => (value < 1 ? `${(1000 * value).toFixed(0)} ms` : `${value.toFixed(1)} s`);

const CHARTS = [
  { title: "Throughput", write: plain, series: [{ name: "tokens/s", key: "throughput", colour: "accent" }] },
  { title: "Requests", write: whole, steps: [1, 2, 5, 10, 20, 50, 100, 200, 500], series: [{ name: "running", key: "running", colour: "accent" }, { name: "waiting", key: "waiting", colour: "correction" }] },
  { title: "Speculation", write: times, series: [{ name: "tokens a round", key: "tau", colour: "accent" }, { name: "est. speedup", key: "speedup", colour: "bonus" }] },
  { title: "Drafts", write: percent, least: 10, series: [{ name: "accepted, of drafts", key: "accepted", colour: "accent" }, { name: "loosened, of tokens", key: "loosened", colour: "deferred" }] },
  { title: "Time to first token", write: seconds, least: 0.01, series: [{ name: "median", key: "firstP50", colour: "accent" }, { name: "95 %", key: "firstP95", colour: "correction" }] },
  { title: "Whole answers", write: seconds, least: 0.01, series: [{ name: "median", key: "wholeP50", colour: "accent" }, { name: "95 %", key: "wholeP95", colour: "correction" }] },
  { title: "Time per token", write: seconds, least: 0.01, series: [{ name: "median", key: "tokenP50", colour: "accent" }, { name: "95 %", key: "tokenP95", colour: "correction" }] },
  { title: "Where a round's time goes", write: percent, least: 100, series: [{ name: "verify", key: "verify", colour: "accent" }, { name: "draft", key: "draft", colour: "bonus" }, { name: "the rest", key: "rest", colour: "correction" }] },
  { title: "KV cache", write: percent, least: 100, series: [{ name: "used", key: "kvUsed", colour: "accent" }, { name: "cached", key: "kvCached", colour: "bonus" }] },
];

export class Live {
  constructor(panel, server) {
    this.server = server;
    this.readings = new Readings();
    this.times = [];
    this.rows = [];
    this.shown = false;
    this.failures = 0; // to load what draws the charts
    this.problem = el("div", { class: "problem" });
    this.note = el("p", { class: "muted small" }, "Rates over 10 seconds, percentiles of the last minute's answers. A dash: nothing to tell yet. Tokens a round may read a little high where answers are short.");
    this.grid = el("div", { class: "charts" });
    panel.replaceChildren(el("h2", { class: "sr-only" }, "Live figures"), this.problem, this.grid, this.note);
    document.addEventListener("visibilitychange", () => this.look());
  }

  /** Whether the view is the open one. */
  show(shown) {
    this.shown = shown;
    this.look();
  }

  redraw() {
    for (const chart of this.charts ?? []) chart.draw();
  }

  /** Poll while somebody can see it, and only then. */
  look() {
    const seen = this.shown && !document.hidden;
    if (seen === Boolean(this.watching)) return;
    this.watching?.abort();
    this.watching = seen ? new AbortController() : null;
    if (seen) this.watch(this.watching.signal);
  }

  async watch(signal) {
    while (!signal.aborted) {
      if (this.charts || (await this.load())) await this.read(signal);
      await new Promise((resolve) => setTimeout(resolve, EVERY));
    }
  }

  /** Fetch what draws the charts; false if it cannot be had now. */
  async load() {
    let library;
    try {
      // Some browsers never ask again for a module that failed, unless its address is another one.
      library = await import(`../vendor/uPlot.esm.js${this.failures ? `?${this.failures}` : ""}`);
    } catch {
      this.failures += 1;
      if (!this.problem.firstChild) this.problem.replaceChildren(noticeOf(unreachable()));
      return false;
    }
    if (this.charts) return true;
    this.charts = CHARTS.map((spec) => new Chart(library.default, spec));
    this.grid.replaceChildren(...this.charts.map(({ element }) => element));
    this.redraw();
    return true;
  }

  async read(signal) {
    try {
      const text = await (await ask("metrics", { signal })).text();
      if (signal.aborted) return;
      this.add(Date.now() / 1000, parse(text));
      this.problem.replaceChildren();
    } catch (error) {
      if (isAbort(error)) return;
      if (!this.problem.firstChild) {
        this.problem.replaceChildren(noticeOf(error));
        this.server.refused(error);
      }
    }
  }

  add(at, samples) {
    const goesOn = this.readings.add(at, samples);
    // Charts only go forward, whatever a clock that was set back says.
    if (at <= this.times.at(-1)) [this.times, this.rows] = [[], []];
    if (!goesOn && this.times.length) {
      this.times.push(this.times.at(-1) + 0.001); // an empty moment, where the lines break off
      this.rows.push({});
    }
    this.times.push(at);
    this.rows.push(this.readings.figures());
    while (this.times[0] < at - 60 * MINUTES) {
      this.times.shift();
      this.rows.shift();
    }
    for (const chart of this.charts) chart.show(this.times, this.rows);
  }
}
