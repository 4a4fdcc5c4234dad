// Results of a run, on its page and in a report.
import { el, table } from "./dom.js";

/** Sentences about a training run, the conclusion first. */
export function verdict(sentences) {
  if (!sentences?.length) return null;
  return el("section", { class: "conclusion", "aria-label": "Verdict" }, el("p", { class: "verdict" }, sentences[0]), sentences.length > 1 && el("ul", {}, sentences.slice(1).map((one) => el("li", {}, one))));
}

/** Numbers with their labels. */
export const cards = (pairs) => el("div", { class: "cards" }, pairs.map(([value, words]) => el("div", { class: "card" }, el("b", {}, value), el("span", {}, words))));

/** A table of values with head and rows of texts. */
export const values = ({ head, values }) => table(head, values.map((row) => el("tr", {}, row.map((text) => el("td", {}, text)))), "plain values");
