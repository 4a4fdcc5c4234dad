// Details of a rollout, on its page and in a report: conversation, stop reason, scores, timing.

import { el, table } from "./dom.js";
import { fold, message, pretty } from "./chat.js";
import { counted, number, plain, seconds, versions } from "./format.js";

/** Who said what; `place` keeps apart the links to messages of several rollouts on one page. */
export function conversation(environment, found, place = "") {
  return [
    ...found.prompt.map((one, i) => message(one, environment, `${place}${i}`, null, found.renderings[i])),
    el("p", { class: "starts" }, found.completion.length ? "the rollout starts here" : "the model did not respond"),
    ...found.completion.map((one, i) => message(one, environment, `${place}${found.prompt.length + i}`, null, found.renderings[found.prompt.length + i])),
  ];
}

/** Why it stopped, and its reward function by function. */
export function outcome(found) {
  return [
    el("h2", {}, "Stop reason"),
    el("p", {}, why(found)),
    found.error && failure(found.error),
    found.scores && [el("h2", {}, "Reward"), scores(found.scores)],
  ];
}

/** Whatever else is known of it: answer, info, what judges and other roles said. */
export function extras(found) {
  const told = { answer: found.answer, info: found.info, ...(found.scores?.extras ?? {}) };
  const apart = Object.entries(found.model_roles).filter(([name]) => !(name in (found.scores?.extras ?? {}))); // judges are shown with the scores
  return [
    ...Object.entries(told).filter(([, value]) => value !== "" && value !== null && Object.keys(Object(value)).length),
    ...apart.map(([name, said]) => [`role ${name}`, said]),
  ].map(([name, value]) => fold(name, pretty(value)));
}

function why(found) {
  const turns = counted(found.steps.length, "turn");
  if (found.error) return `Failed after ${turns}.`;
  const last = found.steps.at(-1)?.finish_reason;
  const stop = plain(found.stop_condition ?? "nothing");
  const said = found.stop_condition === "has_final_env_response" ? "the environment sent a final response" : stop;
  const cut = found.is_truncated ? `; truncated${last === "length" ? ": the last response reached its maximum length" : ""}` : "";
  return `After ${turns}: ${said}${cut}.`;
}

function failure(error) {
  return [
    el("p", { class: "bad" }, el("b", {}, `${error.phase}: ${error.type}`), ` ${error.message}`),
    error.attempts.length ? fold("failed attempts", error.attempts.join("\n")) : null,
    error.traceback && fold("traceback", error.traceback),
  ];
}

function scores({ rewards, weights, metrics, reward }) {
  const row = (...cells) => el("tr", {}, cells.map((text) => el("td", {}, text)));
  const rows = Object.entries(rewards).map(([name, value]) => row(plain(name), number(value), `× ${number(weights[name] ?? 0)}`, number(value * (weights[name] ?? 0))));
  rows.push(...Object.entries(metrics).map(([name, value]) => row(plain(name), number(value), "metric", "")));
  rows.push(el("tr", { class: "sum" }, el("td", {}, "reward"), el("td"), el("td"), el("td", {}, number(reward))));
  return table(["function", "value", "weight", "adds"], rows, "scores plain");
}

/** Where the time went: a bar of model, environment and rubric, and each turn of the model. */
export function times({ parts, timing, steps }) {
  const total = Math.max(timing.total, parts.model + parts.scoring + parts.environment) || 1;
  const names = { model: "model", environment: "environment and waiting", scoring: "scoring" };
  const bars = Object.keys(names).map((name) => el("span", { class: `part ${name}`, "width%": (parts[name] / total) * 100 }));
  const told = Object.entries(names).map(([name, words]) => el("li", {}, el("span", { class: `key ${name}`, "aria-hidden": "true" }), `${words} ${seconds(parts[name])}`));
  const by = (step) => (step.versions.some(([version]) => version > 0) ? `, ${versions(step.versions)}` : "");
  const turns = steps.map((step, i) => `turn ${i + 1}: ${seconds(step.seconds)}, ${number(step.usage.completion_tokens)} tokens${by(step)}${step.attempts.length ? `, ${counted(step.attempts.length, "failed attempt")}` : ""}`);
  return [
    el("h2", {}, "Time"),
    el("div", { class: "lane", role: "img", "aria-label": `${seconds(timing.total)} in total` }, bars),
    el("ul", { class: "legend" }, told),
    fold(`${counted(steps.length, "turn")} in ${seconds(timing.total)}`, turns.join("\n")),
  ];
}
