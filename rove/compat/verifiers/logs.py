"""v0's helpers for logging and for printing rollouts."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import islice
from typing import Any

from rich.table import Table

from rove.compat.verifiers.messages import message_to_printable
from rove.utils.console import SafeConsole

NAME = "verifiers"


def setup_logging(level: str | None = "INFO", **ignored: Any) -> None:
    """Log messages of this level and higher levels."""
    logging.getLogger(NAME).setLevel((level or "INFO").upper())


@contextmanager
def log_level(level: str | int) -> Iterator[None]:
    """Log messages of this level and higher levels within the context."""
    logger = logging.getLogger(NAME)
    previous_level = logger.level
    logger.setLevel(level.upper() if isinstance(level, str) else level)
    try:
        yield
    finally:
        logger.setLevel(previous_level)


def quiet_verifiers() -> AbstractContextManager[None]:
    """Log only warnings and errors within the context."""
    return log_level("WARNING")


def format_messages(messages: Any) -> str:
    """Return a conversation as readable text."""
    if isinstance(messages, str):
        return messages
    lines: list[str] = []
    for message in messages:
        printable = message_to_printable(message)
        lines.append(f"{printable['role']}: {printable.get('content') or ''}")
        lines += [f"[tool call] {call}" for call in printable.get("tool_calls") or []]
    return "\n\n".join(lines)


def print_prompt_completions_sample(
    prompts: Sequence[Any],
    completions: Sequence[Any],
    errors: Sequence[Any],
    rewards: Sequence[float],
    step: int,
    num_samples: int = 1,
) -> None:
    """Print a few rollouts as a table."""
    table = Table("Prompt", "Completion", "Reward", title=f"Step {step}")
    rows = zip(prompts, completions, errors, rewards, strict=False)
    for prompt, completion, error, reward in islice(rows, num_samples):
        failed = f"\n\nerror: {error!r}" if error is not None else ""
        table.add_row(format_messages(prompt), format_messages(completion) + failed, f"{reward:.2f}")
    SafeConsole().print(table)


def print_time(seconds: float) -> str:
    """Return seconds as text: "12ms", "3s", "2m 5s", "1h 10m", "2d"."""
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    for size, name, smaller_size, smaller_name in _TIME_UNITS:
        if seconds >= size:
            text = f"{seconds // size:.0f}{name}"
            remainder = seconds % size // smaller_size
            return f"{text} {remainder:.0f}{smaller_name}" if remainder else text
    return f"{seconds:.0f}s"


_TIME_UNITS = ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s"))
"""Seconds and name of a unit, and of the next smaller one."""
