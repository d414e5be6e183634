// The prefix index, drawn as a tree: each bar is a run of blocks, as long as it has tokens.

import { field, h, number, paused, redraw, seconds, table } from "./dom.js";

const NODES = 120, HOT_SECONDS = 60, LEVELS = 12;

const holders = (node) => Object.entries(node.holders).map(([worker, blocks]) => `${worker} ${blocks}`).join(", ") || "no worker";
const ago = (node) => `${node.used_seconds_ago < 120 ? `${number(node.used_seconds_ago)} s` : seconds(node.used_seconds_ago)} ago`;
const end = (node) => (node.depth + node.blocks) * node.block_tokens;
const kind = (node) => (node.copies > 1 ? "shared" : node.used_seconds_ago < HOT_SECONDS ? "hot" : "");

export async function open(_, { watch }) {
  const group = h("input", { size: 18 }), model = h("input", { size: 18 }), worker = h("input", { size: 12 });
  const drawing = h("div");
  const sample = (mark, text) => h("span", { class: mark },
    h("svg:svg", { viewBox: "0 0 8 8", "aria-hidden": "true" }, h("svg:rect", { width: 8, height: 8, rx: 2 })), text);
  const draw = (found) => {
    const below = new Map();
    for (const node of found.nodes) below.set(node.parent, [...(below.get(node.parent) ?? []), node]);
    const widest = Math.max(1, ...found.nodes.map((n) => n.blocks * n.block_tokens));
    const list = (nodes, level) => nodes.length
      ? h("ul", { class: level > LEVELS ? "deep" : null }, nodes.map((n) => h("li", {}, row(n, widest), list(below.get(n.id) ?? [], level + 1)))) : null;
    const spaces = new Map();
    for (const root of below.get(null) ?? []) {
      const name = `${root.model || "unknown model"}, ${root.group || "shared by all tenants"}`;
      spaces.set(name, [...(spaces.get(name) ?? []), root]);
    }
    const hot = [...found.nodes].sort((a, b) => b.copies - a.copies || b.blocks - a.blocks).slice(0, 10);
    redraw(drawing,
      h("p", {}, `${number(found.nodes_total)} prefixes with ${number(found.blocks_total)} blocks; ${number(found.selected)} match, `
        + `the ${number(found.nodes.length)} used most recently are drawn.`),
      h("p", { class: "keys" }, sample("shared", "held by several workers"), sample("hot", "used in the last minute"), sample("", "used earlier")),
      found.nodes.length ? null : h("p", { class: "empty" }, "No worker holds a prefix that matches."),
      ...[...spaces].map(([name, roots]) => [h("h3", {}, name), h("div", { class: "tree", tabindex: "0", role: "region", "aria-label": name }, list(roots, 0))]).flat(),
      hot.length ? h("h3", {}, "Held by the most workers") : null,
      hot.length ? table("Of the drawn prefixes", [
        { head: "prefix", cell: (n) => n.id, mono: true }, { head: "model", cell: (n) => n.model }, { head: "group", cell: (n) => n.group || "(shared)" },
        { head: "tokens", n: true, cell: (n) => number(end(n)) }, { head: "copies", n: true, cell: (n) => number(n.copies) },
        { head: "blocks held by", text: true, cell: holders }, { head: "used", n: true, cell: ago }], hot) : null);
  };
  const start = () => {
    const query = new URLSearchParams({ nodes: NODES });
    for (const [name, input] of Object.entries({ group, model, worker })) if (input.value) query.set(name, input.value);
    return watch(`index?${query}`, draw);
  };
  const form = h("form", { onsubmit: (event) => { event.preventDefault(); start(); }, oninput: paused(start) },
    field("Isolation group", group), field("Model", model), field("Worker", worker));
  return { element: h("div", {}, h("p", { class: "dim" },
    "Which worker holds which prefixes. Each bar is a run of prompt tokens, from one position to another, that follows the bar above it; "
      + "behind it are the workers with the blocks that they hold. Hashes and counts only; prompts cannot be read from them."), form, drawing), start };
}

function row(node, widest) {
  const width = Math.max(2, (100 * node.blocks * node.block_tokens) / widest);
  return h("div", { class: `node ${kind(node)}` },
    h("svg:svg", { viewBox: "0 0 100 8", preserveAspectRatio: "none", "aria-hidden": "true" }, h("svg:rect", { width, height: 8, rx: 1 })),
    h("span", { class: "span" }, `${number(node.depth * node.block_tokens)} to ${number(end(node))}`),
    h("span", { class: "dim" }, `${holders(node)}, used ${ago(node)}`));
}
