// Plans of the database: what the tenants on each may use. Limits are written as in `radixgate plans set --limit`.

import { call } from "./api.js";
import { field, h, notice, number, redraw, table } from "./dom.js";

const UNITS = ["requests", "input_tokens", "cached_tokens", "output_tokens", "total_tokens", "spend", "concurrency"];
const USUAL = ["reset=smooth", "mode=enforce"];
const given = (value) => value !== null && value !== undefined && !(value instanceof Array && !value.length);
const unitOf = (limit) => UNITS.find((unit) => given(limit[unit]));

// A limit as text: requests=60/minute, spend=20/month,reset=calendar.
export function limitText(limit) {
  const unit = unitOf(limit);
  const more = Object.entries(limit).filter(([name, value]) => name !== unit && name !== "per" && given(value))
    .map(([name, value]) => `${name}=${value instanceof Array ? value.join(" ") : value}`);
  return [`${unit}=${limit[unit]}${given(limit.per) && unit !== "concurrency" ? `/${limit.per}` : ""}`,
    ...more.filter((option) => !USUAL.includes(option))].join(",");
}

function limitOf(text) {
  const [first, ...options] = text.split(",").map((part) => part.trim());
  const [, unit, amount, per] = /^(\w+)=([\d.]+)(?:\/(\w+))?$/.exec(first) ?? [];
  if (!UNITS.includes(unit)) throw new Error(`${text}: expected a limit as requests=60/minute or spend=20/month`);
  const limit = { [unit]: Number(amount), ...(per ? { per } : {}) };
  for (const option of options) {
    const [name, value] = option.split("=");
    limit[name] = name === "models" ? value.split(" ") : name === "alert_at" ? Number(value) : value;
  }
  return limit;
}

// A limit in words: 60 requests per minute.
export function limitInWords(limit) {
  const unit = unitOf(limit);
  const more = limitText(limit).split(",").slice(1).map((option) => option.replace("=", " "));
  return [`${number(limit[unit])} ${unit.replaceAll("_", " ")}${unit === "concurrency" ? "" : ` per ${limit.per}`}`, ...more].join(", ");
}

// The table of plans, and a form that makes or changes one. `inFile`: names of the settings file's plans; `changed` is
// called after a change.
export function plansPart(plans, inFile, may, changed) {
  const name = h("input", { required: true, size: 16 }), concurrency = h("input", { type: "number", min: 1, size: 8 });
  const weight = h("input", { type: "number", min: 0.01, step: "any", size: 6 });
  const limits = h("textarea", { rows: 3, placeholder: "requests=60/minute\nspend=20/month,reset=calendar" });
  const fill = (plan) => {
    name.value = plan.name;
    concurrency.value = plan.concurrency ?? "";
    weight.value = plan.weight ?? 1;
    limits.value = (plan.limits ?? []).map(limitText).join("\n");
    limits.focus();
  };
  const save = async (event) => {
    event.preventDefault();
    try {
      const path = `plans/${encodeURIComponent(name.value)}`;
      const before = plans.some((plan) => plan.name === name.value) ? await call(path) : {};
      const lines = limits.value.split("\n").map((line) => line.trim()).filter(Boolean);
      await call(path, { method: "PUT", body: { ...before, limits: lines.map(limitOf),
        concurrency: concurrency.value ? Number(concurrency.value) : null, weight: Number(weight.value || 1) } });
      await changed();
      notice(`Plan ${name.value} saved; all gateways know within seconds.`, "good");
    } catch (error) {
      notice(error.message);
    }
  };
  const rows = h("div");
  const draw = (found) => redraw(rows, table("Plans of the database", [
    { head: "plan", cell: (p) => p.name }, { head: "at one time", n: true, cell: (p) => number(p.concurrency) },
    { head: "weight", n: true, cell: (p) => p.weight ?? 1 },
    { head: "limits", text: true, cell: (p) => (p.limits ?? []).map(limitInWords).join("; ") || "-" },
    ...(may("operator") ? [{ head: "actions", cell: (p) => [
      h("button", { class: "act", type: "button", onclick: () => fill(p), "aria-label": `Change ${p.name}` }, "change")] }] : [])],
  found, "none yet"));
  draw(plans);
  return h("div", {}, h("h3", {}, "Plans"), rows,
    inFile.length ? h("p", { class: "dim" }, `The settings file has plans, too, which are changed there: ${inFile.join(", ")}.`) : null, may("operator") ? [h("h3", {}, "New or changed plan"),
    h("form", { onsubmit: save, class: "tall" }, h("div", { class: "row" }, field("Plan", name),
      field("Requests at one time", concurrency), field("Weight in the queue", weight)),
    field("Limits, one in each line", limits), h("p", {}, h("button", { class: "main" }, "Save the plan")))] : null);
}
