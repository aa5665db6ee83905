// The timeline of a record from its audit lines: who, when, why.
import { h } from "../dom.js";
import { clock } from "../format.js";
import { named, t } from "../i18n.js";
import { badge, copyable, empty, tone } from "./basics.js";

export function timeline(lines) {
  if (!lines.length) return empty(t("timeline.none"), t("timeline.noneAdvice"));
  const ordered = [...lines].sort((one, other) => one.at.localeCompare(other.at));
  return h("ol", { class: "timeline" }, ordered.map((line, index) =>
    h("li", { class: tone(line.to), "data-key": `line-${index}` },
      h("div", { class: "row-head" },
        h("span", null, line.from && line.from !== line.to ? [named("status", line.from), " → "] : null, badge(line.to || line.action)),
        h("time", { datetime: line.at, class: "muted" }, clock(line.at))),
      h("p", { class: "muted" }, line.to === "queued" ? named("wait", line.why) : line.why, line.why && line.who && " · ", line.who && actor(line.who)))));
}

const actor = (who) => (who === "system" ? t("audit.system") : copyable(who));
