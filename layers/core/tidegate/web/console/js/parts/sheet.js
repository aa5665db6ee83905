// The preview of a sheet with merged cells, as Excel will show it.
import { h } from "../dom.js";
import { layOut } from "../header_tree.js";
import { t } from "../i18n.js";

const MOST_ROWS = 12;
const MOST_COLUMNS = 60;

export function sheet({ template, data, title, summary, header, footer }) {
  const above = [["title", title], ["summary", summary], ["header", linesOf(header)]].filter(([, text]) => text);
  const plan = layOut(template, data, above.length + 1);
  const width = Math.max(1, Math.min(plan.width, MOST_COLUMNS));
  if (!plan.width) return h("p", { class: "muted" }, t("exports.previewEmpty"));
  const rows = plan.rows.length ? plan.rows.slice(0, MOST_ROWS) : [{}];
  const last = plan.dataTop + rows.length - 1;
  const grid = new Map();
  above.forEach(([kind, text], index) => put(grid, index + 1, 1, h("td", { class: `sheet-${kind}`, colspan: width }, text)));
  for (const cell of plan.head) putHead(grid, cell, last, width);
  for (const cell of plan.sideHeads) putHead(grid, cell, last, width);
  rows.forEach((row, index) => plan.columns.slice(0, width - plan.side).forEach((leaf, at) => {
    put(grid, plan.dataTop + index, plan.side + at + 1, h("td", { class: "sheet-cell", style: styleOf(leaf.style) }, shown(row[leaf.name])));
  }));
  const lines = Array.from({ length: last }, (_, index) => line(grid, index + 1, width));
  const foot = linesOf(footer);
  if (foot) lines.push(h("tr", null, h("th", { class: "sheet-number", scope: "row" }, last + 1), h("td", { class: "sheet-footer", colspan: width }, foot)));
  const letters = Array.from({ length: width }, (_, index) => h("th", { class: "sheet-letter", scope: "col" }, letter(index + 1)));
  return h("div", { class: "sheet", tabindex: "0", role: "region", "aria-label": t("exports.preview") },
    h("table", null, h("thead", null, h("tr", null, h("td", { class: "sheet-corner" }), letters)), h("tbody", null, lines)),
    plan.rows.length > rows.length && h("p", { class: "muted" }, t("exports.previewMore", { n: plan.rows.length - rows.length })));
}

function put(grid, row, col, cell) {
  if (!grid.has(row)) grid.set(row, []);
  grid.get(row).push([col, cell]);
}

function putHead(grid, cell, last, width) {
  if (cell.row > last || cell.col > width) return;
  const rowspan = Math.min(cell.height, last - cell.row + 1);
  const colspan = Math.min(cell.width, width - cell.col + 1);
  put(grid, cell.row, cell.col, h("td", { class: "sheet-head", rowspan: rowspan > 1 && rowspan, colspan: colspan > 1 && colspan }, cell.title));
}

function line(grid, number, width) {
  const cells = (grid.get(number) || []).sort(([one], [other]) => one - other).map(([, cell]) => cell);
  return h("tr", null, h("th", { class: "sheet-number", scope: "row" }, number), cells.slice(0, width));
}

function linesOf(pairs) {
  if (!pairs) return "";
  if (typeof pairs !== "object") return String(pairs);
  return Object.entries(pairs).map(([name, value]) => `${name}：${shown(value)}`).join(" ".repeat(8));
}

export function styleOf(style) {
  const rules = {};
  if (style?.align) rules["text-align"] = style.align;
  if (style?.bold) rules["font-weight"] = "700";
  if (style?.color) rules.color = colour(style.color);
  if (style?.bg_color) rules["background-color"] = colour(style.bg_color);
  return rules;
}

const colour = (value) => (/^[0-9a-f]{3}([0-9a-f]{3})?$/i.test(value) ? `#${value}` : String(value));
export const shown = (value) => (value === undefined || value === null ? "" : typeof value === "object" ? JSON.stringify(value) : String(value));

export function letter(number) {
  let text = "";
  for (let left = number; left > 0; left = Math.floor((left - 1) / 26)) text = String.fromCharCode(65 + ((left - 1) % 26)) + text;
  return text;
}
