// Training curves of one or more runs, updated without a reload.

import { el, replace, table } from "./dom.js";
import { address, ask } from "./api.js";
import { counted, number } from "./format.js";
import { every } from "./live.js";
import { COLORS, LAST, alerts, panels } from "./panels.js";

const PERIOD = 2000;

export async function trainingPage(main, params, signal) {
  const names = [...new Set(params.getAll("run"))].slice(0, COLORS);
  if (!names.length) throw new Error("no run is selected; choose one in the table of runs");
  const runs = names.map((name, i) => ({ name, color: i, rows: [], life: 0, alerts: [], steps: [], status: "", groups: null }));
  const draw = async () => {
    const news = await Promise.all(runs.map((run) => follow(run, signal)));
    if (!signal.aborted && news.some((one) => one)) replace(main, shown(runs, signal));
  };
  await draw();
  every(PERIOD, draw, signal);
}

/** Read what a run has written since; whether there was anything. */
async function follow(run, signal) {
  const found = await ask("metrics", { run: run.name, after: run.rows.length, life: run.life }, signal);
  const before = `${run.status} ${run.life} ${run.rows.length} ${run.alerts.length} ${run.read}`;
  run.rows = [...run.rows.slice(0, found.life === run.life ? found.after : 0), ...found.rows];
  Object.assign(run, { life: found.life, alerts: found.alerts, steps: found.steps, status: found.status, why: found.why, bad: found.bad, kind: found.kind, read: found.progress.bytes });
  if (before === `${run.status} ${run.life} ${run.rows.length} ${run.alerts.length} ${run.read}`) return false;
  const last = run.steps.at(-1)?.step ?? 0;
  run.groups = last ? await ask("groups", { run: run.name, first: Math.max(0, last - LAST + 1), last }, signal) : null;
  return true;
}

function shown(runs) {
  const single = runs.length === 1 ? runs[0] : null;
  const title = single ? single.name : `${runs.length} runs`;
  const steps = runs.flatMap((run) => (run.rows.length || run.steps.length ? [] : [run.name]));
  return [
    el(
      "div",
      { class: "title" },
      el("h1", {}, title),
      single && [
        el("span", { class: `status ${single.status}` }, single.status),
        el("span", { class: "note", id: "steps" }, counted(single.rows.length, "step")),
        el("a", { class: "button", href: address("rollouts", { run: single.name }) }, "Rollouts"),
      ],
    ),
    runs.map((run) => run.why && el("p", { class: "why" }, single ? `Stopped: ${run.why}` : `${run.name} stopped: ${run.why}`)),
    steps.length ? el("p", {}, `${steps.join(", ")}: no step finished yet.`) : null,
    runs.map((run) => run.bad && el("p", { class: "bad" }, `${counted(run.bad, "line")} of ${run.name}'s metrics and alerts cannot be read`)),
    runs.map((run) => alerts(run, (step) => stepAddress(run, step))),
    el("div", { class: "charts" }, panels(runs, (run, step) => run.steps.length && (location.hash = stepAddress(run, step)))),
    single ? null : legend(runs),
  ];
}

function stepAddress(run, step) {
  return address("rollouts", { run: run.name, "is.step": step });
}

function legend(runs) {
  const rows = runs.map((run) => el("tr", {}, el("td", {}, el("span", { class: `key c${run.color}`, "aria-hidden": "true" }), " ", el("a", { href: address("training", { run: run.name }) }, run.name)), el("td", {}, run.status), el("td", {}, number(run.rows.length))));
  return table(["run", "status", "steps"], rows, "plain");
}
