// Markdown as elements: markdown-it reads it, and its tokens become elements here, so that no HTML is parsed.
import { el } from "./dom.js";
import { Markdown } from "./vendor/markdown.js";

const TAGS = new Set("p h1 h2 h3 h4 h5 h6 ul ol li blockquote em strong s table thead tbody tr th td".split(" "));
const SIGNS = /```|^ {0,3}(#{1,6} |[-*+] |\d{1,3}\. |> |\|)|\*\*|`[^`\n]+`/m;
const MOST = 100_000;
const parser = new Markdown({ html: false, breaks: true });

/** A text as Markdown if it has some, otherwise as it stands. */
export const prose = (text) => text.length <= MOST && SIGNS.test(text) ? el("div", { class: "prose" }, tree(parser.parse(text, {}))) : el("pre", {}, text);

function tree(tokens) {
  const open = [{ inside: [] }];
  for (const token of tokens) {
    if (token.nesting === 1) open.push({ token, inside: [] });
    else if (token.nesting === 0) open.at(-1).inside.push(leaf(token));
    else {
      const { token: first, inside } = open.pop();
      open.at(-1).inside.push(wrapped(first, inside));
    }
  }
  return open[0].inside;
}

/** Headings are bold paragraphs: those of a message are none of the page. A link shows its address and leads nowhere. */
function wrapped(token, inside) {
  if (token.tag === "a") return [inside, el("small", {}, ` (${token.attrGet("href")})`)];
  if (/^h\d$/.test(token.tag)) return el("p", {}, el("strong", {}, inside));
  return TAGS.has(token.tag) ? el(token.tag, { start: token.tag === "ol" ? token.attrGet("start") : null }, inside) : inside;
}

function leaf(token) {
  if (token.type === "inline") return tree(token.children);
  if (token.type === "fence" || token.type === "code_block") return el("pre", { class: "code" }, token.content.replace(/\n$/, ""));
  if (token.type === "code_inline") return el("code", {}, token.content);
  if (token.type === "softbreak" || token.type === "hardbreak") return el("br");
  if (token.type === "hr") return el("hr");
  if (token.type === "image") return `[image ${token.content} (${token.attrGet("src")}), not loaded]`;
  return token.content;
}
