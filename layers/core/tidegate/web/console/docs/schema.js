// Describes a schema of the OpenAPI document in words, and makes an example body for it.
import { t } from "./frame.js";

export function resolved(schema, root) {
  if (!schema?.$ref) return schema || {};
  return schema.$ref.slice(2).split("/").reduce((found, part) => found?.[part], root) || {};
}

// The schema without the option null.
export function plain(schema, root) {
  const found = resolved(schema, root);
  const options = (found.anyOf || found.oneOf || []).filter((option) => option.type !== "null");
  return options.length === 1 ? { ...plain(options[0], root), description: found.description || options[0].description } : found;
}

export function kindOf(schema, root) {
  const found = plain(schema, root);
  if (found.enum) return found.enum.map((value) => JSON.stringify(value)).join(" | ");
  if (found.const !== undefined) return JSON.stringify(found.const);
  if (found.type === "array") return t("listOf", { n: kindOf(found.items, root) });
  const options = found.anyOf || found.oneOf;
  if (options) return options.map((option) => kindOf(option, root)).join(" | ");
  return found.format || found.type || t("anyJson");
}

export function limitsOf(schema, root) {
  const found = plain(schema, root);
  const words = [];
  const between = (low, high, unit) => {
    const said = low === undefined ? high !== undefined && "atMost" : high === undefined ? "atLeast" : "between";
    if (said) words.push(t(said, { low, high, unit }));
  };
  between(found.minimum, found.maximum, "");
  between(found.minLength, found.maxLength, t("characters"));
  between(found.minItems, found.maxItems, t("entries"));
  if (found.pattern) words.push(t("like", { n: found.pattern }));
  if (found.default !== undefined && found.default !== null) words.push(t("byDefault", { n: JSON.stringify(found.default) }));
  return words.join(", ");
}

export function example(schema, root, depth) {
  const found = plain(schema, root);
  if (depth > 4) return null;
  if (found.default !== undefined) return found.default;
  if (found.const !== undefined) return found.const;
  if (found.enum) return found.enum[0];
  if (found.type === "array") return found.minItems || depth < 2 ? [example(found.items, root, depth + 1)] : [];
  if (found.type === "integer" || found.type === "number") return Math.max(found.minimum ?? 1, Math.min(1, found.maximum ?? 1));
  if (found.type === "boolean") return false;
  if (found.properties) {
    const wanted = Object.keys(found.properties).filter((name) => (found.required || []).includes(name));
    return Object.fromEntries(wanted.map((name) => [name, example(found.properties[name], root, depth + 1)]));
  }
  if (found.type === "object") return {};
  return found.type === "string" ? "text" : null;
}
