// Shows one page at a time: `#requests/ID` is the page `requests` with the argument ID. Pages load when shown.

import { ApiError, call, hasToken, setToken } from "./api.js";
import { field, h, notice } from "./dom.js";

const PAGES = {
  overview: "Overview", requests: "Requests", tenants: "Tenants and keys", usage: "Usage", workers: "Workers",
  queue: "Queue", tree: "Prefix tree", route: "Routing", audit: "Audit",
};
const REFRESH_MS = 2000;

let shown = null; // the page: {element, refresh}
let timer = null;
let session = { role: "none", name: "" };

export const may = (role) => ["viewer", "operator", "owner"].indexOf(session.role) >= ["viewer", "operator", "owner"].indexOf(role);

function navigation(name) {
  document.querySelector("#pages").replaceChildren(...Object.entries(PAGES).map(([page, title]) =>
    h("li", {}, h("a", { href: `#${page}`, "aria-current": page === name ? "page" : null }, title))));
}

async function show() {
  clearTimeout(timer);
  const [name, ...rest] = location.hash.slice(1).split("/");
  const page = name in PAGES ? name : "overview";
  navigation(page);
  document.title = `${PAGES[page]} - radixgate`;
  const main = document.querySelector("#main");
  main.replaceChildren(h("p", { class: "dim" }, "loading"));
  try {
    const module = await import(`./${page}.js`);
    shown = await module.open(decodeURIComponent(rest.join("/")), { may });
    main.replaceChildren(h("h2", {}, PAGES[page]), shown.element);
    await refresh();
  } catch (error) {
    failed(error, main);
  }
}

async function refresh() {
  clearTimeout(timer);
  const page = shown;
  try {
    if (!document.hidden && page?.refresh) await page.refresh();
  } catch (error) {
    failed(error);
  }
  if (page === shown && page?.refresh) timer = setTimeout(refresh, REFRESH_MS);
}

function failed(error, main = null) {
  if (error instanceof ApiError && error.status === 401) return void signIn(error.message);
  if (main) main.replaceChildren(h("p", { class: "bad" }, error.message));
  else notice(error.message);
}

function signIn(why) {
  clearTimeout(timer);
  shown = null;
  const token = h("input", { type: "password", autocomplete: "off", required: true });
  const enter = async (event) => {
    event.preventDefault();
    setToken(token.value);
    await start();
  };
  document.querySelector("#main").replaceChildren(h("h2", {}, "Sign in"), h("p", {}, why),
    h("form", { onsubmit: enter }, field("Token of an operator", token), h("button", {}, "Sign in")));
  document.querySelector("#state").textContent = "not signed in";
}

async function start() {
  try {
    session = await call("session", { base: "/ui/" });
  } catch (error) {
    if (hasToken()) setToken(null);
    return failed(error, document.querySelector("#main"));
  }
  const leave = async () => {
    if (hasToken()) {
      setToken(null);
      return location.reload();
    }
    const left = await call("logout", { method: "POST", base: "/ui/" });
    location.assign(left.url);
  };
  document.querySelector("#who").replaceChildren(`${session.name.replace(/^\w+:/, "")} (${session.role}) `,
    ...(session.login || hasToken() ? [h("button", { onclick: leave }, "Sign out")] : []));
  await show();
}

const given = new URLSearchParams(location.search).get("token");
if (given) {
  setToken(given);
  history.replaceState(null, "", location.pathname + location.hash);
}
window.addEventListener("hashchange", show);
document.addEventListener("visibilitychange", () => { if (!document.hidden && shown) refresh(); });
start();
