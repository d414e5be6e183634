// The state of all gateways: figures, charts of the last minutes, workers and the busiest tenants.

import { call } from "./api.js";
import { Chart } from "./chart.js";
import { figures, h, millis, number, perSecond, share, table } from "./dom.js";

const WORKERS = [
  { head: "worker", cell: (w) => w.id },
  { head: "state", cell: (w) => w.health, mark: (w) => w.health },
  { head: "streams", n: true, cell: (w) => number(w.streams) },
  { head: "tokens queued", n: true, cell: (w) => number(w.tokens_queued) },
  { head: "KV in use", n: true, cell: (w) => (w.kv_tokens_max ? share(w.kv_tokens / w.kv_tokens_max) : "-") },
  { head: "requests/s", n: true, cell: (w) => perSecond(w) },
  { head: "hit ratio", n: true, cell: (w) => share(w.total.hit_ratio) },
  { head: "expected", n: true, title: "hit ratio that routing predicted",
    cell: (w) => share(w.total.prompt_tokens ? w.total.predicted_tokens / w.total.prompt_tokens : null) },
  { head: "TTFT p50", n: true, cell: (w) => millis(w.ttft_ms_p50) },
  { head: "failures", n: true, cell: (w) => number(w.failures) },
];

const TENANTS = [
  { head: "tenant", cell: (t) => t.id },
  { head: "requests/s", n: true, cell: (t) => perSecond(t) },
  { head: "requests", n: true, cell: (t) => number(t.total.requests) },
  { head: "refused", n: true, cell: (t) => number(t.total.refused) },
  { head: "errors", n: true, cell: (t) => number(t.total.errors) },
  { head: "prompt tokens", n: true, cell: (t) => number(t.total.prompt_tokens) },
  { head: "hit ratio", n: true, cell: (t) => share(t.total.hit_ratio) },
  { head: "output tokens", n: true, cell: (t) => number(t.total.output_tokens) },
  { head: "TTFT p50", n: true, cell: (t) => millis(t.ttft_ms_p50) },
];

export function showState(state) {
  document.querySelector("#version").textContent = state.version;
  const words = [state.ready ? "ready" : state.draining ? "draining" : "not ready", `policy ${state.policy}`,
    state.redis === "shared" ? "quotas shared" : "Redis unreachable: this gateway decides quotas alone"];
  if (!["none", "known"].includes(state.token_issuers)) words.push(`identity provider ${state.token_issuers}`);
  const line = document.querySelector("#state");
  line.textContent = words.join(", ");
  line.className = state.ready && state.redis === "shared" ? "up" : "down";
}

export async function open() {
  const rate = new Chart("Requests per second", ["requests/s"], (v) => v.toFixed(1));
  const hits = new Chart("Prompt tokens from cache", ["hit ratio"], (v) => `${(100 * v).toFixed(0)} %`, { top: 1 });
  const first = new Chart("Time to the first token", ["TTFT p50"], (v) => `${v.toFixed(0)} ms`);
  const top = h("div"), tables = h("div");
  const element = h("div", {}, top, h("div", { class: "charts" }, rate.element, hits.element, first.element), tables);

  async function refresh() {
    const state = await call("overview");
    showState(state);
    const waiting = state.queue.queues.reduce((sum, queue) => sum + queue.waiting, 0);
    top.replaceChildren(figures([
      ["gateways", number(state.gateways.length)],
      ["workers up", `${state.workers.filter((w) => w.health === "up").length} of ${state.workers.length}`],
      ["requests", number(state.all.total.requests)], ["requests/s, last minute", perSecond(state.all)],
      ["hit ratio, last minute", share(state.all.minute.hit_ratio)], ["TTFT p50", millis(state.all.ttft_ms_p50)],
      ["waiting", number(waiting)], ["blocks in the index", number(state.prefixes.blocks)],
    ]));
    const now = Date.now() / 1000;
    rate.add(now, [state.all.minute.requests / 60]);
    hits.add(now, [state.all.minute.hit_ratio]);
    first.add(now, [state.all.ttft_ms_p50]);
    const order = { down: 0, suspect: 1, draining: 2 };
    const workers = [...state.workers].sort((a, b) => (order[a.health] ?? 3) - (order[b.health] ?? 3) || b.streams - a.streams);
    const left = workers.length > 100 ? h("p", { class: "dim" }, `${workers.length - 100} more: see Workers`) : null;
    tables.replaceChildren(table("Workers", WORKERS, workers.slice(0, 100), "no worker is configured"), left ?? "",
      table("Busiest tenants", TENANTS,
        [...state.tenants].sort((a, b) => b.minute.requests - a.minute.requests || b.total.requests - a.total.requests).slice(0, 50)));
  }
  return { element, refresh };
}
