// One Job: progress, a map of all targets, where the bytes came from; cancel and redrive.
import { h } from "../dom.js";
import { at, create, get, onceKey, patch, post } from "../api.js";
import { bytes, count, duration, moment, percent, secondsUntil } from "../format.js";
import { named, t } from "../i18n.js";
import { badge, button, card, chips, code, copyable, crumbs, empty, facts, figure, link, pageHead } from "../parts/basics.js";
import { bar, statusBar, statusLegend, windowBar } from "../parts/bars.js";
import { lineChart, Rate } from "../parts/chart.js";
import { act, confirm, toast } from "../parts/dialog.js";
import { remarkFact } from "../parts/note.js";
import { screen } from "../parts/screen.js";
import { Pages, table } from "../parts/table.js";
import { TargetMap } from "../parts/target_map.js";
import { session } from "../session.js";

const STATUSES = { Success: "success", Running: "downloading", Failed: "failed", Timeout: "timeout", Cancelled: "cancelled", Superseded: "superseded" };

// At most this many Tasks are read; targets whose Task was not found have no link.
const MOST_TASKS = 2000;

export function job(root, { id, query, go }) {
  const status = query.get("targets") || "";
  const targets = new Pages((page) => get(`v1/jobs/${at(id)}/targets`, { status, ...page }), 50);
  const choose = (chosen) => go(`distribution/${at(id)}`, { targets: chosen });
  const map = new TargetMap(id);
  const speed = new Rate();
  const tasksOfTargets = new TasksOfTargets();
  return screen(root, {
    async load() {
      const [record, shown] = await Promise.all([get(`v1/jobs/${at(id)}`), targets.read(), map.read()]);
      await tasksOfTargets.find(record.job_id, shown.items);
      if (record.status === "Running") speed.add(movedBytes(record));
      return { record, shown, tasks: tasksOfTargets.tasks };
    },
    watch: ({ record }) => [[record.job_id, record.status]],
    view: (data, refresh) => page(data, { status, targets, refresh, choose, map, speed, go }),
    quick: 2000,
    slow: 5000,
    tick: true,
  });
}

const targetName = (agent, container) => `${agent}:${container || ""}`;

// Reads the Tasks of the shown targets once, page by page, until each target has its Task or the limit is reached.
class TasksOfTargets {
  constructor() {
    this.tasks = new Map();
    this.cursor = undefined;
  }

  async find(job_id, targets) {
    const missing = () => targets.some((target) => !this.tasks.has(targetName(target.agent_id, target.container_id)));
    while (this.cursor !== null && this.tasks.size < MOST_TASKS && missing()) {
      const page = await get("v1/downloads", { job_id, limit: 100, cursor: this.cursor });
      for (const task of page.items) this.tasks.set(targetName(task.target_agent_id, task.target_container_id), task);
      this.cursor = page.next_cursor;
    }
  }
}

// Splits the targets that the API calls Running into downloading and waiting ones.
const runningCount = ({ total = 0, success = 0, failed = 0, timeout = 0, cancelled = 0, superseded = 0 }) => total - success - failed - timeout - cancelled - superseded;
const statusOf = (target) => (target.status === "Running" && (target.error_code ?? null) === null ? "waiting" : STATUSES[target.status] || target.status);

const movedBytes = (record) => record.speed?.moved_bytes ?? (record.swarm ? record.swarm.origin_bytes + record.swarm.peer_bytes : null);

