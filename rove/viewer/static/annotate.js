// Tags and notes of runs and rollouts.
import { el, say, useState } from "./dom.js";
import { send } from "./api.js";

const LONGEST = 40;

/** Tags as words. */
export const tagList = (tags) => tags?.length ? el("span", { class: "tags" }, tags.map((tag) => el("span", { class: "tag" }, tag))) : null;

/**
 * Tags and note of a rollout; editable with `rove view --annotate`.
 *
 * Properties: `about`, an answer of /api/run; `found`, an answer of /api/rollout.
 */
export function Annotated({ about, found }) {
  const [state, set] = useState({ tags: found.tags, note: found.note, known: about.known_tags, trouble: "" });
  if (!about.annotate) return found.tags.length || found.note ? el("section", {}, el("h2", {}, "Tags and note"), tagList(found.tags), found.note && el("pre", { class: "remark" }, found.note)) : null;
  const change = async (wish, told) => {
    try {
      const now = await send("annotate", { run: about.name, line: found.line, ...wish });
      set({ tags: now.tags, note: now.note, known: now.known_tags, trouble: "" });
      say(told);
    } catch (error) {
      set({ ...state, trouble: error.message });
    }
  };
  const submit = (event) => {
    event.preventDefault();
    change({ note: event.target.elements.note.value }, "note saved");
  };
  const note = el("textarea", { name: "note", rows: 3, "data-key": "note", "aria-label": "Note", placeholder: "a note", defaultValue: state.note });
  return el("section", { "aria-label": "Tags and note" },
    el("h2", {}, "Tags and note"),
    state.tags.length > 0 && el("div", { class: "chips" }, state.tags.map((tag) => untag(tag, () => change({ remove: [tag] }, `removed the tag ${tag}`)))),
    tagForm(state.known, (tag) => change({ add: [tag] }, `tagged ${tag}`)),
    el("form", { class: "noting", on: { submit } }, note, el("button", { type: "submit", "data-key": "keep note" }, "Save note")),
    state.trouble && el("p", { class: "bad", role: "alert" }, state.trouble));
}

/** A button that removes a tag. */
export const untag = (tag, press) => el("button", { type: "button", class: "chip", "data-key": `untag ${tag}`, "aria-label": `remove the tag ${tag}`, on: { click: press } }, tag, " ×");

/** A field for one more tag. */
export function tagForm(known, add, label = "Add a tag") {
  const list = `tags-${label.replaceAll(" ", "-")}`;
  const submit = (event) => {
    event.preventDefault();
    const field = event.target.elements.tag;
    if (field.value.trim()) add(field.value.trim());
    field.value = "";
  };
  const field = el("input", { name: "tag", type: "search", class: "narrow", list, maxlength: LONGEST, autocomplete: "off", "data-key": `field ${label}` });
  return el("form", { class: "tagging", on: { submit } }, el("label", {}, `${label} `, field), el("datalist", { id: list }, known.map((tag) => el("option", { value: tag }))), el("button", { type: "submit", "data-key": `add ${label}` }, "Add"));
}
