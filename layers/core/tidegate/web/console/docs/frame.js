// What the reference and the getting-started page share: their texts, the switches of language and theme, the choice of
// a programming language, and code that can be copied.
import { h } from "../js/dom.js";
import { LANGUAGES } from "./languages.js";
import { CHINESE } from "./words_zh.js";

const TEXTS = {
  en: {
    start: "Getting started", reference: "API reference", textsIn: "", console: "Console", contract: "openapi.json", other: "中文", theme: "Light or dark", copy: "Copy", copied: "Copied", language: "Programming language",
    setUp: "Set up", setUpText: "The programs below read two variables. In a terminal:", oneProgram: "The steps are one program. Put them into {file} together, and run ", oneByOne: "Run the commands one after another.", signedIn: "Your key is filled in; copying takes all of it.", noKey: "An admin makes a key:", signIn: "Sign in to the console in this tab, and the key is filled in here.",
    key: "Key, sent as Authorization: Bearer", search: "Search, press /", searchHint: "path or word", sections: "Sections", parameters: "Parameters", body: "Body", answers: "Answers", request: "Request", answer: "Answer", send: "Send", noAnswer: "no answer", none: "Nothing matches.",
    webhooks: "What you implement: requests that Tidegate sends", unread: "The contract could not be read", more: "More", guides: "The guides, with batches, webhooks and releases, are in docs/ of the repository.",
    listOf: "list of {n}", anyJson: "any JSON", between: "{low} to {high}{unit}", atLeast: "at least {low}{unit}", atMost: "at most {high}{unit}", characters: " characters", entries: " entries", like: "like {n}", byDefault: "default {n}",
  },
  zh: {
    start: "快速上手", reference: "API 参考", textsIn: "。接口名称、公共参数和响应说明为中文，其余为英文。", console: "控制台", contract: "openapi.json", other: "English", theme: "浅色或深色", copy: "复制", copied: "已复制", language: "编程语言",
    setUp: "准备", setUpText: "下面的程序读取两个环境变量。在终端中执行：", oneProgram: "各步合起来是一个完整程序。依次写入 {file}，然后运行：", oneByOne: "依次执行各步命令。", signedIn: "已填入你的密钥，复制时会得到完整内容。", noKey: "密钥由管理员生成：", signIn: "在此标签页登录控制台后，密钥会自动填入。",
    key: "密钥，以 Authorization: Bearer 发送", search: "搜索，按 /", searchHint: "路径或关键词", sections: "目录", parameters: "参数", body: "请求体", answers: "响应", request: "请求", answer: "响应", send: "发送", noAnswer: "没有响应", none: "没有匹配的接口。",
    webhooks: "由你实现：Tidegate 发出的请求", unread: "无法读取接口文档", more: "更多", guides: "批处理、回调与发布等指南见仓库的 docs/ 目录。",
    listOf: "{n} 的列表", anyJson: "任意 JSON", between: "{low} 到 {high}{unit}", atLeast: "至少 {low}{unit}", atMost: "最多 {high}{unit}", characters: " 个字符", entries: " 项", like: "格式 {n}", byDefault: "默认 {n}",
  },
};
const STORED = { language: "tidegate.language", theme: "tidegate.theme", code: "tidegate.code", key: "tidegate.key" };
export const here = new URL(".", location.href).href.replace(/\/$/, "");
export const signedInKey = () => sessionStorage.getItem(STORED.key) || "";

export function language() {
  const wanted = localStorage.getItem(STORED.language) || navigator.language || "en";
  return wanted.toLowerCase().startsWith("zh") ? "zh" : "en";
}

export const t = (name, values = {}) => (TEXTS[language()][name] ?? TEXTS.en[name]).replace(/\{(\w+)\}/g, (_, value) => values[value]);

// A text of openapi.json in the reader's language.
export const inLanguage = (text) => (language() === "zh" && CHINESE[text]) || text;

