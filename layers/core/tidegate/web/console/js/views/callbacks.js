// Callbacks: every delivery attempt, and a button to deliver again.
import { h } from "../dom.js";
import { at, get, post } from "../api.js";
import { clock, count, duration, moment } from "../format.js";
import { t } from "../i18n.js";
import { session } from "../session.js";
import { badge, button, code, copyable, empty, facts, noMatch, pageHead, statusChips, when } from "../parts/basics.js";
import { act, dialog } from "../parts/dialog.js";
import { screen } from "../parts/screen.js";
import { searchBox } from "../parts/search.js";
import { Pages, table } from "../parts/table.js";

const STATES = ["", "pending", "delivered", "dead"];

export function callbacks(root, { query, go }) {
  const wanted = { state: query.get("state") || "", task_id: query.get("task_id") || "" };
  const pages = new Pages((page) => get("v1/callbacks", { ...wanted, ...page }));
  const filter = (changes) => go("callbacks", { ...wanted, ...changes });
  return screen(root, {
    load: () => pages.read(),
    view: (data, refresh) => [
      pageHead(t("nav.callbacks"), t("callbacks.lead")),
      h("div", { class: "filters" },
        statusChips(t("callbacks.filter"), STATES, wanted.state, (state) => filter({ state })),
        searchBox("task", t("callbacks.search"), wanted.task_id, (task_id) => filter({ task_id }))),
      data.items.length ? list(data.items, refresh) : Object.values(wanted).some(Boolean) ? noMatch() : empty(t("callbacks.none"), t("callbacks.noneAdvice")),
      pages.moreButton(data, refresh),
    ],
    quick: 4000,
    slow: 6000,
  });
}

function list(items, refresh) {
  return table(t("nav.callbacks"), [
    { title: t("callbacks.to"), kind: "main", cell: (item) => [h("span", { class: "strong clip" }, item.url), h("span", { class: "under" }, `${item.type} `, copyable(item.task_id))] },
    { title: t("field.status"), cell: (item) => badge(item.callback_state) },
    { title: t("callbacks.attempts"), cell: (item) => button(count(item.attempts.length), () => attemptsDialog(item), { kind: "small quiet", title: t("callbacks.showAttempts") }) },
    { title: t("callbacks.last"), kind: "grow", cell: (item) => last(item) },
    { title: t("callbacks.next"), cell: (item) => (item.next_attempt_at ? h("time", { datetime: item.next_attempt_at }, moment(item.next_attempt_at)) : "–") },
    { title: t("field.created"), cell: (item) => when(item.created_at) },
    { title: t("field.actions"), kind: "actions", cell: (item) => session.can("write") && button(t("callbacks.redeliver"), () => act(() => post(`v1/callbacks/${at(item.delivery_id)}/redeliver`), t("callbacks.redelivered"), refresh), { kind: "small", key: "redeliver" }) },
  ], items, { keyOf: (item) => item.delivery_id });
}

function last(item) {
  const attempt = item.attempts[item.attempts.length - 1];
  return attempt ? outcome(attempt) : t("callbacks.notTried");
}

const outcome = (attempt) => [attempt.status, attempt.error, attempt.detail].filter(Boolean).join(" · ");

async function attemptsDialog(listed) {
  const item = await act(() => get(`v1/callbacks/${at(listed.delivery_id)}`)) || listed;
  dialog(t("callbacks.attempts"), () => [
    facts([[t("callbacks.to"), code(item.url)], [t("callbacks.id"), code(item.delivery_id)]]),
    item.attempts.length
      ? h("ol", { class: "logs", tabindex: "0", "aria-label": t("callbacks.attempts") }, item.attempts.map((attempt) => h("li", null, h("time", { class: "muted" }, clock(attempt.at)), code(duration(attempt.duration_ms / 1000)), h("span", null, outcome(attempt)))))
      : h("p", { class: "muted" }, t("callbacks.notTried")),
    item.body ? h("details", null, h("summary", null, t("callbacks.body")), h("pre", { class: "mono" }, item.body)) : null,
  ]);
}
