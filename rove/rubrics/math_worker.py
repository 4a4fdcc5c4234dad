"""The worker program of `MathPool`. It does not import rove, so that it starts quickly."""

from __future__ import annotations

from math_verify import parse, verify


class Session:
    """Compares answers."""

    def compare(self, answer: str, response: str) -> bool | None:
        """Return whether two answers are equal; None if the right answer cannot be parsed."""
        # No time limits here: math-verify's use signals, which C code may delay. The worker's limit ends the process.
        expected = parse(f"\\boxed{{{answer}}}", parsing_timeout=None)  # pyright: ignore[reportArgumentType]
        if not expected:
            return None
        given = parse(f"\\boxed{{{response}}}", parsing_timeout=None)  # pyright: ignore[reportArgumentType]
        return bool(verify(expected, given, timeout_seconds=None))


def setup() -> None:
    """Import everything before the first time limit starts."""
    Session().compare("1", "1")