export function pageHead(title, redraw) {
  const theme = localStorage.getItem(STORED.theme);
  if (theme) document.documentElement.dataset.theme = theme;
  document.documentElement.lang = language() === "zh" ? "zh-CN" : "en";
  document.title = `Tidegate: ${title}`;
  const links = [["start", "start"], ["docs", "reference"], ["openapi.json", "contract"], ["./", "console"]];
  const switchLanguage = () => { localStorage.setItem(STORED.language, language() === "zh" ? "en" : "zh"); redraw(); };
  return h("header", { class: "docs-top" }, h("h1", null, title), h("nav", null, links.map(([href, name]) => h("a", { href }, t(name)))),
    h("span", { class: "docs-switches" }, h("button", { type: "button", class: "plain", onclick: switchLanguage }, t("other")),
      h("button", { type: "button", class: "plain", "aria-label": t("theme"), title: t("theme"), onclick: switchTheme }, "◐")));
}

function switchTheme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  localStorage.setItem(STORED.theme, root.dataset.theme);
}

export function codeLanguage() {
  const chosen = localStorage.getItem(STORED.code);
  return LANGUAGES.some(([name]) => name === chosen) ? chosen : "curl";
}

// Tabs for the programming language. All of a page show the same choice, which is kept.
export function languageTabs(onChoice) {
  const tabs = h("div", { class: "docs-tabs", role: "tablist", "aria-label": t("language") }, LANGUAGES.map(([name, label]) =>
    h("button", { type: "button", role: "tab", "data-language": name, "aria-selected": String(name === codeLanguage()), tabindex: name === codeLanguage() ? "0" : "-1",
      onclick: () => choose(name), onkeydown: (event) => step(event, name) }, label)));
  function choose(name) {
    localStorage.setItem(STORED.code, name);
    for (const tab of document.querySelectorAll(".docs-tabs [role=tab]")) {
      tab.setAttribute("aria-selected", String(tab.dataset.language === name));
      tab.tabIndex = tab.dataset.language === name ? 0 : -1;
    }
    onChoice(name);
  }
  function step(event, name) {
    const names = LANGUAGES.map(([each]) => each);
    const moved = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!moved) return;
    const next = names[(names.indexOf(name) + moved + names.length) % names.length];
    choose(next);
    tabs.querySelector(`[data-language=${next}]`).focus();
  }
  return tabs;
}

// `copied` is what the button copies, if that differs from what is shown.
export function codeBlock(code, { copied = code, ...attributes } = {}) {
  return h("div", { class: "docs-code" }, h("pre", { tabindex: "0", ...attributes }, code.split("\n").flatMap((line, at) => [at ? "\n" : "", shownLine(line)])),
    h("button", { type: "button", class: "plain docs-copy", onclick: copy }, t("copy")));

  // The pressed button is asked for: a redraw may have kept the elements of another block.
  async function copy({ currentTarget: pressed }) {
    try {
      await navigator.clipboard.writeText(copied);
      pressed.textContent = t("copied");
      setTimeout(() => { pressed.textContent = t("copy"); }, 1200);
    } catch {
      getSelection().selectAllChildren(pressed.previousElementSibling);
    }
  }
}

// Comments and texts in a colour of their own. A comment begins at the start of a line or after a space.
const TOKENS = /(^|\s)((?:#|\/\/) .*$)|("""|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|`[^`]*`)/g;

// A line that does not fit is continued below, further in than it begins.
function shownLine(line) {
  const parts = [];
  let done = 0;
  for (const match of line.matchAll(TOKENS)) {
    const [whole, space = "", comment, text] = match;
    parts.push(words(line.slice(done, match.index) + space), h("span", { class: comment ? "docs-comment" : "docs-text" }, words(comment || text)));
    done = match.index + whole.length;
  }
  const indent = line.match(/^\s*/)[0].replaceAll("\t", "    ").length;
  return h("span", { class: "docs-line", style: { "--hang": `${indent + 2}ch` } }, parts, words(line.slice(done)));
}

// Lines break between words, after a bracket and before the address of a variable, never inside a name or an address.
function words(text) {
  return text.split(/(\s+)/).map((word) => (/\S/.test(word) ? word.split(/(?<=[(+])|(?<==)(?=http)/).flatMap((part, at) => [at ? h("wbr") : "", h("span", { class: "docs-word" }, part)]) : word));
}
