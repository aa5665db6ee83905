// The sign-in form.
import { draw, h } from "../dom.js";
import { call } from "../api.js";
import { t } from "../i18n.js";
import { session } from "../session.js";
import { field, FieldError, form } from "../parts/form.js";
import { copyable } from "../parts/basics.js";
import { logo } from "../parts/logo.js";

const here = new URL(".", document.baseURI).href.replace(/\/$/, "");
const COMMANDS = [
  ["signin.withLogin", "tidegate login --profile admin --api-url {URL}"],
  ["signin.withConsole", "tidegate --profile admin console"],
  ["signin.withProject", "tidegate --profile admin project create shop"],
  ["signin.withKey", "tidegate --profile admin key create PROJECT --scope read --scope write"],
];

export function signIn(root, onSignedIn, reason, switches) {
  const element = form([
    field("key", t("signin.key"), { type: "password", required: true, hint: t("signin.hint"), placeholder: "tg_…", autofocus: true }),
  ], t("signin.enter"), async ({ key }) => {
    const trimmed = key.trim();
    // The browser does not send a header with other characters.
    if (!/^[!-~]+$/.test(trimmed)) throw new FieldError("key", t("signin.notAKey"));
    const me = await call("GET", "v1/me", { key: trimmed }).catch(explain);
    session.storeKey(trimmed);
    session.setIdentity(me);
    onSignedIn();
  });
  draw(root, h("main", { class: "signin" },
    h("div", { class: "signin-card" },
      h("div", { class: "signin-brand" }, logo(), h("div", null, h("h1", null, "Tidegate"), h("p", { class: "muted" }, t("brand.lead")))),
      reason && h("p", { class: "notice warn", role: "status" }, t(reason)),
      element,
      h("details", { class: "signin-help" }, h("summary", null, t("signin.where")), COMMANDS.map(([text, command]) =>
        h("div", null, h("p", { class: "hint" }, words(t(text))), copyable(command.replace("{URL}", here), words(command.replace("{URL}", here)))))),
      h("div", { class: "signin-foot" }, h("a", { href: "docs" }, t("nav.docs")), switches))));
  element.querySelector("input").focus();
}

// Lines break between words, never at the hyphen of an option or inside a URL.
function words(text) {
  return h("span", null, text.split(/([!-~]+)/).map((part) => (/[!-~]/.test(part) ? h("span", { class: "nowrap" }, part) : part)));
}

// The API's text explains how to send a key; here a key was sent, and it is not valid.
function explain(error) {
  if (error.status === 401) error.message = t("signin.unknownKey");
  throw error;
}
