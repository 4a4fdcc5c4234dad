// The rollouts of a run: filters, why they fail, and a table.
import { cell, el, grid, replace, sortable } from "./dom.js";
import { tagList } from "./annotate.js";
import { address, ask, changed, filters } from "./api.js";
import { histogram, rewardPill } from "./charts.js";
import { NONE, bytes, counted, number, plain, seconds } from "./format.js";
import { every, whole } from "./live.js";
import { OUTCOMES, reading, runHead } from "./overview.js";
import { Rows } from "./rows.js";
import { Search } from "./search.js";

const FACETS = ["outcome", "env", "stop", "error", "truncated", "superseded"];
const ANNOTATED = ["tag", "noted"];
const NAMES = { outcome: "outcome", tag: "tag", noted: "with a note", env: "environment", stop: "stop reason", error: "error", truncated: "truncated", superseded: "superseded", reply: "model's answer", answer: "expected answer" };
const DRAWN = ["reward", "turns", "completion_tokens", "seconds"];
const MORE = ["prompt_tokens", "model_seconds", "size", "retries", "temperature", "step", "example", "rollout"];
const LONGEST_FIRST = new Set(["turns", "completion_tokens", "seconds"]); // on the first click
const BLOCK = 100;
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

/** The parameters of the selected rollouts, with further ones. */
const chosenWith = (params, about, pairs) => new URLSearchParams([["run", about.name], ...filters(params), ...pairs]);

const order = (params) => ["sort", "order"].filter((name) => params.get(name)).map((name) => [name, params.get(name)]);

/** The first block of rows, the lines that cannot be read, and the reasons for failures if they are asked for. */
async function rowsOf(params, about, signal) {
  const start = Math.floor(Number(params.get("offset") ?? 0) / BLOCK) * BLOCK;
  const [rows, bad, why] = await Promise.all([
    ask("rollouts", chosenWith(params, about, [...order(params), ["offset", start], ["limit", BLOCK]]), signal),
    ask("bad", { run: about.name }, signal),
    params.get("why") ? ask("reasons", chosenWith(params, about, []), signal) : null,
  ]);
  return { ...rows, start, bad, why };
}

/** Every facet, and every histogram that is open. */
async function choicesOf(params, about, signal) {
  const open = [...DRAWN.slice(0, 1), ...about.scores.map((name) => `score.${name}`), ...DRAWN.slice(1)];
  if (params.get("more")) open.push(...MORE);
  const [facets, drawn] = await Promise.all([
    Promise.all([...(about.annotated ? ANNOTATED : []), ...FACETS, ...about.info].map((name) => ask("facet", chosenWith(params, about, [["name", name], ["others", "1"]]), signal))),
    Promise.all(open.slice(0, 40).map((name) => ask("histogram", chosenWith(params, about, [["name", name]]), signal))),
  ]);
  return { facets, drawn };
}

const go = (params, changes) => (location.hash = address("rollouts", changed(params, { offset: null, ...changes })));

function shown(about, found, params) {
  const { progress } = found;
  const failing = params.get("sort") === "reward" && params.get("order") !== "down";
  const toggle = (words, on, change) => el("button", { type: "button", "aria-pressed": String(on), "data-key": words, on: { click: () => go(params, change) } }, words);
  return [
    runHead(about, "rollouts"),
    about.bad_annotations > 0 && el("p", { class: "bad" }, `${counted(about.bad_annotations, "line")} of annotations.jsonl cannot be read`),
    reading(progress),
    progress.done && progress.size > progress.bytes && el("p", { class: "note" }, `the last line is incomplete (${bytes(progress.size - progress.bytes)}): it is being written, or the run was killed while writing it`),
    el("div", { class: "tools" },
      toggle("Failing first", failing, failing ? { sort: null, order: null } : { sort: "reward", order: null }),
      toggle("Why did these fail?", Boolean(params.get("why")), { why: params.get("why") ? null : "1" }),
      builder(about, params)),
    el(Search, { run: about.name, params }),
    found.why && reasons(found.why, params),
    el("div", { class: "split" },
      el("aside", { "aria-label": "Filter rollouts" }, chips(about, params), el("details", { class: "choose", open: WIDE.matches }, el("summary", {}, "Filter by"), el("div", { class: "choices" }, choices(about, found, params)))),
      el("section", { "aria-label": "Rollouts" }, list(about, found, params), unreadable(found.bad))),
  ];
}

