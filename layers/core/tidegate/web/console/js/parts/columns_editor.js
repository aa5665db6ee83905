// An editor for the columns of a template: names, types, groups by drag and drop.
import { draw, h } from "../dom.js";
import { t } from "../i18n.js";
import { button, icon } from "./basics.js";

const TYPES = ["", "string", "number", "integer", "decimal", "date", "datetime", "currency", "percent", "boolean", "link"];
let lastId = 0;

export class ColumnsEditor {
  constructor(changed) {
    this.changed = changed;
    this.nodes = [];
    this.rows = null;
    this.keys = [];
    this.dragged = null;
    this.listId = `columns-${(lastId += 1)}`;
    this.root = h("div", { class: "columns-editor" });
  }

  // Accepts every format of a template; row headings are kept unchanged.
  load(template) {
    const split = template && !Array.isArray(template) && (isTree(template.col) || isTree(template.row));
    this.rows = split ? template.row : null;
    this.nodes = nodesOf(split ? template.col : template);
    this.show();
  }

  setKeys(keys) {
    this.keys = keys;
    this.show();
  }

  template() {
    const cols = this.nodes.map(templateNode);
    return this.rows ? { col: cols, row: this.rows } : cols;
  }

  fromKeys() {
    this.nodes = this.keys.map((key) => ({ title: key, name: key, children: null, style: {} }));
    this.notify();
  }

  // Gives the column with this title to a key; there is a new one if none has the title.
  assign(title, name) {
    const leaf = leavesOf(this.nodes).find((node) => node.title === title);
    if (leaf) leaf.name = name;
    else this.nodes.push({ title, name, children: null, style: {} });
    this.notify();
  }

  notify() {
    this.show();
    this.changed(this.template());
  }

  show() {
    const made = [];
    const walk = (list, depth) => list.forEach((node, index) => {
      made.push(this.row(node, list, index, depth));
      if (node.children) walk(node.children, depth + 1);
    });
    walk(this.nodes, 0);
    draw(this.root,
      h("datalist", { id: this.listId }, this.keys.map((key) => h("option", { value: key }))),
      made,
      h("p", { class: "hint" }, this.rows ? t("exports.editorSides") : t("exports.editorHint")),
      h("div", { class: "action-row" },
        button(t("exports.addColumn"), () => { this.nodes.push({ title: `${t("exports.newColumn")} ${this.nodes.length + 1}`, name: "", children: null, style: {} }); this.notify(); }, { kind: "small", key: "add" }),
        button(t("exports.addGroup"), () => { this.nodes.push({ title: t("exports.newGroup"), name: "", children: [{ title: t("exports.newColumn"), name: "", children: null, style: {} }], style: {} }); this.notify(); }, { kind: "small", key: "group" }),
        this.keys.length ? button(t("exports.fromRows"), () => this.fromKeys(), { kind: "small", key: "keys" }) : null));
  }

  row(node, list, index, depth) {
    node.id ??= `column-${(lastId += 1)}`;
    const set = (change) => (event) => { change(event.target.value); this.changed(this.template()); };
    const zone = (event) => {
      const box = event.currentTarget.getBoundingClientRect();
      const share = (event.clientY - box.top) / box.height;
      return share < 0.25 ? "before" : share > 0.75 ? "after" : "into";
    };
    const clear = (place) => place.classList.remove("drop-into", "drop-before", "drop-after");
    return h("div", {
      class: node.children ? "column-row group" : "column-row", "data-key": node.id, style: { "--depth": String(depth) },
      ondragover: (event) => { if (this.dragged && this.dragged !== node) { event.preventDefault(); clear(event.currentTarget); event.currentTarget.classList.add(`drop-${zone(event)}`); } },
      ondragleave: (event) => clear(event.currentTarget),
      ondrop: (event) => { event.preventDefault(); clear(event.currentTarget); this.drop(node, zone(event)); },
    },
    h("button", { type: "button", class: "grip", draggable: "true", "aria-label": t("exports.drag", { name: node.title || node.name }), ondragstart: (event) => { this.dragged = node; event.dataTransfer.setData("text/plain", node.title); event.dataTransfer.effectAllowed = "move"; }, ondragend: () => { this.dragged = null; }, onkeydown: (event) => this.onKey(event, node, list, index) }, icon("grip")),
    h("input", { value: node.title, "aria-label": t("exports.columnTitle"), placeholder: t("exports.columnTitle"), oninput: set((value) => { node.title = value; }) }),
    node.children ? null : [
      h("input", { value: node.name, list: this.listId, "aria-label": t("exports.columnField"), placeholder: t("exports.columnField"), oninput: set((value) => { node.name = value; }) }),
      h("select", { "aria-label": t("exports.typeLabel", { name: node.title }), onchange: set((value) => { node.style = { ...node.style, type: value || undefined }; }) }, TYPES.map((type) => h("option", { value: type, selected: (node.style.type || "") === type }, t(`exports.type_${type}`)))),
      h("input", { value: node.style.format || "", "aria-label": t("exports.columnFormat"), placeholder: "0.00", oninput: set((value) => { node.style = { ...node.style, format: value || undefined }; }) }),
    ],
    h("div", { class: "action-row" },
      smallButton("↑", t("exports.moveUp"), () => this.swap(list, index, index - 1), index === 0),
      smallButton("↓", t("exports.moveDown"), () => this.swap(list, index, index + 1), index === list.length - 1),
      smallButton("→", t("exports.nest"), () => this.nest(list, index), index === 0),
      smallButton("←", t("exports.unnest"), () => this.unnest(node), depth === 0),
      smallButton("✕", t("exports.removeColumn"), () => { list.splice(index, 1); this.tidy(); this.notify(); })));
  }

