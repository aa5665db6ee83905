// A file saved by the browser itself, from an address that lives for minutes.
import { h } from "../dom.js";
import { get } from "../api.js";

export async function saveFrom(path, query) {
  const { url } = await get(path, query);
  const anchor = h("a", { href: url, download: "", rel: "noreferrer" });
  document.body.append(anchor);
  anchor.click();
  anchor.remove();
}
