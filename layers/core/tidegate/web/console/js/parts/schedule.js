// Schedules: the form fields, the expression from them, and how an expression is shown.
import { at } from "../api.js";
import { h } from "../dom.js";
import { duration, moment, secondsUntil } from "../format.js";
import { language, t } from "../i18n.js";
import { badge, card, code, empty, link } from "./basics.js";
import { field, FieldError } from "./form.js";
import { table } from "./table.js";

const USUAL = [["rate(15 minutes)", "every15"], ["rate(1 hour)", "hourly"], ["cron(0 2 * * ? *)", "daily2"], ["cron(0 6 ? * MON *)", "weekly"], ["cron(0 2 1 * ? *)", "monthly"]];
const OTHER = "other";
const nameOf = (expression) => USUAL.find(([value]) => value === expression)?.[1];

// A select of usual schedules, a field for any other expression, and the time zone. `known` is a record, or has its
// fields. `none` is the label of the option without a schedule.
export function scheduleFields(known, { label = t("ingest.schedule"), none, hint, onchange } = {}) {
  const usual = !known.schedule || Boolean(nameOf(known.schedule));
  const choices = [...(none ? [["", none]] : []), ...USUAL.map(([value, name]) => [value, t(`schedules.${name}`)]), [OTHER, t("ingest.other")]];
  const other = field("schedule_other", t("ingest.scheduleOther"), { value: usual ? "" : known.schedule, hint: t("ingest.scheduleHint"), placeholder: "cron(0 2 * * ? *)" });
  const zones = [...new Set([known.timezone || "UTC", "UTC", Intl.DateTimeFormat().resolvedOptions().timeZone, ...Intl.supportedValuesOf("timeZone")])];
  const zone = field("timezone", t("schedules.timezone"), { options: zones.map((name) => [name, name]), value: known.timezone || "UTC", hint: t("schedules.timezoneHint") });
  other.hidden = usual;
  zone.hidden = Boolean(none) && !known.schedule;
  const chosen = field("schedule", label, { options: choices, value: usual ? known.schedule || "" : OTHER, hint, onchange: (event) => {
    other.hidden = event.target.value !== OTHER;
    zone.hidden = !event.target.value;
    onchange?.(event.target.value);
  } });
  return [chosen, other, zone];
}

// `schedule` and `timezone` as the API takes them; empty without a schedule.
export function timingOf(given) {
  const schedule = given.schedule === OTHER ? given.schedule_other.trim() : given.schedule;
  if (given.schedule === OTHER && !schedule) throw new FieldError("schedule_other", t("ingest.scheduleHint"));
  return schedule ? { schedule, timezone: given.timezone } : {};
}

export function scheduleText({ schedule, timezone }) {
  const name = nameOf(schedule);
  const text = name ? t(`schedules.${name}`) : timesOfDay(schedule);
  if (!text) return code(schedule);
  return h("span", { title: schedule }, schedule.startsWith("cron") ? `${text} ${timezone}` : text);
}

// Daily or weekly schedules in words; any other expression as it is.
function timesOfDay(expression) {
  const [, minute, hour, days] = /^cron\((\d{1,2}) (\d{1,2}) (?:\* \* \?|\? \* ([A-Z]{3}(?:[-,][A-Z]{3})*)) \*\)$/.exec(expression) || [];
  if (!minute) return null;
  const time = `${hour.padStart(2, "0")}:${minute.padStart(2, "0")}`;
  return days ? t("schedules.onDays", { days: days.replace(/[A-Z]{3}/g, dayName), time }) : t("schedules.dailyAt", { time });
}

const DAYS = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];
// 1 January 2023 was a Sunday.
const dayName = (day) => (DAYS.includes(day) ? new Intl.DateTimeFormat(language() === "zh" ? "zh-CN" : "en-GB", { weekday: "short", timeZone: "UTC" }).format(new Date(Date.UTC(2023, 0, 1 + DAYS.indexOf(day)))) : day);

// Audit lines of a schedule, with the status after each action.
const STATUS_AFTER = { create: "created", pause: "paused", resume: "resumed", change: "changed" };
export function withStatuses(lines) {
  return lines.map((line) => ({ ...line, to: line.to || STATUS_AFTER[String(line.action).split(".").pop()] }));
}

// In the user's time zone, which the tooltip names.
export function nextRun(item) {
  if (!item.next_run) return "–";
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  return h("time", { datetime: item.next_run, title: zone }, `${moment(item.next_run)} (${t("overview.in", { time: duration(Math.max(0, secondsUntil(item.next_run))) })})`);
}

// The runs of a schedule. `kind` says what a run started: its record (`work`), where it is shown (`area`), its progress.
export function runsCard(record, runs, { work, area, progress }, more) {
  const rows = () => table(t("schedules.runs"), [
    { title: t("schedules.due"), kind: "main", cell: (run) => (run[`${work}_id`] ? link(moment(run.due), `#/${area}/${at(run[`${work}_id`])}`, "strong") : moment(run.due)) },
    { title: t("field.status"), cell: (run) => badge(run[work]?.status || (run.code ? "failed" : run.state)) },
    { title: t("jobs.progress"), kind: "grow", cell: (run) => [run[work] && progress?.(run[work]), run.reason && h("span", { class: "under reason" }, run.reason)] },
  ], runs.items, { keyOf: (run) => run.due });
  const none = () => empty(t("schedules.noRuns"), record.next_run ? t("schedules.noRunsAdvice", { time: moment(record.next_run) }) : t("schedules.noRunsPaused"));
  return card(t("schedules.runs"), { id: "runs", wide: true },
    record.last_error && h("p", { class: "notice warn" }, record.failed_runs > 1 && `${t("schedules.failedRuns", { n: record.failed_runs })} `, record.last_error),
    runs.items.length ? rows() : none(), more);
}

// The last record of each schedule, by id. Records that have ended are not read again.
export class LastRuns {
  constructor(ask, ended) {
    this.ask = ask;
    this.ended = ended;
    this.known = new Map();
  }

  read(ids) {
    return Promise.all([...new Set(ids.filter(Boolean))].map(async (id) => {
      if (this.ended.includes(this.known.get(id)?.status)) return;
      // It may have been deleted.
      this.known.set(id, await this.ask(id).catch(() => null));
    }));
  }

  get(id) { return id ? this.known.get(id) || null : null; }
}
