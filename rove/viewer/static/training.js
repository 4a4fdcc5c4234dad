// Training curves of one or more runs, updated without a reload, and what the model said at a step.
import { choice, el, grid, replace } from "./dom.js";
import { address, ask, changed, here } from "./api.js";
import { rewardPill } from "./charts.js";
import { messages } from "./chat.js";
import { counted, number } from "./format.js";
import { every } from "./live.js";
import { runHead, settingsDifference } from "./overview.js";
import { COLORS, LAST, alerts, panels } from "./panels.js";
import { verdict } from "./results.js";

const PERIOD = 2000;
const BANDS = { spread: "standard deviation", interval: "95% interval of the mean", quantiles: "10% to 90%", none: "none" };

export async function trainingPage(main, params, signal) {
  const names = [...new Set(params.getAll("run"))].slice(0, COLORS);
  if (!names.length) throw new Error("no run is selected; choose one in the table of runs");
  const band = params.get("band") in BANDS ? params.get("band") : "interval";
  const runs = names.map((name, i) => ({ name, color: i, rows: [], life: 0, alerts: [], steps: [], status: "", groups: null }));
  const step = params.get("step") ? Number(params.get("step")) : null;
  const extra = { sample: null, about: null, found: null, apart: names.length > 1 ? await ask("settings", { run: names }, signal) : null };
  const draw = async () => {
    const news = await Promise.all(runs.map((run) => follow(run, band === "none" ? "spread" : band, signal)));
    if (signal.aborted || !news.some((one) => one)) return;
    if (names.length === 1) [extra.about, extra.found] = await Promise.all([ask("run", { run: names[0] }, signal), ask("overview", { run: names[0] }, signal)]);
    extra.sample = await sampleOf(runs[0], step ?? runs[0].steps.at(-1)?.step, Number(params.get("nth") ?? 0), signal);
    if (!signal.aborted) replace(main, shown(runs, extra, { band, step: step ?? extra.sample?.step ?? null }, params));
  };
  await draw();
  every(PERIOD, draw, signal);
}

/** Read what a run has written since; return whether there was anything. */
async function follow(run, band, signal) {
  const found = await ask("metrics", { run: run.name, after: run.rows.length, life: run.life, band }, signal);
  const state = () => `${run.status} ${run.life} ${run.rows.length} ${run.alerts.length} ${run.read}`;
  const before = state();
  run.rows = [...run.rows.slice(0, found.life === run.life ? found.after : 0), ...found.rows];
  Object.assign(run, { life: found.life, alerts: found.alerts, steps: found.steps, status: found.status, why: found.why, left: found.left, bad: found.bad, kind: found.kind, panels: found.panels ?? run.panels, read: found.progress.bytes });
  if (before === state()) return false;
  const last = run.steps.at(-1)?.step ?? 0;
  run.groups = last ? await ask("groups", { run: run.name, first: Math.max(0, last - LAST + 1), last }, signal) : null;
  return true;
}

/** The nth rollout of a step; null if the run has none. */
async function sampleOf(run, step, nth, signal) {
  if (step === undefined || !run.steps.some((one) => one.step === step)) return null;
  const { rows, total } = await ask("rollouts", { run: run.name, "is.step": step, offset: nth, limit: 1 }, signal);
  return rows.length ? { step, nth, total, found: await ask("rollout", { run: run.name, line: rows[0].line }, signal) } : null;
}

const go = (changes) => (location.hash = address("training", changed(here().params, changes))); // the page's parameters may be older

/** The range of steps that charts show, in the address. */
const zoom = {
  get: () => {
    const [min, max] = (here().params.get("steps") ?? "").split("..").map(Number);
    return min < max && Number.isFinite(min - max) ? { min, max } : null;
  },
  keep: (range) => history.replaceState(null, "", address("training", changed(here().params, { steps: range && `${range.min.toFixed(1)}..${range.max.toFixed(1)}` }))),
};

