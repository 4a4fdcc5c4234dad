// The table of runs.

import { el, cell, replace, table } from "./dom.js";
import { tagForm, tagList } from "./annotate.js";
import { address, ask, changed, send } from "./api.js";
import { sparkbars, sparkline } from "./charts.js";
import { NONE, ago, counted, interval, number } from "./format.js";
import { every } from "./live.js";

const KINDS = { eval: "evaluation", rl: "RL", sft: "SFT" };
const READS = 50;
const MEASURED = /\/evaluations\//;
const SORTS = {
  name: (run) => run.name,
  kind: (run) => run.kind,
  status: (run) => run.status,
  environment: (run) => run.env ?? "",
  model: (run) => run.model ?? "",
  reward: (run) => run.reward?.mean ?? -Infinity,
  changed: (run) => run.changed,
};

let typed = "";

export async function runsPage(main, params, signal) {
  const draw = async () => {
    const found = await ask("runs", {}, signal);
    if (!signal.aborted) replace(main, shown({ ...found, draw }, params));
    return found.runs;
  };
  let runs = await draw();
  for (let i = 0; i < READS && !signal.aborted && runs.some((run) => run.reading); i += 1) runs = await draw();
  every(4000, draw, signal);
}

function shown({ folder, runs, annotate, draw }, params) {
  const wanted = (params.get("q") ?? "").toLowerCase();
  const kind = params.get("kind") ?? "";
  const tag = params.get("tag") ?? "";
  const inside = runs.filter((run) => MEASURED.test(run.name));
  const listed = runs
    .filter((run) => params.get("inside") || !MEASURED.test(run.name))
    .filter((run) => (!kind || run.kind === kind) && (!tag || run.tags?.includes(tag)))
    .filter((run) => `${run.name} ${run.env} ${run.model} ${run.status} ${(run.tags ?? []).join(" ")}`.toLowerCase().includes(wanted));
  const sort = SORTS[params.get("sort")] ?? SORTS.changed;
  const sign = params.get("order") === "up" ? 1 : -1;
  listed.sort((a, b) => sign * (sort(a) < sort(b) ? -1 : sort(a) > sort(b) ? 1 : 0));
  const picked = params.getAll("pick").filter((name) => runs.some((run) => run.name === name));
  return [
    el("div", { class: "title" }, el("h1", {}, `Runs in ${folder}`), el("span", { class: "note" }, `${listed.length} of ${runs.length}`)),
    tools(params, runs, picked, inside.length),
    annotate && picked.length > 0 && tagging(runs, picked, draw),
    runs.length ? list(listed, params, picked) : empty(),
  ];
}

function empty() {
  const hint = "No runs in this folder yet. Start one: rove eval tictactoe -m scripted:teacher";
  return el("p", {}, hint);
}

function go(params, changes) {
  location.hash = address("", changed(params, changes));
}

function tools(params, runs, picked, inside) {
  const show = { type: "checkbox", "data-key": "inside", checked: params.get("inside"), on: { change: (event) => go(params, { inside: event.target.checked ? "1" : null }) } };
  const filter = el("input", {
    type: "search",
    value: params.get("q") ?? "",
    "data-key": "filter",
    on: { input: (event) => go(params, { q: event.target.value || null }) },
  });
  const kinds = [...new Set(runs.map((run) => run.kind))];
  const tags = tagsOf(runs);
  return el(
    "div",
    { class: "tools" },
    el("label", {}, "Filter ", filter),
    el("label", {}, "Kind ", choice("kind", "all kinds", kinds, params)),
    tags.length ? el("label", {}, "Tag ", choice("tag", "any", tags, params)) : null,
    inside ? el("label", {}, el("input", show), counted(inside, "measurement"), " of training runs") : null,
    picked.length ? compareLinks(runs, picked, params) : el("span", { class: "note" }, "select runs to compare them"),
  );
}

function choice(name, all, values, params) {
  const options = values.map((value) => el("option", { value, selected: value === params.get(name) }, name === "kind" ? (KINDS[value] ?? value) : value));
  return el("select", { "data-key": name, on: { change: (event) => go(params, { [name]: event.target.value || null }) } }, el("option", { value: "" }, all), options);
}

function tagsOf(runs) {
  return [...new Set(runs.flatMap((run) => run.tags ?? []))].sort();
}

