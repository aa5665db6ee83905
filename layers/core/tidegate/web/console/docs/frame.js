// What the reference and the getting-started page share: their texts, the switches of language and theme, the choice of
// a programming language, and code that can be copied.
import { h } from "../js/dom.js";
import { LANGUAGES } from "./languages.js";

const TEXTS = {
  en: {
    start: "Getting started", reference: "API reference", console: "Console", contract: "openapi.json", other: "中文", theme: "Light or dark", copy: "Copy", copied: "Copied", language: "Programming language",
    setUp: "Set up", setUpText: "The programs below read two variables. In a terminal:", signedIn: "Your key is filled in; copying takes all of it.", noKey: "An admin makes a key:", signIn: "Sign in to the console in this tab and it is filled in here.",
    key: "Key, sent as Authorization: Bearer", search: "Search, press /", searchHint: "path or word", sections: "Sections", parameters: "Parameters", body: "Body", answers: "Answers", request: "Request", answer: "answer", send: "Send", noAnswer: "no answer", none: "Nothing matches.",
    webhooks: "What you implement: requests that Tidegate sends", unread: "The contract could not be read", more: "More", guides: "The guides, with batches, webhooks and releases, are in docs/ of the repository.",
  },
  zh: {
    start: "快速上手", reference: "API 参考", console: "控制台", contract: "openapi.json", other: "English", theme: "浅色或深色", copy: "复制", copied: "已复制", language: "编程语言",
    setUp: "准备", setUpText: "下面的程序读取两个环境变量。在终端中执行：", signedIn: "已填入您的密钥，复制时会得到完整内容。", noKey: "密钥由管理员生成：", signIn: "在此标签页登录控制台后，密钥会自动填入。",
    key: "密钥，以 Authorization: Bearer 发送", search: "搜索，按 /", searchHint: "路径或关键词", sections: "目录", parameters: "参数", body: "请求体", answers: "响应", request: "请求", answer: "响应", send: "发送", noAnswer: "没有响应", none: "没有匹配的接口。",
    webhooks: "由您实现：Tidegate 发出的请求", unread: "无法读取接口文档", more: "更多", guides: "批处理、回调与发布等指南见仓库的 docs/ 目录。",
  },
};
const STORED = { language: "tidegate.language", theme: "tidegate.theme", code: "tidegate.code", key: "tidegate.key" };
export const here = new URL(".", location.href).href.replace(/\/$/, "");
export const signedInKey = () => sessionStorage.getItem(STORED.key) || "";

export function language() {
  const wanted = localStorage.getItem(STORED.language) || navigator.language || "en";
  return wanted.toLowerCase().startsWith("zh") ? "zh" : "en";
}

export const t = (name) => TEXTS[language()][name] ?? TEXTS.en[name];

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
  const button = h("button", { type: "button", class: "plain docs-copy", onclick: copy }, t("copy"));
  const pre = h("pre", { tabindex: "0", ...attributes }, coloured(code));
  return h("div", { class: "docs-code" }, pre, button);

  async function copy() {
    try {
      await navigator.clipboard.writeText(copied);
      button.textContent = t("copied");
      setTimeout(() => { button.textContent = t("copy"); }, 1200);
    } catch {
      getSelection().selectAllChildren(pre);
    }
  }
}

// Comments and texts in a colour of their own. A comment begins at the start of a line or after a space.
const TOKENS = /(^|\s)((?:#|\/\/) .*$)|("(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')/gm;

function coloured(code) {
  const parts = [];
  let done = 0;
  for (const match of code.matchAll(TOKENS)) {
    const [whole, space = "", comment, text] = match;
    parts.push(code.slice(done, match.index) + space, h("span", { class: comment ? "docs-comment" : "docs-text" }, comment || text));
    done = match.index + whole.length;
  }
  return [...parts, code.slice(done)];
}