/** A form for a filter on any column. */
function builder(about, params) {
  const submit = (event) => {
    event.preventDefault();
    const { column, sign, value } = event.target.elements;
    go(params, { [`${sign.value}.${column.value}`]: sign.value === "is" ? [...params.getAll(`is.${column.value}`), value.value] : value.value });
  };
  return el("form", { class: "tools builder", "aria-label": "Filter by any column", on: { submit } },
    el("select", { name: "column", "aria-label": "Column" }, about.sorts.map((name) => el("option", { value: name }, NAMES[name] ?? plain(name)))),
    el("select", { name: "sign", "aria-label": "Comparison" }, [["is", "="], ["from", "≥"], ["to", "<"]].map(([value, text]) => el("option", { value }, text))),
    el("input", { name: "value", type: "search", class: "narrow", "aria-label": "Value" }),
    el("button", { type: "submit" }, "Add filter"));
}

/** Groups of failing rollouts by what they have in common, an answer of /api/reasons. */
function reasons({ total, groups }, params) {
  if (!total) return el("p", {}, "None of these rollouts failed.");
  const link = (page, changes, words) => el("a", { href: address(page, changed(params, changes)) }, words);
  const chosen = (one) => ({ ...Object.fromEntries(one.filter), ...(one.kind === "error" ? {} : { "is.outcome": "below" }), offset: null });
  const columns = [
    ["by", (one) => one.kind],
    ["what they share", (one) => link("rollouts", chosen(one), one.kind === "stop reason" ? plain(one.label) : one.label)],
    ["rollouts", (one) => `${number(one.count)} · ${Math.round((one.count / total) * 100)}%`],
    ["example", (one) => link("rollout", { line: one.line, at: null }, `line ${number(one.line + 1)}`)],
  ];
  return el("section", { "aria-label": "Why these failed" }, el("h2", {}, `${counted(total, "failing rollout")}, grouped`), grid(columns, groups, "reasons"));
}

function chips(about, params) {
  const chosen = filters(params);
  if (!chosen.length) return el("p", { class: "note" }, "Click a bar or a value to filter rollouts.");
  const chip = ([key, value], i) => {
    const [kind, ...rest] = key.split(".");
    const name = rest.join(".");
    const shown = name === "outcome" ? (OUTCOMES[value] ?? value) : value === "" ? "none" : Number.isFinite(Number(value)) && value !== "" ? number(Number(value)) : value;
    const words = `${NAMES[name] ?? plain(name)} ${{ is: "=", from: "≥", to: "<" }[kind]} ${shown}`;
    const others = chosen.filter((one, j) => one[0] === key && j !== i).map((one) => one[1]);
    return el("button", { type: "button", class: "chip", "data-key": `chip ${key} ${value}`, "aria-label": `remove filter ${words}`, on: { click: () => go(params, { [key]: others.length ? others : null }) } }, words, " ×");
  };
  const none = Object.fromEntries(chosen.map(([key]) => [key, null]));
  return el("div", { class: "chips" }, chosen.map(chip), el("button", { type: "button", class: "chip", "data-key": "all", on: { click: () => go(params, none) } }, "all rollouts"));
}

function choices(about, found, params) {
  const facets = found.facets.filter(({ values }) => values.length > 1).map((facet) => facetBox(facet, params));
  const drawn = found.drawn
    .filter(({ bars }) => bars.length > 1 || found.drawn.length < 3)
    .map((told) => histogram(told, plain(told.name), (bar) => isPicked(told.name, bar, params), (bar, was) => pickBar(told.name, bar, was, params)));
  const more = params.get("more");
  return [facets, drawn, el("button", { type: "button", "data-key": "more", on: { click: () => go(params, { more: more ? null : "1" }) } }, more ? "Fewer" : "More")];
}

