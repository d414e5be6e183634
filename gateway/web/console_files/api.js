// Calls of the APIs, with the token or key that was given; a browser login sends its session itself.
// The token is kept for this tab only, and never in a cookie: other pages cannot use it.

const KEY = "radixgate.token";

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

export async function call(path, { method = "GET", body, base = "/admin/v1/" } = {}) {
  const headers = {};
  const token = sessionStorage.getItem(KEY);
  if (token) headers.authorization = `Bearer ${token}`;
  if (body !== undefined) headers["content-type"] = "application/json";
  const answer = await fetch(base + path, {
    method, headers, body: body === undefined ? undefined : JSON.stringify(body), credentials: "same-origin",
  });
  const text = await answer.text();
  let value = null;
  try {
    value = text ? JSON.parse(text) : null;
  } catch { /* not an answer of the gateway */ }
  if (!answer.ok) throw new ApiError(answer.status, value?.detail ?? value?.error?.message ?? `status ${answer.status}`);
  return value;
}

// All pages of a list, up to a bound.
export async function pages(path, most = 2000) {
  const found = [];
  let after = null;
  do {
    const mark = path.includes("?") ? "&" : "?";
    const page = await call(`${path}${mark}limit=500${after ? `&after=${encodeURIComponent(after)}` : ""}`);
    found.push(...page.data);
    after = page.next;
  } while (after && found.length < most);
  return found;
}
