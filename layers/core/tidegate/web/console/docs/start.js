// The getting-started page, with the URL of this stack and the key of a signed-in user filled in.
/* global PROGRAMS */
import { draw, h } from "../js/dom.js";
import { codeBlock, codeLanguage, here, language, languageTabs, pageHead, signedInKey, t } from "./frame.js";
import { STEPS } from "./steps.js";

const page = document.getElementById("start");

function show() {
  const key = signedInKey();
  const exports = (shown) => `export TIDEGATE_API_URL=${here}\nexport TIDEGATE_KEY=${shown}`;
  const code = STEPS[language()].map(() => h("div"));
  const showCode = () => code.forEach((place, step) => draw(place, codeBlock(PROGRAMS[codeLanguage()][step], { "data-way": codeLanguage() })));
  page.replaceChildren(
    pageHead(t("start"), show),
    h("section", { class: "docs-group" }, h("h2", null, t("setUp")), h("p", null, t("setUpText")),
      codeBlock(exports(key ? `${key.slice(0, 12)}…` : "tg_…"), { copied: exports(key || "tg_…") }),
      key ? h("p", { class: "muted" }, t("signedIn")) : [h("p", null, t("noKey")), codeBlock(`tidegate login --api-url ${here}\ntidegate project create shop --allow-private-urls      # → PROJECT\ntidegate key create PROJECT --scope read --scope write`), h("p", { class: "muted" }, t("signIn"))]),
    languageTabs(showCode),
    ...STEPS[language()].map(([title, text], step) => h("section", { class: "docs-group" }, h("h2", null, `${step + 1}. ${title}`), h("p", null, text), code[step])),
    h("section", { class: "docs-group" }, h("h2", null, t("more")), h("p", null, t("guides"), " ", h("a", { href: "docs" }, t("reference")))));
  showCode();
}

show();
