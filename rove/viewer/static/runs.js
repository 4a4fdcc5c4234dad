// The table of runs, and the matrix of models and environments.

import { cell, choice, el, replace, say, sortable, table } from "./dom.js";
import { tagForm, tagList, untag } from "./annotate.js";
import { address, ask, changed, here, send } from "./api.js";
import { rewardPill, sparkbars, sparkline } from "./charts.js";
import { NONE, ago, counted, interval, limits, number, plain, range, signed } from "./format.js";
import { every } from "./live.js";
import { statusPill } from "./overview.js";

const KINDS = { eval: "evaluation", rl: "RL", sft: "SFT" };
const READS = 50;
const PERIOD = 4000;
const MEASURED = /\/evaluations\//;
const GROUPS = { env: "environment", model: "model", kind: "kind" };
const SORTS = {
  name: (run) => run.name,
  kind: (run) => run.kind,
  status: (run) => run.status,
  environment: (run) => run.env ?? "",
  model: (run) => run.model ?? "",
  reward: (run) => run.reward?.mean ?? -Infinity,
  changed: (run) => run.changed,
};

export async function runsPage(main, params, signal) {
  const asked = [...params.getAll("column"), ...conditions(params.get("q")).flatMap(([name]) => [name, `setting.${name}`, `metric.${name}`])];
  const draw = async () => {
    const found = await ask("runs", { column: asked }, signal);
    if (!signal.aborted) replace(main, shown({ ...found, draw }, params));
    return found.runs;
  };
  let runs = await draw();
  for (let i = 0; i < READS && !signal.aborted && runs.some((run) => run.reading); i += 1) runs = await draw();
  every(PERIOD, draw, signal);
}

/** The conditions of a filter such as "stones learning_rate=0.001": pairs of name and value, "" for a word. */
function conditions(text) {
  return (text ?? "").toLowerCase().split(/\s+/).filter((word) => word).map((word) => (/^[^=]+=/.test(word) ? [word.slice(0, word.indexOf("=")), word.slice(word.indexOf("=") + 1)] : ["", word]));
}

function matches(run, text) {
  const all = `${run.name} ${run.env} ${run.model} ${run.status} ${(run.tags ?? []).join(" ")}`.toLowerCase();
  return conditions(text).every(([name, value]) => {
    const seen = run[name] ?? run.values?.[name] ?? run.values?.[`setting.${name}`] ?? run.values?.[`metric.${name}`];
    return name ? String(seen ?? "").toLowerCase() === value : all.includes(value);
  });
}

function shown(found, params) {
  const { folder, runs, annotate, draw } = found;
  const kind = params.get("kind") ?? "";
  const tag = params.get("tag") ?? "";
  const inside = runs.filter((run) => MEASURED.test(run.name));
  const listed = runs
    .filter((run) => params.get("inside") || !MEASURED.test(run.name))
    .filter((run) => (!kind || run.kind === kind) && (!tag || run.tags?.includes(tag)) && matches(run, params.get("q")));
  const named = params.get("sort") ?? "changed";
  const sort = SORTS[named] ?? ((run) => run.values?.[named] ?? -Infinity);
  const sign = params.get("order") === "up" ? 1 : -1;
  listed.sort((a, b) => sign * (sort(a) < sort(b) ? -1 : sort(a) > sort(b) ? 1 : 0));
  const picked = params.getAll("pick").filter((name) => runs.some((run) => run.name === name));
  const ranges = rangesOf(runs);
  return [
    el("div", { class: "title" }, el("h1", {}, `Runs in ${folder}`), el("span", { class: "note" }, `${listed.length} of ${runs.length}`), views(params)),
    tools(params, found, picked, inside.length),
    annotate && picked.length > 0 && tagging(runs, picked, draw),
    !runs.length ? el("p", {}, "No runs in this folder yet. Start one: rove eval tictactoe -m scripted:teacher") : params.get("view") === "matrix" ? matrix(listed, ranges) : list(listed, params, picked, ranges, runs.find((run) => run.name === params.get("base"))),
  ];
}

/** The range of rewards of each environment, over all its runs. */
function rangesOf(runs) {
  const ranges = {};
  for (const { env, range } of runs) if (range) ranges[env] = ranges[env] ? [Math.min(range[0], ranges[env][0]), Math.max(range[1], ranges[env][1])] : range;
  return ranges;
}

function go(params, changes) {
  location.hash = address("", changed(params, changes));
}

function views(params) {
  const link = (view, words) => el("a", { href: address("", changed(params, { view })), "aria-current": (params.get("view") ?? null) === view ? "page" : null }, words);
  return el("nav", { class: "tabs", "aria-label": "Views" }, link(null, "Table"), link("matrix", "Models × environments"));
}

