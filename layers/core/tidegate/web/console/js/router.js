// Routes are in the hash: `#/exports?status=failed`, `#/exports/new`, `#/exports/{id}`. The project that an admin chose is
// in the query before it, `?project=…#/exports`: links within the page keep it, and a shared URL opens the same project.

// The areas of the navigation, in its order.
export const AREAS = ["overview", "distribution", "fleet", "files", "ingest", "exports", "batches", "queue", "callbacks", "operate"];
const PROJECT = "project";

export const addressedProject = () => new URLSearchParams(location.search).get(PROJECT) || null;

// `null` removes the project from the URL. With `adds`, the browser's back button returns to the previous project.
export function addressProject(project, { hash = location.hash, adds = false } = {}) {
  const address = new URL(location.href);
  if (project) address.searchParams.set(PROJECT, project);
  else address.searchParams.delete(PROJECT);
  address.hash = hash;
  if (address.href !== location.href) history[adds ? "pushState" : "replaceState"](null, "", address);
}

export function here() {
  const [path, search] = location.hash.replace(/^#\/?/, "").split("?");
  const [area = "overview", ...rest] = path.split("/").filter(Boolean);
  return { area, id: rest.length ? decoded(rest.join("/")) : null, query: new URLSearchParams(search || "") };
}

// A link that someone cut off or mistyped may end in half an escape.
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

// Goes to a page. Empty values of the query are left out.
export function go(path, query = {}) {
  const search = new URLSearchParams(Object.entries(query).filter(([, value]) => value)).toString();
  location.hash = `#/${path}${search ? `?${search}` : ""}`;
}
