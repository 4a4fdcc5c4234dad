// Elements from plain values. Data of a run becomes text, never HTML.

import { NONE } from "./format.js";

const SVG = "http://www.w3.org/2000/svg";

/** An element: `el("a", { class: "x", href: "#/", on: { click } }, "text", child, …)`; null and false children are left out. */
export function el(name, given = {}, ...children) {
  return filled(document.createElement(name), given, children);
}

/** The same of SVG. */
export function svg(name, given = {}, ...children) {
  return filled(document.createElementNS(SVG, name), given, children);
}

function filled(node, given, children) {
  for (const [name, value] of Object.entries(given)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") for (const [event, handler] of Object.entries(value)) node.addEventListener(event, handler);
    else if (name === "width%") node.style.width = `${value}%`;
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return node;
}

let pressed = false;
const waiting = new Map();
const release = () =>
  setTimeout(() => { // after the click
    pressed = false;
    for (const [node, children] of [...waiting]) replace(node, ...children);
  });
addEventListener("pointerdown", () => { pressed = true; }, true);
addEventListener("pointerup", release, true);
addEventListener("pointercancel", release, true);

/**
 * Put `children` where the content of `node` was, the keyboard's focus staying on the element of the same `data-key`. While
 * something is being clicked this waits: a click is lost when its element goes in the middle of it.
 */
export function replace(node, ...children) {
  waiting.delete(node);
  if (pressed) {
    waiting.set(node, children);
    return;
  }
  const active = document.activeElement;
  const key = node.contains(active) ? active.dataset.key : undefined;
  const place = active && "selectionStart" in active ? active.selectionStart : null;
  node.replaceChildren(...children.flat(Infinity).filter((child) => child));
  if (key === undefined) return;
  const again = [...node.querySelectorAll("[data-key]")].find((one) => one.dataset.key === key);
  if (!again) return;
  again.focus({ preventScroll: true });
  if (place !== null && again.setSelectionRange) again.setSelectionRange(place, place);
}

/** Tell those who do not see the page. */
export function say(words) {
  document.getElementById("said").textContent = words;
}

/** A table in a box that scrolls; `head` of texts or elements, rows of elements. On narrow screens every row is a card. */
export function table(head, rows, kind = "") {
  const titles = head.map((title) => (title instanceof Node ? title : el("th", { scope: "col" }, title)));
  const shown = el("table", { class: kind }, el("thead", {}, el("tr", {}, titles)), el("tbody", {}, rows));
  return el("div", { class: "wide", tabindex: 0 }, shown); // a box that scrolls must be reachable by keyboard
}

/** A cell that knows its column's title, for narrow screens, which leave out what is not there. */
export function cell(label, ...children) {
  return el("td", { "data-label": label, class: children.length === 1 && children[0] === NONE ? "none" : null }, el("div", {}, children));
}
