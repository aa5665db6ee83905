// The life cycle of a view: load, draw, reload on changes, and show failures.
import { draw, h } from "../dom.js";
import { advice, copyable, failure, skeleton } from "./basics.js";
import { live } from "../live.js";
import { t } from "../i18n.js";

const SETTLE = 250;

export function screen(root, { load, view, watch, quick = 3000, slow = 15000, tick = false }) {
  let data = null;
  let error = null;
  let timer = null;
  let loading = false;
  let again = false;
  let over = false;

  const show = () => {
    if (over) return;
    if (data) draw(root, error && stale(error), view(data, refresh));
    else if (error) draw(root, failure(error, refresh));
    else if (!root.hasChildNodes()) draw(root, skeleton(6));
  };

  async function refresh() {
    if (over) return;
    if (loading) { again = true; return; }
    loading = true;
    clearTimeout(timer);
    try {
      const fresh = await load();
      if (over) return;
      data = fresh;
      error = null;
      live.watch(watch?.(data) || []);
    } catch (problem) {
      error = problem;
    } finally {
      loading = false;
    }
    show();
    later(again ? SETTLE : live.pace(quick, slow));
    again = false;
  }

  function later(wait) {
    clearTimeout(timer);
    if (!over) timer = setTimeout(() => (document.hidden ? later(wait) : refresh()), wait);
  }

  const ends = [live.onChange(() => later(SETTLE)), live.onMode(() => later(SETTLE))];
  const ticking = tick ? setInterval(() => data && show(), 1000) : null;
  show();
  return {
    refresh,
    first: refresh(),
    stop() {
      over = true;
      clearTimeout(timer);
      clearInterval(ticking);
      for (const end of ends) end();
    },
  };
}

function stale(error) {
  return h("p", { class: "notice warn", role: "status", "data-key": "stale" }, t("state.stale"), " ", error.message, ". ", advice(error), error.requestId && [" ", t("error.requestId"), " ", copyable(error.requestId)]);
}
