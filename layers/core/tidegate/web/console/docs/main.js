// The API reference, from openapi.json: a side bar by capability, and each operation with code and a form that calls it.
import { draw, h } from "../js/dom.js";
import { inLanguage, pageHead, signedInKey, t } from "./frame.js";
import { operation } from "./operation.js";

const page = document.getElementById("docs");
let contract = null;

async function start() {
  const answer = await fetch("openapi.json", { credentials: "omit" });
  if (!answer.ok) throw new Error(`openapi.json answered ${answer.status}`);
  contract = await answer.json();
  show();
}

function show() {
  // Kept in this page only, and lost when the tab is closed.
  const key = h("input", { type: "password", autocomplete: "off", "aria-label": t("key"), placeholder: "tg_…", value: signedInKey() });
  const filter = h("input", { type: "search", "aria-label": t("search"), placeholder: t("searchHint") });
  const list = h("div", { class: "docs-list" });
  const side = h("nav", { class: "docs-side", "aria-label": t("sections") });
  const texts = new Map((contract.tags || []).map((tag) => [tag.name, tag.description]));
  const groups = grouped(() => key.value.trim());
  filter.addEventListener("input", () => showMatching(side, list, groups, filter.value.trim().toLowerCase(), texts));
  page.replaceChildren(
    pageHead(t("reference"), show),
    h("div", { class: "docs-head" }, h("p", { class: "muted" }, `${contract.info.title} ${contract.info.version}${t("textsIn")}`),
      h("label", null, t("key"), key), h("label", null, t("search"), filter)),
    h("div", { class: "docs-columns" }, side, list));
  showMatching(side, list, groups, "", texts);
  openAddressed();
}

function grouped(keyOf) {
  // In the order of the tags.
  const groups = new Map((contract.tags || []).map((tag) => [tag.name, []]));
  const entry = (method, path, spec, tag, of) => ({ words: `${method} ${path} ${spec.summary || ""} ${inLanguage(spec.summary)} ${tag} ${inLanguage(tag)}`.toLowerCase(), summary: inLanguage(spec.summary) || path, element: operation(contract, method, path, spec, of) });
  for (const [path, operations] of Object.entries(contract.paths)) {
    for (const [method, spec] of Object.entries(operations)) {
      const tag = spec.tags?.[0] || "Other";
      groups.set(tag, [...(groups.get(tag) || []), entry(method, path, spec, tag, keyOf)]);
    }
  }
  groups.set(t("webhooks"), Object.entries(contract.webhooks || {}).flatMap(([name, operations]) =>
    Object.entries(operations).map(([method, spec]) => entry(method, name, spec, "webhook", null))));
  return groups;
}

function showMatching(side, list, groups, word, texts) {
  const shown = [...groups].map(([tag, found]) => [tag, found.filter(({ words }) => words.includes(word))]).filter(([, found]) => found.length);
  list.replaceChildren(...shown.map(([tag, found]) => h("section", { class: "docs-group", id: anchor(tag) }, h("h2", null, inLanguage(tag)), texts.get(tag) && h("p", { class: "muted" }, inLanguage(texts.get(tag))), found.map(({ element }) => element))));
  if (!shown.length) draw(list, h("p", null, t("none")));
  side.replaceChildren(...shown.map(([tag, found]) => h("details", { open: Boolean(word) }, h("summary", null, inLanguage(tag)),
    h("ul", null, found.map(({ element, summary }) => h("li", null, h("a", { href: `#${element.id}`, onclick: () => { element.open = true; } }, summary)))))));
}

const anchor = (tag) => tag.toLowerCase().replace(/[^\p{L}\d]+/gu, "-");

// A link to an operation opens it.
function openAddressed() {
  const named = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (named?.nodeName !== "DETAILS") return;
  named.open = true;
  named.scrollIntoView();
}

window.addEventListener("hashchange", openAddressed);
window.addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.target.closest?.("input, textarea, select")) return;
  event.preventDefault();
  page.querySelector("input[type=search]")?.focus();
});
start().catch((error) => draw(page, h("p", null, `${t("unread")}: ${error.message}`)));
