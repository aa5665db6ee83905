// Bars and small charts. Widths are set through CSSOM, which the Content-Security-Policy allows.
import { h, svg } from "../dom.js";
import { count, duration, percent, secondsUntil } from "../format.js";
import { t } from "../i18n.js";
import { session } from "../session.js";

export function bar(share, label, kind = "busy") {
  const width = Math.max(0, Math.min(1, share || 0));
  return h("div", { class: "bar", role: "progressbar", "aria-valuemin": "0", "aria-valuemax": "100", "aria-valuenow": Math.round(width * 100), "aria-label": label },
    h("div", { class: `fill ${kind}`, style: { width: `${width * 100}%` } }));
}

const STATUSES = [["success", "good"], ["failed", "bad"], ["timeout", "warn"], ["downloading", "busy"]];
// Rare: shown only if there are some.
const OPTIONAL = [["superseded", "calm"]];
const statuses = (counts) => [...STATUSES, ...OPTIONAL.filter(([name]) => counts?.[name])];

export function statusBar(counts, label) {
  const total = counts?.total || 0;
  const spoken = statuses(counts).map(([name]) => `${t(`status.${name}`)} ${count(counts?.[name] || 0)}`).join(", ");
  return h("div", { class: "bar stacked", role: "img", "aria-label": `${label}: ${spoken} / ${count(total)}` },
    statuses(counts).map(([name, kind]) => h("div", { class: `fill ${kind}`, "data-key": name, style: { width: `${total ? ((counts[name] || 0) / total) * 100 : 0}%` } })));
}

export function statusLegend(counts) {
  return h("ul", { class: "legend" }, statuses(counts).map(([name, kind]) =>
    h("li", null, h("span", { class: `dot ${kind}` }), t(`status.${name}`), h("strong", null, count(counts?.[name] || 0)))));
}

export function slotBar(channel) {
  const { capacity: size = 0, running = 0 } = channel;
  const slots = Math.min(size, 20);
  const filled = size ? Math.round((Math.min(running, size) / size) * slots) : 0;
  return h("div", { class: "slots", role: "img", "aria-label": t("queue.slots", { running, size }) },
    Array.from({ length: slots }, (_, index) => h("span", { class: index < filled ? "slot taken" : "slot" })));
}

// The countdown of an open window.
export function windowBar(job) {
  const left = Math.max(0, secondsUntil(job.window_closes_at));
  return h("div", { class: "progress" }, bar(1 - Math.min(1, left / session.me.window_seconds), t("overview.filling"), "tide"),
    h("span", { class: "nowrap muted" }, left > 0 ? t("overview.closesIn", { n: Math.ceil(left) }) : t("overview.closing")));
}

// The success rate as a ring with the number inside.
export function ring(share, label) {
  const radius = 26;
  const around = 2 * Math.PI * radius;
  const known = share !== undefined && share !== null;
  const kind = !known ? "calm" : share >= 0.99 ? "good" : share >= 0.9 ? "warn" : "bad";
  return svg("svg", { class: `ring ${kind}`, viewBox: "0 0 64 64", role: "img", "aria-label": `${label}: ${percent(share, 1)}` },
    svg("circle", { class: "track", cx: 32, cy: 32, r: radius }),
    svg("circle", { class: "part", cx: 32, cy: 32, r: radius, "stroke-dasharray": `${around * (share || 0)} ${around}`, transform: "rotate(-90 32 32)" }),
    svg("text", { x: 32, y: 37, "text-anchor": "middle" }, percent(share, 1)));
}

// One column for each interval of the last hour, with failures stacked on top in red.
export function hourChart(points, label) {
  const width = 240;
  const height = 48;
  const most = Math.max(1, ...points.map((point) => point.count));
  const each = width / Math.max(1, points.length);
  const drawn = points.flatMap((point, index) => {
    const whole = (point.count / most) * (height - 2);
    const failed = point.count ? whole * ((point.failed || 0) / point.count) : 0;
    const x = index * each + each * 0.15;
    return [
      svg("rect", { class: "column", x, width: each * 0.7, y: height - whole + failed, height: Math.max(0, whole - failed), rx: 1 }),
      failed ? svg("rect", { class: "column bad", x, width: each * 0.7, y: height - whole, height: failed, rx: 1 }) : null,
    ];
  });
  const total = points.reduce((sum, point) => sum + point.count, 0);
  return svg("svg", { class: "hour-chart", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": `${label}: ${count(total)}` },
    svg("line", { class: "axis", x1: 0, x2: width, y1: height - 0.5, y2: height - 0.5 }), drawn);
}

export function durationBar(seconds, longest, label) {
  return h("div", { class: "duration-bar" }, bar(longest ? seconds / longest : 0, label, "calm"), h("span", null, duration(seconds)));
}
