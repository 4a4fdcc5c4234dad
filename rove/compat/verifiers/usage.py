"""Tokens of a rollout, counted while it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any


class UsageTracker:
    """Adds up input and output tokens; `usage` shows them as they are now."""

    def __init__(self) -> None:
        self._totals = {"input_tokens": 0.0, "output_tokens": 0.0}
        self._told = False
        self.usage: Mapping[str, float] = MappingProxyType(self._totals)

    def __deepcopy__(self, memo: Any) -> UsageTracker:
        return self

    def increment(self, input_tokens: float = 0, output_tokens: float = 0) -> None:
        """Add tokens.

        Raises:
            ValueError: less than none.
        """
        if (input_tokens or 0) < 0 or (output_tokens or 0) < 0:
            raise ValueError("Token usage increments must be non-negative.")
        self._told = True
        self._totals["input_tokens"] += float(input_tokens or 0)
        self._totals["output_tokens"] += float(output_tokens or 0)

    def snapshot(self) -> dict[str, float] | None:
        """The totals; None where nobody has told any."""
        return dict(self._totals) if self._told else None


def context_tokens(trajectory: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Of a conversation's last turn: the tokens that the model wrote in it all, and the others."""
    told = [step["response"]["usage"] for step in trajectory if (step.get("response") or {}).get("usage") is not None]
    written = sum(usage["completion_tokens"] for usage in told)
    last = told[-1]["prompt_tokens"] + told[-1]["completion_tokens"] if told else 0
    return {"final_output_tokens": written, "final_input_tokens": max(0, last - written)}
