// Who is signed in. The key lives in this tab only, and never in an address.

const KEY = "tidegate.key";
const PROJECT = "tidegate.project";
const signedOut = new Set();
let described = null;

export const session = {
  get key() { return sessionStorage.getItem(KEY); },
  get project() { return sessionStorage.getItem(PROJECT); },
  get me() { return described; },
  get isAdmin() { return Boolean(described?.scopes.includes("admin")); },
  can(scope) { return Boolean(described && (described.scopes.includes("admin") || described.scopes.includes(scope))); },
  begin(key) { sessionStorage.setItem(KEY, key); },
  choose(project) { sessionStorage.setItem(PROJECT, project); },
  describe(me) { described = me; },
  onEnd(listener) { signedOut.add(listener); },
  end(reason) {
    sessionStorage.removeItem(KEY);
    sessionStorage.removeItem(PROJECT);
    described = null;
    for (const listener of signedOut) listener(reason);
  },
};
