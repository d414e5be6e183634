// Tenants and plans of the database, and the API keys of one tenant: create, rotate, revoke. A key is shown once.

import { call, pages } from "./api.js";
import { field, h, notice, number, table } from "./dom.js";

export async function open(tenant, { may }) {
  return tenant ? keysOf(tenant, may) : list(may);
}

async function list(may) {
  const [tenants, plans] = await Promise.all([pages("tenants", 10000), pages("plans")]);
  const find = h("input", { type: "search", size: 20 }), rows = h("div");
  const draw = () => {
    const wanted = tenants.filter((t) => t.id.includes(find.value));
    rows.replaceChildren(table(`${number(wanted.length)} tenants of the database`, [
      { head: "tenant", cell: (t) => h("a", { href: `#tenants/${encodeURIComponent(t.id)}` }, t.id) },
      { head: "organisation", cell: (t) => t.organisation ?? "-" }, { head: "plan", cell: (t) => t.plan ?? "-" },
      { head: "state", cell: (t) => (t.disabled ? "disabled" : "active"), mark: (t) => (t.disabled ? "bad" : "good") },
    ], wanted.slice(0, 300), "none; tenants of the settings file are not listed"));
  };
  find.addEventListener("input", draw);
  draw();
  const id = h("input", { required: true, size: 16 });
  const plan = h("select", {}, h("option", { value: "" }, "(default)"), plans.map((p) => h("option", {}, p.name)));
  const make = async (event) => {
    event.preventDefault();
    await act(async () => {
      await call(`tenants/${encodeURIComponent(id.value)}`, { method: "PUT", body: plan.value ? { plan: plan.value } : {} });
      location.hash = `#tenants/${encodeURIComponent(id.value)}`;
    });
  };
  return { element: h("div", {},
    may("operator") ? h("form", { onsubmit: make }, field("New tenant", id), field("Plan", plan), h("button", {}, "Create")) : "",
    h("form", { onsubmit: (event) => event.preventDefault() }, field("Find a tenant", find)), rows,
    h("h3", {}, "Plans"), table("Plans of the database", [
      { head: "plan", cell: (p) => p.name }, { head: "concurrency", n: true, cell: (p) => number(p.concurrency) },
      { head: "weight", n: true, cell: (p) => p.weight ?? 1 },
      { head: "limits", text: true, cell: (p) => (p.limits ?? []).map((l) => JSON.stringify(l)).join(" ") || "-" }], plans)) };
}

async function keysOf(tenant, may) {
  const once = h("div", { role: "status" }), rows = h("div");
  const path = (id, action) => `keys/${encodeURIComponent(id)}/${action}`;
  const shown = (made) => once.replaceChildren(h("p", {}, `This is the only time that the key ${made.id} is shown:`),
    h("p", { class: "secret" }, made.key));
  const rotate = (id) => act(async () => { shown(await call(path(id, "rotate"), { method: "POST", body: {} })); await refresh(); });
  const revoke = (id) => confirm(`Revoke the key ${id}? It stops working at once, for ever.`)
    && act(async () => { await call("keys/revoke", { method: "POST", body: { ids: [id] } }); await refresh(); });
  const create = () => act(async () => { shown(await call("keys", { method: "POST", body: { tenant } })); await refresh(); });

  async function refresh() {
    const keys = await pages(`keys?tenant=${encodeURIComponent(tenant)}`);
    rows.replaceChildren(table("API keys", [
      { head: "key", cell: (k) => k.id }, { head: "state", cell: (k) => k.state, mark: (k) => (k.state === "active" ? "good" : "dim") },
      { head: "created", cell: (k) => k.created }, { head: "rules", text: true, cell: (k) => JSON.stringify(k.rules) },
      { head: "actions", cell: (k) => (may("operator") && k.state === "active" ? [
        h("button", { class: "act", onclick: () => rotate(k.id), "aria-label": `Rotate ${k.id}` }, "rotate"),
        h("button", { class: "act", onclick: () => revoke(k.id), "aria-label": `Revoke ${k.id}` }, "revoke")] : "-") },
    ], keys));
  }
  await refresh();
  return { element: h("div", {}, h("p", {}, h("a", { href: "#tenants" }, "all tenants")), h("h3", {}, tenant),
    may("operator") ? h("button", { onclick: create }, "Create a key") : "", once, rows) };
}

async function act(change) {
  try {
    await change();
  } catch (error) {
    notice(error.message);
  }
}
