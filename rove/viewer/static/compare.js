// Compare runs: which is better, by how much, and on which examples.
import { choice, el, grid, replace } from "./dom.js";
import { address, ask, changed } from "./api.js";
import { rewardPill } from "./charts.js";
import { message, messages } from "./chat.js";
import { NONE, caveats, limits, number, plain, range, signed } from "./format.js";
import { settingsDifference } from "./overview.js";

const DIRECTIONS = { "": "all that changed", up: "higher in B", down: "lower in B", solves: "solved by B only", solved: "solved by A only" };

export async function comparePage(main, params, signal) {
  const a = params.get("a");
  const others = params.getAll("b").filter((name) => name !== a);
  const value = params.get("value") ?? "reward";
  const { runs } = await ask("runs", {}, signal);
  const [found, apart] = await Promise.all([
    Promise.all(others.map((b) => ask("compare", { a, b, value, comparisons: others.length }, signal))),
    others.length ? ask("settings", { run: [a, ...others] }, signal) : null,
  ]);
  const pair = params.get("left") ? await sideBySide(a, params.get("with") ?? others[0], params, signal) : null;
  if (signal.aborted) return;
  replace(main,
    el("h1", {}, "Is one run better than another?"),
    choose(runs, a, others, params),
    found.length > 1 && overall(found, a, others),
    found.length ? found.map((one, i) => comparison(one, a, others[i], params)) : el("p", { class: "note" }, "Select the run to compare with."),
    pair,
    apart && el("details", { class: "group" }, el("summary", {}, el("h2", {}, "Settings that differ")), settingsDifference(apart)));
  if (pair) document.getElementById("pair").scrollIntoView();
}

const go = (params, changes) => (location.hash = address("compare", changed(params, { left: null, right: null, with: null, ...changes })));

function choose(runs, a, others, params) {
  const names = runs.filter((run) => run.rollouts || run.kind === "rl").map((run) => run.name);
  const pairs = [["", "…"], ...names.map((name) => [name, name])];
  const swap = el("button", { type: "button", "data-key": "swap", on: { click: () => go(params, { a: others[0], b: [a, ...others.slice(1)] }) } }, "Swap");
  return el("div", { class: "tools" },
    choice("A", "a", pairs, a, (name) => go(params, { a: name })),
    choice("B", "b", pairs, others[0] ?? "", (name) => go(params, { b: name ? [name, ...others.slice(1)] : others.slice(1) })),
    others.length > 0 && [swap, choice("More runs", `more ${others.length}`, [["", "add …"], ...pairs.slice(1).filter(([name]) => name !== a && !others.includes(name))], "", (name) => name && go(params, { b: [...others, name] }))]);
}

/** All runs against the first: intervals are corrected for the number of comparisons (Bonferroni). */
function overall(found, a, others) {
  const rows = found.map((one, i) => ({ ...one, name: others[i], low: one.corrected?.[0] ?? null, high: one.corrected?.[1] ?? null }));
  const columns = [
    ["run", (one) => el("a", { href: address("compare", { a, b: one.name }) }, one.name)], [a, (one) => number(one.main.a)], ["its mean", (one) => number(one.main.b)], ["difference", (one) => signed(one.main.difference)],
    ["corrected interval", (one) => range({ low: one.low, high: one.high, caveat: one.main.caveat })], ["certain", (one) => (one.low > 0 ? "higher" : one.high !== null && one.high < 0 ? "lower" : "not certain")],
  ];
  return [el("h2", {}, `All against ${a}`), grid(columns, rows), el("p", { class: "note" }, `Intervals hold for all ${found.length} comparisons together with 95% confidence (Bonferroni).`)];
}

