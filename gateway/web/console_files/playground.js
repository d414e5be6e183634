// The playground: a chat request with a tenant's API key, sent by the gateway as if its client had sent it.

import { call, chat } from "./api.js";
import { field, figures, h, millis, notice, number, share } from "./dom.js";

let given = "";

// Hands a key over to the page; it is kept in memory only.
export function useKey(key) {
  given = key;
}

// The form and the answer; `headers`: how the request is sent, as `chat` takes it.
export function playground(models, url, sentWith) {
  const model = h("input", { list: "models", required: true, size: 30, value: models[0] ?? "" });
  const most = h("input", { type: "number", min: 1, max: 100000, value: 256 });
  const temperature = h("input", { type: "number", min: 0, max: 2, step: 0.1, value: 0.7 });
  const text = h("textarea", { required: true });
  const answer = h("p", { class: "answer", "aria-live": "polite" }), told = h("div");
  const stop = h("button", { type: "button", disabled: true }, "Stop"), send = h("button", { class: "main" }, "Send");
  const ask = async (event) => {
    event.preventDefault();
    const began = performance.now(), left = new AbortController();
    let first = null, id = null, usage = null;
    answer.textContent = "";
    told.replaceChildren();
    stop.disabled = false;
    send.disabled = true;
    stop.onclick = () => left.abort();
    try {
      const body = { model: model.value, max_tokens: Number(most.value), temperature: Number(temperature.value),
        messages: [{ role: "user", content: text.value }] };
      for await (const found of chat(url, body, { ...sentWith(), signal: left.signal })) {
        if (found.text) {
          first ??= performance.now() - began;
          answer.textContent += found.text;
        }
        id = found.id ?? id;
        usage = found.usage ?? usage;
      }
    } catch (error) {
      if (!left.signal.aborted) notice(error.message);
    }
    stop.disabled = true;
    send.disabled = false;
    const cached = usage?.prompt_tokens_details?.cached_tokens;
    told.replaceChildren(figures([["first token", millis(first)], ["whole", millis(performance.now() - began)],
      usage && ["prompt", number(usage.prompt_tokens), cached === undefined || cached === null ? "tokens" : `tokens, ${share(cached / (usage.prompt_tokens || 1))} from cache`],
      usage && ["output", number(usage.completion_tokens), "tokens"],
      id && ["request", h("span", { class: "mono" }, id.slice(0, 12)), null]]), id && sentWith().explained
      ? h("p", {}, h("a", { href: `#requests/${encodeURIComponent(id)}` }, "Where the time went"), " (of the latest requests)") : "");
  };
  return [h("datalist", { id: "models" }, models.map((name) => h("option", { value: name }))),
    { model, most, temperature, text, answer, told, stop, send, ask }];
}

export const parts = ({ model, most, temperature, text, answer, told, stop, send, ask }, datalist, ...more) => [
  h("form", { class: "tall", onsubmit: ask }, ...more, h("div", { class: "row" }, field("Model", model), field("Most output tokens", most),
    field("Temperature", temperature)), field("Message", text), h("div", { class: "row" }, send, stop)),
  datalist, h("h3", {}, "Answer"), answer, told];

export async function open(_, { may }) {
  const { workers } = await call("overview?workers=50&tenants=0");
  const models = [...new Set(workers.flatMap((worker) => worker.models))].sort().slice(0, 200);
  const key = h("input", { type: "password", autocomplete: "off", size: 40, value: given });
  given = "";
  const intro = h("p", { class: "dim" }, "Sends a chat request with a tenant's API key. It is limited, charged and recorded as the tenant's own.");
  if (!may("operator")) return { element: h("div", {}, intro, h("p", { class: "empty" }, "This needs the role operator.")) };
  const [datalist, made] = playground(models, "/admin/v1/playground", () => ({ key: key.value.trim(), explained: true }));
  return { element: h("div", {}, intro, ...parts(made, datalist, h("div", { class: "row" }, field("API key of a tenant", key)))) };
}
