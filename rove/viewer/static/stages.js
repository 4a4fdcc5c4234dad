// A `rove train` run: answers, its stages, mistakes of the trained model, and the curves of all stages in one picture.
import { el, grid } from "./dom.js";
import { NONE, counted, number } from "./format.js";
import { panels } from "./panels.js";

const MAX_ALERTS = 3;

/** Short answers with titles; `target` gives the address of a stage or evaluation, of its `line` or `step`, or of its rollouts `below` a reward, or null. */
export function answersView(answers, target) {
  const link = ({ text, run, line, step }) => {
    const href = target(run, { line, step });
    return href ? el("a", { href }, text) : line === undefined && text;
  };
  const draw = (part) => (typeof part === "string" ? part : part.command ? copied(part.command) : link(part));
  return el("dl", { class: "answers conclusion" }, answers.map(({ title, parts }) => [el("dt", {}, title), el("dd", {}, parts.map(draw))]));
}

/** A command with a button that copies it. */
export const copied = (command) => [el("code", {}, command), " ", el("button", { type: "button", on: { click: () => navigator.clipboard.writeText(command) } }, "Copy")];

/** What follows the table of results; `target` as of `answersView`. */
export function stagesView({ notes, diagnoses, stages, mistakes, training }, target) {
  const linked = (name, text) => (target(name) ? el("a", { href: target(name) }, text) : text);
  const alert = (stage) => ({ step, line }) => {
    const href = target(stage.name, { step });
    return el("div", {}, href ? el("a", { href }, `step ${step}`) : `step ${step}`, `: ${line}`);
  };
  const columns = [
    ["stage", (stage) => linked(stage.name, stage.title)], ["size", (stage) => stage.size], ["ended", (stage) => stage.ended], ["kept weights", (stage) => stage.kept],
    ["alerts", (stage) => (stage.alerts.length ? stage.alerts.slice(-MAX_ALERTS).map(alert(stage)) : NONE)],
  ];
  return [
    notes.map((note) => el("p", { class: "note" }, note)),
    mistakes && mistakesView(mistakes, target),
    el("h2", {}, "Stages"),
    grid(columns, stages, "plain narrowly"),
    diagnoses.length > 0 && [el("h2", {}, "Diagnoses"), el("ul", { class: "diagnoses" }, diagnoses.map((text) => el("li", {}, text)))],
    training && [el("h2", {}, "Curves of all stages"), el("p", { class: "note" }, training.note), panels([{ name: "all stages", color: 0, ...training }])],
  ];
}

const points = (value) => (Number.isFinite(value) ? value.toFixed(3) : NONE);

function mistakesView({ source, summary, best, wrong, questions, replies, fields, folder, earlier, has_turns: turns }, target) {
  const named = (title) => [title, (group) => (target(folder, { line: group.line }) ? el("a", { href: target(folder, { line: group.line }) }, group.name || "(empty)") : group.name || "(empty)")];
  const before = [`mean reward, ${earlier}`, (group) => (group.before === null ? NONE : points(group.before))];
  const sizes = [["rollouts", (group) => number(group.rollouts)], ["of these lose reward", (group) => number(group.wrong)], ["points lost", (group) => points(group.points)]];
  const table = (title, head, groups, ...more) => {
    const columns = [named(head), ...more, ...sizes, before, [`mean reward, ${source}`, (group) => points(group.mean)]];
    const filled = columns.filter(([, draw]) => groups.some((group) => ![NONE, ""].includes(draw(group))));
    return groups.length > 0 && [el("h3", {}, title), grid(filled, groups, "plain narrowly")];
  };
  const expected = ["expected answer", (group) => group.answer || NONE];
  const repeated = questions.some((group) => group.rollouts > 1);
  const ending = ["how the worst rollout ended", (group) => `${counted(group.turns, "turn")}, then: ${group.ending || NONE}`];
  const byQuestion = turns ? table("By first message", "first message", questions, ending) : table("By question", "question", questions, expected, ["reply", (group) => group.reply || NONE]);
  return [
    el("h2", {}, "What does it still get wrong?"),
    el("p", { class: "note" }, `Rollouts of the row ${source}${target(folder) ? "; links lead to the worst rollout of a row" : ""}.`),
    summary.map((sentence) => el("p", {}, sentence)),
    wrong > 0 && target(folder) && el("p", {}, el("a", { href: target(folder, { below: best }) }, `All rollouts that earn less than ${number(best)} (${number(wrong)}), the worst first`)),
    // Questions that were each asked once show examples, but no pattern.
    repeated && byQuestion,
    Object.entries(fields).map(([name, groups]) => table(`By ${name}`, name, groups)),
    table("By reply", "reply", replies, expected),
    !repeated && byQuestion,
  ];
}