/** Tags for all picked runs at once. */
function tagging(runs, picked, draw) {
  const there = tagsOf(runs.filter((run) => picked.includes(run.name)));
  const change = async (wish) => {
    try {
      for (const run of picked) await send("annotate", { run, ...wish });
      await draw();
    } catch (error) {
      alert.textContent = error.message;
    }
  };
  const alert = el("span", { class: "bad", role: "alert" });
  const chip = (tag) => el("button", { type: "button", class: "chip", "data-key": `untag ${tag}`, "aria-label": `remove the tag ${tag}`, on: { click: () => change({ remove: [tag] }) } }, tag, " ×");
  const field = tagForm(tagsOf(runs), (tag) => change({ add: [tag] }), "Tag selected runs", typed, (text) => (typed = text));
  return el("div", { class: "tools" }, field, there.map(chip), alert);
}

function compareLinks(runs, picked, params) {
  const chosen = picked.map((name) => runs.find((run) => run.name === name));
  const trained = chosen.filter((run) => run.kind === "rl" || run.kind === "sft").map((run) => run.name);
  const scored = chosen.filter((run) => run.rollouts || run.kind === "rl").map((run) => run.name);
  const nothing = () => go(params, { pick: null });
  return el(
    "span",
    { class: "picked" },
    `${picked.length} picked`,
    scored.length > 1 && el("a", { class: "button", href: address("compare", { a: scored[0], b: scored.slice(1) }) }, "Compare"),
    trained.length > 1 && el("a", { class: "button", href: address("training", { run: trained }) }, "Overlay"),
    el("button", { type: "button", "data-key": "nothing", on: { click: nothing } }, "Clear selection"),
  );
}

function list(runs, params, picked) {
  const head = [el("th", { scope: "col" }, el("span", { class: "unseen" }, "pick")), ...Object.keys(SORTS).map((name) => heading(name, params))];
  head.splice(-1, 0, el("th", { scope: "col" }, "curve"), el("th", { scope: "col" }, "rollouts"));
  return table(head, runs.map((run) => row(run, params, picked)), "runs");
}

function heading(name, params) {
  const current = (params.get("sort") ?? "changed") === name;
  const up = params.get("order") === "up";
  const press = () => go(params, { sort: name, order: current && !up ? "up" : null });
  return el(
    "th",
    { scope: "col", "aria-sort": current ? (up ? "ascending" : "descending") : null },
    el("button", { type: "button", class: "sort", "data-key": `sort ${name}`, on: { click: press } }, name, current ? (up ? " ▲" : " ▼") : ""),
  );
}

function row(run, params, picked) {
  const training = run.kind === "rl" || run.kind === "sft";
  const target = run.kind === "unreadable" ? null : address(training ? "training" : "rollouts", { run: run.name });
  const others = picked.filter((name) => name !== run.name);
  const pick = (event) => go(params, { pick: event.target.checked ? [...picked, run.name] : others });
  const box = { type: "checkbox", "aria-label": `pick ${run.name}`, "data-key": `pick ${run.name}`, on: { change: pick } };
  return el(
    "tr",
    {},
    cell("pick", el("input", { ...box, checked: picked.includes(run.name) })),
    cell("name", target ? el("a", { href: target }, run.name) : run.name, tagList(run.tags), run.trouble && el("p", { class: "bad" }, run.trouble)),
    cell("kind", KINDS[run.kind] ?? run.kind),
    cell("status", el("span", { class: `status ${run.status}`, title: run.why || null }, run.status), run.why && el("p", { class: "note why" }, run.why.split("\n")[0])),
    cell("environment", run.env || NONE),
    cell("model", run.model || NONE),
    cell("reward", reward(run)),
    cell("curve", run.curve ? sparkline(run.curve, run.measure) : sparkbars(run.bars, `distribution of the reward in ${run.name}`)),
    cell("rollouts", size(run)),
    cell("changed", ago(run.changed)),
  );
}

function reward(run) {
  const held = Object.entries(run.held_out ?? {}).map(([name, value]) =>
    el("div", { class: "note" }, `${name.split("/")[1]} ${number(value)}`),
  );
  if (run.measure === "loss") return run.reward?.mean === null ? NONE : ["loss ", number(run.reward?.mean), held];
  return [interval(run.reward), held];
}

function size(run) {
  if (run.measure !== "reward") return run.steps === undefined ? NONE : `${number(run.steps)}${run.planned ? ` of ${number(run.planned)}` : ""} steps`;
  const failed = run.failed ? el("div", { class: "bad" }, `${number(run.failed)} failed`) : null;
  const bad = run.bad ? el("div", { class: "bad" }, counted(run.bad, "unreadable line")) : null;
  return [number(run.rollouts ?? 0), run.reading ? " so far" : "", failed, bad];
}
