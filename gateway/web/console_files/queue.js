// What waits in the queues of all gateways, why, and what each tenant has received.

import { bar, figures, h, number, plural, redraw, seconds, share, table } from "./dom.js";

const MOST = 50;

const SHARES = [
  { head: "tenant", cell: (t) => t.tenant }, { head: "weight", n: true, cell: (t) => t.weight },
  { head: "waiting", n: true, cell: (t) => number(t.waiting) },
  { head: "recent work", n: true, title: "cost units", cell: (t) => number(t.units) },
  { head: "share", n: true, cell: (t) => share(t.share) },
  { head: "due", n: true, title: "of the weights of all tenants that waited in the last minute", cell: (t) => (t.due ? share(t.due) : "-") },
  { head: "share, due", title: "the mark is what is due", cell: (t) => bar(t.share, { mark: t.due || null }) }];

const WAITING = [
  { head: "tenant", cell: (r) => r.tenant }, { head: "class", cell: (r) => r.class }, { head: "gateway", cell: (r) => r.gateway },
  { head: "waited", n: true, cell: (r) => seconds(r.waited_seconds) },
  { head: "target in", n: true, cell: (r) => (r.target_in_seconds === null ? "-" : seconds(r.target_in_seconds)),
    mark: (r) => (r.target_in_seconds !== null && r.target_in_seconds < 0 ? "bad" : "") },
  { head: "uncached tokens", n: true, cell: (r) => number(r.uncached_tokens) },
  { head: "why", text: true, cell: (r) => r.why }];

export async function open(_, { watch }) {
  const element = h("div");
  const draw = (found) => {
    const waiting = found.queues.reduce((sum, queue) => sum + queue.waiting, 0);
    redraw(element, figures([
      ["waiting", number(waiting), `in ${plural(found.queues.length, "queue")}`, waiting ? "warn" : null],
      ["tokens waiting", number(found.queues.reduce((sum, queue) => sum + queue.waiting_tokens, 0)), "uncached prompt tokens"],
      ["gateways", `${found.answered.length} of ${found.gateways}`, found.shared ? "one order of turns for all" : "each has its own queue"],
      ["batch requests preempted", number(found.preemptions), "since the start"]]),
    found.queues.length ? null : h("p", { class: "empty" }, "No request has come yet."),
    ...found.queues.flatMap((queue) => [
      h("h3", {}, queue.queue),
      h("p", { class: "dim" }, `${number(queue.waiting)} waiting with ${number(queue.waiting_tokens)} tokens; `
        + `${number(queue.drain_units_per_second)} units of work per second; fairness ${queue.evenness.toFixed(3)} (1 is even)`),
      table(`Shares of ${queue.queue}`, SHARES, queue.tenants, "no tenant has had work lately"),
      queue.requests.length ? h("p", {}) : null,
      queue.requests.length ? table(`Waiting for ${queue.queue}, the longest first`, WAITING, queue.requests) : null]));
  };
  return { element, start: () => watch(`queue?limit=${MOST}`, draw) };
}
