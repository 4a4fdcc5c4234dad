"""Run PyTorch with one thread and without a GPU: the expected figures of the tests were measured this way."""

import asyncio
import gc
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings

from rove.sandbox import LocalBackend
from rove.sandbox.containment import ESSENTIAL
from rove.utils.processes import GC_THRESHOLDS

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

gc.set_threshold(*GC_THRESHOLDS)  # as every command does
gc.disable()  # until all tests are collected: nothing that an import makes is garbage

# Whether a busy machine draws inputs slowly says nothing about what is tested.
settings.register_profile("rove", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("rove")


@pytest.hookimpl(tryfirst=True)  # before -m looks at the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What is broad is slow, and what is marked slow is not broad, whatever the other parameters of the test say. An eighth of
    the inputs that hypothesis would draw, all of them with ROVE_EXAMPLES=all, as `make test-slow` has it.
    """
    for item in items:
        if item.get_closest_marker("slow"):
            item.own_markers = [mark for mark in item.own_markers if mark.name != "broad"]
        elif item.get_closest_marker("broad"):
            item.add_marker("slow")
    if os.environ.get("ROVE_EXAMPLES") == "all":
        return
    tests: set[Any] = {item.obj for item in items if isinstance(item, pytest.Function)}
    for test in filter(is_hypothesis_test, tests):  # the one place where hypothesis keeps what a test is run with
        asked = test._hypothesis_internal_use_settings
        test._hypothesis_internal_use_settings = settings(asked, max_examples=max(5, asked.max_examples // 8))


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Exclude what exists from garbage collection: thousands of tests, torch and other libraries. Commands such as `rove train`
    and `rove eval` collect garbage several times, and each time would scan all of it.
    """
    gc.enable()
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def index_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache folder of the test session for the viewer's indexes."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rove.viewer.index.cache_folder", lambda: folder)
        yield folder / "indexes"


@pytest.fixture
def bf16_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of bf16 settings, which a CPU without bf16 products ignores. PyTorch computes the products there too, slowly."""
    monkeypatch.setattr("rove.models.linear.HAS_BF16_PRODUCTS", True)


@pytest.fixture(scope="session")
def contained() -> None:
    """For tests of what holds only where a machine can contain code; elsewhere `LocalBackend` refuses, as attacks show."""

    async def missing() -> tuple[str, ...]:
        async with LocalBackend() as backend:
            return tuple((await backend.describe()).missing)

    with ThreadPoolExecutor(1) as pool:  # a loop of its own, beside that of the tests
        lines = pool.submit(asyncio.run, missing()).result()
    if {line.split(":")[0] for line in lines} & set(ESSENTIAL):
        pytest.skip("this machine cannot contain code: " + "; ".join(lines))
