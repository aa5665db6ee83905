// Dialogs and short messages.
import { draw, h } from "../dom.js";
import { t } from "../i18n.js";
import { button, copyable } from "./basics.js";

export function dialog(title, make, { wide = false } = {}) {
  const box = h("dialog", { class: wide ? "dialog wide" : "dialog", "aria-label": title });
  const close = () => box.close();
  draw(box,
    h("header", { class: "dialog-head" }, h("h2", null, title), h("button", { type: "button", class: "button quiet", "aria-label": t("action.close"), onclick: close }, "✕")),
    h("div", { class: "dialog-body" }, make(close)));
  box.addEventListener("close", () => box.remove());
  document.body.append(box);
  box.showModal();
  return close;
}

export function confirm(question, label, act) {
  dialog(question, (close) => [
    h("p", null, t("confirm.sure")),
    h("div", { class: "tools end" }, button(t("action.cancelDialog"), close), button(label, async () => { close(); await act(); }, { kind: "danger" })),
  ]);
}

// A secret that is shown only once, copied by a click.
export function showOnce(title, note, pairs) {
  dialog(title, (close) => [
    h("p", { class: "notice warn" }, note),
    h("dl", { class: "secrets" }, pairs.filter(([, value]) => value).map(([label, value]) => h("div", null, h("dt", null, label), h("dd", null, copyable(value, value))))),
    h("div", { class: "tools end" }, button(t("action.close"), close, { kind: "primary" })),
  ]);
}

export function toast(message, kind = "good") {
  const made = h("div", { class: `toast ${kind}` }, message);
  toastArea().append(made);
  setTimeout(() => made.remove(), kind === "bad" ? 9000 : 4500);
}

function toastArea() {
  const here = document.getElementById("toasts");
  if (here) return here;
  const made = h("div", { id: "toasts", role: "status", "aria-live": "polite" });
  document.body.append(made);
  return made;
}

// Ends a dialog whose form was saved.
export function saved(close, refresh) {
  close();
  toast(t("action.saved"));
  refresh();
}

// Runs the action of a button, shows its result, then refreshes the view.
export async function act(action, message, refresh) {
  try {
    const answer = await action();
    if (message) toast(message);
    return answer;
  } catch (error) {
    toast(error.requestId ? `${error.message} (${t("error.requestId")} ${error.requestId})` : error.message, "bad");
    return null;
  } finally {
    refresh?.();
  }
}