function tools(params, { runs, columns }, picked, inside) {
  const show = { type: "checkbox", "data-key": "inside", checked: Boolean(params.get("inside")), on: { change: (event) => go(params, { inside: event.target.checked ? "1" : null }) } };
  const filter = { type: "search", value: params.get("q") ?? "", "data-key": "filter", placeholder: "word, or name=value", on: { input: (event) => go(params, { q: event.target.value || null }) } };
  const tags = tagsOf(runs);
  const select = (label, name, all, values) => choice(label, name, [["", all], ...values], params.get(name) ?? "", (value) => go(params, { [name]: value || null }));
  const added = params.getAll("column");
  const free = columns.filter((name) => !added.includes(name)).map((name) => [name, name.replace(".", ": ")]);
  return el("div", { class: "tools" },
    el("label", {}, "Filter ", el("input", filter)),
    select("Kind", "kind", "all kinds", [...new Set(runs.map((run) => run.kind))].map((kind) => [kind, KINDS[kind] ?? kind])),
    tags.length > 0 && select("Tag", "tag", "any", tags.map((tag) => [tag, tag])),
    select("Group by", "group", "nothing", Object.entries(GROUPS)),
    choice("Column", `column ${added.length}`, [["", "add …"], ...free], "", (name) => name && go(params, { column: [...added, name] })),
    added.map((name) => el("button", { type: "button", class: "chip", "aria-label": `remove the column ${name}`, on: { click: () => go(params, { column: added.filter((one) => one !== name) }) } }, name, " ×")),
    select("Baseline", "base", "none", runs.filter((run) => Number.isFinite(run.reward?.mean)).map((run) => [run.name, run.name])),
    inside > 0 && el("label", {}, el("input", show), counted(inside, "measurement"), " of training runs"),
    picked.length ? compareLinks(runs, picked, params) : el("span", { class: "note" }, "select runs to compare them"));
}

function tagsOf(runs) {
  return [...new Set(runs.flatMap((run) => run.tags ?? []))].sort();
}

/** Tags for all picked runs at once. */
function tagging(runs, picked, draw) {
  const change = async (wish) => {
    try {
      for (const run of picked) await send("annotate", { run, ...wish });
      await draw();
    } catch (error) {
      say(error.message);
      document.getElementById("trouble").textContent = error.message;
    }
  };
  const tags = tagsOf(runs.filter((run) => picked.includes(run.name)));
  return el("div", { class: "tools" }, tagForm(tagsOf(runs), (tag) => change({ add: [tag] }), "Tag selected runs"), tags.map((tag) => untag(tag, () => change({ remove: [tag] }))), el("span", { class: "bad", id: "trouble", role: "alert" }));
}

function compareLinks(runs, picked, params) {
  const chosen = picked.map((name) => runs.find((run) => run.name === name));
  const trained = chosen.filter((run) => run.kind === "rl" || run.kind === "sft").map((run) => run.name);
  const scored = chosen.filter((run) => run.rollouts || run.kind === "rl").map((run) => run.name);
  return el("span", { class: "picked" },
    `${picked.length} picked`,
    scored.length > 1 && el("a", { class: "button", href: address("compare", { a: scored[0], b: scored.slice(1) }) }, "Compare"),
    trained.length > 1 && el("a", { class: "button", href: address("training", { run: trained }) }, "Overlay"),
    el("button", { type: "button", "data-key": "nothing", on: { click: () => go(params, { pick: null }) } }, "Clear selection"));
}

function list(runs, params, picked, ranges, base) {
  const added = params.getAll("column");
  const names = Object.keys(SORTS);
  const titles = [...names.slice(0, -1).map((name) => [name, name]), ...added.map((name) => [name, plain(name.replace(/^\w+\./, ""))]), ["changed", "changed"]];
  const head = titles.map(([name, title]) => heading(name, title, params));
  head.splice(6, 0, base && el("th", { scope: "col" }, "difference"), el("th", { scope: "col" }, "distribution or curve"), el("th", { scope: "col" }, "rollouts"));
  const draw = (run) => row(run, params, picked, ranges[run.env] ?? [0, 1], added, base);
  const group = params.get("group") in GROUPS ? params.get("group") : null;
  const keys = group ? [...new Set(runs.map((run) => String(run[group])))].sort() : [];
  const rows = group ? keys.flatMap((key) => [el("tr", { class: "grouped" }, el("th", { colspan: head.length + 1, scope: "rowgroup" }, `${GROUPS[group]}: ${key}`)), runs.filter((run) => String(run[group]) === key).map(draw)]) : runs.map(draw);
  return table([el("th", { scope: "col" }, el("span", { class: "unseen" }, "pick")), ...head.filter((one) => one)], rows, "runs");
}

function heading(name, title, params) {
  const up = params.get("order") === "up";
  const current = (params.get("sort") ?? "changed") === name;
  return sortable(title, name, current ? (up ? "up" : "down") : "", () => go(params, { sort: name, order: current && !up ? "up" : null }));
}

