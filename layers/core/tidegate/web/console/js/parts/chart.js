// A line chart of a figure since the page was opened.
import { svg } from "../dom.js";

const WIDTH = 600;
const HEIGHT = 120;
const MOST_SAMPLES = 240;

// Keeps the samples of one page; a view adds one at every refresh.
export class Samples {
  constructor() { this.points = []; }

  add(value) {
    if (value === undefined || value === null || Number.isNaN(value)) return;
    this.points.push({ at: Date.now(), value });
    if (this.points.length > MOST_SAMPLES) this.points.shift();
  }
}

// The growth of a counter per second between two samples.
export class Rate extends Samples {
  add(total) {
    if (total === undefined || total === null) return;
    const now = Date.now();
    if (this.before && now > this.before.at) super.add(Math.max(0, (total - this.before.total) / ((now - this.before.at) / 1000)));
    this.before = { at: now, total };
  }
}

export function lineChart({ points }, label, { goal, format = String } = {}) {
  if (points.length < 2) return null;
  const most = Math.max(1e-9, goal || 0, ...points.map((point) => point.value)) * 1.1;
  const first = points[0].at;
  const span = Math.max(1, points[points.length - 1].at - first);
  const x = (at) => ((at - first) / span) * WIDTH;
  const y = (value) => HEIGHT - (value / most) * HEIGHT;
  const line = points.map((point, index) => `${index ? "L" : "M"}${x(point.at).toFixed(1)} ${y(point.value).toFixed(1)}`).join("");
  const last = points[points.length - 1].value;
  return svg("svg", { class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": `${label}: ${format(last)}` },
    svg("path", { class: "area", d: `${line}L${WIDTH} ${HEIGHT}L0 ${HEIGHT}Z` }),
    goal ? svg("line", { class: "goal", x1: 0, x2: WIDTH, y1: y(goal), y2: y(goal) }) : null,
    svg("path", { class: "line", d: line }));
}
