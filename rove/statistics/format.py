"""Format numbers, intervals and curves as text, and shorten texts."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence

from rove.core.plain import JsonValue
from rove.utils.units import human_seconds

SPARKS = "▁▂▃▄▅▆▇█"


def percent(value: float | None) -> str:
    """Format a share as a percentage: 0.123 → "12.3"; None → "–"."""
    return "–" if value is None or math.isnan(value) else f"{100 * value:.1f}"


def number(value: float | None, digits: int = 3) -> str:
    """Format a value with `digits` decimals, or with 4 significant digits if it is 1000 or more; None or nan → "–"."""
    if value is None or math.isnan(value):
        return "–"
    if abs(value) >= 1000 or value == 0:
        return f"{value:.4g}"
    return f"{value:.{digits}f}"


def cost_text(value: float | None, digits: int = 4) -> str:
    """Format a cost with `digits` significant digits, since it may be a fraction of a cent; None or nan → "–"."""
    return "–" if value is None or math.isnan(value) else f"{value:.{digits}g}"


def limits(estimate: Mapping[str, object]) -> tuple[float, float] | None:
    """Return the limits of the interval of an estimate from a summary; None without limits."""
    low, high = estimate.get("low"), estimate.get("high")
    if not isinstance(low, (int, float)) or not isinstance(high, (int, float)):
        return None
    return (float(low), float(high)) if math.isfinite(low) and math.isfinite(high) else None


def interval(estimate: Mapping[str, object], digits: int = 3) -> str:
    """Return an interval as text, "[0.722, 0.990]", with an asterisk if it has a caveat; "–" without an interval."""
    mark = "*" if estimate.get("caveat") else ""
    bounds = limits(estimate)
    if bounds is None:
        return f"–{mark}"
    low, high = bounds
    return f"[{number(low, digits)}, {number(high, digits)}]{mark}"


def caveats(estimates: Iterable[Mapping[str, object]]) -> str:
    """Return the caveats of these intervals as one line; "" if there are none."""
    texts = dict.fromkeys(str(estimate["caveat"]) for estimate in estimates if estimate.get("caveat"))
    return f"* {'; '.join(texts)}" if texts else ""


def duration(value: object) -> str:
    """Format seconds as `human_seconds` does; "–" if the value is not a finite number."""
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        return "–"
    return human_seconds(value)


def version_words(spans: Sequence[tuple[int, int]]) -> str:
    """Return the policy versions in spans of (version, tokens) as text: "versions 3–5"; "" without a span."""
    versions = [version for version, _ in spans]
    if not versions:
        return ""
    first, last = min(versions), max(versions)
    return f"version {first:,}" if first == last else f"versions {first:,}–{last:,}"


def sparkline(values: Sequence[float | None], width: int = 40) -> str:
    """Return a curve as one line of text, averaged down to `width` characters; None and non-finite values are omitted."""
    clean = [value for value in values if value is not None and math.isfinite(value)]
    if not clean:
        return ""
    size = max(1, math.ceil(len(clean) / width))
    points: list[float] = []
    for start in range(0, len(clean), size):
        piece = clean[start : start + size]
        points.append(sum(piece) / len(piece))
    low, high = min(points), max(points)
    spread = (high - low) or 1.0  # equal values are a flat line
    heights = [min(7, int((point - low) / spread * 8)) for point in points]
    return "".join(SPARKS[height] for height in heights)


def signed(value: float | None) -> str:
    """Format a value as `number` does, with a sign even for positive values."""
    return f"+{number(value)}" if value is not None and value > 0 else number(value)


def folded(name: str, width: int) -> str:
    """Return a name with line breaks after its separators, so that a narrow column does not break it inside a word."""
    lines = [""]
    for part in re.findall(r"[^-_./ ]+[-_./ ]*|[-_./ ]+", name):
        if lines[-1] and len(lines[-1]) + len(part) > width:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)


def cut(value: str, limit: int) -> str:
    """Shorten a text to about `limit` characters by replacing its middle with a note."""
    if len(value) <= limit:
        return value
    head = limit * 2 // 3
    return f"{value[:head]}\n… {len(value) - limit:,} characters left out …\n{value[len(value) - (limit - head) :]}"


def shown(value: JsonValue) -> str:
    """Format a number; None or non-finite → "–"."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "–"
    return f"{value:,}" if isinstance(value, int) else number(value)


def excerpt(value: str, limit: int) -> str:
    """Return the start of a text on one line."""
    line = " ".join(value[: 4 * limit].split())
    return line if len(line) <= limit else line[: limit - 1] + "…"
