// The first page of a run: results, verdict, reasons to stop, settings, files. Its parts are also those of a report.
import { choice, el, grid, replace } from "./dom.js";
import { tagList } from "./annotate.js";
import { address, ask, changed } from "./api.js";
import { NONE, bytes, counted, number, plain } from "./format.js";
import { every, whole } from "./live.js";
import { cards, values, verdict } from "./results.js";
import { answersView, copied, stagesView } from "./stages.js";

const PERIOD = 5000;
const SLOW = 400;
export const OUTCOMES = { passed: "passed", below: "below the threshold", failed: "failed (error)" };

/** The title of a run with its status, and the tabs of its pages. */
export function runHead(about, tab, ...more) {
  const training = about.kind === "rl" || about.kind === "sft";
  const tabs = { run: "Overview", rollouts: "Rollouts", ...(training ? { training: "Training" } : {}), settings: "Settings" };
  const link = ([page, title]) => el("a", { href: address(page, { run: about.name }), "data-key": `page ${page}`, "aria-current": page === tab ? "page" : null }, title);
  return [
    el("div", { class: "title" },
      el("h1", {}, about.name),
      statusPill(about),
      !["rl", "sft"].includes(about.kind) && partOf(about),
      el("span", { class: "note" }, [about.env, about.model].filter((text) => text).join(" · ")),
      tagList(about.tags), more,
      !["sft", "train"].includes(about.kind) && el("a", { class: "button", href: address("compare", { a: about.name }) }, "Compare with …")),
    about.kind !== "train" && el("nav", { class: "tabs", "aria-label": "Pages of this run" }, Object.entries(tabs).map(link)),
    about.training && ["rl", "sft"].includes(about.kind) && el("p", { class: "note" }, "The numbers below are measurements during this stage. To compare the models on the same examples, see ", partOf(about), "."),
    about.trouble && el("p", { class: "bad" }, about.trouble),
    about.why && el("p", { class: "why" }, `Stopped: ${about.why}`),
  ];
}

/** A link to the `rove train` run that a run is a part of. */
export const partOf = ({ training }) => training && el("a", { href: address("run", { run: training }) }, `Training ${training}`);

/** The status of a run; one whose rollouts failed is not just "complete". */
export function statusPill(run) {
  const failed = run.failed && run.status === "complete";
  const all = failed && run.failed === run.rollouts;
  const words = all ? "failed" : failed ? `complete, ${number(run.failed)} failed` : run.status;
  return el("span", { class: `status ${all ? "stopped" : failed ? "partly" : run.status}`, title: run.why || null }, words);
}

/** How much of a run has been read, until all is. */
export const reading = ({ done, bytes: read, size }) => !done && el("p", { class: "note", role: "status" }, `reading the run: ${bytes(read)} of ${bytes(size)}; until then, the numbers are those of the part that was read`);

export async function runPage(main, params, signal, tab = "run") {
  const run = params.get("run");
  let start = 0;
  const draw = async () => {
    start = Date.now();
    const about = await ask("run", { run }, signal);
    if (about.kind === "train") return stagesPage(main, about, signal);
    const found = await ask("overview", { run }, signal);
    const failed = Object.fromEntries(found.outcomes)?.failed ?? 0;
    const total = found.outcomes.reduce((sum, [, count]) => sum + count, 0);
    const others = tab === "settings" ? (await ask("runs", {}, signal)).runs : [];
    const other = params.get("with");
    const apart = other && tab === "settings" ? await ask("settings", { run: [run, other] }, signal) : null;
    if (!signal.aborted) replace(main, runHead({ ...about, failed, rollouts: total }, tab), tab === "settings" ? settingsTab(found, others, params, apart) : overviewTab(about, found));
    return { about, progress: found.progress };
  };
  const { about } = await whole(draw, () => {}, signal);
  if (about.status === "running" && Date.now() - start < SLOW) every(PERIOD, draw, signal);
}

/** The page of a `rove train` run. */
async function stagesPage(main, about, signal) {
  const run = about.name;
  const target = (name, { line, step, below } = {}) => {
    const part = `${run}/${name}`;
    if (below !== undefined) return address("rollouts", { run: part, "to.reward": below, sort: "reward" });
    if (line !== undefined) return address("rollout", { run: part, line });
    return step === undefined ? address("run", { run: part }) : address("training", { run: part, step });
  };
  const draw = async () => {
    const [state, found] = await Promise.all([ask("run", { run }, signal), ask("stages", { run }, signal)]);
    if (signal.aborted) return;
    replace(main, runHead(state, "run"), answersView(found.answers, target),
      found.values.length > 0 && [el("h2", {}, "Results"), values(found)],
      stagesView(found, target),
      found.recipe && el("details", {}, el("summary", {}, "Recipe: all settings"), el("pre", { tabindex: 0 }, found.recipe)));
  };
  await draw();
  if (about.status === "running") every(PERIOD, draw, signal);
  return { about: { status: "drawn" } };
}

