// One project: keys, quotas and usage, callback secret, swarm settings.
import { h } from "../dom.js";
import { at, call, get, patch, put } from "../api.js";
import { bytes, count } from "../format.js";
import { named, t } from "../i18n.js";
import { badge, button, card, copyable, crumbs, facts, link, pageHead, when } from "../parts/basics.js";
import { bar } from "../parts/bars.js";
import { act, confirm, dialog, saved, showOnce } from "../parts/dialog.js";
import { field, FieldError, form, textLines } from "../parts/form.js";
import { screen } from "../parts/screen.js";
import { keyTable, newKeyDialog } from "./keys.js";
import { accessCard, alarmsCard, awsCard, gseCard, masksCard } from "./project_access.js";

export function project(root, { id, tabs }) {
  const path = `v1/projects/${at(id)}`;
  return screen(root, {
    async load() {
      const [record, keys, swarm] = await Promise.all([get(path), get(`${path}/keys`, { limit: 100 }), get(`${path}/swarm`)]);
      return { record, keys, swarm };
    },
    view: ({ record, keys, swarm }, refresh) => [
      crumbs(link(t("operate.projects"), "#/operate/projects")),
      pageHead(record.name, copyable(id, id), button(t("projects.change"), () => changeDialog(record, path, refresh))),
      tabs("projects"),
      h("div", { class: "grid" },
        card(t("keys.title"), { wide: true, id: "keys", tools: button(t("keys.new"), () => newKeyDialog(path, refresh), { kind: "primary small" }) }, keyTables(keys.items, refresh, () => newKeyDialog(path, refresh))),
        card(t("projects.quotas"), { id: "quotas", tools: button(t("action.change"), () => quotaDialog(record, path, refresh), { kind: "small" }) }, quotas(record)),
        card(t("projects.swarm"), { id: "swarm", tools: button(t("action.change"), () => swarmDialog(swarm, path, refresh), { kind: "small" }) }, swarmFacts(swarm)),
        accessCard(record, path, refresh),
        masksCard(record, path, refresh),
        alarmsCard(record, path, refresh),
        awsCard(record, path, refresh),
        gseCard(record, path, refresh),
        card(t("projects.secret"), { id: "secret" }, h("p", { class: "muted" }, t("projects.secretWhat")), secretTools(path, id)),
        card(t("jobs.details"), { id: "details" }, facts([
          [t("projects.group"), record.group],
          [t("projects.private"), t(record.allow_private_urls ? "action.yes" : "action.no")],
          [t("projects.shared"), t(record.shared_signatures ? "action.yes" : "action.no")],
          [t("field.created"), when(record.created_at)],
        ]))),
    ],
    quick: 5000,
    slow: 10000,
  });
}

// Keys of people and programs first; keys of hosts, which may be many, are collapsed.
function keyTables(items, refresh, add) {
  const ofHosts = items.filter((key) => key.agent_id);
  const others = items.filter((key) => !key.agent_id);
  return [
    others.length || !ofHosts.length ? keyTable(others, refresh, add) : null,
    ofHosts.length ? h("details", { "data-key": "host-keys" }, h("summary", null, t("keys.ofHosts", { n: count(ofHosts.length) })), h("div", null, keyTable(ofHosts, refresh))) : null,
  ];
}

// A bar if there is a limit, otherwise only the figure.
function quotas({ quotas: limits, usage }) {
  const shares = limits.share || {};
  const rows = [
    [t("projects.stored_bytes"), usage.stored_bytes, limits.stored_bytes, bytes],
    [t("projects.queued"), usage.queued, limits.queued, count],
    [t("projects.runner_hours_per_day"), usage.runner_hours_per_day, limits.runner_hours_per_day, count],
    [t("projects.egress_bytes_per_day"), usage.egress_bytes_per_day, limits.egress_bytes_per_day, bytes],
    [t("projects.targets_per_day"), usage.targets_per_day, limits.targets_per_day, count],
    [t("projects.outgoing_calls_per_day"), usage.outgoing_calls_per_day, limits.outgoing_calls_per_day, count],
    [t("projects.export_schedules"), usage.export_schedules, limits.export_schedules, count],
    [t("projects.batch_schedules"), usage.batch_schedules, limits.batch_schedules, count],
    [t("projects.subscriptions"), usage.subscriptions, limits.subscriptions, count],
    [t("projects.businesses"), usage.businesses, limits.businesses, count],
    [t("projects.batches"), usage.batches, limits.batches, count],
    [t("projects.unstarted_batches"), usage.unstarted_batches, limits.unstarted_batches, count],
    [t("projects.open_uploads"), usage.open_uploads, limits.open_uploads, count],
    [t("projects.slow_calls"), undefined, limits.slow_calls, count],
    [t("projects.requests_per_s"), undefined, limits.requests_per_s, count],
    [t("projects.running"), undefined, limits.running, count],
    ...Object.keys({ ...shares, ...usage.running }).map((channel) => [named("channel", channel), usage.running?.[channel] || 0, shares[channel], count]),
  ];
  return h("ul", { class: "rows" }, rows.map(([label, used, limit, shown]) => {
    const share = limit ? (used || 0) / limit : 0;
    return h("li", { class: "row" },
      h("div", { class: "row-head" }, h("span", null, label), h("span", { class: "nowrap" }, used === undefined ? "" : shown(used), limit === undefined || limit === null ? `${used === undefined ? "" : " · "}${t("projects.noLimit")}` : `${used === undefined ? "" : " / "}${shown(limit)}`)),
      limit && used !== undefined ? bar(share, label, share >= 1 ? "bad" : share >= 0.8 ? "warn" : "good") : null);
  }));
}

