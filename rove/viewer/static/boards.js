// Drawings of what environments say. One more environment is one more entry: whether it is meant, and what it draws.

import { el } from "./dom.js";

const RENDERERS = [{ environment: /(^|[/:])tic[-_]?tac[-_]?toe/i, draw: ticTacToe }];

/**
 * The part of a text that an environment can draw: { before, drawing, after }; null where there is none.
 *
 * @param moves { legal, choose }: what may be clicked in it, and what is called then
 */
export function drawn(environment, text, moves = null) {
  for (const { environment: meant, draw } of RENDERERS) {
    const found = meant.test(environment) ? draw(text, moves) : null;
    if (found) return found;
  }
  return null;
}

const BOARD = /(^|\n)((?: ?[0-8XO] [0-8XO] [0-8XO](?:\n|$)){3})\s*$/;

function ticTacToe(text, moves) {
  const found = BOARD.exec(text);
  if (!found) return null;
  const squares = found[2].split(/\s+/).filter((square) => square);
  const told = squares.map((square) => (/\d/.test(square) ? "free" : square));
  const rows = [0, 3, 6].map((row) => `${told.slice(row, row + 3).join(", ")}`).join("; ");
  const look = (square) => (/\d/.test(square) ? "free" : `taken ${square}`);
  const cells = squares.map((square) =>
    moves?.legal.includes(square)
      ? el("button", { type: "button", class: "free", "aria-label": `square ${square}`, on: { click: () => moves.choose(square) } }, square)
      : el("span", { class: look(square) }, square),
  );
  const role = moves ? "group" : "img";
  const drawing = el("div", { class: "board", role, "aria-label": `board: ${rows}` }, cells);
  return { before: text.slice(0, found.index), drawing, after: "" };
}
