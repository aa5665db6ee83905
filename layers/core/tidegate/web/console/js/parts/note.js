// The note of a record: its text, and a button to change it.
import { h } from "../dom.js";
import { t } from "../i18n.js";
import { session } from "../session.js";
import { button } from "./basics.js";
import { dialog, saved } from "./dialog.js";
import { field, form } from "./form.js";

export const noteField = (value = "") => field("note", t("field.note"), { rows: 2, maxlength: 500, value });

// A row of `facts`. `save` sends the new note, or null to remove it.
export function noteFact({ note }, save, refresh) {
  const change = () => {
    const close = dialog(t("field.note"), () => form([noteField(note || "")], t("action.save"), async (given) => {
      await save(given.note.trim() || null);
      saved(close, refresh);
    }));
  };
  return [t("field.note"), session.can("write") ? h("span", null, note, " ", button(t("action.change"), change, { kind: "small", key: "note" })) : note];
}
