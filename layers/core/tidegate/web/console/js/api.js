// Calls the API, relative to the page, so that it works under any stage, folder or domain.
import { session } from "./session.js";
import { t } from "./i18n.js";

class ApiError extends Error {
  constructor(status, problem, requestId) {
    super(problem.detail || problem.title || t("error.unknown"));
    this.status = status;
    this.code = problem.code || "unknown";
    this.fields = problem.errors || [];
    // Operators find the call in the logs by it.
    this.requestId = requestId || null;
  }
}

export async function call(method, path, { body, query, key, once } = {}) {
  const url = new URL(await shortened(path), document.baseURI);
  for (const [name, value] of Object.entries(query || {})) {
    if (value !== undefined && value !== null && value !== "") url.searchParams.set(name, value);
  }
  const headers = { authorization: `Bearer ${key || session.key}`, accept: "application/json" };
  if (session.project) headers["x-project-id"] = session.project;
  if (body !== undefined) headers["content-type"] = "application/json";
  if (once) headers["idempotency-key"] = once;
  let answer;
  try {
    answer = await fetch(url, { method, headers, body: body === undefined ? undefined : JSON.stringify(body), cache: "no-store" });
  } catch {
    throw new ApiError(0, { code: "network", detail: t("error.network") });
  }
  const text = await answer.text();
  const data = parsed(text);
  if (answer.ok) return data;
  if (answer.status === 401 && !key) session.end("error.expired");
  throw new ApiError(answer.status, data || { detail: t("error.status", { n: answer.status }) }, answer.headers.get("x-request-id"));
}

function parsed(text) {
  try {
    return text ? JSON.parse(text) : null;
  } catch {
    return null;
  }
}

// An HTTP API decodes paths, so the id of a Job or Task does not survive if its file name has a % in it. The Job's key
// and the Task's uuid do.
async function shortened(path) {
  const [, start, part, rest] = path.match(/^(v1\/(?:jobs|downloads)\/)(AsyncDownload[^/]*)(.*)$/) || [];
  if (!part) return path;
  const id = decodeURIComponent(part);
  return start + (start.endsWith("downloads/") ? id.split(":").pop() : await jobKey(id)) + rest;
}

async function jobKey(id) {
  // Browsers have it on https and on this machine only.
  if (!crypto.subtle) return at(id);
  const parts = ["job", id].map((text) => new TextEncoder().encode(text));
  const hashed = new Uint8Array(parts.reduce((size, part) => size + 8 + part.length, 0));
  let place = 0;
  for (const part of parts) {
    new DataView(hashed.buffer).setUint32(place + 4, part.length);
    hashed.set(part, place + 8);
    place += 8 + part.length;
  }
  return hex(new Uint8Array(await crypto.subtle.digest("SHA-256", hashed))).slice(0, 32);
}

const hex = (bytes) => Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");

export const get = (path, query) => call("GET", path, { query });
export const post = (path, body, query) => call("POST", path, { body: body ?? {}, query });
export const put = (path, body) => call("PUT", path, { body });
export const remove = (path) => call("DELETE", path);
export const patch = (path, body, query) => call("PATCH", path, { body, query });
// Sends an Idempotency-Key, so that a double click or a retry after a lost answer creates one record.
export const create = (path, body, once) => call("POST", path, { body, once });
export const at = (id) => encodeURIComponent(id);

export function onceKey() {
  return hex(crypto.getRandomValues(new Uint8Array(16)));
}
