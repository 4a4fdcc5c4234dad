"""Install the wheel on every Python of this machine, and try it: `make test-pythons`.

Each row is a new virtual environment with the wheel: a first evaluation in an empty folder, and a fixed set of quick tests that
need the core only. `--dependencies` adds a row with the lowest direct dependencies, and `--extras` adds one row per extra.
Versions without an interpreter are named as skipped. The exit status is 1 if a row fails.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "build/pythons"
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
TESTS = (
    *(f"tests/core/test_{name}.py" for name in ("checks", "config", "digest", "messages", "model_roles", "state")),
    *(f"tests/wire/test_{name}.py" for name in ("common", "tokens")),
    "tests/rubrics/test_parser.py",
)
"""Tests that need the core and pytest only."""
TEST_TOOLS = ("pytest>=8.2", "pytest-asyncio>=0.24", "pytest-timeout>=2.3", "hypothesis>=6.100")
FIRST_COMMANDS = (
    "rove --version",
    'python -c "import rove"',
    "rove list",
    "rove eval tictactoe -m scripted:teacher -n 2 -r 1 --run-dir runs/a",
)
TORCH = ("torch==2.13.0", "-c", str(ROOT / "constraints.txt"))
EXTRAS: Mapping[str, Sequence[str]] = {
    "hub": ("rove init my-task", "rove build environments/my_task"),
    "hf": (FIRST_COMMANDS[-1], "rove export runs/a -o rollouts.parquet"),
    "math": (
        "python -c \"import asyncio, rove; assert rove.MathRubric() and __import__('math_verify')\"",
        "rove eval math_python -m scripted:solver -n 2 -r 1",
    ),
    "mcp": ("rove init my-server --mcp", "rove eval my_server -m scripted:oracle -n 2 -r 1"),
    "gym": ("rove eval gym:FrozenLake-v1 -m scripted:random -n 2 -r 1",),
    "reasoning-gym": ("rove eval reasoning-gym:chain_sum -m scripted:oracle -n 2 -r 1",),
    "skyrl": ('python -c "import skyrl_gym, rove.integrations.environments.skyrl"',),
    "smolagents": ('python -c "import smolagents, rove; rove.SmolaToolEnv"',),
    "wiki": ("rove eval wiki_search -m scripted:solver -n 2 -r 1",),
    "tensorboard": ('python -c "import rove, tensorboard"',),
    "textarena": ('python -c "import rove, textarena; rove.TextArenaEnv"',),
    "wandb": ('python -c "import rove, wandb"',),
    "trackio": ('python -c "import rove, trackio"',),
    "docs": ('python -c "import rove, sphinx, myst_parser, furo, sphinx_copybutton"',),
    "ray": ('python -c "import ray, rove.remote.ray"',),
    "train": (
        "rove model new --env tictactoe -o models/small --games 10",
        "rove eval tictactoe -m models/small -n 2 -r 1 -t 12",
    ),
}
"""Extra → its smallest commands. `dev` installs the other extras and the tools; the other test targets use it."""


class RowResult(NamedTuple):
    """The result of one environment."""

    name: str
    result: str
    seconds: float


class RowError(Exception):
    """A command of a row that failed, with the end of its output."""


def interpreter(version: str) -> Path | None:
    """Return an interpreter of this version that starts: this one, one of pyenv's, or one on the path."""
    if version == f"{sys.version_info.major}.{sys.version_info.minor}":
        return Path(sys.executable)
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    candidates = sorted(pyenv.glob(f"versions/{version}.*/bin/python{version}"))
    if on_path := shutil.which(f"python{version}"):
        candidates.append(Path(on_path))
    for candidate in candidates:
        # pyenv puts a program on the path for every version that it has, and it fails unless the version is selected.
        done = subprocess.run([candidate, "-c", "pass"], capture_output=True, check=False)
        if done.returncode == 0:
            return candidate
    return None


