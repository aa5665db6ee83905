// "Try it": calls the API of this stack with the key that was typed in.

export function addressOf(path, inPath, query) {
  // Relative to this page, so that it works under any stage or folder.
  const filled = path.replace(/^\//, "").replace(/\{(\w+)\}/g, (_, name) => encodeURIComponent(inPath[name] || ""));
  const asked = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== "")).toString();
  return asked ? `${filled}?${asked}` : filled;
}

export async function send(method, address, key, headers, body) {
  const sent = { ...headers };
  if (key) sent.authorization = `Bearer ${key}`;
  if (body) sent["content-type"] = "application/json";
  const started = performance.now();
  const answer = await fetch(address, { method, headers: sent, body: body || undefined, redirect: "manual", credentials: "omit" });
  const took = Math.round(performance.now() - started);
  if (answer.type === "opaqueredirect") return { head: `a redirect to a link that lives 300 s, ${took} ms`, text: "" };
  const text = await answer.text();
  return { head: `${answer.status} ${answer.statusText}, ${took} ms, ${answer.headers.get("content-type") || "no content"}`, text: indented(text) };
}

function indented(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text.slice(0, 100000);
  }
}
