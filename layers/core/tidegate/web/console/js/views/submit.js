// The form for a distribution: a file of the library and its targets.
import { draw, h } from "../dom.js";
import { at, create, get } from "../api.js";
import { bytes } from "../format.js";
import { t } from "../i18n.js";
import { card, crumbs, failure, link, pageHead, skeleton } from "../parts/basics.js";
import { toast } from "../parts/dialog.js";
import { field, FieldError, form, textLines } from "../parts/form.js";
import { remarkField } from "../parts/note.js";
import { labelsOf, wordsOf } from "./fleet.js";

const MOST_TARGETS = 1000;

export function submit(root, { query, go }) {
  draw(root, head(), skeleton(5));
  get("v1/files", { limit: 100 }).then(
    ({ items }) => draw(root, head(), h("div", { class: "narrow", "data-key": "form" }, card(t("jobs.what"), {}, distributionForm(items.filter((file) => file.state === "ready"), query, go)))),
    (error) => draw(root, head(), failure(error, () => submit(root, { query, go }))),
  );
  return { stop() {} };
}

function head() {
  return [crumbs(link(t("nav.distribution"), "#/distribution")), pageHead(t("jobs.submit"), t("jobs.submitLead"))];
}

function distributionForm(files, query, go) {
  const chosen = query.get("file");
  if (!files.length) return h("p", null, t("jobs.noFiles"), " ", link(t("files.upload"), "#/files"));
  const options = files.map((file) => [file.file_id, `${file.file_name} · ${file.file_path} · ${bytes(file.size)}`]);
  return form([
    field("file", t("jobs.file"), { options, value: chosen || options[0][0], required: true }),
    field("targets", t("jobs.targets"), { rows: 5, value: query.get("hosts") || "", hint: t("jobs.targetsHint"), placeholder: "agent-1\nagent-2 container-7" }),
    h("div", { class: "pair" },
      field("target_user", t("jobs.targetUser"), { value: "root", required: true }),
      field("target_file_dir", t("jobs.targetDir"), { value: "/data", required: true })),
    h("details", null, h("summary", null, t("jobs.groupsAndWaves")), h("div", null,
      h("div", { class: "pair" }, field("groups", t("fleet.groups"), { hint: t("jobs.groupsHint") }), field("labels", t("fleet.labels"), { hint: t("fleet.labelsHint") })),
      field("waves", t("jobs.waves"), { rows: 3, hint: t("jobs.wavesHint"), placeholder: "5 60 0\n50 60 5\n100" }),
      h("div", { class: "pair" }, field("mode", t("jobs.mode"), { placeholder: "0640", pattern: "[0-7]{3,4}" }), field("limit_rate", t("jobs.limitRate"), { type: "number", min: 1, step: "any", hint: t("jobs.limitRateHint") })),
      h("div", { class: "pair" }, field("swarm", t("projects.swarm"), { options: [["", t("jobs.asProject")], ["auto", t("projects.swarmAuto")], ["off", t("projects.swarmOff")]] }), field("activate_at", t("jobs.activateAt"), { type: "datetime-local", step: 1, hint: t("jobs.activateAtHint") })))),
    remarkField("note"),
    field("callback", t("field.callback"), { type: "url", hint: t("field.callbackHint"), placeholder: "https://" }),
  ], t("jobs.send"), async (given, once) => {
    const file = files.find((each) => each.file_id === given.file);
    const made = await create("v1/downloads/batch", bodyOf(file, given), once);
    toast(t("jobs.sent", { n: made.tasks?.length ?? made.targets ?? "" }));
    go(`distribution/${at(made.job_id)}`);
  });
}

function bodyOf(file, given) {
  return {
    biz_id: file.biz_id,
    app_id: file.app_id,
    file_path: file.file_path,
    file_name: file.file_name,
    file_signature: file.signature,
    target_user: given.target_user,
    target_file_dir: given.target_file_dir,
    ...receivers(given),
    ...(given.waves.trim() ? { waves: wavesOf(given.waves) } : {}),
    ...(given.mode ? { mode: given.mode } : {}),
    ...(given.swarm ? { swarm: given.swarm } : {}),
    ...(given.limit_rate ? { limit_rate: Math.max(1024, Math.round(Number(given.limit_rate) * 1024 ** 2)) } : {}),
    ...(given.activate_at ? { activate_at: new Date(given.activate_at).toISOString() } : {}),
    ...(given.note.trim() ? { note: given.note.trim() } : {}),
    ...(given.callback ? { callback: given.callback } : {}),
  };
}

// Hosts by name, or by groups and labels.
function receivers(given) {
  const groups = wordsOf(given.groups);
  const labels = labelsOf(given.labels);
  if (given.targets.trim()) return { targets: targetsOf(given.targets) };
  if (!groups.length && !Object.keys(labels).length) throw new FieldError("targets", t("jobs.targetsHint"));
  return { ...(groups.length ? { groups } : {}), ...(Object.keys(labels).length ? { labels } : {}) };
}

// One wave per line: percent, seconds to wait after it, percent that may fail.
function wavesOf(text) {
  return textLines(text).map((line) => {
    const [percent, wait_s, max_failed_percent] = line.trim().split(/[\s,%]+/).filter(Boolean).map(Number);
    if (!percent || [wait_s, max_failed_percent].some(Number.isNaN)) throw new FieldError("waves", t("jobs.wavesHint"));
    return { percent, ...(wait_s === undefined ? {} : { wait_s }), ...(max_failed_percent === undefined ? {} : { max_failed_percent }) };
  });
}

// One target per line: the agent id, and after a space its container.
function targetsOf(text) {
  const lines = textLines(text);
  if (lines.length < 1 || lines.length > MOST_TARGETS) throw new FieldError("targets", t("jobs.targetsHint"));
  return lines.map((line) => {
    const [agent_id, container_id = ""] = line.split(/[\s,]+/);
    return { agent_id, container_id };
  });
}
