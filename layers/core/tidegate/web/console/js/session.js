// The signed-in user. The key is stored in this tab only, never in the URL; the project that an admin chose is in the URL.
import { addressedProject, addressProject } from "./router.js";

const KEY = "tidegate.key";
const PROJECT = "tidegate.project";
const signedOut = new Set();
let described = null;

export const session = {
  get key() { return sessionStorage.getItem(KEY); },
  get project() { return addressedProject() || sessionStorage.getItem(PROJECT); },
  get me() { return described; },
  get isAdmin() { return Boolean(described?.scopes.includes("admin")); },
  can(scope) { return Boolean(described && (described.scopes.includes("admin") || described.scopes.includes(scope))); },
  begin(key) { sessionStorage.setItem(KEY, key); },
  choose(project, where) {
    sessionStorage.setItem(PROJECT, project);
    addressProject(project, where);
  },
  describe(me) { described = me; },
  onEnd(listener) { signedOut.add(listener); },
  // With a reason the URL stays, so that signing in again leads back to the same page.
  end(reason) {
    if (!reason) addressProject(null);
    sessionStorage.removeItem(KEY);
    sessionStorage.removeItem(PROJECT);
    described = null;
    for (const listener of signedOut) listener(reason);
  },
};
