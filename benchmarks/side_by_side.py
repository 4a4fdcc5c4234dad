"""All example packages and the packages of `tests/compat_packages` on one hub, installed side by side and evaluated there; with
them two whose pins clash, and two whose modules have one name.

    PYTHONPATH=.:tests python benchmarks/side_by_side.py [OWNER/NAME…]

Every package is built, pushed to `rove hub serve`, looked up, checked, and installed into a virtual environment of its own. Then
all are there at once, and each is played: an example by one of its scripted policies, a package of v0 by the scripted server of
the tests. What comes of it has to be what comes of the same folder loaded here: every reward, every metric, every request.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import compat_runner
from compat_server import ScriptedServer

import rove
from rove.hub.client.hub import Hub
from rove.hub.client.installed import Installed, all_installed, load
from rove.hub.client.installing import fetch, install, look_up
from rove.hub.package.building import build
from rove.hub.package.names import Reference
from rove.remote import IsolatedEnv

ROOT = Path(__file__).resolve().parents[1]
SERVER = ROOT / "tests" / "mcp_server.py"
CODE = """
from importlib.metadata import version

import rove as vf


def load_environment(num_examples: int = 3):
    def right():
        return {reward}

    rows = [{{"question": str(n), "answer": ""}} for n in range(num_examples)]
    return vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric([right]), policies={{"anybody": lambda *_: "x"}})
"""
PROJECT = """[project]
name = "{name}"
version = "1.0"
description = "{name}"
readme = "README.md"
requires-python = ">=3.11"
dependencies = {needs}

