// The tokens of a rollout, colored by training statistics.
import { choice, el } from "./dom.js";
import { address, changed } from "./api.js";
import { counted, number, signed } from "./format.js";

/**
 * @param found an answer of /api/rollout
 * @param told an answer of /api/tokens
 * @param params of the page's address
 */
export function tokenView(found, told, params) {
  const token = ([text, look, title]) => el("span", { class: `token ${look}`, title }, text);
  const turn = ({ tokens, versions, left_out, fresh, advantage }, place) => el("section", { class: "turn" },
    el("h2", {}, `Turn ${place + 1}`, versions && el("small", {}, ` ${versions}`), fresh && place > 0 && " (does not extend the previous turn: a separate sequence)"),
    el("pre", { class: "tokens", tabindex: 0, role: "group", "aria-label": `tokens of turn ${place + 1}` }, tokens.map(token)),
    left_out > 0 && el("p", { class: "note" }, `${counted(left_out, "token")} omitted`),
    advantage !== null && el("p", { class: "note" }, `advantage ${signed(advantage)}`));
  return [
    el("div", { class: "tools" }, choice("Color by", "color", told.offered, told.color, (color) => (location.hash = address("rollout", changed(params, { color })))), el("span", { class: "note" }, told.words)),
    el("p", {}, told.summary),
    told.missing && missing(found, params),
    !told.spelled && el("p", { class: "note" }, "Token texts are unavailable: this folder of runs has no tokenizer, or rove's extra `train` is not installed. Token ids are shown instead."),
    el("p", { class: "tokenkey" }, told.legend.map(([look, words]) => [el("span", { class: `token ${look}` }, words), " "])),
    told.turns.map(turn),
  ];
}

/** Why this rollout has no such values, and which rollouts have. */
function missing({ step, kept }, params) {
  if (step === null) return el("p", { class: "note" }, "Entropies and ratios exist only for trained rollouts; this rollout was not trained on.");
  if (!kept.length) return el("p", { class: "note" }, "This step has no token statistics: the run had log_token_stats = 0, or took no optimizer step here.");
  const link = (row) => [" ", el("a", { href: address("rollout", changed(params, { line: row.line, at: null })) }, `example ${number(row.example)}, rollout ${row.rollout}`)];
  return el("p", { class: "note" }, `Training records token statistics of a few rollouts per step (log_token_stats), not of this one. Those of step ${step}:`, kept.map(link));
}
