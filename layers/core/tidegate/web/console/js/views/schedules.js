// Recurring exports and batches: the list with next and last runs, and one schedule with its runs.
import { h } from "../dom.js";
import { at, get, patch, remove } from "../api.js";
import { moment } from "../format.js";
import { t } from "../i18n.js";
import { batchTabs, exportTabs } from "../parts/area_tabs.js";
import { badge, button, card, code, copyable, crumbs, empty, facts, link, pageHead, nameAndId, toWriters, when } from "../parts/basics.js";
import { act, confirm, dialog, saved } from "../parts/dialog.js";
import { field, form, readJson } from "../parts/form.js";
import { LastRuns, nextRun, runsCard, scheduleFields, scheduleText, timingOf, withStatuses } from "../parts/schedule.js";
import { screen } from "../parts/screen.js";
import { Pages, table } from "../parts/table.js";
import { timeline } from "../parts/timeline.js";
import { session } from "../session.js";
import { batchDialog, changeScheduleDialog } from "./batch_form.js";
import { batchProgress } from "./batches.js";
import { businessDialog } from "./businesses.js";
import { exportProgress, TYPE_NAMES } from "./exports.js";

const EXPORTS = {
  area: "exports", place: "export-schedules", work: "task", type: "type.export", tabs: exportTabs, progress: exportProgress,
  lead: "schedules.exportsLead", sure: "schedules.deleteExports", ended: ["completed", "failed", "cancelled", "expired"],
  ask: (id) => get("v1/task", { task_id: id }),
  change: changeDialog,
  advice: () => t("schedules.exportsAdvice"),
  add: (kind) => link(t("schedules.new"), "#/export-schedules/new", `button ${kind}`),
  facts: (record) => [[t("field.type"), TYPE_NAMES[record.type] || record.type]],
};
const BATCHES = {
  area: "batches", place: "batch-schedules", work: "batch", type: "type.batch", tabs: batchTabs, progress: batchProgress,
  lead: "schedules.batchesLead", sure: "schedules.deleteBatches", ended: ["finished"],
  ask: (id) => get(`v1/batches/${at(id)}`),
  besides: () => get("v1/biz", { limit: 100 }).then(({ items }) => items),
  change: (_item, path, refresh) => act(() => changeScheduleDialog(path, refresh)),
  advice: (businesses) => t(businesses.length ? "schedules.batchesAdvice" : "batches.noBusiness"),
  add: (kind, businesses, go, refresh) => (businesses.length
    ? button(t("schedules.new"), () => batchDialog(businesses, go, { repeat: true }), { kind })
    : button(t("batches.newBusiness"), () => businessDialog(refresh), { kind })),
  facts: (record, businesses) => [
    [t("batches.business"), businesses.find((biz) => biz.biz_id === record.biz_id)?.name || copyable(record.biz_id)],
    [t("batches.total"), record.batch.total ?? "–"],
    [t("batches.rate"), record.batch.rate],
  ],
};

export const exportSchedules = (root, given) => schedules(EXPORTS, root, given);
export const batchSchedules = (root, given) => schedules(BATCHES, root, given);
export const exportSchedule = (root, given) => schedule(EXPORTS, root, given);
export const batchSchedule = (root, given) => schedule(BATCHES, root, given);

function schedules(kind, root, { go }) {
  const pages = new Pages((page) => get(`v1/${kind.place}`, page));
  const last = new LastRuns(kind.ask, kind.ended);
  return screen(root, {
    async load() {
      const [shown, besides] = await Promise.all([pages.read(), kind.besides?.()]);
      await last.read(shown.items.map((item) => item[`last_${kind.work}_id`]));
      return { ...shown, besides };
    },
    view: (data, refresh) => {
      const add = (style) => session.can("write") && kind.add(style, data.besides, go, refresh);
      return [
        pageHead(t(`nav.${kind.area}`), t(kind.lead), add("primary")),
        kind.tabs("schedules"),
        data.items.length ? list(kind, data.items, last, refresh) : empty(t("schedules.none"), toWriters(kind.advice(data.besides)), add("")),
        pages.moreButton(data, refresh),
      ];
    },
    quick: 8000,
    slow: 15000,
  });
}

