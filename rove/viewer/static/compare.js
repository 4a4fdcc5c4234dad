// Is one run better than another?

import { el, cell, replace, table } from "./dom.js";
import { address, ask, changed } from "./api.js";
import { message } from "./chat.js";
import { NONE, caveats, limits, number, plain, range, signed } from "./format.js";

export async function comparePage(main, params, signal) {
  const a = params.get("a");
  const others = params.getAll("b").filter((name) => name !== a);
  const value = params.get("value") ?? "reward";
  const { runs } = await ask("runs", {}, signal);
  const found = await Promise.all(others.map((b) => ask("compare", { a, b, value }, signal)));
  const pair = params.get("left") ? await sideBySide(a, others, params, signal) : null;
  if (signal.aborted) return;
  replace(
    main,
    el("h1", {}, "Is one run better than another?"),
    choose(runs, a, others, params),
    found.length ? found.map((one, i) => comparison(one, a, others[i], params)) : el("p", { class: "note" }, "Select the run to compare with."),
    pair,
  );
  if (pair && !params.get("seen")) document.getElementById("pair").scrollIntoView();
}

function go(params, changes) {
  location.hash = address("compare", changed(params, { left: null, right: null, ...changes }));
}

function choose(runs, a, others, params) {
  const names = runs.filter((run) => run.rollouts || run.kind === "rl").map((run) => run.name);
  const options = (picked) => [el("option", { value: "" }, "…"), names.map((name) => el("option", { value: name, selected: name === picked }, name))];
  const select = (key, label, picked, change) => el("label", {}, `${label} `, el("select", { "data-key": key, on: { change } }, options(picked)));
  return el(
    "div",
    { class: "tools" },
    select("a", "From", a, (event) => go(params, { a: event.target.value })),
    select("b", "to", others[0], (event) => go(params, { b: event.target.value || null })),
  );
}

function comparison(found, a, b, params) {
  const values = [found.main, ...found.others].map((one) => one.name);
  const select = el(
    "select",
    { "data-key": `value ${b}`, on: { change: (event) => go(params, { value: event.target.value }) } },
    values.sort().map((name) => el("option", { value: name, selected: name === found.main.name }, plain(name))),
  );
  const verdict = found.verdict.startsWith("no difference") ? "" : "strong";
  const swapped = found.paired ? `${b}: higher on ${number(found.wins)}, equal on ${number(found.ties)}, lower on ${number(found.losses)}` : null;
  return el(
    "section",
    { class: "comparison", "aria-label": `${a} and ${b}` },
    el("p", { class: `verdict ${verdict}` }, found.verdict),
    swapped && el("p", {}, swapped),
    found.reading && el("p", { class: "bad" }, "A run is still being read; reload this page in a moment."),
    found.notes.map((note) => el("p", { class: "note" }, note)),
    differences(found, a, b),
    caveats([found.main, ...found.others]) && el("p", { class: "note" }, caveats([found.main, ...found.others])),
    el("div", { class: "tools" }, el("label", {}, "Largest changes per example, by ", select)),
    movers(found, a, b, params),
  );
}

function differences(found, a, b) {
  const told = { 1: "higher", 0: "", [-1]: "lower" };
  const rows = [found.main, ...found.others].map((one) =>
    el(
      "tr",
      {},
      cell("value", el("b", {}, plain(one.name))),
      cell(a, number(one.a)),
      cell(b, number(one.b)),
      cell("difference", signed(one.difference)),
      cell("95 % interval", range(one)),
      cell("interval", bar(one)),
      cell("told", told[one.direction] || NONE),
    ),
  );
  return table(["value", a, b, "difference", "95 % interval", "interval", "told"], rows, "differences");
}

/** The difference with its interval on a line whose middle is zero. */
function bar(one) {
  const [low, high] = limits(one) ?? [one.difference, one.difference];
  const most = Math.max(Math.abs(low), Math.abs(high), Math.abs(one.difference)) || 1;
  const at = (value) => 50 + (value / most) * 48;
  const reach = el("span", { class: "range", "width%": at(high) - at(low) });
  reach.style.left = `${at(low)}%`;
  const point = el("span", { class: "point" });
  point.style.left = `${at(one.difference)}%`;
  return el("span", { class: "axis", "aria-hidden": "true" }, reach, point);
}

function movers(found, a, b, params) {
  const rows = [...found.up, ...found.down].map((one) => {
    const [left, right] = one.lines;
    const target = address("compare", changed(params, { b, left, right }));
    return el(
      "tr",
      {},
      cell("example", el("a", { href: target, "data-key": `mover ${one.example_key}` }, number(one.example_id))),
      cell(a, number(one.a)),
      cell(b, number(one.b)),
      cell("difference", signed(one.b - one.a)),
      cell("key", el("code", {}, one.example_key)),
    );
  });
  return rows.length ? table(["example", a, b, "difference", "key"], rows, "movers") : el("p", {}, "No example changed.");
}

/** The last message of a rollout's prompt. */
function lastPrompt(about, found) {
  return found.prompt.slice(-1).map((one) => message(one, about.env, "prompt", null, found.renderings[found.prompt.length - 1]));
}

/** The two rollouts of an example. */
async function sideBySide(a, others, params, signal) {
  const sides = [[a, params.get("left")], [others[0], params.get("right")]];
  const shown = await Promise.all(sides.map(([run, line]) => Promise.all([ask("run", { run }, signal), ask("rollout", { run, line }, signal)])));
  const columns = shown.map(([about, found], i) =>
    el(
      "section",
      { class: "member", "aria-label": about.name },
      el("h2", {}, el("a", { href: address("rollout", { run: about.name, line: found.line }) }, about.name), " ", el("b", {}, found.error ? NONE : number(found.reward))),
      found.completion.map((one, place) => message(one, about.env, `${i}-${place}`, null, found.renderings[found.prompt.length + place])),
    ),
  );
  return el(
    "section",
    { id: "pair", "aria-label": "Side by side" },
    el("h2", {}, `Example ${number(shown[0][1].example_id)}`),
    lastPrompt(...shown[0]),
    el("div", { class: "columns", tabindex: 0, role: "region", "aria-label": "Both rollouts" }, columns),
  );
}
