// Stored credentials of sources: names and origins; values are never shown.
import { h } from "../dom.js";
import { at, get, put, remove } from "../api.js";
import { t } from "../i18n.js";
import { button, code, copyable, empty, pageHead, toWriters, when } from "../parts/basics.js";
import { act, confirm, dialog, saved } from "../parts/dialog.js";
import { field, FieldError, form, textLines } from "../parts/form.js";
import { screen } from "../parts/screen.js";
import { table } from "../parts/table.js";
import { session } from "../session.js";

export function credentials(root, { tabs }) {
  return screen(root, {
    load: () => get("v1/credentials"),
    view: (data, refresh) => {
      const add = session.can("write") && button(t("credentials.new"), () => credentialDialog({}, refresh), { kind: "primary" });
      return [
        pageHead(t("operate.credentials"), t("credentials.lead"), add),
        tabs("credentials"),
        data.items.length ? list(data.items, refresh) : empty(t("credentials.none"), toWriters(t("credentials.noneAdvice"))),
      ];
    },
    quick: 10000,
    slow: 20000,
  });
}

function list(items, refresh) {
  return table(t("operate.credentials"), [
    { title: t("field.name"), kind: "main", cell: (item) => h("span", { class: "strong" }, item.name) },
    { title: t("credentials.origins"), kind: "grow", cell: (item) => h("ul", { class: "plain" }, item.origins.map((origin) => h("li", null, code(origin)))) },
    { title: t("credentials.headers"), cell: (item) => item.headers.join(", ") },
    { title: t("field.updated"), cell: (item) => when(item.updated_at) },
    { title: t("credentials.by"), cell: (item) => copyable(item.updated_by) },
    { title: t("field.actions"), kind: "actions", cell: (item) => session.can("write") && actions(item, refresh) },
  ], items, { keyOf: (item) => item.name });
}

function actions(item, refresh) {
  return h("div", { class: "action-row" },
    button(t("credentials.replace"), () => credentialDialog(item, refresh), { kind: "small", key: "replace" }),
    button(t("action.delete"), () => confirm(t("credentials.deleteSure", { name: item.name }), t("action.delete"), () => act(() => remove(`v1/credentials/${at(item.name)}`), t("exports.deleted"), refresh)), { kind: "small danger-quiet", key: "delete" }));
}

function credentialDialog(item, refresh) {
  const close = dialog(item.name ? t("credentials.replace") : t("credentials.new"), () => form([
    field("name", t("field.name"), { required: true, value: item.name || "", pattern: "[A-Za-z0-9][A-Za-z0-9_.\\-]*", hint: t("credentials.nameHint") }),
    field("origins", t("credentials.origins"), { rows: 3, required: true, value: (item.origins || []).join("\n"), hint: t("credentials.originsHint"), placeholder: "https://files.example" }),
    field("headers", t("credentials.headers"), { rows: 4, required: true, hint: t("credentials.headersHint"), placeholder: "Authorization: Bearer …" }),
  ], t("action.save"), async (given) => {
    const origins = textLines(given.origins);
    await put(`v1/credentials/${at(given.name)}`, { headers: headersOf(given.headers), origins });
    saved(close, refresh);
  }));
}

function headersOf(text) {
  const lines = textLines(text);
  return Object.fromEntries(lines.map((line) => {
    const colon = line.indexOf(":");
    if (colon < 1) throw new FieldError("headers", t("credentials.headersHint"));
    return [line.slice(0, colon).trim(), line.slice(colon + 1).trim()];
  }));
}
