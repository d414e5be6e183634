// Tenants and plans of the database; one tenant with its usage, its limits and its API keys, which are shown once.

import { call } from "./api.js";
import { facts, field, h, number, notice, options, pager, paused, redraw, table } from "./dom.js";
import { useKey } from "./playground.js";
import { limits } from "./requests.js";
import { UsageOverTime } from "./usage.js";

const PAGE = 100, DAY = 86400, DEFAULT_PLAN = "(default)";

export async function open(tenant, { may }) {
  return tenant ? one(tenant, may) : list(may);
}

const USUAL = ["reset smooth", "mode enforce"];
const shownLimit = (l) => Object.entries(l).filter(([name, value]) =>
  value !== null && !(value instanceof Array && !value.length) && !USUAL.includes(`${name} ${value}`))
  .map(([name, value]) => (name === "per" ? `per ${value}` : `${typeof value === "number" ? number(value) : value} ${name.replaceAll("_", " ")}`)).join(" ");
const USUAL_RULES = ['scopes ["inference","usage"]', 'models {"allow":["*"],"deny":[]}', "disabled false"];
const planOf = (select) => (select.value === DEFAULT_PLAN ? {} : { plan: select.value });

async function list(may) {
  const plans = (await call("plans?limit=1000")).data;
  const fromFile = (await call("settings?find=tenants[&limit=1")).total;
  const find = h("input", { type: "search", size: 28 }), rows = h("div");
  let marks = [""];
  const draw = async () => {
    const page = await call(`tenants?${new URLSearchParams({ find: find.value, after: marks.at(-1), limit: PAGE })}`);
    redraw(rows, table("Tenants of the database", [
      { head: "tenant", cell: (t) => h("a", { href: `#tenants/${encodeURIComponent(t.id)}` }, t.id) },
      { head: "organisation", cell: (t) => t.organisation ?? "-" }, { head: "plan", cell: (t) => t.plan ?? "-" },
      { head: "state", cell: (t) => (t.disabled ? "disabled" : "active"), mark: (t) => (t.disabled ? "bad" : "good") },
    ], page.data, find.value ? "none has this name" : "none yet"),
    marks.length > 1 || page.next ? pager(`page ${marks.length}`, { before: marks.length > 1 ? () => { marks.pop(); draw(); } : null,
      after: page.next ? () => { marks.push(page.next); draw(); } : null }) : null);
  };
  find.addEventListener("input", paused(() => { marks = [""]; draw(); }));
  await draw();
  const id = h("input", { required: true, size: 20 });
  const plan = h("select", {}, options([DEFAULT_PLAN, ...plans.map((p) => p.name)]));
  const make = (event) => {
    event.preventDefault();
    return act(async () => {
      await call(`tenants/${encodeURIComponent(id.value)}`, { method: "PUT", body: planOf(plan) });
      location.hash = `#tenants/${encodeURIComponent(id.value)}`;
    });
  };
  return { element: h("div", {},
    fromFile ? h("p", { class: "note" }, "The settings file has tenants too, which cannot be changed here: ",
      h("a", { href: "#settings?find=tenants%5B" }, "see the settings"), ".") : null,
    may("operator") ? h("form", { onsubmit: make }, field("New tenant", id), field("Plan", plan), h("button", { class: "main" }, "Create")) : null,
    h("form", { onsubmit: (event) => event.preventDefault() }, field("Find a tenant", find)), rows,
    h("h3", {}, "Plans"), table("Plans of the database", [
      { head: "plan", cell: (p) => p.name }, { head: "at one time", n: true, cell: (p) => number(p.concurrency) },
      { head: "weight", n: true, cell: (p) => p.weight ?? 1 },
      { head: "limits", text: true, cell: (p) => (p.limits ?? []).map(shownLimit).join("; ") || "-" }], plans, "none yet")) };
}

