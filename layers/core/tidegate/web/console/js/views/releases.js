// Releases: what should be on which hosts, what is, and the way back.
import { h } from "../dom.js";
import { at, call, get, remove } from "../api.js";
import { count, moment } from "../format.js";
import { named, t } from "../i18n.js";
import { fleetTabs } from "../parts/area_tabs.js";
import { bar } from "../parts/bars.js";
import { badge, button, card, code, crumbs, empty, facts, link, noMatch, pageHead, statusChips, when } from "../parts/basics.js";
import { act, confirm } from "../parts/dialog.js";
import { screen } from "../parts/screen.js";
import { Pages, table } from "../parts/table.js";
import { timeline } from "../parts/timeline.js";
import { session } from "../session.js";

const STATES = ["", "current", "behind", "staged", "failed", "drifted", "offline", "gone"];

export function releases(root) {
  const pages = new Pages((page) => get("v1/releases", page), 50);
  return screen(root, {
    load: () => pages.read(),
    view: (data, refresh) => [
      fleetTabs("releases"),
      pageHead(t("releases.title"), t("releases.lead")),
      data.items.length ? list(data.items) : empty(t("releases.none"), t("releases.noneAdvice"), code("tidegate release put app --file FILE=/etc/app --user root --group web")),
      pages.moreButton(data, refresh),
    ],
    quick: 5000,
    slow: 8000,
  });
}

function list(items) {
  return table(t("releases.title"), [
    { title: t("field.name"), kind: "main", cell: (release) => link(release.name, `#/releases/${at(release.name)}`, "strong") },
    { title: t("field.status"), cell: (release) => badge(release.status) },
    { title: t("releases.revision"), cell: (release) => `${release.revision}` },
    { title: t("releases.share"), cell: (release) => `${release.share} %` },
    { title: t("releases.hosts"), cell: (release) => `${count(release.counts.current)} / ${count(release.counts.desired)}` },
    { title: t("field.updated"), cell: (release) => when(release.updated_at) },
  ], items, { keyOf: (release) => release.name });
}

export function releasePage(root, { id, query, go }) {
  const path = `v1/releases/${at(id)}`;
  const state = query.get("state") || "";
  const pages = new Pages((page) => get(`${path}/hosts`, { state, ...page }), 50);
  return screen(root, {
    async load() {
      const [release, hosts, revisions, audit] = await Promise.all([get(path), pages.read(), get(`${path}/revisions`, { limit: 10 }), get("v1/audit", { record: id, limit: 50 })]);
      return { release, hosts, revisions: revisions.items, lines: audit.items };
    },
    view: ({ release, hosts, revisions, lines }, refresh) => [
      crumbs(link(t("nav.fleet"), "#/fleet"), link(t("releases.title"), "#/releases")),
      pageHead(release.name, release.reason || t("releases.lead"), badge(release.status), session.can("write") && actions(release, path, refresh, go)),
      h("div", { class: "grid" },
        card(t("releases.progress"), { id: "progress" },
          bar(release.counts.desired ? release.counts.current / release.counts.desired : 0, t("releases.hosts"), release.counts.failed ? "bad" : "good"),
          h("ul", { class: "legend" }, Object.entries(release.counts).filter(([name, number]) => number || ["desired", "current"].includes(name)).map(([name, number]) => h("li", { "data-key": name }, named("status", name), h("strong", null, count(number))))),
          facts([
            [t("releases.revision"), `${release.revision}`],
            [t("releases.stable"), release.stable ? `${release.stable}` : "–"],
            [t("releases.share"), `${release.share} %`],
            [t("releases.waves"), waves(release)],
            [t("releases.withdrawn"), release.withdrawn.join(", ")],
            [t("fleet.groups"), release.targets.groups.join(", ")],
            [t("fleet.labels"), Object.entries(release.targets.labels).map(([name, value]) => `${name}=${value}`).join(", ")],
            [t("releases.named"), release.targets.agents.join(", ")],
          ])),
        card(t("releases.files"), { id: "files" }, h("ul", { class: "rows" }, release.files.map((file) =>
          h("li", { class: "row", "data-key": file.target_file_dir + file.file_name }, h("strong", null, `${file.target_file_dir.replace(/\/$/, "")}/${file.file_name}`), h("span", { class: "under" }, `${file.target_user} ${file.mode || ""} ${file.signature.slice(0, 12)}`)))),
        facts([[t("releases.hook"), release.hook], [t("releases.health"), release.health && (release.health.url || release.health.hook)], [t("releases.alarm"), release.alarm], [t("releases.onFailure"), t(`releases.${release.on_failure}`)], [t("field.note"), release.note]])),
        card(t("releases.hosts"), { id: "hosts", wide: true },
          statusChips(t("field.status"), STATES, state, (chosen) => go(`releases/${at(id)}`, { state: chosen })),
          hosts.items.length ? hostList(hosts.items) : state ? noMatch() : empty(t("releases.noHosts"), t("releases.noHostsAdvice")),
          pages.moreButton(hosts, refresh)),
        card(t("releases.revisions"), { id: "revisions", wide: true }, revisionList(revisions)),
        card(t("jobs.timeline"), { id: "timeline", wide: true }, timeline(lines))),
    ],
    quick: 3000,
    slow: 5000,
  });
}

