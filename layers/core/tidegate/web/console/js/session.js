// The signed-in user. The key is stored in this tab only, never in the URL; the project that an admin chose is in the URL.
import { addressedProject, addressProject } from "./router.js";

const KEY = "tidegate.key";
const PROJECT = "tidegate.project";
const endListeners = new Set();
let identity = null;

export const session = {
  get key() { return sessionStorage.getItem(KEY); },
  get project() { return addressedProject() || sessionStorage.getItem(PROJECT); },
  get me() { return identity; },
  get isAdmin() { return Boolean(identity?.scopes.includes("admin")); },
  can(scope) { return Boolean(identity && (identity.scopes.includes("admin") || identity.scopes.includes(scope))); },
  storeKey(key) { sessionStorage.setItem(KEY, key); },
  choose(project, where) {
    sessionStorage.setItem(PROJECT, project);
    addressProject(project, where);
  },
  setIdentity(me) { identity = me; },
  onEnd(listener) { endListeners.add(listener); },
  // With a reason the URL stays, so that signing in again leads back to the same page.
  end(reason) {
    if (!reason) addressProject(null);
    sessionStorage.removeItem(KEY);
    sessionStorage.removeItem(PROJECT);
    identity = null;
    for (const listener of endListeners) listener(reason);
  },
};
