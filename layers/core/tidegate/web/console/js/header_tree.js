// Reads templates like the server (exports/rendering/template_parser.py and header_tree.py): accepts every format of a
// template and returns cells with spans, so that the preview shows what Excel will show.

export class TemplateError extends Error {}

const ROW_HEAD = "_row_head_";

export function readTemplate(raw) {
  if (!raw || (typeof raw === "object" && !Object.keys(raw).length)) return { cols: [], rows: [] };
  const split = !Array.isArray(raw) && typeof raw === "object" && isTree(raw.col ?? raw.row);
  if (!split) return { cols: nodes(raw, "template"), rows: [] };
  return { cols: nodes(raw.col, "template.col"), rows: nodes(raw.row, "template.row") };
}

const isTree = (value) => typeof value === "object" && value !== null;

function nodes(raw, where) {
  if (raw === undefined || raw === null) return [];
  if (!isTree(raw)) throw new TemplateError(where);
  const list = Array.isArray(raw) ? raw : Object.entries(raw).map(([name, title]) => ({ name, title }));
  return list.map((item, index) => node(item, `${where}[${index}]`));
}

function node(raw, where) {
  if (typeof raw === "string") return leaf(raw, raw, 1);
  if (!isTree(raw)) throw new TemplateError(where);
  const name = String(raw.name ?? "");
  const title = String(raw.title ?? "");
  if (!name && !title) throw new TemplateError(where);
  const children = nodes(raw.children, `${where}.children`);
  if (children.length) return { title: title || name, name, children };
  return { ...leaf(title || name, name || title, Number(raw.row_count) || 1), style: raw.style || {} };
}

const leaf = (title, name, rowCount) => ({ title, name, children: [], rowCount, style: {} });

export function leavesOf(tree) {
  return tree.flatMap((item) => (item.children.length ? leavesOf(item.children) : [item]));
}

function depthOf(tree) {
  return tree.reduce((deepest, item) => Math.max(deepest, 1 + depthOf(item.children)), 0);
}

// Cells of the column headings; a leaf above the last level spans down to it.
function placeColumns(tree, top, left) {
  const cells = [];
  place(tree, () => 1, depthOf(tree), top, left, cells);
  return cells;
}

// The same for row headings: a leaf is as high as its rows.
function placeRows(tree, sizes, top, left) {
  const cells = [];
  place(tree, (item) => Math.max(item.rowCount, sizes[item.name] || 0), depthOf(tree), left, top, cells);
  return cells.map((cell) => ({ ...cell, row: cell.col, col: cell.row, height: cell.width, width: cell.height }));
}

function place(tree, size, levels, level, start, into) {
  let used = 0;
  for (const item of tree) {
    const cell = { title: item.title, row: level, col: start + used, height: 1, width: 1, leaf: null };
    into.push(cell);
    if (item.children.length) {
      cell.width = place(item.children, size, levels - 1, level + 1, start + used, into);
    } else {
      Object.assign(cell, { height: levels, width: size(item), leaf: item });
    }
    used += cell.width;
  }
  return used;
}

// Rows from either format; with `{group: rows}`, each row gets the name of its group.
export function flatRows(data) {
  if (Array.isArray(data)) return data.filter(isTree);
  if (!isTree(data)) return [];
  return Object.entries(data).flatMap(([group, rows]) => (Array.isArray(rows) ? rows : []).filter(isTree).map((row) => ({ ...row, [ROW_HEAD]: group })));
}

// The layout of a sheet: heading cells, and rows in their final order.
export function layOut(template, data, top = 1) {
  const given = flatRows(data);
  const keys = [...new Set(given.flatMap((row) => Object.keys(row)))].filter((key) => key !== ROW_HEAD);
  const cols = template.cols.length ? template.cols : keys.map((key) => leaf(key, key, 1));
  const side = depthOf(template.rows);
  const owned = gather(template.rows, given);
  const dataTop = top + depthOf(cols);
  const sizes = Object.fromEntries(owned.map(([name, rows]) => [name, rows.length]));
  const corner = side && cols.length ? [{ title: "", row: top, col: 1, height: depthOf(cols), width: side, leaf: null }] : [];
  return {
    columns: leavesOf(cols),
    side,
    dataTop,
    head: [...corner, ...placeColumns(cols, top, side + 1)],
    sideHeads: placeRows(template.rows, sizes, dataTop, 1),
    rows: side ? owned.flatMap(([, rows]) => rows) : given,
    width: side + leavesOf(cols).length,
  };
}

function gather(rowTree, given) {
  return leavesOf(rowTree).map((item) => {
    const rows = given.filter((row) => String(row[ROW_HEAD]) === item.name);
    const blanks = Math.max(0, item.rowCount - rows.length);
    return [item.name, [...rows, ...Array.from({ length: blanks }, () => ({}))]];
  });
}
