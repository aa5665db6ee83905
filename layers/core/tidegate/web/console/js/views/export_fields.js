// The form fields for the format of an export, and the request body from all fields.
import { h } from "../dom.js";
import { t } from "../i18n.js";
import { field, FieldError, readJson, textLines } from "../parts/form.js";
import { remarkField } from "../parts/note.js";
import { fillOf } from "./export_fill.js";
import { delimiters, sourceOf } from "./export_source.js";

const PLAIN = ["name", "file_name", "type", "callback", "operator_id", "source_url", "title", "summary", "sheet_name", "note", "header_align", "footer_align"];
const NUMBERS = ["step", "priority", "default_width", "default_height", "max_exec_time", "rows_per_file", "merchant_type", "merchant_id", "parallel", "source_rate", "source_timeout"];
export const JSON_FIELDS = ["source_data", "template", "header", "footer"];
const OF_CSV = ["encoding", "delimiter", "csv_header", "line_end"];
const OF_SHEETS = ["freeze", "autofilter", "auto_width"];
// Names, because the browser trims whitespace from the value of a select.
const WRITTEN = { tab: "\t", crlf: "\r\n" };

const either = (name) => field(name, t(`exports.${name}`), { options: [["", t("exports.asUsual")], ["true", t("action.yes")], ["false", t("action.no")]] });

export function fileFields() {
  return [
    h("div", { class: "pair" },
      field("encoding", t("exports.encoding"), { options: [["utf-8-sig", t("exports.withBom")], ["utf-8", "UTF-8"], ["gb18030", "GB18030"]], value: "utf-8-sig", hint: t("exports.encodingHint") }),
      field("compression", t("exports.compression"), { options: [["", t("exports.noCompression")], ["gzip", "gzip"]], hint: t("exports.compressionHint") })),
    h("div", { class: "pair" },
      field("delimiter", t("exports.delimiter"), { options: delimiters() }),
      field("csv_header", t("exports.csvHeader"), { options: [["", t("exports.headKeys")], ["titles", t("exports.headTitles")], ["none", t("exports.headNone")]] })),
    h("div", { class: "pair" },
      field("line_end", t("exports.lineEnd"), { options: [["", "LF"], ["crlf", "CRLF (Windows)"]] }),
      field("csv_guard", t("exports.csvGuard"), { options: [["", t("action.yes")], ["false", t("action.no")]], hint: t("exports.csvGuardHint") })),
    h("div", { class: "triple" }, OF_SHEETS.map(either)),
    h("div", { class: "pair" },
      field("credential", t("exports.credential"), { hint: t("exports.credentialHint") }),
      field("parallel", t("exports.parallel"), { type: "number", min: 1, max: 160, hint: t("exports.parallelHint") })),
    field("deliver", t("exports.deliver"), { rows: 2, hint: t("exports.deliverHint"), placeholder: "reports-bucket/daily/ eu-central-1" }),
  ];
}

// Fields that few exports need: a direct source, e-mail, a rate for the source.
export function advancedFields(direct) {
  return [
    direct.root,
    h("div", { class: "pair" },
      field("email", t("exports.email"), { rows: 2, hint: t("exports.emailHint"), placeholder: "ann@example.com" }),
      field("source_rate", t("exports.source_rate"), { type: "number", min: 1, max: 1000, hint: t("exports.sourceRateHint") })),
    field("password", t("exports.password"), { type: "password", autocomplete: "new-password", hint: t("exports.passwordHint") }),
    remarkField("note"),
    field("unmask", t("exports.unmask"), { options: [["", t("action.no")], ["true", t("action.yes")]], hint: t("exports.unmaskHint") }),
    field("source_timeout", t("exports.source_timeout"), { type: "number", min: 1, max: 600, hint: t("exports.sourceTimeoutHint") }),
  ];
}

// Fields that exports of one table and of several share.
export function commonOf(given) {
  const body = {};
  for (const name of PLAIN) if (given[name]?.trim()) body[name] = given[name].trim();
  for (const name of NUMBERS) if (given[name]) body[name] = Number(given[name]);
  if (body.type === "csv") {
    for (const name of OF_CSV) if (given[name]) body[name] = WRITTEN[given[name]] || given[name];
    if (given.csv_guard) body.csv_guard = false;
  }
  if (given.compression && ["csv", "jsonl"].includes(body.type)) body.compression = given.compression;
  if (body.type === "excel") for (const name of OF_SHEETS) if (given[name]) body[name] = given[name] === "true";
  const fill = fillOf(given);
  if (fill) body.fill = fill;
  if (given.unmask) body.unmask = true;
  if (given.password) body.password = given.password;
  if (given.credential?.trim()) body.source_headers = { credential: given.credential.trim() };
  const addresses = (given.email || "").split(/[\s,;]+/).filter(Boolean);
  if (addresses.length) body.email = addresses;
  const places = placesOf(given.deliver || "");
  if (places.length) body.deliver = places;
  return body;
}

export function bodyOf(given) {
  const body = commonOf(given);
  for (const name of JSON_FIELDS) {
    const value = readJson(name, given[name]);
    if (value !== undefined) body[name] = value;
  }
  const source = sourceOf(given);
  if (source) {
    if (body.source_url) throw new FieldError("source_url", t("exports.oneSource"));
    // Not sent, because the API would use typed rows instead of the source; here they are for the preview.
    delete body.source_data;
    return { ...body, source };
  }
  if (!body.source_data && !body.source_url) throw new FieldError("source_data", t("exports.sourceMissing"));
  return body;
}

// One per line: a bucket and a key, and the region if it is another one.
function placesOf(text) {
  return textLines(text).map((line) => {
    const [where, region] = line.replace(/^s3:\/\//, "").split(/\s+/);
    const [bucket, ...key] = where.split("/");
    if (!bucket || !key.length) throw new FieldError("deliver", t("exports.deliverHint"));
    return { bucket, key: key.join("/") || "/", ...(region ? { region } : {}) };
  });
}
