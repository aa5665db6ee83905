// Several tables in one export: each is edited separately, kept here, and opened again by a click.
import { draw, h } from "../dom.js";
import { t } from "../i18n.js";
import { button } from "../parts/basics.js";
import { field } from "../parts/form.js";
import { bodyOf, commonOf, JSON_FIELDS } from "./export_fields.js";
import { SOURCE_FIELDS } from "./export_source.js";

const TEXTS = ["title", "summary", "sheet_name", "source_url"];
const ALIGNS = ["header_align", "footer_align"];
const KEPT = [...TEXTS, ...JSON_FIELDS, ...SOURCE_FIELDS];
export const EMPTY = Object.fromEntries(KEPT.map((name) => [name, ""]));

export class ExportTables {
  // `fill` puts a table into the form, `read` returns the form's values.
  constructor(fill, read) {
    this.fill = fill;
    this.read = read;
    this.kept = [null];
    this.at = 0;
    this.tabs = h("div", { class: "chips", role: "group", "aria-label": t("exports.tables") });
    this.how = field("multi_type", t("exports.multiType"), { options: [["page", t("exports.onePage")], ["tab", t("exports.oneTab")]] });
    this.root = h("div", { class: "stack" }, this.tabs, this.how);
    this.show();
  }

  get several() { return this.kept.length > 1; }

  show() {
    this.how.hidden = !this.several;
    draw(this.tabs,
      this.several && this.kept.map((_, number) => h("button", { type: "button", class: "chip", "data-key": `table-${number}`, "aria-pressed": String(number === this.at), onclick: () => this.turn(number) }, t("exports.tableN", { n: number + 1 }))),
      button(t("exports.addTable"), () => this.add(), { kind: "small", key: "add-table" }),
      this.several && button(t("exports.dropTable"), () => this.drop(), { kind: "small quiet", key: "drop-table" }));
  }

  keep() { this.kept[this.at] = Object.fromEntries(KEPT.map((name) => [name, this.read()[name]])); }

  turn(number) {
    this.keep();
    this.at = number;
    this.fill(this.kept[number]);
    this.show();
  }

  add() {
    this.keep();
    this.at = this.kept.push({ ...EMPTY }) - 1;
    this.fill(EMPTY);
    this.show();
  }

  drop() {
    this.kept.splice(this.at, 1);
    this.at = Math.min(this.at, this.kept.length - 1);
    this.fill(this.kept[this.at]);
    this.show();
  }

  // Lists with one entry for each table, null if a table has none.
  body(given) {
    this.keep();
    const body = { ...commonOf(given), multi_type: given.multi_type };
    const whole = this.kept.map((table) => bodyOf({ ...given, ...table }));
    for (const name of [...TEXTS, ...JSON_FIELDS, "source"]) {
      delete body[name];
      if (whole.some((table) => table[name] !== undefined)) body[name] = whole.map((table) => table[name] || null);
    }
    for (const name of ALIGNS) if (!body[name]) delete body[name];
    return body;
  }
}