function page({ record, shown, tasks }, { status, targets, refresh, choose, map, speed, go }) {
  const counts = record.counts || {};
  const options = [["", t("action.all"), count(counts.total || 0)], ...Object.entries(STATUSES).map(([value, name]) => [value, t(`status.${value === "Running" ? "running" : name}`), count(value === "Running" ? runningCount(counts) : counts[name] || 0)])];
  return [
    crumbs(link(t("nav.distribution"), "#/distribution")),
    pageHead(record.file_name || record.file_path, record.file_path, badge(record.status), session.can("write") && actions(record, refresh, go)),
    h("div", { class: "grid" },
      card(t("jobs.progress"), { wide: true, id: "progress" }, record.status === "Pending" ? openWindow(record) : [staging(record), statusBar(counts, t("jobs.progress")), statusLegend(counts), figures(record, speed)]),
      record.waves?.length ? card(t("jobs.waves"), { wide: true, id: "waves" }, waves(record)) : null,
      card(t("jobs.map"), { wide: true, id: "map" }, counts.total ? map.view() : empty(t("jobs.noTargets"), t("jobs.noTargetsYet"))),
      card(t("jobs.targets"), { wide: true, id: "targets" },
        chips(t("jobs.filterTargets"), options, status, choose),
        shown.items.length ? targetTable(shown.items, tasks) : empty(t("jobs.noTargets"), record.status === "Pending" ? t("jobs.noTargetsYet") : t("jobs.noTargetsAdvice")),
        targets.moreButton(shown, refresh)),
      record.swarm ? card(t("jobs.bytes"), { id: "bytes" }, swarm(record.swarm)) : null,
      card(t("jobs.details"), { id: "details", wide: !record.swarm }, details(record, refresh))),
  ];
}

function actions(record, refresh, go) {
  const path = `v1/jobs/${at(record.job_id)}`;
  const failedCount = (record.counts?.failed || 0) + (record.counts?.timeout || 0) + (record.counts?.cancelled || 0);
  const made = [];
  if (["Pending", "Running"].includes(record.status) && !record.cancelled_at) made.push(button(t("jobs.cancel"), () => confirm(t("jobs.cancelSure"), t("jobs.cancel"), () => act(() => post(`${path}/cancel`), t("jobs.cancelled"), refresh)), { kind: "danger-quiet", key: "cancel" }));
  if (failedCount && !["Pending", "Running"].includes(record.status)) {
    const once = onceKey();
    made.push(button(t("jobs.redrive", { n: count(failedCount) }), () => act(async () => {
      const again = await create(`${path}/redrive`, { statuses: ["Failed", "Timeout", "Cancelled"] }, once);
      if (again.skipped_targets) toast(t("jobs.redriveSkipped", { n: count(again.skipped_targets) }), "bad");
      go(`distribution/${at(again.key)}`);
    }, t("jobs.redriven"), refresh), { kind: "primary", key: "redrive" }));
  }
  return made;
}

// A Pending Job: how long its window stays open.
function openWindow(record) {
  const left = Math.max(0, Math.ceil(secondsUntil(record.window_closes_at)));
  return h("div", { class: "row" },
    h("p", null, left ? t("jobs.windowOpen", { time: duration(left) }) : t("jobs.windowClosing")),
    windowBar(record), h("span", { class: "muted" }, t("overview.targetsSoFar", { n: count(record.counts.total) })));
}

// Hosts that have the file and wait for activate_at.
function staging(record) {
  if (!record.activate_at || record.finish_time) return null;
  return h("p", { "data-key": "staging" }, t("jobs.staged", { n: count(record.counts.staged || 0), total: count(record.counts.total) }), " ", moment(record.activate_at));
}

function figures(record, speed) {
  const rate = record.speed;
  if (!rate && speed.points.length < 2) return null;
  return [
    rate && h("ul", { class: "figures" },
      figure(t("jobs.moved"), bytes(rate.moved_bytes)),
      figure(t("jobs.meanSpeed"), `${bytes(rate.mean)}/s`),
      figure(t("jobs.hostsTold"), count(rate.hosts))),
    lineChart(speed, t("jobs.speedNow"), { format: (value) => `${bytes(value)}/s` }),
  ];
}

function waves(record) {
  return h("ol", { class: "waves" }, record.waves.map((wave, index) => {
    const state = index + 1 < (record.wave || 0) ? "success" : index + 1 === record.wave ? (record.status === "Running" ? "running" : record.status) : "pending";
    return h("li", { class: "wave", "data-key": `wave-${index}` },
      h("strong", null, `${wave.percent}%`), badge(state),
      h("span", { class: "muted" }, [wave.targets !== undefined && wave.targets !== null && t("jobs.waveTargets", { n: count(wave.targets) }), wave.wait_s && t("jobs.waveWait", { time: duration(wave.wait_s) }), t("jobs.waveLimit", { n: wave.max_failed_percent })].filter(Boolean).join(" · ")));
  }));
}

