// The form for an export, with a live preview of the sheet.
import { draw, h } from "../dom.js";
import { at, create } from "../api.js";
import { flatRows, readTemplate, TemplateError } from "../header_tree.js";
import { language, t } from "../i18n.js";
import { button, card, crumbs, link, pageHead } from "../parts/basics.js";
import { ColumnsEditor } from "../parts/columns_editor.js";
import { act, toast } from "../parts/dialog.js";
import { field, form, readJson } from "../parts/form.js";
import { scheduleFields, timingOf } from "../parts/schedule.js";
import { sheet } from "../parts/sheet.js";
import { advancedFields, bodyOf, fileFields, JSON_FIELDS } from "./export_fields.js";
import { ExportFill, fillTable } from "./export_fill.js";
import { pretty, samples } from "./export_samples.js";
import { DirectSource } from "./export_source.js";
import { EMPTY, ExportTables } from "./export_tables.js";
import { TYPE_NAMES } from "./exports.js";

export function newExportSchedule(root, given) {
  return exportForm(root, { ...given, repeat: true });
}

// With `repeat`, the form always creates a schedule.
export function exportForm(root, { go, repeat = false }) {
  const preview = h("div", { class: "preview", "aria-live": "polite" });
  const editor = new ColumnsEditor((template) => {
    element.elements.template.value = template.length || template.col ? pretty(template, 58) : "";
    redraw();
  });
  const tables = new ExportTables((table) => fill({ ...EMPTY, ...table }), () => Object.fromEntries(new FormData(element)));
  const direct = new DirectSource();
  const template = new ExportFill(editor, () => tables.at, () => redraw());
  const schedule = scheduleFields({ schedule: repeat ? "cron(0 2 * * ? *)" : "" }, {
    label: t("schedules.repeatExport"), none: repeat ? undefined : t("schedules.once"), hint: t("schedules.exportHint", { date: "{date}", time: "{time}", from: "{from}", to: "{to}" }),
    onchange: (chosen) => draw(element.querySelector("button[type=submit]"), t(chosen ? "schedules.save" : "exports.send")),
  });
  const element = form(fields({ editor, tables, direct, schedule, template }, () => pull(element, editor, redraw)), t(repeat ? "schedules.save" : "exports.send"), (given, once) => send(go, given, tables, once));
  const redraw = () => {
    const given = { sample: element.dataset.sample, ...Object.fromEntries(new FormData(element)) };
    template.root.hidden = given.type !== "excel";
    if (!template.asked) template.show([]);
    show(preview, given, template.asked && !template.root.hidden && ((parts) => filledSheets(template, tables, given, parts)));
  };
  element.addEventListener("input", (event) => {
    if (event.target.name === "template") loadTemplate(editor, element);
    if (event.target.name === "source_data") readKeys(editor, element);
    redraw();
  });
  const fill = (sample) => {
    for (const [name, value] of Object.entries(sample)) element.elements[name].value = typeof value === "string" ? value : pretty(value, name === "template" ? 58 : 110);
    direct.turn(element.elements.source_kind.value);
    readKeys(editor, element);
    loadTemplate(editor, element);
    redraw();
  };
  const examples = samples(language());
  draw(root,
    crumbs(link(t("nav.exports"), "#/exports"), repeat && link(t("schedules.title"), "#/export-schedules")),
    pageHead(t(repeat ? "schedules.new" : "exports.new"), t(repeat ? "schedules.formLead" : "exports.newLead"), examples.map(([label, sample]) => button(label, () => fill(sample), { kind: "small" }))),
    h("div", { class: "split" },
      card(t("exports.what"), {}, element),
      h("div", { class: "sticky" }, card(t("exports.preview"), {}, preview, h("p", { class: "hint" }, t("exports.previewHint"))))));
  fill(examples[0][1]);
  return { stop() {} };
}

async function send(go, given, tables, once) {
  const timing = timingOf(given);
  const body = tables.several ? tables.body(given) : bodyOf(given);
  if (timing.schedule) {
    const order = { ...body, ...timing };
    const made = tables.several ? await create("v1/export-schedules/multiple", order, once) : await create("v1/export-schedules", order, once);
    toast(t("schedules.saved"));
    return go(`export-schedules/${at(made.schedule_id)}`);
  }
  const made = tables.several ? await create("v1/task/multiple", body, once) : await create("v1/task", body, once);
  toast(t("exports.sent"));
  return go(`exports/${at(made.task_id)}`);
}

// Shows the typed JSON in the columns editor as soon as it can be parsed.
function loadTemplate(editor, element) {
  try {
    editor.load(readJson("template", element.elements.template.value, { plain: true }));
  } catch {
    // The preview shows what is wrong with it.
  }
}

function readKeys(editor, element) {
  try {
    const rows = flatRows(readJson("source_data", element.elements.source_data.value));
    editor.setKeys([...new Set(rows.slice(0, 50).flatMap((row) => Object.keys(row)))].filter((key) => !key.startsWith("_")));
  } catch {
    // The preview shows what is wrong with them.
  }
}

