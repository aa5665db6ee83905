// An address that no page has.
import { draw } from "../dom.js";
import { t } from "../i18n.js";
import { empty, link, pageHead } from "../parts/basics.js";

export function unknown(root) {
  draw(root, pageHead(t("unknown.title")), empty(t("unknown.what", { address: location.hash }), t("unknown.advice"), link(t("nav.overview"), "#/", "button")));
  return { stop() {} };
}
