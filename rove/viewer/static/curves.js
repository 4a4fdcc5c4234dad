// Curves over steps, drawn by uPlot, with text alternatives and keyboard support.
import { Component, el } from "./dom.js";
import { number } from "./format.js";
import { Plot } from "./vendor/uplot.js";

const [HEIGHT, SYNC] = [190, "steps"];
const FLAT = 1e-4;
const DENSE = 500; // points from which lines are hairlines, which browsers draw many times faster

/**
 * Curves over steps. Drag selects a range of steps in all charts, shift and drag moves it, a double click shows all.
 *
 * Properties: `title`; `series` [{ name, color: 0…7, points: [[x, y], …], raw: [[x, y], …], band: [[x, low, high], …], marks }];
 * `log`; `marked` { x → text } for marks; `step`, the selected one; `pick`, called with the series and the x that is selected;
 * `zoom` { get, keep }: returns the range of steps { min, max } or null for all, and is called with the one that is dragged.
 */
export class Curves extends Component {
  state = { at: -1, hidden: new Set() };

  componentDidMount() {
    this.scheme = matchMedia("(prefers-color-scheme: dark)");
    this.redraw = () => (colors.clear(), this.plot.redraw(false));
    this.scheme.addEventListener("change", this.redraw);
    this.seen = new ResizeObserver(() => this.plot.setSize({ width: this.box.clientWidth, height: HEIGHT }));
    this.draw();
    this.seen.observe(this.box);
  }

  componentWillUnmount() {
    this.scheme.removeEventListener("change", this.redraw);
    this.seen.disconnect();
    this.plot.destroy();
  }

  componentDidUpdate(before) {
    const shape = ({ series, log }) => JSON.stringify([log, columnsOf(series).map(([one, kind]) => [one.name, one.color, one.marks, kind])]);
    if (before.series === this.props.series && before.step === this.props.step) return;
    if (shape(before) !== shape(this.props)) {
      this.plot.destroy();
      return this.draw();
    }
    const range = this.props.zoom?.get();
    this.plot.setData(align(this.props.series), !range);
    if (range) this.plot.setScale("x", range);
  }

  draw() {
    const { series, log, pick, zoom } = this.props;
    const columns = columnsOf(series);
    const colored = (one, opacity = "") => () => `${color(`--c${one.color}`)}${opacity}`;
    const look = ([one, kind]) => ({ stroke: kind === "points" ? colored(one) : kind === "raw" ? colored(one, "50") : "transparent", width: one.points.length > DENSE ? 1 : 1.6, spanGaps: true, points: { show: kind === "points" && (one.marks || one.points.length === 1), size: 5, fill: colored(one) } });
    const bands = columns.flatMap(([one, kind], i) => (kind === "high" ? [{ series: [i + 1, i], fill: colored(one, "2a") }] : []));
    const axis = { stroke: () => color("--dim"), grid: { stroke: () => color("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui", values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : short(tick))) };
    const keep = (range) => zoom?.keep(range);
    const logarithmic = log && columns.every(([, , points]) => points.every(([, y]) => y > 0));
    this.plot = new Plot({
      width: this.box.clientWidth, height: HEIGHT, legend: { show: false }, padding: [8, 8, 0, 0],
      scales: { x: { time: false, ...zoom?.get() }, y: logarithmic ? { distr: 3 } : { range: (_, low, high) => around(low, high) } },
      axes: [{ ...axis, size: 26, space: 60 }, { ...axis, size: 50, space: 28 }],
      series: [{}, ...columns.map(look)], bands,
      cursor: { sync: { key: SYNC, setSeries: false }, drag: { x: true, y: false, dist: 4 }, y: false, points: { size: 6 }, bind: { mousedown: panning(keep), mouseup: selecting(keep), dblclick: (_, __, handler) => (event) => (handler(event), keep(null)) } },
      hooks: { setCursor: [({ cursor }) => this.state.at !== (cursor.idx ?? -1) && this.setState({ at: cursor.idx ?? -1 })], draw: [(plot) => this.mark(plot)] },
    }, align(series), this.box);
    let down = 0;
    this.plot.over.addEventListener("mousedown", (event) => (down = event.clientX));
    this.plot.over.addEventListener("click", (event) => pick && Math.abs(event.clientX - down) < 4 && this.choose());
  }

  /** Draw marks of alerts and of the selected step. */
  mark({ ctx, bbox, scales, valToPos }) {
    const draw = (x, strokeStyle, dash) => {
      if (x < scales.x.min || x > scales.x.max) return;
      const left = valToPos(Number(x), "x", true);
      Object.assign(ctx, { strokeStyle, lineWidth: devicePixelRatio });
      ctx.setLineDash(dash);
      ctx.stroke(new Path2D(`M ${left} ${bbox.top} v ${bbox.height}`));
    };
    ctx.save();
    Object.keys(this.props.marked ?? {}).forEach((x) => draw(x, color("--bad"), [4, 4]));
    if (this.props.step !== null) draw(this.props.step, color("--ink"), []);
    ctx.restore();
  }

  /** The visible series that have a value at a place, with it. */
  valuesAt(at) {
    const values = columnsOf(this.props.series).map(([one, kind], i) => [one, kind, this.plot?.data[i + 1]?.[at] ?? null]);
    return values.filter(([one, kind, value]) => kind === "points" && value !== null && !this.state.hidden.has(one.name));
  }

