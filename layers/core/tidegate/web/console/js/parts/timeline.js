// A record's life from its audit lines: who, when, why.
import { h } from "../dom.js";
import { clock } from "../format.js";
import { named, t } from "../i18n.js";
import { badge, empty, tone } from "./basics.js";

export function timeline(lines) {
  if (!lines.length) return empty(t("timeline.none"), t("timeline.noneAdvice"));
  const ordered = [...lines].sort((one, other) => String(timeOf(one)).localeCompare(String(timeOf(other))));
  return h("ol", { class: "timeline" }, ordered.map((line, index) => {
    const to = line.to || line.to_status || line.status || line.action;
    const from = line.from || line.from_status;
    return h("li", { class: tone(to), "data-key": `line-${index}` },
      h("div", { class: "row-head" }, h("span", null, from ? [named("status", String(from).toLowerCase()), " → "] : null, badge(to)), h("time", { datetime: timeOf(line), class: "muted" }, clock(timeOf(line)))),
      h("p", { class: "muted" }, [line.why || line.reason, line.who || line.actor].filter(Boolean).join(" · ")));
  }));
}

const timeOf = (line) => line.at || line.when || line.time || line.create_time;
