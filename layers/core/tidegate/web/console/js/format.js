// Formats values in the language of the console.
import { language, t } from "./i18n.js";

const locale = () => (language() === "zh" ? "zh-CN" : "en-GB");

export function count(value) {
  return value === undefined || value === null ? "–" : new Intl.NumberFormat(locale()).format(value);
}

export function bytes(size) {
  if (size === undefined || size === null) return "–";
  const units = ["B", "KB", "MB", "GB", "TB"];
  const step = size < 1 ? 0 : Math.min(units.length - 1, Math.floor(Math.log(size) / Math.log(1024)));
  const shown = size / 1024 ** step;
  return `${step && shown < 100 ? shown.toFixed(1) : Math.round(shown)} ${units[step]}`;
}

export function percent(share, digits = 0) {
  return share === undefined || share === null ? "–" : `${(share * 100).toFixed(digits).replace(/\.0+$/, "")}%`;
}

export function duration(seconds) {
  if (seconds === undefined || seconds === null || Number.isNaN(seconds)) return "–";
  if (seconds < 1) return t("unit.ms", { n: Math.round(seconds * 1000) });
  if (seconds < 10) return t("unit.s", { n: Math.round(seconds * 10) / 10 });
  // Round before splitting, or 119.7 s would be 1 min 60 s.
  const whole = Math.round(seconds);
  if (whole < 60) return t("unit.s", { n: whole });
  if (whole < 3600) return t("unit.m", { n: Math.floor(whole / 60), s: whole % 60 });
  return t("unit.h", { n: Math.floor(whole / 3600), m: Math.floor((whole % 3600) / 60) });
}

// A whole number of hours or days, for choices in forms.
export function wholeUnits(number, unit) {
  return new Intl.NumberFormat(locale(), { style: "unit", unit, unitDisplay: "long" }).format(number);
}

export function moment(iso) {
  const at = asDate(iso);
  if (!at) return "–";
  const style = isToday(at) ? { timeStyle: "medium" } : { dateStyle: "medium", timeStyle: "short" };
  return new Intl.DateTimeFormat(locale(), style).format(at);
}

// To the millisecond, with the date if it is not today.
export function clock(iso) {
  const at = asDate(iso);
  if (!at) return "–";
  const date = isToday(at) ? {} : { day: "numeric", month: "short" };
  return new Intl.DateTimeFormat(locale(), { ...date, hour: "2-digit", minute: "2-digit", second: "2-digit", fractionalSecondDigits: 3 }).format(at);
}

const isToday = (at) => at.toDateString() === new Date().toDateString();

export function secondsUntil(iso) {
  const at = asDate(iso);
  return at ? (at.getTime() - Date.now()) / 1000 : 0;
}

export function ago(iso) {
  const at = asDate(iso);
  if (!at) return "–";
  const past = (Date.now() - at.getTime()) / 1000;
  if (past < 5) return t("unit.now");
  const [unit, size] = past < 60 ? ["second", 1] : past < 3600 ? ["minute", 60] : past < 86400 ? ["hour", 3600] : ["day", 86400];
  return new Intl.RelativeTimeFormat(locale(), { numeric: "always", style: "short" }).format(-Math.round(past / size), unit);
}

function asDate(value) {
  if (value === undefined || value === null || value === "") return null;
  const at = typeof value === "number" ? new Date(value * 1000) : new Date(value);
  return Number.isNaN(at.getTime()) ? null : at;
}

export function shortId(id, length = 10) {
  const text = String(id ?? "");
  return text.length > length + 2 ? `…${text.slice(-length)}` : text;
}
