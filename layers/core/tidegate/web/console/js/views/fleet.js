// The fleet: the list of hosts, and enrolment tokens for new ones.
import { h } from "../dom.js";
import { at, create, get } from "../api.js";
import { bytes, moment, wholeUnits } from "../format.js";
import { t } from "../i18n.js";
import { fleetTabs } from "../parts/area_tabs.js";
import { badge, button, empty, link, noMatch, pageHead, statusChips, when } from "../parts/basics.js";
import { dialog, showOnce } from "../parts/dialog.js";
import { field, FieldError, form, textLines } from "../parts/form.js";
import { screen } from "../parts/screen.js";
import { searchBox } from "../parts/search.js";
import { Pages, table } from "../parts/table.js";
import { session } from "../session.js";

// A target that has not ended is shown as downloading, as on its Job's page.
const STATUS_NAMES = { Running: "downloading" };
const STATES = ["", "online", "offline"];

export function fleet(root, { query, go }) {
  const wanted = { state: query.get("state") || "", group: query.get("group") || "" };
  const filter = (changes) => go("fleet", { ...wanted, ...changes });
  const pages = new Pages((page) => get("v1/agents", { ...wanted, ...page }), 50);
  const enrol = () => session.isAdmin && button(t("fleet.enrol"), enrolDialog, { kind: "primary" });
  return screen(root, {
    load: () => pages.read(),
    view: (data, refresh) => [
      fleetTabs("fleet"),
      pageHead(t("nav.fleet"), t("fleet.lead"), enrol()),
      h("div", { class: "filters" },
        statusChips(t("fleet.filter"), STATES, wanted.state, (state) => filter({ state })),
        searchBox("group", t("fleet.group"), wanted.group, (group) => filter({ group })),
        searchBox("host", t("fleet.goTo"), "", (host) => go(`fleet/${at(host)}`))),
      data.items.length ? list(data.items, filter) : wanted.state || wanted.group ? noMatch() : empty(t("fleet.none"), t(session.isAdmin ? "fleet.noneAdvice" : "fleet.noneAsk"), enrol()),
      pages.moreButton(data, refresh),
    ],
    quick: 5000,
    slow: 8000,
  });
}

function list(items, filter) {
  return table(t("nav.fleet"), [
    { title: t("fleet.host"), kind: "main", cell: (agent) => link(agent.agent_id, `#/fleet/${at(agent.agent_id)}`, "strong") },
    { title: t("field.status"), cell: (agent) => (agent.duplicate_at ? h("div", null, badge(agent.state), h("span", { class: "under" }, t("fleet.twoHosts"))) : badge(agent.state)) },
    { title: t("fleet.lastJob"), cell: (agent) => (agent.last_job ? lastJob(agent.last_job) : "–") },
    { title: t("fleet.groups"), cell: (agent) => (agent.groups.length ? h("span", { class: "chips" }, agent.groups.map((group) => h("button", { type: "button", class: "chip", onclick: () => filter({ group }) }, group))) : "–") },
    { title: t("fleet.zone"), cell: (agent) => agent.zone || "–" },
    { title: t("fleet.version"), cell: (agent) => agent.version || "–" },
    { title: t("fleet.free"), cell: (agent) => bytes(agent.free_bytes) },
    { title: t("fleet.lastSeen"), cell: (agent) => (agent.last_seen ? when(agent.last_seen) : t("overview.never")) },
  ], items, { keyOf: (agent) => agent.agent_id });
}

// After the Job's records have expired there is no page to link to.
export function lastJob({ key, file_name, status, at: taken }) {
  if (!status) return h("div", null, h("span", null, file_name), h("span", { class: "under" }, when(taken)));
  return h("div", null, link(file_name, `#/distribution/${at(key)}`, "strong"), h("span", { class: "under" }, badge(STATUS_NAMES[status] || status), " ", when(taken)));
}

// `name=value` pairs.
export function labelsOf(text, name = "labels") {
  const lines = textLines(text, /[\n,]+/);
  return Object.fromEntries(lines.map((line) => {
    const [label, value] = line.split("=").map((part) => part.trim());
    if (!label || !value) throw new FieldError(name, t("fleet.labelsHint"));
    return [label, value];
  }));
}

export const wordsOf = (text) => text.split(/[\s,]+/).filter(Boolean);

function enrolDialog() {
  const close = dialog(t("fleet.enrol"), () => form([
    h("p", { class: "muted" }, t("fleet.enrolWhat")),
    h("div", { class: "pair" },
      field("uses", t("fleet.uses"), { type: "number", min: 1, max: 100000, value: "1", required: true }),
      field("expires_in", t("keys.expires"), { options: [["3600", wholeUnits(1, "hour")], ["86400", wholeUnits(1, "day")], ["604800", wholeUnits(7, "day")]] })),
    field("groups", t("fleet.groups"), { hint: t("fleet.groupsHint") }),
    field("labels", t("fleet.labels"), { hint: t("fleet.labelsHint") }),
    field("replace", t("fleet.replace"), { type: "checkbox", hint: t("fleet.replaceHint") }),
  ], t("fleet.makeToken"), async (given, once) => {
    const body = { uses: Number(given.uses), expires_in: Number(given.expires_in), groups: wordsOf(given.groups), labels: labelsOf(given.labels), replace: given.replace === "on" };
    const made = await create("v1/enrolments", body, once);
    close();
    const server = new URL(".", document.baseURI).href.replace(/\/$/, "");
    showOnce(t("fleet.token"), t("fleet.tokenOnce", { until: moment(made.expires_at) }), [
      [t("fleet.token"), made.token],
      [t("fleet.onTheHost"), `tidegate agent enrol --url ${server} --token ${made.token} --agent-id $(hostname)`],
    ]);
  }));
}
