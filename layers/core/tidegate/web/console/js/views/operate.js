// Operate: projects, keys, credentials, audit trail, archive and the deployment.
import { here } from "../router.js";
import { t } from "../i18n.js";
import { tabs } from "../parts/basics.js";
import { session } from "../session.js";
import { archive } from "./archive.js";
import { audit } from "./audit.js";
import { credentials } from "./credentials.js";
import { adminKeys } from "./keys.js";
import { project } from "./project.js";
import { projects } from "./projects.js";
import { system } from "./system.js";
import { notAllowed, unknown } from "./unknown.js";

const PAGES = { projects, keys: adminKeys, credentials, audit, archive, system };
const ADMINS = ["projects", "keys", "system"];

const pages = () => Object.keys(PAGES).filter((name) => session.isAdmin || !ADMINS.includes(name));

function operateTabs(chosen) {
  return tabs(t("nav.operate"), pages().map((name) => [name, `#/operate/${name}`, t(`operate.${name}`)]), chosen);
}

export function operate(root, given) {
  const [name = pages()[0], ...rest] = (here().id || "").split("/").filter(Boolean);
  if (name === "projects" && rest.length && session.isAdmin) return project(root, { ...given, id: rest.join("/"), tabs: operateTabs });
  if (ADMINS.includes(name) && !session.isAdmin) return notAllowed("admin")(root);
  if (!pages().includes(name)) return unknown(root);
  return PAGES[name](root, { ...given, tabs: operateTabs });
}
