// Curves over steps, drawn by uPlot, with text alternatives and keyboard support.

import { Component, el } from "./dom.js";
import { number } from "./format.js";
import { Plot } from "./vendor/uplot.js";

const HEIGHT = 190;
const SYNC = "steps";

/**
 * Curves over steps. Drag selects a range of steps in all charts, shift and drag moves it, a double click shows all.
 *
 * Properties: `title`; `series` [{ name, color: 0…7, points: [[x, y], …], raw: [[x, y], …], band: [[x, low, high], …], marks }];
 * `log`; `marked` { x → text } for marks; `step`, the selected one; `pick`, called with the series and the x that is selected.
 */
export class Curves extends Component {
  constructor(props) {
    super(props);
    this.state = { at: -1, hidden: new Set() };
  }

  componentDidMount() {
    this.scheme = matchMedia("(prefers-color-scheme: dark)");
    this.redraw = () => this.plot.redraw(false);
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
    const shape = ({ series, log }) => JSON.stringify([log, series.map((one) => [one.name, one.color, Boolean(one.raw), Boolean(one.band?.length), one.marks])]);
    if (shape(before) !== shape(this.props)) {
      this.plot.destroy();
      this.draw();
    } else if (before.series !== this.props.series || before.step !== this.props.step) {
      const { min, max } = this.plot.scales.x;
      const zoomed = this.plot.data[0].length > 0 && (min > this.plot.data[0][0] || max < this.plot.data[0].at(-1));
      this.plot.setData(this.align(), !zoomed);
      if (zoomed) this.plot.redraw();
    }
  }

  /** The data in uPlot's form, columns over common steps: of each series the curve, then raw values and both ends of the band. */
  align() {
    const lists = this.props.series.flatMap((one) => columnsOf(one));
    const xs = [...new Set(lists.flatMap((points) => points.map((point) => point[0])))].sort((a, b) => a - b);
    const places = new Map(xs.map((x, i) => [x, i]));
    return [xs, ...lists.map((points) => points.reduce((column, [x, y]) => ((column[places.get(x)] = y), column), new Array(xs.length).fill(null)))];
  }

