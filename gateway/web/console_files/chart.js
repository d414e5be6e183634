// Charts over time, with uPlot. Each chart has its values as text, for screen readers too.

import uPlot from "./uplot.js";
import { h } from "./dom.js";

const COLOURS = ["#3987d6", "#d6762f", "#4aa564", "#b04fa8", "#8a8f98"];
const HEIGHT = 160;
const two = (value) => String(value).padStart(2, "0");

const timeText = (unix, days) => {
  const at = new Date(1000 * unix);
  return days ? `${two(at.getUTCMonth() + 1)}-${two(at.getUTCDate())}` : `${two(at.getUTCHours())}:${two(at.getUTCMinutes())}`;
};

export class Chart {
  // `top`: the largest value that there can be; `days`: bars of days from `since` on, in place of lines of an hour.
  constructor(title, names, show = String, { top = null, days = false } = {}) {
    this.top = top;
    this.days = days;
    this.show = show;
    this.range = null;
    this.data = [[], ...names.map(() => [])];
    this.place = h("div", { "aria-hidden": "true" });
    this.values = names.map(() => h("b", {}, "-"));
    this.moment = h("li", {});
    this.element = h("section", { class: "chart" }, h("h3", {}, title),
      h("ul", { class: "legend" }, names.map((name, at) => h("li", {}, this.chip(at), `${name} `, this.values[at])), this.moment),
      this.place);
    this.names = names;
  }

  chip(at) {
    return h("svg:svg", { viewBox: "0 0 8 8", "aria-hidden": "true" },
      h("svg:rect", { width: 8, height: 8, rx: 2, fill: COLOURS[at % COLOURS.length] }));
  }

  // `range`: the first and the last moment of the chart, in Unix time.
  set(range, moments, ...series) {
    this.range = range;
    this.data = [moments, ...series];
    this.say(null);
    if (!this.place.isConnected) return;
    if (this.plot) this.plot.setData(this.data);
    else this.draw();
  }

  // The values at the pointer, or the newest.
  say(at) {
    const last = at ?? this.data[0].length - 1;
    this.values.forEach((element, number) => {
      const value = this.data[number + 1][last];
      element.textContent = value === null || value === undefined ? "-" : this.show(value);
    });
    this.moment.textContent = at === null ? "" : `at ${timeText(this.data[0][at], this.days)}${this.days ? "" : " UTC"}`;
  }

  draw() {
    const colour = getComputedStyle(document.body).color;
    const axis = { stroke: colour, font: "11px system-ui", grid: { stroke: "#8883", width: 1 }, ticks: { show: false } };
    const bars = this.days ? { paths: uPlot.paths.bars({ size: [0.7, 40] }), points: { show: false } } : {};
    this.plot = new uPlot({
      width: this.place.clientWidth || 320,
      height: HEIGHT,
      legend: { show: false },
      cursor: { y: false, points: { size: 6 } },
      hooks: { setCursor: [(plot) => this.say(plot.cursor.idx ?? null)] },
      scales: {
        x: { range: () => this.range },
        y: { range: (_, least, most) => [0, this.top ?? (most > 0 ? 1.1 * most : 1)] },
      },
      series: [{}, ...this.names.map((label, at) => ({ label, stroke: COLOURS[at % COLOURS.length], width: 2,
        fill: this.days ? COLOURS[at % COLOURS.length] : at || this.names.length > 1 ? undefined : `${COLOURS[at]}22`,
        points: { show: false }, ...bars }))],
      axes: [{ ...axis, space: 60, size: 26, values: (_, ticks) => ticks.map((tick) => timeText(tick, this.days)) },
        { ...axis, size: 52, values: (_, ticks) => ticks.map(this.show) }],
    }, this.data, this.place);
    new ResizeObserver(() => this.plot.setSize({ width: this.place.clientWidth || 320, height: HEIGHT })).observe(this.place);
  }
}
