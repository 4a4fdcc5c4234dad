"""Counts, sizes and durations for people."""

from __future__ import annotations


def counted(count: int, noun: str) -> str:
    """Return a count with its noun in the singular or plural."""
    plural = "" if count == 1 else "s"
    return f"{count:,} {noun}{plural}"


def human_bytes(count: float) -> str:
    """Format a size with two or three digits: 820 kB, 1.4 GB."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            digits = 0 if count >= 10 or unit == "B" else 1
            return f"{count:.{digits}f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def human_seconds(seconds: float) -> str:
    """Format a duration: under 1 ms, 0.12 s, 12 s, 5.0 min, 3.2 h, 2.1 days. The viewer's `seconds` does the same."""
    if 0 < seconds < 0.001:
        return "under 1 ms"
    if seconds < 10:
        rounded = float(f"{seconds:.2g}")  # :.2g alone writes 9.96 as 1e+01
        return f"{rounded:g} s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    for size, unit in ((60, "min"), (3600, "h")):
        if seconds / size < 100:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds / 86400:.1f} days"
