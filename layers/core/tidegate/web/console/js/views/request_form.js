// The form for a request: check, extract, associate, download or scan.
import { h } from "../dom.js";
import { at, create, get } from "../api.js";
import { named, t } from "../i18n.js";
import { dialog, toast } from "../parts/dialog.js";
import { field, FieldError, form, textLines } from "../parts/form.js";

// The required and optional fields of each type.
const FIELDS = {
  check: ["file_id"],
  extract: ["file_id", "file_path", "include", "exclude"],
  associate: ["file_path", "signature", "biz_id", "app_id"],
  download: ["source_url", "mirrors", "file_path", "signature", "biz_id", "app_id", "credentials"],
  scan: ["subscription_id"],
};
const NEEDED = { check: ["file_id"], extract: ["file_id", "file_path"], associate: ["file_path", "signature"], download: ["source_url", "file_path"], scan: ["subscription_id"] };
const NUMBERS = ["biz_id", "app_id"];
const LISTS = ["include", "exclude", "mirrors"];

export async function requestDialog(go) {
  const [files, sources] = await Promise.all(["v1/files", "v1/subscriptions"].map((path) => get(path, { limit: 100 }).then(({ items }) => items, () => [])));
  const made = {
    file_id: field("file_id", t("jobs.file"), { options: [["", "–"], ...files.filter((file) => file.state === "ready").map((file) => [file.file_id, file.file_path])] }),
    subscription_id: field("subscription_id", t("queue.subscription"), { options: [["", "–"], ...sources.map((source) => [source.subscription_id, source.name])] }),
    source_url: field("source_url", t("ingest.url"), { type: "url", placeholder: "https://" }),
    mirrors: field("mirrors", t("files.mirrors"), { rows: 2, hint: t("files.mirrorsHint"), placeholder: "https://" }),
    file_path: field("file_path", t("ingest.path"), { placeholder: "/releases/app.bin" }),
    signature: field("signature", t("field.signature"), { pattern: "[0-9a-f]{64}" }),
    biz_id: field("biz_id", t("files.biz"), { type: "number", min: 0, value: "0" }),
    app_id: field("app_id", t("files.app"), { type: "number", min: 0, value: "0" }),
    credentials: field("credentials", t("ingest.credential"), { hint: t("ingest.credentialHint") }),
    include: field("include", t("ingest.include"), { rows: 2, hint: t("ingest.globHint"), placeholder: "*.iso" }),
    exclude: field("exclude", t("ingest.exclude"), { rows: 2 }),
  };
  const turn = (type) => { for (const [name, each] of Object.entries(made)) each.hidden = !FIELDS[type].includes(name); };
  turn("check");
  const close = dialog(t("queue.newRequest"), () => form([
    field("type", t("field.type"), { options: Object.keys(FIELDS).map((type) => [type, `${named("type", type)}: ${t(`queue.does_${type}`)}`]), onchange: (event) => turn(event.target.value) }),
    Object.values(made),
    h("details", null, h("summary", null, t("exports.moreFields")), h("div", null,
      h("div", { class: "pair" }, field("priority", t("queue.priority"), { type: "number", min: 1, max: 10, hint: t("exports.priorityHint") }), field("channel", t("queue.channel"), { hint: t("queue.channelHint") })),
      h("div", { class: "pair" }, field("not_before", t("queue.notBefore"), { type: "datetime-local", hint: t("queue.notBeforeHint") }), field("dedupe_key", t("queue.dedupeKey"), { hint: t("queue.dedupeHint") })))),
  ], t("action.create"), async (given, once) => {
    const request = await create("v1/requests", bodyOf(given), once);
    close();
    toast(t("queue.requestMade"));
    go(`queue/${at(request.request_id)}`);
  }));
}

function bodyOf(given) {
  const { type } = given;
  const missing = NEEDED[type].find((name) => !given[name]?.trim());
  if (missing) throw new FieldError(missing, t("error.needed"));
  const payload = {};
  for (const name of FIELDS[type]) {
    if (!given[name]?.trim() || name === "subscription_id") continue;
    payload[name] = NUMBERS.includes(name) ? Number(given[name]) : LISTS.includes(name) ? textLines(given[name], /[\n,]+/) : given[name].trim();
  }
  const body = { type, payload };
  for (const name of ["subscription_id", "channel", "dedupe_key"]) if (given[name]?.trim() && (name !== "subscription_id" || type === "scan")) body[name] = given[name].trim();
  if (given.priority) body.priority = Number(given.priority);
  // Typed in the user's time zone.
  if (given.not_before) body.not_before = new Date(given.not_before).toISOString();
  return body;
}
