// The buckets and tables that a project's exports may write to and read from.
import { h } from "../dom.js";
import { patch } from "../api.js";
import { t } from "../i18n.js";
import { button, card, code, facts } from "../parts/basics.js";
import { dialog, saved } from "../parts/dialog.js";
import { field, FieldError, form, textLines } from "../parts/form.js";

// The API's patterns, to report a wrong line before it is sent.
const PATTERNS = {
  deliver_to: /^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]\/.+$/,
  read_from: /^(s3:\/\/[^/*?[]+\/.+|(dynamodb|athena):\/\/[^/*?[]+)$/,
};
const EXAMPLES = { deliver_to: "acme-reports/shop/*", read_from: "s3://acme-data/orders/*\ndynamodb://orders\nathena://reports" };

export function accessCard(record, path, refresh) {
  const listed = (patterns) => (patterns.length ? h("div", { class: "plain" }, patterns.map((pattern) => h("span", null, code(pattern)))) : t("projects.nowhere"));
  return card(t("projects.access"), { id: "access", tools: button(t("action.change"), () => accessDialog(record, path, refresh), { kind: "small" }) },
    facts(Object.keys(PATTERNS).map((name) => [t(`projects.${name}`), listed(record[name])])));
}

function accessDialog(record, path, refresh) {
  const close = dialog(t("projects.access"), () => form(
    Object.keys(PATTERNS).map((name) => field(name, t(`projects.${name}`), { rows: 4, class: "mono", value: record[name].join("\n"), hint: t(`projects.${name}Hint`), placeholder: EXAMPLES[name] })),
    t("action.save"), async (given) => {
      await patch(path, Object.fromEntries(Object.keys(PATTERNS).map((name) => [name, patternsOf(name, given[name])])));
      saved(close, refresh);
    }));
}

function patternsOf(name, text) {
  const lines = textLines(text);
  const wrong = lines.find((line) => !PATTERNS[name].test(line));
  if (wrong) throw new FieldError(name, t("projects.badPattern", { line: wrong, hint: t(`projects.${name}Hint`) }));
  return lines;
}
