// Shows one page at a time: `#requests/ID?slow=true` is the page `requests` with an argument and parameters.
// Pages load when shown. A page watches one view; the stream ends when the page or the tab is left.

import { ApiError, call, hasToken, setToken, watch } from "./api.js";
import { field, h, notice } from "./dom.js";
import { showState } from "./state.js";

const GROUPS = {
  "Now": { overview: "Overview", requests: "Requests", queue: "Queue", workers: "Workers" },
  "Cache and routing": { tree: "Prefix tree", route: "Routing", policies: "Policies" },
  "Tenants": { tenants: "Tenants and keys", usage: "Usage", playground: "Playground" },
  "Gateway": { settings: "Settings", audit: "Audit" },
};
const PAGES = Object.assign({}, ...Object.values(GROUPS));
const ROLES = ["viewer", "operator", "owner"];

let session = { role: "none", name: "" };
let page = { open: new AbortController(), watched: null };

const may = (role) => ROLES.indexOf(session.role) >= ROLES.indexOf(role);

function navigation(name) {
  const link = ([key, title]) =>
    h("li", {}, h("a", { href: `#${key}`, "aria-current": key === name ? "page" : null }, title));
  document.querySelector("#pages").replaceChildren(...Object.entries(GROUPS).flatMap(([group, pages]) =>
    [h("li", { class: "group" }, group), ...Object.entries(pages).map(link)]));
}

async function show() {
  page.open.abort();
  const here = page = { open: new AbortController(), watched: null };
  const [path, query] = location.hash.slice(1).split("?");
  const [asked, ...rest] = path.split("/");
  const name = asked in PAGES ? asked : "overview";
  navigation(name);
  document.title = `${PAGES[name]} - radixgate`;
  const main = document.querySelector("#main");
  main.replaceChildren(h("p", { class: "dim" }, "loading"));
  // Watches a view in place of the one before it, while the tab is visible.
  const watched = (view, shown) => {
    here.watched = { view, shown };
    return follow(here);
  };
  try {
    const module = await import(`./${name}.js`);
    const opened = await module.open(decodeURIComponent(rest.join("/")),
      { may, watch: watched, parameters: new URLSearchParams(query), signal: here.open.signal });
    if (here !== page) return;
    main.replaceChildren(h("h2", {}, PAGES[name]), opened.element);
    await opened.start?.();
  } catch (error) {
    if (here === page) failed(error, main);
  }
}

function follow(here) {
  here.stop?.abort();
  if (!here.watched || document.hidden || here.open.signal.aborted) return Promise.resolve();
  here.stop = new AbortController();
  here.open.signal.addEventListener("abort", () => here.stop.abort(), { once: true });
  return watch(here.watched.view, here.watched.shown, here.stop.signal, failed);
}

function failed(error, main = null) {
  if (error instanceof ApiError && error.status === 401) return void signIn(error.message);
  if (main) main.replaceChildren(h("h2", {}, document.title.split(" - ")[0]), h("p", { class: "empty" }, error.message));
  else notice(error.message);
}

function signIn(why) {
  page.open.abort();
  const token = h("input", { type: "password", autocomplete: "off", required: true, size: 40 });
  const enter = async (event) => {
    event.preventDefault();
    setToken(token.value.trim());
    await start();
  };
  document.querySelector("#pages").replaceChildren();
  document.querySelector("#main").replaceChildren(h("h2", {}, "Sign in"), h("p", {}, why),
    h("form", { onsubmit: enter }, field("Token of an operator", token), h("button", { class: "main" }, "Sign in")));
  document.querySelector("#state").textContent = "not signed in";
  token.focus();
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
  document.querySelector("#who").replaceChildren(h("span", {}, `${session.name.replace(/^\w+:/, "")} (${session.role})`),
    ...(session.login || hasToken() ? [h("button", { class: "act", onclick: leave }, "Sign out")] : []));
  document.querySelector("#state").textContent = "";
  showState(await call("overview?workers=0&tenants=0"));
  await show();
}

const given = new URLSearchParams(location.search).get("token");
if (given) {
  setToken(given);
  history.replaceState(null, "", location.pathname + location.hash);
}
window.addEventListener("hashchange", show);
document.addEventListener("visibilitychange", () => {
  if (document.hidden) page.stop?.abort();
  else follow(page).catch(failed);
});
start().catch((error) => failed(error, document.querySelector("#main")));
