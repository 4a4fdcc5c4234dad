// One rollout: chat, group, tokens, raw record.

import { el, replace, say } from "./dom.js";
import { annotations } from "./annotate.js";
import { address, ask, changed, filters } from "./api.js";
import { fold, message, pretty } from "./chat.js";
import { NONE, bytes, counted, number, signed, versions } from "./format.js";
import { conversation, extras, outcome, times } from "./details.js";
import { tokenView } from "./tokens.js";

const TABS = { chat: "Chat", group: "Side by side", tokens: "Tokens", raw: "Raw" };

export async function rolloutPage(main, params, signal) {
  const [run, line] = [params.get("run"), params.get("line")];
  const [about, found] = await Promise.all([
    ask("run", { run }, signal),
    ask("rollout", { run, line, whole: params.get("whole") }, signal),
  ]);
  const tab = params.get("tab") in TABS ? params.get("tab") : "chat";
  const body = { chat, group, tokens, raw }[tab];
  const content = await body({ about, found, params, signal });
  if (signal.aborted) return;
  replace(main, head(about, found, params, tab), el("div", { class: "body" }, content));
  addEventListener("keydown", (event) => keys(event, params), { signal });
}

function head(about, found, params, tab) {
  const links = Object.entries(TABS)
    .filter(([name]) => name !== "tokens" || found.tokens.length)
    .filter(([name]) => name !== "group" || found.members.length > 1)
    .map(([name, title]) => {
      const target = address("rollout", changed(params, { tab: name === "chat" ? null : name }));
      return el("a", { href: target, "data-key": `tab ${name}`, "aria-current": name === tab ? "page" : null }, title);
    });
  const title = `Example ${number(found.example_id)}, rollout ${found.rollout_index}${found.step === null ? "" : `, step ${found.step}`}`;
  return [
    el(
      "div",
      { class: "title" },
      el("h1", {}, title),
      found.error ? el("span", { class: "status stopped" }, "failed") : el("span", { class: "status reward" }, `reward ${number(found.reward)}`),
      weights(found),
      el(
        "span",
        { class: "picked" },
        el("button", { type: "button", "data-key": "back", title: "k", on: { click: () => turn(params, -1) } }, "Previous"),
        el("button", { type: "button", "data-key": "on", title: "j", on: { click: () => turn(params, 1) } }, "Next"),
      ),
    ),
    el("nav", { class: "tabs", "aria-label": "Views of this rollout" }, links),
  ];
}

/** Which versions of the weights have played it, where there was more than what a run begins with. */
function weights({ steps }) {
  const spans = steps.flatMap((step) => step.versions);
  return spans.some(([version]) => version > 0) ? el("span", { class: "note" }, `${versions(spans)} of the weights`) : null;
}

/** The rollout before or after this one, in the order of the list it was opened from. */
async function turn(params, by) {
  const chosen = [["run", params.get("run")], ...filters(params)];
  for (const name of ["sort", "order"]) if (params.get(name)) chosen.push([name, params.get(name)]);
  const at = Number(params.get("at") ?? params.get("line")) + by;
  if (at < 0) return say("this is the first rollout");
  const { rows } = await ask("rollouts", new URLSearchParams([...chosen, ["offset", at], ["limit", 1]]));
  if (!rows.length) return say("this is the last rollout");
  location.hash = address("rollout", changed(params, { line: rows[0].line, at }));
}

