// One rollout: chat, group, tokens, raw record.
import { choice, el, replace, say, useState } from "./dom.js";
import { Annotated } from "./annotate.js";
import { address, ask, changed, filters } from "./api.js";
import { fold, message, messages, pretty } from "./chat.js";
import { rewardPill } from "./charts.js";
import { NONE, bytes, counted, number, signed } from "./format.js";
import { conversation, extras, outcome, times } from "./details.js";
import { partOf } from "./overview.js";
import { tokenView } from "./tokens.js";

const COPIES = { curl: "Copy as curl", json: "Copy JSON", test: "Copy test case" };
const TABS = { chat: "Chat", group: "Side by side", tokens: "Tokens", raw: "Raw" };

export async function rolloutPage(main, params, signal) {
  const [run, line] = [params.get("run"), params.get("line")];
  const [about, found] = await Promise.all([ask("run", { run }, signal), ask("rollout", { run, line, whole: params.get("whole") }, signal)]);
  const tab = params.get("tab") in TABS ? params.get("tab") : "chat";
  const content = await { chat, group, tokens, raw }[tab]({ about, found, params, signal });
  if (signal.aborted) return;
  replace(main, head(about, found, params, tab), el("div", { class: "body", key: `${run} ${line} ${tab}` }, content));
  addEventListener("keydown", (event) => keys(event, params), { signal });
}

function head(about, found, params, tab) {
  const links = Object.entries(TABS)
    .filter(([name]) => name !== "tokens" || found.tokens.length)
    .map(([name, title]) => el("a", { href: address("rollout", changed(params, { tab: name === "chat" ? null : name })), "data-key": `tab ${name}`, "aria-current": name === tab ? "page" : null }, title));
  const title = `Example ${number(found.example_id)}, rollout ${found.rollout_index}${found.step === null ? "" : `, step ${found.step}`}`;
  return [
    el("div", { class: "title" },
      el("h1", {}, title),
      found.error ? el("span", { class: "status stopped" }, "failed") : rewardPill(found.reward, about.range, `reward ${number(found.reward)}`),
      partOf(about),
      found.versions && el("span", { class: "note" }, `${found.versions} of the weights`),
      el("span", { class: "picked" },
        el("button", { type: "button", "data-key": "back", title: "k", on: { click: () => turn(params, -1) } }, "Previous"),
        el("button", { type: "button", "data-key": "on", title: "j", on: { click: () => turn(params, 1) } }, "Next"))),
    el("nav", { class: "tabs", "aria-label": "Views of this rollout" }, links),
  ];
}

/** Go to the rollout before or after this one, in the order of the list it was opened from, or else of the file. */
async function turn(params, by) {
  const at = params.has("at") ? Number(params.get("at")) + by : null;
  const line = Number(params.get("line")), order = ["sort", "order"].filter((name) => params.get(name)).map((name) => [name, params.get(name)]);
  const neighbor = by > 0 ? [["from.line", line + 1]] : [["to.line", line], ["sort", "line"], ["order", "down"]];
  const selection = at === null ? neighbor : [...filters(params), ...order, ["offset", at]];
  const { rows } = at < 0 ? { rows: [] } : await ask("rollouts", new URLSearchParams([["run", params.get("run")], ...selection, ["limit", 1]]));
  if (!rows.length) return say(`this is the ${by < 0 ? "first" : "last"} rollout`);
  location.hash = address("rollout", changed(params, { line: rows[0].line, at }));
}