// Percent of the hosts by wave; the present one is set off.
function waves(release) {
  if (!release.waves.length) return "";
  const percents = [...release.waves.map((wave) => wave.percent), 100].filter((percent, at, all) => percent !== all[at - 1]);
  return h("span", null, percents.map((percent, at) => [at ? " → " : "", at + 1 === release.wave ? h("strong", null, `${percent} %`) : `${percent} %`]));
}

function actions(release, path, refresh, go) {
  const then = (doing, told) => act(async () => { await doing; refresh(); }, told);
  const waits = release.status === "waiting";
  const stopped = ["paused", "failed"].includes(release.status);
  return [
    button(t("releases.rollback"), () => confirm(t("releases.rollbackSure", { name: release.name }), t("releases.rollback"), () => then(call("POST", `${path}/rollback`, { body: {} }), t("releases.rolledBack"))), { kind: "primary", key: "rollback", disabled: release.revision < 2 }),
    waits && button(t("releases.activate"), () => then(call("POST", `${path}/activate`, { body: {} }), t("releases.activated")), { key: "activate" }),
    stopped ? button(t("action.resume"), () => then(call("POST", `${path}/resume`, { body: {} }), t("releases.resumed")), { key: "resume" }) : button(t("action.pause"), () => then(call("POST", `${path}/pause`, { body: {} }), t("releases.paused")), { key: "pause" }),
    button(t("action.delete"), () => confirm(t("releases.deleteSure", { name: release.name }), t("action.delete"), () => act(async () => { await remove(path); go("releases"); }, t("releases.deleted"))), { kind: "danger-quiet", key: "delete" }),
  ];
}

function hostList(items) {
  return table(t("releases.hosts"), [
    { title: t("fleet.host"), kind: "main", cell: (host) => link(host.agent_id, `#/fleet/${at(host.agent_id)}`, "strong") },
    { title: t("field.status"), cell: (host) => badge(host.state) },
    { title: t("releases.has"), cell: (host) => `${host.revision || "–"} / ${host.desired || "–"}` },
    { title: t("releases.wave"), cell: (host) => `${host.wave}` },
    { title: t("releases.why"), cell: (host) => reasonOf(host) },
    { title: t("releases.reported"), cell: (host) => (host.reported_at ? when(host.reported_at) : "–") },
  ], items, { keyOf: (host) => host.agent_id });
}

function reasonOf(host) {
  const output = host.hook?.output || host.health?.output;
  const said = [host.reason, ...(host.drift || [])].filter(Boolean).join("; ");
  return said || output ? h("div", null, said, output && code(output)) : "–";
}

function revisionList(items) {
  return table(t("releases.revisions"), [
    { title: t("releases.revision"), kind: "main", cell: (one) => `${one.number}` },
    { title: t("field.created"), cell: (one) => moment(one.created_at) },
    { title: t("releases.content"), cell: (one) => (one.rollback_to ? t("releases.contentOf", { number: one.rollback_to }) : one.files.map((file) => file.file_name).join(", ")) },
    { title: t("field.note"), cell: (one) => one.note || "–" },
  ], items, { keyOf: (one) => `${one.number}` });
}
