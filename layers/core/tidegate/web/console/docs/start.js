// The getting-started page, with the URL of this stack filled in.
import { draw, h } from "../js/dom.js";
import { STEPS } from "./steps.js";

const here = new URL(".", location.href).href.replace(/\/$/, "");
const WAYS = [["curl", "curl"], ["python", "Python"], ["cli", "Command line"]];

draw(document.getElementById("start"),
  h("header", { class: "docs-head" }, h("div", null, h("h1", null, "Getting started"),
    h("p", null, "This stack is at ", h("code", null, here), ". ", h("a", { href: "docs" }, "All routes"), " · ", h("a", { href: "./" }, "console")))),
  STEPS.map((step, number) => h("section", { class: "docs-group" }, h("h2", null, `${number + 1}. ${step.title}`), h("p", null, step.text),
    h("div", { class: "start-ways" }, WAYS.map(([way, name]) =>
      h("div", null, h("h3", null, name), h("pre", { tabindex: "0", "data-way": way }, step[way].replaceAll("{URL}", here))))))));
