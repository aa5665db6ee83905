// The overview: what is running, what waits, and the last hour.
import { h } from "../dom.js";
import { get } from "../api.js";
import { count, duration, percent, shortId } from "../format.js";
import { named, t } from "../i18n.js";
import { session } from "../session.js";
import { badge, card, empty, link, pageHead, toWriters, when } from "../parts/basics.js";
import { durationBar, hourChart, ring, slotBar, statusBar, windowBar } from "../parts/bars.js";
import { screen } from "../parts/screen.js";
import { jobLink } from "./jobs.js";
import { requestHref, requestName } from "./queue.js";
import { compensationCard } from "./system.js";

export function overview(root) {
  return screen(root, {
    load: () => get("v1/overview"),
    watch: (data) => data.jobs.map((job) => [job.job_id, job.status]),
    view: (data, refresh) => [pageHead(t("nav.overview"), t("overview.lead")), tiles(data), h("div", { class: "grid" },
      windows(data), channels(data), lastHour(data), recent(data), compensationCard(data.compensation, refresh, session.isAdmin))],
    quick: 3000,
    slow: 4000,
    tick: true,
  });
}

function tiles(data) {
  const running = sum(data.channels, "running");
  const jobsRunning = data.jobs.filter((job) => job.status === "Running").length;
  const ended = sum(data.stats, "count");
  const succeeded = data.stats.reduce((total, each) => total + each.count * (each.success_rate || 0), 0);
  const oldest = Math.max(0, ...data.channels.map((channel) => channel.oldest_wait_s || 0));
  return h("ul", { class: "tiles" },
    tile(t("overview.running"), count(running + jobsRunning), t("overview.runningOf", { requests: running, jobs: jobsRunning })),
    tile(t("overview.waiting"), count(sum(data.channels, "queued")), oldest ? t("overview.oldest", { time: duration(oldest) }) : t("overview.noWait")),
    tile(t("overview.ended"), count(ended), t("overview.lastHour")),
    tile(t("overview.success"), ended ? percent(succeeded / ended, 1) : "–", t("overview.lastHour")));
}

const sum = (list, name) => list.reduce((total, each) => total + (each[name] || 0), 0);

function tile(label, value, note) {
  return h("li", { class: "tile" }, h("span", { class: "tile-label" }, label), h("strong", { class: "tile-value" }, value), h("span", { class: "muted" }, note));
}

function windows(data) {
  const open = data.jobs.filter((job) => job.status === "Pending");
  const busy = data.jobs.filter((job) => job.status === "Running");
  const body = open.length + busy.length
    ? h("ul", { class: "rows" }, open.map(openWindow), busy.map(movingJob))
    : empty(t("overview.noWindows"), t("overview.noWindowsAdvice"), session.can("write") && link(t("jobs.submit"), "#/distribution/new", "button"));
  return card(t("overview.windows"), { id: "windows", tools: link(t("action.all"), "#/distribution") }, body);
}

function openWindow(job) {
  return h("li", { class: "row", "data-key": job.key }, h("div", { class: "row-head" }, jobLink(job), badge(job.status)),
    windowBar(job), h("span", { class: "muted" }, t("overview.targetsSoFar", { n: count(job.counts.total) })));
}

function movingJob(job) {
  return h("li", { class: "row", "data-key": job.key },
    h("div", { class: "row-head" }, jobLink(job), badge(job.status)),
    statusBar(job.counts, job.file_name),
    h("span", { class: "muted" }, t("jobs.doneOf", { done: count(job.counts?.success ?? 0), total: count(job.counts?.total ?? 0) })));
}

function channels(data) {
  if (!data.channels.length) return card(t("overview.channels"), { id: "channels" }, empty(t("queue.none"), t("queue.noneAdvice")));
  return card(t("overview.channels"), { id: "channels", tools: link(t("action.manage"), "#/queue") }, h("ul", { class: "rows" }, data.channels.map((channel) =>
    h("li", { class: "row", "data-key": channel.channel },
      h("div", { class: "row-head" }, h("strong", null, named("channel", channel.channel)), channel.paused ? badge("paused") : h("span", { class: "muted" }, t("queue.waiting", { n: count(channel.queued) }))),
      h("div", { class: "row-line" }, slotBar(channel), h("span", { class: "nowrap" }, `${count(channel.running)} / ${count(channel.capacity)}`))))));
}

function lastHour(data) {
  const slowest = Math.max(0, ...data.stats.map((each) => each.p95_s || 0));
  if (!data.stats.length) return card(t("overview.byType"), { id: "hour" }, empty(t("overview.noStats"), t("overview.noStatsAdvice")));
  return card(t("overview.byType"), { id: "hour", wide: true }, h("ul", { class: "types" }, data.stats.map((each) =>
    h("li", { class: "type", "data-key": each.type },
      ring(each.success_rate, t("overview.success")),
      h("div", { class: "type-body" },
        h("div", { class: "row-head" }, h("strong", null, named("type", each.type)), h("span", { class: "muted" }, t("overview.nEnded", { n: count(each.count) }))),
        each.points?.length ? hourChart(each.points, named("type", each.type)) : null,
        h("div", { class: "row-line" }, h("span", { class: "muted nowrap" }, "p95"), durationBar(each.p95_s, slowest, "p95")))))));
}

// A request without a name is called by its type already.
const kindOrId = (request) => (requestName(request) === named("type", request.type) ? shortId(request.request_id) : named("type", request.type));

function recent(data) {
  const ended = data.jobs.filter((job) => !["Pending", "Running"].includes(job.status)).slice(0, 6);
  const rows = [...ended.map((job) => [job.finish_time || job.create_time, jobLink(job), t("type.job"), job.status, job.key]),
    ...data.requests.map((request) => [request.finish_time || request.create_time, link(requestName(request), requestHref(request)), kindOrId(request), request.status, request.request_id])]
    .sort(([one], [other]) => String(other).localeCompare(String(one))).slice(0, 8);
  if (!rows.length) return card(t("overview.recent"), { id: "recent" }, empty(t("overview.nothing"), toWriters(t("overview.nothingAdvice"))));
  return card(t("overview.recent"), { id: "recent" }, h("ul", { class: "rows tight" }, rows.map(([at, name, kind, status, key]) =>
    h("li", { class: "row-head", "data-key": key }, h("span", { class: "clip" }, name, h("span", { class: "muted" }, ` ${kind}`)), h("span", { class: "nowrap" }, badge(status), " ", when(at))))));
}
