// Curves of training, on its page and in a report.

import { el } from "./dom.js";
import { curves, histogram } from "./charts.js";
import { counted, number } from "./format.js";

export const COLOURS = 8;
/** Steps whose groups are drawn. */
export const LAST = 10;
const POINTS = 500;

const held = (name) => /^eval\/.+\/reward\/mean$/.test(name);

/** What is drawn together: a title, and which metrics. Titles are unique. */
const PANELS = [
  { title: "reward", metric: (name) => name === "reward/mean", spread: true },
  { title: "held-out reward", metric: held, label: (name) => name.split("/")[1], marks: true },
  { title: "loss", metric: (name) => name === "loss" || name === "validation_loss" },
  { title: "reward functions", metric: (name) => /^reward\/(?!mean)/.test(name), label: (name) => name.slice(7) },
  { title: "groups without spread", derive: (row) => ratio(row["groups/zero_spread"], row["groups/all"]), share: true },
  { title: "entropy (nats per token)", metric: (name) => name === "entropy/all/mean" },
  { title: "KL between sampler and trainer", metric: (name) => name === "mismatch_kl/all/mean" || name === "kl/mean" || name === "reference_kl/mean" },
  { title: "ratio to the sampler", metric: (name) => name === "ratio/mean" || name === "ratio/max" },
  { title: "gradient norm", metric: (name) => name === "optim/grad_norm" },
  { title: "length (tokens per rollout)", metric: (name) => name === "length/mean" },
  { title: "metrics", metric: (name) => /^metrics\//.test(name), label: (name) => name.slice(8) },
  { title: "truncated and failed rollouts", metric: (name) => name === "rollouts/truncated" || name === "rollouts/failed" },
  { title: "staleness (steps)", metric: (name) => /^off_policy\//.test(name) },
  { title: "idle (share of the time)", metric: (name) => /^idle\//.test(name) },
  { title: "groups in queues", metric: (name) => /^queue\//.test(name), label: (name) => name.slice(6).replace("_", " ") },
  { title: "vLLM's probe (nats off)", metric: (name) => name === "sampler/probe_difference" },
  { title: "throughput (trained tokens per second)", derive: (row) => ratio(row.tokens, busy(row)) },
  { title: "seconds per step", metric: (name) => /^time\//.test(name), label: (name) => name.slice(5) },
  { title: "learning rate", metric: (name) => name === "optim/lr" },
];

function ratio(part, whole) {
  return part === undefined || !whole ? undefined : part / whole;
}

function busy(row) {
  return row["time/step"] ?? (row["time/sampling"] ?? 0) + (row["time/training"] ?? 0);
}

/**
 * Everything that is drawn of some runs.
 *
 * @param runs [{ name, colour, rows, steps, groups }]: rows of metrics, and answers of /api/metrics and /api/groups
 * @param pick called with the run and the step of a point that is clicked
 */
export function panels(runs, pick = null) {
  return [PANELS.map((panel) => drawPanel(panel, runs, pick)), runs.map((run) => solveRates(run, runs.length === 1))];
}

/** Alarms in words; `target` is the address of a step's rollouts, where there is one. */
export function alarms(run, target = null) {
  if (!run.alarms.length) return null;
  const step = (alarm) => `step ${number(alarm.step)}`;
  const rows = run.alarms
    .slice(-12)
    .reverse()
    .map((alarm) => el("li", {}, target ? el("a", { href: target(alarm.step) }, step(alarm)) : el("b", {}, step(alarm)), ` ${alarm.text}`));
  return el("section", { class: "alarms" }, el("h2", {}, `Alarms of ${run.name}`), el("ul", {}, rows));
}

function drawPanel(panel, runs, pick) {
  const series = runs.flatMap((run) => seriesOf(panel, run, runs.length > 1));
  if (!series.some((one) => one.points.length > 0)) return null;
  return curves(panel.title, series, pick && ((one, step) => pick(one.run, step)));
}

function seriesOf(panel, run, several) {
  const found = [];
  if (panel.derive) {
    const points = run.rows.map((row) => [row.step, panel.derive(row)]).filter(([, value]) => Number.isFinite(value));
    found.push({ name: panel.title, points });
  } else {
    const names = [...new Set(run.rows.flatMap((row) => Object.keys(row)))].filter(panel.metric).sort();
    for (const name of names) {
      const points = run.rows.filter((row) => Number.isFinite(row[name])).map((row) => [row.step, row[name]]);
      const half = name.replace(/mean$/, "half_width");
      const band = run.rows.filter((row) => panel.marks && Number.isFinite(row[half])).map((row) => [row.step, row[name] - row[half], row[name] + row[half]]);
      found.push({ name: names.length === 1 && !panel.label ? panel.title : (panel.label ?? tail)(name), points, band, marks: panel.marks });
    }
  }
  if (panel.spread && found.length) found[0].band = run.steps.filter((step) => step.mean !== null).map((step) => [step.step, step.mean - step.spread, step.mean + step.spread]);
  const told = (one) => (several ? (found.length > 1 ? `${run.name}: ${one.name}` : run.name) : one.name);
  return found.map((one, i) => ({ ...one, points: thinned(one.points), band: (one.band ?? []).filter((_, at) => at % Math.ceil(one.band.length / POINTS) === 0), run, name: told(one), colour: several ? run.colour : i % COLOURS }));
}

/** A curve of POINTS points at most: each the mean of those it stands for, at the last of their steps. */
export function thinned(points) {
  const size = Math.ceil(points.length / POINTS);
  if (size < 2) return points;
  const parts = Array.from({ length: Math.ceil(points.length / size) }, (_, i) => points.slice(i * size, (i + 1) * size));
  return parts.map((part) => [part.at(-1)[0], part.reduce((sum, point) => sum + point[1], 0) / part.length]);
}

function tail(name) {
  return name.split("/").at(-1);
}

/** How the groups of the last steps fared: those at either end teach nothing. */
function solveRates(run, single) {
  if (!run.groups?.groups) return null;
  const title = `mean reward of groups${single ? "" : ` of ${run.name}`}`;
  const share = Math.round((run.groups.dead / run.groups.groups) * 100);
  return el(
    "div",
    { class: "chart" },
    histogram(run.groups, title),
    el("p", { class: "note" }, `${counted(run.groups.groups, "group")} of the last ${LAST} steps, ${share} % without spread`),
  );
}
