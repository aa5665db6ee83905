// Archived requests by day, and the clean-up.
import { h } from "../dom.js";
import { get, post } from "../api.js";
import { count, moment } from "../format.js";
import { named, t } from "../i18n.js";
import { badge, button, card, copyable, empty, facts, pageHead, statusChips } from "../parts/basics.js";
import { act, confirm, toast } from "../parts/dialog.js";
import { screen } from "../parts/screen.js";
import { Pages, table } from "../parts/table.js";
import { session } from "../session.js";

const STATUSES = ["", "completed", "failed", "cancelled"];

export function archive(root, { query, go, tabs }) {
  const day = query.get("day") || new Date().toISOString().slice(0, 10);
  const status = query.get("status") || "";
  const pages = new Pages((page) => get("v1/archive", { day, status, ...page }), 50);
  const filter = (changes) => go("operate/archive", { day, status, ...changes });
  return screen(root, {
    load: () => pages.read(),
    view: (data, refresh) => [
      pageHead(t("operate.archive"), t("archive.lead"), session.isAdmin && button(t("archive.clean"), () => clean(refresh))),
      tabs("archive"),
      h("div", { class: "filters" },
        h("label", { class: "search" }, h("span", { class: "visually-hidden" }, t("archive.day")), h("input", { type: "date", name: "day", value: day, max: new Date().toISOString().slice(0, 10), onchange: (event) => filter({ day: event.target.value }) })),
        statusChips(t("queue.filterStatus"), STATUSES, status, (chosen) => filter({ status: chosen }))),
      data.items.length ? list(data.items) : empty(t("archive.none", { day }), t("archive.noneAdvice")),
      pages.moreButton(data, refresh),
      card(t("archive.kept"), { id: "kept" }, facts(["requests", "exports", "distribution", "audit"].map((name) => [t(`archive.${name}`), t(`archive.${name}Kept`)]))),
    ],
    quick: 30000,
    slow: 60000,
  });
}

function list(items) {
  return table(t("operate.archive"), [
    { title: t("queue.request"), kind: "main", cell: (item) => [h("span", { class: "strong" }, item.name || named("type", item.type)), h("span", { class: "under" }, copyable(item.request_id))] },
    { title: t("field.type"), cell: (item) => named("type", item.type) },
    { title: t("field.status"), cell: (item) => badge(item.status) },
    { title: t("field.created"), cell: (item) => moment(item.create_time) },
    { title: t("field.finished"), cell: (item) => (item.finish_time ? moment(item.finish_time) : "–") },
  ], items, { keyOf: (item) => item.request_id });
}

// The daily clean-up has stopped itself: an admin decides whether it may delete as much as it wanted to.
function resume(run, refresh) {
  const sure = t("archive.stopped", { n: count(run.orphans), all: count(run.examined) });
  confirm(sure, t("archive.allow"), () => act(() => post("v1/cleanup", { confirm: run.run_id }), t("archive.allowed"), refresh));
}

function clean(refresh) {
  confirm(t("archive.cleanSure"), t("archive.clean"), () => act(async () => {
    const done = await post("v1/cleanup");
    toast(t("archive.cleaned", { n: count(done.removed), objects: count(done.objects) }));
    if (done.stopped && !done.stopped.confirmed_by) resume(done.stopped, refresh);
  }, null, refresh));
}
