"""Progress within a training step, for people who wait for it; it changes nothing that is computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")

OnProgress = Callable[[str, int, int], None]
"""Called with what is counted ("rollouts"), how many are done, and how many there are. It may be called from any thread."""


def ignore(what: str, done: int, total: int) -> None:
    """Report nothing."""


def counted(items: Sequence[T], what: str, on_progress: OnProgress) -> Iterator[T]:
    """Yield the items; report before the first and after each how many are done."""
    on_progress(what, 0, len(items))
    for done, item in enumerate(items, start=1):
        yield item
        on_progress(what, done, len(items))
