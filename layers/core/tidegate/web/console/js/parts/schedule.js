// Schedules: the form fields, the expression from them, and how an expression is shown.
import { h } from "../dom.js";
import { duration, moment, secondsUntil } from "../format.js";
import { language, t } from "../i18n.js";
import { code } from "./basics.js";
import { field, FieldError } from "./form.js";

const USUAL = [["rate(15 minutes)", "every15"], ["rate(1 hour)", "hourly"], ["cron(0 2 * * ? *)", "daily2"], ["cron(0 6 ? * MON *)", "weekly"], ["cron(0 2 1 * ? *)", "monthly"]];
const OTHER = "other";
const nameOf = (expression) => USUAL.find(([value]) => value === expression)?.[1];

// A select of usual schedules, and a field for any other expression. `none` is the label of the option without a schedule.
export function scheduleFields(known, { label = t("ingest.schedule"), none, hint, onchange } = {}) {
  const usual = !known || Boolean(nameOf(known));
  const choices = [...(none ? [["", none]] : []), ...USUAL.map(([value, name]) => [value, t(`schedules.${name}`)]), [OTHER, t("ingest.other")]];
  const other = field("schedule_other", t("ingest.scheduleOther"), { value: usual ? "" : known, hint: t("ingest.scheduleHint"), placeholder: "cron(0 2 * * ? *)" });
  other.hidden = usual;
  const chosen = field("schedule", label, { options: choices, value: usual ? known || "" : OTHER, hint, onchange: (event) => {
    other.hidden = event.target.value !== OTHER;
    onchange?.(event.target.value);
  } });
  return [chosen, other];
}

export function scheduleOf(given) {
  if (given.schedule !== OTHER) return given.schedule;
  const typed = given.schedule_other.trim();
  if (!typed) throw new FieldError("schedule_other", t("ingest.scheduleHint"));
  return typed;
}

export function scheduleText(expression) {
  const name = nameOf(expression);
  const text = name ? t(`schedules.${name}`) : timesOfDay(expression);
  return text ? h("span", { title: expression }, text) : code(expression);
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
