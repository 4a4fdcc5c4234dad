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

gc.set_threshold(*GC_THRESHOLDS)  # every command sets these thresholds, too
gc.disable()  # until all tests are collected, because imports create no garbage

# On a busy machine hypothesis draws inputs slowly; that is no fault of the tested code.
settings.register_profile("rove", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("rove")


@pytest.hookimpl(tryfirst=True)  # before -m reads the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Complete the marks, and reduce the number of hypothesis examples.

    A broad test also gets the mark "slow". A test with both marks, which may come from different parameters, is only slow.
    Each hypothesis test runs an eighth of its examples; with ROVE_EXAMPLES=all, as in `make test-slow`, it runs all of them.
    """
    for item in items:
        if item.get_closest_marker("slow"):
            item.own_markers = [mark for mark in item.own_markers if mark.name != "broad"]
        elif item.get_closest_marker("broad"):
            item.add_marker("slow")
    if os.environ.get("ROVE_EXAMPLES") == "all":
        return
    tests: set[Any] = {item.obj for item in items if isinstance(item, pytest.Function)}
    for test in filter(is_hypothesis_test, tests):  # hypothesis keeps a test's settings only in this attribute
        test_settings = test._hypothesis_internal_use_settings
        test._hypothesis_internal_use_settings = settings(
            test_settings, max_examples=max(5, test_settings.max_examples // 8)
        )


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Exclude all existing objects from garbage collection: thousands of tests, torch, and other libraries.

    Commands such as `rove train` and `rove eval` collect garbage several times, and each time would scan all of them.
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
    """Pretend that the CPU has bf16 products, because rove ignores bf16 settings without them; PyTorch emulates them."""
    monkeypatch.setattr("rove.models.linear.HAS_BF16_PRODUCTS", True)


@pytest.fixture(scope="session")
def contained() -> None:
    """Skip the test on machines that cannot contain code, where `LocalBackend` refuses to start."""

    async def missing() -> tuple[str, ...]:
        async with LocalBackend() as backend:
            return tuple((await backend.describe()).missing)

    with ThreadPoolExecutor(1) as pool:  # in another thread, because asyncio.run needs its own event loop
        lines = pool.submit(asyncio.run, missing()).result()
    if {line.split(":")[0] for line in lines} & set(ESSENTIAL):
        pytest.skip("this machine cannot contain code: " + "; ".join(lines))
