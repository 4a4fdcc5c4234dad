// The table of runs, and the matrix of models and environments.
import { choice, el, grid, replace, say, sortable, table } from "./dom.js";
import { tagForm, tagList, untag } from "./annotate.js";
import { address, ask, changed, here, send } from "./api.js";
import { rewardPill, sparkbars, sparkline } from "./charts.js";
import { NONE, ago, counted, limits, number, plain, range, signed } from "./format.js";
import { every } from "./live.js";
import { statusPill } from "./overview.js";

const KINDS = { eval: "evaluation", rl: "RL", sft: "SFT", train: "rove train" };
const READS = 50;
const PERIOD = 4000;
const GROUPS = { env: "environment", model: "model", kind: "kind" };

export async function runsPage(main, params, signal) {
  const wanted = changed(params, { measurements: params.get("inside") ? "1" : "0", sort: params.get("sort") ?? "changed", pick: null });
  const draw = async () => {
    const found = await ask("runs", wanted, signal);
    if (!signal.aborted) replace(main, shown({ ...found, draw }, params));
    return found.runs;
  };
  let runs = await draw();
  for (let i = 0; i < READS && !signal.aborted && runs.some((run) => run.reading); i += 1) runs = await draw();
  every(PERIOD, draw, signal);
}

const go = (params, changes) => (location.hash = address("", changed(params, changes)));

function shown(found, params) {
  const picked = params.getAll("pick").filter((name) => found.runs.some((run) => run.name === name));
  const view = (name, words) => el("a", { href: address("", changed(params, { view: name })), "aria-current": params.get("view") === name ? "page" : null }, words);
  return [
    el("div", { class: "title" }, el("h1", {}, `Runs in ${found.folder}`), el("span", { class: "note" }, `${found.runs.length} of ${found.total}`), el("nav", { class: "tabs", "aria-label": "Views" }, view(null, "Table"), view("matrix", "Models × environments"))),
    tools(params, found, picked),
    found.annotate && picked.length > 0 && tagging(found, picked),
    !found.total ? el("p", {}, "No runs in this folder yet. Start one: rove eval tictactoe -m scripted:teacher") : found.matrix ? matrix(found.matrix, found.ranges) : list(found, params, picked),
  ];
}

function tools(params, { runs, columns, kinds, tags, measurements }, picked) {
  const show = { type: "checkbox", "data-key": "inside", checked: Boolean(params.get("inside")), on: { change: (event) => go(params, { inside: event.target.checked ? "1" : null }) } };
  const filter = { type: "search", value: params.get("q") ?? "", "data-key": "filter", placeholder: "word, or name=value", on: { input: (event) => go(params, { q: event.target.value || null }) } };
  const select = (label, name, all, values) => choice(label, name, [["", all], ...values], params.get(name) ?? "", (value) => go(params, { [name]: value || null }));
  const added = params.getAll("column");
  const free = columns.filter((name) => !added.includes(name)).map((name) => [name, name.replace(".", ": ")]);
  return el("div", { class: "tools" },
    el("label", {}, "Filter ", el("input", filter)),
    select("Kind", "kind", "all kinds", kinds.map((kind) => [kind, KINDS[kind] ?? kind])),
    tags.length > 0 && select("Tag", "tag", "any", tags.map((tag) => [tag, tag])),
    select("Group by", "group", "nothing", Object.entries(GROUPS)),
    choice("Column", `column ${added.length}`, [["", "add …"], ...free], "", (name) => name && go(params, { column: [...added, name] })),
    added.map((name) => el("button", { type: "button", class: "chip", "aria-label": `remove the column ${name}`, on: { click: () => go(params, { column: added.filter((one) => one !== name) }) } }, name, " ×")),
    select("Baseline", "base", "none", runs.filter((run) => Number.isFinite(run.reward?.mean)).map((run) => [run.name, run.name])),
    measurements > 0 && el("label", {}, el("input", show), counted(measurements, "run"), " inside training runs"),
    picked.length ? compareLinks(runs, picked, params) : el("span", { class: "note" }, "select runs to compare them"));
}

/** Tags for all picked runs at once. */
function tagging({ runs, tags, draw }, picked) {
  const change = async (wish) => {
    try {
      for (const run of picked) await send("annotate", { run, ...wish });
      await draw();
    } catch (error) {
      say(error.message);
      document.getElementById("trouble").textContent = error.message;
    }
  };
  const theirs = [...new Set(runs.filter((run) => picked.includes(run.name)).flatMap((run) => run.tags ?? []))].sort();
  return el("div", { class: "tools" }, tagForm(tags, (tag) => change({ add: [tag] }), "Tag selected runs"), theirs.map((tag) => untag(tag, () => change({ remove: [tag] }))), el("span", { class: "bad", id: "trouble", role: "alert" }));
}

function compareLinks(runs, picked, params) {
  const chosen = picked.map((name) => runs.find((run) => run.name === name));
  const trained = chosen.filter((run) => run.kind === "rl" || run.kind === "sft").map((run) => run.name);
  const scored = chosen.filter((run) => run.rollouts || run.kind === "rl").map((run) => run.name);
  return el("span", { class: "picked" }, `${picked.length} picked`,
    scored.length > 1 && el("a", { class: "button", href: address("compare", { a: scored[0], b: scored.slice(1) }) }, "Compare"),
    trained.length > 1 && el("a", { class: "button", href: address("training", { run: trained }) }, "Overlay"),
    el("button", { type: "button", "data-key": "nothing", on: { click: () => go(params, { pick: null }) } }, "Clear selection"));
}

