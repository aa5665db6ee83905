// One subscription: its schedule and its requests.
import { h } from "../dom.js";
import { at, get, post, remove } from "../api.js";
import { moment } from "../format.js";
import { t } from "../i18n.js";
import { badge, button, card, code, copyable, crumbs, empty, facts, link, pageHead } from "../parts/basics.js";
import { act, confirm } from "../parts/dialog.js";
import { nextRun, runsCard } from "../parts/schedule.js";
import { screen } from "../parts/screen.js";
import { Pages } from "../parts/table.js";
import { session } from "../session.js";
import { bulkTools, requestTable } from "./queue.js";

export function subscription(root, { id, go }) {
  const path = `v1/subscriptions/${at(id)}`;
  const pages = new Pages((page) => get(`${path}/tasks`, page));
  const runs = new Pages((page) => get(`${path}/runs`, page));
  return screen(root, {
    async load() {
      const [record, shown, fired] = await Promise.all([get(path), pages.read(), runs.read()]);
      return { record, shown, fired };
    },
    watch: ({ shown }) => shown.items.map((request) => [request.request_id, request.status]),
    view: ({ record, shown, fired }, refresh) => [
      crumbs(link(t("nav.ingest"), "#/ingest")),
      pageHead(record.name, record.source_url, badge(record.status), session.can("write") && actions(record, path, refresh, go)),
      h("div", { class: "grid" },
        card(t("ingest.when"), { id: "when" }, facts([
          [t("ingest.schedule"), record.schedule ? code(record.schedule) : t("ingest.byHand")],
          [t("schedules.timezone"), record.schedule && record.timezone],
          [t("ingest.next"), nextRun(record)],
          [t("ingest.lastScan"), record.last_scan ? moment(record.last_scan) : t("overview.never")],
        ])),
        card(t("jobs.details"), { id: "details" }, facts([
          [t("ingest.id"), copyable(record.subscription_id)],
          [t("ingest.format"), t(`ingest.format_${record.format}`)],
          [t("ingest.recursive"), record.recursive && t("action.yes")],
          [t("ingest.onDelete"), t(`ingest.onDelete_${record.on_delete}`)],
          [t("ingest.compare"), t(`ingest.compare_${record.compare}`)],
          [t("ingest.include"), record.include?.join(", ")],
          [t("ingest.exclude"), record.exclude?.join(", ")],
          [t("ingest.path"), record.file_path && code(record.file_path)],
          [t("files.place"), `${record.biz_id} / ${record.app_id}`],
          [t("ingest.credential"), record.credentials],
          [t("queue.priority"), record.priority],
          [t("field.created"), moment(record.create_time)],
        ])),
        heldBack(shown.items, path, refresh),
        (record.schedule || fired.items.length > 0) && runsCard(record, fired, { work: "request", area: "queue" }, runs.moreButton(fired, refresh)),
        card(t("ingest.requests"), { id: "requests", wide: true, tools: session.can("write") && bulkTools({ subscription_id: id }, refresh) },
          shown.items.length ? requestTable(shown.items, refresh) : empty(t("ingest.noRequests"), t("ingest.noRequestsAdvice")),
          pages.moreButton(shown, refresh))),
    ],
    quick: 3000,
    slow: 6000,
  });
}

// The last scan did not follow many deletions at once: somebody must confirm them.
function heldBack(requests, path, refresh) {
  const last = requests.find((one) => one.type === "scan" && one.result)?.result;
  if (!last?.trash_held_back || !session.can("write")) return null;
  const follow = () => act(() => post(`${path}/download`, {}, { confirm_trash: last.trash_held_back }), t("ingest.scanning"), refresh);
  return card(t("ingest.onDelete"), { id: "held" }, h("p", null, last.trash_reason), button(t("ingest.confirmTrash", { count: last.trash_held_back }), follow, { key: "confirm-trash" }));
}

function actions(record, path, refresh, go) {
  const toggle = record.status === "paused"
    ? button(t("action.resume"), () => act(() => post(`${path}/resume`), t("queue.resumed"), refresh), { key: "toggle" })
    : button(t("action.pause"), () => act(() => post(`${path}/pause`), t("queue.paused"), refresh), { key: "toggle" });
  return [
    button(t("ingest.scanNow"), () => act(() => post(`${path}/download`), t("ingest.scanning"), refresh), { kind: "primary", key: "scan" }),
    record.schedule ? toggle : null,
    link(t("action.change"), `#/ingest/${at(record.subscription_id)}/change`, "button"),
    button(t("action.delete"), () => confirm(t("ingest.deleteSure", { name: record.name }), t("action.delete"), () => act(async () => { await remove(path); go("ingest"); }, t("exports.deleted"))), { kind: "danger-quiet", key: "delete" }),
  ];
}
