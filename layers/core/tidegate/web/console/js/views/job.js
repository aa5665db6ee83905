// One Job: how far it is, and every target by status.
import { h } from "../dom.js";
import { at, get } from "../api.js";
import { bytes, count, moment } from "../format.js";
import { t } from "../i18n.js";
import { badge, card, chips, code, empty, facts, link, pageHead } from "../parts/basics.js";
import { splitBar, splitLegend, windowBar } from "../parts/bars.js";
import { screen } from "../parts/screen.js";
import { Pages, table } from "../parts/table.js";

const STATUSES = { Success: "success", Running: "downloading", Failed: "failed", Timeout: "timeout", Cancelled: "cancelled" };

export function job(root, { id, query, go }) {
  const status = query.get("targets") || "";
  const targets = new Pages((page) => get(`v1/jobs/${at(id)}/targets`, { status, ...page }), 50);
  return screen(root, {
    async load() {
      const [record, shown] = await Promise.all([get(`v1/jobs/${at(id)}`), targets.read()]);
      const tasks = await get("v1/downloads", { job_id: record.job_id, limit: 100 });
      return { record, shown, tasks: tasks.items };
    },
    watch: ({ record }) => [[record.job_id, record.status]],
    view: (data, refresh) => page(data, { status, targets, refresh, choose: (chosen) => go(`distribution/${at(id)}`, chosen ? { targets: chosen } : {}) }),
    quick: 2000,
    slow: 5000,
    tick: true,
  });
}

function page({ record, shown, tasks }, { status, targets, refresh, choose }) {
  const counts = record.counts || {};
  return [
    h("nav", { class: "crumbs", "aria-label": t("nav.crumbs") }, link(t("nav.distribution"), "#/distribution")),
    pageHead(record.file_name || record.file_path, record.file_path, badge(record.status)),
    h("div", { class: "grid" },
      card(t("jobs.progress"), { wide: true, id: "progress" }, record.status === "Pending" ? filling(record) : [splitBar(counts, t("jobs.progress")), splitLegend(counts)]),
      card(t("jobs.targets"), { wide: true, id: "targets" },
        chips(t("jobs.filterTargets"), [["", t("action.any"), count(counts.total || 0)], ...Object.entries(STATUSES).map(([value, name]) => [value, t(`status.${name}`), count(counts[name] || 0)])], status, choose),
        shown.items.length ? targetTable(shown.items, tasks) : empty(t("jobs.noTargets"), record.status === "Pending" ? t("jobs.noTargetsYet") : t("jobs.noTargetsAdvice")),
        targets.moreButton(shown, refresh)),
      card(t("jobs.details"), { wide: true, id: "details" }, details(record))),
  ];
}

function filling(record) {
  return h("div", { class: "row" }, windowBar(record), h("span", { class: "muted" }, t("overview.targetsSoFar", { n: count(record.counts.total) })));
}

function targetTable(items, tasks) {
  const taskOf = new Map(tasks.map((task) => [`${task.target_agent_id}:${task.target_container_id || ""}`, task]));
  return table(t("jobs.targets"), [
    { title: t("jobs.agent"), kind: "main", cell: (target) => [h("span", { class: "strong" }, target.agent_id), target.container_id && h("span", { class: "under" }, target.container_id)] },
    { title: t("field.status"), cell: (target) => badge(STATUSES[target.status] || target.status) },
    { title: t("jobs.code"), cell: (target) => (target.error_code === undefined || target.error_code === null ? "–" : code(target.error_code)) },
    { title: t("jobs.message"), kind: "grow", cell: (target) => target.error_msg || (target.status === "Running" && target.progress !== undefined ? `${target.progress}%` : "–") },
    { title: t("jobs.task"), cell: (target) => taskLink(taskOf.get(`${target.agent_id}:${target.container_id || ""}`)) },
  ], items, { keyOf: (target) => `${target.agent_id}:${target.container_id}` });
}

function taskLink(task) {
  if (!task) return "–";
  const uuid = task.task_id.slice(task.task_id.lastIndexOf(":") + 1);
  return link(t("jobs.timeline"), `#/tasks/${at(uuid)}`);
}

function details(record) {
  return facts([
    [t("jobs.id"), code(record.job_id)],
    [t("field.signature"), code(record.file_signature)],
    [t("jobs.where"), code(`${record.target_user} : ${record.target_file_dir}`)],
    [t("jobs.transfer"), record.transfer_id && code(record.transfer_id)],
    [t("field.created"), moment(record.create_time)],
    [t("jobs.executed"), record.execute_time && moment(record.execute_time)],
    [t("field.finished"), record.finish_time && moment(record.finish_time)],
    ...swarm(record.swarm),
    [t("field.error"), record.error?.detail],
  ]);
}

// Where the bytes came from, if the Job's hosts gave the file to one another.
function swarm(figures) {
  if (!figures) return [];
  const bad = figures.bad_peers.length ? `${count(figures.bad_pieces)}, ${t("jobs.sentBy", { names: figures.bad_peers.join(", ") })}` : count(figures.bad_pieces);
  return [
    [t("jobs.fromStore"), bytes(figures.origin_bytes)],
    [t("jobs.fromPeers"), bytes(figures.peer_bytes)],
    [t("jobs.badPieces"), figures.bad_pieces ? bad : null],
  ];
}
