// The state of the gateway, in the header of every page.

import { h } from "./dom.js";

export function showState(state) {
  document.querySelector("#version").textContent = state.version;
  const chips = [
    [state.ready ? "up" : "down", state.ready ? "ready" : state.draining ? "draining" : "not ready"],
    [state.redis === "shared" ? "up" : "down", state.redis === "shared" ? "quotas shared" : "Redis unreachable"],
    state.database === "none" ? null : [["away", "stale"].includes(state.database) ? "down" : "up", `database ${state.database}`],
    ["none", "known"].includes(state.token_issuers) ? null : ["down", `identity provider ${state.token_issuers}`],
    ["plain", `policy ${state.policy}`],
  ];
  document.querySelector("#state").replaceChildren(
    ...chips.filter(Boolean).map(([mark, text]) => h("span", { class: `chip ${mark}` }, text)));
}
