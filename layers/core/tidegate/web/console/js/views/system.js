// The deployment: its version and parameters, its alarms, and the poll for overdue work.
import { h } from "../dom.js";
import { get, post } from "../api.js";
import { count, duration, secondsUntil } from "../format.js";
import { t } from "../i18n.js";
import { badge, button, card, code, facts, pageHead, when } from "../parts/basics.js";
import { act, confirm, dialog, saved } from "../parts/dialog.js";
import { field, form } from "../parts/form.js";
import { screen } from "../parts/screen.js";
import { table } from "../parts/table.js";
import { showFreeze } from "../shell.js";

const ORDER = { alarm: 0, insufficient_data: 1, ok: 2 };

export function system(root, { tabs }) {
  return screen(root, {
    async load() {
      const [stack, poll] = await Promise.all([get("v1/system"), get("v1/compensation")]);
      return { stack, poll };
    },
    view: ({ stack, poll }, refresh) => [
      pageHead(t("operate.system"), t("system.lead", { stack: stack.stack_name, version: stack.version })),
      tabs("system"),
      h("div", { class: "grid" },
        card(t("system.alarms"), { wide: true, id: "alarms" }, stack.alarms_error && h("p", { class: "notice warn" }, stack.alarms_error), alarms(stack.alarms)),
        freezeCard(stack.freeze, refresh),
        compensationCard(poll, refresh),
        card(t("system.parameters"), { id: "parameters" }, h("p", { class: "muted" }, t("system.parametersWhat")),
          h("div", { class: "long-labels" }, facts(Object.entries(stack.parameters).filter(([, value]) => value !== "").map(([name, value]) => [name, code(value)]))))),
    ],
    quick: 10000,
    slow: 20000,
  });
}

function freezeCard(state, refresh) {
  const redraw = () => { showFreeze(document.getElementById("frozen")); refresh(); };
  const thaw = () => confirm(t("system.thawSure"), t("system.thaw"), () => act(() => post("v1/ops/thaw"), t("system.thawed"), redraw));
  const tools = button(t(state.frozen ? "system.thaw" : "system.freeze"), state.frozen ? thaw : () => freezeDialog(redraw), { kind: "small" });
  return card(t("system.freezeTitle"), { id: "freeze", tools },
    h("p", { class: "muted" }, t("system.freezeWhat")),
    state.frozen && facts([[t("system.reason"), state.reason], [t("system.since"), when(state.since)]]));
}

function freezeDialog(refresh) {
  const close = dialog(t("system.freezeTitle"), () => form(
    [field("reason", t("system.reason"), { required: true, hint: t("system.reasonHint") })],
    t("system.freeze"), async (values) => { await post("v1/ops/freeze", values); saved(close, refresh); }));
}

// Active alarms are shown; the others are collapsed into one line.
function alarms(all) {
  const ringing = all.filter((alarm) => alarm.state === "alarm");
  const quiet = all.filter((alarm) => alarm.state !== "alarm");
  return [
    ringing.length ? alarmTable(ringing) : all.length ? h("p", null, badge("ok"), " ", t("system.noAlarm")) : null,
    quiet.length ? h("details", { "data-key": "quiet-alarms" }, h("summary", null, t("system.quiet", { n: quiet.length })), h("div", null, alarmTable(quiet))) : null,
  ];
}

function alarmTable(alarms) {
  const sorted = [...alarms].sort((one, other) => ORDER[one.state] - ORDER[other.state] || one.name.localeCompare(other.name));
  return table(t("system.alarms"), [
    { title: t("field.name"), kind: "main", cell: (alarm) => h("span", { class: "strong" }, alarm.name) },
    { title: t("field.status"), cell: (alarm) => badge(alarm.state) },
    { title: t("system.means"), kind: "grow", cell: (alarm) => alarm.description },
    { title: t("system.since"), cell: (alarm) => (alarm.since ? when(alarm.since) : "–") },
  ], sorted, { keyOf: (alarm) => alarm.name });
}

export function compensationCard(state, refresh, canTrigger = true) {
  const tools = canTrigger && button(t("overview.pollNow"), () => act(() => post("v1/compensation/trigger"), t("overview.polled"), refresh), { kind: "small" });
  return card(t("overview.compensation"), { id: "compensation", tools },
    h("p", { class: "muted" }, t("overview.compensationWhat")),
    facts([
      [t("overview.interval"), `${duration(state.interval_s)} (×${state.multiplier})`],
      [t("overview.lastPoll"), state.last_poll ? when(state.last_poll) : t("overview.never")],
      [t("overview.nextPoll"), state.next_poll ? soon(secondsUntil(state.next_poll)) : "–"],
      [t("overview.overdue"), count(state.queue_size)],
      [t("overview.compensated"), count(state.compensated_total)],
    ]));
}

const soon = (seconds) => (seconds < 1 ? t("overview.anyMoment") : t("overview.in", { time: duration(seconds) }));
