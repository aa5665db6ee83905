// Small elements that all views use.
import { h, svg } from "../dom.js";
import { ago, moment, shortId } from "../format.js";
import { named, t } from "../i18n.js";
import { here } from "../router.js";
import { session } from "../session.js";

const TONES = {
  good: ["success", "completed", "finished", "ready", "delivered", "active", "online", "ok", "current", "converged"],
  bad: ["failed", "dead", "error", "expired", "abandoned", "revoked", "alarm"],
  warn: ["timeout", "superseded", "stopping", "paused", "retrying", "waiting_biz", "offline", "skipped", "rolled_back", "drifted", "staged"],
  busy: ["running", "downloading", "coming", "verifying", "sending", "rolling", "waiting", "behind"],
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
  const content = iconName ? [icon(iconName), h("span", null, label)] : label;
  const press = onclick && ((event) => busyWhile(event.currentTarget, onclick(event)));
  return h("button", { type: "button", class: `button ${kind}`, onclick: press, disabled, title, "data-key": key }, content);
}

// Shows on the button that its action is running, if that takes longer than a moment. A failure stays the caller's.
export function busyWhile(pressed, running) {
  if (!running?.finally) return running;
  pressed?.setAttribute("aria-busy", "true");
  return running.finally(() => pressed?.removeAttribute("aria-busy"));
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
  return h("dl", { class: "facts" }, pairs.filter(([, value]) => value !== undefined && value !== null && value !== "" && value !== false)
    .map(([label, value]) => h("div", null, h("dt", null, label), h("dd", null, value))));
}

// A number with its label; several of them stand in a list of the class `figures`.
export function figure(label, value) {
  return h("li", null, h("span", { class: "muted" }, label), h("strong", null, value));
}

export function code(text) {
  return h("code", { class: "code" }, text);
}

// An id, shortened; whole in the tooltip, copied by a click.
export function copyable(text, label) {
  return h("button", { type: "button", class: "copy", title: `${text}\n${t("action.copy")}`, "aria-label": `${t("action.copy")} ${text}`, onclick: copy }, label || shortId(text), icon("copy"));

  async function copy(event) {
    event.preventDefault();
    const pressed = event.currentTarget;
    try {
      await navigator.clipboard.writeText(text);
      pressed.classList.add("copied");
      setTimeout(() => pressed.classList.remove("copied"), 1200);
    } catch {
      getSelection().selectAllChildren(pressed);
    }
  }
}

// The name of a record as a link, and its id.
export function nameAndId(name, href, id) {
  return [link(name, href, "strong"), h("span", { class: "under" }, copyable(id))];
}

export function tabs(label, options, chosen) {
  const made = h("nav", { class: "tabs", "aria-label": label }, options.map(([name, href, text]) =>
    h("a", { href, "aria-current": name === chosen ? "page" : null, "data-key": `tab-${name}` }, text)));
  // On a narrow screen the tabs scroll: bring the current one into view, once.
  requestAnimationFrame(() => made.isConnected && made.scrollWidth > made.clientWidth && made.querySelector("[aria-current]")?.scrollIntoView({ inline: "center", block: "nearest" }));
  return made;
}

export function crumbs(...links) {
  return h("nav", { class: "crumbs", "aria-label": t("nav.crumbs") }, links);
}

export function empty(title, advice, ...actions) {
  return h("div", { class: "state" }, icon("wave"), h("h3", null, title), h("p", null, advice), actions.length ? h("div", { class: "tools" }, actions) : null);
}

// For a list that is empty because of its filters.
export function noMatch() {
  return empty(t("state.noMatch"), t("state.noMatchAdvice"));
}

// What to do about an empty list; a key that may only read cannot follow the advice.
export function toWriters(text) {
  return session.can("write") ? text : t("state.readOnly");
}

