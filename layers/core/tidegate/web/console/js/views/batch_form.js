// Make a batch, change one, and try its first items without counting them.
import { h } from "../dom.js";
import { at, create, get, patch, post } from "../api.js";
import { t } from "../i18n.js";
import { code } from "../parts/basics.js";
import { act, dialog, toast } from "../parts/dialog.js";
import { field, FieldError, form, readJson } from "../parts/form.js";
import { scheduleFields, scheduleOf } from "../parts/schedule.js";
import { table } from "../parts/table.js";

const NUMBERS = ["total", "rate", "max_errors", "start_index", "retries", "retry_delay", "priority", "max_failed", "max_failed_percent", "concurrency", "items_per_call", "item_timeout", "runners", "progress_every_items", "progress_every_percent"];
const TEXTS = ["biz_id", "name", "on_item_failure", "ack", "concurrency_key", "progress_url"];
const DRY_ITEMS = 3;

const number = (name, label, more) => field(name, t(`batches.${label}`), { type: "number", min: 1, ...more });
const onFailure = (value = "stop") => field("on_item_failure", t("batches.onFailure"), { options: [["stop", t("batches.failureStop")], ["skip", t("batches.failureSkip")]], value });
const pauses = (value = "") => field("pause_windows", t("batches.pauses"), { rows: 2, value, hint: t("batches.pausesHint"), placeholder: "08:00-10:30" });

// With `repeat`, what is made is a schedule in any case.
export async function batchDialog(businesses, go, { repeat = false } = {}) {
  const files = await get("v1/files", { limit: 100 }).then(({ items }) => items.filter((file) => file.state === "ready"), () => []);
  const schedule = scheduleFields(repeat ? "cron(0 2 * * ? *)" : "", { label: t("schedules.repeatBatch"), none: repeat ? undefined : t("schedules.onceBatch"), hint: t("schedules.batchHint") });
  const close = dialog(t(repeat ? "schedules.new" : "batches.new"), () => form([
    field("biz_id", t("batches.business"), { options: businesses.map((biz) => [biz.biz_id, biz.name]), required: true }),
    field("name", t("field.name"), { required: true }),
    h("div", { class: "pair" }, number("total", "total", { hint: t("batches.totalHint") }), number("rate", "rate", { min: 0.001, step: "any", value: "10", required: true, hint: t("batches.rateHint") })),
    field("file", t("batches.rowsOf"), { options: [["", t("batches.noFile")], ...files.map((file) => [file.file_id, file.file_path])], hint: t("batches.rowsOfHint") }),
    h("div", { class: "pair" }, number("max_errors", "maxErrors"), number("start_index", "startIndex", { min: 0 })),
    h("div", { class: "pair" },
      onFailure(),
      number("retries", "retries", { max: 100, value: "5" })),
    schedule,
    h("details", null, h("summary", null, t("exports.moreFields")), h("div", null, details())),
  ], t("batches.create"), async (given, once) => {
    const repeated = scheduleOf(given);
    const made = repeated ? await create("v1/batch-schedules", { schedule: repeated, batch: bodyOf(given) }, once) : await create("v1/batches", bodyOf(given), once);
    close();
    toast(t(repeated ? "schedules.saved" : "batches.made"));
    go(repeated ? `batch-schedules/${at(made.schedule_id)}` : `batches/${at(made.batch_id)}`);
  }));
}

function details() {
  return [
    h("div", { class: "pair" }, number("retry_delay", "retryDelay", { min: 0, step: "any" }), number("priority", "priority", { max: 10, hint: t("exports.priorityHint") })),
    h("div", { class: "pair" }, number("max_failed", "maxFailed", { min: 0 }), number("max_failed_percent", "maxFailedPercent", { min: 0, max: 100, step: "any" })),
    h("div", { class: "pair" }, number("concurrency", "concurrency"), number("items_per_call", "itemsPerCall", { max: 100 })),
    h("div", { class: "pair" }, number("runners", "runners", { max: 32, hint: t("batches.runnersHint") }), number("item_timeout", "itemTimeout", { max: 900 })),
    h("div", { class: "pair" },
      field("ack", t("batches.ack"), { options: [["sync", t("batches.ackSync")], ["async", t("batches.ackAsync")]] }),
      field("concurrency_key", t("batches.concurrencyKey"), { hint: t("batches.concurrencyKeyHint") })),
    pauses(),
    field("progress_url", t("batches.progressUrl"), { type: "url", placeholder: "https://", hint: t("batches.progressUrlHint") }),
    h("div", { class: "pair" }, number("progress_every_items", "everyItems"), number("progress_every_percent", "everyPercent", { max: 100, step: "any" })),
    field("job_data", t("batches.jobData"), { rows: 3, class: "mono", hint: "JSON" }),
  ];
}

