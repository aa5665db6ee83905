// One batch: progress, rate and errors; start, stop and change it.
import { h } from "../dom.js";
import { at, get, post, remove } from "../api.js";
import { clock, count, duration, moment } from "../format.js";
import { named, t } from "../i18n.js";
import { session } from "../session.js";
import { badge, button, card, code, copyable, crumbs, empty, facts, figure, link, pageHead, statusChips } from "../parts/basics.js";
import { lineChart, Samples } from "../parts/chart.js";
import { act, confirm } from "../parts/dialog.js";
import { screen } from "../parts/screen.js";
import { Pages, table } from "../parts/table.js";
import { changeBatchDialog, dryRun } from "./batch_form.js";
import { batchProgress } from "./batches.js";

const ITEM_STATES = ["", "failed", "abandoned", "recovered"];

export function batchPage(root, { id, query, go }) {
  const state = query.get("items") || "";
  const rate = new Samples();
  const items = new Pages((page) => get(`v1/batches/${at(id)}/items`, { state, ...page }));
  let business = null;
  return screen(root, {
    async load() {
      const [batch, logs, outcomes] = await Promise.all([get(`v1/batches/${at(id)}`), get(`v1/batches/${at(id)}/logs`, { limit: 50 }), items.read()]);
      business ??= await get(`v1/biz/${at(batch.biz_id)}`).catch(() => null);
      if (batch.status === "running") rate.add(batch.progress?.rate_now);
      return { batch, logs: logs.items, outcomes };
    },
    watch: ({ batch }) => [[id, batch.status]],
    view: ({ batch, logs, outcomes }, refresh) => [
      crumbs(link(t("nav.batches"), "#/batches")),
      pageHead(batch.name, business?.name || batch.biz_id, badge(batch.status), session.can("write") ? actions(batch, refresh, go) : null),
      h("div", { class: "grid" },
        card(t("jobs.progress"), { wide: true, id: "progress" }, batchProgress(batch), numbers(batch), chart(batch, rate)),
        card(t("batches.outcomes"), { id: "outcomes", wide: true },
          statusChips(t("batches.outcomes"), ITEM_STATES, state, (chosen) => go(`batches/${at(id)}`, { items: chosen })),
          outcomes.items.length ? outcomeTable(outcomes.items) : empty(t(batch.status === "created" ? "batches.notStarted" : "batches.noOutcomes"), t("batches.noOutcomesAdvice")),
          items.moreButton(outcomes, refresh)),
        card(t("batches.logs"), { id: "logs" }, logs.length ? logList(logs) : empty(t("batches.noLogs"), t("batches.noLogsAdvice"))),
        card(t("jobs.details"), { id: "details" }, details(batch, business))),
    ],
    quick: 1500,
    slow: 3000,
  });
}

function actions(batch, refresh, go) {
  const made = [];
  const path = `v1/batches/${at(batch.batch_id)}`;
  if (batch.status === "created") made.push(button(t("batches.dryRun"), () => dryRun(batch), { key: "dry-run" }));
  if (["created", "stopped"].includes(batch.status)) made.push(button(t("batches.start"), () => act(() => post(`${path}/start`), t("batches.started"), refresh), { kind: "primary", key: "start" }));
  if (["running", "waiting_biz"].includes(batch.status)) made.push(button(t("batches.stop"), () => act(() => post(`${path}/stop`), t("batches.stopped"), refresh), { kind: "danger", key: "stop" }));
  if (["stopped", "finished"].includes(batch.status) && batch.progress?.errors) {
    made.push(button(t("batches.results"), () => act(async () => window.open((await get(`${path}/results`)).url, "_blank", "noopener")), { key: "results" }));
    for (const [state, label] of [["failed", "batches.redrive"], ["abandoned", "batches.redriveAbandoned"]]) {
      if (batch.progress[state]) made.push(button(t(label), () => act(async () => { location.hash = `#/batches/${at((await post(`${path}/redrive`, { states: [state] })).batch_id)}`; }, t("batches.redriven"), refresh), { key: `redrive-${state}` }));
    }
  }
  if (batch.report && ["stopped", "finished"].includes(batch.status)) {
    made.push(button(t("batches.report"), () => act(async () => window.open((await get(`${path}/results`, { all: true, format: "csv" })).url, "_blank", "noopener")), { key: "report" }));
  }
  made.push(button(t("batches.exportLogs"), () => act(async () => { location.hash = `#/exports/${at((await post(`${path}/logs/export`)).task_id)}`; }), { key: "logs" }));
  made.push(button(t("action.change"), () => changeBatchDialog(batch, refresh), { key: "change" }));
  if (["created", "stopped", "finished"].includes(batch.status)) {
    made.push(button(t("action.delete"), () => confirm(t("batches.deleteSure", { name: batch.name }), t("action.delete"), () => act(async () => { await remove(path); go("batches"); }, t("exports.deleted"))), { kind: "danger-quiet", key: "delete" }));
  }
  return made;
}

