// The API reference, from openapi.json: operations grouped by tag, each with a form that calls it.
import { draw, h } from "../js/dom.js";
import { operation } from "./operation.js";

const WEBHOOKS = "What you implement: requests that Tidegate sends";
const page = document.getElementById("docs");

async function start() {
  const answer = await fetch("openapi.json", { credentials: "omit" });
  if (!answer.ok) throw new Error(`openapi.json answered ${answer.status}`);
  show(await answer.json());
}

function show(contract) {
  // Kept in this page only, and lost when the tab is closed.
  const key = h("input", { type: "password", autocomplete: "off", "aria-label": "Key", placeholder: "tg_…" });
  const filter = h("input", { type: "search", "aria-label": "Filter", placeholder: "path or word" });
  const list = h("div");
  const texts = new Map((contract.tags || []).map((tag) => [tag.name, tag.description]));
  const groups = grouped(contract, () => key.value.trim());
  filter.addEventListener("input", () => showMatching(list, groups, filter.value.trim().toLowerCase(), texts));
  draw(page,
    h("header", { class: "docs-head" },
      h("div", null, h("h1", null, `${contract.info.title} API `, h("span", { class: "muted" }, contract.info.version)),
        h("p", null, h("a", { href: "start" }, "getting started"), " · ", h("a", { href: "openapi.json" }, "openapi.json"), " · ", h("a", { href: "./" }, "console"))),
      h("label", null, "Key, sent as Authorization: Bearer", key), h("label", null, "Filter", filter)), list);
  showMatching(list, groups, "", texts);
}

function grouped(contract, keyOf) {
  // In the order of the tags.
  const groups = new Map((contract.tags || []).map((tag) => [tag.name, []]));
  for (const [path, operations] of Object.entries(contract.paths)) {
    for (const [method, spec] of Object.entries(operations)) {
      const tag = spec.tags?.[0] || "Other";
      const found = { words: `${method} ${path} ${spec.summary || ""} ${tag}`.toLowerCase(), element: operation(contract, method, path, spec, keyOf) };
      groups.set(tag, [...(groups.get(tag) || []), found]);
    }
  }
  groups.set(WEBHOOKS, Object.entries(contract.webhooks || {}).flatMap(([name, operations]) => Object.entries(operations).map(([method, spec]) =>
    ({ words: `${name} ${spec.summary} webhook`.toLowerCase(), element: operation(contract, method, name, spec, null) }))));
  return groups;
}

function showMatching(list, groups, word, texts) {
  const shown = [...groups].map(([tag, found]) => [tag, found.filter(({ words }) => words.includes(word))]).filter(([, found]) => found.length);
  list.replaceChildren(...shown.map(([tag, found]) => h("section", { class: "docs-group" }, h("h2", null, tag), texts.get(tag) && h("p", { class: "muted" }, texts.get(tag)), found.map(({ element }) => element))));
}

start().catch((error) => draw(page, h("p", null, `The contract could not be read: ${error.message}`)));
