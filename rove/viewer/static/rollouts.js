// The rollouts of a run: filters and a page of rows.

import { el, cell, replace, table } from "./dom.js";
import { tagList } from "./annotate.js";
import { address, ask, changed, filters } from "./api.js";
import { histogram } from "./charts.js";
import { NONE, bytes, counted, number, plain, seconds } from "./format.js";
import { every, whole } from "./live.js";
import { searchBox } from "./search.js";

const FACETS = ["env", "stop", "error", "truncated", "superseded"];
const SAID = ["tag", "noted"];
const NAMES = { tag: "tag", noted: "with a note", env: "environment", stop: "stop reason", error: "error", truncated: "truncated", superseded: "superseded" };
const DRAWN = ["reward", "turns", "completion_tokens", "seconds"];
const MORE = ["prompt_tokens", "model_seconds", "size", "retries", "temperature", "step", "example", "rollout"];
const PAGE = 50;
const WIDE = matchMedia("(min-width: 861px)");

let last = { run: null, facets: [], drawn: [] };

export async function rolloutsPage(main, params, signal) {
  const name = params.get("run");
  const about = await ask("run", { run: name }, signal);
  if (last.run !== name) last = { run: name, facets: [], drawn: [] };
  const show = (found) => !signal.aborted && replace(main, shown(about, { ...last, ...found }, params));
  const draw = async () => {
    const found = await whole(() => rowsOf(params, about, signal), show, signal);
    if (signal.aborted) return found;
    Object.assign(last, await choicesOf(params, about, signal)); // slower; the previous choices are shown until then
    show(found);
    return found;
  };
  let seen = (await draw()).progress.bytes;
  if (about.status !== "running" || signal.aborted) return;
  every(5000, async () => {
    const { progress } = await ask("rollouts", { run: name, limit: 1 }, signal);
    if (progress.bytes === seen) return;
    seen = progress.bytes;
    about.scores = (await ask("run", { run: name }, signal)).scores;
    await draw();
  }, signal);
}

/** The rollouts that are chosen, as parameters, with further ones. */
function chosenWith(params, about, pairs) {
  return new URLSearchParams([["run", about.name], ...filters(params), ...pairs]);
}

/** The page of rows. */
async function rowsOf(params, about, signal) {
  const page = ["sort", "order", "offset"].filter((name) => params.get(name)).map((name) => [name, params.get(name)]);
  const [rows, bad] = await Promise.all([
    ask("rollouts", chosenWith(params, about, [...page, ["limit", PAGE]]), signal),
    ask("bad", { run: about.name }, signal),
  ]);
  return { ...rows, bad };
}

/** Every facet, and every histogram that is open. */
async function choicesOf(params, about, signal) {
  const open = [...DRAWN.slice(0, 1), ...about.scores.map((name) => `score.${name}`), ...DRAWN.slice(1)];
  if (params.get("more")) open.push(...MORE);
  const [facets, drawn] = await Promise.all([
    Promise.all([...(about.annotated ? SAID : []), ...FACETS].map((name) => ask("facet", facetParams((pairs) => chosenWith(params, about, pairs), name), signal))),
    Promise.all(open.slice(0, 40).map((name) => ask("histogram", chosenWith(params, about, [["name", name]]), signal))),
  ]);
  return { facets, drawn };
}

/** A facet counts all rollouts that the other facets choose, so that another of its values can be chosen. */
function facetParams(with_, name) {
  const params = with_([["name", name]]);
  params.delete(`is.${name}`);
  if (name === "superseded") ["0", "1"].forEach((value) => params.append("is.superseded", value));
  return params;
}

function go(params, changes) {
  location.hash = address("rollouts", changed(params, { offset: null, ...changes }));
}