function bodyOf(given) {
  const body = { job_data: readJson("job_data", given.job_data) };
  for (const name of TEXTS) if (given[name]?.trim()) body[name] = given[name].trim();
  for (const name of NUMBERS) if (given[name]) body[name] = Number(given[name]);
  if (given.file) body.source = { file_id: given.file };
  else if (!body.total) throw new FieldError("total", t("batches.totalHint"));
  const windows = windowsOf(given.pause_windows);
  if (windows.length) body.pause_windows = windows;
  return body;
}

// One a line: 22:00-06:00.
function windowsOf(text) {
  return text.split("\n").map((line) => line.trim()).filter(Boolean).map((line) => {
    const found = /^(\d{1,2}:\d\d)\s*[-–]\s*(\d{1,2}:\d\d)$/.exec(line);
    if (!found) throw new FieldError("pause_windows", t("batches.pausesHint"));
    return { start: found[1].padStart(5, "0"), end: found[2].padStart(5, "0") };
  });
}

export function changeBatchDialog(batch, refresh) {
  const windows = (batch.pause_windows || []).map(({ start, end }) => `${start}-${end}`).join("\n");
  // The data of items that may have been sent already cannot change.
  const open = ["created", "stopped"].includes(batch.status);
  const close = dialog(t("batches.change"), () => form([
    h("div", { class: "pair" }, number("rate", "rate", { min: 0.001, step: "any", value: String(batch.rate), required: true, hint: t("batches.rateHint") }), number("max_errors", "maxErrors", { value: String(batch.max_errors ?? "") })),
    h("div", { class: "pair" },
      onFailure(batch.on_item_failure),
      number("max_failed", "maxFailed", { min: 0, value: String(batch.max_failed ?? "") }), number("max_failed_percent", "maxFailedPercent", { min: 0, max: 100, step: "any", value: String(batch.max_failed_percent ?? "") })),
    pauses(windows),
    open ? field("job_data", t("batches.jobData"), { rows: 3, class: "mono", hint: t("batches.jobDataHint") }) : null,
  ], t("action.save"), async (given) => {
    const body = { rate: Number(given.rate) };
    for (const name of ["max_errors", "max_failed", "max_failed_percent"]) if (given[name]) body[name] = Number(given[name]);
    if (given.on_item_failure !== batch.on_item_failure) body.on_item_failure = given.on_item_failure;
    if (given.pause_windows.trim() !== windows) body.pause_windows = windowsOf(given.pause_windows);
    if (given.job_data?.trim()) body.job_data = readJson("job_data", given.job_data);
    await patch(`v1/batches/${at(batch.batch_id)}`, body);
    toast(t("batches.changed"));
    close();
    refresh();
  }));
}

// What the business answers to the first items: nothing is counted or logged.
export function dryRun(batch) {
  return act(async () => {
    const { items } = await post(`v1/batches/${at(batch.batch_id)}/dry-run`, { items: Math.min(DRY_ITEMS, batch.total || DRY_ITEMS) });
    dialog(t("batches.dryRun"), () => [
      h("p", { class: "muted" }, t("batches.dryRunWhat")),
      table(t("batches.dryRun"), [
        { title: t("batches.item"), kind: "main", cell: (item) => code(`#${item.index}`) },
        { title: t("batches.answer"), kind: "grow", cell: (item) => code(JSON.stringify(item.answer)) },
      ], items, { keyOf: (item) => item.index }),
    ], { wide: true });
  });
}
