// The getting-started page, with the URL of this stack and the key of a signed-in user filled in.
/* global PROGRAMS */
import { draw, h } from "../js/dom.js";
import { codeBlock, codeLanguage, here, language, languageTabs, pageHead, signedInKey, t } from "./frame.js";
import { RUNS, STEPS } from "./steps.js";

const page = document.getElementById("start");
// With a login of its own, so that the admin key is not what the steps below use.
const ADMIN = `alias tidegate=.venv/bin/tidegate      # in a clone
tidegate login --profile admin --api-url ${here}
tidegate --profile admin project create shop --allow-private-urls      # → PROJECT
tidegate --profile admin key create PROJECT --scope read --scope write`;

function show() {
  const key = signedInKey();
  const exports = (shown) => `export TIDEGATE_API_URL=${here}\nexport TIDEGATE_KEY=${shown}`;
  const code = STEPS[language()].map(() => h("div"));
  const run = h("p", { class: "muted" });
  const showCode = () => {
    const command = RUNS[codeLanguage()];
    draw(run, command ? t("oneProgram", { file: command.split(" ").pop() }) : t("oneByOne"), command && h("span", { class: "code" }, command));
    code.forEach((place, step) => draw(place, codeBlock(PROGRAMS[codeLanguage()][step], { "data-way": codeLanguage() })));
  };
  page.replaceChildren(
    pageHead(t("start"), show),
    h("section", { class: "docs-group" }, h("h2", null, t("setUp")), h("p", null, t("setUpText")),
      codeBlock(exports(key ? `${key.slice(0, 12)}…` : "tg_…"), { copied: exports(key || "tg_…") }),
      key ? h("p", { class: "muted" }, t("signedIn")) : [h("p", null, t("noKey")), codeBlock(ADMIN), h("p", { class: "muted" }, t("signIn"))]),
    languageTabs(showCode), run,
    ...STEPS[language()].map(([title, text], step) => h("section", { class: "docs-group" }, h("h2", null, `${step + 1}. ${title}`), h("p", null, text), code[step])),
    h("section", { class: "docs-group" }, h("h2", null, t("more")), h("p", null, t("guides"), " ", h("a", { href: "docs" }, t("reference")))));
  showCode();
}

show();