def run(command: str | Sequence[str | Path], programs: Path, cwd: Path) -> str:
    """Run a command with the programs of an environment first on the path; raise RowError if it fails."""
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    env["PATH"] = os.pathsep.join([str(programs), env["PATH"]])
    is_line = isinstance(command, str)
    words = command if is_line else [str(word) for word in command]
    done = subprocess.run(
        words, shell=is_line, cwd=cwd, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    if done.returncode:
        raise RowError(f"{words} ended with status {done.returncode}:\n{done.stdout[-3000:]}")
    return done.stdout


class Venv:
    """A new virtual environment, and an empty folder to work in."""

    def __init__(self, python: Path):
        shutil.rmtree(WORK / "venv", ignore_errors=True)
        shutil.rmtree(WORK / "empty", ignore_errors=True)
        (WORK / "empty").mkdir(parents=True)
        self.programs = WORK / "venv" / ("Scripts" if os.name == "nt" else "bin")
        run([python, "-m", "venv", WORK / "venv"], python.parent, WORK)

    def run(self, command: str) -> str:
        """Run a shell command in the empty folder."""
        return run(command, self.programs, WORK / "empty")

    def install(self, *requirements: str) -> None:
        """Install packages with pip."""
        pip = [self.programs / "python", "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        run([*pip, *requirements], self.programs, WORK)

    def install_lowest(self, wheel: Path) -> None:
        """Install the wheel with the lowest version of each direct dependency."""
        self.install("uv")
        # Without --python, uv would install into the checkout's .venv, which it finds in a parent folder.
        uv = [self.programs / "uv", "pip", "install", "--python", self.programs / "python"]
        run([*uv, "--resolution", "lowest-direct", wheel], self.programs, WORK)

    def first_commands(self) -> None:
        """Run the first commands; the wheel must be what is imported."""
        for command in FIRST_COMMANDS:
            self.run(command)
        imported = self.run('python -c "import rove; print(rove.__file__)"').strip()
        if not Path(imported).is_relative_to(WORK / "venv"):
            raise RowError(f"imported {imported}; expected the wheel's files below {WORK / 'venv'}")

    def tests(self) -> str:
        """Run the fixed set of tests on a copy, without a folder `rove` next to it; return pytest's last line."""
        self.install(*TEST_TOOLS)
        copy = WORK / "tree"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(ROOT / "tests", copy / "tests", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", copy)
        command = [self.programs / "python", "-m", "pytest", "-q", "-m", "not slow", "-p", "no:cacheprovider", *TESTS]
        return run(command, self.programs, copy).strip().splitlines()[-1]


def try_version(version: str, wheel: Path) -> str:
    """Install and test the wheel on a Python; return the result."""
    python = interpreter(version)
    if python is None:
        return "skipped: no interpreter"
    venv = Venv(python)
    venv.install(str(wheel))
    venv.first_commands()
    return venv.tests()


def try_lowest(wheel: Path) -> str:
    """Install and test the wheel with its lowest direct dependencies, on the oldest Python that this machine has."""
    python = next(path for path in map(interpreter, VERSIONS) if path)
    venv = Venv(python)
    venv.install_lowest(wheel)
    venv.first_commands()
    return venv.tests()


def try_extra(extra: str, wheel: Path) -> str:
    """Install one extra alone and run its smallest commands."""
    venv = Venv(Path(sys.executable))
    if extra == "train":
        venv.install(*TORCH)
    venv.install(f"{wheel}[{extra}]")
    for command in EXTRAS[extra]:
        venv.run(command)
    return f"{len(EXTRAS[extra])} commands passed"


def run_row(name: str, attempt: str, *words: str, wheel: Path) -> RowResult:
    """Run one row and print its result."""
    start = time.monotonic()
    try:
        result = {"version": try_version, "lowest": try_lowest, "extra": try_extra}[attempt](*words, wheel)
    except RowError as error:
        print(error, flush=True)
        result = "FAILED"
    row = RowResult(name, result, time.monotonic() - start)
    print(f"{row.name:<28} {row.result} ({row.seconds:.0f} s)", flush=True)
    return row


def build_wheel() -> Path:
    """Build the wheel of this tree."""
    folder = WORK / "wheel"
    shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-deps"]
    run([*command, "-w", folder, ROOT], Path(sys.executable).parent, ROOT)
    [wheel] = folder.glob("rove-*.whl")
    return wheel


def declared_extras() -> set[str]:
    """Return the extras of pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return set(project["optional-dependencies"])


def main(words: Sequence[str]) -> int:
    """Run the rows one after the other, so that only one environment is on the disk."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=VERSIONS, metavar="VERSION", help="Python versions")
    parser.add_argument("--dependencies", action="store_true", help="also the lowest direct dependencies")
    parser.add_argument(
        "--extras", nargs="*", metavar="EXTRA", help="also each of these extras alone; all without names"
    )
    parser.add_argument(
        "--interpreter", metavar="VERSION", help="only print the path of this interpreter; nothing if it is missing"
    )
    args = parser.parse_args(words)
    if args.interpreter:
        print(interpreter(args.interpreter) or "")
        return 0
    extras = [] if args.extras is None else args.extras or list(EXTRAS)
    WORK.mkdir(parents=True, exist_ok=True)
    wheel = build_wheel()
    rows = [run_row(f"Python {version}", "version", version, wheel=wheel) for version in args.only]
    if args.dependencies:
        rows.append(run_row("lowest direct dependencies", "lowest", wheel=wheel))
    rows += [run_row(f"extra {extra}", "extra", extra, wheel=wheel) for extra in extras]
    print("\n" + "\n".join(f"{row.name:<28} {row.result}" for row in rows))
    return int(any(row.result == "FAILED" for row in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
