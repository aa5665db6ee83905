// The console's texts, in the browser's language or the one that the user chose.
import { en } from "./words/en.js";
import { enPages } from "./words/en_pages.js";
import { enSchedules } from "./words/en_schedules.js";
import { zh } from "./words/zh.js";
import { zhPages } from "./words/zh_pages.js";
import { zhSchedules } from "./words/zh_schedules.js";

const DICTIONARIES = { en: merged(en, enPages, enSchedules), zh: merged(zh, zhPages, zhSchedules) };
const STORED_LANGUAGE = "tidegate.language";
let current = null;

export function language() {
  if (!current) {
    const wanted = localStorage.getItem(STORED_LANGUAGE) || navigator.language || "en";
    current = wanted.toLowerCase().startsWith("zh") ? "zh" : "en";
    document.documentElement.lang = current === "zh" ? "zh-CN" : "en";
  }
  return current;
}

export function setLanguage(chosen) {
  localStorage.setItem(STORED_LANGUAGE, chosen);
  current = null;
  language();
}

export function t(key, values) {
  const found = textAt(DICTIONARIES[language()], key) ?? textAt(DICTIONARIES.en, key);
  if (found === undefined) return key;
  return values ? found.replace(/\{(\w+)\}/g, (_, name) => values[name] ?? "") : found;
}

// The text for a value that the server returns; an unknown value is shown as it is.
export function named(group, value) {
  const text = String(value ?? "");
  return textAt(DICTIONARIES[language()], `${group}.${text}`) ?? text;
}

function merged(...parts) {
  const groups = [...new Set(parts.flatMap(Object.keys))];
  return Object.fromEntries(groups.map((name) => [name, Object.assign({}, ...parts.map((part) => part[name]))]));
}

function textAt(dictionary, key) {
  const found = key.split(".").reduce((at, part) => (at && Object.hasOwn(at, part) ? at[part] : undefined), dictionary);
  return typeof found === "string" ? found : undefined;
}
