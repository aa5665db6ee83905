// Forms: fields with labels and hints, and the server's errors next to their fields.
import { draw, h } from "../dom.js";
import { onceKey } from "../api.js";
import { t } from "../i18n.js";
import { busyWhile } from "./basics.js";

let fieldNumber = 0;

export function field(name, label, { type = "text", value = "", hint, required, options, rows, oninput, ...more } = {}) {
  const id = `field-${name}-${(fieldNumber += 1)}`;
  const described = hint ? `${id}-hint` : undefined;
  const attributes = { id, name, required, oninput, "aria-describedby": described, ...more };
  let input;
  if (options) input = h("select", attributes, options.map(([choice, text]) => h("option", { value: choice, selected: choice === value }, text)));
  else if (rows) input = h("textarea", { ...attributes, rows, value, spellcheck: "false" });
  else input = h("input", { ...attributes, type, value: type === "checkbox" ? undefined : value, checked: type === "checkbox" && Boolean(value), autocomplete: "off" });
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
  const message = h("p", { class: "form-error", role: "alert" });
  const submitButton = h("button", { type: "submit", class: "button primary" }, submitLabel);
  const element = h("form", { onsubmit: submit }, fields, message, h("div", { class: "tools end" }, submitButton), after);

  async function submit(event) {
    event.preventDefault();
    clearErrors(element, message);
    submitButton.disabled = true;
    try {
      await busyWhile(submitButton, send(Object.fromEntries(new FormData(element)), once));
      once = onceKey();
    } catch (error) {
      if (error.status && error.status < 500) once = onceKey();
      showErrors(element, message, error);
    } finally {
      submitButton.disabled = false;
    }
  }
  return element;
}

export class FieldError extends Error {
  constructor(name, message) {
    super(message);
    this.fields = [{ loc: ["body", name], msg: message }];
    this.status = 422;
  }
}

function clearErrors(element, message) {
  draw(message);
  for (const line of element.querySelectorAll(".field-error")) draw(line);
  for (const bad of element.querySelectorAll("[aria-invalid]")) bad.removeAttribute("aria-invalid");
}

function showErrors(element, message, error) {
  let first = null;
  const otherErrors = [];
  for (const { loc, msg } of error.fields || []) {
    const place = (loc || []).map((part) => element.querySelector(`[data-field="${CSS.escape(String(part))}"]`)).find(Boolean);
    const input = place?.querySelector("input, select, textarea");
    // Errors of hidden fields are shown below the form.
    if (!input || place.closest("[hidden]")) {
      otherErrors.push(`${(loc || []).join(".")}: ${msg}`);
      continue;
    }
    for (let folded = place.closest("details"); folded; folded = folded.parentElement.closest("details")) folded.open = true;
    draw(place.querySelector(".field-error"), msg);
    input.setAttribute("aria-invalid", "true");
    first = first || input;
  }
  const requestId = error.requestId ? [`${t("error.requestId")} ${error.requestId}`] : [];
  const next = error.status === 0 ? [t("error.formNetwork")] : [];
  if (!first || otherErrors.length) draw(message, [error.message, ...next, ...otherErrors, ...requestId].join(" · "));
  (first || message).scrollIntoView({ block: "nearest" });
  first?.focus();
}

// The entries of a list that was typed one per line.
export function textLines(text, separator = "\n") {
  return text.split(separator).map((line) => line.trim()).filter(Boolean);
}

// JavaScript would write 100.00 as 100, and round an id of 17 digits.
const asTyped = (key, value, typed) => (typeof value === "number" && JSON.rawJSON && typed?.source !== String(value) ? JSON.rawJSON(typed.source) : value);

// Parses typed JSON: undefined for an empty field; throws FieldError if it is not valid. Numbers that JavaScript would
// change become objects, which are sent and shown as they were typed; `plain`: they are computed with.
export function readJson(name, text, { plain = false } = {}) {
  if (!text?.trim()) return undefined;
  try {
    return JSON.parse(text, plain ? null : asTyped);
  } catch (error) {
    throw new FieldError(name, t("error.json", { detail: error.message }));
  }
}
