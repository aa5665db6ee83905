// One Task: its request, status and timeline.
import { h } from "../dom.js";
import { at, get } from "../api.js";
import { moment } from "../format.js";
import { t } from "../i18n.js";
import { badge, card, code, copyable, crumbs, facts, link, pageHead } from "../parts/basics.js";
import { screen } from "../parts/screen.js";
import { timeline } from "../parts/timeline.js";

export function task(root, { id }) {
  return screen(root, {
    async load() {
      const record = await get(`v1/downloads/${at(id)}`);
      const [audit, job] = await Promise.all([get("v1/audit", { record: record.task_id, limit: 100 }), get(`v1/jobs/${at(record.job_id)}`)]);
      return { record, lines: milestones(record, job, audit.items) };
    },
    watch: ({ record }) => [[record.task_id, record.status]],
    view: ({ record, lines }) => [
      crumbs(link(t("nav.distribution"), "#/distribution"), link(t("jobs.job"), `#/distribution/${at(record.job_id)}`)),
      pageHead(record.file_name, `${record.target_agent_id} ${record.target_container_id || ""}`, badge(record.status)),
      h("div", { class: "grid" },
        card(t("jobs.timeline"), { id: "timeline" }, timeline(lines)),
        card(t("jobs.details"), { id: "details" }, facts([
          [t("jobs.taskId"), copyable(record.task_id)],
          [t("jobs.agent"), link(record.target_agent_id, `#/fleet/${at(record.target_agent_id)}`)],
          [t("jobs.container"), record.target_container_id && code(record.target_container_id)],
          [t("field.signature"), code(record.file_signature)],
          [t("jobs.code"), record.error_code !== undefined && record.error_code !== null && code(record.error_code)],
          [t("jobs.message"), record.arrived ? t("jobs.arrived") : record.error_msg],
          [t("field.created"), moment(record.create_time)],
          [t("field.updated"), moment(record.update_time)],
        ]))),
    ],
  });
}

// The timeline is made from the times of its Job and target. The audit trail says who submitted it.
function milestones(record, job, audited) {
  const lines = audited.length ? [...audited] : [{ at: record.create_time, to: "submitted", why: t("jobs.joined") }];
  if (job.execute_time) lines.push({ at: job.execute_time, from: "pending", to: "running", why: t("jobs.windowClosed") });
  if (!["Pending", "Running"].includes(record.status)) lines.push({ at: record.update_time, from: "running", to: record.status.toLowerCase(), why: record.error_msg || t("jobs.reported") });
  return lines;
}
