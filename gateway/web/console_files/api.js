// Calls of the APIs, with the token or key that was given; a browser login sends its session itself.
// The token is kept for this tab only, and never in a cookie: other pages cannot use it.

const KEY = "radixgate.token";
const AGAIN_MS = 2000;

export class ApiError extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

export function setToken(token) {
  if (token) sessionStorage.setItem(KEY, token);
  else sessionStorage.removeItem(KEY);
}

export const hasToken = () => sessionStorage.getItem(KEY) !== null;

function headersWith(more) {
  const token = sessionStorage.getItem(KEY);
  return token ? { authorization: `Bearer ${token}`, ...more } : more;
}

async function checked(answer) {
  if (answer.ok) return answer;
  let value = null;
  try {
    value = JSON.parse(await answer.text());
  } catch { /* not an answer of the gateway */ }
  throw new ApiError(answer.status, value?.detail ?? value?.error?.message ?? `status ${answer.status}`);
}

export async function call(path, { method = "GET", body, base = "/admin/v1/" } = {}) {
  const answer = await checked(await fetch(base + path, {
    method, headers: headersWith(body === undefined ? {} : { "content-type": "application/json" }),
    body: body === undefined ? undefined : JSON.stringify(body), credentials: "same-origin",
  }));
  const text = await answer.text();
  return text ? JSON.parse(text) : null;
}

// The events of a streamed answer, each as {kind, data}.
async function* eventsOf(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    rest += value;
    const events = rest.split("\n\n");
    rest = events.pop();
    for (const event of events) {
      const found = { kind: "message", data: null };
      for (const line of event.split("\n")) {
        if (line.startsWith("data: ")) found.data = line.slice(6);
        if (line.startsWith("event: ")) found.kind = line.slice(7);
      }
      if (found.data !== null) yield found;
    }
  }
}

const pause = (ms, signal) => new Promise((resolve) => {
  const timer = setTimeout(resolve, ms);
  signal.addEventListener("abort", () => { clearTimeout(timer); resolve(); }, { once: true });
});

// Shows a view now and after each change, until the signal. Resolves when it was shown first; its error is thrown.
export function watch(path, show, signal, failed) {
  return new Promise((resolve, reject) => {
    let first = true;
    const told = (error) => {
      if (signal.aborted) return resolve();
      if (first) reject(error);
      else failed(error);
      first = false;
    };
    const shown = async (value) => {
      if (signal.aborted) return;
      await show(value);
      first = false;
      resolve();
    };
    const run = async () => {
      while (!signal.aborted) {
        try {
          const answer = await fetch(`/admin/v1/${path}`, {
            headers: headersWith({ accept: "text/event-stream" }), credentials: "same-origin", signal });
          if (answer.status === 503 && !first) await pause(10 * AGAIN_MS, signal);
          for await (const event of eventsOf(await checked(answer))) {
            if (event.kind === "problem") throw new ApiError(503, JSON.parse(event.data));
            await shown(JSON.parse(event.data));
          }
        } catch (error) {
          told(error);
          if (error instanceof ApiError && error.status < 500) return;
          if (error instanceof ApiError && error.status === 503) await shown(await call(path)).catch(() => null);
        }
        await pause(AGAIN_MS, signal);
      }
    };
    run();
  });
}

// Sends a chat request and yields what a stream says: {text}, {usage}, {id}.
export async function* chat(url, body, { key, signal } = {}) {
  const more = { "content-type": "application/json", ...(key ? { "x-radixgate-key": key } : {}) };
  const answer = await checked(await fetch(url, { method: "POST", headers: headersWith(more), credentials: "same-origin",
    signal, body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }) }));
  yield { id: answer.headers.get("x-request-id") };
  for await (const { data } of eventsOf(answer)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ApiError(500, chunk.error.message);
    const text = chunk.choices?.[0]?.delta?.content;
    if (text) yield { text };
    if (chunk.usage) yield { usage: chunk.usage };
  }
}
