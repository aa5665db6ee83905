// Batches: how far, how fast, how many errors.
import { h } from "../dom.js";
import { at, create, get } from "../api.js";
import { count, percent } from "../format.js";
import { t } from "../i18n.js";
import { session } from "../session.js";
import { badge, button, empty, link, pageHead, when } from "../parts/basics.js";
import { bar } from "../parts/bars.js";
import { dialog, toast } from "../parts/dialog.js";
import { field, form, readJson } from "../parts/form.js";
import { screen } from "../parts/screen.js";
import { Pages, table } from "../parts/table.js";

export function batches(root, { go }) {
  const pages = new Pages((page) => get("v1/batches", page));
  return screen(root, {
    async load() {
      const [shown, businesses] = await Promise.all([pages.read(), get("v1/biz", { limit: 100 })]);
      return { ...shown, businesses: businesses.items };
    },
    watch: (data) => data.items.map((batch) => [batch.batch_id, batch.status]),
    view: (data, refresh) => [
      pageHead(t("nav.batches"), t("batches.lead"), session.can("write") && tools(data, refresh, go)),
      data.items.length ? list(data.items) : empty(t("batches.none"), data.businesses.length ? t("batches.noneAdvice") : t("batches.noBusiness"), session.can("write") && tools(data, refresh, go)),
      pages.moreButton(data, refresh),
    ],
    quick: 2000,
    slow: 5000,
  });
}

function tools(data, refresh, go) {
  return [
    button(t("batches.newBusiness"), () => businessDialog(refresh)),
    data.businesses.length ? button(t("batches.new"), () => batchDialog(data.businesses, go), { kind: "primary" }) : null,
  ];
}

function list(items) {
  return table(t("nav.batches"), [
    { title: t("field.name"), kind: "main", cell: (batch) => [link(batch.name, `#/batches/${at(batch.batch_id)}`, "strong"), h("span", { class: "under clip" }, batch.batch_id)] },
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

function businessDialog(refresh) {
  const urls = ["before_create_url", "before_run_url", "process_stop_url"];
  const close = dialog(t("batches.newBusiness"), () => form([
    field("name", t("field.name"), { required: true }),
    field("process_url", t("batches.process_url"), { type: "url", required: true, hint: t("batches.processHint"), placeholder: "https://" }),
    h("details", null, h("summary", null, t("exports.moreFields")), h("div", null,
      urls.map((name) => field(name, t(`batches.${name}`), { type: "url" })),
      field("auth_code", t("batches.authCode")))),
  ], t("action.save"), async (given, once) => {
    await create("v1/biz", Object.fromEntries(Object.entries(given).filter(([, value]) => value)), once);
    toast(t("batches.businessMade"));
    close();
    refresh();
  }));
}

function batchDialog(businesses, go) {
  const close = dialog(t("batches.new"), () => form([
    field("biz_id", t("batches.business"), { options: businesses.map((biz) => [biz.biz_id, biz.name]), required: true }),
    field("name", t("field.name"), { required: true }),
    h("div", { class: "pair" },
      field("total", t("batches.total"), { type: "number", min: 1, required: true }),
      field("rate", t("batches.rate"), { type: "number", min: 1, value: "10", required: true, hint: t("batches.rateHint") })),
    h("div", { class: "pair" },
      field("max_errors", t("batches.maxErrors"), { type: "number", min: 0 }),
      field("start_index", t("batches.startIndex"), { type: "number", min: 0 })),
    field("job_data", t("batches.jobData"), { rows: 3, class: "mono", hint: "JSON" }),
  ], t("batches.create"), async (given, once) => {
    const body = { biz_id: given.biz_id, name: given.name, job_data: readJson("job_data", given.job_data) };
    for (const name of ["total", "rate", "max_errors", "start_index"]) if (given[name]) body[name] = Number(given[name]);
    const made = await create("v1/batches", body, once);
    close();
    toast(t("batches.made"));
    go(`batches/${at(made.batch_id)}`);
  }));
}
