// Batches: the list with progress, rate and errors.
import { h } from "../dom.js";
import { at, get } from "../api.js";
import { count, percent } from "../format.js";
import { t } from "../i18n.js";
import { session } from "../session.js";
import { batchTabs } from "../parts/area_tabs.js";
import { badge, button, copyable, empty, noMatch, pageHead, statusChips, nameAndId, toWriters, when } from "../parts/basics.js";
import { bar } from "../parts/bars.js";
import { screen } from "../parts/screen.js";
import { Pages, table } from "../parts/table.js";
import { batchDialog } from "./batch_form.js";
import { businessDialog } from "./businesses.js";

const STATUSES = ["", "created", "waiting_biz", "running", "stopped", "finished"];

export function batches(root, { query, go }) {
  const status = query.get("status") || "";
  const pages = new Pages((page) => get("v1/batches", { status, ...page }));
  return screen(root, {
    async load() {
      const [shown, businesses] = await Promise.all([pages.read(), get("v1/biz", { limit: 100 })]);
      return { ...shown, businesses: businesses.items };
    },
    watch: (data) => data.items.map((batch) => [batch.batch_id, batch.status]),
    view: (data, refresh) => [
      pageHead(t("nav.batches"), t("batches.lead"), session.can("write") && tools(data, refresh, go)),
      batchTabs("batches"),
      statusChips(t("batches.filter"), STATUSES, status, (chosen) => go("batches", { status: chosen })),
      data.items.length ? list(data.items, new Map(data.businesses.map((biz) => [biz.biz_id, biz.name]))) : status ? noMatch() : empty(t("batches.none"), toWriters(t(data.businesses.length ? "batches.noneAdvice" : "batches.noBusiness")), session.can("write") && tools(data, refresh, go)),
      pages.moreButton(data, refresh),
    ],
    quick: 2000,
    slow: 5000,
  });
}

function tools(data, refresh, go) {
  return [
    data.businesses.length ? null : button(t("batches.newBusiness"), () => businessDialog(refresh), { kind: "primary" }),
    data.businesses.length ? button(t("batches.new"), () => batchDialog(data.businesses, go), { kind: "primary" }) : null,
  ];
}

function list(items, names) {
  return table(t("nav.batches"), [
    { title: t("field.name"), kind: "main", cell: (batch) => nameAndId(batch.name, `#/batches/${at(batch.batch_id)}`, batch.batch_id) },
    { title: t("batches.business"), cell: (batch) => names.get(batch.biz_id) || copyable(batch.biz_id) },
    { title: t("field.status"), cell: (batch) => badge(batch.status) },
    { title: t("jobs.progress"), kind: "grow", cell: batchProgress },
    { title: t("batches.rate"), cell: (batch) => t("batches.perSecond", { n: batch.rate }) },
    { title: t("batches.errors"), cell: (batch) => count(batch.progress?.errors ?? 0) },
    { title: t("field.created"), cell: (batch) => when(batch.create_time) },
  ], items, { keyOf: (batch) => batch.batch_id });
}

export function batchProgress(batch) {
  const { processed = 0, total = batch.total } = batch.progress || {};
  const share = total ? processed / total : 0;
  return h("div", { class: "progress" }, bar(share, t("jobs.progress"), batch.status === "finished" ? "good" : "busy"),
    h("span", { class: "nowrap muted" }, total ? `${count(processed)} / ${count(total)}` : `${count(processed)} · ${percent(share)}`));
}
