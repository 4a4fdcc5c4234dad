// A table of any length: only the rows in sight exist, and rows are fetched in blocks as they come into sight.
import { Component, el } from "./dom.js";

const BLOCK = 100;
const AROUND = 12;

/**
 * Properties: `total`; `first`, the rows from `start` on, a multiple of BLOCK; `fetch(offset, limit)`; `draw(row, place)`, a row
 * as <tr>; `head`, its titles; `offset`, the place to begin at.
 */
export class Rows extends Component {
  blocks = new Map();
  asked = new Set();
  state = { top: 0, height: 48, window: 600 };

  componentDidMount() {
    const height = this.measure();
    this.seen = new ResizeObserver(() => this.measure());
    this.seen.observe(this.box);
    if (this.props.offset) this.setState({ height }, () => (this.box.scrollTop = this.props.offset * height));
  }

  componentWillUnmount() {
    this.seen.disconnect();
  }

  measure() {
    const height = this.box.querySelector("tbody tr[data-place]")?.offsetHeight || this.state.height;
    this.setState({ height, window: this.box.clientHeight });
    return height;
  }

  componentDidUpdate(before) {
    if (before.first !== this.props.first) {
      this.blocks.clear();
      this.asked.clear();
      this.setState({});
    }
    if (this.wanted !== undefined) this.box.querySelector(`tr[data-place="${this.wanted}"] a`)?.focus({ preventScroll: true });
    this.wanted = undefined;
  }

  /** The row at a place, or null while it is fetched. */
  row(place) {
    const { first, start, fetch } = this.props;
    if (place >= start && place < start + first.length) return first[place - start];
    const block = Math.floor(place / BLOCK);
    if (!this.asked.has(block)) {
      this.asked.add(block);
      fetch(block * BLOCK, BLOCK).then((rows) => (this.blocks.set(block, rows), this.setState({})), () => this.asked.delete(block));
    }
    return this.blocks.get(block)?.[place - block * BLOCK] ?? null;
  }

  keys(event) {
    const at = event.target.closest("tr[data-place]")?.dataset.place;
    const by = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1 }[event.key];
    if (at === undefined || !by || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    this.wanted = Math.max(0, Math.min(this.props.total - 1, Number(at) + by));
    const { height, window } = this.state;
    const top = this.box.scrollTop;
    this.box.scrollTop = Math.max(Math.min(top, this.wanted * height), (this.wanted + 2) * height - window);
    this.setState({});
  }

  render({ total, draw, head }, { top, height, window }) {
    const from = Math.max(0, Math.floor(top / height) - AROUND);
    const to = Math.min(total, Math.ceil((top + window) / height) + AROUND);
    const places = Array.from({ length: Math.max(0, to - from) }, (_, i) => from + i);
    const space = (rows, key) => rows > 0 && el("tr", { key, class: "space", "aria-hidden": "true", style: { height: `${rows * height}px` } });
    const row = (place) => {
      const found = this.row(place);
      return found ? draw(found, place) : el("tr", { key: place, "data-place": place }, el("td", { colspan: 99, class: "note" }, "…"));
    };
    return el("div", { class: "wide long", tabindex: 0, role: "region", "aria-label": "Table of rollouts", ref: (box) => (this.box = box ?? this.box), on: { scroll: (event) => this.setState({ top: event.target.scrollTop }), keydown: (event) => this.keys(event) } },
      el("table", { class: "rollouts", "aria-rowcount": total + 1 }, el("thead", {}, el("tr", {}, head)), el("tbody", {}, space(from, "above"), places.map(row), space(total - to, "below"))));
  }
}