  draw() {
    const { series, log, pick } = this.props;
    const bands = [];
    const shown = series.flatMap((one, i) => {
      const first = 1 + series.slice(0, i).reduce((sum, other) => sum + columnsOf(other).length, 0);
      const stroke = () => color(`--c${one.color}`);
      const line = { label: one.name, stroke, width: 1.6, spanGaps: true, points: { show: one.marks || one.points.length === 1, size: 5, fill: stroke } };
      const hidden = { stroke: "transparent", spanGaps: true, points: { show: false } };
      if (one.band?.length) bands.push({ series: [first + (one.raw ? 3 : 2), first + (one.raw ? 2 : 1)], fill: () => `${color(`--c${one.color}`)}2a` });
      return [line, ...(one.raw ? [{ ...hidden, stroke: () => `${color(`--c${one.color}`)}50` }] : []), ...(one.band?.length ? [hidden, hidden] : [])];
    });
    const axis = { stroke: () => color("--dim"), grid: { stroke: () => color("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui", size: 26 };
    const numbers = (_, ticks) => ticks.map((tick) => (tick === null ? "" : short(tick)));
    this.plot = new Plot(
      {
        width: this.box.clientWidth, height: HEIGHT, legend: { show: false }, padding: [8, 8, 0, 0],
        scales: { x: { time: false }, y: { distr: log && positive(series) ? 3 : 1 } },
        axes: [{ ...axis, values: numbers, space: 60 }, { ...axis, size: 50, values: numbers, space: 28 }],
        series: [{}, ...shown], bands,
        cursor: { sync: { key: SYNC, setSeries: false }, drag: { x: true, y: false, dist: 4 }, y: false, points: { size: 6 }, bind: { mousedown: panning } },
        hooks: { setCursor: [(plot) => plot.cursor.idx !== (this.state.at < 0 ? null : this.state.at) && this.setState({ at: plot.cursor.idx ?? -1 })], draw: [(plot) => this.mark(plot)] },
      },
      this.align(),
      this.box,
    );
    let down = 0;
    this.plot.over.addEventListener("mousedown", (event) => (down = event.clientX));
    this.plot.over.addEventListener("click", (event) => pick && Math.abs(event.clientX - down) < 4 && this.choose());
  }

  /** Draw marks of alerts and of the selected step. */
  mark(plot) {
    const { marked = {}, step = null } = this.props;
    const draw = (x, stroke, dash) => {
      if (x < plot.scales.x.min || x > plot.scales.x.max) return;
      const left = plot.valToPos(Number(x), "x", true);
      Object.assign(plot.ctx, { strokeStyle: stroke, lineWidth: devicePixelRatio });
      plot.ctx.setLineDash(dash);
      plot.ctx.beginPath();
      plot.ctx.moveTo(left, plot.bbox.top);
      plot.ctx.lineTo(left, plot.bbox.top + plot.bbox.height);
      plot.ctx.stroke();
    };
    plot.ctx.save();
    Object.keys(marked).forEach((x) => draw(x, color("--bad"), [4, 4]));
    if (step !== null) draw(step, color("--ink"), []);
    plot.ctx.restore();
  }

  choose() {
    const found = this.valuesAt(this.state.at)[0];
    if (found && this.props.pick) this.props.pick(found[0], this.plot.data[0][this.state.at]);
  }

  /** The visible series that have a value at a place, with it. */
  valuesAt(at) {
    let first = 1;
    return this.props.series
      .map((one) => [one, this.plot?.data[(first += columnsOf(one).length) - columnsOf(one).length]?.[at]])
      .filter(([one, value]) => value !== null && value !== undefined && !this.state.hidden.has(one.name));
  }

  keys(event) {
    const last = this.plot.data[0].length - 1;
    const by = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -Infinity, End: Infinity }[event.key];
    if (by !== undefined) this.move(this.state.at < 0 ? last : Math.max(0, Math.min(last, this.state.at + by)));
    else if (event.key === "Enter" && this.state.at >= 0) this.choose();
    else return;
    event.preventDefault();
  }

  move(at) {
    this.setState({ at });
    const left = this.plot.valToPos(this.plot.data[0][at], "x");
    this.plot.setCursor({ left, top: 0 });
  }

  toggle(one) {
    const hidden = new Set(this.state.hidden);
    if (!hidden.delete(one.name)) hidden.add(one.name);
    this.setState({ hidden });
    let first = 1;
    this.plot.batch(() => {
      for (const other of this.props.series) for (const _ of columnsOf(other)) this.plot.setSeries(first++, { show: !hidden.has(other.name) });
    });
  }

  render({ title, series, marked = {}, pick }) {
    const x = this.plot?.data[0][this.state.at];
    const values = this.valuesAt(this.state.at).map(([, value]) => number(value));
    const words = series.filter((one) => one.points.length).map((one) => `${one.name} from ${number(one.points[0][1])} to ${number(one.points.at(-1)[1])}`);
    const label = `${title}: ${words.join("; ")}${pick ? ". Arrow keys select a step, Enter shows its rollouts" : ""}`;
    const look = { class: pick ? "curves can" : "curves", tabindex: 0, role: "img", "aria-label": label, "data-key": title, "data-points": series[0]?.points.length, ref: (box) => (this.box = box), on: { keydown: (event) => this.keys(event) } };
    const button = (one) => el("button", { type: "button", class: "legendkey", "aria-pressed": String(!this.state.hidden.has(one.name)), on: { click: () => this.toggle(one) } }, el("span", { class: `key c${one.color}`, "aria-hidden": "true" }), one.name);
    return el("figure", { class: "chart" },
      el("figcaption", {}, el("b", {}, title), el("output", { class: "told" }, values.length ? `step ${number(x)}: ${values.join(" · ")}${marked[x] ? ` · ${marked[x]}` : ""}` : "")),
      el("div", look),
      series.length > 1 || series[0]?.name !== title ? el("ul", { class: "legend" }, series.map((one) => el("li", {}, button(one)))) : null);
  }
}

function columnsOf({ points, raw, band }) {
  const columns = raw ? [points, raw] : [points];
  return band?.length ? [...columns, band.map(([x, low]) => [x, low]), band.map(([x, , high]) => [x, high])] : columns;
}

/** Move the range of steps with shift and drag, in all charts at once; otherwise uPlot selects a range. */
function panning(plot, _, handler) {
  return (event) => {
    if (!event.shiftKey) return handler(event);
    const { min, max } = plot.scales.x;
    const scale = (max - min) / plot.over.clientWidth;
    const move = ({ clientX }) => {
      const by = (event.clientX - clientX) * scale;
      for (const other of Plot.sync(SYNC).plots) other.setScale("x", { min: min + by, max: max + by });
    };
    const stop = () => (removeEventListener("pointermove", move), removeEventListener("pointerup", stop));
    addEventListener("pointermove", move);
    addEventListener("pointerup", stop);
    return null;
  };
}

function positive(series) {
  return series.every((one) => columnsOf(one).every((points) => points.every(([, y]) => y > 0)));
}

function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function short(value) {
  const size = Math.abs(value);
  if (size >= 1e6) return `${Number((value / 1e6).toPrecision(3))}M`;
  if (size >= 1e4) return `${Number((value / 1e3).toPrecision(3))}k`;
  return size && size < 1e-3 ? Number(value.toPrecision(3)).toExponential() : String(Number(value.toPrecision(4)));
}