function shown(about, found, params) {
  const steps = about.kind === "rl" || about.kind === "sft";
  const again = address("compare", { a: about.name });
  return [
    el(
      "div",
      { class: "title" },
      el("h1", {}, about.name),
      el("span", { class: `status ${about.status}` }, about.status),
      el("span", { class: "note" }, [about.env, about.model].filter((text) => text).join(" · ")),
      tagList(about.tags),
      steps ? el("a", { class: "button", href: address("training", { run: about.name }) }, "Training") : null,
      el("a", { class: "button", href: again }, "Compare with …"),
    ),
    about.trouble && el("p", { class: "bad" }, about.trouble),
    about.why && el("p", { class: "why" }, `Stopped: ${about.why}`),
    about.bad_annotations > 0 && el("p", { class: "bad" }, `${counted(about.bad_annotations, "line")} of annotations.jsonl cannot be read`),
    reading(found.progress),
    searchBox(about.name, params),
    el(
      "div",
      { class: "split" },
      el("aside", { "aria-label": "Filter rollouts" }, chips(params), el("details", { class: "choose", open: WIDE.matches }, el("summary", {}, "Filter by"), el("div", { class: "choices" }, choices(found, params)))),
      el("section", { "aria-label": "Rollouts" }, list(about, found, params), unreadable(found.bad)),
    ),
  ];
}

function reading(progress) {
  const waiting = progress.size - progress.bytes;
  if (!progress.done) {
    const part = Math.round((progress.bytes / progress.size) * 100);
    return el("p", { class: "note", role: "status" }, `reading the run: ${part} % of ${bytes(progress.size)}`);
  }
  return waiting ? el("p", { class: "note" }, `the last line is incomplete (${bytes(waiting)}): it is being written, or the run was killed while writing it`) : null;
}

/** What is chosen, each to be taken back. */
function chips(params) {
  const chosen = filters(params);
  if (!chosen.length) return el("p", { class: "note" }, "Click a bar or a value to filter rollouts.");
  const signs = { is: "=", from: "≥", to: "<" };
  const chips = chosen.map(([key, value]) => {
    const [kind, name] = key.split(/\.(.*)/s);
    const words = `${NAMES[name] ?? plain(name)} ${signs[kind]} ${value === "" ? "none" : isNaN(value) ? value : number(Number(value))}`;
    const others = chosen.filter((one) => one[0] === key && one[1] !== value).map((one) => one[1]);
    const take = () => go(params, { [key]: others.length ? others : null });
    return el("button", { type: "button", class: "chip", "data-key": `chip ${key} ${value}`, "aria-label": `remove filter ${words}`, on: { click: take } }, words, " ×");
  });
  const none = Object.fromEntries(chosen.map(([key]) => [key, null]));
  return el("div", { class: "chips" }, chips, el("button", { type: "button", class: "chip", "data-key": "all", on: { click: () => go(params, none) } }, "all rollouts"));
}

function choices(found, params) {
  const facets = found.facets.filter(({ values }) => values.length > 1).map((facet) => facetBox(facet, params));
  const drawn = found.drawn
    .filter(({ bars }) => bars.length > 1 || found.drawn.length < 3)
    .map((told) => histogram(told, plain(told.name), (bar) => isPicked(told.name, bar, params), (bar, was) => pickBar(told.name, bar, was, params)));
  const more = params.get("more");
  const toggle = el("button", { type: "button", "data-key": "more", on: { click: () => go(params, { more: more ? null : "1" }) } }, more ? "Fewer" : "More");
  return [facets, drawn, toggle];
}

function facetBox({ name, values, others }, params) {
  const key = `is.${name}`;
  const chosen = params.getAll(key);
  const entries = values.map(([value, count]) => {
    const text = value === null ? "" : String(value);
    const on = chosen.includes(text);
    const next = on ? chosen.filter((one) => one !== text) : [...chosen, text];
    const press = () => go(params, { [key]: next.length ? next : null });
    const said = value === null || value === "" ? "none" : ["truncated", "superseded", "noted"].includes(name) ? (value ? "yes" : "no") : name === "stop" ? plain(value) : value;
    return el(
      "li",
      {},
      el(
        "button",
        { type: "button", class: "value", "aria-pressed": String(on), "data-key": `${key} ${text}`, on: { click: press } },
        el("span", {}, said),
        el("span", { class: "count" }, number(count)),
      ),
    );
  });
  const rest = others ? el("p", { class: "note" }, `and ${counted(others, "other value")}`) : null;
  return el("div", { class: "facet" }, el("h2", {}, NAMES[name]), el("ul", {}, entries), rest);
}

