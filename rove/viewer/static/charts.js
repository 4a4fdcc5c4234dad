// Small SVG charts, with text alternatives and keyboard support.

import { el, svg } from "./dom.js";
import { NONE, number } from "./format.js";

const WIDTH = 360;
const HEIGHT = 170;
const EDGE = { left: 44, right: 10, top: 10, bottom: 22 };
const TICKS = 4;

/** A curve in a line of text. */
export function sparkline(values, label) {
  const points = values.filter(Number.isFinite);
  if (points.length < 2) return el("span", { class: "note" }, NONE);
  const [low, high] = extent(points);
  const at = (value, i) => `${(i / (points.length - 1)) * 96 + 2},${22 - ((value - low) / (high - low || 1)) * 20}`;
  const told = `${label}: from ${number(points[0])} to ${number(points.at(-1))}`;
  return svg(
    "svg",
    { viewBox: "0 0 100 24", class: "spark", role: "img", "aria-label": told },
    svg("polyline", { points: points.map(at).join(" "), class: "line c0" }),
  );
}

/** Counts as bars in a line of text. */
export function sparkbars(counts, label) {
  if (!counts?.length) return el("span", { class: "note" }, NONE);
  const most = Math.max(...counts, 1);
  const step = 96 / counts.length;
  const bars = counts.map((count, i) =>
    svg("rect", { x: 2 + i * step, y: 22 - (count / most) * 20, width: Math.max(1, step - 1), height: (count / most) * 20 }),
  );
  return svg("svg", { viewBox: "0 0 100 24", class: "spark bars", role: "img", "aria-label": label }, bars);
}

/**
 * How often which value came.
 *
 * @param told an answer of /api/histogram
 * @param title what it is of
 * @param picked whether a bar is chosen
 * @param pick called with a bar that is clicked; without it the bars are no buttons
 */
export function histogram(told, title, picked = () => false, pick = null) {
  const most = Math.max(...told.bars.map((bar) => bar.count), 1);
  const bars = told.bars.map((bar) => {
    const range = "value" in bar ? number(bar.value) : `${number(bar.from)} to ${number(bar.to ?? told.high)}`;
    const said = `${range}: ${number(bar.count)}`;
    const height = el("span", { class: "fill" });
    height.style.height = `${Math.max((bar.count / most) * 100, bar.count ? 3 : 0)}%`;
    const look = { class: "bar", title: said, "data-key": `${title} ${bar.from}` };
    if (!pick) return el("span", look, height);
    const chosen = picked(bar);
    const press = { type: "button", "aria-pressed": String(chosen), "aria-label": `${title} ${said}` };
    return el("button", { ...look, ...press, on: { click: () => pick(bar, chosen) } }, height);
  });
  const low = told.bars.length ? number(told.low ?? told.bars[0].from) : "";
  const high = told.bars.length ? number(told.high ?? told.bars.at(-1).to) : "";
  const mean = told.mean === undefined ? "" : `mean ${number(told.mean)}`;
  return el(
    "figure",
    { class: "histogram" },
    el("figcaption", {}, el("b", {}, title), el("span", {}, mean)),
    told.bars.length
      ? el("div", { class: "bars", role: "group", "aria-label": `histogram of ${title}` }, bars)
      : el("p", { class: "note" }, "no values"),
    el("div", { class: "ends" }, el("span", {}, low), low === high ? null : el("span", {}, high)),
  );
}

/**
 * Curves over steps.
 *
 * @param title what they are of
 * @param series [{ name, points: [[x, y], …], band: [[x, low, high], …], color: 0…7, marks }]
 * @param pick called with the series and the x of a point that is clicked
 */
export function curves(title, series, pick = null) {
  const drawn = series.filter((one) => one.points.length);
  const xs = drawn.flatMap((one) => one.points.map((point) => point[0]));
  const ys = drawn.flatMap((one) => [...one.points.map((p) => p[1]), ...(one.band ?? []).flatMap((b) => [b[1], b[2]])]);
  const [left, right] = extent(xs);
  const ticks = steps(...extent(ys.filter(Number.isFinite)));
  const [low, high] = [ticks[0], ticks.at(-1)];
  const x = (value) => EDGE.left + ((value - left) / (right - left || 1)) * (WIDTH - EDGE.left - EDGE.right);
  const y = (value) => HEIGHT - EDGE.bottom - ((value - low) / (high - low || 1)) * (HEIGHT - EDGE.top - EDGE.bottom);
  const words = drawn.map((one) => `${one.name} from ${number(one.points[0][1])} to ${number(one.points.at(-1)[1])}`);
  const picture = svg(
    "svg",
    {
      viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
      class: pick ? "curves can" : "curves",
      tabindex: 0,
      role: "img",
      "data-key": title,
      "aria-label": `${title}: ${words.join("; ")}${pick ? ". Arrow keys select a step, Enter shows its rollouts" : ""}`,
    },
    axes(ticks, y, left, right, x),
    drawn.map((one) => [band(one, x, y), line(one, x, y)]),
  );
  const cursor = svg("g", { class: "cursor" });
  const told = el("output", { class: "told" });
  picture.append(cursor);
  follow(picture, cursor, told, drawn, x, y, pick);
  const names = series.length > 1 || series[0]?.name !== title ? legend(series) : null;
  return el("figure", { class: "chart" }, el("figcaption", {}, el("b", {}, title), told), picture, names);
}

