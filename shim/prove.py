"""Proves in a fresh virtual environment that a package which declares `verifiers>=0.1.5` is met by rove.

`python shim/prove.py [pip | uv]`, after `make wheel shim`; needs a package index for rove's own dependencies.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROJECT = """
[project]
name = "my-env"
version = "0.1.0"
dependencies = ["verifiers>=0.1.5"]

[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[tool.hatch.build]
include = ["my_env.py"]
"""
MODULE = """
import verifiers as vf
from verifiers.parsers.xml_parser import XMLParser


def load_environment(**kwargs) -> vf.Environment:
    parser = XMLParser(["answer"])

    def right(parser, completion, answer):
        return float(parser.parse_answer(completion) == answer)

    rows = [{"question": "2+2?", "answer": "4"}]
    return vf.SingleTurnEnv(dataset=rows, parser=parser, rubric=vf.Rubric(funcs=[right], parser=parser), **kwargs)
"""
CHECK = """
import asyncio, importlib.metadata, rove
import verifiers, verifiers.envs.environment, my_env
assert importlib.metadata.version("verifiers") == "0.3.1+rove1"
assert verifiers.Environment.__module__ == "rove.compat.verifiers.environment", verifiers
said = rove.ScriptedClient(lambda messages, state, rng: "<answer>4</answer>")
[record] = asyncio.run(rove.generate(rove.load_environment("my-env"), said))
assert record.reward == 1.0, record
print("my-env runs on rove", rove.__version__, "as verifiers", importlib.metadata.version("verifiers"))
"""


def run(*command: str | Path, folder: Path) -> None:
    """Run a command, and stop with what it said if it fails."""
    done = subprocess.run([str(word) for word in command], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}")
    print(done.stdout.strip().splitlines()[-1] if done.stdout.strip() else "")


def main(installer: str) -> None:
    """Install and play."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "pyproject.toml").write_text(PROJECT, encoding="utf-8")
        (folder / "my_env.py").write_text(MODULE, encoding="utf-8")
        venv.create(folder / "venv", with_pip=True)
        python = folder / "venv" / "bin" / "python"
        asked = ["--find-links", ROOT / "dist", "--constraint", ROOT / "shim" / "constraint.txt", "."]
        if installer == "uv":
            uv = shutil.which("uv") or sys.exit("uv is not installed here")
            run(uv, "pip", "install", "--python", python, *asked, folder=folder)
        else:
            run(python, "-m", "pip", "install", "--quiet", *asked, folder=folder)
        run(python, "-m", "pip", "check", folder=folder)
        (folder / "my_env.py").unlink()  # the installed one is meant
        run(python, "-c", CHECK, folder=folder)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "pip")
