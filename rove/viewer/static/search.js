// Search all rollouts of a run; hits appear while the search runs.
import { el, useState } from "./dom.js";
import { address, changed, stream } from "./api.js";
import { bytes, counted, number } from "./format.js";

const MOST = 200;
let last = { run: null };

/** A form that searches; the last hits of this run are shown again when the page is opened again. Properties: `run`, `params`. */
export function Search({ run, params }) {
  const [, draw] = useState(0);
  if (last.run !== run) {
    last.stop?.abort();
    last = { run, text: "", regex: false, hits: [], progress: "", bad: false, going: false };
  }
  const mine = last;
  mine.draw = () => draw((count) => count + 1);
  const submit = (event) => {
    event.preventDefault();
    const { text, regex } = event.target.elements;
    search(Object.assign(mine, { text: text.value, regex: regex.checked }));
  };
  const form = el("form", { class: "tools", role: "search", on: { submit } },
    el("label", {}, "Text ", el("input", { name: "text", type: "search", "data-key": "search", defaultValue: mine.text })),
    el("label", {}, el("input", { name: "regex", type: "checkbox", defaultChecked: mine.regex }), " regular expression"),
    el("button", { type: "submit", "data-key": "look" }, "Search"));
  return [form, el("div", { class: "hits", "aria-live": "polite" },
    mine.progress && el("p", { class: mine.bad ? "bad" : "note" }, mine.progress),
    mine.going && el("button", { type: "button", on: { click: () => mine.stop.abort() } }, "Stop"),
    mine.hits.length > 0 && el("ol", {}, mine.hits.map((told) => hit(run, told, params))))];
}

async function search(mine) {
  mine.stop?.abort();
  const stop = new AbortController();
  const tell = (news) => mine.stop === stop && (Object.assign(mine, news), mine.draw());
  mine.stop = stop;
  tell({ hits: [], progress: "searching …", bad: false, going: true });
  try {
    for await (const told of stream("search", { run: mine.run, text: mine.text, regex: mine.regex ? "1" : null }, stop.signal)) {
      if (told.error) throw new Error(told.error);
      const hits = told.line === undefined ? mine.hits : [...mine.hits, told];
      const read = told.bytes === undefined ? "" : ` in ${bytes(told.bytes)}`;
      tell({ hits, progress: `${counted(hits.length, "rollout")}${read}${told.done ? (hits.length >= MOST ? `; stopped after ${MOST} hits` : "") : " so far"}` });
    }
  } catch (error) {
    tell(stop.signal.aborted ? { progress: `stopped after ${counted(mine.hits.length, "rollout")}` } : { progress: error.message, bad: true });
  }
  tell({ going: false });
}

function hit(run, told, params) {
  const target = address("rollout", changed(params, { run, line: told.line, at: null }));
  return el("li", {}, el("a", { href: target }, `line ${number(told.line + 1)}`), el("span", { class: "note" }, ` ${told.role} `), el("span", { class: "found" }, told.before, el("mark", {}, told.found), told.after));
}
