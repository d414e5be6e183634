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

// A table whose rows become cards on a narrow screen. A column: {head, cell, n: a number, text: long text, title}.
export function table(caption, columns, rows, empty = "none") {
  const head = h("tr", {}, columns.map((c) => h("th", { scope: "col", class: c.n ? "n" : null, title: c.title }, c.head)));
  const body = rows.map((row) => h("tr", {}, columns.map((column, at) => {
    const content = column.cell(row);
    const shape = { "data-head": column.head, class: [column.n ? "n" : "", column.text ? "text" : "",
      column.mark ? column.mark(row) : ""].join(" ").trim() || null };
    return h(at ? "td" : "th", at ? shape : { ...shape, scope: "row" }, content instanceof Array ? content : [content]);
  })));
  if (!rows.length) body.push(h("tr", {}, h("td", { colspan: columns.length, class: "dim" }, empty)));
  return h("div", { class: "wide", tabindex: "0", role: "region", "aria-label": caption },
    h("table", { class: "stack" }, h("caption", {}, caption), h("thead", {}, head), h("tbody", {}, body)));
}

export const figures = (pairs) =>
  h("dl", { class: "figures" }, pairs.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));

export function field(label, input) {
  return h("label", { class: input.type === "checkbox" ? "check" : null },
    input.type === "checkbox" ? [input, label] : [label, input]);
}

export function notice(text, kind = "bad") {
  const line = document.querySelector("#notice");
  line.className = kind;
  line.textContent = text;
  if (text) setTimeout(() => { if (line.textContent === text) line.textContent = ""; }, 8000);
}

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
export const number = (value) => (value === null || value === undefined ? "-" : whole.format(value));
export const share = (ratio) => (ratio === null || ratio === undefined ? "-" : `${(100 * ratio).toFixed(1)} %`);
export const millis = (ms) =>
  (ms === null || ms === undefined ? "-" : ms < 10 ? `${ms.toFixed(1)} ms` : `${number(ms)} ms`);
export const perSecond = (activity) => (activity.minute.requests / 60).toFixed(1);
export const money = (millionths) => (millionths / 1e6).toFixed(4);
export const clock = (seconds) => new Date(1000 * seconds).toISOString().slice(11, 19);
