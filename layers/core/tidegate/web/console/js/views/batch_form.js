// The forms to create and change a batch, and the dry run.
import { h } from "../dom.js";
import { at, create, get, patch, post } from "../api.js";
import { t } from "../i18n.js";
import { code } from "../parts/basics.js";
import { act, dialog, saved, toast } from "../parts/dialog.js";
import { field, FieldError, form, readJson, textLines } from "../parts/form.js";
import { remarkField } from "../parts/note.js";
import { scheduleFields, timingOf } from "../parts/schedule.js";
import { table } from "../parts/table.js";

const NUMBERS = ["total", "rate", "max_errors", "start_index", "retries", "retry_delay", "priority", "max_failed", "max_failed_percent", "concurrency", "items_per_call", "item_timeout", "runners", "progress_every_items", "progress_every_percent"];
const TEXTS = ["biz_id", "name", "on_item_failure", "ack", "concurrency_key", "progress_url", "note"];
// Optional fields without a default.
const OPTIONAL = ["total", "job_data", "max_errors", "max_failed", "max_failed_percent", "concurrency", "concurrency_key", "progress_url", "note", "progress_every_items", "progress_every_percent"];
const DRY_ITEMS = 3;

const number = (name, label, known, more) => field(name, t(`batches.${label}`), { type: "number", min: 1, ...more, value: String(known[name] ?? "") });
const onFailure = (value = "stop") => field("on_item_failure", t("batches.onFailure"), { options: [["stop", t("batches.failureStop")], ["skip", t("batches.failureSkip")]], value });
const pauses = (value = "") => field("pause_windows", t("batches.pauses"), { rows: 2, value, hint: t("batches.pausesHint"), placeholder: "08:00-10:30" });

const pausesText = ({ pause_windows: windows }) => (windows || []).map(({ start, end }) => `${start}-${end}`).join("\n");

// With `repeat`, the form always creates a schedule.
export async function batchDialog(businesses, go, { repeat = false } = {}) {
  const files = await readyFiles();
  const schedule = scheduleFields({ schedule: repeat ? "cron(0 2 * * ? *)" : "" }, { label: t("schedules.repeatBatch"), none: repeat ? undefined : t("schedules.onceBatch"), hint: t("schedules.batchHint") });
  const close = dialog(t(repeat ? "schedules.new" : "batches.new"), () => form([
    ...batchFields(businesses, files, { rate: 10, retries: 5 }),
    schedule,
    moreFields({}),
  ], t("action.create"), async (given, once) => {
    const timing = timingOf(given);
    const repeated = Boolean(timing.schedule);
    const made = repeated ? await create("v1/batch-schedules", { ...timing, batch: bodyOf(given) }, once) : await create("v1/batches", bodyOf(given), once);
    close();
    toast(t(repeated ? "schedules.saved" : "batches.made"));
    go(repeated ? `batch-schedules/${at(made.schedule_id)}` : `batches/${at(made.batch_id)}`);
  }));
}

const readyFiles = () => get("v1/files", { limit: 100 }).then(({ items }) => items.filter((file) => file.state === "ready"), () => []);

// The form for a schedule and its batch. An emptied field is sent as null, which removes it.
export async function changeScheduleDialog(path, refresh) {
  const [record, businesses, files] = await Promise.all([get(path), get("v1/biz", { limit: 100 }), readyFiles()]);
  const known = record.batch;
  const close = dialog(t("schedules.change"), () => form([
    scheduleFields(record),
    ...batchFields(withKnown(businesses.items, "biz_id", known.biz_id), withKnown(files, "file_id", known.source?.file_id), known),
    moreFields(known),
  ], t("action.save"), async (given) => {
    await patch(path, { ...timingOf(given), batch: changesOf({ pause_windows: [], ...bodyOf(given) }, known), revision: record.revision });
    saved(close, refresh);
  }));
}

