// Creates elements, and redraws a view into its existing elements, so that focus, scroll position and transitions
// survive a refresh. Text is always inserted as text nodes, never as HTML.

const SVG = "http://www.w3.org/2000/svg";
const PROPERTIES = new Set(["value", "checked", "selected", "open", "indeterminate"]);

export function h(tag, props, ...children) {
  return fill(document.createElement(tag), props, children);
}

export function svg(tag, props, ...children) {
  return fill(document.createElementNS(SVG, tag), props, children);
}

function fill(element, props, children) {
  for (const [name, value] of Object.entries(props || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) listen(element, name.slice(2), value);
    else if (name === "style") for (const [rule, given] of Object.entries(value)) element.style.setProperty(rule, given);
    else if (PROPERTIES.has(name)) element[name] = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...nodesOf(children));
  return element;
}

function nodesOf(children) {
  return children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false && child !== "")
    .map((child) => (child instanceof Node ? child : document.createTextNode(String(child))));
}

// One listener for each event, which looks up its handler: a redraw replaces the handler, not the element.
function listen(element, type, handler) {
  if (!element.handlers) element.handlers = {};
  if (!element.handlers[type]) element.addEventListener(type, (event) => element.handlers[type]?.(event));
  element.handlers[type] = handler;
}

export function draw(parent, ...children) {
  matchChildren(parent, nodesOf(children));
}

const keyOf = (node) => (node.nodeType === Node.ELEMENT_NODE ? node.getAttribute("data-key") : null);
const sameElement = (one, other) => one.nodeName === other.nodeName && keyOf(one) === keyOf(other);

function matchChildren(parent, wanted) {
  const keyed = new Map();
  for (const child of parent.childNodes) if (keyOf(child)) keyed.set(keyOf(child), child);
  let at = parent.firstChild;
  for (const next of wanted) {
    const key = keyOf(next);
    const here = key ? keyed.get(key) : at;
    if (!here || !sameElement(here, next)) {
      parent.insertBefore(next, at);
      continue;
    }
    if (here === at) at = at.nextSibling;
    else parent.insertBefore(here, at);
    if (here !== next) match(here, next);
  }
  while (at) {
    const gone = at;
    at = at.nextSibling;
    gone.remove();
  }
}

function match(here, next) {
  if (here.nodeType !== Node.ELEMENT_NODE) {
    if (here.data !== next.data) here.data = next.data;
    return;
  }
  // The user decides whether details are open.
  const kept = here.nodeName === "DETAILS" ? ["style", "open"] : ["style"];
  for (const { name } of [...here.attributes]) if (!kept.includes(name) && !next.hasAttribute(name)) here.removeAttribute(name);
  for (const { name, value } of next.attributes) {
    if (name !== "style" && here.getAttribute(name) !== value) here.setAttribute(name, value);
  }
  if (here.style && here.style.cssText !== next.style.cssText) here.style.cssText = next.style.cssText;
  for (const [type, handler] of Object.entries(next.handlers || {})) listen(here, type, handler);
  // Keep what the user typed or chose.
  if (here.nodeName !== "TEXTAREA" && here.nodeName !== "SELECT") matchChildren(here, [...next.childNodes]);
}
