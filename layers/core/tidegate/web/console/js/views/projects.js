// Projects: the tenants of this deployment.
import { at, create, get } from "../api.js";
import { t } from "../i18n.js";
import { badge, button, empty, pageHead, nameAndId, when } from "../parts/basics.js";
import { dialog, toast } from "../parts/dialog.js";
import { field, form } from "../parts/form.js";
import { screen } from "../parts/screen.js";
import { Pages, table } from "../parts/table.js";

export function projects(root, { go, tabs }) {
  const pages = new Pages((page) => get("v1/projects", page), 50);
  return screen(root, {
    load: () => pages.read(),
    view: (data, refresh) => [
      pageHead(t("operate.projects"), t("projects.lead"), button(t("projects.new"), () => newProject(go), { kind: "primary" })),
      tabs("projects"),
      data.items.length ? list(data.items) : empty(t("projects.none"), t("projects.noneAdvice"), button(t("projects.new"), () => newProject(go))),
      pages.moreButton(data, refresh),
    ],
    slow: 30000,
    quick: 15000,
  });
}

function list(items) {
  return table(t("operate.projects"), [
    { title: t("field.name"), kind: "main", cell: (project) => nameAndId(project.name, `#/operate/projects/${at(project.project_id)}`, project.project_id) },
    { title: t("projects.group"), cell: (project) => project.group || "–" },
    { title: t("projects.private"), cell: (project) => (project.allow_private_urls ? badge("allowed") : "–") },
    { title: t("field.created"), cell: (project) => when(project.created_at) },
  ], items, { keyOf: (project) => project.project_id });
}

function newProject(go) {
  const close = dialog(t("projects.new"), () => form([
    field("name", t("field.name"), { required: true, minlength: 2, maxlength: 60 }),
    field("group", t("projects.group"), { hint: t("projects.groupHint") }),
    field("allow_private_urls", t("projects.private"), { type: "checkbox", hint: t("projects.privateHint") }),
  ], t("action.create"), async (given, once) => {
    const body = { name: given.name, allow_private_urls: given.allow_private_urls === "on", ...(given.group ? { group: given.group } : {}) };
    const made = await create("v1/projects", body, once);
    close();
    toast(t("projects.made", { name: made.name }));
    go(`operate/projects/${at(made.project_id)}`);
  }));
}
