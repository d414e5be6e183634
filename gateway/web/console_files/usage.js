// Usage over time and by dimension, from the ledger of all gateways, with what the cache has saved.

import { call } from "./api.js";
import { Chart } from "./chart.js";
import { compact, field, figures, h, money, number, options, redraw, share, table } from "./dom.js";

const DAY = 86400;
const day = (unix) => new Date(1000 * unix).toISOString().slice(0, 10);
const sum = (rows, name) => rows.reduce((total, row) => total + (row[name] ?? 0), 0);

// The columns of sums, by what they are grouped.
export const sums = (name) => [
  { head: name, cell: (g) => g[name] || "-" }, { head: "requests", n: true, cell: (g) => number(g.requests) },
  { head: "failed", n: true, cell: (g) => number(g.failed), mark: (g) => (g.failed ? "bad" : "") },
  { head: "prompt tokens", n: true, cell: (g) => number(g.prompt_tokens) },
  { head: "from cache", n: true, cell: (g) => share(g.prompt_tokens ? g.cached_tokens / g.prompt_tokens : null) },
  { head: "output tokens", n: true, cell: (g) => number(g.output_tokens) },
  { head: "spend", n: true, cell: (g) => money(g.cost) },
  { head: "saved by the cache", n: true, title: "what cached tokens would have cost more at the price of others", cell: (g) => money(g.saved) }];

// Figures and charts of these days; `since`: the first day, in Unix time.
export class UsageOverTime {
  constructor() {
    this.top = h("div");
    this.tokens = new Chart("Tokens a day", ["prompt", "of these cached", "output"], compact, { days: true });
    this.spend = new Chart("Money a day", ["without the cache", "spend"], (v) => money(1e6 * v), { days: true });
    this.element = h("div", {}, this.top, h("div", { class: "charts" }, this.tokens.element, this.spend.element));
  }

  show(days, since) {
    const at = days.map((d) => Date.parse(d.day) / 1000);
    const range = [since - DAY, Math.ceil(Date.now() / 1000 / DAY) * DAY];
    redraw(this.top, figures([
      ["requests", compact(sum(days, "requests")), `${compact(sum(days, "failed"))} failed`],
      ["prompt tokens", compact(sum(days, "prompt_tokens"))],
      ["from cache", share(sum(days, "prompt_tokens") ? sum(days, "cached_tokens") / sum(days, "prompt_tokens") : null), `${compact(sum(days, "cached_tokens"))} tokens`],
      ["output tokens", compact(sum(days, "output_tokens"))],
      ["spend", money(sum(days, "cost"))],
      ["saved by the cache", money(sum(days, "saved")), "at today's prices", sum(days, "saved") ? "good" : null]]));
    this.tokens.set(range, at, ...["prompt_tokens", "cached_tokens", "output_tokens"].map((name) => days.map((d) => d[name])));
    this.spend.set(range, at, days.map((d) => (d.cost + d.saved) / 1e6), days.map((d) => d.cost / 1e6));
  }
}

export async function open() {
  const by = h("select", {}, options(["tenant", "model", "organisation", "key", "worker", "user", "code"]));
  const days = h("select", {}, [7, 30, 90].map((n) => h("option", { value: n, selected: n === 30 }, `${n} days`)));
  const over = new UsageOverTime(), rows = h("div");
  async function draw() {
    const since = Math.floor(Date.now() / 1000 / DAY - days.value + 1) * DAY;
    const [found, groups] = await Promise.all([
      call(`usage?by=day&since=${day(since)}`), call(`usage?by=${by.value}&since=${day(since)}&limit=10000`)]);
    over.show(found.data, since);
    const sorted = [...groups.data].sort((a, b) => b.cost - a.cost || b.prompt_tokens - a.prompt_tokens);
    redraw(rows, h("h3", {}, `By ${by.value}`),
      table(sorted.length > 200 ? `The 200 with the most spend, of ${number(sorted.length)}` : `Usage by ${by.value}`, sums(by.value),
        sorted.slice(0, 200), "no request in this time"));
  }
  const form = h("form", { onchange: draw, onsubmit: (event) => event.preventDefault() }, field("Of the last", days), field("By", by));
  return { element: h("div", {}, form, over.element, rows), start: draw };
}
