// Fields for the limits on reading a source, and the object from them.
import { h } from "../dom.js";
import { t } from "../i18n.js";
import { field } from "./form.js";

const NAMES = ["connections", "bytes_per_s", "delay_s", "host_downloads"];

export function politenessFields(known = {}) {
  return h("div", { class: "pair" }, NAMES.map((name) =>
    field(name, t(`polite.${name}`), { type: "number", min: name === "bytes_per_s" ? 1024 : name === "delay_s" ? 0 : 1, step: name === "delay_s" ? "any" : 1, value: String(known?.[name] ?? ""), hint: t("projects.limitHint") })));
}

// Returns undefined if nothing is limited.
export function politenessOf(given) {
  const found = Object.fromEntries(NAMES.filter((name) => given[name]).map((name) => [name, Number(given[name])]));
  return Object.keys(found).length ? found : undefined;
}
