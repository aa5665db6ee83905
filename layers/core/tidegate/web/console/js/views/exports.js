// Exports: the list with progress and download links.
import { h } from "../dom.js";
import { at, get, post } from "../api.js";
import { bytes, count, percent } from "../format.js";
import { t } from "../i18n.js";
import { session } from "../session.js";
import { exportTabs } from "../parts/area_tabs.js";
import { badge, button, copyable, empty, link, noMatch, pageHead, statusChips, toWriters, when } from "../parts/basics.js";
import { bar } from "../parts/bars.js";
import { act, confirm } from "../parts/dialog.js";
import { saveFrom } from "../parts/saving.js";
import { screen } from "../parts/screen.js";
import { searchBox } from "../parts/search.js";
import { Pages, table } from "../parts/table.js";

const STATUSES = ["", "running", "queued", "completed", "failed", "cancelled", "expired"];
// Names of formats, which are the same in every language.
export const TYPE_NAMES = { excel: "Excel", csv: "CSV", jsonl: "JSONL", parquet: "Parquet" };
const NOT_ENDED = ["pending", "queued", "running"];

export function exportsList(root, { query, go }) {
  const wanted = Object.fromEntries(["status", "name", "operator_id"].map((name) => [name, query.get(name) || ""]));
  const pages = new Pages((page) => get("v1/tasks", { ...wanted, ...page }));
  const filter = (changes) => go("exports", { ...wanted, ...changes });
  return screen(root, {
    load: () => pages.read(),
    watch: (data) => data.items.map((task) => [task.task_id, task.status]),
    view: (data, refresh) => [
      pageHead(t("nav.exports"), t("exports.lead"), session.can("write") && link(t("exports.new"), "#/exports/new", "button primary")),
      exportTabs("exports"),
      h("div", { class: "filters" },
        statusChips(t("exports.filter"), STATUSES, wanted.status, (status) => filter({ status })),
        searchBox("name", t("field.name"), wanted.name, (name) => filter({ name })),
        searchBox("operator", t("exports.operator"), wanted.operator_id, (operator_id) => filter({ operator_id }))),
      data.items.length ? list(data.items, refresh) : Object.values(wanted).some(Boolean) ? noMatch() : empty(t("exports.none"), toWriters(t("exports.noneAdvice")), session.can("write") && link(t("exports.new"), "#/exports/new", "button")),
      pages.moreButton(data, refresh),
    ],
  });
}

function list(items, refresh) {
  return table(t("nav.exports"), [
    { title: t("field.name"), kind: "main", cell: (task) => [link(task.name, `#/exports/${at(task.task_id)}`, "strong"), h("span", { class: "under clip" }, task.file_name || ""), task.warnings?.length ? h("span", { class: "under warn-text" }, t("exports.nWarnings", { n: task.warnings.length })) : null, h("span", { class: "under" }, copyable(task.task_id))] },
    { title: t("field.status"), cell: (task) => badge(task.status) },
    { title: t("jobs.progress"), kind: "grow", cell: exportProgress },
    { title: t("field.size"), kind: "nowrap", cell: (task) => bytes(task.size) },
    { title: t("field.created"), cell: (task) => when(task.create_time) },
    { title: t("field.actions"), kind: "actions", cell: (task) => exportActions(task, refresh) },
  ], items, { keyOf: (task) => task.task_id });
}

export function exportProgress(task) {
  const { rows = 0, total, percent: done } = task.progress || {};
  const share = task.status === "completed" ? 1 : done !== undefined && done !== null ? done / 100 : total ? rows / total : 0;
  if (task.status === "failed") return h("span", { class: "reason" }, task.failed_reason || t("exports.failedUnknown"));
  return h("div", { class: "progress" }, bar(share, t("jobs.progress"), task.status === "completed" ? "good" : "busy"),
    h("span", { class: "nowrap muted" }, total ? t("exports.rows", { n: count(total) }) : rows ? t("exports.rows", { n: count(rows) }) : percent(share)));
}

export function exportActions(task, refresh, after) {
  const made = [];
  if (task.status === "completed") made.push(button(t("action.download"), () => act(() => saveFrom("v1/download/url", { task_id: task.task_id })), { kind: "primary small", iconName: "download", key: "download" }));
  if (!session.can("write")) return h("div", { class: "action-row" }, made);
  if (task.status === "failed") made.push(button(t("action.retry"), () => act(() => post(`v1/requests/${at(task.task_id)}/retry`), t("exports.retried"), refresh), { kind: "small", key: "retry" }));
  if (NOT_ENDED.includes(task.status)) made.push(button(t("action.cancel"), () => act(() => post(`v1/requests/${at(task.task_id)}/cancel`), t("queue.cancelled"), refresh), { kind: "small", key: "cancel" }));
  else made.push(button(t("action.delete"), () => confirm(t("exports.delete", { name: task.name }), t("action.delete"), () => act(async () => {
    await post("v1/tasks/delete", { task_ids: [task.task_id] });
    after?.();
  }, t("exports.deleted"), refresh)), { kind: "small danger-quiet", key: "delete" }));
  return h("div", { class: "action-row" }, made);
}
