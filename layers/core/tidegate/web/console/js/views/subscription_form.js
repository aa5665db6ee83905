// The form for a subscription, with a preview of the files of its source.
import { draw, h } from "../dom.js";
import { at, create, get, patch, post } from "../api.js";
import { bytes, count } from "../format.js";
import { t } from "../i18n.js";
import { button, card, crumbs, empty, failure, link, pageHead, skeleton } from "../parts/basics.js";
import { toast } from "../parts/dialog.js";
import { field, form, textLines } from "../parts/form.js";
import { politenessFields, politenessOf } from "../parts/politeness.js";
import { scheduleFields, timingOf } from "../parts/schedule.js";
import { table } from "../parts/table.js";

const FORMATS = ["auto", "json", "html", "rss", "atom", "s3", "sums", "sitemap"];

export function newSubscription(root, { go }) {
  return showForm(root, {}, t("ingest.new"), async (body, once) => {
    const made = await create("v1/subscriptions", body, once);
    toast(t("action.saved"));
    go(`ingest/${at(made.subscription_id)}`);
  });
}

export function changeSubscription(root, { id, go }) {
  draw(root, skeleton(5));
  get(`v1/subscriptions/${at(id)}`).then((known) => showForm(root, known, known.name, async (body) => {
    await patch(`v1/subscriptions/${at(id)}`, { ...body, revision: known.revision, schedule: body.schedule ?? null, credentials: body.credentials ?? null, file_path: body.file_path ?? null, priority: body.priority ?? null, politeness: body.politeness ?? null });
    toast(t("action.saved"));
    go(`ingest/${at(id)}`);
  }), (error) => draw(root, failure(error)));
  return { stop() {} };
}

function showForm(root, known, title, save) {
  const result = h("div", { class: "stack", "aria-live": "polite" });
  const element = form(fields(known), t("action.save"), (given, once) => save(bodyOf(given), once));
  const read = () => bodyOf(Object.fromEntries(new FormData(element)));
  const previewButton = button(t("ingest.preview"), () => preview(result, read, known.subscription_id), { key: "preview" });
  draw(root);
  draw(root,
    crumbs(link(t("nav.ingest"), "#/ingest")),
    pageHead(title, t("ingest.formLead")),
    h("div", { class: "split" },
      card(t("ingest.source"), {}, element),
      h("div", { class: "sticky" }, card(t("ingest.preview"), { tools: previewButton }, result))));
  draw(result, h("p", { class: "muted" }, t("ingest.previewHint")));
  return { stop() {} };
}

function fields(known) {
  const [schedule, other, zone] = scheduleFields(known, { none: t("ingest.byHand") });
  return [
    field("name", t("field.name"), { required: true, value: known.name || "" }),
    field("source_url", t("ingest.url"), { type: "url", required: true, value: known.source_url || "", placeholder: "https://", hint: t("ingest.urlHint") }),
    h("div", { class: "pair" },
      field("format", t("ingest.format"), { options: FORMATS.map((name) => [name, t(`ingest.format_${name}`)]), value: known.format || "auto" }),
      schedule),
    other,
    zone,
    h("div", { class: "pair" },
      field("include", t("ingest.include"), { rows: 2, value: (known.include || []).join("\n"), hint: t("ingest.globHint"), placeholder: "*.iso" }),
      field("exclude", t("ingest.exclude"), { rows: 2, value: (known.exclude || []).join("\n"), placeholder: "*.tmp" })),
    h("div", { class: "pair" },
      field("recursive", t("ingest.recursive"), { options: [["", t("action.no")], ["yes", t("action.yes")]], value: known.recursive ? "yes" : "" }),
      field("on_delete", t("ingest.onDelete"), { options: [["keep", t("ingest.onDelete_keep")], ["trash", t("ingest.onDelete_trash")]], value: known.on_delete || "keep" })),
    field("compare", t("ingest.compare"), { options: [["auto", t("ingest.compare_auto")], ["head", t("ingest.compare_head")]], value: known.compare || "auto" }),
    field("file_path", t("ingest.path"), { value: known.file_path || "", hint: t("ingest.pathHint"), placeholder: "/podcasts/{year}/{name}" }),
    h("div", { class: "triple" },
      field("biz_id", t("files.biz"), { type: "number", min: 0, value: String(known.biz_id ?? 0) }),
      field("app_id", t("files.app"), { type: "number", min: 0, value: String(known.app_id ?? 0) }),
      field("credentials", t("ingest.credential"), { value: known.credentials || "", hint: t("ingest.credentialHint") })),
    h("div", { class: "pair" },
      field("concurrency", t("ingest.concurrency"), { type: "number", min: 1, max: 16, value: String(known.concurrency ?? 1), required: true, hint: t("ingest.concurrencyHint") }),
      field("priority", t("queue.priority"), { type: "number", min: 1, max: 10, value: String(known.priority ?? ""), hint: t("exports.priorityHint") })),
    h("details", null, h("summary", null, t("polite.title")), h("div", null, politenessFields(known.politeness))),
  ];
}

function bodyOf(given) {
  const body = { ...timingOf(given), name: given.name, source_url: given.source_url, format: given.format, compare: given.compare, recursive: given.recursive === "yes", on_delete: given.on_delete, include: textLines(given.include, /[\n,]+/), exclude: textLines(given.exclude, /[\n,]+/), biz_id: Number(given.biz_id), app_id: Number(given.app_id), concurrency: Number(given.concurrency) };
  if (given.priority) body.priority = Number(given.priority);
  for (const [name, value] of [["file_path", given.file_path.trim()], ["credentials", given.credentials.trim()], ["politeness", politenessOf(given)]]) if (value) body[name] = value;
  return body;
}

async function preview(result, read, subscription_id) {
  draw(result, skeleton(3));
  try {
    const { source_url, format, include, exclude, recursive, file_path } = read();
    const found = await post("v1/subscriptions/preview", { source_url, format, include, exclude, recursive, ...(file_path ? { file_path } : {}), ...(subscription_id ? { subscription_id } : {}) });
    draw(result,
      h("p", null, t("ingest.found", { format: found.format, chosen: count(found.chosen), listed: count(found.listed) })),
      subscription_id && h("p", null, t("ingest.plan", { new: count(found.new), changed: count(found.changed), gone: count(found.gone) })),
      found.items.length ? table(t("ingest.preview"), [
        { title: t("field.name"), kind: "main", cell: (entry) => [h("span", { class: "strong", title: entry.url }, entry.file_name), h("span", { class: "under clip" }, entry.file_path)] },
        { title: t("field.size"), kind: "nowrap", cell: (entry) => bytes(entry.size) },
        { title: "SHA-256", cell: (entry) => (entry.signature ? t("action.yes") : "–") },
      ], found.items) : empty(t("ingest.nothing"), t("ingest.nothingAdvice")));
  } catch (error) {
    draw(result, failure(error));
  }
}