function comparison(found, a, b, params) {
  const names = [found.main, ...found.others].map((one) => one.name).sort();
  const verdict = found.verdict.startsWith("no ") || found.verdict.startsWith("too few") ? "" : "strong";
  const counts = found.paired ? `${b}: higher on ${number(found.wins)}, equal on ${number(found.ties)}, lower on ${number(found.losses)} examples` : null;
  return el("section", { class: "comparison", "aria-label": `${a} and ${b}` },
    el("p", { class: `verdict ${verdict}` }, found.verdict),
    counts && el("p", {}, counts),
    found.reading && el("p", { class: "bad" }, "A run is still being read; reload this page in a moment."),
    found.notes.map((note) => el("p", { class: "note" }, note)),
    differences(found, a, b),
    caveats([found.main, ...found.others]) && el("p", { class: "note" }, caveats([found.main, ...found.others])),
    el("div", { class: "tools" },
      choice("Examples by", `value ${b}`, names.map((name) => [name, plain(name)]), found.main.name, (value) => go(params, { value })),
      choice("show", `direction ${b}`, Object.entries(DIRECTIONS).map(([key, words]) => [key, words.replace(" A", ` ${a}`).replace(" B", ` ${b}`)]), params.get("direction") ?? "", (direction) => go(params, { direction: direction || null }))),
    movers(found, a, b, params));
}

function differences(found, a, b) {
  const told = { 1: "higher", [-1]: "lower" };
  const columns = [["value", (one) => el("b", {}, plain(one.name))], [a, (one) => number(one.a)], [b, (one) => number(one.b)], ["difference", (one) => signed(one.difference)], ["95% interval", range], ["interval", bar], ["certain", (one) => told[one.direction] ?? NONE]];
  return grid(columns, [found.main, ...found.others], "differences");
}

/** The difference with its interval on a line whose middle is zero. */
function bar(one) {
  const [low, high] = limits(one) ?? [one.difference, one.difference];
  const most = Math.max(Math.abs(low), Math.abs(high), Math.abs(one.difference)) || 1;
  const at = (value) => `${50 + (value / most) * 48}%`;
  const range = el("span", { class: "range", style: { left: at(low), width: `${((high - low) / most) * 48}%` } });
  return el("span", { class: "axis", "aria-hidden": "true" }, range, el("span", { class: "point", style: { left: at(one.difference) } }));
}

function movers(found, a, b, params) {
  const direction = params.get("direction") ?? "";
  const passed = (value) => value >= found.threshold - 1e-9;
  const test = { up: (one) => one.b > one.a, down: (one) => one.b < one.a, solves: (one) => passed(one.b) && !passed(one.a), solved: (one) => passed(one.a) && !passed(one.b) }[direction] ?? (() => true);
  const listed = [...found.up, ...found.down].filter(test);
  const values = listed.flatMap((one) => [one.a, one.b]);
  const scale = [Math.min(0, ...values), Math.max(found.threshold, ...values)];
  const target = (one) => address("compare", changed(params, { with: b, left: one.lines[0], right: one.lines[1] }));
  const columns = [
    ["example", (one) => el("a", { href: target(one), "data-key": `mover ${one.example_key}` }, number(one.example_id))], ["question", (one) => el("span", { class: "question", title: one.question }, one.question || NONE)],
    [a, (one) => rewardPill(one.a, scale)], [b, (one) => rewardPill(one.b, scale)], ["difference", (one) => signed(one.b - one.a)],
  ];
  return [Math.max(found.up.length, found.down.length) >= found.limit && el("p", { class: "note" }, `Only the ${found.limit} largest changes in each direction are listed.`), listed.length ? grid(columns, listed, "movers") : el("p", {}, direction ? "No such example." : "No example changed.")];
}

/** The two rollouts of an example. */
async function sideBySide(a, b, params, signal) {
  const sides = [[a, params.get("left")], [b, params.get("right")]];
  const shown = await Promise.all(sides.map(([run, line]) => Promise.all([ask("run", { run }, signal), ask("rollout", { run, line }, signal)])));
  const columns = shown.map(([about, found], i) => el("section", { class: "member", "aria-label": about.name },
    el("h2", {}, el("a", { href: address("rollout", { run: about.name, line: found.line }) }, about.name), " ", found.error ? "failed" : rewardPill(found.reward, about.range)),
    messages(found, `${i}-`).slice(found.prompt.length)));
  const [, found] = shown[0];
  return el("section", { id: "pair", "aria-label": "Side by side" },
    el("h2", {}, `Example ${number(found.example_id)}`),
    found.prompt.slice(-1).map((one) => message(one, "prompt", { board: found.renderings[found.prompt.length - 1] })),
    found.answer && el("p", {}, "Expected answer: ", el("code", {}, found.answer)),
    el("div", { class: "columns", tabindex: 0, role: "region", "aria-label": "Both rollouts" }, columns));
}
