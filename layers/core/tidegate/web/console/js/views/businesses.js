// Businesses: the services that process the items of batches.
import { h } from "../dom.js";
import { at, create, get, put, remove } from "../api.js";
import { t } from "../i18n.js";
import { batchTabs } from "../parts/area_tabs.js";
import { button, code, copyable, empty, pageHead, toWriters, when } from "../parts/basics.js";
import { act, confirm, dialog, toast } from "../parts/dialog.js";
import { field, form } from "../parts/form.js";
import { screen } from "../parts/screen.js";
import { Pages, table } from "../parts/table.js";
import { session } from "../session.js";

const HOOKS = ["before_create_url", "before_run_url", "process_stop_url"];

export function businesses(root) {
  const pages = new Pages((page) => get("v1/biz", page), 50);
  return screen(root, {
    load: () => pages.read(),
    view: (data, refresh) => {
      const add = session.can("write") && button(t("batches.newBusiness"), () => businessDialog(refresh), { kind: "primary" });
      return [
        pageHead(t("batches.businesses"), t("batches.businessesLead"), add),
        batchTabs("businesses"),
        data.items.length ? list(data.items, refresh) : empty(t("batches.noBusinesses"), toWriters(t("batches.noBusiness")), add && button(t("batches.newBusiness"), () => businessDialog(refresh))),
        pages.moreButton(data, refresh),
      ];
    },
    quick: 10000,
    slow: 20000,
  });
}

function list(items, refresh) {
  return table(t("batches.businesses"), [
    { title: t("field.name"), kind: "main", cell: (biz) => [h("span", { class: "strong" }, biz.name), h("span", { class: "under" }, copyable(biz.biz_id))] },
    { title: t("batches.process_url"), kind: "grow", cell: (biz) => code(biz.process_url) },
    { title: t("batches.sharedRate"), cell: (biz) => (biz.rate ? t("batches.perSecond", { n: biz.rate }) : "–") },
    { title: t("batches.hooks"), cell: (biz) => HOOKS.filter((name) => biz[name]).map((name) => t(`batches.${name}`)).join(", ") || "–" },
    { title: t("batches.authCode"), cell: (biz) => (biz.has_auth_code ? t("action.yes") : "–") },
    { title: t("field.created"), cell: (biz) => when(biz.created_at) },
    { title: t("field.actions"), kind: "actions", cell: (biz) => session.can("write") && [
      button(t("action.change"), () => businessDialog(refresh, biz), { kind: "small", key: "change" }),
      button(t("action.delete"), () => confirm(t("batches.deleteBusinessSure", { name: biz.name }), t("action.delete"), () => act(() => remove(`v1/biz/${at(biz.biz_id)}`), t("exports.deleted"), refresh)), { kind: "small danger-quiet", key: "delete" }),
    ] },
  ], items, { keyOf: (biz) => biz.biz_id });
}

export function businessDialog(refresh, known = {}) {
  const close = dialog(known.biz_id ? known.name : t("batches.newBusiness"), () => form([
    field("name", t("field.name"), { required: true, value: known.name || "" }),
    field("process_url", t("batches.process_url"), { type: "url", required: true, value: known.process_url || "", hint: t("batches.processHint"), placeholder: "https://" }),
    field("rate", t("batches.sharedRate"), { type: "number", min: 0, step: "any", value: String(known.rate ?? ""), hint: t("batches.sharedRateHint") }),
    h("details", null, h("summary", null, t("exports.moreFields")), h("div", null,
      HOOKS.map((name) => field(name, t(`batches.${name}`), { type: "url", value: known[name] || "" })),
      field("auth_code", t("batches.authCode"), { hint: known.has_auth_code ? t("batches.authCodeAgain") : undefined }))),
  ], t("action.save"), async (given, once) => {
    const body = Object.fromEntries(Object.entries(given).filter(([, value]) => value).map(([name, value]) => [name, name === "rate" ? Number(value) : value]));
    if (known.biz_id) await put(`v1/biz/${at(known.biz_id)}`, body);
    else await create("v1/biz", body, once);
    toast(known.biz_id ? t("action.saved") : t("batches.businessMade"));
    close();
    refresh();
  }));
}