function facetBox({ name, values, others }, params) {
  const key = `is.${name}`;
  const chosen = params.getAll(key);
  const entries = values.map(([value, count]) => {
    const text = value === null ? "" : String(value);
    const on = chosen.includes(text);
    const next = on ? chosen.filter((one) => one !== text) : [...chosen, text];
    const said = value === null || value === "" ? "none" : ["truncated", "superseded", "noted"].includes(name) ? (value ? "yes" : "no") : name === "stop" ? plain(value) : name === "outcome" ? (OUTCOMES[value] ?? value) : value;
    return el("li", {}, el("button", { type: "button", class: "value", "aria-pressed": String(on), "data-key": `${key} ${text}`, on: { click: () => go(params, { [key]: next.length ? next : null }) } }, el("span", {}, said), el("span", { class: "count" }, number(count))));
  });
  return el("div", { class: "facet" }, el("h2", {}, NAMES[name] ?? plain(name)), el("ul", {}, entries), others ? el("p", { class: "note" }, `and ${counted(others, "other value")}`) : null);
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
  if (!found.total) return el("p", {}, found.progress.size ? "No rollout matches. Remove a filter." : "This run has no rollouts yet.");
  const columns = columnsOf(about, found, params);
  const fetch = async (offset, limit) => (await ask("rollouts", chosenWith(params, about, [...order(params), ["offset", offset], ["limit", limit]]))).rows;
  const draw = (row, place) => el("tr", { key: place, "data-place": place }, columns.map(([title, shown]) => cell(title, ...[shown(row, place)].flat())));
  return [
    el("p", { class: "pages", id: "count" }, counted(found.total, "rollout")),
    el(Rows, { key: `${chosenWith(params, about, order(params))} ${params.get("offset")}`, total: found.total, first: found.rows, start: found.start, fetch, head: columns.map(([title, , head]) => head ?? title), offset: Number(params.get("offset") ?? 0), draw }),
  ];
}

/** The columns of the table, as for `grid`. */
function columnsOf(about, found, params) {
  const target = (row, place) => address("rollout", changed(params, { line: row.line, at: place, offset: null, why: null }));
  const clamped = (text) => el("span", { class: "question", title: text }, text || NONE);
  const sorted = (name, title, draw) => [title, draw, heading(name, title, params)];
  return [
    sorted("line", "rollout", (row, place) => el("a", { href: target(row, place), "data-key": `row ${row.line}` }, `${number(row.example)} · ${row.rollout}${row.step === null ? "" : ` · step ${row.step}`}`)),
    ["question", (row) => [clamped(row.question), tagList(row.tags), row.note && el("div", { class: "note remark", title: row.note }, row.note)], el("th", { scope: "col" }, "question")],
    sorted("reply", "model's answer", (row) => clamped(row.reply)),
    ...(found.rows.some((row) => row.answer) ? [sorted("answer", "expected", (row) => clamped(row.answer))] : []),
    sorted("reward", "reward", (row) => (row.error ? el("span", { class: "pill failed" }, "failed") : rewardPill(row.reward, about.range))),
    ...about.scores.filter((name) => name !== "num_turns").slice(0, 3).map((name) => sorted(`score.${name}`, plain(name), (row) => number(row.scores[name]))),
    sorted("stop", "stop reason", (row) => [row.error ?? plain(row.stop ?? NONE), row.truncated ? el("span", { class: "bad" }, " truncated") : null]),
    sorted("turns", "turns", (row) => number(row.turns)), sorted("completion_tokens", "tokens", (row) => number(row.completion_tokens)), sorted("seconds", "time", (row) => seconds(row.seconds)),
  ];
}

function heading(name, title, params) {
  const current = (params.get("sort") ?? "line") === name;
  const down = params.get("order") === "down";
  const next = current ? !down : LONGEST_FIRST.has(name);
  return sortable(title, name, current ? (down ? "down" : "up") : "", () => go(params, { sort: name, order: next ? "down" : null }));
}

function unreadable({ bad, lines }) {
  if (!bad) return null;
  const told = lines.map(({ line, why, text }) => el("li", {}, el("b", {}, `line ${number(line + 1)}`), ` ${why}`, el("pre", {}, text)));
  return el("details", { class: "unreadable" }, el("summary", { class: "bad" }, `${counted(bad, "line")} of rollouts.jsonl cannot be read`), el("ul", {}, told));
}
