// Lets the browser save a file from a presigned URL.
import { h } from "../dom.js";
import { get } from "../api.js";

export async function saveFrom(path, query) {
  const { url } = await get(path, query);
  const anchor = h("a", { href: url, download: "", rel: "noreferrer" });
  document.body.append(anchor);
  anchor.click();
  anchor.remove();
}