async function settingsOf(tenant, may) {
  const named = (await call(`tenants?${new URLSearchParams({ find: tenant, limit: 1000 })}`)).data;
  const found = named.find((t) => t.id === tenant);
  if (!found) return h("p", { class: "note" }, "This tenant comes from the settings file: its plan and its keys are changed there.");
  const plans = (await call("plans?limit=1000")).data.map((p) => p.name);
  const plan = h("select", {}, options([...new Set([DEFAULT_PLAN, ...plans, ...(found.plan ? [found.plan] : [])])], found.plan ?? DEFAULT_PLAN));
  const put = (change) => act(async () => {
    const { keys: _, ...kept } = await call(`tenants/${encodeURIComponent(tenant)}`);
    await call(`tenants/${encodeURIComponent(tenant)}`, { method: "PUT", body: { ...kept, ...change } });
    notice("Saved; all gateways know within seconds.", "good");
  });
  const toggle = h("button", { type: "button", onclick: async () => {
    await put({ disabled: !found.disabled });
    found.disabled = !found.disabled;
    toggle.textContent = found.disabled ? "Enable" : "Disable";
  } }, found.disabled ? "Enable" : "Disable");
  return h("div", {}, facts([["organisation", found.organisation ?? "-"], ["plan", found.plan ?? "default"],
    ["state", found.disabled ? "disabled" : "active"], ["limits of its own", (found.limits ?? []).map(shownLimit).join("; ") || "none"]]),
  may("operator") ? h("form", { class: "pager", onsubmit: (event) => { event.preventDefault(); put({ plan: null, ...planOf(plan) }); } },
    field("Plan", plan), h("button", {}, "Set the plan"), toggle) : null);
}

async function one(tenant, may) {
  const once = h("div", { role: "status" }), keys = h("div"), over = new UsageOverTime();
  const path = (id, action) => `keys/${encodeURIComponent(id)}/${action}`;
  const shown = (made) => once.replaceChildren(h("p", {}, `This is the only time that the key ${made.id} is shown:`),
    h("p", { class: "secret" }, made.key),
    h("p", {}, h("button", { onclick: () => { useKey(made.key); location.hash = "#playground"; } }, "Try it in the playground")));
  const rotate = (id) => act(async () => { shown(await call(path(id, "rotate"), { method: "POST", body: {} })); await draw(); });
  const revoke = (id) => confirm(`Revoke the key ${id}? It stops working at once, for ever.`)
    && act(async () => { await call("keys/revoke", { method: "POST", body: { ids: [id] } }); await draw(); });
  const create = () => act(async () => { shown(await call("keys", { method: "POST", body: { tenant } })); await draw(); });

  async function draw() {
    const page = await call(`keys?limit=200&tenant=${encodeURIComponent(tenant)}`);
    redraw(keys, table("API keys", [
      { head: "key", cell: (k) => k.id, mono: true }, { head: "state", cell: (k) => k.state, mark: (k) => (k.state === "active" ? "good" : "dim") },
      { head: "created", cell: (k) => k.created.replace("T", " ").slice(0, 19) },
      { head: "rules", text: true, cell: (k) => Object.entries(k.rules).filter(([, v]) => v !== null && !(v instanceof Array && !v.length))
        .map(([name, value]) => `${name} ${typeof value === "string" ? value : JSON.stringify(value)}`)
        .filter((rule) => !USUAL_RULES.includes(rule)).join("; ") || "none" },
      ...(may("operator") ? [{ head: "actions", cell: (k) => (k.state === "active" ? [
        h("button", { class: "act", onclick: () => rotate(k.id), "aria-label": `Rotate ${k.id}` }, "rotate"),
        h("button", { class: "act", onclick: () => revoke(k.id), "aria-label": `Revoke ${k.id}` }, "revoke")] : "-") }] : [])],
    page.data, "none yet"));
  }
  const since = Math.floor(Date.now() / 1000 / DAY - 29) * DAY;
  const [days, left, own] = await Promise.all([
    call(`usage?by=day&tenant=${encodeURIComponent(tenant)}&since=${new Date(1000 * since).toISOString().slice(0, 10)}`),
    call(`tenants/${encodeURIComponent(tenant)}/limits`).catch(() => ({ data: [] })), settingsOf(tenant, may), draw()]);
  return { element: h("div", {}, h("p", { class: "crumb" }, h("a", { href: "#tenants" }, "All tenants"), ` / ${tenant}`),
    own, h("h3", {}, "Keys"), may("operator") ? h("p", {}, h("button", { class: "main", onclick: create }, "Create a key")) : null, once, keys,
    h("h3", {}, "The last 30 days"), over.element,
    h("h3", {}, "Limits"), limits(left.data),
    h("p", {}, h("a", { href: `#requests?${new URLSearchParams({ tenant })}` }, "Its latest requests"))),
  start: () => over.show(days.data, since) };
}

async function act(change) {
  try {
    await change();
  } catch (error) {
    notice(error.message);
  }
}