// Puts the first rows of the source into the rows field, so that the preview shows real data.
async function pull(element, editor, redraw) {
  const { rows, total, answered } = await create("v1/task/sample", { source_url: element.elements.source_url.value.trim() });
  editor.setKeys([...new Set(rows.flatMap((row) => Object.keys(row)))]);
  if (answered.template) element.elements.template.value = pretty(answered.template, 58);
  if (answered.template) loadTemplate(editor, element);
  else if (!editor.nodes.length || !element.elements.source_data.value.trim() || element.dataset.sample) editor.fromKeys();
  element.elements.source_data.value = "";
  element.dataset.sample = JSON.stringify(rows);
  redraw();
  toast(t("exports.pulled", { n: rows.length, total: total ?? "?" }));
}

function fields({ editor, tables, direct, schedule, template }, pullSample) {
  return [
    h("div", { class: "pair" },
      field("name", t("field.name"), { required: true, minlength: 2, maxlength: 60 }),
      field("type", t("field.type"), { options: Object.entries(TYPE_NAMES), value: "excel" })),
    tables.root,
    template.root,
    h("fieldset", null, h("legend", null, t("exports.columns")), editor.root),
    h("details", null, h("summary", null, t("exports.asJson")), h("div", null, field("template", t("exports.template"), { rows: 9, hint: t("exports.templateHint"), class: "mono" }))),
    field("source_data", t("exports.data"), { rows: 6, hint: t("exports.dataHint"), class: "mono" }),
    field("source_url", t("exports.url"), { type: "url", hint: t("exports.urlHint"), placeholder: "https://" }),
    h("div", { class: "action-row" }, button(t("exports.pull"), () => act(pullSample), { kind: "small", key: "pull" })),
    h("div", { class: "pair" }, field("title", t("exports.title")), field("summary", t("exports.summary"))),
    schedule,
    h("details", null, h("summary", null, t("exports.advanced")), h("div", null, advancedFields(direct))),
    h("details", null, h("summary", null, t("exports.moreFields")), h("div", null,
      field("sheet_name", t("exports.sheetName"), { maxlength: 31, hint: t("exports.sheetNameHint") }),
      h("div", { class: "pair" }, field("header", t("exports.header"), { hint: t("exports.pairsHint") }), field("footer", t("exports.footer"), { hint: t("exports.pairsHint") })),
      h("div", { class: "pair" }, field("header_align", t("exports.headerAlign"), { options: aligns(), value: "" }), field("footer_align", t("exports.footerAlign"), { options: aligns(), value: "" })),
      h("div", { class: "pair" }, field("file_name", t("exports.fileName"), { maxlength: 120 }), number("priority", { min: 1, max: 10, hint: t("exports.priorityHint") })),
      h("div", { class: "pair" }, number("step", { min: 100, max: 5000 }), number("rows_per_file", { min: 1 })),
      fileFields(),
      h("div", { class: "pair" }, number("default_width", { min: 1 }), number("default_height", { min: 1 })),
      h("div", { class: "pair" }, number("max_exec_time", { min: 1 }), field("operator_id", t("exports.operator"))),
      h("div", { class: "pair" }, number("merchant_type", { min: 0, max: 3 }), number("merchant_id", { min: 0 })),
      field("callback", t("field.callback"), { type: "url", hint: t("field.callbackHint"), placeholder: "https://" }))),
  ];
}

const aligns = () => [["", t("exports.alignDefault")], ["left", t("exports.left")], ["center", t("exports.center")], ["right", t("exports.right")]];
const number = (name, more) => field(name, t(`exports.${name}`), { type: "number", ...more });

// The sheets of a chosen template with what was typed: values of their own, then labels, then title and summary.
function filledSheets(template, tables, given, { header, footer, title, summary }) {
  const all = tables.kept.map((table, number) => fillTable(number === tables.at ? { ...given, sample: given.source_url && given.sample } : table));
  template.show(all);
  return template.preview(all, { title, summary, ...asPairs(footer), ...asPairs(header) });
}

const asPairs = (texts) => (texts && typeof texts === "object" ? texts : {});

function show(preview, given, filled) {
  try {
    const read = Object.fromEntries(JSON_FIELDS.map((name) => [name, readJson(name, given[name], { plain: name === "template" })]));
    const parts = { ...read, title: given.title, summary: given.summary, data: read.source_data ?? (given.source_url && given.sample ? JSON.parse(given.sample) : undefined), template: readTemplate(read.template) };
    draw(preview, given.type !== "excel" && h("p", { class: "notice" }, t("exports.csvPlain")), filled ? filled(parts) : sheet(parts));
  } catch (error) {
    const fault = error instanceof TemplateError ? t("exports.badNode", { where: error.message }) : error.message;
    draw(preview, h("p", { class: "notice warn" }, fault));
  }
}