function axes(ticks, y, left, right, x) {
  const lines = ticks.map((tick) => [
    svg("line", { x1: EDGE.left, x2: WIDTH - EDGE.right, y1: y(tick), y2: y(tick), class: "grid" }),
    svg("text", { x: EDGE.left - 5, y: y(tick) + 4, class: "tick end" }, short(tick)),
  ]);
  const ends = left === right ? [left] : [left, Math.round((left + right) / 2), right];
  const places = ends.map((end, i) =>
    svg("text", { x: x(end), y: HEIGHT - 5, class: `tick ${["start", "middle", "end"][ends.length > 1 ? i : 1]}` }, short(end)),
  );
  return [lines, places];
}

function line(one, x, y) {
  const points = one.points.filter((point) => Number.isFinite(point[1])).map((point) => `${x(point[0])},${y(point[1])}`);
  const dots = one.marks || points.length === 1;
  const shown = one.points.map((point) => dots && svg("circle", { cx: x(point[0]), cy: y(point[1]), r: 2.5, class: `dot c${one.color}` }));
  return [svg("polyline", { points: points.join(" "), class: `line c${one.color}` }), shown];
}

function band(one, x, y) {
  if (!one.band?.length) return null;
  const upper = one.band.map((at) => `${x(at[0])},${y(at[2])}`);
  const lower = one.band.map((at) => `${x(at[0])},${y(at[1])}`).reverse();
  return svg("polygon", { points: [...upper, ...lower].join(" "), class: `band c${one.color}` });
}

function legend(series) {
  const entries = series.map((one) => el("li", {}, el("span", { class: `key c${one.color}`, "aria-hidden": "true" }), one.name));
  return el("ul", { class: "legend" }, entries);
}

/** A cursor that follows pointer and arrow keys, and tells the values where it is. */
function follow(picture, cursor, told, drawn, x, y, pick) {
  const all = [...new Set(drawn.flatMap((one) => one.points.map((point) => point[0])))].sort((a, b) => a - b);
  let place = -1;
  const move = (next) => {
    place = Math.max(0, Math.min(all.length - 1, next));
    const at = all[place];
    const seen = drawn
      .map((one) => [one, one.points.find((point) => point[0] === at)])
      .filter(([, point]) => point !== undefined);
    cursor.replaceChildren(
      svg("line", { x1: x(at), x2: x(at), y1: EDGE.top, y2: HEIGHT - EDGE.bottom, class: "at" }),
      ...seen.map(([one, point]) => svg("circle", { cx: x(at), cy: y(point[1]), r: 3.5, class: `dot c${one.color}` })),
    );
    told.textContent = `step ${number(at)}: ${seen.map(([, point]) => number(point[1])).join(" · ")}`;
    return seen;
  };
  const nearest = (event) => {
    const box = picture.getBoundingClientRect();
    const wanted = ((event.clientX - box.left) / box.width) * WIDTH;
    return all.reduce((best, value, i) => (Math.abs(x(value) - wanted) < Math.abs(x(all[best]) - wanted) ? i : best), 0);
  };
  const choose = (seen) => pick && seen.length && pick(seen[0][0], seen[0][1][0]);
  if (!all.length) return;
  picture.addEventListener("pointermove", (event) => move(nearest(event)));
  picture.addEventListener("pointerleave", () => [cursor.replaceChildren(), (told.textContent = "")]);
  picture.addEventListener("click", (event) => choose(move(nearest(event))));
  picture.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -Infinity, End: Infinity }[event.key];
    if (by !== undefined) move(place < 0 ? all.length - 1 : place + by);
    else if (event.key === "Enter" && place >= 0) choose(move(place));
    else return;
    event.preventDefault();
  });
}

export function extent(values) {
  if (!values.length) return [0, 1];
  return [values.reduce((a, b) => Math.min(a, b)), values.reduce((a, b) => Math.max(a, b))];
}

/** Round values that hold all others between them. */
export function steps(low, high) {
  if (high - low < 1e-4 * Math.max(Math.abs(low), Math.abs(high)) || low === high) [low, high] = low ? [low - Math.abs(low) / 2, high + Math.abs(high) / 2] : [0, 1];
  const rough = (high - low) / TICKS;
  const power = 10 ** Math.floor(Math.log10(rough));
  const size = [1, 2, 2.5, 5, 10].map((n) => n * power).find((n) => n >= rough * 0.999);
  const first = Math.floor(low / size + 1e-9);
  const found = [first * size];
  while (found.at(-1) < high - size * 1e-9 && found.length < 12) found.push((first + found.length) * size);
  return found;
}

function short(value) {
  const size = Math.abs(value);
  if (size >= 1e6) return `${Number((value / 1e6).toPrecision(3))}M`;
  if (size >= 1e4) return `${Number((value / 1e3).toPrecision(3))}k`;
  return size && size < 1e-3 ? Number(value.toPrecision(3)).toExponential() : String(Number(value.toPrecision(4)));
}
