// The library: list, upload by drag and drop, download.
import { draw, h } from "../dom.js";
import { at, get, remove } from "../api.js";
import { bytes } from "../format.js";
import { t } from "../i18n.js";
import { session } from "../session.js";
import { badge, button, copyable, empty, link, noMatch, pageHead, toWriters, when } from "../parts/basics.js";
import { act, confirm } from "../parts/dialog.js";
import { saveFrom } from "../parts/saving.js";
import { screen } from "../parts/screen.js";
import { searchBox } from "../parts/search.js";
import { Pages, table } from "../parts/table.js";
import { fetchDialog } from "./fetch_file.js";
import { dropZone } from "./upload.js";

export function files(root, { query, go }) {
  const file_path = query.get("path") || "";
  const pages = new Pages((page) => get("v1/files", { file_path, ...page }));
  const top = h("div", { class: "stack" });
  const below = h("div", { class: "stack" });
  draw(root);
  draw(root, top, below);
  const shown = screen(below, {
    load: () => pages.read(),
    view: (data, refresh) => [
      h("div", { class: "filters" }, searchBox("path", t("files.search"), file_path, (path) => go("files", { path }))),
      data.items.length ? list(data.items, refresh) : file_path ? noMatch() : empty(t("files.none"), toWriters(t("files.noneAdvice"))),
      pages.moreButton(data, refresh),
    ],
    quick: 5000,
    slow: 8000,
  });
  draw(top, pageHead(t("nav.files"), t("files.lead"), session.can("write") && button(t("files.fetch"), () => fetchDialog(go))), session.can("write") && dropZone(shown.refresh));
  return shown;
}

function list(items, refresh) {
  return table(t("nav.files"), [
    { title: t("field.name"), kind: "main", cell: (file) => [h("span", { class: "strong" }, file.file_name), h("span", { class: "under clip" }, file.file_path)] },
    { title: t("field.status"), cell: (file) => h("div", null, badge(file.state), file.error && h("span", { class: "under reason" }, file.error)) },
    { title: t("files.place"), cell: (file) => `${file.biz_id} / ${file.app_id}` },
    { title: t("field.size"), kind: "nowrap", cell: (file) => bytes(file.size) },
    { title: "SHA-256", cell: (file) => (file.signature ? copyable(file.signature) : "–") },
    { title: t("field.created"), cell: (file) => when(file.created_at) },
    { title: t("field.actions"), kind: "actions", cell: (file) => actions(file, refresh) },
  ], items, { keyOf: (file) => file.file_id });
}

function actions(file, refresh) {
  const gone = session.can("write") && button(t("action.delete"), () => confirm(t("files.deleteSure", { name: file.file_name }), t("action.delete"), () => act(() => remove(`v1/files/${at(file.file_id)}`), t("exports.deleted"), refresh)), { kind: "small danger-quiet", key: "delete" });
  if (file.state === "failed") return h("div", { class: "action-row" }, gone);
  if (file.state !== "ready") return null;
  return h("div", { class: "action-row" },
    button(t("action.download"), () => act(() => saveFrom(`v1/files/${at(file.file_id)}/url`)), { kind: "small", iconName: "download" }),
    session.can("write") && link(t("files.distribute"), `#/distribution/new?file=${at(file.file_id)}`, "button small"), gone);
}
