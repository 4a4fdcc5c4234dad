// A run as one self-contained page: its data is embedded.
import { el, grid, replace, say, sortable } from "./dom.js";
import { fold } from "./chat.js";
import { histogram } from "./charts.js";
import { NONE, bytes, counted, number, plain } from "./format.js";
import { cards, values, verdict } from "./results.js";
import { alerts, panels } from "./panels.js";
import { answersView, stagesView } from "./stages.js";
import { conversation, extras, outcome, times } from "./details.js";

const main = document.getElementById("main");
const data = JSON.parse(document.getElementById("data").textContent);
let order = { column: null, up: true };

function shown() {
  return [
    el("div", { class: "title" }, el("h1", {}, data.title), data.complete ? null : el("span", { class: "status stopped" }, "unfinished")),
    el("p", { class: "note" }, data.facts.join(" · ")),
    data.links.length > 0 && el("p", {}, data.links.map(([href, text], i) => [i > 0 && " · ", el("a", { href }, text)])),
    data.stages ? answersView(data.stages.answers, () => null) : [verdict(data.verdict), cards(data.cards)],
    data.values.length > 0 && [el("h2", {}, "Results"), values(data)],
    data.counts.map((phrase) => el("p", {}, phrase)),
    data.note && el("p", { class: "note" }, data.note),
    data.stages ? stagesView({ ...data.stages, training: data.training }, () => null) : data.training ? training(data.training) : null,
    data.histograms.length > 0 && [el("h2", {}, "Distributions"), el("div", { class: "charts" }, data.histograms.map((told) => el("div", { class: "chart" }, histogram(told, told.title))))],
    data.examples.length > 0 && [el("h2", {}, "Examples"), el("p", { class: "note" }, data.examples_note), el("div", { id: "examples" })],
    data.rollouts_note && [el("h2", {}, "Rollouts"), el("p", { class: "note" }, data.rollouts_note), data.rollouts.map(rollout)],
    el("h2", {}, "Settings"),
    data.again && el("p", {}, "Repeat: ", el("code", {}, data.again)),
    fold("settings", data.settings),
    data.versions && fold("versions", data.versions),
  ];
}

function training(run) {
  const told = { name: "this run", color: 0, ...run };
  return [alerts(told), panels([told])];
}

const COLUMNS = {
  example: [(one) => one.number, (one) => (one.line === null ? `${number(one.number)} · ${one.key}` : el("a", { href: `#rollout-${one.line}` }, `${number(one.number)} · ${one.key}`))],
  prompt: [(one) => one.question, (one) => one.question],
  rollouts: [(one) => one.rollouts, (one) => number(one.rollouts)],
  "mean reward": [(one) => one.mean, (one) => number(one.mean)],
  spread: [(one) => one.spread, (one) => number(one.spread)],
  failed: [(one) => one.failed, (one) => number(one.failed)],
};

/** The examples, sorted by the column that was clicked last. */
function examples() {
  const value = COLUMNS[order.column]?.[0];
  const before = (a, b) => (a === b ? 0 : a === null ? -1 : b === null ? 1 : a < b ? -1 : 1);
  const rows = value ? [...data.examples].sort((a, b) => (order.up ? 1 : -1) * before(value(a), value(b))) : data.examples;
  return grid(Object.entries(COLUMNS).map(([name, [, draw]]) => [name, draw, heading(name)]), rows, "plain examples");
}

function heading(name) {
  const current = order.column === name;
  const press = () => {
    order = { column: name, up: !(current && order.up) };
    replace(document.getElementById("examples"), examples());
    say(`sorted by ${name}`);
  };
  return sortable(name, name, current ? (order.up ? "up" : "down") : "", press);
}

function rollout(found) {
  const whole = found.example_key !== ""; // a hub has rollouts without their identity, turns, tokens and times
  const size = whole ? [counted(found.steps.length, "turn"), `${number(found.usage.completion_tokens)} tokens`] : [];
  const facts = [whole && `example ${number(found.example_id)}, rollout ${found.rollout_index}`, found.stop_condition && `stop reason: ${plain(found.stop_condition)}`, ...size];
  const badge = found.error ? el("b", { class: "bad" }, "failed") : el("b", {}, number(found.reward));
  const cut = found.is_truncated ? el("b", { class: "bad" }, " truncated") : null;
  const beside = [outcome(found), whole && times(found), el("h2", {}, "More"), extras(found), whole && el("p", { class: "note" }, `key ${found.example_key} · seed ${found.seed} · ${bytes(found.size)}`)];
  return el("details", { class: "rollout", id: `rollout-${found.line}` },
    el("summary", {}, badge, cut, ` ${facts.filter((fact) => fact).join(" · ") || NONE}`),
    el("div", { class: "split right" }, el("section", { "aria-label": "Chat" }, conversation(found, `${found.line}-`)), el("aside", { "aria-label": "About this rollout" }, beside)));
}

/** A link to a rollout opens it. */
function open() {
  const target = document.getElementById(location.hash.slice(1));
  if (!(target instanceof HTMLDetailsElement)) return;
  target.open = true;
  target.scrollIntoView();
  target.querySelector("summary").focus();
}

replace(main, shown());
if (data.examples.length) replace(document.getElementById("examples"), examples());
addEventListener("hashchange", open);
open();
