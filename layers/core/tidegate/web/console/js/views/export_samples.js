// Sample templates: nested headings, and row headings.
import { t } from "../i18n.js";

export function samples(language) {
  return [[t("exports.sampleNested"), language === "zh" ? nestedZh : nestedEn], [t("exports.sampleRows"), language === "zh" ? rowHeadsZh : rowHeadsEn]];
}

// JSON with short values on one line, as a person would write it.
export function pretty(value, width, indent = "") {
  const line = JSON.stringify(value).replace(/":/g, '": ').replace(/([}\]"\d]),(?=["{[])/g, "$1, ");
  if (typeof value !== "object" || value === null || indent.length + line.length <= width) return line;
  const inner = `${indent}  `;
  const parts = Array.isArray(value)
    ? value.map((item) => inner + pretty(item, width, inner))
    : Object.entries(value).map(([name, item]) => `${inner}${JSON.stringify(name)}: ${pretty(item, width, inner)}`);
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  return `${open}\n${parts.join(",\n")}\n${indent}${close}`;
}

const nestedEn = {
  name: "Staff by team",
  title: "Staff by team",
  summary: "",
  template: [
    { title: "Person", children: [{ title: "Name", name: "name" }, { title: "More", children: [{ title: "Age", name: "age" }, { title: "City", name: "city" }] }] },
    { title: "Hours", children: [{ title: "Planned", name: "planned" }, { title: "Worked", name: "worked", style: { bold: true } }] },
    { title: "Remark", name: "remark" },
  ],
  source_data: [
    { name: "Ada", age: 36, city: "London", planned: 40, worked: 42, remark: "on call" },
    { name: "Lin", age: 29, city: "Shenzhen", planned: 40, worked: 38, remark: "" },
  ],
};

const nestedZh = {
  name: "员工工时",
  title: "员工工时统计",
  summary: "",
  template: [
    { title: "人员", children: [{ title: "姓名", name: "name" }, { title: "其他", children: [{ title: "年龄", name: "age" }, { title: "城市", name: "city" }] }] },
    { title: "工时", children: [{ title: "计划", name: "planned" }, { title: "实际", name: "worked", style: { bold: true } }] },
    { title: "备注", name: "remark" },
  ],
  source_data: [
    { name: "张伟", age: 36, city: "北京", planned: 40, worked: 42, remark: "值班" },
    { name: "林娜", age: 29, city: "深圳", planned: 40, worked: 38, remark: "" },
  ],
};

const rowHeadsEn = {
  name: "Sales by region",
  title: "Sales by region",
  summary: "Thousand EUR",
  template: {
    col: [{ title: "Quarter", children: [{ title: "Q1", name: "q1" }, { title: "Q2", name: "q2" }] }, { title: "Trend", name: "trend" }],
    row: [{ title: "Europe", children: [{ title: "North", name: "north", row_count: 2 }, { title: "South", name: "south" }] }, { title: "Asia", name: "asia" }],
  },
  source_data: { north: [{ q1: 12, q2: 15, trend: "up" }, { q1: 9, q2: 9, trend: "flat" }], south: [{ q1: 7, q2: 6, trend: "down" }], asia: [{ q1: 20, q2: 26, trend: "up" }] },
};

const rowHeadsZh = {
  name: "各区销售",
  title: "各区销售",
  summary: "单位：万元",
  template: {
    col: [{ title: "季度", children: [{ title: "一季度", name: "q1" }, { title: "二季度", name: "q2" }] }, { title: "走势", name: "trend" }],
    row: [{ title: "华北", children: [{ title: "北京", name: "north", row_count: 2 }, { title: "天津", name: "south" }] }, { title: "华南", name: "asia" }],
  },
  source_data: { north: [{ q1: 12, q2: 15, trend: "升" }, { q1: 9, q2: 9, trend: "平" }], south: [{ q1: 7, q2: 6, trend: "降" }], asia: [{ q1: 20, q2: 26, trend: "升" }] },
};
