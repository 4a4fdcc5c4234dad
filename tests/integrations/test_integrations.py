"""Test all integrations: missing libraries are reported, imports are lazy, and the examples of the docs run."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

import rove as vf
from rove.core.errors import ConfigError
from rove.integrations import require_library

ROOT = Path(__file__).resolve().parents[2]
REQUIRED_LIBRARIES: list[tuple[str, str, Callable[[], object]]] = [
    ("gymnasium", "gym", lambda: vf.GymEnv("FrozenLake-v1")),
    ("textarena", "textarena", lambda: vf.TextArenaEnv("TicTacToe-v0")),
    ("reasoning_gym", "reasoning-gym", lambda: vf.ReasoningGymEnv("gcd")),
]


@pytest.mark.parametrize(("module", "extra", "make"), REQUIRED_LIBRARIES)
def test_a_missing_library_is_reported(
    module: str, extra: str, make: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *_: None if name == module else find(name))
    with pytest.raises(ConfigError, match=rf"pip install 'rove\[{extra}\]'"):
        make()


def test_a_release_of_art_without_exchanges_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "art", ModuleType("art"))
    monkeypatch.setitem(sys.modules, "art.trajectories", ModuleType("art.trajectories"))
    monkeypatch.delitem(sys.modules, "rove.integrations.art", raising=False)
    with pytest.raises(
        ConfigError, match=r"openpipe-art 0.5.23 or later, which needs Python 3.12 or later: pip install"
    ):
        importlib.import_module("rove.integrations.art")


def test_checking_for_a_library_does_not_import_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "wave", raising=False)
    require_library("wave", "x", "it")
    assert "wave" not in sys.modules
    with pytest.raises(ConfigError, match="it needs 'no_such_library'"):
        require_library("no_such_library", "x", "it")


PAGE = (ROOT / "docs/integrations.md").read_text(encoding="utf-8")
SECTIONS = dict(
    zip(re.findall(r"^## (.*)$", PAGE, flags=re.MULTILINE), re.split(r"^## .*$", PAGE, flags=re.MULTILINE)[1:])
)
LIBRARIES = {"Gymnasium": "gymnasium", "reasoning-gym": "reasoning_gym", "TextArena": "textarena"}


def run_examples(section: str, replaced: Callable[[str], str] = str) -> int:
    """Write the files of a section of the page, run its Python examples, and return their number."""
    files = re.findall(r"^```python file=(\S+)\n(.*?)^```$", SECTIONS[section], flags=re.MULTILINE | re.DOTALL)
    for name, text in files:
        Path(name).write_text(text, encoding="utf-8")
    code = replaced("\n".join(re.findall(r"^```python\n(.*?)^```$", SECTIONS[section], flags=re.MULTILINE | re.DOTALL)))
    test = doctest.DocTestParser().get_doctest(code, {}, section, section, 0)
    report = io.StringIO()
    failed = doctest.DocTestRunner(verbose=False).run(test, out=report.write).failed
    assert not failed, report.getvalue()
    return len(test.examples)


SECTIONS_TESTED_ELSEWHERE = (
    "Names of environments",
    "OpenEnv",
    "skyrl-gym",
    "Tasksets of verifiers v1",
    "Training in them",
)
"""Sections whose examples are run by other tests."""


@pytest.mark.broad
@pytest.mark.parametrize("section", [name for name in SECTIONS if name not in SECTIONS_TESTED_ELSEWHERE])
def test_examples_of_the_page_have_the_shown_output(
    section: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = LIBRARIES.get(section)
    if library is not None and importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)  # as in an interactive session
    assert run_examples(section) >= 4


def start_process(words: list[str], folder: Path) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(words, cwd=folder, env=env, stdout=subprocess.PIPE, text=True)


def rove_command(line: str) -> list[str]:
    return [sys.executable, "-m", "rove.cli.main", *shlex.split(line)[1:]]


@pytest.mark.broad
def test_the_pages_open_env_server_and_client_run(tmp_path: Path) -> None:
    [serve] = re.findall(r"^rove serve .*$", SECTIONS["OpenEnv"], flags=re.MULTILINE)
    with start_process(rove_command(serve.replace("8000", "0")), tmp_path) as server:
        assert server.stdout is not None
        [url] = re.findall(r"http://127.0.0.1:\d+", server.stdout.readline())
        try:
            assert run_examples("OpenEnv", lambda code: code.replace("http://127.0.0.1:8000", url)) >= 4
        finally:
            server.terminate()


@pytest.mark.broad
def test_the_pages_isolated_commands_run(tmp_path: Path) -> None:
    lines = re.findall(r"^rove [a-z]+ --isolated [a-z].*$", SECTIONS["Isolation"], flags=re.MULTILINE)
    for line, expected in zip(lines, ["15 of 15 rollouts scored", "reward of the model: "], strict=True):
        with start_process(rove_command(line), tmp_path) as command:
            output, _ = command.communicate()
        assert command.returncode == 0 and expected in output


PACKAGES = dict(re.findall(r"^```python file=environments/(\w+).py\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL))
SMALLER_VALUES = {"4000": "1500", "500": "20", "30": "1", "8": "2", "40": "1", "64": "8", "256": "8", "16": "4"}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "library"), [("frozen_lake", "gymnasium"), ("sums", "reasoning_gym")])
def test_the_pages_training_commands_run(name: str, library: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    (tmp_path / "environments").mkdir()
    (tmp_path / f"environments/{name}.py").write_text(PACKAGES[name])
    [block] = [
        block
        for block in re.findall(r"^```bash\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
        if f"--env {name}" in block
    ]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    for line in block.splitlines():
        command = [SMALLER_VALUES.get(word, word) for word in rove_command(line)]
        completed = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
        assert completed.returncode == 0, f"{line}\n{completed.stdout}\n{completed.stderr}"
    [metrics] = (tmp_path / "runs").glob("*-rl/metrics.jsonl")
    assert '"reward/mean"' in metrics.read_text()
