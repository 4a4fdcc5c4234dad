// Small charts: curves and bars in tables, histograms, rewards on a color scale.
import { el } from "./dom.js";
import { NONE, number } from "./format.js";

/** A curve in a line of text, on the scale `[low, high]`. */
export function sparkline(values, label, range = null) {
  const points = values.filter(Number.isFinite);
  if (points.length < 2) return el("span", { class: "note" }, NONE);
  const [low, high] = range ?? [Math.min(...points), Math.max(...points)];
  const at = (value, i) => `${(i / (points.length - 1)) * 96 + 2},${22 - ((value - low) / (high - low || 1)) * 20}`;
  const words = `${label}: from ${number(points[0])} to ${number(points.at(-1))}`;
  return el("svg", { viewBox: "0 0 100 24", class: "spark", role: "img", "aria-label": words }, el("polyline", { points: points.map(at).join(" ") }));
}

/** Counts as bars in a line of text, `told` { low, high, counts } on the scale `[low, high]`. */
export function sparkbars(told, label, range) {
  if (!told?.counts.length) return el("span", { class: "note" }, NONE);
  const [low, high] = range;
  const x = (value) => 2 + ((value - low) / (high - low || 1)) * 92;
  const most = Math.max(...told.counts, 1);
  const width = Math.max(3, (x(told.high) - x(told.low)) / told.counts.length - 0.5);
  const bars = told.counts.map((count, i) => {
    const from = told.low + (i * (told.high - told.low)) / told.counts.length;
    const middle = (from - low) / (high - low || 1);
    return count > 0 && el("rect", { x: x(from), y: 22 - (count / most) * 20, width, height: (count / most) * 20, class: `r${level(middle)}` });
  });
  return el("svg", { viewBox: "0 0 100 24", class: "spark bars", role: "img", "aria-label": label }, bars);
}

/** The class of a color for a share of the range of rewards: 0 (lowest) to 4 (highest). */
export const level = (share) => Math.max(0, Math.min(4, Math.floor(share * 5)));

/** A reward as text, colored by its place in `range`. */
export function rewardPill(value, range, text = number(value)) {
  if (!Number.isFinite(value)) return el("span", { class: "note" }, NONE);
  return el("span", { class: `pill r${level((value - range[0]) / (range[1] - range[0] || 1))}`, title: `rewards range from ${number(range[0])} to ${number(range[1])}` }, text);
}

/**
 * A histogram.
 *
 * @param told an answer of /api/histogram
 * @param title its title
 * @param picked whether a bar is selected
 * @param pick called with a bar that is clicked; without it the bars are no buttons
 */
export function histogram(told, title, picked = () => false, pick = null) {
  const most = Math.max(...told.bars.map((bar) => bar.count), 1);
  const bars = told.bars.map((bar) => {
    const range = "value" in bar ? number(bar.value) : `${number(bar.from)} to ${number(bar.to ?? told.high)}`;
    const words = `${range}: ${number(bar.count)}`;
    const height = el("span", { class: "fill", style: { height: `${Math.max((bar.count / most) * 100, bar.count ? 3 : 0)}%` } });
    const look = { class: "bar", title: words, "data-key": `${title} ${bar.from}` };
    if (!pick) return el("span", look, height);
    const chosen = picked(bar);
    return el("button", { ...look, type: "button", "aria-pressed": String(chosen), "aria-label": `${title} ${words}`, on: { click: () => pick(bar, chosen) } }, height);
  });
  const low = told.bars.length ? number(told.low ?? told.bars[0].from) : "";
  const high = told.bars.length ? number(told.high ?? told.bars.at(-1).to) : "";
  return el("figure", { class: "histogram" },
    el("figcaption", {}, el("b", {}, title), el("span", {}, told.mean === undefined ? "" : `mean ${number(told.mean)}`)),
    told.bars.length ? el("div", { class: "bars", role: "group", "aria-label": `histogram of ${title}` }, bars) : el("p", { class: "note" }, "no values"),
    el("div", { class: "ends" }, el("span", {}, low), low === high ? null : el("span", {}, high)));
}
