// A game: the conversation, your prompt, the result.

import { el, replace, say, table } from "./dom.js";
import { ask } from "./api.js";
import { draw, drawn } from "./boards.js";
import { message, textOf } from "./chat.js";
import { number, plain } from "./format.js";

const main = document.getElementById("main");
let trouble = "";

async function follow() {
  let after = "";
  for (;;) {
    try {
      const state = await ask("game", { after });
      if (state.number !== after) show(state);
      after = state.number;
    } catch {
      replace(main, el("h1", {}, "The game server has stopped"), el("p", {}, "Restart it: rove play ENV --web"));
      await new Promise((resolve) => setTimeout(resolve, 1000));
      after = "";
    }
  }
}

/** Do something; what comes of it is shown by `follow`, what is wrong with it here. */
async function act(name, body = {}) {
  const response = await fetch(`/api/${name}`, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
  trouble = response.ok ? "" : (await response.json()).error;
  if (!trouble) return;
  show(await ask("game"));
  say(trouble);
}

function show(state) {
  const words = where(state);
  document.title = `${words} · rove play`;
  say(words);
  const said = state.messages.map((one, i) => message(one, state.env, i, { board: state.renderings[i] }));
  replace(
    main,
    el("div", { class: "title" }, el("h1", {}, state.env), el("span", { class: "note" }, seated(state.role, state.model))),
    el(
      "div",
      { class: "split play" },
      el("section", { "aria-label": "Your role", class: "role" }, el("p", { class: "verdict" }, words), trouble && el("p", { class: "bad", role: "alert" }, trouble), yours(state)),
      el("aside", { "aria-label": "Conversation" }, el("h2", {}, "Conversation"), said),
    ),
  );
  if (state.prompt && document.activeElement === document.body) main.querySelector("[data-focus]")?.focus({ preventScroll: true });
}

/** Where the person sits, in words; a role that is none of these is one that the environment asks by name. */
function seated(role, model) {
  return Object.hasOwn(ROLES, role) ? ROLES[role](model) : `you as ${role}, ${model} as the model`;
}

const ROLES = {
  opponent: (model) => `you against ${model}`,
  model: () => "you in the model's role",
  none: (model) => `${model}, you watch`,
};

function where(state) {
  if (state.error) return `The game failed: ${state.error.type}`;
  if (state.over) return ending(state);
  if (state.prompt) return state.prompt.role ? `Your turn as ${state.prompt.role}` : "Your turn";
  return state.role === "model" ? "Waiting for the environment" : `${state.model} is responding`;
}

/** How it ended, in the environment's own last words where those say so. */
function ending({ messages, renderings, env, scores, role }) {
  const last = messages.at(-1);
  const { text } = last && last.role !== "assistant" ? drawn(env, textOf(last.content), renderings[messages.length - 1]) : { text: "" };
  const told = renderings[messages.length - 1] ? text.split("\n").at(-1) : text.split("\n")[0];
  const who = role === "model" ? "you" : "the model";
  return `The game is over${/[a-z]/i.test(told) ? `; ${who} ${role === "model" ? "are" : "is"} told: ${told}` : "."} Reward of ${who}: ${number(scores?.reward)}`;
}

function yours(state) {
  if (state.over) return [position(state), result(state)];
  if (!state.prompt) return position(state);
  const { legal, board, view, role } = state.prompt;
  if (role) return roleForm(state);
  if (legal === null) return answerForm(state);
  const choose = (text) => act("move", { number: state.number, text });
  return [board ? el("div", { class: "large" }, draw(board, choose, legal)) : el("pre", {}, view), buttons(legal, choose)];
}

/** What it looks like, its free squares to be clicked where there is something to `choose`. */
function position({ messages, renderings, env }, choose = null) {
  const place = messages.findLastIndex((one, i) => renderings[i] || one.role !== "assistant");
  const text = textOf(messages[place]?.content);
  if (renderings[place]) return el("div", { class: "large" }, draw(renderings[place], choose));
  const found = drawn(env, text, null);
  return [found.text && el("pre", {}, found.text), found.drawing && el("div", { class: "large" }, found.drawing)];
}

function buttons(legal, choose) {
  const move = (text) => el("button", { type: "button", "data-key": `move ${text}`, on: { click: () => choose(text) } }, text);
  return el("p", { class: "moves" }, "Your moves: ", legal.map(move));
}

/** The prompt of a named role, and a box for the answer. */
function roleForm({ prompt, number: turn, env }) {
  const last = prompt.messages.findLastIndex((one) => one.role === "assistant") + 1;
  const said = prompt.messages.map((one, i) => message(one, env, `prompt-${i}`));
  const before = last ? el("details", {}, el("summary", {}, `earlier messages to ${prompt.role}`), said.slice(0, last)) : null;
  const box = el("textarea", { name: "answer", rows: 3, autocomplete: "off", spellcheck: "false", "data-key": "answer role", "data-focus": true });
  const submit = (event) => {
    event.preventDefault();
    act("move", { number: turn, text: event.target.elements.answer.value });
  };
  return [before, said.slice(last), el("form", { key: turn, on: { submit } }, el("label", {}, `Your answer as ${prompt.role}`, box), el("button", { type: "submit" }, "Answer"))];
}

/** Your answer in place of the model: a box for each tag where the answer has tags; a click on a free square is the move. */
function answerForm(state) {
  const { fields, answer_field: answer } = state;
  const box = (name, long) => el(long ? "textarea" : "input", { name, rows: long ? 3 : null, autocomplete: "off", spellcheck: "false", "data-key": `answer ${name}`, "data-focus": name === (answer || "answer") });
  const names = fields.length ? fields : ["answer"];
  const send = (move) => {
    const value = (name) => main.querySelector("form").elements[name].value;
    const text = fields.length ? names.map((name) => `<${name}>${name === answer && move !== null ? move : value(name).trim()}</${name}>`).join("") : value("answer");
    act("move", { number: state.number, text });
  };
  const submit = (event) => {
    event.preventDefault();
    send(null);
  };
  const title = (name) => (fields.length ? plain(name) : "Your answer in the model's format");
  const labels = names.map((name) => el("label", {}, title(name), box(name, !fields.length || name !== answer)));
  const form = el("form", { key: state.number, on: { submit } }, labels, el("button", { type: "submit" }, "Answer"));
  return [position(state, answer ? send : null), form];
}

function result(state) {
  const rows = Object.entries({ ...state.scores?.rewards, ...state.scores?.metrics }).map(([name, value]) => el("tr", {}, el("td", {}, plain(name)), el("td", {}, number(value))));
  const role = el("select", { key: "role", "data-key": "role" }, state.model_roles.map((name) => el("option", { value: name, selected: name === state.role }, seated(name, state.model))));
  return [
    state.error && el("pre", { class: "bad" }, state.error.message),
    el(
      "p",
      { class: "tools" },
      el("button", { type: "button", "data-key": "again", on: { click: () => act("again", { role: main.querySelector("select")?.value ?? state.role }) } }, "Play again"),
      state.model_roles.length > 1 ? el("label", {}, "as ", role) : null,
      state.kept ? el("span", {}, `saved in ${state.kept}`) : el("button", { type: "button", "data-key": "keep", on: { click: () => act("keep") } }, "Save this game"),
    ),
    rows.length ? table(["function", "value"], rows, "plain") : null,
  ];
}

follow();
