// The search for pages, names, ids, hosts and files (`/` or ⌘K).
import { draw, h } from "./dom.js";
import { at, get } from "./api.js";
import { named, t } from "./i18n.js";
import { AREAS } from "./router.js";

const MOST_SHOWN = 12;
const TYPING_DELAY = 250;
const NEWEST = { limit: 100 };
// The newest records of each kind are read when the search opens; older ones are found by their exact id or name.
const KINDS = [
  ["distribution", "v1/jobs", (job) => [job.file_name || job.file_path, `#/distribution/${at(job.key)}`, job.job_id, job.file_path]],
  ["files", "v1/files", (file) => [file.file_name, `#/files?path=${at(file.file_path)}`, file.file_id, file.file_path, file.signature]],
  ["fleet", "v1/agents", (agent) => [agent.agent_id, `#/fleet/${at(agent.agent_id)}`, agent.groups.join(" ")]],
  ["fleet", "v1/releases", (release) => [release.name, `#/releases/${at(release.name)}`, release.targets.groups.join(" ")]],
  ["exports", "v1/tasks", (task) => [task.name, `#/exports/${at(task.task_id)}`, task.task_id, task.file_name]],
  ["exports", "v1/export-schedules", (item) => [item.name, `#/export-schedules/${at(item.schedule_id)}`, item.schedule_id, item.schedule]],
  ["batches", "v1/batches", (batch) => [batch.name, `#/batches/${at(batch.batch_id)}`, batch.batch_id]],
  ["batches", "v1/batch-schedules", (item) => [item.name, `#/batch-schedules/${at(item.schedule_id)}`, item.schedule_id, item.schedule]],
  ["ingest", "v1/subscriptions", (item) => [item.name, `#/ingest/${at(item.subscription_id)}`, item.subscription_id, item.source_url]],
];
const EXACT = [
  ["fleet", (text) => get(`v1/agents/${at(text)}`), (agent) => [agent.agent_id, `#/fleet/${at(agent.agent_id)}`]],
  ["queue", (text) => get(`v1/requests/${at(text)}`), (request) => [request.name || named("type", request.type), request.type === "export" ? `#/exports/${at(request.request_id)}` : `#/queue/${at(request.request_id)}`, request.request_id]],
  ["distribution", (text) => get(`v1/jobs/${at(text)}`), (job) => [job.file_name, `#/distribution/${at(job.key)}`, job.job_id]],
  ["distribution", (text) => get(`v1/downloads/${at(text)}`), (task) => [`${task.file_name} → ${task.target_agent_id}`, `#/tasks/${at(task.task_id.slice(task.task_id.lastIndexOf(":") + 1))}`, task.task_id]],
  ["files", async (text) => (await get("v1/files", { file_path: text, limit: 1 })).items[0], (file) => [file.file_name, `#/files?path=${at(file.file_path)}`, file.file_id]],
];

export function palette() {
  const known = AREAS.map((name) => entry("pages", [t(`nav.${name}`), `#/${name}`]));
  let found = [];
  let chosen = 0;
  let timer = null;
  let loading = KINDS.length;
  const list = h("ul", { class: "find-results", id: "find-results", role: "listbox", "aria-label": t("find.title") });
  const input = h("input", { type: "search", class: "find-input", placeholder: t("find.placeholder"), "aria-label": t("find.title"), role: "combobox", "aria-expanded": "true", "aria-controls": "find-results", autocomplete: "off", oninput: onInput, onkeydown: onKey });
  const hint = h("p", { class: "hint", role: "status" });
  const box = h("dialog", { class: "dialog palette", "aria-label": t("find.title") }, input, list, hint);
  box.addEventListener("close", () => { clearTimeout(timer); box.remove(); });
  box.addEventListener("click", (event) => { if (event.target === box) box.close(); });
  document.body.append(box);
  box.showModal();
  show();
  for (const [kind, path, shape] of KINDS) {
    get(path, NEWEST).then(({ items }) => known.push(...items.map((item) => entry(kind, [...shape(item), item.note]))), () => {}).finally(() => { loading -= 1; show(); });
  }

  function onInput() {
    chosen = 0;
    found = [];
    show();
    clearTimeout(timer);
    const text = input.value.trim();
    if (text.length > 2) timer = setTimeout(() => lookUp(text), TYPING_DELAY);
  }

  // Looks the text up as an id of each kind; most answer 404.
  async function lookUp(text) {
    if (matches(text).length) return;
    const answers = await Promise.allSettled(EXACT.map(([, ask]) => ask(text)));
    if (input.value.trim() !== text) return;
    found = answers.flatMap((answer, index) => (answer.status === "fulfilled" && answer.value ? [entry(EXACT[index][0], EXACT[index][2](answer.value))] : []));
    show();
  }

  function matches(text) {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    return known.filter((one) => words.every((word) => one.text.includes(word)));
  }

  function shown() {
    const seen = new Set();
    return [...matches(input.value.trim()), ...found].filter((one) => !seen.has(one.href) && seen.add(one.href)).slice(0, MOST_SHOWN);
  }

  function show() {
    const rows = shown();
    draw(list, rows.map((one, index) => h("li", { id: `found-${index}`, role: "option", "aria-selected": String(index === chosen), onclick: () => open(one) },
      h("span", { class: "strong clip" }, one.name), h("span", { class: "muted clip" }, one.id), h("span", { class: "badge calm" }, one.kind === "pages" ? t("find.page") : t(`nav.${one.kind}`)))));
    if (rows.length) input.setAttribute("aria-activedescendant", `found-${chosen}`);
    else input.removeAttribute("aria-activedescendant");
    draw(hint, rows.length ? t("find.hint") : loading > 0 ? t("state.loading") : t("find.none"));
    list.querySelector("[aria-selected=true]")?.scrollIntoView({ block: "nearest" });
  }

  function onKey(event) {
    const rows = shown();
    if (event.key === "ArrowDown") chosen = Math.min(rows.length - 1, chosen + 1);
    else if (event.key === "ArrowUp") chosen = Math.max(0, chosen - 1);
    // By default, Escape only clears a search field.
    else if (event.key === "Escape") box.close();
    else if (event.key === "Enter" && rows[chosen]) return open(rows[chosen]);
    else return undefined;
    event.preventDefault();
    return show();
  }

  function open(one) {
    box.close();
    location.hash = one.href;
  }
}

function entry(kind, [name, href, id = "", ...more]) {
  return { kind, name: String(name || id), href, id, text: [name, id, ...more].filter(Boolean).join(" ").toLowerCase() };
}
