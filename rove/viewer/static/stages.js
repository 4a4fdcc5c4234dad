// A `rove train` run: its stages, their curves in one picture, diagnoses, and mistakes of the trained model.
import { el, grid } from "./dom.js";
import { NONE, number } from "./format.js";
import { panels } from "./panels.js";

/** What follows the table of results; `target` gives the address of a stage or evaluation, and of one of its lines, or null. */
export function stagesView({ notes, diagnoses, stages, mistakes, training, next }, target) {
  const linked = (name, text) => (target(name) ? el("a", { href: target(name) }, text) : text);
  const columns = [
    ["stage", (stage) => linked(stage.name, stage.title)], ["size", (stage) => stage.size], ["ended", (stage) => stage.ended], ["kept weights", (stage) => stage.kept],
    ["alerts", (stage) => (stage.alerts.length ? stage.alerts.map((line) => el("div", {}, line)) : NONE)],
  ];
  return [
    notes.map((note) => el("p", { class: "note" }, note)),
    el("h2", {}, "Diagnoses"),
    diagnoses.length ? el("ul", { class: "diagnoses" }, diagnoses.map((text) => el("li", {}, text))) : el("p", { class: "note" }, "No diagnosis: no stage had a problem that rove knows."),
    el("h2", {}, "Stages"),
    grid(columns, stages, "plain narrowly"),
    mistakes && mistakesView(mistakes, target),
    training && panels([{ name: "all stages", color: 0, ...training }]),
    next.length > 0 && [el("h2", {}, "Next"), el("ul", {}, next.map((command) => el("li", {}, el("code", {}, command))))],
  ];
}

function mistakesView({ source, summary, questions, replies, fields, folder, earlier }, target) {
  const mean = (group) => number(group.mean);
  const before = earlier && [earlier, (group) => (group.before === null ? NONE : number(group.before))];
  const share = ["of the lost reward", (group) => `${Math.round(group.lost * 100)}%`];
  const count = ["rollouts", (group) => number(group.rollouts)];
  const named = (title) => [title, (group) => (target(folder, group.line) ? el("a", { href: target(folder, group.line) }, group.name || "(empty)") : group.name || "(empty)")];
  const table = (title, groups, ...more) => groups.length > 0 && [el("h3", {}, title), grid([named("value"), ...more, count, before, ["reward", mean], share], groups, "plain narrowly")];
  return [
    el("h2", {}, "What does it still get wrong?"),
    el("p", { class: "note" }, `Rollouts of the row ${source}:`),
    summary.map((sentence) => el("p", {}, sentence)),
    table("By question", questions, ["expected answer", (group) => group.answer || NONE], ["reply", (group) => group.reply || NONE]),
    Object.entries(fields).map(([name, groups]) => table(`By ${name}`, groups)),
    table("By reply", replies, ["expected answer", (group) => group.answer || NONE]),
  ];
}
