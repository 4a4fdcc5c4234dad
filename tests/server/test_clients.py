"""Third-party clients against `rove serve` with a tiny model; `make test-clients` installs them all."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes import tiny_model
from server_clients import CLIENTS

from tests.cli.test_serve import server

PYTHON = os.environ.get("ROVE_CLIENTS", sys.executable)
"""Interpreter that has the clients' packages installed."""
SCRIPT = Path(__file__).parents[1].joinpath("support", "server_clients.py")
OFFLINE = {
    "NO_PROXY": "*",
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """Yield the base URL of a server and its model folder; the context is long because agents' instructions are long."""
    folder = tmp_path_factory.mktemp("clients")
    tiny_model(seed=1, context=1 << 15).save(folder / "tiny")
    with server(folder, str(folder / "tiny"), "--name", "tiny") as (url, _):
        yield url, folder / "tiny"


@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_works_with_the_server(name: str, served: tuple[str, Path], tmp_path: Path):
    module, _ = CLIENTS[name]
    check_installed = "import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)"
    if subprocess.run([PYTHON, "-c", check_installed, module], cwd=tmp_path).returncode:
        pytest.skip(f"{name} is not installed in {PYTHON}: run make test-clients")
    url, folder = served
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | OFFLINE
    environment |= {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    completed = subprocess.run(
        [PYTHON, str(SCRIPT), name, url, str(folder)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert completed.returncode == 0, f"{completed.stdout}\n{completed.stderr}"
