// A list of records: a table on a wide screen, cards on a narrow one, with a button for the next page.
import { h } from "../dom.js";
import { t } from "../i18n.js";
import { button } from "./basics.js";

export function table(label, columns, rows, { keyOf, rowClass } = {}) {
  const heads = columns.map((column) => h("th", { scope: "col", class: column.kind }, column.title));
  const body = rows.map((row, index) =>
    h("tr", { "data-key": keyOf ? `row-${keyOf(row)}` : `row-${index}`, class: rowClass?.(row) }, columns.map((column) =>
      h("td", { class: column.kind, "data-label": column.title }, column.cell(row)))));
  return h("div", { class: "table-wrap", tabindex: "0", role: "region", "aria-label": label },
    h("table", null, h("thead", null, h("tr", null, heads)), h("tbody", null, body)));
}

// The number of pages that the user opened; a refresh reads all of them again.
export class Pages {
  constructor(load, size = 20) {
    this.load = load;
    this.size = size;
    this.shown = size;
  }

  async read() {
    const items = [];
    let cursor = null;
    do {
      const page = await this.load({ limit: Math.min(100, this.shown - items.length), cursor });
      items.push(...page.items);
      cursor = page.next_cursor;
    } while (cursor && items.length < this.shown);
    return { items, more: Boolean(cursor) };
  }

  moreButton(data, refresh) {
    if (!data.more) return null;
    return h("div", { class: "more" }, button(t("action.more"), () => { this.shown += this.size; refresh(); }));
  }
}
