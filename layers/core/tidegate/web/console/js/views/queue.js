// The queue: its channels, and why each request waits.
import { h } from "../dom.js";
import { at, get, post } from "../api.js";
import { count, duration } from "../format.js";
import { named, t } from "../i18n.js";
import { session } from "../session.js";
import { badge, button, card, chips, copyable, empty, link, noMatch, pageHead, statusChips, when } from "../parts/basics.js";
import { slotBar } from "../parts/bars.js";
import { act, confirm, dialog, toast } from "../parts/dialog.js";
import { field, form } from "../parts/form.js";
import { screen } from "../parts/screen.js";
import { Pages, table } from "../parts/table.js";
import { requestDialog } from "./request_form.js";
import { weekDialog } from "./week.js";

const STATUSES = ["", "pending", "queued", "running", "paused", "failed", "completed", "cancelled"];
const WAITING = ["pending", "queued"];

export function queue(root, { query, go }) {
  const channel = query.get("channel") || "";
  const status = query.get("status") || "";
  const pages = new Pages((page) => get("v1/queue", { channel, status, ...page }));
  return screen(root, {
    async load() {
      const [shown, stats] = await Promise.all([pages.read(), get("v1/queue/stats")]);
      return { ...shown, channels: channelsOf(stats) };
    },
    watch: (data) => data.items.map((request) => [request.request_id, request.status]),
    view: (data, refresh) => [
      pageHead(t("nav.queue"), t("queue.lead"), button(t("queue.week"), weekDialog), session.can("write") && button(t("queue.newRequest"), () => requestDialog(go), { key: "new-request" }), session.isAdmin && allTools(refresh)),
      h("div", { class: "channel-cards" }, data.channels.map((channel) => channelCard(channel, refresh))),
      h("div", { class: "filters" },
        chips(t("queue.filterChannel"), [["", t("queue.anyChannel")], ...data.channels.map((channel) => [channel.channel, named("channel", channel.channel)])], channel, (chosen) => go("queue", { channel: chosen, status })),
        statusChips(t("queue.filterStatus"), STATUSES, status, (chosen) => go("queue", { channel, status: chosen }))),
      session.can("write") && (channel || status) && data.items.length ? bulkTools({ channel, status }, refresh) : null,
      data.items.length ? requestTable(data.items, refresh) : channel || status ? noMatch() : empty(t("queue.none"), t("queue.noneAdvice")),
      pages.moreButton(data, refresh),
    ],
    quick: 2500,
    slow: 5000,
  });
}

const channelsOf = (stats) => Object.entries(stats.channels).map(([name, channel]) => ({ channel: name, ...channel }));

function allTools(refresh) {
  return [
    button(t("queue.pauseAll"), () => confirm(t("queue.pauseAll"), t("action.pause"), () => act(() => post("v1/queue/pause", { scope: "all" }), t("queue.paused"), refresh))),
    button(t("queue.resumeAll"), () => act(() => post("v1/queue/resume", { scope: "all" }), t("queue.resumed"), refresh)),
  ];
}

function channelCard(channel, refresh) {
  const scope = channel.channel;
  const toggle = channel.paused
    ? button(t("action.resume"), () => act(() => post("v1/queue/resume", { scope }), t("queue.resumed"), refresh), { kind: "small", key: "toggle" })
    : button(t("action.pause"), () => act(() => post("v1/queue/pause", { scope }), t("queue.paused"), refresh), { kind: "small", key: "toggle" });
  const tools = session.isAdmin && [toggle, button(t("queue.capacity"), () => capacityDialog(channel, refresh), { kind: "small", key: "capacity" })];
  return card(named("channel", scope), { id: scope, tools: channel.paused && badge("paused") }, h("div", { class: "row-line" }, slotBar(channel), h("span", { class: "nowrap" }, `${count(channel.running)} / ${count(channel.capacity)}`)),
    h("p", { class: "muted" }, t("queue.waiting", { n: count(channel.queued) }), channel.oldest_wait_s ? ` · ${t("overview.oldest", { time: duration(channel.oldest_wait_s) })}` : ""),
    tools && h("div", { class: "action-row" }, tools));
}

