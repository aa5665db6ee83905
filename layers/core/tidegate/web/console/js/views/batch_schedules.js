// Recurring batches: the list with next and last runs, and one schedule with its runs.
import { h } from "../dom.js";
import { at, get, patch, remove } from "../api.js";
import { moment } from "../format.js";
import { t } from "../i18n.js";
import { batchTabs } from "../parts/area_tabs.js";
import { badge, button, card, code, copyable, crumbs, empty, facts, link, pageHead, nameAndId, toWriters, when } from "../parts/basics.js";
import { act, confirm } from "../parts/dialog.js";
import { LastRuns, nextRun, withStatuses, scheduleText } from "../parts/schedule.js";
import { screen } from "../parts/screen.js";
import { Pages, table } from "../parts/table.js";
import { timeline } from "../parts/timeline.js";
import { session } from "../session.js";
import { batchDialog, changeScheduleDialog } from "./batch_form.js";
import { batchProgress } from "./batches.js";
import { businessDialog } from "./businesses.js";

const ENDED = ["finished"];

export function batchSchedules(root, { go }) {
  const pages = new Pages((page) => get("v1/batch-schedules", page));
  const last = new LastRuns((id) => get(`v1/batches/${at(id)}`), ENDED);
  return screen(root, {
    async load() {
      const [shown, businesses] = await Promise.all([pages.read(), get("v1/biz", { limit: 100 })]);
      await last.read(shown.items.map((item) => item.last_batch_id));
      return { ...shown, businesses: businesses.items };
    },
    view: (data, refresh) => {
      const add = (kind) => session.can("write") && (data.businesses.length
        ? button(t("schedules.new"), () => batchDialog(data.businesses, go, { repeat: true }), { kind })
        : button(t("batches.newBusiness"), () => businessDialog(refresh), { kind }));
      return [
        pageHead(t("nav.batches"), t("schedules.batchesLead"), add("primary")),
        batchTabs("schedules"),
        data.items.length ? list(data.items, last, refresh) : empty(t("schedules.none"), toWriters(t(data.businesses.length ? "schedules.batchesAdvice" : "batches.noBusiness")), add("")),
        pages.moreButton(data, refresh),
      ];
    },
    quick: 8000,
    slow: 15000,
  });
}

function list(items, last, refresh) {
  return table(t("schedules.title"), [
    { title: t("field.name"), kind: "main", cell: (item) => nameAndId(item.name, `#/batch-schedules/${at(item.schedule_id)}`, item.schedule_id) },
    { title: t("field.status"), cell: (item) => badge(item.status) },
    { title: t("ingest.schedule"), cell: (item) => scheduleText(item.schedule) },
    { title: t("ingest.next"), cell: nextRun },
    { title: t("schedules.last"), cell: (item) => lastBatch(item, last) },
    { title: t("field.actions"), kind: "actions", cell: (item) => session.can("write") && h("div", { class: "action-row" }, tools(item, refresh, "small")) },
  ], items, { keyOf: (item) => item.schedule_id });
}

function lastBatch(item, last) {
  const batch = last.get(item.last_batch_id);
  const made = item.last_batch_id && h("span", { class: "inline" }, link(batch ? when(batch.create_time) : t("type.batch"), `#/batches/${at(item.last_batch_id)}`), batch && badge(batch.status));
  return [made || (item.last_error ? null : t("overview.never")), item.last_error && h("span", { class: "under reason" }, item.last_error)];
}

function tools(item, refresh, kind, after) {
  const path = `v1/batch-schedules/${at(item.schedule_id)}`;
  const turn = (paused, done) => act(() => patch(path, { paused }), done, refresh);
  return [
    item.status === "paused"
      ? button(t("action.resume"), () => turn(false, t("queue.resumed")), { kind, key: "toggle" })
      : button(t("action.pause"), () => turn(true, t("queue.paused")), { kind, key: "toggle" }),
    button(t("action.change"), () => act(() => changeScheduleDialog(path, refresh)), { kind, key: "change" }),
    button(t("action.delete"), () => confirm(t("schedules.deleteBatches", { name: item.name }), t("action.delete"), () => act(async () => { await remove(path); after?.(); }, t("exports.deleted"), refresh)), { kind: `${kind} danger-quiet`, key: "delete" }),
  ];
}

export function batchSchedule(root, { id, go }) {
  const path = `v1/batch-schedules/${at(id)}`;
  const pages = new Pages((page) => get(`${path}/runs`, page));
  let business = null;
  let deleted = false;
  return screen(root, {
    async load() {
      const [record, runs, audit] = await Promise.all([get(path), pages.read(), get("v1/audit", { record: id, limit: 100 })]);
      if (business?.biz_id !== record.biz_id) business = await get(`v1/biz/${at(record.biz_id)}`).catch(() => null);
      return { record, runs, lines: audit.items };
    },
    watch: ({ runs }) => runs.items.filter((run) => run.batch_id).map((run) => [run.batch_id, run.batch?.status]),
    view: ({ record, runs, lines }, refresh) => [
      crumbs(link(t("nav.batches"), "#/batches"), link(t("schedules.title"), "#/batch-schedules")),
      pageHead(record.name, scheduleText(record.schedule), badge(record.status), session.can("write") && tools(record, () => deleted || refresh(), "", () => { deleted = true; go("batch-schedules"); })),
      h("div", { class: "grid" },
        card(t("schedules.runs"), { id: "runs", wide: true },
          record.last_error && h("p", { class: "notice warn" }, record.last_error),
          runs.items.length ? runTable(runs.items) : empty(t("schedules.noRuns"), record.next_run ? t("schedules.noRunsAdvice", { time: moment(record.next_run) }) : t("schedules.noRunsPaused")),
          pages.moreButton(runs, refresh)),
        card(t("jobs.timeline"), { id: "timeline" }, timeline(withStatuses(lines))),
        card(t("jobs.details"), { id: "details" }, facts([
          [t("ingest.schedule"), code(record.schedule)],
          [t("ingest.next"), nextRun(record)],
          [t("batches.business"), business?.name || copyable(record.biz_id)],
          [t("batches.total"), record.batch.total ?? "–"],
          [t("batches.rate"), record.batch.rate],
          [t("schedules.id"), copyable(record.schedule_id)],
          [t("field.created"), moment(record.created_at)],
        ]))),
    ],
    quick: 3000,
    slow: 8000,
  });
}

function runTable(items) {
  return table(t("schedules.runs"), [
    { title: t("schedules.due"), kind: "main", cell: (run) => (run.batch_id ? link(moment(run.due), `#/batches/${at(run.batch_id)}`, "strong") : moment(run.due)) },
    { title: t("field.status"), cell: (run) => badge(run.batch?.status || run.state) },
    { title: t("jobs.progress"), kind: "grow", cell: (run) => [run.batch && batchProgress(run.batch), run.reason && h("span", { class: "under reason" }, run.reason)] },
  ], items, { keyOf: (run) => run.due });
}
