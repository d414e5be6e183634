// Line charts over time, with uPlot. Each chart has its newest values as text for screen readers.

import uPlot from "./uplot.js";
import { h } from "./dom.js";

const COLOURS = ["#3987d6", "#d6762f", "#4aa564", "#b04fa8", "#8a8f98"];

export class Chart {
  // `top`: the largest value that there can be; `live`: moments are added, and the last ten minutes are shown.
  constructor(title, names, show = String, { top = null, live = true } = {}) {
    this.top = top;
    this.live = live;
    this.names = names;
    this.show = show;
    this.data = [[], ...names.map(() => [])];
    this.place = h("div", { "aria-hidden": "true" });
    this.said = h("p", { class: "dim" });
    this.element = h("section", { class: "chart" }, h("h3", {}, title), this.place, this.said);
  }

  // Appends one moment; the oldest of more than 300 are dropped.
  add(seconds, values) {
    this.data[0].push(seconds);
    values.forEach((value, at) => this.data[at + 1].push(value));
    if (this.data[0].length > 300) this.data.forEach((series) => series.shift());
    this.draw();
  }

  set(seconds, ...series) {
    this.data = [seconds, ...series];
    this.draw();
  }

  draw() {
    const last = this.data.slice(1).map((series, at) => {
      const value = series.at(-1);
      return `${this.names[at]} ${value === null || value === undefined ? "-" : this.show(value)}`;
    });
    this.said.textContent = last.join(", ");
    if (!this.place.isConnected) return;
    if (this.plot) {
      this.plot.setData(this.data);
      return;
    }
    const colour = getComputedStyle(this.place).color;
    const axis = { stroke: colour, grid: { stroke: "#8886", width: 1 }, ticks: { stroke: "#8886" } };
    this.plot = new uPlot({
      width: this.place.clientWidth || 320,
      height: 170,
      legend: { show: this.names.length > 1 },
      scales: {
        x: { range: (_, least, most) => (this.live ? [most - 600, most] : [least - 43200, most + 43200]) },
        y: { range: (_, least, most) => [0, this.top ?? (most > 0 ? 1.1 * most : 1)] },
      },
      series: [{}, ...this.names.map((label, at) => ({ label, stroke: COLOURS[at % COLOURS.length], width: 2 }))],
      axes: [axis, { ...axis, size: 60, values: (_, ticks) => ticks.map(this.show) }],
    }, this.data, this.place);
    new ResizeObserver(() => this.plot.setSize({ width: this.place.clientWidth || 320, height: 170 })).observe(this.place);
  }
}
