// Details of a rollout, on its page and in a report: conversation, stop reason, scores, timing.
import { el, table, useEffect, useState } from "./dom.js";
import { draw } from "./boards.js";
import { fold, messages, pretty, textOf } from "./chat.js";
import { counted, number, plain, seconds, signed } from "./format.js";

const PERIOD = 700;

/** All messages; `place` keeps apart the links to messages of several rollouts on one page. */
export function conversation(found, place = "", plain = false) {
  const turns = new Map(found.steps.map((step, i) => [step.messages, turnNote(found, step, i)]));
  const shown = messages(found, place, (i) => ({ plain, note: i >= found.prompt.length && turns.get(i) }));
  return [
    el(Replay, { found }),
    shown.slice(0, found.prompt.length),
    el("p", { class: "starts" }, found.completion.length ? "the rollout starts here" : "the model did not respond"),
    shown.slice(found.prompt.length),
  ];
}

/** Reward and advantage of a turn, if they were recorded. */
function turnNote(found, step, turn) {
  const advantage = found.tokens?.find((one) => one.turn === turn)?.trained?.advantage;
  const words = [step.reward !== null && `reward of turn ${number(step.reward)}`, advantage !== undefined && `advantage ${signed(advantage)}`].filter((text) => text);
  return words.length > 0 && el("small", {}, ` ${words.join(" · ")}`);
}

/** The states that an environment drew, with a slider and a button that plays them. */
function Replay({ found }) {
  const boards = Object.keys(found.renderings).map(Number).sort((a, b) => a - b).map((place) => found.renderings[place]);
  const [at, move] = useState(boards.length - 1);
  const [playing, play] = useState(false);
  useEffect(() => {
    if (!playing) return undefined;
    const timer = setInterval(() => move((now) => (now + 1 < boards.length ? now + 1 : (play(false), now))), PERIOD);
    return () => clearInterval(timer);
  }, [playing]);
  if (boards.length < 2) return null;
  const place = Math.min(at, boards.length - 1);
  const press = () => (playing || move(place + 1 < boards.length ? place : 0), play(!playing));
  return el("section", { class: "replay", "aria-label": "Replay" },
    draw(boards[place]),
    el("div", { class: "tools" },
      el("button", { type: "button", on: { click: press } }, playing ? "Pause" : "Play"),
      el("label", {}, "State ", el("input", { type: "range", min: 0, max: boards.length - 1, value: place, on: { input: (event) => move(Number(event.target.value)) } }), ` ${place + 1} of ${boards.length}`)));
}

/** The expected answer, why the rollout stopped, and its reward function by function. */
export function outcome(found) {
  return [
    found.answer && [el("h2", {}, "Expected answer"), el("pre", { class: "expected" }, found.answer)],
    el("h2", {}, "Stop reason"),
    el("p", {}, found.stopped),
    found.error && failure(found.error),
    found.scores && [el("h2", {}, "Reward"), scores(found.scores)],
  ];
}

/** Judges' scores, what other model roles were asked and replied, and info. */
export function extras(found) {
  const words = (value) => (Array.isArray(value) && value.every((one) => one?.role) ? value.map((one) => `${one.role}: ${textOf(one.content)}`).join("\n\n") : pretty(value));
  const roles = Object.entries(found.model_roles).map(([name, said]) => [`role ${name}`, said]);
  const told = [...Object.entries(found.scores?.extras ?? {}), ...roles, ["info", found.info]].filter(([, value]) => value !== "" && value !== null && Object.keys(Object(value)).length);
  return told.map(([name, value]) => fold(name, words(value), "", name !== "info"));
}

function failure(error) {
  return [
    el("p", { class: "bad" }, el("b", {}, `${error.phase}: ${error.type}`), ` ${error.message}`),
    error.attempts.length ? fold("failed attempts", error.attempts.join("\n")) : null,
    error.traceback && fold("traceback", error.traceback),
  ];
}

function scores({ rewards, weights, metrics, reward }) {
  const rows = [
    ...Object.entries(rewards).map(([name, value]) => [plain(name), number(value), `× ${number(weights[name] ?? 0)}`, number(value * (weights[name] ?? 0))]),
    ...Object.entries(metrics).map(([name, value]) => [plain(name), number(value), "metric", ""]),
  ];
  const row = (texts, look) => el("tr", { class: look }, texts.map((text) => el("td", {}, text)));
  return table(["function", "value", "weight", "adds"], [...rows.map((texts) => row(texts)), row(["reward", "", "", number(reward)], "sum")], "scores plain");
}

/** Where the time went: a bar of model, environment and rubric, and each turn of the model. */
export function times({ parts, timing, steps }) {
  const total = Math.max(timing.total, parts.model + parts.scoring + parts.environment) || 1;
  const names = { model: "model", environment: "environment and waiting", scoring: "scoring" };
  const bars = Object.keys(names).map((name) => el("span", { class: `part ${name}`, "width%": (parts[name] / total) * 100 }));
  const told = Object.entries(names).map(([name, words]) => el("li", {}, el("span", { class: `key ${name}`, "aria-hidden": "true" }), `${words} ${seconds(parts[name])}`));
  const turns = steps.map((step, i) => `turn ${i + 1}: ${seconds(step.seconds)}, ${number(step.usage.completion_tokens)} tokens${step.versions && `, ${step.versions}`}${step.attempts.length ? `, ${counted(step.attempts.length, "failed attempt")}` : ""}`);
  return [
    el("h2", {}, "Time"),
    el("div", { class: "lane", role: "img", "aria-label": `${seconds(timing.total)} in total` }, bars),
    el("ul", { class: "legend" }, told),
    fold(`${counted(steps.length, "turn")} in ${seconds(timing.total)}`, turns.join("\n")),
  ];
}
