// A tenant's own page: usage, limits, errors, savings by the cache, and a chat to try a model, all with the tenant's key.

import { ApiError, call, hasToken, setToken } from "./api.js";
import { clock, field, h, millis, number, redraw, table } from "./dom.js";
import { parts, playground } from "./playground.js";
import { limits } from "./requests.js";
import { sums, UsageOverTime } from "./usage.js";

const V1 = { base: "../v1/" };
const DAY = 86400, LIMITS_MS = 3000;
const main = document.querySelector("#main");

function signIn(why) {
  const key = h("input", { type: "password", autocomplete: "off", required: true, size: 40 });
  main.replaceChildren(h("h2", {}, "Sign in"), h("p", {}, why),
    h("form", { onsubmit: (event) => { event.preventDefault(); setToken(key.value.trim()); show(); } },
      field("API key", key), h("button", { class: "main" }, "Sign in")));
}

async function usage(place) {
  const since = Math.floor(Date.now() / 1000 / DAY - 29) * DAY, day = new Date(1000 * since).toISOString().slice(0, 10);
  try {
    const [days, models] = await Promise.all([
      call(`usage?by=day&since=${day}`, V1), call(`usage?by=model&since=${day}`, V1)]);
    const over = new UsageOverTime();
    place.replaceChildren(over.element, table("The last 30 days, by model", sums("model"), models.data, "no request yet"));
    over.show(days.data, since);
  } catch (error) {
    if (!(error instanceof ApiError) || error.status !== 404) throw error;
    place.replaceChildren(h("p", { class: "empty" }, "This gateway keeps no usage."));
  }
}

const COLUMNS = [
  { head: "request", cell: (r) => r.id.slice(0, 12), mono: true }, { head: "time (UTC)", cell: (r) => clock(r.at) },
  { head: "model", cell: (r) => r.model || "-" },
  { head: "outcome", cell: (r) => `${r.code}${r.slow ? ", slow" : ""}`, mark: (r) => (r.outcome === "failed" ? "bad" : r.slow ? "slow" : "") },
  { head: "whole", n: true, cell: (r) => millis(r.ms) }, { head: "queue", n: true, cell: (r) => millis(r.wait?.ms) },
  { head: "TTFT", n: true, cell: (r) => millis(r.ttft_ms) }, { head: "prompt", n: true, cell: (r) => number(r.prompt_tokens) },
  { head: "cached", n: true, cell: (r) => number(r.cached_tokens) }];

async function requests() {
  const { data: found } = await call("requests?limit=50", V1);
  const left = h("div");
  const drawLimits = async () => redraw(left, limits((await call("limits", V1)).data, "What is left of each now"));
  await drawLimits();
  setInterval(() => document.hidden || !hasToken() || drawLimits().catch(() => {}), LIMITS_MS);
  const errors = found.filter((r) => r.outcome === "failed" || r.outcome === "refused");
  return [
    h("h3", {}, "Limits"), left,
    h("h3", {}, "Errors"), table("Your latest failed and refused requests", COLUMNS, errors.slice(0, 20), "none"),
    h("h2", {}, "Requests"), table("The latest failed, slow and other ones", COLUMNS, found, "none yet")];
}

async function show() {
  if (!hasToken()) return signIn("Enter an API key of yours that may read usage. It is kept for this tab only.");
  try {
    const place = h("div");
    const [of, models] = await Promise.all([requests(), call("models", V1)]);
    const [datalist, made] = playground(models.data.map((m) => m.id), "../v1/chat/completions", () => ({}));
    document.querySelector("#who").replaceChildren(
      h("button", { class: "act", onclick: () => { setToken(null); location.reload(); } }, "Sign out"));
    main.replaceChildren(h("h2", {}, "Usage"), place, ...of, h("h3", {}, "Try a model"),
      h("p", { class: "dim" }, "Sent with your key, and charged like any other request."), ...parts(made, datalist));
    await usage(place);
  } catch (error) {
    setToken(null);
    signIn(error.message);
  }
}

show();