export function failure(error, retry) {
  return h("div", { class: "state bad", role: "alert" }, icon("alert"),
    h("h3", null, t("state.failed")), h("p", null, error.message), h("p", { class: "muted" }, advice(error)),
    error.requestId && h("p", { class: "muted" }, t("error.requestId"), " ", copyable(error.requestId)),
    h("div", { class: "tools" }, retry && button(t("action.retryLoad"), retry), error.status === 404 && listLink()));
}

// Shown if a record is not found: a link to its list.
const LISTS = { tasks: "distribution" };
function listLink() {
  const { area, id } = here();
  if (!id || area === "operate") return null;
  const list = LISTS[area] || area;
  return link(t(list.endsWith("-schedules") ? "schedules.title" : `nav.${list}`), `#/${list}`, "button");
}

export function advice(error) {
  if (error.status === 0) return t("error.adviceNetwork");
  if (error.code === "scope_missing") return t("error.adviceScope");
  if (error.status === 404) return t("error.adviceGone");
  return t("error.adviceOther");
}

export function skeleton(lines = 4) {
  const made = Array.from({ length: lines }, () => h("div", { class: "skeleton-line" }));
  return h("div", { class: "skeleton", role: "status", "aria-label": t("state.loading") }, made);
}

export function chips(label, options, chosen, choose) {
  return h("div", { class: "chips", role: "group", "aria-label": label }, options.map(([value, text, number]) =>
    h("button", { type: "button", class: "chip", "aria-pressed": String(value === chosen), onclick: () => choose(value), "data-key": `chip-${value}` },
      text, number === undefined ? null : h("span", { class: "chip-count" }, number))));
}

// A filter by status; the empty status stands for all.
export function statusChips(label, statuses, chosen, choose) {
  return chips(label, statuses.map((status) => [status, status ? named("status", status.toLowerCase()) : t("action.all")]), chosen, choose);
}

const ICONS = {
  overview: "M4 13h6V4H4zM14 20h6v-9h-6zM4 20h6v-4H4zM14 8h6V4h-6z",
  distribution: "M12 4v6M12 10 5 17M12 10l7 7M12 10v7M4 20h2M11 20h2M18 20h2",
  exports: "M6 3h8l4 4v14H6zM14 3v4h4M9 12h6M9 16h6",
  batches: "M4 6h16M4 12h16M4 18h10",
  queue: "M5 5h14M7 10h10M9 15h6M11 20h2",
  callbacks: "M21 12a9 9 0 1 1-3-6.700M21 4v5h-5",
  files: "M3 6h6l2 2h10v11H3z",
  fleet: "M4 5h16v5H4zM4 14h16v5H4zM8 7.500v.1M8 16.500v.1",
  ingest: "M12 3v10M8 9l4 4 4-4M4 15v5h16v-5",
  operate: "M5 6h8M17 6h2M5 12h2M11 12h8M5 18h9M18 18h1M15 4v4M9 10v4M16 16v4",
  search: "M11 5a6 6 0 1 0 0 12 6 6 0 0 0 0-12zM20 20l-4.700-4.700",
  copy: "M9 9h10v11H9zM5 15V4h10",
  grip: "M9 6v.1M9 12v.1M9 18v.1M15 6v.1M15 12v.1M15 18v.1",
  wave: "M3 10c3-3 6-3 9 0s6 3 9 0M3 16c3-3 6-3 9 0s6 3 9 0",
  alert: "M12 4 2.500 20h19zM12 10v4M12 17v.5",
  upload: "M12 16V5M7 10l5-5 5 5M4 19h16",
  download: "M12 4v11M7 10l5 5 5-5M4 19h16",
  add: "M12 5v14M5 12h14",
  sun: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 2v2M12 20v2M4 12H2M22 12h-2M5.600 5.600 4.200 4.200M19.800 19.800l-1.400-1.400M18.400 5.600l1.400-1.400M4.200 19.800l1.400-1.400",
  out: "M14 4h5v16h-5M10 8l-4 4 4 4M6 12h9",
};
