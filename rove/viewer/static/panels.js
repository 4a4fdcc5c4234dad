// Curves of training, on its page and in a report.
import { el } from "./dom.js";
import { histogram } from "./charts.js";
import { Curves } from "./curves.js";
import { counted, limits, number } from "./format.js";

export const COLORS = 8;
/** Steps whose groups are drawn. */
export const LAST = 10;

/**
 * All charts of some runs, in groups.
 *
 * @param runs [{ name, color, rows, panels, steps, groups, alerts }]: from answers of /api/metrics and /api/groups
 * @param look { smooth: 0 to 1, log, band: "none" to draw no band, step: the selected one, zoom: as of `Curves` }
 * @param pick called with the run and the step that is selected
 */
export function panels(runs, look = {}, pick = null) {
  const all = new Map();
  for (const panel of runs.flatMap((run) => run.panels ?? [])) all.set(panel.title, { ...panel, curves: { ...all.get(panel.title)?.curves, ...panel.curves } });
  const groups = [...new Set([...all.values()].map((panel) => panel.group))];
  return groups.map((name) => {
    const charts = [...all.values()].filter((panel) => panel.group === name).flatMap((panel) => drawPanel(panel, runs, look, pick));
    const solved = name === "Reward" && runs.map((run) => solveRates(run, runs.length === 1));
    return el("details", { key: name, class: "group", open: true }, el("summary", {}, el("h2", {}, name)), el("div", { class: "charts" }, charts, solved));
  });
}

/** Alerts in words; `target` is the address of a step's rollouts, if there is one. */
export function alerts(run, target = null) {
  if (!run.alerts.length) return null;
  const step = (alert) => `step ${number(alert.step)}`;
  const rows = run.alerts.slice(-12).reverse()
    .map((alert) => el("li", {}, target ? el("a", { href: target(alert.step) }, step(alert)) : el("b", {}, step(alert)), ` ${alert.line}`));
  return el("section", { class: "alerts" }, el("h2", {}, `Alerts of ${run.name}`), el("ul", {}, rows));
}

/** A chart of all its curves; of several runs one for each metric, so that colors tell the runs apart. */
function drawPanel(panel, runs, look, pick) {
  const series = Object.entries(panel.curves).flatMap(([metric, label]) => runs.map((run) => curveOf(panel, metric, label, run, look)));
  const drawn = series.filter((one) => one.points.length > 0);
  const labels = [...new Set(drawn.map((one) => one.label))].sort();
  if (runs.length === 1 || (labels.length < 2 && !panel.named)) return drawn.length ? [chart(panel, panel.title, drawn, labels, runs, look, pick)] : [];
  return labels.map((label) => chart(panel, `${panel.title}: ${label}`, drawn.filter((one) => one.label === label), [label], runs, look, pick));
}

function chart(panel, title, drawn, labels, runs, look, pick) {
  const name = ({ label, run }) => (runs.length > 1 ? run.name : label);
  const color = ({ label, run }) => (runs.length > 1 ? run.color : labels.indexOf(label) % COLORS);
  const marked = {};
  for (const run of runs) for (const alert of run.alerts ?? []) marked[alert.step] = String(alert.id ?? "alert");
  const series = drawn.map((one) => ({ ...one, name: name(one), color: color(one) }));
  return el(Curves, { key: title, title, series, log: look.log, step: look.step ?? null, marked, zoom: look.zoom, pick: pick && ((one, step) => pick(one.run, step)) });
}

function curveOf(panel, metric, label, run, { smooth = 0, band = "spread" }) {
  const rows = run.rows.filter((row) => Number.isFinite(row[metric]) && Number.isFinite(row.step));
  const raw = rows.map((row) => [row.step, row[metric]]);
  const measured = panel.band === "interval";
  const smoothed = smooth > 0 && !measured && raw.length > 2;
  return {
    run, label,
    points: smoothed ? average(raw, smooth) : raw,
    raw: smoothed ? raw : null,
    band: band === "none" ? [] : panel.band === "steps" ? bandOf(run) : measured ? intervals(rows, metric) : [],
    marks: measured || rows.length * 2 < run.rows.length, // the curve between distant points is unknown
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

const bandOf = (run) => run.steps.filter((step) => Number.isFinite(step.low) && Number.isFinite(step.high)).map((step) => [step.step, step.low, step.high]);

function intervals(rows, metric) {
  const of = (row, name) => row[metric.replace(/mean$/, name)];
  const band = (row) => limits({ low: of(row, "interval_low"), high: of(row, "interval_high") });
  return rows.filter(band).map((row) => [row.step, ...band(row)]);
}

/** Mean rewards of the groups of the last steps: those at either end teach nothing. */
function solveRates(run, single) {
  if (!run.groups?.groups) return null;
  const title = `mean reward of groups${single ? "" : ` of ${run.name}`}`;
  const share = Math.round((run.groups.dead / run.groups.groups) * 100);
  return el("div", { class: `chart c${run.color}` }, histogram(run.groups, title),
    el("p", { class: "note" }, `${counted(run.groups.groups, "group")} of the last ${LAST} steps, ${share}% with zero advantage`));
}
