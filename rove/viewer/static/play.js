// A game: the conversation, your prompt, the result.
import { choice, el, replace, say, table } from "./dom.js";
import { ask } from "./api.js";
import { draw } from "./boards.js";
import { message, messages, textOf } from "./chat.js";
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
  const words = state.status;
  document.title = `${words} · rove play`;
  say(words);
  replace(main,
    el("div", { class: "title" }, el("h1", {}, state.env), el("span", { class: "note" }, state.role_words)),
    el("div", { class: "split play" },
      el("section", { "aria-label": "Your role", class: "role" }, el("p", { class: "verdict" }, words), trouble && el("p", { class: "bad", role: "alert" }, trouble), yours(state)),
      el("aside", { "aria-label": "Conversation" }, el("h2", {}, "Conversation"), messages({ ...state, prompt: [], completion: state.messages }, ""))));
  if (state.prompt && document.activeElement === document.body) main.querySelector("[data-focus]")?.focus({ preventScroll: true });
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
function position({ messages, renderings }, choose = null) {
  const place = messages.findLastIndex((one, i) => renderings[i] || one.role !== "assistant");
  return renderings[place] ? el("div", { class: "large" }, draw(renderings[place], choose)) : el("pre", {}, textOf(messages[place]?.content));
}

function buttons(legal, choose) {
  const move = (text) => el("button", { type: "button", "data-key": `move ${text}`, on: { click: () => choose(text) } }, text);
  return el("p", { class: "moves" }, "Your moves: ", legal.map(move));
}

/** The prompt of a named role, and a box for the answer. */
function roleForm({ prompt, number: turn }) {
  const last = prompt.messages.findLastIndex((one) => one.role === "assistant") + 1;
  const said = prompt.messages.map((one, i) => message(one, `prompt-${i}`));
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
  const role = choice("as", "role", state.role_choices, state.role, () => {});
  return [
    state.error && el("pre", { class: "bad" }, state.error.message),
    el("p", { class: "tools" },
      el("button", { type: "button", "data-key": "again", on: { click: () => act("again", { role: main.querySelector("select")?.value ?? state.role }) } }, "Play again"),
      state.role_choices.length > 1 && role,
      state.kept ? el("span", {}, `saved in ${state.kept}`) : el("button", { type: "button", "data-key": "keep", on: { click: () => act("keep") } }, "Save this game")),
    rows.length ? table(["function", "value"], rows, "plain") : null,
  ];
}

follow();
