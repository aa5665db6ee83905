// The console's texts, in the browser's language or the one that the user chose.
import { en } from "./words/en.js";
import { enPages } from "./words/en_pages.js";
import { enSchedules } from "./words/en_schedules.js";
import { zh } from "./words/zh.js";
import { zhPages } from "./words/zh_pages.js";
import { zhSchedules } from "./words/zh_schedules.js";

const DICTIONARIES = { en: together(en, enPages, enSchedules), zh: together(zh, zhPages, zhSchedules) };
const CHOICE = "tidegate.language";
let current = null;

export function language() {
  if (!current) {
    const wanted = localStorage.getItem(CHOICE) || navigator.language || "en";
    current = wanted.toLowerCase().startsWith("zh") ? "zh" : "en";
    document.documentElement.lang = current === "zh" ? "zh-CN" : "en";
  }
  return current;
}

export function speak(chosen) {
  localStorage.setItem(CHOICE, chosen);
  current = null;
  language();
}

export function t(key, values) {
  const found = word(DICTIONARIES[language()], key) ?? word(DICTIONARIES.en, key);
  if (found === undefined) return key;
  return values ? found.replace(/\{(\w+)\}/g, (_, name) => values[name] ?? "") : found;
}

// The text for a value that the server returns; an unknown value is shown as it is.
export function named(group, value) {
  const text = String(value ?? "");
  return word(DICTIONARIES[language()], `${group}.${text}`) ?? text;
}

function together(...parts) {
  const groups = [...new Set(parts.flatMap(Object.keys))];
  return Object.fromEntries(groups.map((name) => [name, Object.assign({}, ...parts.map((part) => part[name]))]));
}

function word(dictionary, key) {
  const found = key.split(".").reduce((at, part) => (at && Object.hasOwn(at, part) ? at[part] : undefined), dictionary);
  return typeof found === "string" ? found : undefined;
}
