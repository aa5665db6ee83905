// The life cycle of a view: load, draw, reload on changes, and show failures.
import { draw, h } from "../dom.js";
import { advice, copyable, failure, skeleton } from "./basics.js";
import { live } from "../live.js";
import { t } from "../i18n.js";

const CHANGE_DELAY = 250;

// `quick` and `slow` are the milliseconds between two loads: without a WebSocket, and while one reports changes.
// With `tick`, the view is drawn every second, for its countdowns.
export function screen(root, { load, view, watch, quick = 3000, slow = 15000, tick = false }) {
  let data = null;
  let error = null;
  let timer = null;
  let loading = false;
  let reloadAgain = false;
  let stopped = false;

  const show = () => {
    if (stopped) return;
    if (data) draw(root, error && staleNotice(error), view(data, refresh));
    else if (error) draw(root, failure(error, refresh));
    else if (!root.hasChildNodes()) draw(root, skeleton(6));
  };

  async function refresh() {
    if (stopped) return;
    if (loading) { reloadAgain = true; return; }
    loading = true;
    clearTimeout(timer);
    try {
      const fresh = await load();
      if (stopped) return;
      data = fresh;
      error = null;
      live.watch(watch?.(data) || []);
    } catch (problem) {
      error = problem;
    } finally {
      loading = false;
    }
    show();
    reloadIn(reloadAgain ? CHANGE_DELAY : live.pace(quick, slow));
    reloadAgain = false;
  }

  function reloadIn(wait) {
    clearTimeout(timer);
    if (!stopped) timer = setTimeout(() => (document.hidden ? reloadIn(wait) : refresh()), wait);
  }

  const unsubscribers = [live.onChange(() => reloadIn(CHANGE_DELAY)), live.onMode(() => reloadIn(CHANGE_DELAY))];
  const ticking = tick ? setInterval(() => data && show(), 1000) : null;
  show();
  return {
    refresh,
    first: refresh(),
    stop() {
      stopped = true;
      clearTimeout(timer);
      clearInterval(ticking);
      for (const end of unsubscribers) end();
    },
  };
}

function staleNotice(error) {
  return h("p", { class: "notice warn", role: "status", "data-key": "stale" }, t("state.stale"), " ", error.message, ". ", advice(error), error.requestId && [" ", t("error.requestId"), " ", copyable(error.requestId)]);
}
