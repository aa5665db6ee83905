// Fields for rows that are read directly: an S3 object, a DynamoDB query, Athena SQL.
import { h } from "../dom.js";
import { t } from "../i18n.js";
import { field, FieldError, readJson } from "../parts/form.js";

const OF_S3 = ["bucket", "key", "s3_format", "s3_delimiter", "s3_encoding"];
const AS_JSON = {
  dynamodb: '{"table": "orders", "key_condition": "shop = :s", "values": {":s": "north"}}',
  athena: '{"workgroup": "reports", "sql": "SELECT * FROM orders"}',
};
export const SOURCE_FIELDS = ["source_kind", ...OF_S3, ...Object.keys(AS_JSON)];

export const delimiters = () => [["", ","], [";", ";"], ["tab", t("exports.tab")], ["|", "|"]];

export class DirectSource {
  constructor() {
    const json = (name) => field(name, t(`exports.${name}Query`), { rows: 3, class: "mono", hint: t(`exports.${name}Hint`), placeholder: AS_JSON[name] });
    this.kinds = {
      s3: h("div", { class: "stack" },
        h("div", { class: "pair" }, field("bucket", t("exports.bucket"), { placeholder: "acme-data" }), field("key", t("exports.key"), { placeholder: "orders/2026.csv", hint: t("exports.keyHint") })),
        h("div", { class: "thirds" },
          field("s3_format", t("ingest.format"), { options: [["", t("exports.byEnding")], ["csv", "CSV"], ["jsonl", "JSONL"]] }),
          field("s3_delimiter", t("exports.s3Delimiter"), { options: delimiters() }),
          field("s3_encoding", t("exports.s3Encoding"), { options: [["", "UTF-8"], ["gb18030", "GB18030"]] }))),
      dynamodb: json("dynamodb"),
      athena: json("athena"),
    };
    this.root = h("div", { class: "stack", "data-key": "direct" },
      field("source_kind", t("exports.direct"), { options: [["", t("exports.directNone")], ["s3", t("exports.directS3")], ["dynamodb", "DynamoDB"], ["athena", "Athena"]], hint: t("exports.directHint"), onchange: (event) => this.turn(event.target.value) }),
      Object.values(this.kinds));
    this.turn("");
  }

  turn(chosen) { for (const [name, box] of Object.entries(this.kinds)) box.hidden = name !== chosen; }
}

// Returns undefined if no direct source was chosen.
export function sourceOf(given) {
  const kind = given.source_kind;
  if (!kind) return undefined;
  if (kind !== "s3") {
    const query = readJson(kind, given[kind]);
    if (query === undefined) throw new FieldError(kind, t("error.needed"));
    return { [kind]: query };
  }
  const found = {};
  for (const name of OF_S3) if (given[name]?.trim()) found[name.replace("s3_", "")] = given[name].trim();
  for (const name of ["bucket", "key"]) if (!found[name]) throw new FieldError(name, t("error.needed"));
  if (found.delimiter === "tab") found.delimiter = "\t";
  return { s3: found };
}