function swarmFacts(swarm) {
  return facts([
    [t("projects.swarmMode"), badge(swarm.swarm === "off" ? "off" : "active")],
    [t("projects.peerNetworks"), swarm.peer_networks.join(", ") || "–"],
    [t("projects.freeSites"), swarm.free_sites.join(", ") || "–"],
  ]);
}

function secretTools(path, id) {
  return h("div", { class: "action-row" },
    button(t("projects.originSecret"), () => originSecretDialog(id), { kind: "small" }),
    button(t("projects.newSecret"), () => confirm(t("projects.newSecret"), t("projects.newSecret"), () => act(async () => {
      const made = await call("POST", `${path}/callback-secrets`, { body: {} });
      showOnce(t("projects.newSecret"), t("projects.secretOnce"), [[t("projects.secret"), made.callback_secret]]);
    })), { kind: "small" }),
    button(t("projects.endSecret"), () => confirm(t("projects.endSecret"), t("projects.endSecret"), () => act(() => call("DELETE", `${path}/callback-secrets/previous`), t("projects.secretEnded"))), { kind: "small danger-quiet" }));
}

function originSecretDialog(id) {
  const close = dialog(t("projects.originSecret"), () => form([
    field("origin", t("projects.origin"), { required: true, hint: t("projects.originHint"), placeholder: "https://shop.example" }),
  ], t("action.show"), async (given) => {
    const found = await get("v1/callback-secret", { project_id: id, origin: given.origin });
    close();
    showOnce(t("projects.originSecret"), t("projects.originHint"), [[t("projects.origin"), found.origin], [t("projects.secret"), found.callback_secret]]);
  }));
}

function changeDialog(record, path, refresh) {
  const close = dialog(t("projects.change"), () => form([
    field("name", t("field.name"), { required: true, minlength: 2, maxlength: 60, value: record.name }),
    field("group", t("projects.group"), { value: record.group || "" }),
    field("allow_private_urls", t("projects.private"), { type: "checkbox", value: record.allow_private_urls, hint: t("projects.privateHint") }),
    field("shared_signatures", t("projects.shared"), { type: "checkbox", value: record.shared_signatures, hint: t("projects.sharedHint") }),
  ], t("action.save"), async (given) => {
    await patch(path, { name: given.name, group: given.group || null, allow_private_urls: given.allow_private_urls === "on", shared_signatures: given.shared_signatures === "on" });
    saved(close, refresh);
  }));
}

const LIMITS = ["stored_bytes", "queued", "export_schedules", "batch_schedules", "subscriptions", "businesses", "batches", "unstarted_batches", "open_uploads", "slow_calls", "requests_per_s", "running", "runner_hours_per_day", "egress_bytes_per_day", "targets_per_day", "outgoing_calls_per_day"];
const AT_LEAST_ONE = ["slow_calls", "requests_per_s", "running"];

function quotaDialog(record, path, refresh) {
  const shares = Object.entries(record.quotas.share || {}).map(([channel, slots]) => `${channel} ${slots}`).join("\n");
  const close = dialog(t("projects.quotas"), () => form([
    ...LIMITS.map((name) => field(name, t(`projects.${name}`), { type: "number", min: AT_LEAST_ONE.includes(name) ? 1 : 0, value: record.defaults[name] ? "" : String(record.quotas[name] ?? ""), hint: t("projects.defaultHint") })),
    field("share", t("projects.share"), { rows: 3, value: shares, hint: t("projects.shareHint"), placeholder: "export 2" }),
  ], t("action.save"), async (given) => {
    // An empty field of a quota that has no limit leaves it so: only projects from before the defaults have such.
    const named = LIMITS.filter((name) => given[name] !== "" || record.quotas[name] !== undefined);
    const limits = Object.fromEntries(named.map((name) => [name, given[name] === "" ? null : Number(given[name])]));
    await patch(path, { quotas: { ...limits, share: sharesOf(given.share) } });
    saved(close, refresh);
  }));
}

function sharesOf(text) {
  const lines = textLines(text);
  if (!lines.length) return null;
  return Object.fromEntries(lines.map((line) => {
    const [channel, slots] = line.split(/[\s:=]+/);
    if (!/^\d+$/.test(slots || "")) throw new FieldError("share", t("projects.shareHint"));
    return [channel, Number(slots)];
  }));
}

function swarmDialog(swarm, path, refresh) {
  const close = dialog(t("projects.swarm"), () => form([
    field("swarm", t("projects.swarmMode"), { options: [["auto", t("projects.swarmAuto")], ["on", t("projects.swarmOn")], ["off", t("projects.swarmOff")]], value: swarm.swarm }),
    field("peer_networks", t("projects.peerNetworks"), { rows: 3, value: swarm.peer_networks.join("\n"), hint: t("projects.perLine"), placeholder: "10.0.0.0/8" }),
    field("free_sites", t("projects.freeSites"), { rows: 2, value: swarm.free_sites.join("\n"), hint: t("projects.perLine") }),
  ], t("action.save"), async (given) => {
    await put(`${path}/swarm`, { swarm: given.swarm, peer_networks: textLines(given.peer_networks), free_sites: textLines(given.free_sites) });
    saved(close, refresh);
  }));
}