function capacityDialog(channel, refresh) {
  const close = dialog(`${named("channel", channel.channel)}: ${t("queue.capacity")}`, () => form([
    field("capacity", t("queue.capacity"), { type: "number", min: 0, max: 10000, value: String(channel.capacity), required: true, hint: t("queue.capacityHint") }),
  ], t("action.save"), async (form_) => {
    await post("v1/queue/capacity", { [channel.channel]: Number(form_.capacity) });
    toast(t("queue.capacityChanged"));
    close();
    refresh();
  }));
}

// Applies one action to all requests that match the filter, a hundred at a time.
export function bulkTools(filter, refresh) {
  const wanted = Object.fromEntries(Object.entries(filter).filter(([, value]) => value));
  const all = (action, more) => act(async () => {
    let cursor;
    let changed = 0;
    do {
      const done = await post("v1/requests/bulk", { action, ...more, ...wanted, ...(cursor ? { cursor } : {}) });
      changed += done.changed;
      cursor = done.next_cursor;
    } while (cursor);
    toast(t("queue.bulkDone", { n: count(changed) }));
  }, null, refresh);
  const applies = (status) => !wanted.status || wanted.status === status;
  return h("div", { class: "action-row" },
    applies("failed") ? button(t("queue.retryAll"), () => all("retry", wanted.status ? {} : { status: "failed" }), { kind: "small", key: "bulk-retry" }) : null,
    applies("pending") ? button(t("queue.retryAllNow"), () => all("retry-now", wanted.status ? {} : { status: "pending" }), { kind: "small", key: "bulk-retry-now" }) : null,
    ["failed", "completed", "cancelled"].includes(wanted.status) ? null : button(t("queue.firstAll"), () => all("prioritize", { priority: 1 }), { kind: "small", key: "bulk-first" }),
    ["failed", "completed", "cancelled"].includes(wanted.status) ? null : button(t("queue.cancelAll"), () => confirm(t("queue.cancelAllSure"), t("queue.cancelAll"), () => all("cancel")), { kind: "small danger-quiet", key: "bulk-cancel" }));
}

export function requestTable(items, refresh) {
  return table(t("nav.queue"), [
    { title: t("queue.request"), kind: "main", cell: (request) => [link(requestName(request), requestHref(request), "strong"), h("span", { class: "under" }, requestName(request) === named("type", request.type) ? "" : `${named("type", request.type)} `, copyable(request.request_id))] },
    { title: t("field.status"), cell: (request) => badge(request.status) },
    { title: t("queue.why"), kind: "grow", cell: (request) => reason(request) },
    { title: t("queue.channel"), cell: (request) => named("channel", request.channel) },
    { title: t("queue.priority"), cell: (request) => request.priority },
    { title: t("field.created"), cell: (request) => when(request.create_time) },
    { title: t("field.actions"), kind: "actions", cell: (request) => requestActions(request, refresh) },
  ], items, { keyOf: (request) => request.request_id });
}

export const requestName = (request) => request.name || request.result?.file_name || named("type", request.type);
export const requestHref = (request) => (request.type === "export" ? `#/exports/${at(request.request_id)}` : `#/queue/${at(request.request_id)}`);

export function reason(request) {
  if (request.error) return h("span", { class: "reason" }, request.error.detail || request.error.code);
  if (WAITING.includes(request.status) && request.last_wait_reason) return named("wait", request.last_wait_reason);
  return "–";
}

export function requestActions(request, refresh) {
  if (!session.can("write")) return null;
  const path = `v1/requests/${at(request.request_id)}`;
  const made = [];
  const add = (label, verb, done, kind = "small") => made.push(button(label, () => act(() => post(`${path}/${verb}`), done, refresh), { kind, key: verb }));
  if (request.status === "paused") add(t("action.resume"), "resume", t("queue.requestResumed"));
  if ([...WAITING, "running"].includes(request.status)) add(t("action.pause"), "pause", t("queue.paused"));
  if (request.last_wait_reason === "backoff") add(t("action.retryNow"), "retry-now", t("exports.retried"));
  if (request.status === "failed") add(t("action.retry"), "retry", t("exports.retried"));
  if ([...WAITING, "paused"].includes(request.status)) made.push(button(t("queue.prioritise"), () => act(() => post(`${path}/prioritize`, { priority: 1 }), t("queue.prioritised"), refresh), { kind: "small", key: "first", disabled: request.priority === 1 }));
  if ([...WAITING, "paused", "running"].includes(request.status)) add(t("action.cancel"), "cancel", t("queue.cancelled"), "small danger-quiet");
  return h("div", { class: "action-row" }, made);
}
