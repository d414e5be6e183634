// The settings in force at the gateway that answers, each with its source. Secrets are masked.

import { field, h, number, pager, paused, redraw, table } from "./dom.js";

const PAGE = 200;

export async function open(found, { watch, parameters }) {
  const find = h("input", { type: "search", size: 32, value: parameters.get("find") ?? found });
  const changed = h("input", { type: "checkbox", checked: !find.value }), rows = h("div");
  let offset = 0;
  const draw = (shown) => redraw(rows,
    shown.awaiting_restart.length ? h("div", { class: "note warn", role: "status" },
      `Changed in the settings file, and in force after a restart: ${shown.awaiting_restart.join(", ")}`) : null,
    table(`${number(shown.total)} settings`, [
      { head: "setting", cell: (s) => s.setting, mono: true }, { head: "value", text: true, cell: (s) => s.value, mono: true },
      { head: "source", text: true, cell: (s) => s.source, mark: (s) => (s.source === "default" ? "dim" : "") }], shown.data, "none matches"),
    shown.total > PAGE ? pager(`${number(offset + 1)} to ${number(offset + shown.data.length)} of ${number(shown.total)}`, {
      before: offset ? () => turn(-PAGE) : null, after: offset + shown.data.length < shown.total ? () => turn(PAGE) : null }) : null);
  const start = () => watch(`settings?${new URLSearchParams({ find: find.value, changed: changed.checked, offset, limit: PAGE })}`, draw);
  const turn = (by) => {
    offset = Math.max(0, offset + by);
    start();
  };
  const form = h("form", { onsubmit: (event) => event.preventDefault(), oninput: paused(() => { offset = 0; start(); }) },
    field("Find in path or source", find), field("only what is not at its default", changed));
  return { element: h("div", {}, h("p", { class: "dim" },
    "What this gateway works with, and where each value comes from: file, environment, command line or default."), form, rows), start };
}
