// Drawings of what environments say. One more environment is one more entry: whether it is meant, and what it draws.

import { el } from "./dom.js";

const RENDERERS = [{ environment: /(^|[/:])tic[-_]?tac[-_]?toe/i, draw: ticTacToe }];

/** The part of a text that an environment can draw: { before, drawing, after }; null where there is none. */
export function drawn(environment, text) {
  for (const { environment: meant, draw } of RENDERERS) {
    const found = meant.test(environment) ? draw(text) : null;
    if (found) return found;
  }
  return null;
}

const BOARD = /(^|\n)((?: ?[0-8XO] [0-8XO] [0-8XO](?:\n|$)){3})\s*$/;

function ticTacToe(text) {
  const found = BOARD.exec(text);
  if (!found) return null;
  const squares = found[2].split(/\s+/).filter((square) => square);
  const told = squares.map((square) => (/\d/.test(square) ? "free" : square));
  const rows = [0, 3, 6].map((row) => `${told.slice(row, row + 3).join(", ")}`).join("; ");
  const cells = squares.map((square) => el("span", { class: /\d/.test(square) ? "free" : `taken ${square}` }, square));
  const drawing = el("div", { class: "board", role: "img", "aria-label": `board: ${rows}` }, cells);
  return { before: text.slice(0, found.index), drawing, after: "" };
}
