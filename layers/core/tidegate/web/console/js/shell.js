// The frame around every view: navigation, project, connection state.
import { draw, h } from "./dom.js";
import { at, get } from "./api.js";
import { language, setLanguage, t } from "./i18n.js";
import { live } from "./live.js";
import { palette } from "./palette.js";
import { icon } from "./parts/basics.js";
import { logo } from "./parts/logo.js";
import { AREAS, here } from "./router.js";
import { session } from "./session.js";

const STORED_THEME = "tidegate.theme";

export function applyTheme() {
  const chosen = localStorage.getItem(STORED_THEME);
  if (chosen) document.documentElement.dataset.theme = chosen;
}

export function switches(redraw) {
  const other = language() === "zh" ? ["en", "English"] : ["zh", "中文"];
  return h("div", { class: "switches" },
    h("button", { type: "button", class: "button quiet", lang: other[0], onclick: () => { setLanguage(other[0]); redraw(); } }, other[1]),
    h("button", { type: "button", class: "button quiet", "aria-label": t("nav.theme"), title: t("nav.theme"), onclick: toggleTheme }, icon("sun")));
}

function toggleTheme() {
  const dark = document.documentElement.dataset.theme
    ? document.documentElement.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  localStorage.setItem(STORED_THEME, dark ? "light" : "dark");
  applyTheme();
}

export function shell(root, area, redraw) {
  const byId = (id) => document.getElementById(id);
  const showConnection = () => draw(byId("live"), h("span", { class: `live ${live.mode}`, role: "status", title: t(`live.${live.mode}Title`) }, h("span", { class: "live-dot" }), t(`live.${live.mode}`)));
  draw(root,
    h("a", { class: "skip", href: "#view", onclick: (event) => { event.preventDefault(); byId("view").focus(); } }, t("nav.skip")),
    h("div", { class: "frame" },
      h("aside", { class: "side" }, h("div", { class: "side-in" },
        h("a", { class: "brand", href: "#/" }, logo(), h("span", null, "Tidegate")),
        h("nav", { class: "areas", "aria-label": t("nav.main") }, AREAS.map((each) =>
          h("a", { href: `#/${each}`, "aria-current": each === area ? "page" : null }, icon(each), h("span", null, t(`nav.${each}`))))),
        h("a", { class: "docs", href: "docs", target: "_blank", rel: "noreferrer" }, t("nav.docs")))),
      h("div", { class: "body" },
        h("header", { class: "top" }, h("div", { class: "project", id: "project" }), h("div", { class: "top-tools" }, h("button", { type: "button", class: "button find", "aria-label": t("find.title"), title: t("find.keys"), onclick: () => palette() }, icon("search"), h("span", null, t("find.title")), h("kbd", null, "/")), h("span", { id: "live" }), switches(redraw),
          h("button", { type: "button", class: "button quiet", "aria-label": t("nav.signOut"), title: t("nav.signOut"), onclick: () => session.end() }, icon("out")))),
        h("div", { id: "frozen", role: "status" }),
        h("main", { id: "view", tabindex: "-1" }))));
  showConnection();
  showFreeze(byId("frozen"));
  root.querySelector(".areas [aria-current]")?.scrollIntoView({ inline: "center", block: "nearest" });
  showProjects(byId("project"), redraw);
  return { view: byId("view"), stop: live.onMode(showConnection) };
}

// While operators have frozen the deployment, every page says so.
export function showFreeze(place) {
  get("v1/me").then(({ frozen }) => draw(place, frozen && h("p", { class: "notice warn" }, t("system.frozen", { reason: frozen })))).catch(() => {});
}

function showProjects(place, redraw) {
  const me = session.me;
  draw(place, h("span", { class: "clip" }, me.project_name || me.project_id));
  if (!session.isAdmin) return;
  get("v1/projects", { limit: 100 }).then(({ items }) => {
    // An admin key belongs to no project: start with one that exists.
    if (!session.project && !me.project_name && items.length) return openProject(items[0].project_id, redraw);
    const chosen = session.project || me.project_id;
    const known = items.some((project) => project.project_id === chosen);
    return known ? showChoice(items, chosen) : nameOf(chosen).then((name) => showChoice([{ project_id: chosen, name }, ...items], chosen));
  }).catch(() => {});

  function showChoice(items, chosen) {
    draw(place, h("label", null, h("span", { class: "visually-hidden" }, t("nav.project")),
      h("select", { onchange: (event) => chooseProject(event.target.value, redraw) },
        items.map((project) => h("option", { value: project.project_id, selected: project.project_id === chosen }, project.name)))));
  }
}

// The name of a project that is not among the newest hundred.
const nameOf = (project) => get(`v1/projects/${at(project)}`).then(({ name }) => name, () => project);

// A WebSocket ticket is for one project, so another project needs a new connection.
function openProject(project, redraw, where) {
  session.choose(project, where);
  live.stop();
  redraw();
}

// A record belongs to the previous project, so its list is shown instead. The operators' pages stay.
function chooseProject(project, redraw) {
  const { area, id } = here();
  const stays = !id || id === "new" || area === "operate";
  openProject(project, redraw, { adds: true, hash: stays ? location.hash : `#/${area}` });
}
