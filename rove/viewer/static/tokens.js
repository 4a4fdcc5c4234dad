// The tokens of a rollout, coloured by what training knows of them.

import { el } from "./dom.js";
import { counted, number, signed } from "./format.js";

const LEVELS = [0.9, 0.6, 0.3, 0.1, 0.02];

const COLOURS = {
  logprob: { title: "log-probability", words: "the darker, the less likely the sampled token was" },
  mask: { title: "loss mask", words: "what is marked is trained; prompts and replies are not" },
  advantage: { title: "advantage", words: "reward less the mean of its siblings, on every trained token" },
};

/**
 * @param found an answer of /api/rollout
 * @param colour one of COLOURS
 * @param choose called with another one
 */
export function tokenView(found, colour, choose) {
  const kind = COLOURS[colour] ? colour : "logprob";
  const select = el(
    "select",
    { "data-key": "colour", on: { change: (event) => choose(event.target.value) } },
    Object.entries(COLOURS).map(([name, { title }]) => el("option", { value: name, selected: name === kind }, title)),
  );
  const sampled = found.tokens.flatMap((turn) => turn.logprobs);
  const mean = sampled.length ? sampled.reduce((a, b) => a + b, 0) / sampled.length : null;
  const spelled = found.tokens.some((turn) => turn.sampled.some(([, text]) => text !== null));
  return [
    el("div", { class: "tools" }, el("label", {}, "Colour by ", select), el("span", { class: "note" }, COLOURS[kind].words)),
    el("p", {}, `${counted(sampled.length, "sampled token")}, mean log-probability ${number(mean)}${found.advantage === null ? "" : `, advantage ${signed(found.advantage)}`}`),
    spelled ? null : el("p", { class: "note" }, "The texts of tokens are not known: there is no tokenizer in this folder of runs, or rove's extra `train` is not installed. Shown are their ids."),
    key(kind),
    found.tokens.map((turn, i) => turnView(turn, i, kind, found.advantage)),
  ];
}

function turnView(turn, place, kind, advantage) {
  const prompt = turn.prompt.map(([id, text]) => token(id, text, "given", "prompt, not trained"));
  const sampled = turn.sampled.map(([id, text], i) => {
    const logprob = turn.logprobs[i];
    const told = logprob === undefined ? "" : `log-probability ${number(logprob)}, probability ${number(Math.exp(logprob))}`;
    return token(id, text, look(kind, logprob, advantage), told);
  });
  const fresh = turn.fresh && place ? " (does not go on from the turn before: a sequence of its own)" : "";
  return el(
    "section",
    { class: "turn" },
    el("h2", {}, `Turn ${place + 1}${fresh}`),
    el("pre", { class: "tokens", tabindex: 0, role: "group", "aria-label": `tokens of turn ${place + 1}` }, prompt, sampled),
    turn.left_out ? el("p", { class: "note" }, `${counted(turn.left_out, "token")} left out`) : null,
  );
}

function token(id, text, look, told) {
  return el("span", { class: `token ${look}`, title: `${id}: ${told}` }, text === null ? `${id} ` : text === "" ? "·" : text);
}

function look(kind, logprob, advantage) {
  if (kind === "mask") return "trained";
  if (kind === "advantage") return !advantage ? "sampled" : advantage > 0 ? "good" : "poor";
  return logprob === undefined ? "sampled" : `p${level(logprob)}`;
}

/** 0 for tokens that were nearly certain, up to LEVELS.length for the unlikely. */
export function level(logprob) {
  const found = LEVELS.findIndex((least) => Math.exp(logprob) >= least);
  return found < 0 ? LEVELS.length : found;
}

function key(kind) {
  const entries = {
    logprob: [...LEVELS.map((least, i) => [`p${i}`, `≥ ${least * 100} %`]), [`p${LEVELS.length}`, "less"]],
    mask: [["trained", "trained"], ["given", "not trained"]],
    advantage: [["good", "better than its siblings"], ["poor", "worse"], ["sampled", "the same"], ["given", "not trained"]],
  }[kind];
  return el("p", { class: "tokenkey" }, entries.map(([look, words]) => [el("span", { class: `token ${look}` }, words), " "]));
}
