"""Write Markdown for pull requests. Run folders may come from strangers, so none of their text acts as markup."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from rove.cli.tables import comparison_row
from rove.statistics import Comparison
from rove.viewer.format import caveats

MAX_TEXT = 200
"""Characters of one name, value or note; longer ones end with "…"."""


def comparison_markdown(comparison: Comparison, settings: Mapping[str, Sequence[Any]]) -> str:
    """Return a comparison as Markdown: the verdict, a table of all values, notes, and the settings that differ.

    Args:
        settings: Both values of each setting that differs, by name; None where a run does not have it.
    """
    head = ["value", *comparison.names, "difference", "95 % interval", ""]
    align = ["---", "---:", "---:", "---:", "---:", "---"]
    values = (comparison.main, *comparison.others)
    rows = [comparison_row(one) for one in values]
    noted = caveats({"caveat": one.caveat} for one in values)
    lines = [
        f"**{plain(comparison.verdict)}**",
        "",
        _line([head[0], *map(code, head[1:3]), *head[3:]]),
        _line(align),
        *(_line([code(name), *map(plain, cells)]) for name, *cells in rows),
    ]
    if comparison.paired:
        counts = f"higher on {comparison.wins}, equal on {comparison.ties}, lower on {comparison.losses}"
        lines += ["", f"{code(comparison.names[1])}: {counts} examples"]
    notes = [*comparison.notes, *([noted] if noted else [])]
    if notes:
        lines += ["", *(f"- {plain(note)}" for note in notes)]
    if settings:
        lines += ["", "Settings that differ:", ""]
        lines += [f"- {code(name)}: {_value(old)} → {_value(new)}" for name, (old, new) in settings.items()]
    return "\n".join(lines) + "\n"


def plain(text: str) -> str:
    """Escape text so that Markdown shows it as it is, on one line, and GitHub links and notifies nothing."""
    escaped = re.sub(r"([\\`*_{}\[\]<>()#!|~&@:$^])", r"\\\1", _one_line(text))
    escaped = re.sub(r"(www)\.", r"\1\\.", escaped, flags=re.IGNORECASE)
    return escaped.replace("@", "@\u2060")  # GitHub finds names after "@" in the text that it has rendered


def code(text: str) -> str:
    """Return text as inline code, also for a table's cell; in code GitHub interprets no markup, links or names."""
    line = _one_line(text).replace("|", "\u2502") or " "  # a "|" would end the cell
    fence = "`" * (max(map(len, re.findall("`+", line)), default=0) + 1)
    pad = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{fence}{pad}{line}{pad}{fence}"


def _value(value: Any) -> str:
    return "not set" if value is None else code(repr(value))


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _one_line(text: str) -> str:
    """Return text without line ends, control and formatting characters, cut off after `MAX_TEXT` characters."""
    cut = text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 1]}…"
    hidden = ("Cc", "Cf", "Cs", "Zl", "Zp")
    return " ".join("".join(" " if unicodedata.category(c) in hidden else c for c in cut).split())
