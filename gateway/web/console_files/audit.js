// The changes that operators made, the latest first.

import { call } from "./api.js";
import { h, table } from "./dom.js";

export async function open() {
  const rows = h("div"), verified = h("p", { role: "status" });
  const entries = (await call("audit?limit=200")).data;
  const verify = async () => {
    const found = await call("audit/verification");
    verified.textContent = found.broken === null ? `All ${found.number} entries follow from each other.` : `Entry ${found.broken} does not follow from those before it.`;
    verified.className = found.broken === null ? "good" : "bad";
  };
  rows.replaceChildren(table("Changes", [
    { head: "number", n: true, cell: (e) => e.number }, { head: "time", cell: (e) => e.at }, { head: "by", cell: (e) => e.who },
    { head: "action", cell: (e) => e.action }, { head: "kind", cell: (e) => e.kind }, { head: "object", cell: (e) => e.subject },
    { head: "after", text: true, cell: (e) => (e.after === null ? "-" : JSON.stringify(e.after)) }], entries));
  return { element: h("div", {}, h("button", { onclick: verify }, "Verify the hash chain"), verified, rows) };
}
