// Curves of training, on its page and in a report.

import { el } from "./dom.js";
import { histogram } from "./charts.js";
import { Curves } from "./curves.js";
import { counted, limits, number } from "./format.js";

export const COLORS = 8;
/** Steps whose groups are drawn. */
export const LAST = 10;

const held = (name) => /^eval\/.+\/reward\/mean$/.test(name);
const first = (name) => name.split("/")[0].replaceAll("_", " ");
const last = (name) => name.split("/").at(-1).replaceAll("_", " ");
const under = (prefix) => (name) => name.startsWith(`${prefix}/`);

/**
 * Charts by group: a unique title and its metrics, with a `label` if there are several (`named`: also for one). `most`: the
 * maximum of the metric, `least`: a value that it reaches at some step.
 */
const PANELS = {
  Reward: [
    { title: "reward", metric: (name) => name === "reward/mean", spread: true },
    { title: "loss", metric: (name) => name === "loss" || name === "validation_loss", label: last },
    { title: "reward functions", metric: (name) => under("reward")(name) && name !== "reward/mean", label: (name) => name.slice(7), named: true },
    { title: "zero-advantage groups", derive: (row) => ratio(row["groups/zero_spread"], row["groups/all"]) },
    { title: "metrics", metric: under("metrics"), label: (name) => name.slice(8), named: true, most: 1 },
    { title: "metrics above 1", metric: under("metrics"), label: (name) => name.slice(8), named: true, least: 1 },
  ],
  Evaluations: [{ title: "held-out reward", metric: held, label: (name) => name.split("/")[1], named: true, marks: true }],
  Policy: [
    { title: "entropy (nats per token)", metric: (name) => name === "entropy/all/mean" },
    { title: "KL between sampler and trainer", metric: (name) => name === "mismatch_kl/all/mean" || name === "kl/mean" || name === "reference_kl/mean", label: first },
    { title: "importance ratio", metric: (name) => name === "ratio/mean" },
    { title: "largest importance ratio", metric: (name) => name === "ratio/max" },
    { title: "gradient norm", metric: (name) => name === "optim/grad_norm" },
    { title: "learning rate", metric: (name) => name === "optim/lr" },
    { title: "parity check with vLLM (nats)", metric: (name) => name === "sampler/probe_difference" },
  ],
  Lengths: [
    { title: "length (tokens per rollout)", metric: (name) => name === "length/mean" },
    { title: "truncated and failed rollouts", metric: (name) => name === "rollouts/truncated" || name === "rollouts/failed", label: last },
  ],
  Speed: [
    { title: "throughput (trained tokens per second)", derive: (row) => ratio(row.tokens, busy(row)) },
    { title: "seconds per step", metric: under("time"), label: last, named: true },
    { title: "staleness (steps)", metric: under("off_policy"), label: last },
    { title: "idle (share of time)", metric: under("idle"), label: last, named: true },
    { title: "groups in queues", metric: under("queue"), label: last },
  ],
};

function ratio(part, whole) {
  return part === undefined || !whole ? undefined : part / whole;
}

/** Seconds of a step; sampling and training that overlap count once. */
export function busy(row) {
  return row["time/step"] ?? (row["time/sampling"] ?? 0) + (row["time/training"] ?? 0);
}

/**
 * All charts of some runs, in groups.
 *
 * @param runs [{ name, color, rows, steps, groups, alerts }]: rows of metrics, and answers of /api/metrics and /api/groups
 * @param look { smooth: 0 to 1, log, band: "none" to draw no band, step: the selected one }
 * @param pick called with the run and the step that is selected
 */
export function panels(runs, look = {}, pick = null) {
  return Object.entries(PANELS).map(([name, group]) => {
    const charts = [group.flatMap((panel) => drawPanel(panel, runs, look, pick)), name === "Reward" ? runs.map((run) => solveRates(run, runs.length === 1)) : []].flat().filter((one) => one);
    return charts.length > 0 && el("details", { class: "group", open: true }, el("summary", {}, el("h2", {}, name)), el("div", { class: "charts" }, charts));
  });
}

/** Alerts in words; `target` is the address of a step's rollouts, if there is one. */
export function alerts(run, target = null) {
  if (!run.alerts.length) return null;
  const step = (alert) => `step ${number(alert.step)}`;
  const rows = run.alerts.slice(-12).reverse()
    .map((alert) => el("li", {}, target ? el("a", { href: target(alert.step) }, step(alert)) : el("b", {}, step(alert)), ` ${alert.text}`));
  return el("section", { class: "alerts" }, el("h2", {}, `Alerts of ${run.name}`), el("ul", {}, rows));
}

