// One request of the queue with its timeline.
import { h } from "../dom.js";
import { at, get } from "../api.js";
import { moment } from "../format.js";
import { named, t } from "../i18n.js";
import { badge, card, code, copyable, crumbs, facts, link, pageHead } from "../parts/basics.js";
import { requestLog } from "../parts/request_log.js";
import { screen } from "../parts/screen.js";
import { timeline } from "../parts/timeline.js";
import { reason, requestActions, requestName } from "./queue.js";

export function requestPage(root, { id }) {
  return screen(root, {
    async load() {
      const [request, audit, log] = await Promise.all([get(`v1/requests/${at(id)}`), get("v1/audit", { record: id, limit: 100 }), get(`v1/requests/${at(id)}/log`, { limit: 100 })]);
      return { request, lines: audit.items, log: log.items };
    },
    watch: ({ request }) => [[id, request.status]],
    view: ({ request, lines, log }, refresh) => [
      crumbs(link(t("nav.queue"), "#/queue")),
      pageHead(requestName(request), copyable(request.request_id, request.request_id), badge(request.status), requestActions(request, refresh)),
      h("div", { class: "grid" },
        card(t("log.title"), { id: "log", wide: true }, requestLog(log)),
        card(t("jobs.timeline"), { id: "timeline" }, timeline(lines)),
        card(t("jobs.details"), { id: "details" }, facts([
          [t("field.type"), named("type", request.type)],
          [t("queue.channel"), named("channel", request.channel)],
          [t("queue.priority"), request.priority],
          [t("queue.why"), reason(request)],
          [t("field.attempts"), request.attempts],
          [t("queue.subscription"), request.subscription_id && link(t("queue.openSubscription"), `#/ingest/${at(request.subscription_id)}`)],
          [t("queue.result"), request.result && code(JSON.stringify(request.result))],
          [t("field.created"), moment(request.create_time)],
          [t("field.started"), request.start_time && moment(request.start_time)],
          [t("field.finished"), request.finish_time && moment(request.finish_time)],
        ]))),
    ],
    quick: 2000,
    slow: 6000,
  });
}