  choose() {
    const [found] = this.valuesAt(this.state.at);
    if (found && this.props.pick) this.props.pick(found[0], this.plot.data[0][this.state.at]);
  }

  keys(event) {
    const last = this.plot.data[0].length - 1;
    const by = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -Infinity, End: Infinity }[event.key];
    const at = this.state.at < 0 ? last : Math.max(0, Math.min(last, this.state.at + by));
    if (by !== undefined) this.setState({ at }, () => this.plot.setCursor({ left: this.plot.valToPos(this.plot.data[0][at], "x"), top: 0 }));
    else if (event.key === "Enter" && this.state.at >= 0) this.choose();
    else return;
    event.preventDefault();
  }

  toggle(name) {
    const hidden = new Set(this.state.hidden);
    if (!hidden.delete(name)) hidden.add(name);
    this.setState({ hidden });
    this.plot.batch(() => columnsOf(this.props.series).forEach(([one], i) => this.plot.setSeries(i + 1, { show: !hidden.has(one.name) })));
  }

  render({ title, series, marked = {}, pick }, { at, hidden }) {
    const x = this.plot?.data[0][at];
    const values = this.valuesAt(at).map(([, , value]) => number(value));
    const words = series.filter((one) => one.points.length).map((one) => `${one.name} from ${number(one.points[0][1])} to ${number(one.points.at(-1)[1])}`);
    const label = `${title}: ${words.join("; ")}${pick ? ". Arrow keys select a step, Enter shows its rollouts" : ""}`;
    const look = { class: pick ? "curves can" : "curves", tabindex: 0, role: "img", "aria-label": label, "data-key": title, "data-points": series[0]?.points.length, ref: (box) => (this.box = box), on: { keydown: (event) => this.keys(event) } };
    const button = ({ name, color }) => el("button", { type: "button", class: "legendkey", "aria-pressed": String(!hidden.has(name)), on: { click: () => this.toggle(name) } }, el("span", { class: `key c${color}`, "aria-hidden": "true" }), name);
    return el("figure", { class: "chart" },
      el("figcaption", {}, el("b", {}, title), el("output", { class: "told" }, values.length ? `step ${number(x)}: ${values.join(" · ")}${marked[x] ? ` · ${marked[x]}` : ""}` : "")),
      el("div", look),
      series.length > 1 || series[0]?.name !== title ? el("ul", { class: "legend" }, series.map((one) => el("li", {}, button(one)))) : null);
  }
}

/** The columns of some series in uPlot's order: [series, "points", "raw", "low" or "high", points]. */
function columnsOf(series) {
  return series.flatMap((one) => [
    [one, "points", one.points], ...(one.raw ? [[one, "raw", one.raw]] : []),
    ...(one.band?.length ? [[one, "low", one.band.map(([x, low]) => [x, low])], [one, "high", one.band.map(([x, , high]) => [x, high])]] : []),
  ]);
}

/** The data in uPlot's form: columns over common steps. */
function align(series) {
  const columns = columnsOf(series).map(([, , points]) => new Map(points));
  const xs = [...new Set(columns.flatMap((column) => [...column.keys()]))].sort((a, b) => a - b);
  return [xs, ...columns.map((column) => xs.map((x) => column.get(x) ?? null))];
}

/** The range of an axis; values that are nearly equal get some space, in which uPlot finds ticks. */
function around(low, high) {
  if (!Number.isFinite(low) || !Number.isFinite(high)) return [0, 1];
  const most = Math.max(Math.abs(low), Math.abs(high));
  return high - low > FLAT * most ? Plot.rangeNum(low, high, 0.1, true) : most ? [low - Math.abs(low) / 2, high + Math.abs(high) / 2] : [0, 1];
}

/** Move the range of steps with shift and drag: the charts in sight at once, the others at the end. Else uPlot selects a range. */
const panning = (keep) => (plot, _, handler) => (event) => {
  if (!event.shiftKey) return handler(event);
  const { min, max } = plot.scales.x;
  const move = (to, all) => {
    const by = ((event.clientX - to.clientX) * (max - min)) / plot.over.clientWidth;
    const inSight = ({ root }) => all || (root.getBoundingClientRect().bottom > 0 && root.getBoundingClientRect().top < innerHeight);
    Plot.sync(SYNC).plots.filter(inSight).forEach((other) => other.setScale("x", { min: min + by, max: max + by }));
    if (all) keep({ min: min + by, max: max + by });
  };
  const follow = (to) => move(to, false);
  addEventListener("pointermove", follow);
  addEventListener("pointerup", (to) => (removeEventListener("pointermove", follow), move(to, true)), { once: true });
  return null;
};

/** Keep the range of steps that a drag has selected. */
const selecting = (keep) => (plot, _, handler) => (event) => {
  const { left, width } = plot.select;
  const [min, max] = [left, left + width].map((at) => plot.posToVal(at, "x"));
  handler(event);
  if (width > 0) keep({ min, max });
};

const colors = new Map();
/** A color of the style sheet; reading styles between changes of the page is slow, so colors are kept. */
const color = (name) => colors.get(name) ?? colors.set(name, getComputedStyle(document.documentElement).getPropertyValue(name).trim()).get(name);

const COMPACT = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 4 });
const short = (value) => (value && Math.abs(value) < 1e-3 ? Number(value.toPrecision(3)).toExponential() : COMPACT.format(value));
