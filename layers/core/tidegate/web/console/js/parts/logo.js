// The logo.
import { svg } from "../dom.js";

export function logo() {
  return svg("svg", { class: "logo", viewBox: "0 0 32 32", "aria-hidden": "true" },
    svg("rect", { width: 32, height: 32, rx: 8, class: "logo-ground" }),
    svg("path", { d: "M8 6v20M24 6v20", class: "logo-posts" }),
    svg("path", { d: "M8 13.500c2.700-2.600 5.300-2.600 8 0s5.300 2.600 8 0M8 20.500c2.700-2.600 5.300-2.600 8 0s5.300 2.600 8 0", class: "logo-tide" }));
}
