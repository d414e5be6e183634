// The changes that operators made, the latest first.

import { call } from "./api.js";
import { field, h, number, options, pager, redraw, table } from "./dom.js";

const PAGE = 100;
const KINDS = ["all", "organisations", "plans", "tenants", "keys", "operators", "workers"];

const LONG = 120;
const nothing = (value) => value === null || value === undefined || value === false || value === "[]" || value === "{}";

// The fields that differ, folded up if they are long.
function changed({ before, after }) {
  const names = [...new Set([...Object.keys(before ?? {}), ...Object.keys(after ?? {})])];
  const text = names.filter((name) => JSON.stringify(before?.[name]) !== JSON.stringify(after?.[name]) && !(nothing(before?.[name]) && nothing(after?.[name])))
    .map((name) => `${name.replaceAll("_", " ")}: ${before ? `${JSON.stringify(before[name])} to ` : ""}${JSON.stringify(after?.[name])}`).join("; ");
  return text.length <= LONG ? text || "-" : h("details", {}, h("summary", {}, `${text.slice(0, LONG)}…`), h("span", { class: "mono" }, text));
}

export async function open() {
  const rows = h("div"), verified = h("p", { role: "status" });
  const kind = h("select", {}, options(KINDS)), subject = h("input", { size: 20 });
  const marks = [""];
  const draw = async () => {
    const query = new URLSearchParams({ limit: PAGE });
    if (kind.value !== "all") query.set("kind", kind.value);
    if (subject.value) query.set("subject", subject.value);
    if (marks.at(-1)) query.set("after", marks.at(-1));
    const page = await call(`audit?${query}`);
    redraw(rows, table("Changes, the latest first", [
      { head: "entry", n: true, cell: (e) => number(e.number) }, { head: "time (UTC)", cell: (e) => e.at.replace("T", " ").replace("Z", "") },
      { head: "by", cell: (e) => e.who }, { head: "action", cell: (e) => e.action }, { head: "kind", cell: (e) => e.kind },
      { head: "object", cell: (e) => e.subject },
      { head: "what changed", text: true, cell: changed }], page.data, "none yet"),
    pager("", { before: marks.length > 1 ? () => { marks.pop(); draw(); } : null, after: page.next ? () => { marks.push(page.next); draw(); } : null }));
  };
  const again = () => { marks.length = 1; return draw(); };
  const verify = async () => {
    const found = await call("audit/verification");
    verified.textContent = found.broken === null ? `All ${number(found.number)} entries follow from each other.`
      : `Entry ${found.broken} does not follow from those before it.`;
    verified.className = found.broken === null ? "good" : "bad";
  };
  await draw();
  return { element: h("div", {}, h("form", { onsubmit: (e) => { e.preventDefault(); again(); }, onchange: again },
    field("Kind", kind), field("Object", subject), h("button", {}, "Find"),
    h("button", { type: "button", onclick: verify }, "Verify the hash chain")), verified, rows) };
}
