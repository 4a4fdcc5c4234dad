"""What a math worker does: it says whether two answers mean the same. Knows nothing of rove, so that it loads little else."""

from __future__ import annotations

from math_verify import parse, verify


class Session:
    """Compares, one pair after another."""

    def compare(self, answer: str, response: str) -> bool | None:
        """Whether they mean the same; None where the right answer itself is no mathematics."""
        # Its own time limits are signals that Python code must see; those of workers need nobody's cooperation.
        known = parse(f"\\boxed{{{answer}}}", parsing_timeout=None)  # pyright: ignore[reportArgumentType]
        if not known:
            return None
        said = parse(f"\\boxed{{{response}}}", parsing_timeout=None)  # pyright: ignore[reportArgumentType]
        return bool(verify(known, said, timeout_seconds=None))


def setup() -> None:
    """Imports and tables, before the first clock runs."""
    Session().compare("1", "1")
