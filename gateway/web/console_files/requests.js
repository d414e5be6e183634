// The request explorer: finished requests of all gateways, and one request in detail.

import { call } from "./api.js";
import { bar, clock, facts, field, figures, h, millis, money, number, paused, redraw, share, table } from "./dom.js";

const link = (id) => h("a", { href: `#requests/${encodeURIComponent(id)}`, class: "mono" }, id.slice(0, 12));
const outcome = (r) => `${r.code}${r.slow ? ", slow" : ""}`;
const mark = (r) => (r.outcome === "failed" ? "bad" : r.slow ? "slow" : r.outcome === "ok" ? "" : "dim");

const COLUMNS = [
  { head: "request", cell: (r) => link(r.id) },
  { head: "time (UTC)", cell: (r) => clock(r.at) },
  { head: "tenant", cell: (r) => r.tenant || "-" },
  { head: "model", cell: (r) => r.model || "-" },
  { head: "outcome", cell: outcome, mark },
  { head: "whole", n: true, cell: (r) => millis(r.ms) },
  { head: "queue", n: true, cell: (r) => millis(r.wait?.ms) },
  { head: "TTFT", n: true, cell: (r) => millis(r.ttft_ms) },
  { head: "prompt", n: true, cell: (r) => number(r.prompt_tokens) },
  { head: "cached", n: true, cell: (r) => number(r.cached_tokens) },
  { head: "output", n: true, cell: (r) => number(r.output_tokens) },
  { head: "worker", cell: (r) => r.worker ?? "-" },
];
const GATEWAY = { head: "gateway", cell: (r) => r.gateway };

export async function open(id, { watch, parameters }) {
  return id ? one(id) : list(watch, parameters);
}

function list(watch, parameters) {
  const text = (name, size) => h("input", { size, value: parameters.get(name) ?? "" });
  const tenant = text("tenant", 14), model = text("model", 16), worker = text("worker", 12), code = text("code", 12);
  const slow = h("input", { type: "checkbox", checked: parameters.has("slow") });
  const failed = h("input", { type: "checkbox", checked: parameters.has("failed") });
  const rows = h("div");
  const draw = (found) => redraw(rows, table("Finished requests, the latest first",
    new Set(found.data.map((r) => r.gateway)).size > 1 ? [...COLUMNS, GATEWAY] : COLUMNS, found.data, "none is remembered that matches"));
  const start = () => {
    const query = new URLSearchParams({ limit: "100", brief: "true" });
    for (const [name, input] of Object.entries({ tenant, model, worker, code })) if (input.value) query.set(name, input.value);
    for (const [name, input] of Object.entries({ slow, failed })) if (input.checked) query.set(name, "true");
    return watch(`requests?${query}`, draw);
  };
  const form = h("form", { onsubmit: (event) => { event.preventDefault(); start(); }, oninput: paused(start) },
    field("Tenant", tenant), field("Model", model), field("Worker", worker), field("Error code", code),
    field("slow", slow), field("failed", failed));
  return { element: h("div", {}, h("p", { class: "dim" },
    "The latest failed, slow, refused and other requests. Prompts and answers are never kept."), form, rows), start };
}

function waited(r) {
  const tenants = Object.entries(r.wait.tenants_ahead).map(([tenant, count]) => `${tenant} ${count}`).join(", ");
  return h("p", { class: "note warn" }, `Waited ${millis(r.wait.ms)}: ${r.wait.reason}. ${number(r.wait.requests_ahead)} requests with `
    + `${number(r.wait.tokens_ahead)} uncached tokens were ahead${tenants ? ` (${tenants}).` : "."}`);
}