function row(run, params, picked, scale, added, base) {
  const target = run.kind === "unreadable" ? null : address("run", { run: run.name });
  const pick = (event) => {
    const others = here().params.getAll("pick").filter((name) => name !== run.name); // a second click may come before the page is drawn
    go(params, { pick: event.target.checked ? [...others, run.name] : others });
  };
  const box = { type: "checkbox", "aria-label": `pick ${run.name}`, "data-key": `pick ${run.name}`, checked: picked.includes(run.name), on: { change: pick } };
  const shownValue = (value) => (typeof value === "number" ? number(value) : (value ?? NONE));
  return el("tr", { key: run.name },
    cell("pick", el("input", box)),
    cell("name", target ? el("a", { href: target }, run.name) : run.name, tagList(run.tags), run.trouble && el("p", { class: "bad" }, run.trouble)),
    cell("kind", KINDS[run.kind] ?? run.kind),
    cell("status", statusPill(run), run.why && el("p", { class: "note why" }, run.why.split("\n")[0])),
    cell("environment", run.env || NONE),
    cell("model", run.model || NONE),
    cell("reward", reward(run, scale)),
    base && cell("difference", difference(run, base)),
    cell("curve", run.curve ? sparkline(run.curve, run.measure, run.measure === "loss" ? null : scale) : sparkbars(run.bars, `distribution of the reward in ${run.name}, from ${number(scale[0])} to ${number(scale[1])}`, scale)),
    cell("rollouts", size(run)),
    added.map((name) => cell(plain(name.replace(/^\w+\./, "")), shownValue(run.values?.[name]))),
    cell("changed", ago(run.changed)));
}

function reward(run, scale) {
  const held = Object.entries(run.held_out ?? {}).map(([name, value]) => el("div", { class: "note" }, `${name.split("/")[1]} ${number(value)}`));
  if (run.measure === "loss") return run.reward?.mean === null ? NONE : ["loss ", number(run.reward?.mean), held];
  if (!Number.isFinite(run.reward?.mean)) return NONE;
  return [rewardPill(run.reward.mean, scale, run.reward.mean.toFixed(3)), " ", limits(run.reward) ? el("span", { class: "note" }, range(run.reward)) : null, held];
}

/** The difference of a run's mean reward to the baseline's, unpaired; the link compares example by example. */
function difference(run, base) {
  if (run.name === base.name) return "baseline";
  if (run.env !== base.env || run.measure === "loss" || !Number.isFinite(run.reward?.mean)) return NONE;
  const [mine, its] = [limits(run.reward), limits(base.reward)];
  const [gap, x, y] = [run.reward.mean - base.reward.mean, run.reward.mean, base.reward.mean];
  const low = mine && its && gap - Math.hypot(x - mine[0], its[1] - y);
  const high = mine && its && gap + Math.hypot(mine[1] - x, y - its[0]);
  return el("a", { href: address("compare", { a: base.name, b: run.name }) }, `${signed(gap)}${mine && its ? ` [${low.toFixed(3)}, ${high.toFixed(3)}]` : ""}`);
}

function size(run) {
  if (run.measure !== "reward") return run.steps === undefined ? NONE : `${number(run.steps)}${run.planned ? ` of ${number(run.planned)}` : ""} steps`;
  const failed = run.failed ? el("div", { class: "bad" }, `${number(run.failed)} failed`) : null;
  const bad = run.bad ? el("div", { class: "bad" }, counted(run.bad, "unreadable line")) : null;
  return [number(run.rollouts ?? 0), run.reading ? " so far" : "", failed, bad];
}

/** The latest evaluation of each model in each environment, with its interval. */
function matrix(runs, ranges) {
  const scored = runs.filter((run) => run.kind === "eval" && Number.isFinite(run.reward?.mean)).sort((a, b) => a.changed - b.changed);
  const [models, envs] = ["model", "env"].map((key) => [...new Set(scored.map((run) => run[key]))].sort());
  if (!scored.length) return el("p", {}, "No evaluation has a reward yet.");
  const square = (model, env) => {
    const found = scored.filter((run) => run.model === model && run.env === env);
    const run = found.at(-1);
    if (!run) return cell(env, NONE);
    const more = found.length > 1 ? el("div", { class: "note" }, `latest of ${found.length}`) : null;
    return cell(env, el("a", { href: address("run", { run: run.name }), title: interval(run.reward) }, rewardPill(run.reward.mean, ranges[env] ?? [0, 1], run.reward.mean.toFixed(3))), el("div", { class: "note" }, range(run.reward)), more);
  };
  const rows = models.map((model) => el("tr", {}, el("th", { scope: "row" }, model), envs.map((env) => square(model, env))));
  return [el("p", { class: "note" }, "Mean reward with its 95 % interval, colored on the range of each environment."), table(["model", ...envs], rows, "matrix")];
}
