// All workers, and what an operator may do with them.

import { call } from "./api.js";
import { field, h, millis, notice, number, share, table } from "./dom.js";

const SHOWN_MAX = 300;

export async function open(_, { may }) {
  const find = h("input", { type: "search", size: 20 }), rows = h("div");
  let workers = [];
  const action = (worker, verb) => h("button", { class: "act", "aria-label": `${verb} ${worker.id}`, onclick: async () => {
    try {
      await call(`workers/${encodeURIComponent(worker.id)}/${verb}`, { method: "POST" });
      await refresh();
    } catch (error) {
      notice(error.message);
    }
  } }, verb);
  const actions = (w) => (!may("operator") ? "-" : w.state === "asleep" ? [action(w, "wake")]
    : w.state === "draining" ? [action(w, "resume"), action(w, "sleep")] : [action(w, "drain"), action(w, "sleep")]);
  const columns = [
    { head: "worker", cell: (w) => w.id }, { head: "state", cell: (w) => w.state, mark: (w) => w.state },
    { head: "circuit", cell: (w) => w.circuit, mark: (w) => (w.circuit === "closed" ? "" : "bad") },
    { head: "kind", cell: (w) => w.kind }, { head: "models", text: true, cell: (w) => w.models.slice(0, 8).join(", ") },
    { head: "streams", n: true, cell: (w) => number(w.streams) },
    { head: "tokens queued", n: true, cell: (w) => number(w.tokens_queued) },
    { head: "KV in use", n: true, cell: (w) => (w.kv_tokens_max ? share(w.kv_tokens / w.kv_tokens_max) : "-") },
    { head: "prefill tok/s", n: true, cell: (w) => number(w.prefill_tokens_per_second) },
    { head: "step", n: true, cell: (w) => millis(w.step_ms) },
    { head: "failures", n: true, cell: (w) => number(w.failures) },
    { head: "trouble", text: true, cell: (w) => w.trouble || "-" },
    { head: "actions", cell: actions },
  ];
  const draw = () => {
    if (rows.contains(document.activeElement) && document.activeElement.tagName === "BUTTON") return;
    const wanted = workers.filter((w) => [w.id, w.state, w.kind, ...w.models].some((text) => text.includes(find.value)));
    rows.replaceChildren(table(`${wanted.length} of ${workers.length} workers`, columns, wanted.slice(0, SHOWN_MAX)));
  };
  find.addEventListener("input", draw);
  async function refresh() {
    workers = (await call("workers")).data;
    draw();
  }
  return { element: h("div", {}, h("form", { onsubmit: (e) => e.preventDefault() }, field("Find by id, state, kind or model", find)), rows), refresh };
}
