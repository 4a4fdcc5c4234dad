// Renderings (rove/core/renderings.py) are data only: rows of cells, each with a text and a look.
import { el } from "./dom.js";

const LOOKS = new Set(["free", "first", "second", "right", "near", "wrong"]);
const [MOST, LONGEST] = [40, 12];

/** A message's text without the rows that its rendering repeats, and the rendering as an element; null if there is none. */
export const drawn = (text, board) => board ? { text: without(text, board), drawing: draw(board) } : { text, drawing: null };

/** A rendering as an element; `choose(move)` is called when one of the moves `legal` (null = any free cell) is clicked. */
export function draw({ rows }, choose = null, legal = null) {
  const shown = rows.slice(0, MOST).map((row) => row.slice(0, MOST).map(([text, look]) => [String(text).slice(0, LONGEST), LOOKS.has(look) ? look : "plain"]));
  const style = { "--rows": Math.max(1, shown.length), "--columns": Math.max(1, ...shown.map((row) => row.length)) };
  const words = `board: ${shown.map((row) => row.map(told).join(", ")).join("; ")}`;
  return el("div", { class: "board", role: choose ? "group" : "img", "aria-label": words, style },
    shown.map((row) => el("div", { class: "boardrow" }, row.map((cell) => cellView(cell, choose, legal)))));
}

function cellView([text, look], choose, legal) {
  const kind = `cell ${look}${text.length > 2 ? " long" : ""}`;
  if (!choose || look !== "free" || (legal && !legal.includes(text))) return el("span", { class: kind }, text);
  return el("button", { type: "button", class: kind, "data-key": `cell ${text}`, "aria-label": `square ${text}`, on: { click: () => choose(text) } }, text);
}

function told([text, look]) {
  if (look === "free") return "free";
  return ["plain", "first", "second"].includes(look) ? text || "empty" : `${text} ${look}`;
}

/** The text without its last lines where these are the board's rows, cell for cell. */
function without(text, { rows }) {
  const lines = text.trimEnd().split("\n");
  const last = lines.slice(-rows.length);
  const same = rows.length > 0 && last.length === rows.length && last.every((line, i) => line.trim().split(/\s+/).join(" ") === rows[i].map(([cell]) => cell).join(" "));
  return same ? lines.slice(0, -rows.length).join("\n") : text;
}
