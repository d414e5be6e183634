// The request explorer: finished requests of all gateways, and one request in detail.

import { call } from "./api.js";
import { clock, field, h, millis, number, share, table } from "./dom.js";

const link = (id) => h("a", { href: `#requests/${encodeURIComponent(id)}` }, id.slice(0, 16));

const COLUMNS = [
  { head: "request", cell: (r) => link(r.id) },
  { head: "time (UTC)", cell: (r) => clock(r.at) },
  { head: "tenant", cell: (r) => r.tenant || "-" },
  { head: "model", cell: (r) => r.model || "-" },
  { head: "outcome", cell: (r) => `${r.code}${r.slow ? ", slow" : ""}`, mark: (r) => (r.outcome === "failed" ? "bad" : r.slow ? "slow" : "") },
  { head: "whole", n: true, cell: (r) => millis(r.ms) },
  { head: "queue", n: true, cell: (r) => millis(r.wait?.ms) },
  { head: "TTFT", n: true, cell: (r) => millis(r.ttft_ms) },
  { head: "prompt", n: true, cell: (r) => number(r.prompt_tokens) },
  { head: "cached", n: true, cell: (r) => number(r.cached_tokens) },
  { head: "worker", cell: (r) => r.worker ?? "-" },
];

export async function open(id) {
  return id ? one(id) : list();
}

function list() {
  const tenant = h("input", { size: 14 }), model = h("input", { size: 18 }), worker = h("input", { size: 12 });
  const slow = h("input", { type: "checkbox" }), failed = h("input", { type: "checkbox" });
  const rows = h("div");
  async function refresh() {
    const query = new URLSearchParams({ limit: "100" });
    for (const [name, input] of Object.entries({ tenant, model, worker })) if (input.value) query.set(name, input.value);
    for (const [name, input] of Object.entries({ slow, failed })) if (input.checked) query.set(name, "true");
    rows.replaceChildren(table("Finished requests, the latest first", COLUMNS, (await call(`requests?${query}`)).data,
      "no request is remembered that matches"));
  }
  const form = h("form", { onsubmit: (event) => { event.preventDefault(); refresh(); }, onchange: refresh },
    field("Tenant", tenant), field("Model", model), field("Worker", worker), field("slow", slow), field("failed", failed),
    h("button", {}, "Find"));
  return { element: h("div", {}, h("p", { class: "dim" },
    "All failed and slow requests, and a sample of the others. Prompts and answers are never kept."), form, rows), refresh };
}

function bar(step, whole) {
  const start = Math.min(99, (100 * step.start_ms) / whole), length = Math.max(0.8, (100 * step.ms) / whole);
  return h("svg:svg", { class: "bar", viewBox: "0 0 100 8", preserveAspectRatio: "none", "aria-hidden": "true" },
    h("svg:rect", { x: start, y: 0, width: Math.min(length, 100 - start), height: 8 }));
}

async function one(id) {
  const r = await call(`requests/${encodeURIComponent(id)}`);
  const facts = [
    ["request", r.id], ["time (UTC)", new Date(1000 * r.at).toISOString()], ["gateway", r.gateway], ["tenant", r.tenant || "-"],
    ["key", r.key_id || "-"], ["model", r.asked && r.asked !== r.model ? `${r.asked} (${r.model})` : r.model || "-"],
    ["class", r.service_class || "-"], ["outcome", `${r.code} (${r.status})${r.slow ? ", slow" : ""}`],
    ["worker", r.prefill_worker ? `${r.worker}, prompt by ${r.prefill_worker}` : r.worker ?? "-"], ["attempts", number(r.attempts)],
    ["first token", `${millis(r.ttft_ms)} after arrival, target ${millis(r.ttft_target_ms)}`],
    ["at the worker", `${millis(r.worker_ttft_ms)}, predicted ${millis(r.predicted_ttft_ms)}`],
    ["prompt", `${number(r.prompt_tokens)} tokens, ${number(r.cached_tokens)} cached, ${number(r.predicted_cached_tokens)} predicted`],
    ["output", `${number(r.output_tokens)} tokens`], ["trace", r.trace_id ?? "-"],
  ];
  const wait = r.wait && h("p", {}, `Waited ${millis(r.wait.ms)}: ${r.wait.reason}. ${number(r.wait.requests_ahead)} requests with `
    + `${number(r.wait.tokens_ahead)} uncached tokens were ahead`
    + (Object.keys(r.wait.tenants_ahead).length ? ` (${Object.entries(r.wait.tenants_ahead).map(([t, n]) => `${t} ${n}`).join(", ")}).` : "."));
  return { element: h("div", {},
    h("p", {}, h("a", { href: "#requests" }, "all requests")),
    table("Request", [{ head: "field", cell: ([name]) => name }, { head: "value", text: true, cell: ([, value]) => value }], facts),
    h("h3", {}, "Where the time went"),
    table(`Steps of ${millis(r.ms)}`, [
      { head: "step", cell: (s) => s.name }, { head: "began at", n: true, cell: (s) => millis(s.start_ms) },
      { head: "took", n: true, cell: (s) => millis(s.ms) }, { head: "part", n: true, cell: (s) => share(s.ms / (r.ms || 1)) },
      { head: "timeline", cell: (s) => bar(s, r.ms || 1) }], r.steps),
    wait ?? "",
    h("h3", {}, "Ranking of the workers at that moment"),
    table("Best first", [
      { head: "worker", cell: (o) => o.worker }, { head: "cost", n: true, cell: (o) => millis(o.cost_ms) },
      { head: "cached", n: true, cell: (o) => number(o.matched_tokens) }, { head: "why", text: true, cell: (o) => o.reason },
      { head: "parts of the cost", text: true, cell: (o) => Object.entries(o.terms).map(([n, v]) => `${n.replace(/_ms$/, "")} ${v.toFixed(1)}`).join(", ") }],
      r.ranking, "no worker was ranked"),
    r.failed_attempts.length ? table("Attempts without an answer", [
      { head: "worker", cell: (a) => a.worker }, { head: "after", n: true, cell: (a) => millis(a.at_ms) },
      { head: "why", cell: (a) => a.why }], r.failed_attempts) : "",
    r.limits.length ? table("Limits when quota was reserved", [
      { head: "scope", cell: (l) => l.scope }, { head: "limit", cell: (l) => l.limit },
      { head: "left", n: true, cell: (l) => number(l.remaining) }, { head: "of", n: true, cell: (l) => number(l.amount) }], r.limits) : "") };
}
