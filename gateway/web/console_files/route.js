// Where a request would go now, and why; nothing is sent to a worker.

import { call } from "./api.js";
import { field, figures, h, millis, notice, number, table } from "./dom.js";

const EXAMPLE = { model: "", messages: [{ role: "user", content: "Hello" }] };

export async function open() {
  const { workers } = await call("overview?workers=50&tenants=0");
  const model = workers.flatMap((worker) => worker.models)[0] ?? "";
  const tenant = h("input", { value: "default", size: 20 }), body = h("textarea", { class: "code", spellcheck: "false" });
  body.value = JSON.stringify({ ...EXAMPLE, model }, null, 2);
  const result = h("div", { "aria-live": "polite" });
  const ask = async (event) => {
    event.preventDefault();
    try {
      show(await call("route", { method: "POST", body: { tenant: tenant.value, body: JSON.parse(body.value) } }));
    } catch (error) {
      notice(error.message);
    }
  };
  const show = (found) => result.replaceChildren(
    figures([["model", found.model, `for ${found.tenant}`], ["prompt", number(found.prompt_tokens), found.exact ? "tokens" : "tokens, estimated"],
      ["blocks", number(found.blocks), "of the prefix index"], ["policy", found.policy], ["waiting", number(found.waiting), "requests for the model"]]),
    table("Workers, the best first", [
      { head: "worker", cell: (w) => w.worker }, { head: "rank", n: true, cell: (w) => w.rank ?? "-" },
      { head: "state", cell: (w) => w.state, mark: (w) => w.state }, { head: "cost", n: true, cell: (w) => millis(w.cost_ms) },
      { head: "TTFT", n: true, cell: (w) => millis(w.predicted_ttft_ms) }, { head: "cached", n: true, cell: (w) => number(w.matched_tokens) },
      { head: "room", cell: (w) => (w.has_room ? "yes" : "no") }, { head: "why", text: true, cell: (w) => w.reason },
      { head: "parts of the cost", text: true, cell: (w) => Object.entries(w.terms).map(([n, v]) => `${n.replace(/_ms$/, "")} ${v.toFixed(1)}`).join(", ") || "-" }],
    found.workers.slice(0, 100)));
  return { element: h("div", {}, h("p", { class: "dim" }, "Where a request would go now, and why. Nothing is sent to a worker."),
    h("form", { class: "tall", onsubmit: ask }, h("div", { class: "row" }, field("Tenant", tenant)), field("Request as JSON", body),
      h("div", {}, h("button", { class: "main" }, "Explain"))), result) };
}
