// All workers, and what an operator may do with them.

import { call } from "./api.js";
import { field, h, millis, notice, number, pager, paused, redraw, share, table } from "./dom.js";

const PAGE = 100;

export async function open(_, { may, watch }) {
  const find = h("input", { type: "search", size: 28 }), rows = h("div");
  let offset = 0;
  const action = (worker, verb) => h("button", { class: "act", "aria-label": `${verb} ${worker.id}`, onclick: async () => {
    try {
      await call(`workers/${encodeURIComponent(worker.id)}/${verb}`, { method: "POST" });
      notice(`${worker.id}: ${verb} is under way`, "good");
    } catch (error) {
      notice(error.message);
    }
  } }, verb);
  const actions = (w) => (!may("operator") ? "-" : w.state === "asleep" ? [action(w, "wake")]
    : w.state === "draining" ? [action(w, "resume"), action(w, "sleep")] : [action(w, "drain"), action(w, "sleep")]);
  const columns = [
    { head: "worker", cell: (w) => w.id }, { head: "state", cell: (w) => w.state, mark: (w) => w.state },
    { head: "circuit", cell: (w) => w.circuit, mark: (w) => (w.circuit === "closed" ? "dim" : "bad") },
    { head: "kind", cell: (w) => w.kind },
    { head: "models", cell: (w) => (w.models.length > 3 ? `${w.models.slice(0, 3).join(", ")}, ${w.models.length - 3} more` : w.models.join(", ") || "-") },
    { head: "streams", n: true, cell: (w) => number(w.streams) },
    { head: "slots", n: true, cell: (w) => (w.slots === null ? "-" : number(w.slots)) },
    { head: "tokens queued", n: true, cell: (w) => number(w.tokens_queued) },
    { head: "KV in use", n: true, cell: (w) => (w.kv_tokens_max ? share(w.kv_tokens / w.kv_tokens_max) : "-") },
    { head: "prefill tok/s", n: true, cell: (w) => number(w.prefill_tokens_per_second) },
    { head: "step", n: true, cell: (w) => millis(w.step_ms) },
    { head: "failures", n: true, cell: (w) => number(w.failures) },
    ...(may("operator") ? [{ head: "actions", cell: actions }] : []),
  ];
  const trouble = { head: "trouble", text: true, cell: (w) => w.trouble || "-" };
  const draw = (found) => redraw(rows,
    table(`${number(found.matching)} of ${number(found.total)} workers`,
      found.data.some((w) => w.trouble) ? [...columns, trouble] : columns, found.data, "no worker matches"),
    found.matching > PAGE ? pager(`${offset + 1} to ${offset + found.data.length}`, {
      before: offset ? () => turn(-PAGE) : null,
      after: offset + found.data.length < found.matching ? () => turn(PAGE) : null }) : null);
  const start = () => watch(`workers?${new URLSearchParams({ find: find.value, offset, limit: PAGE })}`, draw);
  const turn = (by) => {
    offset = Math.max(0, offset + by);
    start();
  };
  find.addEventListener("input", paused(() => { offset = 0; start(); }));
  return { element: h("div", {}, h("form", { onsubmit: (e) => e.preventDefault() },
    field("Find by id, state, kind or model", find)), rows), start };
}
