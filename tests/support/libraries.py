"""Test helpers for optional libraries."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

from rove.workers import Workers


def requires_library(module: str, install: str) -> pytest.MarkDecorator:
    """Skip the tests of an integration if its library is not installed."""
    missing = importlib.util.find_spec(module) is None
    return pytest.mark.skipif(missing, reason=f"{module} is not installed: pip install '{install}'")


class SharedHostMixin:
    """A mixin for environments whose worker processes take seconds to start: all tests of a module share one fork server.

    The fixture `shared_host` ends the shared process.
    """

    shared: ClassVar[Workers | None] = None

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.workers = SharedHostMixin.shared = SharedHostMixin.shared or self.workers

    async def end_workers(self) -> None:  # overrides a teardown hook; without the decorator it is none
        """Do nothing."""


@pytest.fixture(scope="module", autouse=True)
def shared_host() -> Iterator[None]:
    """End the shared process after a module's tests; for modules that use `SharedHostMixin`."""
    yield
    if SharedHostMixin.shared is not None:
        SharedHostMixin.shared.close()
        SharedHostMixin.shared = None
