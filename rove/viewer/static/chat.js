// Messages as a chat.
import { el } from "./dom.js";
import { drawn } from "./boards.js";
import { counted } from "./format.js";
import { prose } from "./prose.js";

const ROLES = new Set(["system", "developer", "user", "assistant", "tool"]);
const THINKING = /^\s*<think>([\s\S]*?)<\/think>\s*/;
const IMAGE = /^data:image\/(png|jpeg|gif|webp);base64,[A-Za-z0-9+/=]+$/;
const PREVIEW = 90;

/**
 * A message of a rollout.
 *
 * @param message as recorded
 * @param place its number, for links to it
 * @param options `parts`: the character of its content from which on it is marked; `board`: the rendering after it; `note`:
 *   elements after its role; `plain`: show Markdown as it was written; `results`: elements for the results of its tool calls
 */
export function message(message, place, { parts = null, board = null, note = null, plain = false, results = [] } = {}) {
  const role = String(message.role);
  const known = ROLES.has(role) ? role : "other";
  const name = [message.name, message.tool_call_id].filter((text) => text).map(String).join(" ");
  return el("article", { class: `message ${known}${parts === null ? "" : " parts"}`, id: `message-${place}`, "aria-label": `${role} message` },
    el("h3", { class: "who" }, role, name && el("small", {}, ` ${name}`), note),
    el("div", { class: "said" }, inside(message, role, parts, board, plain, results)));
}

/**
 * The messages of a rollout, an element for each; null for the result of a tool call, which stands below the call.
 *
 * @param found an answer of /api/rollout
 * @param place put before the number of a message, for links to it
 * @param look returns further options of the message with a number
 */
export function messages(found, place, look = () => ({})) {
  const all = [...found.prompt, ...found.completion];
  const paired = new Set(Object.values(found.results).flat());
  const result = (i) => (i === null ? el("p", { class: "note" }, "no result") : shown(i));
  const shown = (i) => message(all[i], `${place}${i}`, { board: found.renderings[i], results: found.results[i]?.map(result), ...look(i) });
  return all.map((_, i) => (paired.has(i) ? null : shown(i)));
}

function inside(message, role, parts, board, plain, results) {
  let content = textOf(message.content);
  const found = [];
  const reasoning = message.reasoning_content ?? message.reasoning;
  if (reasoning) found.push(fold("reasoning", String(reasoning), "thought"));
  const thought = role === "assistant" && parts === null ? THINKING.exec(content) : null;
  if (thought) {
    if (thought[1].trim()) found.push(fold("reasoning", thought[1].trim(), "thought", thought[1].length < 200));
    content = content.slice(thought[0].length);
  }
  if (content || board) found.push(said(content, parts, board, plain || role === "tool"));
  found.push(...images(message.content));
  if (message.refusal) found.push(el("p", { class: "bad" }, `refusal: ${message.refusal}`));
  const calls = Array.isArray(message.tool_calls) ? message.tool_calls : message.tool_calls ? [message.tool_calls] : [];
  found.push(...calls.map((one, i) => el("div", { class: "call" }, call(one), results[i])));
  return found.length ? found : el("p", { class: "note" }, "nothing");
}

function said(content, parts, board, plain) {
  if (parts !== null) {
    const letters = Array.from(content);
    return el("pre", {}, letters.slice(0, parts).join(""), el("mark", {}, letters.slice(parts).join("")));
  }
  const { text, drawing } = drawn(content, board);
  return el("div", { class: "shown" }, text && (plain ? el("pre", {}, text) : prose(text)), drawing);
}

/** Images that a message contains itself; those at an address are not loaded. */
function images(content) {
  const found = Array.isArray(content) ? content.map((part) => part?.image_url?.url).filter((url) => typeof url === "string" && IMAGE.test(url)) : [];
  return found.map((src) => el("img", { src, alt: "image of the message", class: "image" }));
}

/** The text of a content; a part that is no text is named. */
export function textOf(content) {
  if (content === null || content === undefined) return "";
  if (!Array.isArray(content)) return typeof content === "string" ? content : JSON.stringify(content, null, 2);
  return content.map((part) => (typeof part === "string" ? part : (part?.text ?? `[${part?.type ?? "part"}${IMAGE.test(part?.image_url?.url) ? "" : ", not shown"}]`))).join("\n");
}

function call(call) {
  const made = call?.function;
  return made ? fold(`tool call ${made.name}`, pretty(made.arguments)) : fold("tool call", pretty(call));
}

/** A text under its title, with a preview. */
export function fold(title, text, kind = "", open = false) {
  const glimpse = text.slice(0, PREVIEW * 2).replace(/\s+/g, " ").slice(0, PREVIEW);
  const more = text.length > PREVIEW ? ` … ${counted(text.length, "character")}` : "";
  return el("details", { class: kind, open }, el("summary", {}, title, " ", el("small", {}, glimpse, more)), el("pre", {}, text));
}

/** A value, or the value that a text is the JSON of, as indented JSON. */
export function pretty(value) {
  if (typeof value !== "string") return JSON.stringify(value, null, 2) ?? "";
  try {
    return JSON.stringify(JSON.parse(value), null, 2);
  } catch {
    return value;
  }
}
