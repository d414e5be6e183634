// Usage over time and by dimension, from the ledger of all gateways.

import { call } from "./api.js";
import { Chart } from "./chart.js";
import { field, h, money, number, share, table } from "./dom.js";

const DAY = 86400000;
const day = (moment) => new Date(moment).toISOString().slice(0, 10);

export async function open() {
  const by = h("select", {}, ["tenant", "model", "organisation", "key", "worker"].map((name) => h("option", {}, name)));
  const since = h("input", { type: "date", value: day(Date.now() - 29 * DAY) });
  const tokens = new Chart("Tokens a day", ["prompt", "cached", "output"], (v) => number(v), { live: false });
  const spend = new Chart("Spend a day", ["spend"], (v) => v.toFixed(2), { live: false });
  const rows = h("div");
  async function draw() {
    const [days, groups] = await Promise.all([
      call(`usage?by=day&since=${since.value}`), call(`usage?by=${by.value}&since=${since.value}&limit=500`)]);
    const at = days.data.map((d) => Date.parse(d.day) / 1000);
    tokens.set(at, ...["prompt_tokens", "cached_tokens", "output_tokens"].map((name) => days.data.map((d) => d[name])));
    spend.set(at, days.data.map((d) => d.cost / 1e6));
    rows.replaceChildren(table(`Usage by ${by.value}`, [
      { head: by.value, cell: (g) => g[by.value] || "-" }, { head: "requests", n: true, cell: (g) => number(g.requests) },
      { head: "prompt tokens", n: true, cell: (g) => number(g.prompt_tokens) },
      { head: "cached", n: true, cell: (g) => number(g.cached_tokens) },
      { head: "from cache", n: true, cell: (g) => share(g.prompt_tokens ? g.cached_tokens / g.prompt_tokens : null) },
      { head: "output tokens", n: true, cell: (g) => number(g.output_tokens) },
      { head: "spend", n: true, cell: (g) => money(g.cost) }],
    [...groups.data].sort((a, b) => b.cost - a.cost || b.prompt_tokens - a.prompt_tokens)));
  }
  const form = h("form", { onchange: draw, onsubmit: (event) => { event.preventDefault(); draw(); } },
    field("By", by), field("Since", since), h("button", {}, "Show"));
  let drawn = false;
  return { element: h("div", {}, form, h("div", { class: "charts" }, tokens.element, spend.element), rows),
    refresh: async () => { if (!drawn) { drawn = true; await draw(); } } };
}
