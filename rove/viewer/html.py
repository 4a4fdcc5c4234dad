"""Pieces of an HTML page. Whatever is shown passes through `text`, which escapes it; nothing else may."""

from __future__ import annotations

import base64
import hashlib
import html
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rove.viewer.tables import number

BINS = 20
"""Bars of a histogram, when the values are too many to have one each."""
FEW = 10
"""So many different values have a bar each."""
WIDTH, HEIGHT = 240, 64
"""Of a histogram, in its own units."""


def text(value: Any) -> str:
    """A value as harmless text."""
    return html.escape(str(value))


def shown(value: Any) -> str:
    """A number for people; "–" where there is none."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "–"
    return f"{value:,}" if isinstance(value, int) else number(value)


def short(value: float) -> str:
    """One measured value, in four digits and no more than it needs."""
    return f"{value:.4g}"


def cut(value: str, limit: int) -> str:
    """A text of about `limit` characters at most, its middle left out, which is said."""
    if len(value) <= limit:
        return value
    head = limit * 2 // 3
    return f"{value[:head]}\n… {len(value) - limit:,} characters left out …\n{value[len(value) - (limit - head) :]}"


def excerpt(value: str, limit: int) -> str:
    """The start of a text, on one line."""
    line = " ".join(value[: 4 * limit].split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def tag(name: str, content: str, kind: str = "") -> str:
    """An element around content that is HTML already."""
    return f'<{name} class="{kind}">{content}</{name}>' if kind else f"<{name}>{content}</{name}>"


def block(value: str) -> str:
    """A text as it stands, spaces and lines kept."""
    return tag("pre", text(value))


def fold(title: str, content: str, kind: str = "") -> str:
    """HTML that is shown when its title, HTML too, is clicked."""
    return f'<details class="{kind}"><summary>{title}</summary>{content}</details>'


def table(head: Sequence[str], rows: Iterable[Sequence[str]], kind: str = "") -> str:
    """A table of cells that are HTML already; columns after the first are numbers."""
    titles = "".join(tag("th", text(title)) for title in head)
    body = "\n".join(tag("tr", "".join(tag("td", cell) for cell in row)) for row in rows)
    return tag("div", tag("table", f"<thead><tr>{titles}</tr></thead><tbody>\n{body}\n</tbody>", kind), "wide")


def histogram(name: str, values: Sequence[float]) -> str:
    """How often which value came, as a small drawing."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return ""
    bars = _bars(finite)
    step, highest = WIDTH / len(bars), max(count for _, count in bars)
    drawn = "".join(
        f'<rect x="{i * step + 1:.1f}" y="{HEIGHT * (1 - count / highest):.1f}" width="{step - 2:.1f}" '
        f'height="{HEIGHT * count / highest:.1f}"><title>{text(label)}: {count:,}</title></rect>'
        for i, (label, count) in enumerate(bars)
    )
    ends = [short(value) for value in sorted({min(finite), max(finite)})]
    return tag(
        "figure",
        tag("figcaption", tag("b", text(name)) + tag("span", f"mean {shown(math.fsum(finite) / len(finite))}"))
        + f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="histogram of {text(name)}">{drawn}</svg>'
        + tag("div", "".join(tag("span", end) for end in ends), "ends"),
    )


def _bars(values: Sequence[float]) -> list[tuple[str, int]]:
    """Label and count of every bar: one for each value if they are few, else one for each of equal stretches."""
    counts = Counter(values)
    if len(counts) <= FEW:
        return [(short(value), counts[value]) for value in sorted(counts)]
    low, high = min(values), max(values)
    width = (high - low) / BINS
    bins = Counter(min(BINS - 1, int((value - low) / width)) for value in values)
    return [(f"{short(low + i * width)} to {short(low + (i + 1) * width)}", bins[i]) for i in range(BINS)]


def page(title: str, body: Iterable[str]) -> Iterable[str]:
    """A whole page that needs nothing but itself, piece by piece."""
    folder = Path(__file__).parent
    style, script = ((folder / f"report.{kind}").read_text(encoding="utf-8") for kind in ("css", "js"))
    yield f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{text(title)}</title>\n'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
    yield f'<meta http-equiv="Content-Security-Policy" content="{_policy(script)}">\n'
    yield f"<style>{style}</style></head><body><main>\n"
    for piece in body:
        yield piece + "\n"
    yield f"</main><script>{script}</script></body></html>\n"


def _policy(script: str) -> str:
    """Nothing is loaded, and no script runs but this one, whatever a rollout says."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
