// The audit trail: who changed what, when and why.
import { h } from "../dom.js";
import { get } from "../api.js";
import { moment } from "../format.js";
import { named, t } from "../i18n.js";
import { chips, code, copyable, empty, pageHead } from "../parts/basics.js";
import { screen } from "../parts/screen.js";
import { searchBox } from "../parts/search.js";
import { Pages, table } from "../parts/table.js";

const FILTERS = ["record", "actor", "action", "since"];
const SPANS = [["", null], ["1h", 3600], ["24h", 86400], ["7d", 7 * 86400]];

export function audit(root, { query, go, tabs }) {
  const wanted = Object.fromEntries(FILTERS.map((name) => [name, query.get(name) || ""]));
  const filter = (changes) => go("operate/audit", { ...wanted, ...changes });
  const span = SPANS.find(([name]) => name === wanted.since)?.[1];
  const since = span ? new Date(Date.now() - span * 1000).toISOString() : "";
  const pages = new Pages((page) => get("v1/audit", { ...wanted, since, ...page }), 50);
  return screen(root, {
    load: () => pages.read(),
    view: (data, refresh) => [
      pageHead(t("operate.audit"), t("audit.lead")),
      tabs("audit"),
      h("div", { class: "filters" },
        chips(t("audit.since"), SPANS.map(([name]) => [name, name ? t(`audit.last${name}`) : t("action.all")]), wanted.since, (since_) => filter({ since: since_ })),
        searchBox("record", t("audit.record"), wanted.record, (record) => filter({ record })),
        searchBox("actor", t("audit.actor"), wanted.actor, (actor) => filter({ actor })),
        searchBox("action", t("audit.action"), wanted.action, (action) => filter({ action }))),
      data.items.length ? list(data.items, filter) : empty(t("audit.none"), t("audit.noneAdvice")),
      pages.moreButton(data, refresh),
    ],
    quick: 10000,
    slow: 15000,
  });
}

function list(items, filter) {
  return table(t("operate.audit"), [
    { title: t("audit.at"), cell: (line) => h("time", { datetime: line.at }, moment(line.at)) },
    { title: t("audit.action"), kind: "main", cell: (line) => [h("button", { type: "button", class: "link strong", onclick: () => filter({ action: line.action }) }, line.action), line.to && h("span", { class: "under" }, [line.from, line.to].filter(Boolean).map((state) => named("status", state)).join(" → "))] },
    { title: t("audit.record"), cell: (line) => [copyable(line.record), " ", h("button", { type: "button", class: "link", onclick: () => filter({ record: line.record }) }, t("audit.only"))] },
    { title: t("audit.actor"), cell: (line) => (line.actor === "system" ? t("audit.system") : [copyable(line.actor), " ", h("button", { type: "button", class: "link", onclick: () => filter({ actor: line.actor }) }, t("audit.only"))]) },
    { title: t("audit.why"), kind: "grow", cell: (line) => line.why || "–" },
    { title: t("field.attempts"), cell: (line) => (line.attempt ? code(line.attempt) : "–") },
  ], items);
}