/** A chart of all its curves; of several runs one for each metric, so that colors tell the runs apart. */
function drawPanel(panel, runs, look, pick) {
  const series = metricsOf(panel, runs).flatMap((metric) => runs.map((run) => curveOf(panel, metric, run, look)));
  const drawn = series.filter((one) => one.points.length > 0);
  const labels = [...new Set(drawn.map((one) => one.label))];
  if (runs.length === 1 || (labels.length < 2 && !panel.named)) return drawn.length ? [chart(panel, panel.title, drawn, labels, runs, look, pick)] : [];
  return labels.map((label) => chart(panel, `${panel.title}: ${label}`, drawn.filter((one) => one.label === label), [label], runs, look, pick));
}

function chart(panel, title, drawn, labels, runs, look, pick) {
  const name = ({ label, run }) => (runs.length > 1 ? run.name : labels.length > 1 || panel.named ? label : title);
  const color = ({ label, run }) => (runs.length > 1 ? run.color : labels.indexOf(label) % COLORS);
  const marked = {};
  for (const run of runs) for (const alert of run.alerts ?? []) marked[alert.step] = String(alert.name ?? "alert").replaceAll("_", " ");
  const series = drawn.map((one) => ({ ...one, name: name(one), color: color(one) }));
  return el(Curves, { key: title, title, series, log: look.log, step: look.step ?? null, marked, pick: pick && ((one, step) => pick(one.run, step)) });
}

/** The names of a panel's metrics in any of the runs; a derived metric has none. */
function metricsOf(panel, runs) {
  if (panel.derive) return [null];
  const rows = runs.flatMap((run) => run.rows);
  const names = [...new Set(rows.flatMap((row) => Object.keys(row)))].filter(panel.metric).sort();
  const size = (name) => rows.reduce((most, row) => Math.max(most, Number.isFinite(row[name]) ? Math.abs(row[name]) : 0), 0);
  return names.filter((name) => size(name) <= (panel.most ?? Infinity) && size(name) > (panel.least ?? -1));
}

function curveOf(panel, metric, run, { smooth = 0, band = "spread" }) {
  const value = (row) => (metric === null ? panel.derive(row) : row[metric]);
  const rows = run.rows.filter((row) => Number.isFinite(value(row)) && Number.isFinite(row.step));
  const raw = rows.map((row) => [row.step, value(row)]);
  const smoothed = smooth > 0 && !panel.marks && raw.length > 2;
  return {
    run,
    label: panel.label ? panel.label(metric) : panel.title,
    points: smoothed ? average(raw, smooth) : raw,
    raw: smoothed ? raw : null,
    band: band === "none" ? [] : panel.spread ? bandOf(run) : panel.marks ? intervals(rows, metric) : [],
    marks: Boolean(panel.marks || rows.length * 2 < run.rows.length), // the curve between distant points is unknown
  };
}

/** The exponential moving average with this weight of the past, corrected for its start. */
function average(points, weight) {
  let [sum, norm] = [0, 0];
  return points.map(([x, y]) => {
    [sum, norm] = [sum * weight + y * (1 - weight), norm * weight + 1 - weight];
    return [x, sum / norm];
  });
}

function bandOf(run) {
  return run.steps.filter((step) => Number.isFinite(step.low) && Number.isFinite(step.high)).map((step) => [step.step, step.low, step.high]);
}

function intervals(rows, metric) {
  const of = (row, name) => row[metric.replace(/mean$/, name)];
  const band = (row) => limits({ mean: row[metric], low: of(row, "interval_low"), high: of(row, "interval_high"), half_width: of(row, "half_width") });
  return rows.filter(band).map((row) => [row.step, ...band(row)]);
}

/** Mean rewards of the groups of the last steps: those at either end teach nothing. */
function solveRates(run, single) {
  if (!run.groups?.groups) return null;
  const title = `mean reward of groups${single ? "" : ` of ${run.name}`}`;
  const share = Math.round((run.groups.dead / run.groups.groups) * 100);
  return el("div", { class: `chart c${run.color}` }, histogram(run.groups, title),
    el("p", { class: "note" }, `${counted(run.groups.groups, "group")} of the last ${LAST} steps, ${share} % with zero advantage`));
}
