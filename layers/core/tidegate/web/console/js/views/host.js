// One host: state, current transfers, files of releases, groups and labels.
import { h } from "../dom.js";
import { at, get, patch, remove } from "../api.js";
import { bytes, moment } from "../format.js";
import { t } from "../i18n.js";
import { badge, button, card, copyable, crumbs, empty, facts, link, pageHead, when } from "../parts/basics.js";
import { bar } from "../parts/bars.js";
import { act, confirm, dialog, saved } from "../parts/dialog.js";
import { field, form } from "../parts/form.js";
import { screen } from "../parts/screen.js";
import { Pages, table } from "../parts/table.js";
import { timeline } from "../parts/timeline.js";
import { session } from "../session.js";
import { labelsOf, lastJob, wordsOf } from "./fleet.js";

export function host(root, { id, go }) {
  const path = `v1/agents/${at(id)}`;
  const files = new Pages((page) => get(`${path}/files`, page), 50);
  return screen(root, {
    async load() {
      const [agent, audit, inventory] = await Promise.all([get(path), get("v1/audit", { record: id, limit: 50 }), files.read()]);
      return { agent, lines: audit.items, inventory };
    },
    view: ({ agent, lines, inventory }, refresh) => [
      crumbs(link(t("nav.fleet"), "#/fleet")),
      pageHead(agent.agent_id, agent.groups.join(", "), badge(agent.state), session.can("write") && [
        button(t("fleet.change"), () => changeDialog(agent, path, refresh), { key: "change" }),
        button(t("fleet.forget"), () => confirm(t("fleet.forgetSure", { name: id }), t("fleet.forget"), () => act(async () => { await remove(path); go("fleet"); }, t("fleet.forgotten"))), { kind: "danger-quiet", key: "forget" }),
      ]),
      h("div", { class: "grid" },
        card(t("fleet.now"), { id: "now" }, agent.current?.length ? h("ul", { class: "rows" }, agent.current.map(transfer)) : empty(t("fleet.idle"), t("fleet.idleAdvice"), session.can("write") && link(t("jobs.submit"), `#/distribution/new?hosts=${at(id)}`, "button"))),
        card(t("jobs.details"), { id: "details" }, facts([
          [t("fleet.twoHosts"), agent.duplicate_at && h("span", null, t("fleet.twoHostsWhat"), " ", when(agent.duplicate_at))],
          [t("fleet.version"), agent.version || "–"],
          [t("fleet.zone"), agent.zone],
          [t("fleet.peers"), agent.peers && t(agent.peers.listen.length ? (agent.peers.reached ? "fleet.listens" : "fleet.unreached") : "fleet.onlyFetches", { where: agent.peers.listen.join(", ") })],
          [t("fleet.free"), bytes(agent.free_bytes)],
          [t("fleet.lastSeen"), agent.last_seen ? moment(agent.last_seen) : t("overview.never")],
          [t("fleet.lastJob"), agent.last_job && lastJob(agent.last_job)],
          [t("fleet.groups"), agent.groups.join(", ")],
          [t("fleet.labels"), Object.entries(agent.labels).map(([name, value]) => `${name}=${value}`).join(", ")],
        ])),
        card(t("releases.files"), { id: "files", wide: true }, inventory.items.length ? fileList(inventory.items) : empty(t("fleet.noFiles"), t("fleet.noFilesAdvice")), files.moreButton(inventory, refresh)),
        card(t("jobs.timeline"), { id: "timeline", wide: true }, timeline(lines))),
    ],
    quick: 3000,
    slow: 5000,
  });
}

function fileList(items) {
  return table(t("releases.files"), [
    { title: t("fleet.path"), kind: "main", cell: (file) => h("strong", null, file.path) },
    { title: t("releases.title"), cell: (file) => link(`${file.release} ${file.revision}`, `#/releases/${at(file.release)}`) },
    { title: "SHA-256", cell: (file) => copyable(file.sha256, file.sha256.slice(0, 12)) },
    { title: t("fleet.drift"), cell: (file) => (file.drift ? [badge("drifted"), " ", file.drift] : "–") },
    { title: t("fleet.checked"), cell: (file) => (file.checked_at ? when(file.checked_at) : "–") },
  ], items, { keyOf: (file) => file.path });
}

function transfer(one) {
  return h("li", { class: "row", "data-key": one.transfer_id + one.container_id },
    h("div", { class: "row-head" }, one.job_id ? link(one.file_name, `#/distribution/${at(one.job_id)}`, "strong") : h("span", null, one.file_name), copyable(one.transfer_id)),
    bar((one.progress || 0) / 100, one.file_name), h("span", { class: "muted" }, `${one.container_id ? `${one.container_id} · ` : ""}${one.progress || 0}%`));
}

function changeDialog(agent, path, refresh) {
  const close = dialog(t("fleet.change"), () => form([
    field("groups", t("fleet.groups"), { value: agent.groups.join(", "), hint: t("fleet.groupsHint") }),
    field("labels", t("fleet.labels"), { rows: 3, value: Object.entries(agent.labels).map(([name, value]) => `${name}=${value}`).join("\n"), hint: t("fleet.labelsHint") }),
  ], t("action.save"), async (given) => {
    await patch(path, { groups: wordsOf(given.groups), labels: labelsOf(given.labels) });
    saved(close, refresh);
  }));
}
