// A map of all targets of a Job, one small square each, on a canvas; with filter and search.
import { draw, h } from "../dom.js";
import { at, get } from "../api.js";
import { count } from "../format.js";
import { t } from "../i18n.js";
import { badge, chips } from "./basics.js";

const STATES = { W: ["waiting", "--fill-calm"], R: ["downloading", "--fill-busy"], S: ["success", "--fill-good"], F: ["failed", "--fill-bad"], T: ["timeout", "--fill-warn"], C: ["cancelled", "--text"], N: ["superseded", "--muted"] };
const MATCHES = 12;

export class TargetMap {
  constructor(job) {
    this.job = job;
    this.names = [];
    this.states = "";
    this.letter = "";
    this.text = "";
    this.canvas = h("canvas", { class: "target-map", role: "img", onmousemove: (event) => this.hover(event), onclick: (event) => this.click(event), onmouseleave: () => this.showCaption(null) });
    this.caption = h("p", { class: "muted map-caption" });
    this.found = h("ul", { class: "rows tight" });
    this.root = h("div", { class: "stack" });
    this.showCaption(null);
    new ResizeObserver(() => this.paint()).observe(this.canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.paint());
  }

  async read() {
    const names = [];
    let states = "";
    let shard = 0;
    do {
      const page = await get(`v1/jobs/${at(this.job)}/map`, { shard });
      names.push(...page.names);
      states += page.states;
      shard = page.next_shard;
    } while (shard);
    this.names = names;
    this.states = states;
  }

  view() {
    const counts = {};
    for (const letter of this.states) counts[letter] = (counts[letter] || 0) + 1;
    const options = [["", t("action.all"), count(this.names.length)], ...Object.entries(STATES).filter(([letter]) => counts[letter]).map(([letter, [name]]) => [letter, t(`status.${name}`), count(counts[letter])])];
    this.canvas.setAttribute("aria-label", `${t("jobs.map")}: ${options.slice(1).map(([, name, number]) => `${name} ${number}`).join(", ")}`);
    draw(this.root,
      h("div", { class: "filters" },
        chips(t("jobs.filterTargets"), options, this.letter, (letter) => { this.letter = letter; this.view(); }),
        h("label", { class: "search" }, h("span", { class: "visually-hidden" }, t("jobs.searchTarget")), h("input", { type: "search", placeholder: t("jobs.searchTarget"), autocomplete: "off", oninput: (event) => { this.text = event.target.value.trim().toLowerCase(); this.paint(); this.list(); } }))),
      this.canvas, this.caption, this.found);
    this.paint();
    return this.root;
  }

  matches(index) {
    return (!this.letter || this.states[index] === this.letter) && (!this.text || this.names[index].toLowerCase().includes(this.text));
  }

  // The names that the search found, for users who cannot see or point at squares.
  list() {
    const rows = [];
    for (let index = 0; this.text && index < this.names.length && rows.length < MATCHES; index += 1) {
      if (this.matches(index)) rows.push(h("li", { class: "row-head" }, h("button", { type: "button", class: "link", onclick: () => this.open(index) }, this.names[index]), badge(STATES[this.states[index]][0])));
    }
    draw(this.found, rows);
  }

  paint() {
    const width = this.canvas.clientWidth;
    if (!width) return;
    const number = this.names.length;
    this.cell = number > 4000 ? 7 : number > 1000 ? 9 : number > 200 ? 13 : 20;
    this.columns = Math.max(1, Math.floor(width / this.cell));
    const height = Math.max(1, Math.ceil(number / this.columns)) * this.cell;
    const scale = devicePixelRatio || 1;
    if (this.canvas.width !== Math.round(width * scale) || this.canvas.height !== Math.round(height * scale)) {
      this.canvas.width = Math.round(width * scale);
      this.canvas.height = Math.round(height * scale);
      this.canvas.style.height = `${height}px`;
    }
    const context = this.canvas.getContext("2d");
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, width, height);
    const colours = coloursOf(this.canvas);
    for (let index = 0; index < number; index += 1) {
      context.globalAlpha = this.matches(index) ? 1 : 0.12;
      context.fillStyle = colours[this.states[index]];
      context.fillRect((index % this.columns) * this.cell, Math.floor(index / this.columns) * this.cell, this.cell - 1, this.cell - 1);
    }
    context.globalAlpha = 1;
  }

  indexAt(event) {
    const index = Math.floor(event.offsetY / this.cell) * this.columns + Math.floor(event.offsetX / this.cell);
    return index < this.names.length ? index : null;
  }

  hover(event) { this.showCaption(this.indexAt(event)); }

  showCaption(index) {
    draw(this.caption, index === null ? t("jobs.mapHint") : [h("strong", null, this.names[index]), " ", badge(STATES[this.states[index]][0])]);
  }

  click(event) {
    const index = this.indexAt(event);
    if (index !== null) this.open(index);
  }

  open(index) { location.hash = `#/fleet/${at(this.names[index].split(" ")[0])}`; }
}

// A canvas does not understand light-dark(): let an element resolve the token, and read its colour.
function coloursOf(place) {
  const probe = h("span", { hidden: true });
  place.parentNode.append(probe);
  const read = Object.fromEntries(Object.entries(STATES).map(([letter, [, token]]) => {
    probe.style.color = `var(${token})`;
    return [letter, getComputedStyle(probe).color];
  }));
  probe.remove();
  return read;
}
