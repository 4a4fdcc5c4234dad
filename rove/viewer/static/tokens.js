// The tokens of a rollout, colored by training statistics.

import { el } from "./dom.js";
import { address, changed } from "./api.js";
import { counted, number, signed, versions } from "./format.js";

/** By what value a token gets which of the colors p0, p1, …: the first whose test it passes. */
const SCALES = {
  logprob: { of: ({ logprob }) => logprob, ends: [0.9, 0.6, 0.3, 0.1, 0.02], within: (value, end) => Math.exp(value) >= end, told: (end) => `≥ ${end * 100} %`, rest: "less" },
  entropy: { of: ({ entropy }) => entropy, ends: [0.05, 0.2, 0.5, 1, 2], within: (value, end) => value <= end, told: (end) => `≤ ${end} nats`, rest: "more" },
  ratio: { of: ({ ratio }) => ratio, ends: [0.01, 0.05, 0.1, 0.2, 0.5], within: (value, end) => Math.abs(value - 1) <= end, told: (end) => `within ${end * 100} %`, rest: "further" },
};

const COLORS = {
  logprob: { title: "log-probability", words: "darker: the sampled token was less likely" },
  entropy: { title: "entropy", words: "darker: the model was less certain", trained: true },
  advantage: { title: "advantage", words: "whether training makes the token more or less likely" },
  mask: { title: "loss mask", words: "marked tokens are trained; prompts and replies are not" },
  version: { title: "policy version", words: "darker: older weights sampled the token" },
  ratio: { title: "trainer-to-sampler ratio", words: "darker: the trainer's probability before the step differs more from the sampler's", trained: true },
};

/**
 * @param found an answer of /api/rollout
 * @param params of the page's address, which say the color
 * @param choose called with another one
 */
export function tokenView(found, params, choose) {
  const among = known(found.tokens.flatMap((turn) => turn.versions));
  const offered = Object.entries(COLORS).filter(([name]) => name !== "version" || among.at(-1) > 0);
  const kind = offered.some(([name]) => name === params.get("color")) ? params.get("color") : "logprob";
  const select = el(
    "select",
    { "data-key": "color", on: { change: (event) => choose(event.target.value) } },
    offered.map(([name, { title }]) => el("option", { value: name, selected: name === kind }, title)),
  );
  const turns = found.tokens.map((turn) => ({ ...turn, advantage: turn.trained?.advantage ?? found.advantage, said: sampledOf(turn) }));
  const spelled = turns.some((turn) => turn.said.some(({ text }) => text !== null));
  return [
    el("div", { class: "tools" }, el("label", {}, "Color by ", select), el("span", { class: "note" }, COLORS[kind].words)),
    el("p", {}, summary(turns.flatMap((turn) => turn.said), found.advantage)),
    COLORS[kind].trained && !turns.some((turn) => turn.trained) ? missing(found, params) : null,
    spelled ? null : el("p", { class: "note" }, "Token texts are unavailable: this folder of runs has no tokenizer, or rove's extra `train` is not installed. Token ids are shown instead."),
    key(kind, among),
    turns.map((turn, i) => turnView(turn, i, kind, among)),
  ];
}

/** The versions among some spans of [version, tokens], oldest first. */
function known(spans) {
  return [...new Set(spans.map(([version]) => version))].sort((a, b) => a - b);
}

/** What is known of each sampled token; values that are not are undefined. */
function sampledOf(turn) {
  const ends = turn.versions.map(([version, count], i) => [version, turn.versions.slice(0, i).reduce((sum, one) => sum + one[1], count)]);
  return turn.sampled.map(([id, text], i) => {
    const logprob = turn.logprobs[i];
    const trainer = turn.trained?.logprobs[i];
    const both = logprob !== undefined && trainer !== undefined;
    const version = ends.find(([, end]) => i < end)?.[0];
    return { id, text, logprob, trainer, version, entropy: turn.trained?.entropies[i], ratio: both ? Math.exp(trainer - logprob) : undefined };
  });
}

