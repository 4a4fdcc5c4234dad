"""A new user's path: create an environment, publish it, and install and evaluate it elsewhere.

The test runs real processes, a real hub and a second virtual environment that contains only rove.
"""

from __future__ import annotations

import itertools
import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
MAX_CPU_MINUTES = 3


class Machine:
    """A user's home folder and an interpreter that has rove."""

    def __init__(self, home: Path, python: Path, **variables: str):
        self.home, self.python = home, python
        home.mkdir(parents=True, exist_ok=True)
        self.env = {"PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8", **variables}

    def rove(self, *words: str, **options: Any) -> str:
        return self.run(self.python, "-m", "rove.cli.main", *words, **options)

    def run(self, *words: str | Path, **options: Any) -> str:
        done = subprocess.run(
            words, cwd=self.home, env=self.env, capture_output=True, text=True, check=False, **options
        )
        assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
        return done.stdout


def child_cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


@pytest.fixture(scope="module")
def fresh_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the interpreter of a virtual environment that contains only rove's wheel and its dependencies."""
    folder = tmp_path_factory.mktemp("fresh")
    clean_env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", str(folder), str(ROOT)], check=True)
    subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
    python = folder / "venv/bin/python"
    [wheel] = folder.glob("rove-*.whl")
    subprocess.run([python, "-m", "pip", "--quiet", "install", str(wheel)], check=True, env=clean_env)
    return python


@pytest.fixture
def start_hub(tmp_path: Path) -> Iterator[Any]:
    """Yield a function that starts `rove hub serve` in a process and returns its URL; stop the processes afterwards."""
    started: list[subprocess.Popen[str]] = []

    def serve(machine: Machine) -> str:
        words = [machine.python, "-m", "rove.cli.main", "hub", "serve", "--port", "0"]
        process = subprocess.Popen(
            words, cwd=machine.home, env=machine.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        started.append(process)
        assert process.stdout is not None
        for line in process.stdout:
            if " is at http://" in line:
                return line.split(" is at ")[1].split()[0]
        raise AssertionError("the hub did not start")

    yield serve
    for process in started:
        process.terminate()
        process.communicate(timeout=30)


def test_an_environment_is_created_published_installed_and_evaluated_elsewhere(
    tmp_path: Path, fresh_python: Path, start_hub: Any
) -> None:
    steps: list[tuple[str, float]] = []

    def step(name: str) -> None:
        steps.append((name, child_cpu_seconds()))

    step("begin")
    ada = Machine(tmp_path / "ada", Path(sys.executable), PYTHONPATH=str(ROOT))
    ada.rove("init", "times-table")
    module = ada.home / "environments/times_table/times_table.py"
    text = module.read_text(encoding="utf-8")
    assert "str(a + b)" in text and "What is {a} + {b}?" in text
    module.write_text(text.replace("str(a + b)", "str(a * b)").replace("{a} + {b}", "{a} times {b}"), encoding="utf-8")
    step("init")
    first_result = json.loads(ada.rove("eval", "times-table", "-m", "scripted:oracle", "--json"))
    assert first_result["reward"]["mean"] == pytest.approx(1.2)
    step("eval")
    ada.rove("build", "environments/times_table")
    step("build")
    token = next(line for line in ada.rove("hub", "token", "ada").splitlines() if line.startswith("rove_"))
    url = start_hub(ada)
    step("serve")
    assert "you are 'ada'" in ada.rove("hub", "login", url, "--token", token)
    push_result = json.loads(
        ada.rove("push", "environments/times_table", "--with-run", first_result["run"], "--yes", "--json")
    )
    assert push_result == {"environment": "ada/times-table", "version": "0.1.0", "new": True, "hub": url}
    step("push")

    bob = Machine(tmp_path / "bob", fresh_python)
    bob.rove("hub", "login", url, "--no-token")
    search_result = json.loads(bob.rove("search", "times", "--json"))
    assert [environment["name"] for environment in search_result["environments"]] == ["times-table"]
    info = json.loads(bob.rove("info", "ada/times-table", "--json"))
    assert info["manifest"]["policies"]["oracle"]["reward"] == pytest.approx(1.2)
    assert [result["summary"]["reward"]["mean"] for result in info["results"]] == [pytest.approx(1.2)]
    step("search")
    assert "ada/times-table" in bob.rove("install", "ada/times-table", "--yes")
    step("install")
    second_result = json.loads(bob.rove("eval", "ada/times-table", "-m", "scripted:oracle", "--json"))
    assert second_result["reward"] == first_result["reward"] and second_result["scored"] == first_result["scored"]
    step("eval there")

    for (_, start_s), (name, end_s) in itertools.pairwise(steps):
        print(f"{name:>12} {end_s - start_s:6.1f} CPU-seconds")  # pytest -s shows them
    assert steps[-1][1] - steps[0][1] < MAX_CPU_MINUTES * 60

    # Install the same package with pip and uv.
    index = f"{url}/ada/simple/"
    check = "import times_table; print(times_table.load_environment(num_examples=2).count_examples())"
    for name, installer in (("pip", [sys.executable, "-m", "pip"]), ("uv", [str(uv_program()), "pip"])):
        target = tmp_path / f"by-{name}"
        words = ["install", "--no-deps", "--index-url", index, "--target", str(target), "times-table"]
        subprocess.run([*installer, *words], check=True, capture_output=True, env=bob.env)
        env = {**bob.env, "PYTHONPATH": str(target)}
        done = subprocess.run(
            [fresh_python, "-c", check], check=True, capture_output=True, text=True, env=env, cwd=bob.home
        )
        assert done.stdout.strip() == "2"

    # pip and uv ignore a yanked version, so it is yanked at the end.
    ada.rove("hub", "yank", "ada/times-table@0.1.0", "--reason", "wrong sums")
    assert "wrong sums" in bob.rove("info", "ada/times-table")


def uv_program() -> str:
    in_venv = Path(sys.executable).with_name("uv")
    program = str(in_venv) if in_venv.exists() else shutil.which("uv")
    assert program is not None, "this test needs uv: pip install uv"
    return program
