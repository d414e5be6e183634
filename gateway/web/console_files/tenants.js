// All tenants and plans; one tenant with its usage, its limits and its API keys, which are shown once.

import { call } from "./api.js";
import { facts, field, h, notice, options, pager, paused, redraw, table } from "./dom.js";
import { limitInWords, plansPart } from "./plans.js";
import { useKey } from "./playground.js";
import { limits } from "./requests.js";
import { UsageOverTime } from "./usage.js";

const PAGE = 100, DAY = 86400, DEFAULT_PLAN = "(default)", LIMITS_MS = 3000, SETTINGS_MAX = 5000;

export async function open(tenant, { may, signal }) {
  return tenant ? one(tenant, may, signal) : list(may);
}

// All `tenants` or `plans` of the settings file, which can be changed there only.
async function ofFile(kind) {
  const found = new Map();
  for (let offset = 0, total = 1; offset < total; offset += SETTINGS_MAX) {
    const page = await call(`settings?${new URLSearchParams({ find: `${kind}[`, changed: true, offset, limit: SETTINGS_MAX })}`);
    total = page.total;
    for (const { setting, value } of page.data) {
      const [, at, name] = /^(?:tenants|plans)\[(\d+)\]\.(id|name|organisation|plan|disabled)$/.exec(setting) ?? [];
      if (name) found.set(at, { ...found.get(at), [name]: JSON.parse(value) });
    }
  }
  return [...found.values()];
}

// A table of PAGE rows at a time, which turns its pages itself.
function paged(caption, columns, all) {
  const place = h("div"), last = Math.ceil(all.length / PAGE) - 1;
  const draw = (page) => redraw(place, table(caption, columns, all.slice(page * PAGE, (page + 1) * PAGE)),
    last > 0 ? pager(`page ${page + 1} of ${last + 1}`, { before: page > 0 ? () => draw(page - 1) : null,
      after: page < last ? () => draw(page + 1) : null }) : null);
  draw(0);
  return place;
}

const USUAL_RULES = ['scopes ["inference","usage"]', 'models {"allow":["*"],"deny":[]}', "disabled false"];
const planOf = (select) => (select.value === DEFAULT_PLAN ? {} : { plan: select.value });

const planNamesOfFile = async () => (await ofFile("plans")).map((p) => p.name);

const TENANTS = [
  { head: "tenant", cell: (t) => h("a", { href: `#tenants/${encodeURIComponent(t.id)}` }, t.id) },
  { head: "organisation", cell: (t) => t.organisation ?? "-" }, { head: "plan", cell: (t) => t.plan ?? "-" },
  { head: "state", cell: (t) => (t.disabled ? "disabled" : "active"), mark: (t) => (t.disabled ? "bad" : "good") }];

async function list(may) {
  const plans = (await call("plans?limit=1000")).data;
  const [inFile, filePlans] = await Promise.all([ofFile("tenants"), planNamesOfFile()]);
  const find = h("input", { type: "search", size: 28 }), rows = h("div");
  let marks = [""];
  const draw = async () => {
    const page = await call(`tenants?${new URLSearchParams({ find: find.value, after: marks.at(-1), limit: PAGE })}`);
    const named = inFile.filter((t) => t.id.includes(find.value));
    redraw(rows,
      table("Tenants of the database", TENANTS, page.data.filter((t) => !inFile.some((other) => other.id === t.id)),
        find.value ? "none has this name" : "none yet"),
      named.length ? paged("Tenants of the settings file, changed there", TENANTS, named) : null,
    marks.length > 1 || page.next ? pager(`page ${marks.length}`, { before: marks.length > 1 ? () => { marks.pop(); draw(); } : null,
      after: page.next ? () => { marks.push(page.next); draw(); } : null }) : null);
  };
  find.addEventListener("input", paused(() => { marks = [""]; draw(); }));
  await draw();
  const id = h("input", { required: true, size: 20 });
  const plan = h("select", {}, options([...new Set([DEFAULT_PLAN, ...filePlans, ...plans.map((p) => p.name)])]));
  const make = (event) => {
    event.preventDefault();
    return act(async () => {
      await call(`tenants/${encodeURIComponent(id.value)}`, { method: "PUT", body: planOf(plan) });
      location.hash = `#tenants/${encodeURIComponent(id.value)}`;
    });
  };
  const part = h("div");
  const drawPlans = async () => part.replaceChildren(plansPart((await call("plans?limit=1000")).data, filePlans, may, drawPlans));
  part.replaceChildren(plansPart(plans, filePlans, may, drawPlans));
  return { element: h("div", {},
    may("operator") ? h("form", { onsubmit: make }, field("New tenant", id), field("Plan", plan), h("button", { class: "main" }, "Create")) : null,
    h("form", { onsubmit: (event) => event.preventDefault() }, field("Find a tenant", find)), rows, part) };
}

const IN_FILE = "This tenant is in the settings file: its plan and its keys are changed there, and take effect with a reload.";

// The tenant as the database has it; null if it has none, or the settings file has it, which wins.
async function stored(tenant) {
  const [named, inFile] = await Promise.all([call(`tenants?${new URLSearchParams({ find: tenant, limit: 1000 })}`), ofFile("tenants")]);
  const found = named.data.find((t) => t.id === tenant);
  return !found || inFile.some((t) => t.id === tenant) ? null : found;
}

async function settingsOf(found, may) {
  const tenant = found.id;
  const plans = [...await planNamesOfFile(), ...(await call("plans?limit=1000")).data.map((p) => p.name)];
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
    ["state", found.disabled ? "disabled" : "active"], ["limits of its own", (found.limits ?? []).map(limitInWords).join("; ") || "none"]]),
  may("operator") ? h("form", { class: "pager", onsubmit: (event) => { event.preventDefault(); put({ plan: null, ...planOf(plan) }); } },
    field("Plan", plan), h("button", {}, "Set the plan"), toggle) : null);
}

async function one(tenant, may, signal) {
  const found = await stored(tenant), changes = found && may("operator");
  const once = h("div", { role: "status" }), left = h("div"), keys = h("div"), over = new UsageOverTime();
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
      ...(changes ? [{ head: "actions", cell: (k) => (k.state === "active" ? [
        h("button", { class: "act", onclick: () => rotate(k.id), "aria-label": `Rotate ${k.id}` }, "rotate"),
        h("button", { class: "act", onclick: () => revoke(k.id), "aria-label": `Revoke ${k.id}` }, "revoke")] : "-") }] : [])],
    page.data, "none yet"));
  }
  const since = Math.floor(Date.now() / 1000 / DAY - 29) * DAY;
  const drawLimits = async () => redraw(left, limits((await call(`tenants/${encodeURIComponent(tenant)}/limits`)).data, "What is left of each now"));
  const timer = setInterval(() => document.hidden || drawLimits().catch(() => {}), LIMITS_MS);
  signal.addEventListener("abort", () => clearInterval(timer), { once: true });
  const [days, own] = await Promise.all([
    call(`usage?by=day&tenant=${encodeURIComponent(tenant)}&since=${new Date(1000 * since).toISOString().slice(0, 10)}`),
    found ? settingsOf(found, may) : h("p", { class: "note" }, IN_FILE), found && draw(), drawLimits().catch(() => {})]);
  return { element: h("div", {}, h("p", { class: "crumb" }, h("a", { href: "#tenants" }, "All tenants"), ` / ${tenant}`),
    own, found && h("h3", {}, "Keys"), changes && h("p", {}, h("button", { class: "main", onclick: create }, "Create a key")), once, keys,
    h("h3", {}, "The last 30 days"), over.element,
    h("h3", {}, "Limits"), left,
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
