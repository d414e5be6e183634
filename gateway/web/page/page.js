"use strict";
// Fetches the state once a second and writes it into the page, as text only: no value is parsed as HTML.

const number = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const share = (ratio) => (ratio === null ? "-" : `${(100 * ratio).toFixed(1)} %`);
const millis = (ms) => (ms === null ? "-" : ms < 10 ? `${ms.toFixed(1)} ms` : `${number.format(ms)} ms`);
const perSecond = (tally) => (tally.minute.requests / 60).toFixed(1);

function cell(text, name) {
  const td = document.createElement("td");
  td.textContent = text;
  if (name) td.className = name;
  return td;
}

function fill(id, rows) {
  const body = document.querySelector(`#${id} tbody`);
  body.replaceChildren(...rows.map((cells) => {
    const tr = document.createElement("tr");
    tr.append(...cells);
    return tr;
  }));
}

const n = (text) => cell(text, "n");

function workerRow(w) {
  const kv = w.kv_tokens_max ? `${number.format(w.kv_tokens)} of ${number.format(w.kv_tokens_max)}` : number.format(w.kv_tokens);
  const expected = w.total.prompt_tokens ? w.total.predicted_tokens / w.total.prompt_tokens : null;
  return [cell(w.id), cell(w.health, w.health), cell(w.models.join(", ")), n(w.streams), n(number.format(w.tokens_queued)),
    n(kv), n(number.format(w.total.requests)), n(share(w.total.hit_ratio)), n(share(expected)), n(millis(w.ttft_ms_p50)),
    n(share(w.ttft_error_p50)), n(number.format(w.prefill_tokens_per_second)), n(w.failures)];
}

function tenantRow(t) {
  return [cell(t.id), n(number.format(t.total.requests)), n(number.format(t.total.refused)),
    n(number.format(t.total.prompt_tokens)), n(number.format(t.total.cached_tokens)), n(share(t.total.hit_ratio)),
    n(number.format(t.total.output_tokens)), n(perSecond(t)), n(millis(t.ttft_ms_p50))];
}

function shareRow(queue, t) {
  return [cell(queue.queue), cell(t.tenant), n(t.weight), n(t.waiting), n(number.format(t.units)), n(share(t.share)),
    n(t.due ? share(t.due) : "-")];
}

function waitingRow(queue, r) {
  return [cell(queue.queue), cell(r.gateway), cell(r.tenant), cell(r.class), n(`${r.waited_seconds.toFixed(1)} s`),
    n(number.format(r.uncached_tokens)), n(number.format(r.cost)), cell(r.why)];
}

function show(state) {
  const figure = (name, text) => { document.querySelector(`[data-figure=${name}]`).textContent = text; };
  document.querySelector("#version").textContent = state.version;
  const words = [state.ready ? "ready" : state.draining ? "draining" : "not ready", `policy ${state.policy}`,
    state.redis === "shared" ? "quotas shared" : "Redis unreachable: this gateway decides quotas alone"];
  if (!["none", "known"].includes(state.token_issuers)) words.push(`identity provider ${state.token_issuers}`);
  const line = document.querySelector("#state");
  line.textContent = words.join(" · ");
  line.className = state.ready && state.redis === "shared" ? "up" : "down";
  figure("requests", number.format(state.all.total.requests));
  figure("rate", perSecond(state.all));
  figure("hit", share(state.all.minute.hit_ratio));
  figure("ttft", millis(state.all.ttft_ms_p50));
  figure("waiting", Object.values(state.waiting).reduce((sum, waiting) => sum + waiting, 0));
  figure("blocks", number.format(state.prefixes.blocks));
  fill("workers", state.workers.map(workerRow));
  fill("tenants", state.tenants.map(tenantRow));
  const queues = state.queue.queues;
  figure("told", `${state.queue.told.length} of ${state.queue.gateways}`);
  figure("evenness", queues.length ? Math.min(...queues.map((q) => q.evenness)).toFixed(3) : "-");
  fill("shares", queues.flatMap((q) => q.tenants.slice(0, 20).map((t) => shareRow(q, t))));
  fill("queue", queues.flatMap((q) => q.requests.slice(0, 20).map((r) => waitingRow(q, r))));
}

async function refresh() {
  try {
    const answer = await fetch("/ui/overview", { credentials: "same-origin" });
    if (answer.status === 401) {
      // The session has ended: the page itself redirects to the login, if there is one.
      location.reload();
      return;
    }
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    show(await answer.json());
  } catch (error) {
    const line = document.querySelector("#state");
    line.textContent = `no answer (${error.message})`;
    line.className = "down";
  }
  setTimeout(refresh, 1000);
}

async function showSession() {
  const answer = await fetch("/ui/session", { credentials: "same-origin" });
  if (!answer.ok) return;
  const session = await answer.json();
  if (!session.login) return;
  const line = document.querySelector("#who");
  line.querySelector("span").textContent = `${session.name.replace(/^login:/, "")} (${session.role})`;
  line.querySelector("button").addEventListener("click", async () => {
    const left = await fetch("/ui/logout", { method: "POST", credentials: "same-origin" });
    if (left.ok) location.assign((await left.json()).url);
  });
  line.hidden = false;
}

showSession();
refresh();
