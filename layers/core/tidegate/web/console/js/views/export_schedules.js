// Recurring exports: the list with next and last runs, and one schedule with its runs.
import { h } from "../dom.js";
import { at, get, patch, post, remove } from "../api.js";
import { moment } from "../format.js";
import { t } from "../i18n.js";
import { exportTabs } from "../parts/area_tabs.js";
import { badge, button, card, code, copyable, crumbs, empty, facts, link, pageHead, nameAndId, toWriters, when } from "../parts/basics.js";
import { act, confirm, dialog, saved } from "../parts/dialog.js";
import { field, form, readJson } from "../parts/form.js";
import { LastRuns, nextRun, scheduleFields, scheduleOf, withStatuses, scheduleText } from "../parts/schedule.js";
import { screen } from "../parts/screen.js";
import { Pages, table } from "../parts/table.js";
import { timeline } from "../parts/timeline.js";
import { session } from "../session.js";
import { exportProgress, TYPE_NAMES } from "./exports.js";

const ENDED = ["completed", "failed", "cancelled", "expired"];

export function exportSchedules(root) {
  const pages = new Pages((page) => get("v1/export-schedules", page));
  const last = new LastRuns((id) => get("v1/task", { task_id: id }), ENDED);
  const add = (kind) => session.can("write") && link(t("schedules.new"), "#/export-schedules/new", kind);
  return screen(root, {
    async load() {
      const data = await pages.read();
      await last.read(data.items.map((item) => item.last_task_id));
      return data;
    },
    view: (data, refresh) => [
      pageHead(t("nav.exports"), t("schedules.exportsLead"), add("button primary")),
      exportTabs("schedules"),
      data.items.length ? list(data.items, last, refresh) : empty(t("schedules.none"), toWriters(t("schedules.exportsAdvice")), add("button")),
      pages.moreButton(data, refresh),
    ],
    quick: 8000,
    slow: 15000,
  });
}

function list(items, last, refresh) {
  return table(t("schedules.title"), [
    { title: t("field.name"), kind: "main", cell: (item) => nameAndId(item.name, `#/export-schedules/${at(item.schedule_id)}`, item.schedule_id) },
    { title: t("field.status"), cell: (item) => badge(item.status) },
    { title: t("ingest.schedule"), cell: (item) => scheduleText(item.schedule) },
    { title: t("ingest.next"), cell: nextRun },
    { title: t("schedules.last"), cell: (item) => lastExport(item, last) },
    { title: t("field.actions"), kind: "actions", cell: (item) => session.can("write") && h("div", { class: "action-row" }, tools(item, refresh, "small")) },
  ], items, { keyOf: (item) => item.schedule_id });
}

function lastExport(item, last) {
  if (!item.last_task_id) return t("overview.never");
  const task = last.get(item.last_task_id);
  return h("span", { class: "inline" }, link(task ? when(task.create_time) : t("type.export"), `#/exports/${at(item.last_task_id)}`), task && badge(task.status));
}

function tools(item, refresh, kind, after) {
  const path = `v1/export-schedules/${at(item.schedule_id)}`;
  return [
    item.status === "paused"
      ? button(t("action.resume"), () => act(() => post(`${path}/resume`), t("queue.resumed"), refresh), { kind, key: "toggle" })
      : button(t("action.pause"), () => act(() => post(`${path}/pause`), t("queue.paused"), refresh), { kind, key: "toggle" }),
    button(t("action.change"), () => changeDialog(item, path, refresh), { kind, key: "change" }),
    button(t("action.delete"), () => confirm(t("schedules.deleteExports", { name: item.name }), t("action.delete"), () => act(async () => { await remove(path); after?.(); }, t("exports.deleted"), refresh)), { kind: `${kind} danger-quiet`, key: "delete" }),
  ];
}

// Sends the revision, so that an outdated page does not overwrite changes of others.
function changeDialog(item, path, refresh) {
  const close = dialog(t("schedules.change"), () => form([
    field("name", t("field.name"), { required: true, value: item.name }),
    ...scheduleFields(item.schedule),
    field("fields", t("schedules.fields"), { rows: 4, hint: t("schedules.fieldsHint"), placeholder: '{"file_name": "orders-{date}", "template": null}' }),
  ], t("action.save"), async (given) => {
    const more = readJson("fields", given.fields) || {};
    await patch(path, { ...more, name: given.name, schedule: scheduleOf(given), revision: item.revision });
    saved(close, refresh);
  }));
}

export function exportSchedule(root, { id, go }) {
  const path = `v1/export-schedules/${at(id)}`;
  const pages = new Pages((page) => get(`${path}/runs`, page));
  let deleted = false;
  return screen(root, {
    async load() {
      const [record, runs, audit] = await Promise.all([get(path), pages.read(), get("v1/audit", { record: id, limit: 100 })]);
      return { record, runs, lines: audit.items };
    },
    watch: ({ runs }) => runs.items.filter((run) => run.task_id).map((run) => [run.task_id, run.task?.status]),
    view: ({ record, runs, lines }, refresh) => [
      crumbs(link(t("nav.exports"), "#/exports"), link(t("schedules.title"), "#/export-schedules")),
      pageHead(record.name, scheduleText(record.schedule), badge(record.status), session.can("write") && tools(record, () => deleted || refresh(), "", () => { deleted = true; go("export-schedules"); })),
      h("div", { class: "grid" },
        card(t("schedules.runs"), { id: "runs", wide: true },
          runs.items.length ? runTable(runs.items) : empty(t("schedules.noRuns"), record.next_run ? t("schedules.noRunsAdvice", { time: moment(record.next_run) }) : t("schedules.noRunsPaused")),
          pages.moreButton(runs, refresh)),
        card(t("jobs.timeline"), { id: "timeline" }, timeline(withStatuses(lines))),
        card(t("jobs.details"), { id: "details" }, facts([
          [t("ingest.schedule"), code(record.schedule)],
          [t("ingest.next"), nextRun(record)],
          [t("schedules.id"), copyable(record.schedule_id)],
          [t("field.type"), TYPE_NAMES[record.type] || record.type],
          [t("field.created"), moment(record.created_at)],
        ]))),
    ],
    quick: 3000,
    slow: 8000,
  });
}

function runTable(items) {
  return table(t("schedules.runs"), [
    { title: t("schedules.due"), kind: "main", cell: (run) => (run.task_id ? link(moment(run.due), `#/exports/${at(run.task_id)}`, "strong") : moment(run.due)) },
    { title: t("field.status"), cell: (run) => badge(run.task?.status || run.state) },
    { title: t("jobs.progress"), kind: "grow", cell: (run) => (run.task ? exportProgress(run.task) : run.reason || "–") },
  ], items, { keyOf: (run) => run.due });
}