function keys(event, params) {
  if (event.target.matches("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "j") turn(params, 1);
  if (event.key === "k") turn(params, -1);
  const field = event.key === "t" && document.querySelector(".tagging input");
  if (field) (event.preventDefault(), field.focus());
  if (event.key === "Escape") location.hash = address("rollouts", changed(params, { line: null, at: null, tab: null, offset: params.get("at") }));
}

// The chat and its side panel

function chat({ about, found, params }) {
  const link = (change, words) => el("a", { href: address("rollout", changed(params, change)) }, words);
  const cut = found.cut && !params.get("whole") ? el("p", {}, "Long texts are shortened. ", link({ whole: "1" }, "Show full texts")) : null;
  const plain = Boolean(params.get("plain"));
  return el("div", { class: "split right" },
    el("section", { "aria-label": "Chat" }, cut, conversation(found, "", plain), el("p", { class: "note" }, link({ plain: plain ? null : "1" }, plain ? "Show Markdown formatted" : "Show Markdown as it was written"))),
    el("aside", { "aria-label": "About this rollout" }, facts(about, found, params)));
}

function facts(about, found, params) {
  return [
    outcome(found),
    found.advantage !== null && found.members.length > 1 && el("p", { class: "note" }, `${signed(found.advantage)} against the mean of its group (${found.members.length} rollouts)`),
    extras(found),
    times(found),
    members(about, found, params),
    el(Annotated, { about, found }),
    el("h2", {}, "Copy"),
    el(Copies, { key: found.line, run: about.name, line: found.line }),
    found.tools && fold(counted(found.tools.length, "tool"), pretty(found.tools)),
    el("p", { class: "note" }, `key ${found.example_key} · seed ${found.seed} · ${bytes(found.size)}`),
  ];
}

function members(about, { members, line }, params) {
  if (members.length < 2) return null;
  const links = members.map((row) => {
    const text = row.error ? "failed" : number(row.reward);
    const target = address("rollout", changed(params, { line: row.line, at: null }));
    return el("li", {}, el("a", { href: target, "aria-current": row.line === line ? "true" : null, "aria-label": `rollout ${row.rollout}: ${text}` }, row.error ? text : rewardPill(row.reward, about.range)));
  });
  return [el("h2", {}, "Group"), el("ul", { class: "members" }, links)];
}

/** Buttons that copy the first request, the record and a test case; what was copied is shown below. */
function Copies({ run, line }) {
  const [copied, show] = useState("");
  const copy = async (as) => {
    const { text } = await ask("copy", { run, line, as });
    show(text);
    if (navigator.clipboard) (await navigator.clipboard.writeText(text), say("copied")); // there is none without TLS
  };
  const button = ([as, words]) => el("button", { type: "button", on: { click: () => copy(as) } }, words);
  return [el("p", { class: "moves" }, Object.entries(COPIES).map(button)), copied && fold("text to copy", copied)];
}

// The other views

async function group({ about, found, params, signal }) {
  const other = params.get("with");
  const { runs } = await ask("runs", {}, signal);
  const same = runs.filter((run) => run.env === about.env && run.name !== about.name && (run.rollouts || run.kind === "rl"));
  const { rollouts, left_out } = await ask("group", { run: about.name, line: params.get("line"), with: other }, signal);
  const columns = rollouts.map((one, i) => {
    const target = address("rollout", changed(params, { run: one.run ?? about.name, line: one.line, at: null, tab: null, with: null }));
    const result = one.error ? el("span", { class: "bad" }, "failed") : rewardPill(one.reward, about.range);
    const parts = one.parts ?? (i ? null : undefined);
    const note = i === 0 ? "the reference" : parts ? `differs from message ${parts[0] + 1} on` : "the same";
    return el("section", { class: "member", "aria-label": `rollout ${one.rollout}` },
      el("h2", {}, el("a", { href: target }, one.run ? `${one.run}, rollout ${one.rollout}` : `Rollout ${one.rollout}`), " ", result),
      el("p", { class: "note" }, note),
      messages(one, `${i}-`, (place) => ({ parts: parts && parts[0] === place - one.prompt.length ? parts[1] : null })).slice(one.prompt.length));
  });
  return [
    el("div", { class: "tools" }, choice("Beside", "with", [["", "the group"], ...same.map((run) => [run.name, run.name])], other ?? "", (name) => (location.hash = address("rollout", changed(params, { with: name || null }))))),
    found.answer && el("p", {}, "Expected answer: ", el("code", {}, found.answer)),
    rollouts[0].prompt.slice(-1).map((one) => message(one, "prompt", { board: rollouts[0].renderings[rollouts[0].prompt.length - 1] })),
    el("div", { class: "columns", tabindex: 0, role: "region", "aria-label": "Rollouts side by side" }, columns),
    left_out ? el("p", { class: "note" }, `${counted(left_out, "more rollout")} not shown`) : null,
  ];
}

async function tokens({ about, found, params, signal }) {
  const told = await ask("tokens", { run: about.name, line: found.line, color: params.get("color") }, signal);
  return tokenView(found, told, params);
}

async function raw({ about, params, signal }) {
  const { text } = await ask("raw", { run: about.name, line: params.get("line") }, signal);
  const where = `line ${number(Number(params.get("line")) + 1)} of ${about.name}/rollouts.jsonl`;
  return [el("p", { class: "note" }, where), el("pre", { class: "raw", tabindex: 0 }, text || NONE)];
}
