// The entry of the console: signs in, draws the frame, and shows the view that the URL names.
import { draw } from "./dom.js";
import { call } from "./api.js";
import { language, t } from "./i18n.js";
import { live } from "./live.js";
import { failure, skeleton } from "./parts/basics.js";
import { palette } from "./palette.js";
import { addressedProject, go, here } from "./router.js";
import { session } from "./session.js";
import { applyTheme, shell, switches } from "./shell.js";
import { batchPage } from "./views/batch.js";
import { batches } from "./views/batches.js";
import { businesses } from "./views/businesses.js";
import { callbacks } from "./views/callbacks.js";
import { exportForm, newExportSchedule } from "./views/export_form.js";
import { exportPage } from "./views/export.js";
import { exportsList } from "./views/exports.js";
import { files } from "./views/files.js";
import { fleet } from "./views/fleet.js";
import { host } from "./views/host.js";
import { job } from "./views/job.js";
import { jobs } from "./views/jobs.js";
import { operate } from "./views/operate.js";
import { overview } from "./views/overview.js";
import { queue } from "./views/queue.js";
import { releasePage, releases } from "./views/releases.js";
import { requestPage } from "./views/request.js";
import { batchSchedule, batchSchedules, exportSchedule, exportSchedules } from "./views/schedules.js";
import { signIn } from "./views/signin.js";
import { subscription } from "./views/subscription.js";
import { changeSubscription, newSubscription } from "./views/subscription_form.js";
import { subscriptions } from "./views/subscriptions.js";
import { submit } from "./views/submit.js";
import { task } from "./views/task.js";
import { notAllowed, otherProject, unknown } from "./views/unknown.js";

const root = document.getElementById("app");
const VIEWS = {
  overview: { list: overview },
  distribution: { list: jobs, one: job, new: submit },
  tasks: { list: jobs, one: task, under: "distribution" },
  fleet: { list: fleet, one: host },
  releases: { list: releases, one: releasePage, under: "fleet" },
  ingest: { list: subscriptions, one: subscription, new: newSubscription, change: changeSubscription },
  exports: { list: exportsList, one: exportPage, new: exportForm },
  "export-schedules": { list: exportSchedules, one: exportSchedule, new: newExportSchedule, under: "exports" },
  batches: { list: batches, one: batchPage },
  "batch-schedules": { list: batchSchedules, one: batchSchedule, under: "batches" },
  businesses: { list: businesses, under: "batches" },
  queue: { list: queue, one: requestPage },
  callbacks: { list: callbacks },
  files: { list: files },
  operate: { list: operate, one: operate },
};
const TICKET = "#ticket=";
let shown = null;
let frame = null;
let shownPage = null;
let shownAt = null;
let shownProject = null;

function stopView() {
  shown?.stop();
  frame?.stop();
  shown = frame = null;
}

// A filter also changes the URL: then the old content and the focus stay until the new content is loaded.
function show({ moved = false } = {}) {
  stopView();
  language();
  if (location.hash.startsWith(TICKET)) return useTicket(location.hash.slice(TICKET.length));
  if (!session.me) return session.key ? resume() : showSignIn();
  if (session.isAdmin && session.project) session.choose(session.project);
  shownAt = location.href;
  shownProject = session.project;
  const { area: asked, id, query } = here();
  const view = namesOtherProject() ? otherProject : viewOf(asked, id);
  const area = VIEWS[asked]?.under || asked;
  frame = shell(root, area, () => show());
  document.title = `${t(view === otherProject ? "unknown.otherProject" : view === unknown ? "unknown.title" : `nav.${area}`)} · Tidegate`;
  const before = shownPage;
  shownPage = `${asked}/${id}`;
  if (!moved || shownPage !== before) draw(frame.view);
  if (moved && shownPage !== before) focusView(frame.view);
  shown = view(frame.view, { id: id?.replace(/\/change$/, "") ?? null, query, go });
  // Load the view before connecting the socket.
  Promise.resolve(shown.first).then(() => { if (session.me) live.start(); });
  return undefined;
}

// Whether the URL names a project other than the key's.
function namesOtherProject() {
  return !session.isAdmin && addressedProject() !== null && addressedProject() !== session.me.project_id;
}

function viewOf(area, id) {
  const views = Object.hasOwn(VIEWS, area) ? VIEWS[area] : null;
  if (!views) return unknown;
  if (!id) return views.list;
  const writes = (id === "new" && views.new) || (id.endsWith("/change") && views.change);
  if (writes) return session.can("write") ? writes : notAllowed("write");
  return views.one || unknown;
}

function focusView(view) {
  window.scrollTo(0, 0);
  view.focus({ preventScroll: true });
}

function showSignIn(reason) {
  document.title = "Tidegate";
  draw(root);
  signIn(root, () => show(), reason, switches(() => show()));
}

// `make run` and `tidegate console` print an address with a ticket, which works once. It does not stay in the history.
async function useTicket(ticket) {
  history.replaceState(null, "", new URL("#/", location.href));
  draw(root, skeleton(5));
  try {
    session.storeKey((await call("POST", "v1/sign-in", { key: ticket })).key);
    await resume();
  } catch {
    showSignIn("signin.ticketUsed");
  }
}

async function resume() {
  draw(root, skeleton(5));
  try {
    session.setIdentity(await call("GET", "v1/me"));
    show();
  } catch (error) {
    if (session.key) draw(root, failure(error, () => show()));
  }
}

applyTheme();
session.onEnd((reason) => { live.stop(); stopView(); showSignIn(reason); });
// `/` and ⌘K open the search, except while the user types in a field.
window.addEventListener("keydown", (event) => {
  const typing = event.target.closest?.("input, textarea, select, [contenteditable]");
  const asked = (event.key === "k" && (event.metaKey || event.ctrlKey)) || (event.key === "/" && !typing && !event.metaKey && !event.ctrlKey);
  if (!asked || !session.me || document.querySelector("dialog[open]")) return;
  event.preventDefault();
  palette();
});
window.addEventListener("hashchange", () => { if (location.href !== shownAt) show({ moved: true }); });
// Back and forward between projects change only the query, not the hash.
window.addEventListener("popstate", () => {
  if (!session.me || session.project === shownProject) return;
  live.stop();
  show({ moved: true });
});
show();
