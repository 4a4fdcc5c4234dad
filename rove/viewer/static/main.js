// Routing between pages.
import { el, replace, say } from "./dom.js";
import { address, here } from "./api.js";
import { comparePage } from "./compare.js";
import { runPage, settingsPage } from "./overview.js";
import { rolloutPage } from "./rollout.js";
import { rolloutsPage } from "./rollouts.js";
import { runsPage } from "./runs.js";
import { trainingPage } from "./training.js";

const PAGES = {
  "": { show: runsPage, title: "Runs" },
  run: { show: runPage, title: "Overview" },
  settings: { show: settingsPage, title: "Settings" },
  rollouts: { show: rolloutsPage, title: "Rollouts" },
  rollout: { show: rolloutPage, title: "Rollout" },
  training: { show: trainingPage, title: "Training" },
  compare: { show: comparePage, title: "Compare" },
};

const main = document.getElementById("main");
let leave = new AbortController();
let shown = "";

/** Pages are functions of an element, the parameters, and a signal that is aborted when the page is left. */
async function go() {
  const { page, params } = here();
  const { show, title } = PAGES[page] ?? { show: nowhere, title: "Page not found" };
  leave.abort();
  leave = new AbortController();
  const { signal } = leave;
  const run = params.getAll("run").concat(params.getAll("a"), params.getAll("b")).join(", ");
  document.title = `${title}${run ? ` · ${run}` : ""} · rove`;
  trail(page, title, params);
  const turned = shown !== page;
  if (turned) replace(main, el("div", { class: "skeleton", "aria-hidden": "true" }, el("i"), el("i"), el("i")));
  shown = page;
  try {
    await show(main, params, signal);
  } catch (error) {
    if (signal.aborted) return;
    replace(main, el("h1", {}, title), el("p", { class: "bad", role: "alert" }, error.message), el("p", {}, el("a", { href: "#/" }, "All runs")));
  }
  if (turned && !signal.aborted) {
    scrollTo(0, 0);
    say(document.title);
  }
}

function trail(page, title, params) {
  const run = params.get("run");
  const steps = [page ? el("a", { href: "#/" }, "Runs") : null];
  if (run && page !== "run") steps.push(el("a", { href: address("run", { run }) }, run));
  if (run && page === "rollout") steps.push(el("a", { href: address("rollouts", { run }) }, "Rollouts"));
  steps.push(el("span", { "aria-current": "page" }, page === "run" ? run : title));
  replace(document.getElementById("trail"), el("ol", {}, steps.filter((step) => step).map((step) => el("li", {}, step))));
}

const nowhere = (main) => replace(main, el("h1", {}, "Page not found"), el("p", {}, el("a", { href: "#/" }, "All runs")));

document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
addEventListener("hashchange", go);
go();
