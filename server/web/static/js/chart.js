// One chart over time, drawn by uPlot, with its newest values in words above it.

import { el } from "./dom.js";

/** A colour of the style sheet as the canvas needs it. */
function colour(name) {
  const probe = el("span", { hidden: true });
  probe.style.color = `var(--${name})`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

const NARROWEST = 60; // seconds on the axis, at least
const DASHES = [undefined, [6, 4], [2, 3]];

const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString([], { hour12: false });

export class Chart {
  /** series: [{name, key, colour}]; write: a number as text. least: how high the axis goes at least. steps: between
   *  its ticks, if not any. */
  constructor(uPlot, { title, series, write, least = 1, steps }) {
    Object.assign(this, { uPlot, title, series, write, least, steps });
    this.data = [[], ...series.map(() => [])];
    this.values = el("dl", { class: "chart-values" });
    this.canvas = el("div", { class: "canvas", role: "img", "aria-label": title });
    this.element = el("figure", { class: "chart" }, el("figcaption", {}, el("h3", {}, title), this.values), this.canvas);
    this.sized = new ResizeObserver(() => this.plot?.setSize(this.size()));
    this.sized.observe(this.canvas);
  }

  size() {
    return { width: Math.max(160, this.canvas.clientWidth), height: 150 };
  }

  /** Draw it (again), with the theme's colours. */
  draw() {
    this.plot?.destroy();
    const axis = { stroke: colour("muted"), grid: { stroke: colour("line"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
    const options = {
      ...this.size(),
      legend: { show: false },
      cursor: { y: false, points: { size: 6 }, drag: { x: false, y: false } },
      scales: { x: { range: (_, first, last) => [Math.min(first, last - NARROWEST), last] }, y: { range: (_, low, high) => [0, Math.max(this.least, (high ?? 0) * 1.15)] } },
      axes: [{ ...axis, size: 26, space: 80, values: (_, ticks) => ticks.map(clock) }, { ...axis, size: 52, ...(this.steps && { incrs: this.steps }), values: (_, ticks) => ticks.map(this.write) }],
      series: [{}, ...this.series.map((one, index) => ({
        label: one.name, stroke: colour(one.colour), width: 2, dash: DASHES[index], spanGaps: false, points: { show: false },
      }))],
      hooks: { setCursor: [(plot) => this.tell(plot.cursor.idx ?? undefined)] },
    };
    this.plot = new this.uPlot(options, this.data, this.canvas);
  }

  /** times: seconds; rows: the figures of each. */
  show(times, rows) {
    this.data = [times, ...this.series.map(({ key }) => rows.map((row) => row[key] ?? null))];
    this.plot?.setData(this.data);
    this.tell();
  }

  /** The values at an index, the newest if none, as text. */
  tell(index = this.data[0].length - 1) {
    this.values.replaceChildren(...this.series.map(({ name, colour: hue }, at) => {
      const value = this.data[at + 1][index] ?? null;
      return el("div", {}, el("dt", { class: ["solid", "dashed", "dotted"][at], data: { hue } }, name), el("dd", {}, value === null ? "–" : this.write(value)));
    }));
  }
}