export const settingsPage = (main, params, signal) => runPage(main, params, signal, "settings");

function overviewTab(about, found) {
  const where = (name, value) => address("rollouts", { run: about.name, [`is.${name}`]: value });
  const counts = Object.keys(OUTCOMES).flatMap((name) => found.outcomes.filter(([value]) => value === name));
  return [
    reading(found.progress),
    verdict(found.verdict),
    cards(found.cards),
    el("div", { class: "panes" },
      el("section", { "aria-label": "Results" },
        found.values.length > 0 && [el("h2", {}, "Results"), values(found)],
        found.limit && el("p", { class: "note" }, found.limit)),
      el("section", { "aria-label": "Rollouts" },
        counts.length > 0 && [el("h2", {}, "Outcomes"), shares(counts.map(([name, count]) => [`${OUTCOMES[name]}${name === "below" ? ` of ${number(found.threshold)}` : ""}`, count, where("outcome", name), name])),
          counts.some(([name]) => name !== "passed") && el("p", {}, el("a", { class: "button", href: address("rollouts", { run: about.name, sort: "reward", why: "1" }) }, "Why did these fail?"))],
        bars("Stop reasons", found.stops, (name) => where("stop", name === "none" ? "" : name), plain),
        bars("Errors", found.errors, (name) => where("error", name)))),
    el("h2", {}, "Settings"),
    settingsTable(found.settings.filter((row) => row.changed)),
    el("p", {}, el("a", { href: address("settings", { run: about.name }) }, `All ${counted(found.settings.length, "setting")}, and the difference to another run`)),
    repeated(found.repeat),
    el("h2", {}, "Environment and files"),
    el("p", {}, found.env_version ? ["Environment ", el("code", {}, found.env_version), ", "] : null, `last written ${found.when}, `, Object.entries(found.versions).map(([name, version]) => `${name} ${version}`).join(", ")),
    grid([["file", ([name]) => el("code", {}, name)], ["size", ([name, size]) => (name.endsWith("/") ? "folder" : bytes(size))]], found.files, "plain narrowly"),
  ];
}

function bars(title, counts, target, word = (name) => name) {
  const rows = Object.entries(counts ?? {}).filter(([, count]) => Number.isFinite(count)).sort((a, b) => b[1] - a[1]);
  return rows.length > 0 && [el("h2", {}, title), shares(rows.map(([name, count]) => [word(name), count, target(name), ""]))];
}

/** Counts as bars of their share; rows of [text, count, address, look]. */
export function shares(rows) {
  const total = rows.reduce((sum, [, count]) => sum + count, 0) || 1;
  return el("ul", { class: "shares" }, rows.map(([text, count, href, look]) =>
    el("li", {}, el("a", { href }, text), el("span", { class: "track", "aria-hidden": "true" }, el("span", { class: `part ${look}`, "width%": (count / total) * 100 })), el("span", { class: "count" }, `${number(count)} · ${Math.round((count / total) * 100)}%`))));
}

/** The command that repeats a run, with a button that copies it. */
const repeated = (command) => el("p", { class: "repeat" }, "Repeat: ", copied(command));

function settingsTable(rows) {
  if (!rows.length) return el("p", { class: "note" }, "All settings have their defaults.");
  return grid([["setting", (row) => el("code", {}, row.name)], ["value", (row) => row.value], ["default", (row) => row.default || NONE]], rows, "plain narrowly", (row) => ({ class: row.changed ? "changed" : null }));
}

function settingsTab(found, others, params, apart) {
  const go = (value) => (location.hash = address("settings", changed(params, { with: value || null })));
  return [
    el("div", { class: "tools" }, choice("Difference to", "with", [["", "…"], ...others.map((run) => [run.name, run.name])], params.get("with") ?? "", go)),
    apart && settingsDifference(apart),
    el("h2", {}, "Settings"),
    el("p", { class: "note" }, "Settings that differ from their defaults come first."),
    settingsTable(found.settings),
    repeated(found.repeat),
  ];
}

/** The settings in which runs differ, an answer of /api/settings. */
export function settingsDifference({ runs, rows }) {
  if (!rows.length) return el("p", {}, "The settings of these runs are equal.");
  return grid([["setting", (row) => el("code", {}, row.name)], ...runs.map((name, i) => [name, (row) => row.values[i] ?? NONE])], rows, "plain narrowly differing");
}
