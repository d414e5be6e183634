// Builds elements. Values become text, never markup.

export function h(name, attributes = {}, ...children) {
  const [tag, svg] = name.startsWith("svg:") ? [name.slice(4), true] : [name, false];
  const element = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "value") element.value = value;
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

const FOCUSABLE = "a[href], button, input, select, textarea, [tabindex]";

// Replaces the content of a place that is drawn anew; the focus and what was scrolled stay where they were.
export function redraw(place, ...children) {
  const focused = place.contains(document.activeElement)
    ? [...place.querySelectorAll(FOCUSABLE)].indexOf(document.activeElement) : -1;
  const scrolled = [...place.querySelectorAll(".wide")].map((each) => each.scrollLeft);
  place.replaceChildren(...children.flat().filter((child) => child));
  place.querySelectorAll(".wide").forEach((each, at) => { if (scrolled[at]) each.scrollLeft = scrolled[at]; });
  if (focused >= 0) place.querySelectorAll(FOCUSABLE)[focused]?.focus({ preventScroll: true });
}

// A table whose rows become cards on a narrow screen. A column: {head, cell, n: a number, text: long text, title, mono}.
export function table(caption, columns, rows, empty = "none") {
  if (!rows.length) return h("p", { class: "empty" }, `${caption}: ${empty}`);
  const head = h("tr", {}, columns.map((c) => h("th", { scope: "col", class: c.n ? "n" : null, title: c.title }, c.head)));
  const body = rows.map((row) => h("tr", {}, columns.map((column, at) => {
    const content = column.cell(row);
    const shape = { "data-head": column.head, class: [column.n ? "n" : "", column.text ? "text" : "", column.mono ? "mono" : "",
      content === "-" ? "none" : "", column.mark ? column.mark(row) : ""].filter(Boolean).join(" ") || null };
    return h(at ? "td" : "th", at ? shape : { ...shape, scope: "row" }, content instanceof Array ? content : [content]);
  })));
  return h("div", { class: "wide", tabindex: "0", role: "region", "aria-label": caption },
    h("table", { class: "stack" }, h("caption", {}, caption), h("thead", {}, head), h("tbody", {}, body)));
}

// Large numbers, each with its name and with a remark below it.
export const figures = (all) => h("dl", { class: "figures" }, all.filter(Boolean).map(([name, value, beside, mark]) =>
  h("div", {}, h("dt", {}, name), h("dd", { class: mark }, value), beside ? h("dd", { class: "beside" }, beside) : null)));

export const facts = (pairs) =>
  h("dl", { class: "facts" }, pairs.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));

export function field(label, input) {
  return h("label", { class: input.type === "checkbox" ? "check" : null },
    input.type === "checkbox" ? [input, label] : [label, input]);
}

export const options = (values, chosen) =>
  values.map((value) => h("option", { selected: value === chosen }, value));

// A horizontal bar: `part` of 1, with an optional mark.
export function bar(part, { from = 0, mark = null } = {}) {
  const left = Math.min(99, 100 * from), width = Math.min(100 - left, Math.max(part > 0 ? 0.8 : 0, 100 * part));
  return h("svg:svg", { class: "bar", viewBox: "0 0 100 8", preserveAspectRatio: "none", "aria-hidden": "true" },
    h("svg:rect", { class: "ground", x: 0, y: 3, width: 100, height: 2 }), h("svg:rect", { x: left, y: 0, width, height: 8 }),
    mark === null ? null : h("svg:rect", { class: "mark", x: Math.min(99, 100 * mark), y: 0, width: 0.7, height: 8 }));
}

// Buttons for the page before and after. `more`: whether there is a page after.
export function pager(text, { before, after }) {
  return h("p", { class: "pager" }, before ? h("button", { class: "act", type: "button", onclick: before }, "Previous") : null,
    after ? h("button", { class: "act", type: "button", onclick: after }, "Next") : null, h("span", {}, text));
}

export function notice(text, kind = "bad") {
  const line = document.querySelector("#notice");
  line.className = kind;
  line.textContent = text;
  if (text) setTimeout(() => { if (line.textContent === text) line.textContent = ""; }, 8000);
}

// Calls the function once the caller has paused typing.
export function paused(work, ms = 250) {
  let timer = null;
  return () => {
    clearTimeout(timer);
    timer = setTimeout(work, ms);
  };
}

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en-US", { notation: "compact", maximumFractionDigits: 1 });
const cents = new Intl.NumberFormat("en-US", { minimumFractionDigits: 2, maximumFractionDigits: 2 });
const small = new Intl.NumberFormat("en-US", { maximumSignificantDigits: 2 });
const known = (value) => value !== null && value !== undefined;
export const number = (value) => (known(value) ? whole.format(value) : "-");
export const compact = (value) => (known(value) ? (Math.abs(value) < 10000 ? whole : short).format(value) : "-");
export const share = (ratio) => (known(ratio) ? `${(100 * ratio).toFixed(1)} %` : "-");
export const millis = (ms) => (!known(ms) ? "-" : ms < 10 ? `${ms.toFixed(1)} ms` : ms < 10000 ? `${number(ms)} ms` : seconds(ms / 1000));
export const seconds = (value) =>
  (value < 120 ? `${value.toFixed(1)} s` : value < 7200 ? `${number(value / 60)} min` : `${number(value / 3600)} h`);
export const rate = (value) => (value >= 100 ? number(value) : value.toFixed(1));
export const perSecond = (activity) => rate(activity.minute.requests / 60);
export const money = (millionths) => {
  const value = millionths / 1e6;
  return value && Math.abs(value) < 0.01 ? small.format(value) : cents.format(value);
};
export const clock = (unix) => new Date(1000 * unix).toISOString().slice(11, 19);
export const plural = (count, word) => `${number(count)} ${word}${count === 1 ? "" : "s"}`;
