// Distribution: the list of Jobs with their progress.
import { h } from "../dom.js";
import { at, get } from "../api.js";
import { count } from "../format.js";
import { t } from "../i18n.js";
import { session } from "../session.js";
import { badge, empty, link, noMatch, pageHead, statusChips, toWriters, when } from "../parts/basics.js";
import { statusBar, windowBar } from "../parts/bars.js";
import { screen } from "../parts/screen.js";
import { Pages, table } from "../parts/table.js";

const STATUSES = ["", "Pending", "Running", "Success", "Failed", "Timeout", "Cancelled", "Superseded"];

export function jobLink(job) {
  return link(job.file_name || job.file_path || job.job_id, `#/distribution/${at(job.key || job.job_id)}`, "strong");
}

export function jobs(root, { query, go }) {
  const status = query.get("status") || "";
  const pages = new Pages((page) => get("v1/jobs", { status, ...page }));
  return screen(root, {
    load: () => pages.read(),
    watch: (data) => data.items.map((job) => [job.job_id, job.status]),
    view: (data, refresh) => [
      pageHead(t("nav.distribution"), t("jobs.lead"), session.can("write") && link(t("jobs.submit"), "#/distribution/new", "button primary")),
      statusChips(t("jobs.filter"), STATUSES, status,
        (chosen) => go("distribution", { status: chosen })),
      data.items.length ? list(data.items) : status ? noMatch() : empty(t("jobs.none"), toWriters(t("jobs.noneAdvice")), session.can("write") && link(t("jobs.submit"), "#/distribution/new", "button")),
      pages.moreButton(data, refresh),
    ],
    tick: true,
  });
}

function list(items) {
  return table(t("nav.distribution"), [
    { title: t("jobs.file"), kind: "main", cell: (job) => [jobLink(job), h("span", { class: "under clip" }, job.file_path)] },
    { title: t("field.status"), cell: (job) => badge(job.status) },
    { title: t("jobs.progress"), kind: "grow", cell: (job) => progress(job) },
    { title: t("jobs.where"), cell: (job) => h("span", { class: "clip" }, `${job.target_user}:${job.target_file_dir}`) },
    { title: t("field.created"), cell: (job) => when(job.create_time) },
  ], items, { keyOf: (job) => job.key || job.job_id });
}

function progress(job) {
  if (job.status === "Pending") return [h("span", { class: "under" }, t("jobs.windowIsOpen")), windowBar(job)];
  const counts = job.counts || {};
  return h("div", { class: "progress" }, statusBar(counts, t("jobs.progress")),
    h("span", { class: "nowrap muted" }, `${count(counts.success || 0)} / ${count(counts.total || 0)}`));
}