function changesOf(wanted, known) {
  const changes = {};
  for (const name of [...TEXTS, ...NUMBERS, "job_data", "pause_windows", "report"]) {
    const given = wanted[name] !== undefined;
    if (given ? JSON.stringify(wanted[name]) !== JSON.stringify(known[name]) : name in known && OPTIONAL.includes(name)) changes[name] = given ? wanted[name] : null;
  }
  if (["file_id", "encoding", "delimiter", "s3_prefix", "s3_inventory"].some((name) => wanted.source?.[name] !== known.source?.[name])) changes.source = wanted.source ?? null;
  return changes;
}

// Keeps the current value as an option, even if it is not among the first hundred.
function withKnown(items, key, value) {
  return !value || items.some((item) => item[key] === value) ? items : [...items, { [key]: value, name: value, file_path: value }];
}

function batchFields(businesses, files, known) {
  return [
    field("biz_id", t("batches.business"), { options: businesses.map((biz) => [biz.biz_id, biz.name]), required: true, value: known.biz_id || businesses[0]?.biz_id || "" }),
    field("name", t("field.name"), { required: true, value: known.name || "" }),
    h("div", { class: "pair" }, number("total", "total", known, { hint: t("batches.totalHint") }), number("rate", "rate", known, { min: 0.001, step: "any", required: true, hint: t("batches.rateHint") })),
    field("file", t("batches.rowsOf"), { options: [["", t("batches.noFile")], ...files.map((file) => [file.file_id, file.file_path])], value: known.source?.file_id || "", hint: t("batches.rowsOfHint") }),
    h("div", { class: "pair" },
      field("encoding", t("batches.encoding"), { options: ["", "utf-8", "gb18030", "big5", "shift_jis", "windows-1252", "utf-16"].map((name) => [name, name || t("batches.encodingDefault")]), value: known.source?.encoding || "" }),
      field("delimiter", t("batches.delimiter"), { options: [["", t("batches.delimiterDefault")], [",", ","], [";", ";"], ["\t", "Tab"], ["|", "|"]], value: known.source?.delimiter || "" })),
    h("div", { class: "pair" },
      field("s3_prefix", t("batches.s3Prefix"), { placeholder: "s3://bucket/prefix", hint: t("batches.s3Hint"), value: known.source?.s3_prefix || "" }),
      field("s3_inventory", t("batches.s3Inventory"), { placeholder: "s3://bucket/…/manifest.json", value: known.source?.s3_inventory || "" })),
    h("div", { class: "pair" }, number("max_errors", "maxErrors", known), number("start_index", "startIndex", known, { min: 0 })),
    h("div", { class: "pair" },
      onFailure(known.on_item_failure),
      number("retries", "retries", known, { max: 100 })),
  ];
}

function moreFields(known) {
  return h("details", null, h("summary", null, t("exports.moreFields")), h("div", null,
    h("div", { class: "pair" }, number("retry_delay", "retryDelay", known, { min: 0, step: "any" }), number("priority", "priority", known, { max: 10, hint: t("exports.priorityHint") })),
    h("div", { class: "pair" }, number("max_failed", "maxFailed", known, { min: 0 }), number("max_failed_percent", "maxFailedPercent", known, { min: 0, max: 100, step: "any" })),
    h("div", { class: "pair" }, number("concurrency", "concurrency", known), number("items_per_call", "itemsPerCall", known, { max: 100 })),
    h("div", { class: "pair" }, number("runners", "runners", known, { max: 32, hint: t("batches.runnersHint") }), number("item_timeout", "itemTimeout", known, { max: 900 })),
    field("report", t("batches.report"), { type: "checkbox", value: known.report, hint: t("batches.reportHint") }),
    h("div", { class: "pair" },
      field("ack", t("batches.ack"), { options: [["sync", t("batches.ackSync")], ["async", t("batches.ackAsync")]], value: known.ack || "sync" }),
      field("concurrency_key", t("batches.concurrencyKey"), { hint: t("batches.concurrencyKeyHint"), value: known.concurrency_key || "" })),
    pauses(pausesText(known)),
    field("progress_url", t("batches.progressUrl"), { type: "url", placeholder: "https://", hint: t("batches.progressUrlHint"), value: known.progress_url || "" }),
    h("div", { class: "pair" }, number("progress_every_items", "everyItems", known), number("progress_every_percent", "everyPercent", known, { max: 100, step: "any" })),
    remarkField("note", known.note),
    field("job_data", t("batches.jobData"), { rows: 3, class: "mono", hint: "JSON", value: known.job_data === undefined ? "" : JSON.stringify(known.job_data) })));
}

