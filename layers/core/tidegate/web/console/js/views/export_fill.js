// A workbook of the library that an export fills: chosen or dropped here, with its placeholders and what they take.
import { draw, h } from "../dom.js";
import { get } from "../api.js";
import { flatRows, leavesOf, readTemplate } from "../header_tree.js";
import { t } from "../i18n.js";
import { icon } from "../parts/basics.js";
import { act, toast } from "../parts/dialog.js";
import { field, readJson } from "../parts/form.js";
import { letter, shown, styleOf } from "../parts/sheet.js";
import { store } from "./upload.js";

const PLACE = { biz_id: 1, app_id: 1, folder: "/templates/" };
const VALUE = "value:";
const MOST_ROWS = 12;
// As the server reads them (sheets/fill_template.py).
const MARK = /\\([{}])|\{([^{}"':;,=\\\n]{1,200})\}/g;

export class ExportFill {
  // `editor` edits the columns of the current table, `number` returns which one that is, `changed` redraws the preview.
  constructor(editor, number, changed) {
    Object.assign(this, { editor, number, changed, asked: null, tables: [] });
    const choice = field("fill", t("exports.fill"), { options: [["", t("exports.fillNone")]], hint: t("exports.fillHint", { value: "{customer}", column: "{.amount}" }), onchange: () => act(() => this.turn()) });
    this.select = choice.querySelector("select");
    const picker = h("input", { type: "file", accept: ".xlsx,.xltx", class: "visually-hidden", id: "pick-template", onchange: (event) => this.upload(event.target) });
    const zone = h("label", { class: "drop slim", for: "pick-template" }, icon("upload"), h("span", null, t("exports.fillDrop")));
    this.values = h("div", { class: "pairs" });
    this.lists = h("div", { class: "stack" });
    this.root = h("fieldset", { "data-key": "fill" }, h("div", { class: "stack" }, choice, picker, zone, this.values, this.lists));
    const over = (is) => (event) => { event.preventDefault(); zone.classList.toggle("over", is); };
    for (const type of ["dragenter", "dragover"]) zone.addEventListener(type, over(true));
    zone.addEventListener("dragleave", over(false));
    zone.addEventListener("drop", (event) => { over(false)(event); this.upload({ files: event.dataTransfer.files }); });
    get("v1/files", { limit: 100 }).then(({ items }) => items.filter((file) => file.state === "ready" && /\.xl[st]x$/i.test(file.file_path)).forEach((file) => this.offer(file)), () => {});
  }

  offer(file) { this.select.append(h("option", { value: file.file_id }, file.file_path)); }

  upload(picked) {
    const [file] = picked.files;
    if (file) act(async () => {
      const record = await store(file, PLACE, () => {});
      this.offer(record);
      this.select.value = record.file_id;
      toast(t("files.uploaded", { name: file.name }));
      await this.turn();
    });
    picked.value = "";
  }

  // Asks what the chosen template needs; an answer that comes after another choice is dropped.
  async turn() {
    const chosen = this.select.value;
    this.asked = null;
    try {
      const asked = chosen ? await get("v1/task/placeholders", { file_id: chosen }) : null;
      if (this.select.value === chosen) this.asked = asked;
    } finally {
      draw(this.values, (this.asked?.values || []).map((name) => h("div", { "data-key": name }, field(VALUE + name, `{${name}}`, { oninput: () => this.changed() }))));
      this.changed();
    }
  }

  // Shows the columns that the template takes from each table, and what gives them.
  show(tables) {
    this.tables = tables;
    draw(this.lists, (this.asked?.lists || []).map((list) => {
      const number = tableOf(list.name, tables);
      const label = number < 0 ? t("exports.fillNoTable", { name: list.name }) : t("exports.fillColumns", { n: number + 1, sheet: list.sheet, row: list.row });
      return h("div", { "data-key": `list-${list.name}`, class: "fill-list" },
        h("p", { class: number < 0 ? "notice warn" : "strong" }, label),
        number === this.number() && list.columns.map((column) => this.column(list.name, column, tables[number])));
    }));
  }

  column(list, column, table) {
    const name = `{${list}.${column}}`;
    const known = table.keys.includes(column);
    const given = known ? column : table.titles.get(column) || "";
    return h("label", { class: "fill-column", "data-key": `${name}-${known}-${given}` }, h("code", null, name),
      h("input", { value: given, list: this.editor.listId, readonly: known, placeholder: t("exports.columnField"), "aria-label": t("exports.fillFrom", { name }), onchange: (event) => this.editor.assign(column, event.target.value.trim()) }));
  }

  // The first rows of each sheet as they will be.
  preview(tables, texts) {
    const values = { ...texts, ...typed(this.values) };
    return this.asked.sheets.filter((sketch) => sketch.cells.length).map((sketch) => sheetOf(sketch, this.asked.lists.filter((list) => list.sheet === sketch.name), tables, values));
  }
}

const typed = (root) => Object.fromEntries([...root.querySelectorAll("input")].filter((input) => input.value).map((input) => [input.name.slice(VALUE.length), input.value]));

// The field `fill` of a request from the values of the form.
export function fillOf(given) {
  if (!given.fill || given.type !== "excel") return undefined;
  const values = Object.fromEntries(Object.entries(given).filter(([name, value]) => name.startsWith(VALUE) && value).map(([name, value]) => [name.slice(VALUE.length), value]));
  return { file_id: given.fill, ...(Object.keys(values).length ? { values } : {}) };
}

// What a template takes from a table whose fields were typed: its rows, their keys, and the keys by title.
export function fillTable({ title, source_data, template, sample }) {
  const rows = flatRows(readJson("source_data", source_data) ?? (sample ? JSON.parse(sample) : []));
  const titles = new Map(leavesOf(readTemplate(readJson("template", template, { plain: true })).cols).map((leaf) => [leaf.title, leaf.name]));
  return { title: (title || "").trim(), rows, titles, keys: [...new Set(rows.slice(0, 50).flatMap((row) => Object.keys(row)))] };
}

// By its number, else by its title; `{.name}` is of the first one.
function tableOf(name, tables) {
  if (!name) return 0;
  if (/^[1-9]\d*$/.test(name) && Number(name) <= tables.length) return Number(name) - 1;
  return tables.findIndex((table) => table.title === name);
}

function sheetOf(sketch, lists, tables, values) {
  const width = Math.max(...sketch.cells.map((cell) => cell.column));
  const height = Math.max(...sketch.cells.map((cell) => cell.row), ...lists.map((list) => list.last_row));
  const cells = new Map(sketch.cells.map((cell) => [`${cell.row}:${cell.column}`, cell]));
  const copies = [];
  let left = 0;
  for (let row = 1; row <= height;) {
    const list = lists.find((each) => each.row <= row && row <= each.last_row);
    const table = list && tables[tableOf(list.name, tables)];
    const rows = list ? (table?.rows.length ? table.rows : [undefined]) : [{}];
    const last = list ? list.last_row : row;
    left += Math.max(0, rows.length - MOST_ROWS);
    for (const data of rows.slice(0, MOST_ROWS)) for (let each = row; each <= last; each += 1) copies.push({ row: each, list, table, data });
    row = last + 1;
  }
  const hidden = new Set();
  const spans = merged(sketch.merges, copies, hidden);
  const lines = copies.map(({ row, list, table, data }, number) => h("tr", null,
    h("th", { class: "sheet-number", scope: "row" }, number + 1),
    Array.from({ length: width }, (_, index) => index + 1).filter((column) => !hidden.has(`${number}:${column}`)).map((column) => {
      const cell = cells.get(`${row}:${column}`);
      return h("td", { class: "sheet-cell", ...spans.get(`${number}:${column}`), style: styleOf(cell) }, cell && filled(cell.text, list, table, data, values));
    })));
  const letters = Array.from({ length: width }, (_, index) => h("th", { class: "sheet-letter", scope: "col" }, letter(index + 1)));
  return h("div", { class: "stack", "data-key": `sketch-${sketch.name}` }, h("p", { class: "strong" }, sketch.name),
    h("div", { class: "sheet", tabindex: "0", role: "region", "aria-label": sketch.name },
      h("table", null, h("thead", null, h("tr", null, h("td", { class: "sheet-corner" }), letters)), h("tbody", null, lines)),
      left > 0 && h("p", { class: "muted" }, t("exports.previewMore", { n: left }))));
}

// The spans of merged areas by the place of their first cell, in every repetition; `hidden` gets the other cells.
function merged(merges, copies, hidden) {
  const spans = new Map();
  for (const area of merges) {
    const [, from, top, to, bottom] = /^([A-Z]+)(\d+):([A-Z]+)(\d+)$/.exec(area) || [];
    if (!from) continue;
    const [first, last, start, end] = [column(from), column(to), Number(top), Number(bottom)];
    copies.forEach((copy, number) => {
      if (copy.row !== start) return;
      let rows = 1;
      while (copies[number + rows] && copies[number + rows].row <= end && copies[number + rows].row >= start && !(copy.list && copies[number + rows].data !== copy.data)) rows += 1;
      spans.set(`${number}:${first}`, { rowspan: rows > 1 && rows, colspan: last > first && last - first + 1 });
      for (let row = 0; row < rows; row += 1) for (let each = first; each <= last; each += 1) if (row || each > first) hidden.add(`${number + row}:${each}`);
    });
  }
  return spans;
}

const column = (letters) => [...letters].reduce((sum, each) => sum * 26 + each.charCodeAt(0) - 64, 0);

// A placeholder that nothing was given for is marked; the finished file has nothing there.
function filled(text, list, table, data, values) {
  if (text.startsWith("=")) return h("span", { class: "muted", title: text }, "ƒ");
  const parts = [];
  let from = 0;
  for (const match of text.matchAll(MARK)) {
    parts.push(text.slice(from, match.index));
    from = match.index + match[0].length;
    const [before, ...after] = (match[2] || "").split(".");
    const name = (after.length ? after.join(".") : before).trim();
    if (match[1] || !name) { parts.push(match[1] || match[0]); continue; }
    // Rows that are not known yet are not missing.
    const key = table && (table.keys.includes(name) ? name : table.titles.get(name));
    const value = after.length ? data?.[key] : values[name];
    const missing = after.length ? !table?.keys.includes(key) : value === undefined || value === null || value === "";
    parts.push(missing ? h("mark", null, match[0]) : shown(value));
  }
  return [...parts, text.slice(from)];
}
