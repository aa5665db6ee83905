// A text filter, applied on Enter or when the field loses focus.
import { h } from "../dom.js";

export function searchBox(name, label, value, apply) {
  const changed = (event) => { if (event.target.value.trim() !== value) apply(event.target.value.trim()); };
  return h("label", { class: "search", "data-key": `search-${name}` }, h("span", { class: "visually-hidden" }, label),
    h("input", { type: "search", name, value, placeholder: label, autocomplete: "off", onchange: changed }));
}
