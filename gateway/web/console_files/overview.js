// The state of all gateways: what needs attention, figures, charts of the last hour, workers and the busiest tenants.

import { call } from "./api.js";
import { Chart } from "./chart.js";
import { compact, figures, h, millis, number, perSecond, plural, rate, redraw, share, table } from "./dom.js";
import { showState } from "./state.js";

const WORKERS_MAX = 50, TENANTS_MAX = 25, HOUR = 3600, LEAST = 300;

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
  { head: "failures", n: true, cell: (w) => number(w.failures), mark: (w) => (w.failures ? "bad" : "") },
];

const TENANTS = [
  { head: "tenant", cell: (t) => (t.id === "*" ? "all others" : h("a", { href: `#tenants/${encodeURIComponent(t.id)}` }, t.id)) },
  { head: "requests/s", n: true, cell: (t) => perSecond(t) },
  { head: "requests", n: true, cell: (t) => number(t.total.requests) },
  { head: "refused", n: true, cell: (t) => number(t.total.refused) },
  { head: "errors", n: true, cell: (t) => number(t.total.errors), mark: (t) => (t.total.errors > t.total.refused ? "bad" : "") },
  { head: "prompt tokens", n: true, cell: (t) => number(t.total.prompt_tokens) },
  { head: "hit ratio", n: true, cell: (t) => share(t.total.hit_ratio) },
  { head: "output tokens", n: true, cell: (t) => number(t.total.output_tokens) },
  { head: "TTFT p50", n: true, cell: (t) => millis(t.ttft_ms_p50) },
];

function attention(state) {
  const { up = 0, ...others } = state.worker_states;
  const away = Object.entries(others).filter(([health]) => health === "down" || health === "suspect");
  const lines = [
    ...away.map(([health, count]) => h("li", {}, h("a", { href: "#workers" }, `${plural(count, "worker")} ${health}`))),
    state.redis === "shared" ? null : h("li", {}, "Redis is unreachable: each gateway decides quotas alone."),
    state.index === "following" ? null : h("li", {}, "The prefix index is standing still: routing knows less and less of the caches."),
    ["away", "stale"].includes(state.database) ? h("li", {}, `The database is ${state.database}.`) : null,
    ...state.failing_loops.map((name) => h("li", {}, `The background loop "${name}" fails; the log says why.`)),
  ].filter(Boolean);
  return lines.length ? h("div", { class: "note bad", role: "status" }, h("ul", {}, lines)) : null;
}

export async function open(_, { watch, signal }) {
  const traffic = new Chart("Requests per second", ["requests", "errors"], (v) => rate(v));
  const hits = new Chart("Prompt tokens from cache", ["hit ratio"], (v) => `${(100 * v).toFixed(0)} %`, { top: 1 });
  const first = new Chart("Time to the first token", ["p50"], millis);
  const load = new Chart("Load", ["streams", "waiting"], compact);
  const top = h("div"), tables = h("div");
  const element = h("div", {}, top,
    h("div", { class: "charts" }, traffic.element, hits.element, first.element, load.element), tables);

  async function past() {
    const { data, sample_seconds: seconds } = await call("history");
    const now = Date.now() / 1000, at = data.map((s) => s.at);
    const range = [Math.max(now - HOUR, Math.min(at[0] ?? now, now - LEAST)), now];
    traffic.set(range, at, data.map((s) => s.requests / seconds), data.map((s) => s.errors / seconds));
    hits.set(range, at, data.map((s) => (s.prompt_tokens ? s.cached_tokens / s.prompt_tokens : null)));
    first.set(range, at, data.map((s) => s.ttft_ms));
    load.set(range, at, data.map((s) => s.streams), data.map((s) => s.waiting));
  }

  function draw(state) {
    showState(state);
    const { total, minute } = state.all;
    const waiting = state.queue.queues.reduce((sum, queue) => sum + queue.waiting, 0);
    const workers = Object.values(state.worker_states).reduce((sum, count) => sum + count, 0);
    redraw(top, attention(state), figures([
      ["requests per second", perSecond(state.all), `${compact(total.requests)} since the start`],
      ["errors", share(minute.requests ? minute.errors / minute.requests : null), `last minute; ${compact(total.errors)} since the start`],
      ["time to first token", millis(state.all.ttft_ms_p50), "median of the latest requests"],
      ["from cache", share(minute.hit_ratio), `last minute; ${share(total.hit_ratio)} since the start`],
      ["waiting", number(waiting), "requests in the queues", waiting ? "warn" : null],
      ["workers up", `${number(state.worker_states.up ?? 0)} of ${number(workers)}`, `${plural(state.gateways.length, "gateway")}`],
    ]));
    redraw(tables, h("h3", {}, "Workers"),
      table(workers > state.workers.length ? `${state.workers.length} of ${number(workers)}: those that need attention, then the busiest` : "All workers",
        WORKERS, state.workers, "no worker is configured"),
      h("h3", {}, "Tenants"), table("The busiest of the last minute", TENANTS,
        [...state.tenants].sort((a, b) => b.minute.requests - a.minute.requests || b.total.requests - a.total.requests),
        "no request has come yet"));
  }

  return { element, start: async () => {
    await watch(`overview?workers=${WORKERS_MAX}&tenants=${TENANTS_MAX}`, draw);
    await past();
    const timer = setInterval(() => { if (!document.hidden) past().catch(() => null); }, 10000);
    signal.addEventListener("abort", () => clearInterval(timer), { once: true });
  } };
}
