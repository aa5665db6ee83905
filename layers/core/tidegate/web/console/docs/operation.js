// One operation of the API: its parameters, body and answers, its code, and a form that calls it.
import { draw, h } from "../js/dom.js";
import { codeBlock, codeLanguage, inLanguage, languageTabs, t } from "./frame.js";
import { callIn } from "./languages.js";
import { addressOf, send } from "./request.js";
import { example, kindOf, limitsOf, plain, resolved } from "./schema.js";

export function operation(root, method, path, spec, keyOf) {
  const verb = method.toUpperCase();
  const element = h("details", { class: keyOf ? "docs-op" : "docs-op docs-webhook", id: `${method}-${path}` },
    h("summary", null,
      h("span", { class: "docs-verb", "data-verb": verb }, verb), h("span", { class: "docs-path" }, path), h("span", { class: "muted" }, inLanguage(spec.summary))));
  // Drawn when it is opened, because there are more than a hundred.
  element.addEventListener("toggle", () => { if (element.open && !element.querySelector(".docs-body")) element.append(operationBody(root, verb, path, spec, keyOf)); });
  return element;
}

function operationBody(root, verb, path, spec, keyOf) {
  const content = spec.requestBody?.content?.["application/json"];
  const body = content?.schema;
  const sample = body ? content.example ?? example(body, root, 0) : undefined;
  const inputs = (spec.parameters || []).map((parameter) => ({ parameter, input: inputFor(parameter, root) }));
  const text = body ? h("textarea", { "aria-label": t("body"), spellcheck: "false", value: JSON.stringify(sample, null, 2) }) : null;
  const result = h("div", { "aria-live": "polite" });
  const button = h("button", { type: "button" }, t("send"));
  button.addEventListener("click", async () => {
    button.disabled = true;
    const given = { path: {}, query: {}, header: {} };
    for (const { parameter, input } of inputs) if (input.value !== "" && given[parameter.in]) given[parameter.in][parameter.name] = input.value;
    try {
      const answer = await send(verb, addressOf(path, given.path, given.query), keyOf(), given.header, text?.value);
      draw(result, h("h3", null, answer.head), answer.text && h("pre", { tabindex: "0" }, answer.text));
    } catch (error) {
      draw(result, h("h3", null, `${t("noAnswer")}: ${error.message}`));
    }
    button.disabled = false;
  });
  return h("div", { class: "docs-body" },
    spec.description && h("p", { class: "docs-lead", lang: "en" }, marked(spec.description)),
    h("div", { class: "docs-words" },
      inputs.length > 0 && h("div", null, h("h3", null, t("parameters")), h("div", { class: "docs-fields" }, inputs.map(({ parameter, input }) =>
        row(parameter.name, parameter.required, `${parameter.in}, ${kindOf(parameter.schema, root)}`, inLanguage(parameter.description), limitsOf(parameter.schema, root), input)))),
      body && h("div", null, h("h3", null, t("body")), fields(body, root), text),
      keyOf && h("div", null, button), result,
      h("div", null, h("h3", null, t("answers")), h("ul", { class: "docs-answers" },
        Object.entries(spec.responses || {}).map(([status, answer]) => h("li", null, h("span", { class: "code" }, status), " ", marked(inLanguage(resolved(answer, root).description))))))),
    h("div", { class: "docs-samples" },
      keyOf && requestSample(verb, samplePath(path, spec), sample),
      Object.entries(spec.responses || {}).filter(([, answer]) => answerExample(answer)).map(([status, answer]) =>
        h("div", null, h("h3", null, `${t("answer")} ${status}`), codeBlock(JSON.stringify(answerExample(answer), null, 2), { class: "docs-example" })))));
}

// The request in the programming language that the page shows. Drawn again when another one is chosen in any of them.
function requestSample(verb, path, sample) {
  const place = h("div");
  const showCode = () => draw(place, codeBlock(callIn(codeLanguage(), verb, path, sample), { "data-way": codeLanguage() }));
  showCode();
  document.addEventListener("code-language", showCode);
  return h("div", null, h("h3", null, t("request")), languageTabs(() => document.dispatchEvent(new Event("code-language"))), place);
}

// The path with the examples of its parameters, and of the query what must be given.
function samplePath(path, spec) {
  const parameters = spec.parameters || [];
  const value = (name) => parameters.find((each) => each.name === name)?.example ?? name.toUpperCase();
  const query = parameters.filter((each) => each.in === "query" && each.required).map((each) => `${each.name}=${encodeURIComponent(each.example ?? each.name.toUpperCase())}`);
  return path.replace(/\{(\w+)\}/g, (_, name) => encodeURIComponent(value(name))) + (query.length ? `?${query.join("&")}` : "");
}

function answerExample(answer) {
  return answer.content?.["application/json"]?.example;
}

function inputFor(parameter, root) {
  const choices = plain(parameter.schema, root).enum;
  const label = { "aria-label": parameter.name };
  const shown = parameter.example === undefined ? "" : String(parameter.example);
  if (!choices) return h("input", { ...label, placeholder: shown });
  return h("select", label, h("option", { value: "" }, ""), choices.map((choice) => h("option", { value: choice }, choice)));
}

function fields(schema, root) {
  const found = plain(schema, root);
  const required = found.required || [];
  const named = Object.entries(found.properties || {}).sort(([one], [other]) => required.includes(other) - required.includes(one));
  return h("div", { class: "docs-fields" }, named.map(([name, field]) =>
    row(name, required.includes(name), kindOf(field, root), plain(field, root).description, limitsOf(field, root))));
}

function row(name, required, kind, description, limits, input) {
  return h("div", { class: "docs-field" },
    h("span", { class: required ? "mono docs-required" : "mono" }, name), h("span", { class: "muted" }, kind),
    h("span", null, marked([description, limits].filter(Boolean).join("; ")), input));
}

// Text in backticks is code.
function marked(text) {
  return String(text ?? "").split("`").map((part, at) => at % 2 ? h("span", { class: "code" }, part) : part);
}
