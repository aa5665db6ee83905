// Addresses after the hash: `#/exports?status=failed`, `#/exports/new`, `#/exports/{id}`.

export function here() {
  const [path, search] = location.hash.replace(/^#\/?/, "").split("?");
  const [area = "overview", ...rest] = path.split("/").filter(Boolean);
  return { area, id: rest.length ? decodeURIComponent(rest.join("/")) : null, query: new URLSearchParams(search || "") };
}

export function go(path, query = {}) {
  const search = new URLSearchParams(query).toString();
  location.hash = `#/${path}${search ? `?${search}` : ""}`;
}
