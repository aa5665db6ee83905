// Forms: fields with labels and hints, and the server's errors next to their fields.
import { draw, h } from "../dom.js";
import { onceKey } from "../api.js";
import { t } from "../i18n.js";

let fieldNumber = 0;

export function field(name, label, { type = "text", value = "", hint, required, options, rows, oninput, ...more } = {}) {
  const id = `field-${name}-${(fieldNumber += 1)}`;
  const described = hint ? `${id}-hint` : undefined;
  const given = { id, name, required, oninput, "aria-describedby": described, ...more };
  let input;
  if (options) input = h("select", given, options.map(([choice, text]) => h("option", { value: choice, selected: choice === value }, text)));
  else if (rows) input = h("textarea", { ...given, rows, value, spellcheck: "false" });
  else input = h("input", { ...given, type, value: type === "checkbox" ? undefined : value, checked: type === "checkbox" && Boolean(value), autocomplete: "off" });
  if (type === "checkbox") return h("div", { class: "field tick", "data-field": name }, input, h("label", { for: id }, label, hint && h("span", { class: "hint" }, hint)), h("p", { class: "field-error", role: "alert" }));
  return h("div", { class: "field", "data-field": name },
    h("label", { for: id }, label, required && h("span", { class: "muted", "aria-hidden": "true" }, " *")),
    input,
    hint && h("p", { class: "hint", id: described }, hint),
    h("p", { class: "field-error", role: "alert" }));
}

export function form(fields, submitLabel, send, { after } = {}) {
  // The same Idempotency-Key until the server accepts it, so that a retry creates no second record.
  let once = onceKey();
  const say = h("p", { class: "form-error", role: "alert" });
  const press = h("button", { type: "submit", class: "button primary" }, submitLabel);
  const made = h("form", { onsubmit: submit }, fields, say, h("div", { class: "tools end" }, press), after);

  async function submit(event) {
    event.preventDefault();
    clear(made, say);
    press.disabled = true;
    try {
      await send(Object.fromEntries(new FormData(made)), once);
      once = onceKey();
    } catch (error) {
      if (error.status && error.status < 500) once = onceKey();
      complain(made, say, error);
    } finally {
      press.disabled = false;
    }
  }
  return made;
}

export class FieldError extends Error {
  constructor(name, message) {
    super(message);
    this.fields = [{ loc: ["body", name], msg: message }];
    this.status = 422;
  }
}

function clear(made, say) {
  draw(say);
  for (const line of made.querySelectorAll(".field-error")) draw(line);
  for (const bad of made.querySelectorAll("[aria-invalid]")) bad.removeAttribute("aria-invalid");
}

function complain(made, say, error) {
  let first = null;
  const unplaced = [];
  for (const { loc, msg } of error.fields || []) {
    const place = (loc || []).map((part) => made.querySelector(`[data-field="${CSS.escape(String(part))}"]`)).find(Boolean);
    const input = place?.querySelector("input, select, textarea");
    // Errors of hidden fields are shown below the form.
    if (!input || place.closest("[hidden]")) {
      unplaced.push(`${(loc || []).join(".")}: ${msg}`);
      continue;
    }
    for (let folded = place.closest("details"); folded; folded = folded.parentElement.closest("details")) folded.open = true;
    draw(place.querySelector(".field-error"), msg);
    input.setAttribute("aria-invalid", "true");
    first = first || input;
  }
  const told = error.requestId ? [`${t("error.requestId")} ${error.requestId}`] : [];
  const next = error.status === 0 ? [t("error.formNetwork")] : [];
  if (!first || unplaced.length) draw(say, [error.message, ...next, ...unplaced, ...told].join(" · "));
  (first || say).scrollIntoView({ block: "nearest" });
  first?.focus();
}

// The entries of a list that was typed one per line.
export function textLines(text, separator = "\n") {
  return text.split(separator).map((line) => line.trim()).filter(Boolean);
}

// Parses typed JSON: undefined for an empty field; throws FieldError if it is not valid.
export function readJson(name, text) {
  if (!text?.trim()) return undefined;
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new FieldError(name, t("error.json", { detail: error.message }));
  }
}
