// The steps of a request with their durations.
import { h } from "../dom.js";
import { clock, duration } from "../format.js";
import { named, t } from "../i18n.js";
import { code, empty } from "./basics.js";

export function requestLog(lines) {
  if (!lines.length) return empty(t("log.none"), t("log.noneAdvice"));
  return h("ol", { class: "logs", tabindex: "0", "aria-label": t("log.title") }, lines.map((line, index) => h("li", { "data-key": `log-${index}` },
    h("time", { class: "muted", datetime: line.at }, clock(line.at)),
    h("span", { class: "muted nowrap" }, t("log.attempt", { n: line.attempt })),
    h("span", { class: ["failed", "died"].includes(line.event) ? "reason" : null }, [named("event", line.event), line.detail, line.code].filter(Boolean).join(" · "),
      line.stack && h("details", null, h("summary", null, t("log.stack")), h("pre", { class: "mono" }, line.stack))),
    line.seconds !== undefined && line.seconds !== null ? code(duration(line.seconds)) : null)));
}
