// The small things every view is made of.
import { h, svg } from "../dom.js";
import { ago, moment } from "../format.js";
import { named, t } from "../i18n.js";

const TONES = {
  good: ["success", "completed", "finished", "ready", "delivered"],
  bad: ["failed", "dead", "error", "expired", "abandoned"],
  warn: ["timeout", "stopping", "paused", "retrying", "waiting_biz"],
  busy: ["running", "downloading", "coming", "verifying", "sending"],
};

export function tone(status) {
  const word = String(status ?? "").toLowerCase();
  return Object.keys(TONES).find((name) => TONES[name].includes(word)) || "calm";
}

export function badge(status) {
  return h("span", { class: `badge ${tone(status)}` }, named("status", String(status ?? "").toLowerCase()));
}

export function icon(name) {
  return svg("svg", { class: "icon", viewBox: "0 0 24 24", "aria-hidden": "true" }, svg("path", { d: ICONS[name] }));
}

export function button(label, onclick, { kind = "", disabled = false, title, iconName, key } = {}) {
  const face = iconName ? [icon(iconName), h("span", null, label)] : label;
  return h("button", { type: "button", class: `button ${kind}`, onclick, disabled, title, "data-key": key }, face);
}

export function link(label, href, kind = "") {
  return h("a", { href, class: kind }, label);
}

export function card(title, { tools, wide, id } = {}, ...children) {
  const head = h("header", { class: "card-head" }, h("h2", null, title), tools && h("div", { class: "tools" }, tools));
  return h("section", { class: `card ${wide ? "wide" : ""}`, "data-key": id }, head, h("div", { class: "card-body" }, children));
}

export function pageHead(title, lead, ...tools) {
  return h("header", { class: "page-head" },
    h("div", null, h("h1", { tabindex: "-1" }, title), lead && h("p", { class: "lead" }, lead)),
    h("div", { class: "tools" }, tools));
}

export function when(iso) {
  return h("time", { datetime: iso, title: moment(iso) }, iso ? ago(iso) : "–");
}

export function facts(pairs) {
  return h("dl", { class: "facts" }, pairs.filter(([, value]) => value !== undefined && value !== null && value !== "")
    .map(([label, value]) => h("div", null, h("dt", null, label), h("dd", null, value))));
}

export function code(text) {
  return h("code", { class: "code" }, text);
}

export function empty(title, advice, ...actions) {
  return h("div", { class: "state" }, icon("wave"), h("h3", null, title), h("p", null, advice), actions.length ? h("div", { class: "tools" }, actions) : null);
}

export function failure(error, retry) {
  return h("div", { class: "state bad", role: "alert" }, icon("alert"),
    h("h3", null, t("state.failed")), h("p", null, error.message), h("p", { class: "muted" }, advice(error)),
    retry && h("div", { class: "tools" }, button(t("action.retryLoad"), retry)));
}

function advice(error) {
  if (error.status === 0) return t("error.adviceNetwork");
  if (error.status === 403) return t("error.adviceScope");
  if (error.status === 404) return t("error.adviceGone");
  return t("error.adviceOther");
}

export function skeleton(lines = 4) {
  const made = Array.from({ length: lines }, () => h("div", { class: "bone" }));
  return h("div", { class: "skeleton", role: "status", "aria-label": t("state.loading") }, made);
}

export function chips(label, options, chosen, choose) {
  return h("div", { class: "chips", role: "group", "aria-label": label }, options.map(([value, text, number]) =>
    h("button", { type: "button", class: "chip", "aria-pressed": String(value === chosen), onclick: () => choose(value), "data-key": `chip-${value}` },
      text, number === undefined ? null : h("span", { class: "chip-count" }, number))));
}

const ICONS = {
  overview: "M4 13h6V4H4zM14 20h6v-9h-6zM4 20h6v-4H4zM14 8h6V4h-6z",
  distribution: "M12 4v6M12 10 5 17M12 10l7 7M12 10v7M4 20h2M11 20h2M18 20h2",
  exports: "M6 3h8l4 4v14H6zM14 3v4h4M9 12h6M9 16h6",
  batches: "M4 6h16M4 12h16M4 18h10",
  queue: "M5 5h14M7 10h10M9 15h6M11 20h2",
  callbacks: "M21 12a9 9 0 1 1-3-6.700M21 4v5h-5",
  files: "M3 6h6l2 2h10v11H3z",
  wave: "M3 10c3-3 6-3 9 0s6 3 9 0M3 16c3-3 6-3 9 0s6 3 9 0",
  alert: "M12 4 2.500 20h19zM12 10v4M12 17v.5",
  upload: "M12 16V5M7 10l5-5 5 5M4 19h16",
  download: "M12 4v11M7 10l5 5 5-5M4 19h16",
  add: "M12 5v14M5 12h14",
  sun: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 2v2M12 20v2M4 12H2M22 12h-2M5.600 5.600 4.200 4.200M19.800 19.800l-1.400-1.400M18.400 5.600l1.400-1.400M4.200 19.800l1.400-1.400",
  out: "M14 4h5v16h-5M10 8l-4 4 4 4M6 12h9",
};
