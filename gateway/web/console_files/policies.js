// The routing policy in force, compared with the shadow policy, which ranks the same requests beside it.

import { figures, h, millis, number, plural, redraw, share, table } from "./dom.js";

const minus = (all, part) => {
  const left = {};
  for (const name of ["requests", "errors", "prompt_tokens", "cached_tokens"]) left[name] = all[name] - part[name];
  return left;
};
const ratio = (totals) => (totals.prompt_tokens ? totals.cached_tokens / totals.prompt_tokens : null);

const NONE = `routing:
  shadow: {policy: least_work}   # any policy, with its options
  # share: 0.05                    # of the requests, to be decided by the shadow policy`;

export async function open(_, { watch }) {
  const element = h("div");
  const draw = (found) => {
    if (!found.shadow_policy) {
      return redraw(element, h("p", {}, "The policy in force is ", h("b", {}, found.policy), ". No shadow policy is set."),
        h("p", { class: "dim" }, "A shadow policy ranks every request beside the policy in force, and is compared with it here. "
          + "It decides nothing, unless a share of the requests is given to it. In the settings file:"),
        h("pre", { class: "note mono" }, NONE));
    }
    const s = found.shadow ?? { compared: 0, differed: 0, regret_seconds: 0, gain_seconds: 0, failures: 0 };
    const net = s.compared ? (1000 * (s.regret_seconds - s.gain_seconds)) / s.compared : null;
    const decided = [
      { policy: `${found.policy} (in force)`, ...minus(found.all.total, found.by_shadow.total), ttft: found.all.ttft_ms_p50 },
      { policy: `${found.shadow_policy} (shadow)`, ...found.by_shadow.total, ttft: found.by_shadow.ttft_ms_p50 }];
    redraw(element,
      h("p", {}, h("b", {}, found.shadow_policy), " ranks every request beside ", h("b", {}, found.policy), found.share
        ? `, and decides ${share(found.share)} of them.` : ", and decides none of them."),
      figures([
        ["requests compared", number(s.compared), `at ${plural(found.gateways.length, "gateway")}`],
        ["another worker", share(s.compared ? s.differed / s.compared : null), `${number(s.differed)} requests`],
        ["predicted first token", net === null ? "-" : `${net > 0 ? "+" : ""}${millis(net)}`,
          net === null ? "mean of all requests" : net > 0 ? "later on average with the shadow policy" : "on average with the shadow policy",
          net === null ? null : net > 0 ? "bad" : "good"],
        ["sooner, in sum", millis(1000 * s.gain_seconds), "of its choices that differ"],
        ["later, in sum", millis(1000 * s.regret_seconds), "of its choices that differ"],
        ["failures", number(s.failures), "rankings that it could not make", s.failures ? "bad" : null]]),
      table("Requests by the policy that decided", [
        { head: "policy", cell: (d) => d.policy }, { head: "requests", n: true, cell: (d) => number(d.requests) },
        { head: "errors", n: true, cell: (d) => number(d.errors) },
        { head: "hit ratio", n: true, cell: (d) => share(ratio(d)) }, { head: "TTFT p50", n: true, cell: (d) => millis(d.ttft) }], decided));
  };
  return { element, start: () => watch("policies", draw) };
}
