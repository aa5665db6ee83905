// Views for URLs that name no page, or a project other than the key's.
import { draw } from "../dom.js";
import { t } from "../i18n.js";
import { button, empty, link, pageHead } from "../parts/basics.js";
import { addressedProject, addressProject } from "../router.js";
import { session } from "../session.js";

export function unknown(root) {
  draw(root, pageHead(t("unknown.title")), empty(t("unknown.what", { address: location.hash }), t("unknown.advice"), link(t("nav.overview"), "#/", "button")));
  return { stop() {} };
}

export function otherProject(root) {
  const { project_id: id, project_name: name } = session.me;
  draw(root, pageHead(t("unknown.otherProject")), empty(t("unknown.linkNames", { project: addressedProject() }), t("unknown.otherAdvice", { name: name || id }),
    button(t("unknown.signIn"), () => session.end("unknown.needsOther"), { kind: "primary" }),
    button(t("unknown.stay", { name: name || id }), () => { addressProject(null, { hash: "#/" }); location.reload(); })));
  return { stop() {} };
}

// A page that this key may not see.
export function notAllowed(scope) {
  return (root) => {
    draw(root, pageHead(t("unknown.notAllowed")), empty(t(`unknown.needs_${scope}`, { scopes: session.me.scopes.join(", ") }), t("unknown.askAdmin"),
      button(t("unknown.signIn"), () => session.end("unknown.needsScope"), { kind: "primary" }), link(t("nav.overview"), "#/", "button")));
    return { stop() {} };
  };
}
