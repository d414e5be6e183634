// A tenant's own page: usage, limits, errors, savings by the cache, and a chat to try a model, all with the tenant's key.

import { ApiError, call, hasToken, setToken } from "./api.js";
import { Chart } from "./chart.js";
import { clock, field, h, millis, money, notice, number, share, table } from "./dom.js";

const V1 = { base: "../v1/" };
const DAY = 86400000;
const main = document.querySelector("#main");

function signIn(why) {
  const key = h("input", { type: "password", autocomplete: "off", required: true });
  main.replaceChildren(h("h2", {}, "Sign in"), h("p", {}, why),
    h("form", { onsubmit: (event) => { event.preventDefault(); setToken(key.value.trim()); show(); } },
      field("API key", key), h("button", {}, "Sign in")));
}

async function usage() {
  const since = new Date(Date.now() - 29 * DAY).toISOString().slice(0, 10);
  let days, models;
  try {
    [days, models] = await Promise.all([
      call(`usage?by=day&since=${since}`, V1), call(`usage?by=model&since=${since}`, V1)]);
  } catch (error) {
    if (error instanceof ApiError && error.status === 404) return h("p", { class: "dim" }, "This gateway keeps no usage.");
    throw error;
  }
  const at = days.data.map((d) => Date.parse(d.day) / 1000);
  const tokens = new Chart("Tokens a day", ["prompt", "cached", "output"], number, { live: false });
  queueMicrotask(() => tokens.set(at, ...["prompt_tokens", "cached_tokens", "output_tokens"].map((n) => days.data.map((d) => d[n]))));
  return h("div", {}, tokens.element, table("The last 30 days, by model", [
    { head: "model", cell: (g) => g.model || "-" }, { head: "requests", n: true, cell: (g) => number(g.requests) },
    { head: "prompt tokens", n: true, cell: (g) => number(g.prompt_tokens) },
    { head: "from cache", n: true, cell: (g) => share(g.prompt_tokens ? g.cached_tokens / g.prompt_tokens : null) },
    { head: "output tokens", n: true, cell: (g) => number(g.output_tokens) },
    { head: "spend", n: true, cell: (g) => money(g.cost) }], models.data, "no requests yet"));
}

async function requests() {
  const found = (await call("requests?limit=50", V1)).data;
  const limits = found.find((r) => r.limits.length)?.limits ?? [];
  return [
    h("h2", {}, "Limits"), table("As of your latest request that is remembered", [
      { head: "scope", cell: (l) => l.scope }, { head: "limit", cell: (l) => l.limit },
      { head: "left", n: true, cell: (l) => number(l.remaining) }, { head: "of", n: true, cell: (l) => number(l.amount) }], limits,
    "none is known"),
    h("h2", {}, "Requests"), table("Failed and slow ones, and a sample of the others", [
      { head: "request", cell: (r) => r.id }, { head: "time (UTC)", cell: (r) => clock(r.at) }, { head: "model", cell: (r) => r.model || "-" },
      { head: "outcome", cell: (r) => `${r.code}${r.slow ? ", slow" : ""}`, mark: (r) => (r.outcome === "failed" ? "bad" : r.slow ? "slow" : "") },
      { head: "whole", n: true, cell: (r) => millis(r.ms) }, { head: "queue", n: true, cell: (r) => millis(r.wait?.ms) },
      { head: "TTFT", n: true, cell: (r) => millis(r.ttft_ms) }, { head: "prompt", n: true, cell: (r) => number(r.prompt_tokens) },
      { head: "cached", n: true, cell: (r) => number(r.cached_tokens) }], found)];
}

async function playground() {
  const model = h("select", {}, (await call("models", V1)).data.map((m) => h("option", {}, m.id)));
  const text = h("textarea", { required: true }), answer = h("p", { "aria-live": "polite" });
  const ask = async (event) => {
    event.preventDefault();
    answer.textContent = "…";
    try {
      const found = await call("chat/completions", { ...V1, method: "POST",
        body: { model: model.value, messages: [{ role: "user", content: text.value }] } });
      answer.textContent = found.choices?.[0]?.message?.content ?? "";
    } catch (error) {
      answer.textContent = "";
      notice(error.message);
    }
  };
  return [h("h2", {}, "Try a model"), h("p", { class: "dim" }, "Sent with your key, and charged like any other request."),
    h("form", { onsubmit: ask }, field("Model", model), field("Message", text), h("button", {}, "Send")), answer];
}

async function show() {
  if (!hasToken()) return signIn("Enter an API key of yours that may read usage. It is kept for this tab only.");
  try {
    const parts = [h("h2", {}, "Usage"), await usage(), ...(await requests()), ...(await playground())];
    document.querySelector("#who").replaceChildren(
      h("button", { onclick: () => { setToken(null); location.reload(); } }, "Sign out"));
    main.replaceChildren(...parts);
  } catch (error) {
    setToken(null);
    signIn(error.message);
  }
}

show();