function list(kind, items, last, refresh) {
  return table(t("schedules.title"), [
    { title: t("field.name"), kind: "main", cell: (item) => nameAndId(item.name, `#/${kind.place}/${at(item.schedule_id)}`, item.schedule_id) },
    { title: t("field.status"), cell: (item) => badge(item.status) },
    { title: t("ingest.schedule"), cell: scheduleText },
    { title: t("ingest.next"), cell: nextRun },
    { title: t("schedules.last"), cell: (item) => lastRun(kind, item, last) },
    { title: t("field.actions"), kind: "actions", cell: (item) => session.can("write") && h("div", { class: "action-row" }, tools(kind, item, refresh, "small")) },
  ], items, { keyOf: (item) => item.schedule_id });
}

function lastRun(kind, item, last) {
  const id = item[`last_${kind.work}_id`];
  const work = last.get(id);
  const made = id && h("span", { class: "inline" }, link(work ? when(work.create_time) : t(kind.type), `#/${kind.area}/${at(id)}`), work && badge(work.status));
  return [made || (item.last_error ? null : t("overview.never")), item.last_error && h("span", { class: "under reason" }, item.last_error)];
}

function tools(kind, item, refresh, style, after) {
  const path = `v1/${kind.place}/${at(item.schedule_id)}`;
  const turn = (paused, done) => act(() => patch(path, { paused }), done, refresh);
  return [
    item.status === "paused"
      ? button(t("action.resume"), () => turn(false, t("queue.resumed")), { kind: style, key: "toggle" })
      : button(t("action.pause"), () => turn(true, t("queue.paused")), { kind: style, key: "toggle" }),
    button(t("action.change"), () => kind.change(item, path, refresh), { kind: style, key: "change" }),
    button(t("action.delete"), () => confirm(t(kind.sure, { name: item.name }), t("action.delete"), () => act(async () => { await remove(path); after?.(); }, t("exports.deleted"), refresh)), { kind: `${style} danger-quiet`, key: "delete" }),
  ];
}

// Sends the revision, so that an outdated page does not overwrite changes of others.
function changeDialog(item, path, refresh) {
  const close = dialog(t("schedules.change"), () => form([
    field("name", t("field.name"), { required: true, value: item.name }),
    ...scheduleFields(item),
    field("fields", t("schedules.fields"), { rows: 4, hint: t("schedules.fieldsHint"), placeholder: '{"file_name": "orders-{date}", "template": null}' }),
  ], t("action.save"), async (given) => {
    const more = readJson("fields", given.fields) || {};
    await patch(path, { ...more, name: given.name, ...timingOf(given), revision: item.revision });
    saved(close, refresh);
  }));
}

function schedule(kind, root, { id, go }) {
  const path = `v1/${kind.place}/${at(id)}`;
  const pages = new Pages((page) => get(`${path}/runs`, page));
  const workId = `${kind.work}_id`;
  let deleted = false;
  return screen(root, {
    async load() {
      const [record, runs, audit, besides] = await Promise.all([get(path), pages.read(), get("v1/audit", { record: id, limit: 100 }), kind.besides?.().catch(() => [])]);
      return { record, runs, lines: audit.items, besides };
    },
    watch: ({ runs }) => runs.items.filter((run) => run[workId]).map((run) => [run[workId], run[kind.work]?.status]),
    view: ({ record, runs, lines, besides }, refresh) => [
      crumbs(link(t(`nav.${kind.area}`), `#/${kind.area}`), link(t("schedules.title"), `#/${kind.place}`)),
      pageHead(record.name, scheduleText(record), badge(record.status), session.can("write") && tools(kind, record, () => deleted || refresh(), "", () => { deleted = true; go(kind.place); })),
      h("div", { class: "grid" },
        runsCard(record, runs, kind, pages.moreButton(runs, refresh)),
        card(t("jobs.timeline"), { id: "timeline" }, timeline(withStatuses(lines))),
        card(t("jobs.details"), { id: "details" }, facts([
          [t("ingest.schedule"), code(record.schedule)],
          [t("schedules.timezone"), record.timezone],
          [t("ingest.next"), nextRun(record)],
          ...kind.facts(record, besides),
          [t("schedules.id"), copyable(record.schedule_id)],
          [t("field.created"), moment(record.created_at)],
        ]))),
    ],
    quick: 3000,
    slow: 8000,
  });
}