function isPicked(name, bar, params) {
  if ("value" in bar) return params.getAll(`is.${name}`).includes(String(bar.value));
  return params.get(`from.${name}`) === String(bar.from) && params.get(`to.${name}`) === (bar.to === undefined ? null : String(bar.to));
}

function pickBar(name, bar, was, params) {
  const clear = { [`is.${name}`]: null, [`from.${name}`]: null, [`to.${name}`]: null };
  if (was) return go(params, clear);
  if ("value" in bar) return go(params, { ...clear, [`is.${name}`]: String(bar.value) });
  return go(params, { ...clear, [`from.${name}`]: String(bar.from), [`to.${name}`]: bar.to === undefined ? null : String(bar.to) });
}

// The rows

function list(about, found, params) {
  if (!found.total) return el("p", {}, found.progress.size ? "No rollout matches." : "This run has no rollouts.");
  const offset = Number(params.get("offset") ?? 0);
  const scores = about.scores.slice(0, 5);
  const columns = [
    ["line", "rollout"],
    ["reward", "reward"],
    ...scores.map((name) => [`score.${name}`, plain(name)]),
    ["stop", "stop reason"],
    ["turns", "turns"],
    ["completion_tokens", "tokens"],
    ["seconds", "time"],
  ];
  const head = columns.map(([name, title]) => heading(name, title, params));
  head.splice(1, 0, el("th", { scope: "col" }, "question"));
  const rows = found.rows.map((row, i) => line(about, row, scores, params, offset + i));
  return [pages(found.total, offset, params), table(head, rows, "rollouts"), pages(found.total, offset, params, " below")];
}

function heading(name, title, params) {
  const current = (params.get("sort") ?? "line") === name;
  const down = params.get("order") === "down";
  const press = () => go(params, { sort: name, order: current && !down ? "down" : null });
  const sort = current ? (down ? "descending" : "ascending") : null;
  const button = el("button", { type: "button", class: "sort", "data-key": `sort ${name}`, on: { click: press } }, title, current ? (down ? " ▼" : " ▲") : "");
  return el("th", { scope: "col", "aria-sort": sort }, button);
}

function line(about, row, scores, params, place) {
  const target = address("rollout", changed(params, { line: row.line, at: place, offset: null }));
  const title = `${number(row.example)} · ${row.rollout}${row.step === null ? "" : ` · step ${row.step}`}`;
  const result = row.error ? el("span", { class: "bad" }, "failed") : el("b", {}, number(row.reward));
  return el(
    "tr",
    {},
    cell("rollout", el("a", { href: target, "data-key": `row ${row.line}` }, title)),
    cell("question", el("span", { class: "question" }, row.question || NONE), tagList(row.tags), row.note && el("div", { class: "note remark", title: row.note }, row.note)),
    cell("reward", result),
    scores.map((name) => cell(plain(name), number(row.scores[name]))),
    cell("stop reason", row.error ?? plain(row.stop ?? NONE), row.truncated ? el("span", { class: "bad" }, " truncated") : null),
    cell("turns", number(row.turns)),
    cell("tokens", number(row.completion_tokens)),
    cell("time", seconds(row.seconds)),
  );
}

function pages(total, offset, params, kind = "") {
  const to = (place) => () => (location.hash = address("rollouts", changed(params, { offset: place || null })));
  const button = (text, place, off) => el("button", { type: "button", disabled: off, "data-key": text + kind, on: { click: to(place) } }, text);
  return el(
    "div",
    { class: "pages" },
    el("span", {}, `${number(offset + 1)} to ${number(Math.min(total, offset + PAGE))} of ${counted(total, "rollout")}`),
    total > PAGE && [button("Previous", Math.max(0, offset - PAGE), !offset), button("Next", offset + PAGE, offset + PAGE >= total)],
  );
}

function unreadable({ bad, lines }) {
  if (!bad) return null;
  const told = lines.map(({ line, why, text }) => el("li", {}, el("b", {}, `line ${number(line + 1)}`), ` ${why}`, el("pre", {}, text)));
  const head = `${counted(bad, "line")} of rollouts.jsonl cannot be read`;
  return el("details", { class: "unreadable" }, el("summary", { class: "bad" }, head), el("ul", {}, told));
}
