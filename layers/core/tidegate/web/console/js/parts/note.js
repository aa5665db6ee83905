// What people say of a record, such as its note: the text, and a button to change it.
import { h } from "../dom.js";
import { t } from "../i18n.js";
import { session } from "../session.js";
import { button } from "./basics.js";
import { dialog, saved } from "./dialog.js";
import { field, form } from "./form.js";

export const remarkField = (name, value = "") => field(name, t(`field.${name}`), { rows: 2, maxlength: 500, value });

// A row of `facts`. `save` sends the change; null removes the text.
export function remarkFact(name, record, save, refresh) {
  const text = record[name];
  const change = () => {
    const close = dialog(t(`field.${name}`), () => form([remarkField(name, text || "")], t("action.save"), async (given) => {
      await save({ [name]: given[name].trim() || null });
      saved(close, refresh);
    }));
  };
  return [t(`field.${name}`), session.can("write") ? h("span", null, text, " ", button(t("action.change"), change, { kind: "small", key: name })) : text];
}