function shown(runs, { sample, about, found, apart }, { band, step }, params) {
  const single = runs.length === 1 ? runs[0] : null;
  const empty = runs.flatMap((run) => (run.rows.length || run.steps.length ? [] : [run.name]));
  const look = { smooth: Number(params.get("smooth") ?? 0), log: Boolean(params.get("log")), band, step, zoom };
  const pick = (run, at) => run.steps.length && go({ step: at, nth: null });
  return [
    single ? runHead({ ...about, status: single.status, why: single.why }, "training", el("span", { class: "note", id: "steps" }, counted(single.rows.at(-1)?.step ?? 0, "step")), single.left && el("span", { class: "note" }, single.left)) : [el("h1", {}, `${runs.length} runs`), legend(runs)],
    runs.map((run) => !single && run.why && el("p", { class: "why" }, `${run.name} stopped: ${run.why}`)),
    empty.length ? el("p", {}, `${empty.join(", ")}: no step finished yet.`) : null,
    runs.map((run) => run.bad > 0 && el("p", { class: "bad" }, `${counted(run.bad, "line")} of ${run.name}'s metrics and alerts cannot be read`)),
    found && verdict(found.verdict),
    runs.map((run) => alerts(run, (at) => (single?.steps.length ? address("training", changed(here().params, { step: at, nth: null })) : stepAddress(run, at)))),
    found && changedSettings(found),
    apart && [el("h2", {}, "Settings that differ"), settingsDifference(apart)],
    controls(look),
    sample && said(runs[0], sample, about, params),
    panels(runs, look, pick),
  ];
}

const stepAddress = (run, step) => address("rollouts", { run: run.name, "is.step": step });

function changedSettings(found) {
  const rows = found.settings.filter((row) => row.changed);
  return rows.length > 0 && el("p", { class: "settings" }, "Settings: ", rows.map((row) => [el("code", { title: row.default === null ? null : `default ${row.default}` }, `${row.name} = ${row.value}`), " "]));
}

function controls({ smooth, log, band }) {
  const range = el("input", { type: "range", min: 0, max: 0.98, step: 0.02, value: smooth, "data-key": "smooth", on: { change: (event) => go({ smooth: Number(event.target.value) || null }) } });
  const check = el("input", { type: "checkbox", checked: log, "data-key": "log", on: { change: (event) => go({ log: event.target.checked ? "1" : null }) } });
  return el("div", { class: "tools" },
    el("label", {}, "Smoothing ", range),
    el("label", {}, check, " log scale"),
    choice("Band of the reward", "band", Object.entries(BANDS), band, (value) => go({ band: value })),
    el("span", { class: "note" }, "Drag to zoom, shift and drag to move, double-click to reset. Dashed lines are alerts."));
}

/** What the model said at a step, with a slider through the steps that have rollouts. */
function said(run, { step, nth, total, found }, about, params) {
  const steps = run.steps.map((one) => one.step);
  const move = (event) => go({ step: steps[Number(event.target.value)], nth: null });
  const turn = (by, words) => el("button", { type: "button", "data-key": words, disabled: nth + by < 0 || nth + by >= total, on: { click: () => go({ step, nth: nth + by || null }) } }, words);
  return el("details", { class: "group sample", open: Boolean(params.get("step")) },
    el("summary", {}, el("h2", {}, `What did it say at step ${number(step)}?`)),
    el("div", { class: "tools" },
      el("label", {}, "Step ", el("input", { type: "range", min: 0, max: steps.length - 1, value: steps.indexOf(step), "data-key": "step", on: { change: move } }), el("output", {}, ` ${number(step)}`)),
      turn(-1, "Previous rollout"), turn(1, "Next rollout"), `rollout ${nth + 1} of ${number(total)}`,
      found.error ? el("span", { class: "pill failed" }, "failed") : rewardPill(found.reward, about?.range ?? [0, 1], `reward ${number(found.reward)}`),
      el("a", { href: address("rollout", { run: run.name, line: found.line }) }, "this rollout"), el("a", { href: stepAddress(run, step) }, "all of this step")),
    el("div", { class: "excerpt", tabindex: 0, role: "region", "aria-label": "Messages" },
      messages(found, "said-").slice(Math.max(0, found.prompt.length - 1))));
}

function legend(runs) {
  const name = (run) => [el("span", { class: `key c${run.color}`, "aria-hidden": "true" }), " ", el("a", { href: address("training", { run: run.name }) }, run.name)];
  return grid([["run", name], ["status", (run) => run.status], ["steps", (run) => number(run.rows.at(-1)?.step ?? 0)]], runs, "plain narrowly");
}
