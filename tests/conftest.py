"""One thread for PyTorch, whichever test imports it first: what the figures in the tests were measured with."""

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from rove.sandbox import LocalBackend
from rove.sandbox.containment import ESSENTIAL

os.environ.setdefault("OMP_NUM_THREADS", "1")


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
