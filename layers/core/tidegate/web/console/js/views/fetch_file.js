// The form that downloads one file into the library from a URL.
import { h } from "../dom.js";
import { at, create } from "../api.js";
import { t } from "../i18n.js";
import { dialog, toast } from "../parts/dialog.js";
import { field, form } from "../parts/form.js";
import { politenessFields, politenessOf } from "../parts/politeness.js";

export function fetchDialog(go) {
  const close = dialog(t("files.fetch"), () => form([
    field("source_url", t("ingest.url"), { type: "url", required: true, placeholder: "https://" }),
    field("file_path", t("ingest.path"), { required: true, placeholder: "/releases/app.bin" }),
    h("div", { class: "pair" },
      field("biz_id", t("files.biz"), { type: "number", min: 0, value: "0", required: true }),
      field("app_id", t("files.app"), { type: "number", min: 0, value: "0", required: true })),
    field("signature", t("field.signature"), { pattern: "[0-9a-f]{64}", hint: t("files.signatureHint") }),
    field("credentials", t("ingest.credential"), { hint: t("ingest.credentialHint") }),
    h("details", null, h("summary", null, t("exports.moreFields")), h("div", null,
      h("div", { class: "pair" },
        field("channel", t("queue.channel"), { hint: t("queue.channelHint") }),
        field("priority", t("queue.priority"), { type: "number", min: 1, max: 10, hint: t("exports.priorityHint") })),
      field("mirrors", t("files.mirrors"), { rows: 2, hint: t("files.mirrorsHint"), placeholder: "https://" }),
      politenessFields())),
  ], t("files.fetch"), async (given, once) => {
    const body = { source_url: given.source_url, file_path: given.file_path, biz_id: Number(given.biz_id), app_id: Number(given.app_id) };
    for (const name of ["signature", "credentials", "channel"]) if (given[name]) body[name] = given[name];
    if (given.priority) body.priority = Number(given.priority);
    const mirrors = given.mirrors.split(/\s+/).filter(Boolean);
    if (mirrors.length) body.mirrors = mirrors;
    body.politeness = politenessOf(given);
    const made = await create("v1/files", body, once);
    close();
    toast(t("files.fetching"));
    if (made.request_id) go(`queue/${at(made.request_id)}`);
  }));
}