async function one(id) {
  const r = await call(`requests/${encodeURIComponent(id)}`);
  const of = (name, value) => (value ? h("a", { href: `#requests?${new URLSearchParams({ [name]: value })}` }, value) : "-");
  return { element: h("div", {},
    h("p", { class: "crumb" }, h("a", { href: "#requests" }, "All requests"), ` / `, h("span", { class: "mono" }, r.id)),
    figures([
      ["outcome", outcome(r), `status ${r.status}`, mark(r)], ["whole", millis(r.ms), `arrived ${clock(r.at)} UTC`],
      ["first token", millis(r.ttft_ms), `target ${millis(r.ttft_target_ms)}`],
      ["at the worker", millis(r.worker_ttft_ms), `predicted ${millis(r.predicted_ttft_ms)}`],
      ["from cache", share(r.prompt_tokens && r.cached_tokens !== null ? r.cached_tokens / r.prompt_tokens : null),
        `predicted ${share(r.prompt_tokens ? r.predicted_cached_tokens / r.prompt_tokens : null)}`],
      ["spend", money(r.spend)]]),
    facts([
      ["tenant", of("tenant", r.tenant)], ["key", r.key_id || "-"], ["class", r.service_class || "-"],
      ["model", r.asked && r.asked !== r.model ? `${r.asked} (${r.model})` : of("model", r.model)],
      ["worker", r.prefill_worker ? `${r.worker}, prompt by ${r.prefill_worker}` : of("worker", r.worker)],
      ["attempts", number(r.attempts)],
      ["prompt", `${number(r.prompt_tokens)} tokens, ${number(r.cached_tokens)} cached, ${number(r.predicted_cached_tokens)} predicted`],
      ["output", `${number(r.output_tokens)} tokens${r.tpot_ms === null ? "" : `, ${millis(r.tpot_ms)} each`}`],
      ["time (UTC)", new Date(1000 * r.at).toISOString()], ["gateway", r.gateway], ["API", r.api],
      ["decided by", r.by_shadow ? "the shadow policy" : "the policy in force"],
      ["trace", r.trace_id ? h("span", { class: "mono" }, r.trace_id) : "not traced"]]),
    h("h3", {}, "Where the time went"), r.wait ? waited(r) : null,
    table(`Steps of ${millis(r.ms)}`, [
      { head: "step", cell: (s) => s.name.replaceAll("_", " ") }, { head: "began at", n: true, cell: (s) => millis(s.start_ms) },
      { head: "took", n: true, cell: (s) => millis(s.ms) }, { head: "part", n: true, cell: (s) => share(s.ms / (r.ms || 1)) },
      { head: "timeline", cell: (s) => bar(s.ms / (r.ms || 1), { from: s.start_ms / (r.ms || 1) }) }], r.steps),
    h("h3", {}, "Ranking of the workers at that moment"),
    table("Best first", [
      { head: "worker", cell: (o) => o.worker }, { head: "cost", n: true, cell: (o) => millis(o.cost_ms) },
      { head: "cached", n: true, cell: (o) => number(o.matched_tokens) }, { head: "why", text: true, cell: (o) => o.reason },
      { head: "parts of the cost", text: true, cell: (o) => Object.entries(o.terms).map(([n, v]) => `${n.replace(/_ms$/, "")} ${v.toFixed(1)}`).join(", ") || "-" }],
    r.ranking, "no worker was ranked"),
    r.failed_attempts.length ? [h("h3", {}, "Attempts without an answer"), table("In their order", [
      { head: "worker", cell: (a) => a.worker }, { head: "after", n: true, cell: (a) => millis(a.at_ms) },
      { head: "why", cell: (a) => a.why.replaceAll("_", " ") }], r.failed_attempts)] : [],
    r.limits.length ? [h("h3", {}, "Limits when quota was reserved"), limits(r.limits)] : []) };
}

export const limits = (all, caption = "What was left of each") => table(caption, [
  { head: "limit", cell: (l) => l.limit.replace(/^\d+/, (digits) => number(Number(digits))) }, { head: "of", cell: (l) => l.scope },
  { head: "left", n: true, cell: (l) => number(l.remaining), mark: (l) => (l.remaining <= 0 ? "bad" : l.remaining < l.amount / 10 ? "warn" : "") },
  { head: "amount", n: true, cell: (l) => number(l.amount) },
  { head: "used", cell: (l) => bar(l.amount ? Math.max(0, 1 - l.remaining / l.amount) : 0) }], all, "there are none");
