// Tags and notes of runs and rollouts.

import { el, replace, say } from "./dom.js";
import { send } from "./api.js";

const LONGEST = 40;

/** Tags as words. */
export function tagList(tags) {
  return tags?.length ? el("span", { class: "tags" }, tags.map((tag) => el("span", { class: "tag" }, tag))) : null;
}

/**
 * Tags of a rollout and its note: shown where there are some, to be changed where that is allowed.
 *
 * @param about an answer of /api/run
 * @param found an answer of /api/rollout
 */
export function annotations(about, found) {
  if (!about.annotate) return found.tags.length || found.note ? [el("h2", {}, "Tags and note"), tagList(found.tags), found.note && el("pre", { class: "remark" }, found.note)] : null;
  const box = el("section", { "aria-label": "Tags and note" });
  const state = { tags: found.tags, note: found.note, known: about.known_tags, draft: found.note, trouble: "" };
  const change = async (wish, told) => {
    try {
      const now = await send("annotate", { run: about.name, line: found.line, ...wish });
      Object.assign(state, { tags: now.tags, note: now.note, known: now.known_tags, trouble: "" });
      say(told);
    } catch (error) {
      state.trouble = error.message;
    }
    draw();
  };
  const draw = () => replace(box, el("h2", {}, "Tags and note"), tagsOf(state, change), noteOf(state, change), state.trouble && el("p", { class: "bad", role: "alert" }, state.trouble));
  draw();
  return box;
}

function tagsOf(state, change) {
  const chip = (tag) => el("button", { type: "button", class: "chip", "data-key": `untag ${tag}`, "aria-label": `remove the tag ${tag}`, on: { click: () => change({ remove: [tag] }, `removed the tag ${tag}`) } }, tag, " ×");
  return [state.tags.length > 0 && el("div", { class: "chips" }, state.tags.map(chip)), tagForm(state.known, (tag) => change({ add: [tag] }, `tagged ${tag}`))];
}

function noteOf(state, change) {
  const text = el("textarea", { rows: 3, "data-key": "note", "aria-label": "Note", placeholder: "a note", on: { input: () => (state.draft = text.value) } });
  text.value = state.draft;
  const submit = (event) => {
    event.preventDefault();
    change({ note: text.value }, "note saved");
  };
  return el("form", { class: "noting", on: { submit } }, text, el("button", { type: "submit", "data-key": "keep note" }, "Save note"));
}

/** A field for one more tag; `value` and `typed` keep what is being typed where the page is drawn anew meanwhile. */
export function tagForm(known, add, label = "Add a tag", value = "", typed = () => {}) {
  const list = `tags-${label.replaceAll(" ", "-")}`;
  const field = el("input", { type: "search", class: "narrow", list, maxlength: LONGEST, autocomplete: "off", "data-key": `field ${label}`, on: { input: () => typed(field.value) } });
  field.value = value;
  const submit = (event) => {
    event.preventDefault();
    const tag = field.value.trim();
    if (!tag) return;
    field.value = "";
    typed("");
    add(tag);
  };
  const options = el("datalist", { id: list }, known.map((tag) => el("option", { value: tag })));
  return el("form", { class: "tagging", on: { submit } }, el("label", {}, `${label} `, field), options, el("button", { type: "submit", "data-key": `add ${label}` }, "Add"));
}