[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[tool.hatch.build.targets.wheel]
only-include = {files}
"""
CLASHING = {"pins-old": "23.2.0", "pins-new": "24.2.0"}
"""Versions of attrs that two packages insist on."""
PLAYED = {"num_examples": 4}
FLAGS = {"EMPTY_KEY": "EMPTY", "HF_HUB_OFFLINE": "1", "ROVE_PASS": "EMPTY_KEY,OPENAI_API_KEY,HF_HUB_OFFLINE"}


def seconds() -> float:
    """CPU time of this process and of those that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def project(folder: Path, name: str, code: str, needs: list[str], beside: Path | None = None) -> Path:
    """A package's folder of one module, and perhaps a script beside it."""
    module = name.replace("-", "_")
    folder.mkdir(parents=True)
    files = [f"{module}.py"]
    if beside is not None:
        files.append(beside.name)
        (folder / beside.name).write_text(beside.read_text(encoding="utf-8"))
    (folder / "pyproject.toml").write_text(PROJECT.format(name=name, files=json.dumps(files), needs=json.dumps(needs)))
    (folder / f"{module}.py").write_text(code)
    (folder / "README.md").write_text(f"# {name}\n")
    return folder


def folders(work: Path) -> dict[str, Path]:
    """Every package's folder, by OWNER/NAME."""
    found = {
        f"examples/{one.name.replace('_', '-')}": one
        for one in sorted((ROOT / "environments").iterdir())
        if one.is_dir()
    }
    for file in sorted(compat_runner.FOLDER.glob("*.py")):
        name = file.stem.replace("_", "-")
        code = file.read_text(encoding="utf-8")
        beside = SERVER if "mcp_server.py" in code else None  # as an author would ship it: in the package
        code = code.replace("__file__).parents[1] /", "__file__).parent /")
        found[f"compat/{name}"] = project(work / "compat" / name, name, code, ["verifiers>=0.1.5,<0.4"], beside)
    for name, version in CLASHING.items():
        code = CODE.format(reward=f'float(version("attrs") == "{version}")')
        found[f"ada/{name}"] = project(work / "ada" / name, name, code, ["rove", f"attrs=={version}"])
    for owner, reward in (("ada", 0.25), ("bob", 0.75)):
        found[f"{owner}/twin"] = project(work / owner / "twin", "twin", CODE.format(reward=reward), ["rove"])
    return found


def serve(work: Path) -> tuple[subprocess.Popen[str], str, dict[str, str]]:
    """A hub in a process of its own; its address, and a token of each owner."""
    words = [sys.executable, "-m", "rove.cli.main", "hub"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    tokens = {}
    for owner in ("ada", "bob", "examples", "compat"):
        made = subprocess.run([*words, "token", owner, "--json"], cwd=work, env=env, capture_output=True, check=True)
        tokens[owner] = json.loads(made.stdout)["token"]
    process = subprocess.Popen(
        [*words, "serve", "--port", "0"],
        cwd=work,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    url = next(line for line in process.stdout if " is at http" in line).split(" is at ")[1].split()[0]
    return process, url, tokens


async def publish(name: str, folder: Path, work: Path, url: str, token: str) -> None:
    """Build a package and push it."""
    owner, _, short = name.partition("/")
    built = build(folder, work / "built" / owner, run_policies=owner != "compat")
    parts = {"manifest": built.folder / "manifest.json", "readme": built.folder / "README.md"}
    parts |= {entry.kind: built.folder / entry.filename for entry in built.manifest.files}
    async with Hub(url, token) as hub:
        assert await hub.upload(Reference(owner, short, built.manifest.version), parts)


async def install_one(name: str, work: Path, url: str) -> Installed:
    """As `rove install` does."""
    owner, _, short = name.partition("/")
    async with Hub(url) as hub:
        offer = await look_up(hub, Reference(owner, short))
        with tempfile.TemporaryDirectory(dir=work) as folder:
            return await asyncio.to_thread(install, offer, await fetch(hub, offer, Path(folder)))


def ended(env: rove.Environment) -> None:
    """End its workers, so that their time is counted."""
    if isinstance(env, IsolatedEnv):
        env.workers.close()


def played(env: rove.Environment) -> Any:
    """Rewards and metrics of a scripted policy, which draws from the rollout's own generator."""
    player = sorted(env.policies)[0]
    client = rove.ScriptedClient(env.policies[player], player)
    records = env.generate_sync(client, rollouts_per_example=1)
    ended(env)
    assert all(record.error is None for record in records), next(record.error for record in records if record.error)
    return [(one.example_key, one.reward, one.scores and one.scores.rewards, one.stop_condition) for one in records]


def spoken(name: str) -> Any:
    """What an installed package of v0 came to, and what its server was asked; as `compat_runner.run` has it."""
    with ScriptedServer() as server:
        args = compat_runner.VARIANTS.get(name, lambda url: {})(server.url)
        env = load("compat/" + compat_runner.package_of(name).replace("_", "-"), args)
        compat_runner.load = lambda name, server: _Made(env)
        rows = asyncio.run(compat_runner.run_bridged(name, server))
        ended(env)
        return {"rows": compat_runner.by_content(rows), "asked": compat_runner.by_content(server.asked)}


class _Made:
    """What `run_bridged` expects of a package: something that becomes one of rove's environments."""

    def __init__(self, env: rove.Environment):
        self.env = env

    def __rove_environment__(self) -> Any:
        self.env.used_in_run = contextlib.asynccontextmanager(_nothing)
        return self.env


async def _nothing() -> Any:
    yield


def evaluated(name: str, expected: dict[str, Any]) -> str:
    """Whether an installed package plays as its folder does; what differs."""
    owner, _, short = name.partition("/")
    if owner == "compat":
        variants = [one for one in compat_runner.NAMES if compat_runner.package_of(one).replace("_", "-") == short]
        differing = [one for one in variants if json.loads(json.dumps(spoken(one))) != expected[one]]
        return f"differs: {', '.join(differing)}" if differing else "same rows and requests as here"
    if owner == "examples":
        here = played(rove.load_environment(short, **PLAYED))
        return "same rewards as here" if played(load(name, PLAYED)) == here else "differs"
    rewards = [reward for _, reward, _, _ in played(load(name))]
    wanted = {"ada/twin": 0.25, "bob/twin": 0.75}.get(name, 1.0)
    return f"reward {wanted}" if rewards == [wanted] * 3 else f"differs: {rewards}"


async def main() -> None:
    """Publish, install, evaluate, and print a row for each."""
    os.environ.update(FLAGS)
    with tempfile.TemporaryDirectory(prefix="side-by-side-") as place_:
        work = Path(place_)
        os.environ.update(XDG_DATA_HOME=str(work / "data"), XDG_CONFIG_HOME=str(work / "config"))
        wanted = sys.argv[1:]
        packages = {name: folder for name, folder in folders(work).items() if not wanted or name in wanted}
        process, url, tokens = await asyncio.to_thread(serve, work)
        rows: dict[str, list[Any]] = {name: [] for name in packages}
        try:
            for name, folder in packages.items():
                before = seconds()
                await publish(name, folder, work, url, tokens[name.partition("/")[0]])
                rows[name].append(seconds() - before)
            for name in packages:
                before = seconds()
                await install_one(name, work, url)
                rows[name].append(seconds() - before)
        finally:
            process.terminate()
            process.communicate()
        assert len(all_installed()) == len(packages)
        expected = await asyncio.to_thread(lambda: compat_runner.results("bridge")["bridge"])
        for name in packages:
            before = seconds()
            said = await asyncio.to_thread(_tried, name, expected)
            rows[name] += [seconds() - before, said]
            print(f"{name:28}" + "".join(f"{figure:7.1f}" for figure in rows[name][:3]) + f"  {said}", flush=True)
        built, installed, play = (sum(row[i] for row in rows.values()) for i in range(3))
        files = (file for file in (work / "data").rglob("*") if file.is_file() and not file.is_symlink())
        size = sum(file.stat().st_size for file in files) / 2**20
        wrong = sum("differs" in row[3] or "failed" in row[3] for row in rows.values())
        print(
            f"{len(packages)} packages; CPU-seconds: build and push {built:.1f}, install {installed:.1f}, play {play:.1f}"
        )
        print(f"on disk {size:.1f} MiB; wrong: {wrong}")


def _tried(name: str, expected: dict[str, Any]) -> str:
    try:
        return evaluated(name, expected)
    except Exception as error:
        return f"failed: {type(error).__name__}: {error}".splitlines()[0][:300]


if __name__ == "__main__":
    asyncio.run(main())