function list({ runs, ranges }, params, picked) {
  const up = params.get("order") === "up";
  const head = (name, title = name) => {
    const current = (params.get("sort") ?? "changed") === name;
    return sortable(title, name, current ? (up ? "up" : "down") : "", () => go(params, { sort: name, order: current && !up ? "up" : null }));
  };
  const sorted = (name, draw, title) => [title ?? name, draw, head(name, title)];
  const value = (found) => (typeof found === "number" ? number(found) : (found ?? NONE));
  const columns = [
    ["pick", (run) => pickBox(run, params, picked), el("th", { scope: "col" }, el("span", { class: "unseen" }, "pick"))],
    sorted("name", (run) => [run.kind === "unreadable" ? run.name : el("a", { href: address("run", { run: run.name }) }, run.name), tagList(run.tags), run.trouble && el("p", { class: "bad" }, run.trouble)]),
    sorted("kind", (run) => KINDS[run.kind] ?? run.kind),
    sorted("status", (run) => [statusPill(run), run.why && el("p", { class: "note why" }, run.why.split("\n")[0])]),
    sorted("environment", (run) => run.env || NONE),
    sorted("model", (run) => run.model || NONE),
    sorted("reward", (run) => reward(run, ranges[run.env])),
    params.get("base") && ["difference", (run) => difference(run, params.get("base"), runs.some((each) => each.kind === "train" && [run.name, params.get("base")].includes(each.name)))],
    ["distribution or curve", (run) => small(run, ranges[run.env] ?? [0, 1])],
    ["rollouts", size],
    ...params.getAll("column").map((name) => sorted(name, (run) => value(run.values[name]), plain(name.replace(/^\w+\./, "")))),
    sorted("changed", (run) => ago(run.changed)),
  ];
  const group = params.get("group") in GROUPS ? params.get("group") : null;
  const look = (run) => ({ key: run.name });
  if (!group) return grid(columns, runs, "runs", look);
  return [...new Set(runs.map((run) => String(run[group])))].sort().map((key) => [el("h2", {}, `${GROUPS[group]}: ${key}`), grid(columns, runs.filter((run) => String(run[group]) === key), "runs", look)]);
}

function pickBox(run, params, picked) {
  const pick = (event) => {
    const others = here().params.getAll("pick").filter((name) => name !== run.name); // a second click may come before the page is drawn
    go(params, { pick: event.target.checked ? [...others, run.name] : others });
  };
  return el("input", { type: "checkbox", "aria-label": `pick ${run.name}`, "data-key": `pick ${run.name}`, checked: picked.includes(run.name), on: { change: pick } });
}

function reward(run, scale) {
  const held = Object.entries(run.held_out ?? {}).map(([name, value]) => el("div", { class: "note" }, `${name.split("/")[1]} ${number(value)}`));
  if (!Number.isFinite(run.reward?.mean)) return NONE;
  if (run.measure === "loss") return ["loss ", number(run.reward.mean), held];
  return [rewardPill(run.reward.mean, scale ?? [0, 1], run.reward.mean.toFixed(3)), " ", limits(run.reward) ? el("span", { class: "note" }, range(run.reward)) : null, held];
}

/** The difference of a run's mean reward to the baseline's, unpaired; the link compares example by example, except for stages. */
function difference({ name, difference: found }, base, hasStages) {
  if (name === base || !found) return name === base ? "baseline" : NONE;
  return el(hasStages ? "span" : "a", hasStages ? {} : { href: address("compare", { a: base, b: name }) }, `${signed(found.mean)}${limits(found) ? ` ${range(found)}` : ""}`);
}

function small(run, scale) {
  if (run.curve) return sparkline(run.curve, run.measure, run.measure === "loss" ? null : scale);
  return sparkbars(run.bars, `distribution of the reward in ${run.name}, from ${number(scale[0])} to ${number(scale[1])}`, scale);
}

function size(run) {
  if (run.kind === "train") return counted(run.stages, "stage");
  if (run.measure !== "reward") return run.steps === undefined ? NONE : `${number(run.steps)}${run.planned ? ` of ${number(run.planned)}` : ""} steps`;
  const failed = run.failed ? el("div", { class: "bad" }, `${number(run.failed)} failed`) : null;
  const bad = run.bad ? el("div", { class: "bad" }, counted(run.bad, "unreadable line")) : null;
  return [number(run.rollouts ?? 0), run.reading ? " so far" : "", failed, bad];
}

/** The latest evaluation of each model in each environment, with its interval. */
function matrix({ models, envs, cells }, ranges) {
  if (!models.length) return el("p", {}, "No evaluation outside of training runs has a reward yet.");
  const square = (found, env) => found && el("td", {}, el("a", { href: address("run", { run: found.name }) }, rewardPill(found.reward.mean, ranges[env] ?? [0, 1], found.reward.mean.toFixed(3))), el("div", { class: "note" }, range(found.reward)), found.runs > 1 && el("div", { class: "note" }, `latest of ${found.runs}`));
  const rows = models.map((model, i) => el("tr", {}, el("th", { scope: "row" }, model), envs.map((env, j) => square(cells[i][j], env) ?? el("td", {}, NONE))));
  return [el("p", { class: "note" }, "Mean reward with its 95% interval, colored on the range of each environment."), table(["model", ...envs], rows, "plain matrix")];
}