function targetTable(items, tasks) {
  return table(t("jobs.targets"), [
    { title: t("jobs.agent"), kind: "main", cell: (target) => [link(target.agent_id, `#/fleet/${at(target.agent_id)}`, "strong"), target.container_id && h("span", { class: "under" }, target.container_id)] },
    { title: t("field.status"), cell: (target) => badge(statusOf(target)) },
    { title: t("jobs.code"), cell: (target) => (target.error_code === undefined || target.error_code === null ? "–" : code(target.error_code)) },
    { title: t("jobs.message"), kind: "grow", cell: (target) => (target.arrived ? t("jobs.arrived") : target.error_msg) || (target.status === "Running" && target.staged_at ? t("jobs.isStaged") : target.status === "Running" && target.progress !== undefined && target.progress !== null ? `${target.progress}%` : "–") },
    { title: t("jobs.task"), cell: (target) => taskLink(tasks.get(targetName(target.agent_id, target.container_id))) },
  ], items, { keyOf: (target) => `${target.agent_id}:${target.container_id}` });
}

function taskLink(task) {
  if (!task) return "–";
  const uuid = task.task_id.slice(task.task_id.lastIndexOf(":") + 1);
  return link(t("jobs.timeline"), `#/tasks/${at(uuid)}`);
}

function details(record, refresh) {
  return facts([
    [t("jobs.id"), copyable(record.job_id, record.job_id)],
    [t("field.signature"), copyable(record.file_signature)],
    [t("jobs.where"), code(`${record.target_user} : ${record.target_file_dir}`)],
    [t("jobs.transfer"), record.transfer_id && copyable(record.transfer_id)],
    [t("jobs.redriveOf"), record.redrive_of && link(t("jobs.job"), `#/distribution/${at(record.redrive_of)}`)],
    [t("jobs.activateAt"), record.activate_at && moment(record.activate_at)],
    remarkFact("note", record, (change) => patch(`v1/jobs/${at(record.key)}`, change), refresh),
    [t("field.created"), moment(record.create_time)],
    [t("jobs.executed"), record.execute_time && moment(record.execute_time)],
    [t("field.finished"), record.finish_time && moment(record.finish_time)],
    [t("field.error"), record.error?.detail],
  ]);
}

// The price of a byte that S3 sends to the internet: $0.09 per GB.
const EGRESS_PRICE = 0.09 / 1e9;

// Why hosts fell back to S3, the most frequent reason first.
function reasons(counted) {
  const parts = Object.entries(counted).sort((a, b) => b[1] - a[1]).map(([why, n]) => `${count(n)} ${named("fallback", why)}`);
  return parts.length ? `: ${parts.join(", ")}` : "";
}

// Where the bytes came from, if the hosts sent the file to each other.
function swarm(sums) {
  const all = sums.origin_bytes + sums.peer_bytes;
  return [
    h("div", { class: "row" }, h("div", { class: "row-head" }, h("span", null, t("jobs.fromPeers")), h("span", null, `${bytes(sums.peer_bytes)} · ${percent(all ? sums.peer_bytes / all : 0)}`)), bar(all ? sums.peer_bytes / all : 0, t("jobs.fromPeers"), "good")),
    h("div", { class: "row" }, h("div", { class: "row-head" }, h("span", null, t("jobs.fromStore")), h("span", null, `${bytes(sums.origin_bytes)} · ${percent(all ? sums.origin_bytes / all : 0)}`)), bar(all ? sums.origin_bytes / all : 0, t("jobs.fromStore"), "calm")),
    facts([
      [t("jobs.hostsTold"), count(sums.hosts)],
      [t("jobs.saved"), sums.peer_bytes + sums.reused_bytes ? `$${((sums.peer_bytes + sums.reused_bytes) * EGRESS_PRICE).toFixed(2)}` : null],
      [t("jobs.reused"), sums.reused_bytes ? bytes(sums.reused_bytes) : null],
      [t("jobs.egress"), sums.egress ? t("jobs.egressTimes", { n: sums.egress }) : null],
      [t("jobs.fallbacks"), sums.fallbacks ? `${count(sums.fallbacks)}${reasons(sums.fallback_reasons || {})}` : null],
      [t("jobs.badPieces"), sums.bad_pieces ? `${count(sums.bad_pieces)}${sums.bad_peers.length ? `, ${t("jobs.sentBy", { names: sums.bad_peers.join(", ") })}` : ""}` : null],
    ]),
  ];
}
