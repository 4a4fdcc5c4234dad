"""Libraries that a test needs and this environment may not have."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

from rove.workers import Workers


def needs_library(module: str, install: str) -> pytest.MarkDecorator:
    """Skips tests of an integration where its library is not installed."""
    missing = importlib.util.find_spec(module) is None
    return pytest.mark.skipif(missing, reason=f"{module} is not installed: pip install '{install}'")


class Lasting:
    """Put before an environment's class: all of a module's tests share one host process, since starting one takes seconds.

    With the fixture `shared_host`, which ends it.
    """

    shared: ClassVar[Workers | None] = None

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.workers = Lasting.shared = Lasting.shared or self.workers

    async def end_workers(self) -> None:  # not marked: a run leaves it alone
        """Nothing."""


@pytest.fixture(scope="module", autouse=True)
def shared_host() -> Iterator[None]:
    """Imported by a module whose tests have environments that are `Lasting`."""
    yield
    if Lasting.shared is not None:
        Lasting.shared.close()
        Lasting.shared = None
