// What an admin lets a project reach: buckets and tables of its exports, AWS roles of its hosts, and its targets with
// TransferEngine=gse.
import { h } from "../dom.js";
import { patch } from "../api.js";
import { t } from "../i18n.js";
import { button, card, code, facts } from "../parts/basics.js";
import { dialog, saved } from "../parts/dialog.js";
import { field, FieldError, form, textLines } from "../parts/form.js";

// The API's patterns, to report a wrong line before it is sent.
const EXPORTS = {
  deliver_to: /^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]\/.+$/,
  read_from: /^(s3:\/\/[^/*?[]+\/.+|dynamodb:\/\/[^/*?[]+|athena:\/\/[^/*?[]+(\/[^/*?[]+)?)$/,
};
const MASK = /^(.+?)\s*=\s*(?:(phone|id|card|email)|(\d{1,2}),(\d{1,2}))$/;
const AWS_ROLE = /^(\d{12})\/([A-Za-z0-9+=,.@_-]{1,64})(?:\s+groups=([\w.\/,-]+))?(?:\s+labels=([\w.\/@:,=-]+))?(\s+replace)?$/;
const GSE = { targets: /^[^\s/]+(\/[^\s/]+)?$/, dirs: /^(\/(?!\/)[^\\]*|[A-Za-z]:[\\/].*)$/, users: /^.+$/ };
const EXAMPLES = {
  deliver_to: "acme-reports/shop/*", read_from: "s3://acme-data/orders/*\ndynamodb://orders\nathena://reports/shop",
  alarms: "shop-*", aws_roles: "123456789012/web-hosts groups=web labels=os=al2023", masks: "mobile = phone\nid_card = id\nname = 1,0", targets: "web-*\nweb-1/*", dirs: "/data/app", users: "app",
};

export function accessCard(record, path, refresh) {
  return listsCard("access", EXPORTS, record, (lists) => patch(path, lists), refresh);
}

// Columns that exports hide, a line for each.
export function masksCard(record, path, refresh) {
  const lines = Object.entries(record.masks).map(([name, mask]) => `${name} = ${mask.start === undefined && mask.end === undefined ? mask : `${mask.start || 0},${mask.end || 0}`}`);
  const save = ({ masks }) => patch(path, { masks: Object.fromEntries(masks.map((line) => MASK.exec(line)).map(([, name, kind, start, end]) => [name, kind || { start: Number(start), end: Number(end) }])) });
  return listsCard("masked", { masks: MASK }, { masks: lines }, save, refresh);
}

export function alarmsCard(record, path, refresh) {
  return listsCard("stops", { alarms: /^.{1,255}$/ }, record, (lists) => patch(path, lists), refresh);
}

// AWS roles whose instances may enrol as hosts, a line for each.
export function awsCard(record, path, refresh) {
  const line = ({ account, role, groups = [], labels = {}, replace }) => [
    `${account}/${role}`,
    groups.length ? `groups=${groups.join(",")}` : "",
    Object.keys(labels).length ? `labels=${Object.entries(labels).map((pair) => pair.join("=")).join(",")}` : "",
    replace ? "replace" : "",
  ].filter(Boolean).join(" ");
  const roleOf = ([, account, role, groups, labels, replace]) => ({
    account, role, replace: Boolean(replace),
    groups: groups ? groups.split(",") : [],
    labels: labels ? Object.fromEntries(labels.split(",").map((pair) => pair.split("=", 2))) : {},
  });
  const save = ({ aws_roles }) => patch(path, { aws_roles: aws_roles.map((text) => roleOf(AWS_ROLE.exec(text))) });
  return listsCard("aws", { aws_roles: AWS_ROLE }, { aws_roles: record.aws_roles.map(line) }, save, refresh);
}

export function gseCard(record, path, refresh) {
  return listsCard("gse", GSE, record.gse, (lists) => patch(path, { gse: lists }), refresh);
}

function listsCard(id, patterns, lists, save, refresh) {
  const listed = (lines) => (lines.length ? h("div", { class: "plain" }, lines.map((line) => h("span", null, code(line)))) : t("projects.nowhere"));
  const change = () => {
    const close = dialog(t(`projects.${id}`), () => form(
      Object.keys(patterns).map((name) => field(name, t(`projects.${name}`), { rows: 4, class: "mono", value: lists[name].join("\n"), hint: t(`projects.${name}Hint`), placeholder: EXAMPLES[name] })),
      t("action.save"), async (given) => {
        await save(Object.fromEntries(Object.entries(patterns).map(([name, pattern]) => [name, checked(name, pattern, given[name])])));
        saved(close, refresh);
      }));
  };
  return card(t(`projects.${id}`), { id, tools: button(t("action.change"), change, { kind: "small" }) },
    facts(Object.keys(patterns).map((name) => [t(`projects.${name}`), listed(lists[name])])));
}

function checked(name, pattern, text) {
  const lines = textLines(text);
  const wrong = lines.find((line) => !pattern.test(line));
  if (wrong) throw new FieldError(name, t("projects.badPattern", { line: wrong, hint: t(`projects.${name}Hint`) }));
  return lines;
}
