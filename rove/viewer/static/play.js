// A game: what was said, what you are asked, how it ended.

import { el, replace, say, table } from "./dom.js";
import { ask } from "./ask.js";
import { drawn } from "./boards.js";
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
      replace(main, el("h1", {}, "The table is closed"), el("p", {}, "Start it again: rove play ENV --web"));
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
  const said = state.messages.map((one, i) => message(one, state.env, i));
  replace(
    main,
    el("div", { class: "title" }, el("h1", {}, state.env), el("span", { class: "note" }, seats(state))),
    el(
      "div",
      { class: "split play" },
      el("section", { "aria-label": "Your seat", class: "seat" }, el("p", { class: "verdict" }, words), trouble && el("p", { class: "bad", role: "alert" }, trouble), yours(state)),
      el("aside", { "aria-label": "What was said" }, el("h2", {}, "What was said"), said),
    ),
  );
}

function seats({ model, seat }) {
  return { opponent: `you against ${model}`, model: "you in the model's seat", none: `${model} plays, you watch` }[seat];
}

function where(state) {
  if (state.error) return `The game failed: ${state.error.type}`;
  if (state.over) return ending(state);
  if (state.asked) return "Your turn";
  return state.seat === "model" ? "One moment" : `${state.model} is thinking`;
}

/** How it ended, in the environment's own last words where those say so. */
function ending({ messages, scores, seat }) {
  const last = messages.at(-1);
  const told = last && last.role !== "assistant" ? textOf(last.content).split("\n")[0] : "";
  const who = seat === "model" ? "you" : "the model";
  return `The game is over${/[a-z]/i.test(told) ? `; ${who} ${seat === "model" ? "are" : "is"} told: ${told}` : "."} Reward of ${who}: ${number(scores?.reward)}`;
}

function yours(state) {
  if (state.over) return [board(state, []), result(state)];
  if (!state.asked) return board(state, []);
  const { view, legal } = state.asked;
  if (legal === null) return answerForm(state);
  return [board(state, legal, view), buttons(state, legal)];
}

/** The position, its legal squares to be clicked. */
function board(state, legal, view = lastView(state)) {
  const found = drawn(state.env, view, legal.length ? { legal, choose: (text) => act("move", { number: state.number, text }) } : null);
  if (found) return [found.before && !state.over && el("pre", {}, found.before), el("div", { class: "large" }, found.drawing)];
  return el("pre", {}, view);
}

function lastView({ messages }) {
  return textOf(messages.filter((one) => one.role !== "assistant").at(-1)?.content);
}

function buttons(state, legal) {
  const move = (text) => el("button", { type: "button", "data-key": `move ${text}`, on: { click: () => act("move", { number: state.number, text }) } }, text);
  return el("p", { class: "moves" }, "Your moves: ", legal.map(move));
}

function answerForm(state) {
  const text = el("textarea", { rows: 6, "aria-label": "Your answer", "data-key": "answer" });
  const submit = (event) => {
    event.preventDefault();
    act("move", { number: state.number, text: text.value });
  };
  return [board(state, []), el("form", { on: { submit } }, el("label", {}, "Your answer, as the model would give it", text), el("button", { type: "submit" }, "Answer"))];
}

function result(state) {
  const rows = Object.entries({ ...state.scores?.rewards, ...state.scores?.metrics }).map(([name, value]) => el("tr", {}, el("td", {}, plain(name)), el("td", {}, number(value))));
  return [
    state.error && el("pre", { class: "bad" }, state.error.message),
    el(
      "p",
      { class: "tools" },
      el("button", { type: "button", "data-key": "again", on: { click: () => act("again") } }, "Play again"),
      state.kept ? el("span", {}, `kept in ${state.kept}`) : el("button", { type: "button", "data-key": "keep", on: { click: () => act("keep") } }, "Keep this game"),
    ),
    rows.length ? table(["function", "value"], rows, "plain") : null,
  ];
}

follow();
