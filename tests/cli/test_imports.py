"""What importing rove and starting its command line leaves out. One interpreter does all of it, step by step."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

PROGRAM = """
import contextlib, io, json, sys, time

def step(name):
    seconds = time.process_time() - started
    print(json.dumps([name, seconds, sorted(sys.modules)]))

started = time.process_time()
import rove
step("import rove")
from rove.cli.main import main
sys.argv = ["rove", "--help"]
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    main()
step("rove --help")
import rove.cli.rl, rove.cli.sft, rove.clients.openai
step("commands and clients")
import rove.compat
rove.compat.install()
import verifiers
verifiers.Rubric
step("import verifiers")
rove.PythonEnv, rove.SandboxEnv
"""
HEAVY = {"torch", "transformers", "datasets", "tokenizers", "numpy", "matplotlib", "openai", "mcp"}


@pytest.fixture(scope="module")
def steps() -> dict[str, Any]:
    """The CPU seconds and the loaded modules after each step."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return {name: (seconds, set(modules)) for name, seconds, modules in rows}


@pytest.mark.parametrize("step", ["import rove", "rove --help", "commands and clients", "import verifiers"])
def test_no_step_imports_a_heavy_library(steps: dict[str, Any], step: str) -> None:
    _, modules = steps[step]
    assert modules & HEAVY == set()


@pytest.mark.parametrize("step", ["import rove", "rove --help"])
def test_startup_is_fast(steps: dict[str, Any], step: str) -> None:
    seconds, modules = steps[step]
    print(f"\n{step}: {seconds:.3f} CPU-seconds")
    assert "aiohttp.web" not in modules
    assert seconds < 1.0


def test_importing_rove_imports_neither_the_sandbox_nor_the_hub(steps: dict[str, Any]) -> None:
    _, modules = steps["import rove"]
    assert [name for name in modules if "sandbox" in name] == []
    _, modules = steps["rove --help"]
    assert [name for name in modules if name.startswith(("rove.hub", "packaging"))] == []
