// Elements from plain values, drawn by Preact. Data of a run becomes text or an attribute's value, never HTML.
import { Hooks, Preact } from "./vendor/preact.js";
import { NONE } from "./format.js";

export const Component = Preact.Component;
export const useEffect = Hooks.useEffect;
export const useState = Hooks.useState;

/** An element or a component: `el("a", { class: "x", href: "#/", on: { click } }, "text", child, …)`; null and false are omitted. */
export function el(kind, given = {}, ...children) {
  if (typeof kind === "function") return Preact.h(kind, given);
  const props = {};
  for (const [name, value] of Object.entries(given)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") for (const [event, handler] of Object.entries(value)) props[`on${event}`] = handler;
    else if (name === "width%") props.style = { width: `${value}%` };
    else props[name] = value;
  }
  return Preact.h(kind, props, child(children));
}

const drawn = new WeakSet();

function child(value) {
  if (Array.isArray(value)) return value.map(child);
  if (value === null || value === undefined || typeof value === "boolean") return null;
  return Preact.isValidElement(value) ? value : String(value);
}

/** Show `children` in `node`. Elements that stay the same keep their focus, scroll position and open folds. */
export function replace(node, ...children) {
  if (!drawn.has(node)) node.replaceChildren();
  drawn.add(node);
  Preact.render(Preact.h(Preact.Fragment, null, child(children)), node);
}

/** Announce a text to screen readers. */
export const say = (words) => (document.getElementById("said").textContent = words);

/** A table in a box that scrolls; `head` of texts or elements, rows of elements. On narrow screens every row is a card. */
export function table(head, rows, kind = "") {
  const titles = head.map((title) => (Preact.isValidElement(title) ? title : el("th", { scope: "col" }, title)));
  const shown = el("table", { class: kind }, el("thead", {}, el("tr", {}, titles)), el("tbody", {}, rows));
  return el("div", { class: "wide", tabindex: 0 }, shown); // a box that scrolls must be reachable by keyboard
}

/** A cell with its column's title, for narrow screens, which omit empty cells. */
export const cell = (label, ...children) => el("td", { "data-label": label, class: children.length === 1 && children[0] === NONE ? "none" : null }, el("div", {}, children));

/** A table of columns [title, row → children, its <th> if it is more than the title]; `look` gives the properties of a row. */
export function grid(columns, rows, kind = "", look = () => ({})) {
  const shown = columns.filter((one) => one);
  return table(shown.map(([title, , head]) => head ?? title), rows.map((row) => el("tr", look(row), shown.map(([title, draw]) => cell(title, ...[draw(row)].flat())))), kind);
}

/** The head of a column that sorts: `order` is "up", "down", or "" if the table is sorted by another column. */
export function sortable(title, key, order, press) {
  const button = el("button", { type: "button", class: "sort", "data-key": `sort ${key}`, on: { click: press } }, title, { up: " ▲", down: " ▼" }[order] ?? "");
  return el("th", { scope: "col", "aria-sort": { up: "ascending", down: "descending" }[order] ?? null }, button);
}

/** A select with its label; `options` are pairs of value and text. */
export function choice(label, key, options, picked, change) {
  const shown = options.map(([value, text]) => el("option", { value, selected: value === picked }, text));
  return el("label", {}, `${label} `, el("select", { "data-key": key, on: { change: (event) => change(event.target.value) } }, shown));
}