function numbers(batch) {
  const { errors = 0, rate_now: now, eta, failed_calls: failedCalls = 0, retrying = 0 } = batch.progress || {};
  const left = eta ? Math.max(0, (Date.parse(eta) - Date.now()) / 1000) : null;
  return h("ul", { class: "figures" },
    figure(t("batches.rateNow"), now === undefined || now === null ? "–" : t("batches.perSecond", { n: Math.round(now * 10) / 10 })),
    figure(t("batches.rate"), t("batches.perSecond", { n: batch.rate })),
    figure(t("batches.errors"), count(errors)),
    figure(t("batches.failedCalls"), retrying ? `${count(failedCalls)} · ${t("batches.retrying", { n: count(retrying) })}` : count(failedCalls)),
    figure(t("batches.left"), batch.status === "running" && left ? duration(left) : "–"),
    figure(t("batches.eta"), batch.status === "running" && eta ? moment(eta) : "–"));
}

function outcomeTable(items) {
  return table(t("batches.outcomes"), [
    { title: t("batches.item"), kind: "main", cell: (item) => code(`#${item.index}`) },
    { title: t("field.status"), cell: (item) => badge(item.state) },
    { title: t("field.attempts"), cell: (item) => count(item.attempts) },
    { title: t("batches.answer"), kind: "grow", cell: (item) => item.answer.msg || item.answer.result || JSON.stringify(item.answer) },
  ], items, { keyOf: (item) => item.index });
}

// A chart of the measured rate since the page was opened, and of the rate that was set.
function chart(batch, rate) {
  const drawn = lineChart(rate, t("batches.rateNow"), { goal: batch.rate, format: (value) => t("batches.perSecond", { n: Math.round(value * 10) / 10 }) });
  return drawn && [drawn, h("p", { class: "hint" }, t("batches.chartHint"))];
}

function logList(logs) {
  return h("ul", { class: "logs", tabindex: "0", "aria-label": t("batches.logs") }, logs.map((line) => h("li", { "data-key": line.log_id },
    h("time", { class: "muted", datetime: line.time }, clock(line.time)),
    line.index === undefined || line.index === null ? null : code(`#${line.index}`),
    h("span", { class: line.level === "error" ? "reason" : null }, line.message))));
}

function details(batch, business) {
  return facts([
    [t("batches.id"), copyable(batch.batch_id)],
    [t("batches.business"), [business?.name, " ", copyable(batch.biz_id)]],
    [t("batches.total"), count(batch.total)],
    [t("batches.startIndex"), batch.start_index],
    [t("batches.maxErrors"), batch.max_errors],
    [t("batches.stopReason"), batch.stop_reason],
    [t("field.note"), batch.note],
    [t("batches.pauses"), batch.pause_windows?.map(({ start, end }) => `${start}–${end} UTC`).join(", ")],
    [t("batches.redriveOf"), batch.redrive_of && link(t("type.batch"), `#/batches/${at(batch.redrive_of)}`)],
    [t("queue.why"), (batch.waiting || batch.last_wait_reason) && named("wait", batch.waiting || batch.last_wait_reason)],
    [t("field.created"), moment(batch.create_time)],
    [t("field.started"), batch.start_time && moment(batch.start_time)],
    [t("field.finished"), batch.finish_time && moment(batch.finish_time)],
  ]);
}
