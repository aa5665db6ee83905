// Ingest: the list of subscriptions.
import { h } from "../dom.js";
import { at, get, remove } from "../api.js";
import { moment } from "../format.js";
import { t } from "../i18n.js";
import { badge, button, empty, link, pageHead, nameAndId, toWriters, when } from "../parts/basics.js";
import { act } from "../parts/dialog.js";
import { nextRun, scheduleText } from "../parts/schedule.js";
import { screen } from "../parts/screen.js";
import { Pages, table } from "../parts/table.js";
import { session } from "../session.js";

export function subscriptions(root) {
  const pages = new Pages((page) => get("v1/subscriptions", page), 50);
  const add = () => session.can("write") && link(t("ingest.new"), "#/ingest/new", "button primary");
  return screen(root, {
    async load() {
      const [data, pauses] = await Promise.all([pages.read(), get("v1/host-pauses")]);
      return { ...data, pauses: pauses.items };
    },
    view: (data, refresh) => [
      pageHead(t("nav.ingest"), t("ingest.lead"), add()),
      data.pauses.map((pause) => h("p", { class: "notice warn" }, t("ingest.pause", { origin: pause.origin, until: moment(pause.until) }), " ",
        session.can("write") && button(t("ingest.endPause"), () => act(() => remove(`v1/host-pauses/${at(pause.origin.replace("//", ""))}`), t("action.saved"), refresh), { kind: "small", key: pause.origin }))),
      data.items.length ? list(data.items) : empty(t("ingest.none"), toWriters(t("ingest.noneAdvice")), add()),
      pages.moreButton(data, refresh),
    ],
    quick: 8000,
    slow: 15000,
  });
}

function list(items) {
  return table(t("nav.ingest"), [
    { title: t("field.name"), kind: "main", cell: (item) => nameAndId(item.name, `#/ingest/${at(item.subscription_id)}`, item.subscription_id) },
    { title: t("field.status"), cell: (item) => badge(item.status) },
    { title: t("ingest.source"), kind: "grow", cell: (item) => h("span", { title: item.source_url }, item.source_url) },
    { title: t("ingest.schedule"), cell: (item) => (item.schedule ? scheduleText(item) : t("ingest.byHand")) },
    { title: t("ingest.next"), cell: nextRun },
    { title: t("ingest.lastScan"), cell: (item) => (item.last_scan ? when(item.last_scan) : t("overview.never")) },
  ], items, { keyOf: (item) => item.subscription_id });
}