  // The same moves with the keyboard.
  onKey(event, node, list, index) {
    const moves = { ArrowUp: () => this.swap(list, index, index - 1), ArrowDown: () => this.swap(list, index, index + 1), ArrowRight: () => this.nest(list, index), ArrowLeft: () => this.unnest(node) };
    if (!moves[event.key]) return;
    event.preventDefault();
    moves[event.key]();
  }

  swap(list, one, other) {
    if (other < 0 || other >= list.length) return;
    [list[one], list[other]] = [list[other], list[one]];
    this.notify();
  }

  nest(list, index) {
    if (index === 0) return;
    const [moved] = list.splice(index, 1);
    asGroup(list[index - 1]).children.push(moved);
    this.notify();
  }

  unnest(node) {
    const { list, parent, above } = this.find(node);
    if (!parent) return;
    list.splice(list.indexOf(node), 1);
    above.splice(above.indexOf(parent) + 1, 0, node);
    this.tidy();
    this.notify();
  }

  drop(onto, place) {
    const moved = this.dragged;
    this.dragged = null;
    if (!moved || moved === onto || contains(moved, onto)) return;
    const from = this.find(moved).list;
    from.splice(from.indexOf(moved), 1);
    if (place === "into") asGroup(onto).children.push(moved);
    else {
      const { list } = this.find(onto);
      list.splice(list.indexOf(onto) + (place === "after" ? 1 : 0), 0, moved);
    }
    this.tidy();
    this.notify();
  }

  find(node, list = this.nodes, parent = null, above = null) {
    if (list.includes(node)) return { list, parent, above };
    for (const each of list) {
      const found = each.children && this.find(node, each.children, each, list);
      if (found) return found;
    }
    return null;
  }

  // Remove a group without columns.
  tidy(list = this.nodes) {
    for (let index = list.length - 1; index >= 0; index -= 1) {
      if (!list[index].children) continue;
      this.tidy(list[index].children);
      if (!list[index].children.length) list.splice(index, 1);
    }
  }
}

const leavesOf = (nodes) => nodes.flatMap((node) => (node.children ? leavesOf(node.children) : [node]));
const isTree = (value) => typeof value === "object" && value !== null;
const smallButton = (content, label, act, disabled = false) => h("button", { type: "button", class: "button quiet", title: label, "aria-label": label, onclick: act, disabled }, content);
const contains = (group, node) => Boolean(group.children?.some((child) => child === node || contains(child, node)));

// Turns a column onto which another one is dropped into a group of both.
function asGroup(node) {
  if (!node.children) {
    node.children = [{ title: node.title, name: node.name, children: null, style: node.style }];
    Object.assign(node, { title: t("exports.newGroup"), name: "", style: {} });
  }
  return node;
}

function nodesOf(raw) {
  if (!isTree(raw)) return [];
  const list = Array.isArray(raw) ? raw : Object.entries(raw).map(([name, title]) => ({ name, title }));
  return list.map((item) => (isTree(item)
    ? { title: String(item.title ?? item.name ?? ""), name: String(item.name ?? ""), children: item.children?.length ? nodesOf(item.children) : null, style: { ...item.style }, row_count: item.row_count }
    : { title: String(item), name: String(item), children: null, style: {} }));
}

function templateNode(node) {
  if (node.children) return { title: node.title, children: node.children.map(templateNode) };
  const style = Object.fromEntries(Object.entries(node.style || {}).filter(([, value]) => value !== undefined && value !== ""));
  return { title: node.title || node.name, name: node.name || node.title, ...(Object.keys(style).length ? { style } : {}) };
}
