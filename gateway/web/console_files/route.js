// Where a request would go now, and why; nothing is sent to a worker.

import { call } from "./api.js";
import { field, h, millis, notice, number, table } from "./dom.js";

const EXAMPLE = JSON.stringify({ model: "", messages: [{ role: "user", content: "Hello" }] }, null, 1);

export async function open() {
  const tenant = h("input", { value: "default", size: 16 }), body = h("textarea", { spellcheck: "false" });
  body.value = EXAMPLE;
  const result = h("div", { "aria-live": "polite" });
  const models = new Set((await call("overview")).workers.flatMap((worker) => worker.models));
  if (models.size) body.value = EXAMPLE.replace('"model": ""', `"model": ${JSON.stringify([...models][0])}`);
  const ask = async (event) => {
    event.preventDefault();
    try {
      show(await call("route", { method: "POST", body: { tenant: tenant.value, body: JSON.parse(body.value) } }));
    } catch (error) {
      notice(error.message);
    }
  };
  const show = (found) => result.replaceChildren(
    h("p", {}, `${found.model} for ${found.tenant}: ${number(found.prompt_tokens)} prompt tokens in ${number(found.blocks)} blocks; policy ${found.policy}; ${number(found.waiting)} waiting.`),
    table("Workers, the best first", [
      { head: "worker", cell: (w) => w.worker }, { head: "rank", n: true, cell: (w) => w.rank ?? "-" },
      { head: "state", cell: (w) => w.state, mark: (w) => w.state }, { head: "cost", n: true, cell: (w) => millis(w.cost_ms) },
      { head: "TTFT", n: true, cell: (w) => millis(w.predicted_ttft_ms) }, { head: "cached", n: true, cell: (w) => number(w.matched_tokens) },
      { head: "room", cell: (w) => (w.has_window ? "yes" : "no") }, { head: "why", text: true, cell: (w) => w.reason },
      { head: "parts of the cost", text: true, cell: (w) => Object.entries(w.terms).map(([n, v]) => `${n.replace(/_ms$/, "")} ${v.toFixed(1)}`).join(", ") }],
    found.workers));
  return { element: h("div", {}, h("form", { onsubmit: ask }, field("Tenant", tenant), field("Request as JSON", body),
    h("button", {}, "Explain")), result) };
}
