// Format numbers and times.
export const NONE = "–";

/** A measured value in four digits and no more than it needs. */
export function number(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return NONE;
  if (Number.isInteger(value)) return (value || 0).toLocaleString("en");
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-3) return value.toExponential(2);
  return String(Number(value.toPrecision(4)));
}

/** The limits of an interval, or null. */
export const limits = ({ low, high }) => (Number.isFinite(low) && Number.isFinite(high) ? [low, high] : null);

/** An interval as text, with an asterisk where it has a caveat. */
export function range(estimate) {
  const found = limits(estimate);
  const mark = estimate.caveat ? "*" : "";
  return found ? `[${found[0].toFixed(3)}, ${found[1].toFixed(3)}]${mark}` : NONE + mark;
}

/** The caveats of intervals as one line; "" without any. */
export function caveats(estimates) {
  const texts = [...new Set(estimates.map((one) => one.caveat).filter(Boolean))];
  return texts.length ? `* ${texts.join("; ")}` : "";
}

/** A value with its sign. */
export const signed = (value) => value === null || value === undefined ? NONE : (value > 0 ? "+" : "") + number(value);

/** A duration, as `human_seconds` in utils/units.py formats it: under 1 ms, 0.12 s, 12 s, 5.0 min, 3.2 h, 2.1 days. */
export function seconds(value) {
  if (value === null || value === undefined) return NONE;
  if (value > 0 && value < 0.001) return "under 1 ms";
  if (value < 10) return `${Number(value.toPrecision(2))} s`;
  if (value < 100) return `${Math.round(value)} s`;
  if (value < 6000) return `${(value / 60).toFixed(1)} min`;
  return value < 360000 ? `${(value / 3600).toFixed(1)} h` : `${(value / 86400).toFixed(1)} days`;
}

export function bytes(value) {
  const unit = Math.max(0, Math.min(3, Math.floor(Math.log10(value || 1) / 3)));
  const size = value / 1000 ** unit;
  return `${unit && size < 10 ? size.toFixed(1) : Math.round(size)} ${["B", "kB", "MB", "GB"][unit]}`;
}

/** When something was, seen from now; `when` in seconds since 1970. */
export function ago(when, now = Date.now() / 1000) {
  if (!when) return NONE;
  const past = Math.max(0, now - when);
  if (past < 60) return "just now";
  if (past < 3600) return `${Math.floor(past / 60)} min ago`;
  if (past < 86400) return `${Math.floor(past / 3600)} h ago`;
  return new Date(when * 1000).toISOString().slice(0, 10);
}

export const counted = (count, what) => `${number(count)} ${what}${count === 1 ? "" : "s"}`;

/** A name for people: `score.win` → win. */
export const plain = (name) => name.replace(/^score\./, "").replaceAll("_", " ");