function bodyOf(given) {
  const body = { job_data: readJson("job_data", given.job_data) };
  for (const name of TEXTS) if (given[name]?.trim()) body[name] = given[name].trim();
  for (const name of NUMBERS) if (given[name]) body[name] = Number(given[name]);
  const source = sourceOf(given);
  if (source) body.source = source;
  else if (!body.total && !Array.isArray(body.job_data)) throw new FieldError("total", t("batches.totalHint"));
  const windows = windowsOf(given.pause_windows);
  if (windows.length) body.pause_windows = windows;
  body.report = Boolean(given.report);
  return body;
}

function sourceOf(given) {
  const places = ["s3_prefix", "s3_inventory"].filter((name) => given[name]?.trim());
  if (places.length + Boolean(given.file) > 1) throw new FieldError(places[0], t("batches.oneSource"));
  if (places.length) return { [places[0]]: given[places[0]].trim() };
  return given.file && { file_id: given.file, ...(given.encoding && { encoding: given.encoding }), ...(given.delimiter && { delimiter: given.delimiter }) };
}

// One per line, such as 22:00-06:00.
function windowsOf(text) {
  return textLines(text).map((line) => {
    const found = /^(\d{1,2}:\d\d)\s*[-–]\s*(\d{1,2}:\d\d)$/.exec(line);
    if (!found) throw new FieldError("pause_windows", t("batches.pausesHint"));
    return { start: found[1].padStart(5, "0"), end: found[2].padStart(5, "0") };
  });
}

export function changeBatchDialog(batch, refresh) {
  const windows = pausesText(batch);
  // The data cannot be changed after items may have been sent.
  const open = ["created", "stopped"].includes(batch.status);
  const finished = batch.status === "finished";
  const close = dialog(t("batches.change"), () => form(finished ? [remarkField("note", batch.note)] : [
    h("div", { class: "pair" }, number("rate", "rate", batch, { min: 0.001, step: "any", required: true, hint: t("batches.rateHint") }), number("max_errors", "maxErrors", batch)),
    h("div", { class: "pair" },
      onFailure(batch.on_item_failure),
      number("max_failed", "maxFailed", batch, { min: 0 }), number("max_failed_percent", "maxFailedPercent", batch, { min: 0, max: 100, step: "any" })),
    h("div", { class: "pair" }, number("concurrency", "concurrency", batch), number("retries", "retries", batch, { max: 100 })),
    h("div", { class: "pair" }, number("retry_delay", "retryDelay", batch, { min: 0, step: "any" }), number("item_timeout", "itemTimeout", batch, { max: 900 })),
    pauses(windows),
    remarkField("note", batch.note),
    open ? field("job_data", t("batches.jobData"), { rows: 3, class: "mono", hint: t("batches.jobDataHint") }) : null,
  ], t("action.save"), async (given) => {
    const body = finished ? {} : { rate: Number(given.rate) };
    if (given.note.trim() !== (batch.note || "")) body.note = given.note.trim() || null;
    for (const name of ["max_errors", "max_failed", "max_failed_percent", "concurrency", "retries", "retry_delay", "item_timeout"]) if (!finished && given[name] && Number(given[name]) !== batch[name]) body[name] = Number(given[name]);
    if (!finished && given.on_item_failure !== batch.on_item_failure) body.on_item_failure = given.on_item_failure;
    if (!finished && given.pause_windows.trim() !== windows) body.pause_windows = windowsOf(given.pause_windows);
    if (given.job_data?.trim()) body.job_data = readJson("job_data", given.job_data);
    await patch(`v1/batches/${at(batch.batch_id)}`, body);
    toast(t("batches.changed"));
    close();
    refresh();
  }));
}

// The dry run: what the business answers to the first items.
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