function keys(event, params) {
  if (event.target.matches("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "j") turn(params, 1);
  if (event.key === "k") turn(params, -1);
  if (event.key === "t") focusTags(event);
  if (event.key === "Escape") location.hash = address("rollouts", changed(params, { line: null, at: null, tab: null }));
}

function focusTags(event) {
  const field = document.querySelector(".tagging input");
  if (!field) return;
  event.preventDefault();
  field.focus();
}

// The chat and its side panel

function chat({ about, found, params }) {
  const whole = address("rollout", changed(params, { whole: "1" }));
  const cut = found.cut && !params.get("whole") ? el("p", {}, "Long texts are shortened. ", el("a", { href: whole }, "Show full texts")) : null;
  return el("div", { class: "split right" }, el("section", { "aria-label": "Chat" }, cut, conversation(about.env, found)), el("aside", { "aria-label": "About this rollout" }, facts(about, found, params)));
}

function facts(about, found, params) {
  return [
    outcome(found),
    found.advantage !== null && found.members.length > 1 && el("p", { class: "note" }, `${signed(found.advantage)} against the mean of its group (${found.members.length} rollouts)`),
    times(found),
    members(found, params),
    annotations(about, found),
    el("h2", {}, "More"),
    extras(found),
    found.tools && fold(counted(found.tools.length, "tool"), pretty(found.tools)),
    curl(about, found),
    el("p", { class: "note" }, `key ${found.example_key} · seed ${found.seed} · ${bytes(found.size)}`),
  ];
}

function members({ members, line }, params) {
  if (members.length < 2) return null;
  const links = members.map((row) => {
    const text = row.error ? "failed" : number(row.reward);
    const target = address("rollout", changed(params, { line: row.line, at: null }));
    return el("li", {}, el("a", { href: target, "aria-current": row.line === line ? "true" : null, "aria-label": `rollout ${row.rollout}: ${text}` }, text));
  });
  return [el("h2", {}, "Group"), el("ul", { class: "members" }, links)];
}

/** A button that copies the request of the first turn as a command. */
function curl(about, found) {
  const body = { model: about.model, messages: found.prompt, tools: found.tools ?? undefined, temperature: found.temperature ?? undefined };
  const quoted = JSON.stringify(body).replaceAll("'", "'\\''");
  const command = `curl "$BASE_URL/chat/completions" -H "Authorization: Bearer $OPENAI_API_KEY" -H 'Content-Type: application/json' -d '${quoted}'`;
  const copy = async () => {
    await navigator.clipboard.writeText(command);
    say("copied");
  };
  return [el("button", { type: "button", on: { click: copy } }, "Copy as curl"), fold("first request", command)];
}

// The other views

async function group({ about, params, signal }) {
  const { rollouts, left_out } = await ask("group", { run: about.name, line: params.get("line") }, signal);
  const columns = rollouts.map((one, i) => {
    const target = address("rollout", changed(params, { line: one.line, at: null, tab: null }));
    const result = one.error ? el("span", { class: "bad" }, "failed") : el("b", {}, number(one.reward));
    const parts = one.parts ?? (i ? null : undefined);
    const note = i === 0 ? "the reference" : parts ? `differs from message ${parts[0] + 1} on` : "the same";
    return el(
      "section",
      { class: "member", "aria-label": `rollout ${one.rollout}` },
      el("h2", {}, el("a", { href: target }, `Rollout ${one.rollout}`), " ", result),
      el("p", { class: "note" }, note),
      one.completion.map((said, place) => message(said, about.env, `${i}-${place}`, parts && parts[0] === place ? parts[1] : null, one.renderings[one.prompt.length + place])),
    );
  });
  const rest = left_out ? el("p", { class: "note" }, `${counted(left_out, "more rollout")} not shown`) : null;
  return [rollouts[0].prompt.slice(-1).map((one) => message(one, about.env, "prompt", null, rollouts[0].renderings[rollouts[0].prompt.length - 1])), el("div", { class: "columns", tabindex: 0, role: "region", "aria-label": "Siblings" }, columns), rest];
}

function tokens({ found, params }) {
  return tokenView(found, params, (color) => (location.hash = address("rollout", changed(params, { color }))));
}

async function raw({ about, params, signal }) {
  const { text } = await ask("raw", { run: about.name, line: params.get("line") }, signal);
  const where = `line ${number(Number(params.get("line")) + 1)} of ${about.name}/rollouts.jsonl`;
  return [el("p", { class: "note" }, where), el("pre", { class: "raw", tabindex: 0 }, text || NONE)];
}
