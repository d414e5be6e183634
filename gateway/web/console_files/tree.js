// The prefix index, drawn as a tree: each box is a run of blocks, as wide as it has tokens; green ones have copies.

import { call } from "./api.js";
import { field, h, number, table } from "./dom.js";

const ROW = 26, INDENT = 18, WIDTH = 1100, TEXT = 520;

export async function open() {
  const group = h("input", { size: 18 }), model = h("input", { size: 18 }), worker = h("input", { size: 12 });
  const drawing = h("div");
  async function refresh() {
    const query = new URLSearchParams({ nodes: "120" });
    for (const [name, input] of Object.entries({ group, model, worker })) if (input.value) query.set(name, input.value);
    draw(await call(`index?${query}`));
  }
  function draw(found) {
    if (drawing.contains(document.activeElement)) return;
    const below = Map.groupBy ? Map.groupBy(found.nodes, (n) => n.parent) : grouped(found.nodes);
    const rows = [];
    const visit = (node, level) => {
      rows.push([node, level]);
      (below.get(node.id) ?? []).forEach((child) => visit(child, level + 1));
    };
    (below.get(null) ?? []).forEach((root) => visit(root, 0));
    const widest = Math.max(1, ...found.nodes.map((n) => n.blocks * n.block_tokens));
    const hot = [...found.nodes].sort((a, b) => b.copies - a.copies || b.blocks - a.blocks).slice(0, 10);
    drawing.replaceChildren(
      h("p", {}, `${number(found.nodes_total)} nodes, ${number(found.blocks_total)} blocks; ${number(found.selected)} match, ${rows.length} shown.`),
      h("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "Prefix tree" },
        h("svg:svg", { class: "tree", viewBox: `0 0 ${WIDTH} ${Math.max(1, rows.length) * ROW}`, role: "list" },
          rows.map(([node, level], at) => box(node, level, at, widest)))),
      h("h3", {}, "Most copied prefixes"),
      table("Held by the most workers", [
        { head: "prefix", cell: (n) => n.id }, { head: "model", cell: (n) => n.model }, { head: "group", cell: (n) => n.group || "(shared)" },
        { head: "tokens", n: true, cell: (n) => number((n.depth + n.blocks) * n.block_tokens) },
        { head: "copies", n: true, cell: (n) => number(n.copies) },
        { head: "held by", text: true, cell: (n) => holders(n) }, { head: "used", n: true, cell: (n) => `${number(n.used_seconds_ago)} s ago` }], hot));
  }
  const form = h("form", { onsubmit: (event) => { event.preventDefault(); refresh(); }, onchange: refresh },
    field("Isolation group", group), field("Model", model), field("Worker", worker), h("button", {}, "Show"));
  return { element: h("div", {}, h("p", { class: "dim" }, "Hashes and counts only; prompts cannot be read from them."), form, drawing), refresh };
}

const holders = (node) => Object.entries(node.holders).map(([worker, blocks]) => `${worker} ${blocks}`).join(", ") || "no worker";

function grouped(nodes) {
  const found = new Map();
  for (const node of nodes) found.set(node.parent, [...(found.get(node.parent) ?? []), node]);
  return found;
}

function box(node, level, at, widest) {
  const x = level * INDENT, y = at * ROW + 4;
  const width = Math.max(4, ((WIDTH - TEXT - x) * node.blocks * node.block_tokens) / widest);
  const said = `${node.depth * node.block_tokens}-${(node.depth + node.blocks) * node.block_tokens} tokens, ${node.group || "shared"}: ${holders(node)}`;
  return h("svg:g", { role: "listitem", tabindex: "0", "aria-label": said },
    level ? h("svg:path", { d: `M${x - INDENT / 2} ${y - 6} V${y + 9} H${x}` }) : "",
    h("svg:rect", { x, y, width, height: ROW - 8, rx: 3, class: node.copies > 1 ? "shared" : null }),
    h("svg:text", { x: x + width + 8, y: y + 14 }, said.length > 90 ? `${said.slice(0, 89)}…` : said));
}
