// What waits in the queues of all gateways, why, and what each tenant has received.

import { call } from "./api.js";
import { h, number, share, table } from "./dom.js";

export async function open() {
  const element = h("div");
  async function refresh() {
    const found = await call("queue");
    const order = found.shared ? "All gateways share one order of turns." : "Each gateway has its own queue.";
    element.replaceChildren(
      h("p", {}, `${order} ${found.told.length} of ${found.gateways} gateways answered; ${number(found.preemptions)} batch requests were preempted.`),
      ...(found.queues.length ? [] : [h("p", { class: "dim" }, "no request has come yet")]),
      ...found.queues.flatMap((queue) => [
        h("h3", {}, queue.queue),
        h("p", {}, `${number(queue.waiting)} waiting with ${number(queue.waiting_tokens)} tokens, ${number(queue.drain_units_per_second)} units/s, fairness ${queue.evenness.toFixed(3)}`),
        table(`Shares of ${queue.queue}`, [
          { head: "tenant", cell: (t) => t.tenant }, { head: "weight", n: true, cell: (t) => t.weight },
          { head: "waiting", n: true, cell: (t) => number(t.waiting) },
          { head: "recent units", n: true, cell: (t) => number(t.units) }, { head: "share", n: true, cell: (t) => share(t.share) },
          { head: "due", n: true, cell: (t) => (t.due ? share(t.due) : "-") }], queue.tenants.slice(0, 50)),
        queue.requests.length ? table(`Waiting for ${queue.queue}`, [
          { head: "tenant", cell: (r) => r.tenant }, { head: "class", cell: (r) => r.class }, { head: "gateway", cell: (r) => r.gateway },
          { head: "waited", n: true, cell: (r) => `${r.waited_seconds.toFixed(1)} s` },
          { head: "uncached tokens", n: true, cell: (r) => number(r.uncached_tokens) },
          { head: "why", text: true, cell: (r) => r.why }], queue.requests.slice(0, 50)) : ""]));
  }
  return { element, refresh };
}
