"""What holds for every integration: it is found under its name, it is light, and it says what it needs."""

from __future__ import annotations

import doctest
import importlib.util
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import rove as vf
from rove.errors import ConfigError
from rove.integrations.environments.libraries import needs

ROOT = Path(__file__).resolve().parents[1]
NEEDING: list[tuple[str, str, Callable[[], object]]] = [
    ("gymnasium", "gym", lambda: vf.GymEnv("FrozenLake-v1")),
    ("textarena", "textarena", lambda: vf.TextArenaEnv("TicTacToe-v0")),
    ("reasoning_gym", "reasoning-gym", lambda: vf.ReasoningGymEnv("gcd")),
]


@pytest.mark.parametrize(("module", "extra", "make"), NEEDING)
def test_a_library_that_is_missing_is_told(
    module: str, extra: str, make: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *_: None if name == module else find(name))
    with pytest.raises(ConfigError, match=rf"pip install 'rove\[{extra}\]'"):
        make()


def test_a_library_that_is_there_is_not_imported() -> None:
    program = "import sys\nfrom rove.integrations.environments.libraries import needs\nneeds('wave', 'x', 'it')\n"
    subprocess.run([sys.executable, "-c", f"{program}assert 'wave' not in sys.modules"], check=True)
    with pytest.raises(ConfigError, match="it needs 'no_such_library'"):
        needs("no_such_library", "x", "it")


PAGE = (ROOT / "docs/integrations.md").read_text(encoding="utf-8")
SECTIONS = dict(
    zip(re.findall(r"^## (.*)$", PAGE, flags=re.MULTILINE), re.split(r"^## .*$", PAGE, flags=re.MULTILINE)[1:])
)
LIBRARIES = {"Gymnasium": "gymnasium", "reasoning-gym": "reasoning_gym", "TextArena": "textarena"}


def examples_of(section: str, replaced: Callable[[str], str] = str) -> int:
    """Run the examples in Python of a section of the page; how many there are."""
    code = replaced("\n".join(re.findall(r"^```python\n(.*?)^```$", SECTIONS[section], flags=re.MULTILINE | re.DOTALL)))
    test = doctest.DocTestParser().get_doctest(code, {}, section, section, 0)
    report = io.StringIO()
    failed = doctest.DocTestRunner(verbose=False).run(test, out=report.write).failed
    assert not failed, report.getvalue()
    return len(test.examples)


@pytest.mark.parametrize("section", [name for name in SECTIONS if name != "OpenEnv"])
def test_the_page_prints_what_it_says(section: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = LIBRARIES.get(section)
    if library is not None and importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    monkeypatch.chdir(tmp_path)
    assert examples_of(section) >= 4


def served(words: list[str], folder: Path) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(words, cwd=folder, env=env, stdout=subprocess.PIPE, text=True)


def rove(line: str) -> list[str]:
    return [sys.executable, "-m", "rove.cli.main", *shlex.split(line)[1:]]


def test_the_page_serves_and_plays_over_open_env(tmp_path: Path) -> None:
    [serve] = re.findall(r"^rove serve .*$", SECTIONS["OpenEnv"], flags=re.MULTILINE)
    with served(rove(serve.replace("8000", "0")), tmp_path) as server:
        assert server.stdout is not None
        [url] = re.findall(r"http://127.0.0.1:\d+", server.stdout.readline())
        try:
            assert examples_of("OpenEnv", lambda code: code.replace("http://127.0.0.1:8000", url)) >= 4
        finally:
            server.terminate()


def test_the_page_isolates(tmp_path: Path) -> None:
    [line] = re.findall(r"^rove eval --isolated [a-z].*$", SECTIONS["Isolation"], flags=re.MULTILINE)
    with served(rove(line), tmp_path) as command:
        out, _ = command.communicate()
    assert command.returncode == 0 and "15 of 15 rollouts scored" in out


def test_the_package_of_the_page_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec("gymnasium") is None:
        pytest.skip("gymnasium is not installed")
    [(name, code)] = re.findall(r"^```python file=(\S+)\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
    (tmp_path / name).parent.mkdir()
    (tmp_path / name).write_text(code)
    monkeypatch.chdir(tmp_path)
    env = vf.load_environment(Path(name).stem, num_examples=3)
    assert len(env.get_dataset()) == 3
    summary = env.evaluate_sync(vf.ScriptedClient(env.players["random"]), num_examples=2)
    assert summary["scored"] == 2