function summary(tokens, advantage) {
  const told = [counted(tokens.length, "sampled token")];
  for (const [name, words] of Object.entries({ logprob: "log-probability", entropy: "entropy", ratio: "ratio" })) {
    const known = tokens.map((token) => token[name]).filter((value) => value !== undefined);
    if (known.length) told.push(`mean ${words} ${number(known.reduce((a, b) => a + b, 0) / known.length)}`);
  }
  if (advantage !== null) told.push(`reward minus group mean ${signed(advantage)}`);
  return told.join(", ");
}

/** Why this cannot be told of this rollout, and of which it can. */
function missing(found, params) {
  if (found.step === null) return el("p", { class: "note" }, "Entropies and ratios exist only for trained rollouts; this rollout was not trained on.");
  if (!found.kept.length) return el("p", { class: "note" }, "This step has no token statistics: the run had log_token_stats = 0, or took no optimizer step here.");
  const links = found.kept.map((row) => {
    const target = address("rollout", changed(params, { line: row.line, at: null }));
    return [" ", el("a", { href: target }, `example ${number(row.example)}, rollout ${row.rollout}`)];
  });
  return el("p", { class: "note" }, `Training records token statistics of a few rollouts per step (log_token_stats), not of this one. Those of step ${found.step}:`, links);
}

function turnView(turn, place, kind, among) {
  const prompt = turn.prompt.map(([id, text]) => token(id, text, "given", "prompt, not trained"));
  const sampled = turn.said.map((one) => token(one.id, one.text, look(kind, one, turn.advantage, among), words(one, among)));
  const fresh = turn.fresh && place ? " (does not extend the previous turn: a separate sequence)" : "";
  const by = among.at(-1) > 0 ? el("small", {}, ` ${versions(turn.versions)}`) : null;
  const advantage = turn.trained ? el("p", { class: "note" }, `advantage ${signed(turn.advantage)}`) : null;
  return el(
    "section",
    { class: "turn" },
    el("h2", {}, `Turn ${place + 1}`, by, fresh),
    el("pre", { class: "tokens", tabindex: 0, role: "group", "aria-label": `tokens of turn ${place + 1}` }, prompt, sampled),
    turn.left_out ? el("p", { class: "note" }, `${counted(turn.left_out, "token")} omitted`) : null,
    advantage,
  );
}

function words({ logprob, trainer, entropy, ratio, version }, among) {
  const told = logprob === undefined ? [] : [`log-probability ${number(logprob)}, probability ${number(Math.exp(logprob))}`];
  if (trainer !== undefined) told.push(`trainer's log-probability ${number(trainer)}, ratio ${number(ratio)}, entropy ${number(entropy)}`);
  if (version !== undefined && among.at(-1) > 0) told.push(`policy version ${number(version)}`);
  return told.join("; ");
}

function token(id, text, look, told) {
  return el("span", { class: `token ${look}`, title: `${id}: ${told}` }, text === null ? `${id} ` : text === "" ? "·" : text);
}

function look(kind, token, advantage, among) {
  if (kind === "mask") return "trained";
  if (kind === "advantage") return !advantage ? "sampled" : advantage > 0 ? "good" : "poor";
  if (kind === "version") return age(token.version, among);
  return level(SCALES[kind], token);
}

/** The newest version lightest; what is older than five others is as dark as the sixth. */
function age(version, among) {
  return version === undefined ? "sampled" : `p${Math.min(among.length - 1 - among.indexOf(version), 5)}`;
}

function level({ of, ends, within }, token) {
  const value = of(token);
  if (value === undefined) return "sampled";
  const found = ends.findIndex((end) => within(value, end));
  return `p${found < 0 ? ends.length : found}`;
}

function key(kind, among) {
  const scale = SCALES[kind];
  const entries = scale
    ? [...scale.ends.map((end, i) => [`p${i}`, scale.told(end)]), [`p${scale.ends.length}`, scale.rest]]
    : {
        mask: [["trained", "trained"], ["given", "not trained"]],
        version: among.map((version) => [age(version, among), `version ${number(version)}`]),
        advantage: [["good", "above the group mean"], ["poor", "below"], ["sampled", "equal"], ["given", "not trained"]],
      }[kind];
  return el("p", { class: "tokenkey" }, entries.map(([look, words]) => [el("span", { class: `token ${look}` }, words), " "]));
}
