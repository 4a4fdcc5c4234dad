// Search all rollouts of a run; hits appear while the search runs.

import { el, replace } from "./dom.js";
import { address, changed, stream } from "./api.js";
import { bytes, counted, number } from "./format.js";

let last = null;

/** A form that searches; what was found last in this run is shown again when the page is drawn anew. */
export function searchBox(run, params) {
  if (last?.run !== run) {
    last?.stop.abort();
    last = { run, text: "", regex: false, stop: new AbortController(), box: el("div", { class: "hits", "aria-live": "polite" }) };
  }
  const mine = last;
  const text = el("input", { type: "search", value: mine.text, "data-key": "search", on: { input: (event) => (mine.text = event.target.value) } });
  const regex = el("input", { type: "checkbox", "data-key": "regex", on: { change: (event) => (mine.regex = event.target.checked) } });
  regex.checked = mine.regex;
  const submit = (event) => {
    event.preventDefault();
    search(mine, params);
  };
  const form = el(
    "form",
    { class: "tools", role: "search", on: { submit } },
    el("label", {}, "Text ", text),
    el("label", {}, regex, " regular expression"),
    el("button", { type: "submit", "data-key": "look" }, "Search"),
  );
  return [form, mine.box];
}

async function search(mine, params) {
  mine.stop.abort();
  mine.stop = new AbortController();
  const { signal } = mine.stop;
  const hits = el("ol", {});
  const progress = el("p", { class: "note" }, "searching …");
  const stop = el("button", { type: "button", on: { click: () => mine.stop.abort() } }, "Stop");
  replace(mine.box, progress, stop, hits);
  let count = 0;
  try {
    for await (const told of stream("search", { run: mine.run, text: mine.text, regex: mine.regex ? "1" : null }, signal)) {
      if (told.error) throw new Error(told.error);
      if (told.line !== undefined) {
        count += 1;
        hits.append(hit(mine.run, told, params));
      }
      const read = told.bytes === undefined ? "" : ` in ${bytes(told.bytes)}`;
      progress.textContent = `${counted(count, "rollout")}${read}${told.done ? (count >= 200 ? "; stopped after 200 hits" : "") : " so far"}`;
    }
  } catch (error) {
    progress.textContent = signal.aborted ? `stopped after ${counted(count, "rollout")}` : error.message;
    progress.className = signal.aborted ? "note" : "bad";
  }
  stop.remove();
}

function hit(run, told, params) {
  const target = address("rollout", changed(params, { run, line: told.line, at: null }));
  return el(
    "li",
    {},
    el("a", { href: target }, `line ${number(told.line + 1)}`),
    el("span", { class: "note" }, ` ${told.role} `),
    el("span", { class: "found" }, told.before, el("mark", {}, told.found), told.after),
  );
}
