// One export: status, error, file, callbacks and timeline.
import { h } from "../dom.js";
import { at, get, patch } from "../api.js";
import { bytes, moment } from "../format.js";
import { t } from "../i18n.js";
import { badge, card, copyable, crumbs, facts, link, pageHead } from "../parts/basics.js";
import { remarkFact } from "../parts/note.js";
import { screen } from "../parts/screen.js";
import { timeline } from "../parts/timeline.js";
import { exportActions, exportProgress, TYPE_NAMES } from "./exports.js";

export function exportPage(root, { id, go }) {
  return screen(root, {
    async load() {
      const [task, audit] = await Promise.all([get("v1/task", { task_id: id }), get("v1/audit", { record: id, limit: 100 })]);
      return { task, lines: audit.items };
    },
    watch: ({ task }) => [[id, task.status]],
    view: ({ task, lines }, refresh) => [
      crumbs(link(t("nav.exports"), "#/exports")),
      pageHead(task.name, task.file_name, badge(task.status), exportActions(task, refresh, () => go("exports"))),
      h("div", { class: "grid" },
        card(t("jobs.progress"), { wide: true, id: "progress" }, exportProgress(task), task.warnings?.length ? h("ul", { class: "notice warn", "aria-label": t("exports.warnings") }, task.warnings.map((line) => h("li", null, line))) : null),
        card(t("jobs.timeline"), { id: "timeline" }, timeline(lines)),
        card(t("jobs.details"), { id: "details" }, facts([
          [t("exports.id"), copyable(task.task_id)],
          [t("field.type"), TYPE_NAMES[task.type] || task.type],
          [t("field.size"), bytes(task.size)],
          [t("field.attempts"), task.attempts],
          [t("exports.reason"), task.failed_reason],
          remarkFact("note", task, (change) => patch("v1/task", change, { task_id: id }), refresh),
          [t("exports.schedule"), task.schedule_id && link(t("exports.openSchedule"), `#/export-schedules/${at(task.schedule_id)}`)],
          [t("exports.copies"), outcomes(task.deliveries, ({ bucket, key }) => `${bucket}/${key}`)],
          [t("exports.emails"), outcomes(task.emails, ({ to }) => to)],
          [t("field.created"), moment(task.create_time)],
          [t("field.finished"), task.finish_time && moment(task.finish_time)],
          [t("nav.callbacks"), link(t("callbacks.ofThis"), `#/callbacks?task_id=${at(task.task_id)}`)],
        ]))),
    ],
    quick: 2000,
    slow: 6000,
  });
}

// The copies and e-mails, and why one failed.
function outcomes(items, where) {
  return items?.length ? h("div", { class: "plain" }, items.map((item) => h("span", null, `${where(item)} `, badge(item.state), item.error && h("span", { class: "under reason" }, item.error)))) : null;
}
