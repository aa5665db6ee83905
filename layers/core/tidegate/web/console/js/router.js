// Addresses after the hash: `#/exports?status=failed`, `#/exports/new`, `#/exports/{id}`. The project that an admin looks
// at stands before it, `?project=…#/exports`: links within the page keep it, and whoever gets the address sees the same.

const PROJECT = "project";

export const addressedProject = () => new URLSearchParams(location.search).get(PROJECT) || null;

// `null` takes it out of the address. With `adds`, the way back leads to the project before.
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
  return { area, id: rest.length ? decodeURIComponent(rest.join("/")) : null, query: new URLSearchParams(search || "") };
}

export function go(path, query = {}) {
  const search = new URLSearchParams(query).toString();
  location.hash = `#/${path}${search ? `?${search}` : ""}`;
}
