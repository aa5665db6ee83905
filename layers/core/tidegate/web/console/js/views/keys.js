// Keys: create, rotate, revoke, and when each was last used.
import { h } from "../dom.js";
import { at, create, get, remove } from "../api.js";
import { moment, wholeUnits } from "../format.js";
import { t } from "../i18n.js";
import { badge, button, copyable, empty, pageHead, when } from "../parts/basics.js";
import { act, confirm, dialog, showOnce } from "../parts/dialog.js";
import { field, FieldError, form } from "../parts/form.js";
import { screen } from "../parts/screen.js";
import { Pages, table } from "../parts/table.js";

const DAY = 86400;

export function adminKeys(root, { tabs }) {
  const pages = new Pages((page) => get("v1/keys", page), 50);
  return screen(root, {
    load: () => pages.read(),
    view: (data, refresh) => [
      pageHead(t("operate.keys"), t("keys.adminLead"), button(t("keys.new"), () => newAdminKey(refresh), { kind: "primary" })),
      tabs("keys"),
      keyTable(data.items, refresh),
      pages.moreButton(data, refresh),
    ],
    quick: 15000,
    slow: 30000,
  });
}

export function keyTable(items, refresh, add) {
  if (!items.length) return empty(t("keys.none"), t("keys.noneAdvice"), add && button(t("keys.new"), add));
  return table(t("keys.title"), [
    { title: t("field.name"), kind: "main", cell: (key) => [h("span", { class: "strong" }, key.name || key.agent_id || t("keys.unnamed")), h("span", { class: "under" }, copyable(key.key_id))] },
    { title: t("field.status"), cell: (key) => badge(key.state) },
    { title: t("keys.scopes"), cell: (key) => key.scopes.join(", ") },
    { title: t("keys.lastUsed"), cell: (key) => (key.last_used_at ? when(key.last_used_at) : t("overview.never")) },
    { title: t("keys.expires"), cell: (key) => (key.expires_at ? moment(key.expires_at) : t("keys.noEnd")) },
    { title: t("field.created"), cell: (key) => (key.created_at ? when(key.created_at) : "–") },
    { title: t("field.actions"), kind: "actions", cell: (key) => (key.state === "active" ? actions(key, refresh) : null) },
  ], items, { keyOf: (key) => key.key_id });
}

function actions(key, refresh) {
  const name = key.name || key.agent_id || key.key_id;
  return h("div", { class: "action-row" },
    button(t("keys.rotate"), () => rotateDialog(key, refresh), { kind: "small", key: "rotate" }),
    button(t("keys.revoke"), () => confirm(t("keys.revokeSure", { name }), t("keys.revoke"), () => act(() => remove(`v1/keys/${at(key.key_id)}`), t("status.revoked"), refresh)), { kind: "small danger-quiet", key: "revoke" }));
}

const ofDays = (number) => [String(number * DAY), wholeUnits(number, "day")];
const lifetimes = () => [["", t("keys.noEnd")], ...[1, 30, 90, 365].map(ofDays)];

export function newKeyDialog(path, refresh) {
  const close = dialog(t("keys.new"), () => form([
    field("name", t("field.name"), { hint: t("keys.nameHint") }),
    field("scopes", t("keys.scopes"), { options: [["read,write", t("keys.readWrite")], ["read", t("keys.readOnly")], ["read,write,unmask", t("keys.unmask")], ["agent", t("keys.agent")]] }),
    field("agent_id", t("jobs.agent"), { hint: t("keys.agentHint") }),
    field("expires_in", t("keys.expires"), { options: lifetimes() }),
  ], t("action.create"), async (given, once) => {
    if (given.scopes === "agent" && !given.agent_id) throw new FieldError("agent_id", t("keys.agentHint"));
    const body = { scopes: given.scopes.split(","), ...nameAndLifetime(given), ...(given.agent_id ? { agent_id: given.agent_id } : {}) };
    showNewKey(await create(`${path}/keys`, body, once), close, refresh);
  }));
}

function newAdminKey(refresh) {
  const close = dialog(t("keys.new"), () => form([
    field("name", t("field.name"), { hint: t("keys.nameHint") }),
    field("expires_in", t("keys.expires"), { options: lifetimes() }),
  ], t("action.create"), async (given, once) => showNewKey(await create("v1/keys", nameAndLifetime(given), once), close, refresh)));
}

const nameAndLifetime = (given) => ({ ...(given.name ? { name: given.name } : {}), ...(given.expires_in ? { expires_in: Number(given.expires_in) } : {}) });

function rotateDialog(key, refresh) {
  const close = dialog(t("keys.rotate"), () => form([
    h("p", { class: "muted" }, t("keys.rotateWhat")),
    field("overlap_s", t("keys.overlap"), { options: [["0", t("keys.atOnce")], ["3600", wholeUnits(1, "hour")], ofDays(1), ofDays(7)], value: String(DAY) }),
  ], t("keys.rotate"), async (given, once) => showNewKey(await create(`v1/keys/${at(key.key_id)}/rotate`, { overlap_s: Number(given.overlap_s) }, once), close, refresh)));
}

function showNewKey(answer, close, refresh) {
  close();
  refresh();
  showOnce(t("keys.made"), t("keys.once"), [[t("signin.key"), answer.key], [t("projects.secret"), answer.callback_secret]]);
}
