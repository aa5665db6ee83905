// Tabs for the pages of one area.
import { t } from "../i18n.js";
import { tabs } from "./basics.js";

export function exportTabs(chosen) {
  return tabs(t("nav.exports"), [["exports", "#/exports", t("nav.exports")], ["schedules", "#/export-schedules", t("schedules.title")]], chosen);
}

export function fleetTabs(chosen) {
  return tabs(t("nav.fleet"), [["fleet", "#/fleet", t("fleet.allHosts")], ["releases", "#/releases", t("releases.title")]], chosen);
}

export function batchTabs(chosen) {
  return tabs(t("nav.batches"), [["batches", "#/batches", t("nav.batches")], ["schedules", "#/batch-schedules", t("schedules.title")], ["businesses", "#/businesses", t("batches.businesses")]], chosen);
}
