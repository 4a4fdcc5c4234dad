// Server requests and URL parameters.

/** An answer of /api/NAME. Throws an Error whose message is for people. */
export const ask = async (name, params = {}, signal = undefined) => answer(await fetch(`/api/${name}?${query(params)}`, { signal }));

/** The answer of /api/NAME to something to be done, as `ask`. */
export const send = async (name, body) => answer(await fetch(`/api/${name}`, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) }));

async function answer(response) {
  const body = await response.json().catch(() => ({})); // without JSON the status says what failed
  if (!response.ok) throw new Error(body.error ?? `the server returned status ${response.status}`);
  return body;
}

/** Lines of JSON of /api/NAME, one by one as they come. */
export async function* stream(name, params, signal) {
  const response = await fetch(`/api/${name}?${query(params)}`, { signal });
  if (!response.ok) throw new Error((await response.json()).error);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) yield JSON.parse(line);
  }
}

/** Parameters as text; values may be lists, pairs come as they are. */
export function query(params) {
  if (params instanceof URLSearchParams) return params.toString();
  const found = new URLSearchParams();
  for (const [name, value] of Object.entries(params))
    for (const one of Array.isArray(value) ? value : [value]) if (one !== null && one !== undefined) found.append(name, one);
  return found.toString();
}

/** An address of a page here: `address("rollouts", { run, … })`. */
export function address(page, params = {}) {
  const text = query(params);
  return `#/${page}${text ? `?${text}` : ""}`;
}

/** The page and the parameters that the address bar says. */
export function here(hash = location.hash) {
  const [page, text = ""] = hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  return { page, params: new URLSearchParams(text) };
}

/** A copy of parameters with some changed; null takes one away. */
export function changed(params, changes) {
  const found = new URLSearchParams(params);
  for (const [name, value] of Object.entries(changes)) {
    found.delete(name);
    for (const one of Array.isArray(value) ? value : [value]) if (one !== null) found.append(name, one);
  }
  return found;
}

/** The parameters that choose rollouts: `is.…`, `from.…`, `to.…`. */
export const filters = (params) => [...params].filter(([name]) => /^(is|from|to)\./.test(name));
