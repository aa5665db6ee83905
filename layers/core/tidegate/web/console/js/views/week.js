// Statistics of the last seven days by type of request.
import { h } from "../dom.js";
import { get } from "../api.js";
import { bytes, count, duration, percent } from "../format.js";
import { named, t } from "../i18n.js";
import { empty } from "../parts/basics.js";
import { act, dialog } from "../parts/dialog.js";
import { table } from "../parts/table.js";

export function weekDialog() {
  return act(async () => {
    const { types } = await get("v1/stats");
    const rows = Object.entries(types);
    dialog(t("queue.week"), () => (rows.length ? table(t("queue.week"), [
      { title: t("field.type"), kind: "main", cell: ([type]) => h("span", { class: "strong" }, named("type", type)) },
      { title: t("overview.ended"), cell: ([, sums]) => count(sums.count) },
      { title: t("overview.success"), cell: ([, sums]) => percent(sums.success_rate, 1) },
      { title: t("queue.mean"), cell: ([, sums]) => duration(sums.mean_s) },
      { title: "p95", cell: ([, sums]) => duration(sums.p95_s) },
      { title: t("queue.cpu"), cell: ([, sums]) => duration(sums.mean_cpu_s) },
      { title: t("queue.memory"), kind: "nowrap", cell: ([, sums]) => bytes(sums.peak_memory_mb && sums.peak_memory_mb * 1048576) },
      { title: t("queue.moved"), kind: "nowrap", cell: ([, sums]) => bytes(sums.bytes) },
    ], rows, { keyOf: ([type]) => type }) : empty(t("queue.none"), t("queue.noneAdvice"))), { wide: true });
  });
}
