"""Install many packages from one hub next to each other and check that each behaves as its source folder does.

    PYTHONPATH=.:tests/support python benchmarks/side_by_side.py [OWNER/NAME…]

The packages are all example packages, the packages of `tests/compat_packages`, two packages that pin different versions of the
same dependency, and two packages whose modules have the same name. Each package is built, pushed to `rove hub serve`, downloaded,
verified, and installed into a separate virtual environment. When all are installed, each is evaluated: an example package with
one of its scripted policies, a package for verifiers v0 with the scripted server of the tests. Every reward, every metric and
every request must equal those of the same folder without a hub.
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
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import compat_runner
from compat_server import ScriptedServer

import rove
from rove import IsolatedEnv
from rove.hub.client.hub import Hub
from rove.hub.client.installed import Installed, all_installed, load
from rove.hub.client.installing import fetch, install, look_up
from rove.hub.package.building import build
from rove.hub.package.names import Reference

ROOT = Path(__file__).resolve().parents[1]
SERVER = ROOT / "tests" / "support" / "mcp_server.py"
CODE = """
from importlib.metadata import version

import rove as vf


def load_environment(num_examples: int = 3):
    def correct():
        return {reward}

    rows = [{{"question": str(n), "answer": ""}} for n in range(num_examples)]
    return vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric([correct]), policies={{"constant": lambda *_: "x"}})
"""
PROJECT = """[project]
name = "{name}"
version = "1.0"
description = "{name}"
readme = "README.md"
requires-python = ">=3.11"
dependencies = {dependencies}

[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[tool.hatch.build.targets.wheel]
only-include = {files}
"""
ATTRS_PINS = {"pins-old": "23.2.0", "pins-new": "24.2.0"}
"""Two packages and the versions of attrs that they pin."""
EXAMPLE_ARGS: dict[str, Any] = {"num_examples": 4}
"""Arguments of the example packages."""
ENVIRONMENT_VARIABLES = {
    "EMPTY_KEY": "EMPTY",
    "HF_HUB_OFFLINE": "1",
    "ROVE_PASS": "EMPTY_KEY,OPENAI_API_KEY,HF_HUB_OFFLINE",
}


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and of its child processes that have ended."""
    usages = [resource.getrusage(scope) for scope in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def write_package(folder: Path, name: str, code: str, dependencies: list[str], script: Path | None = None) -> Path:
    """Write a package with one module and, if given, a copy of a script in the same folder; return the package's folder."""
    module = name.replace("-", "_")
    folder.mkdir(parents=True)
    files = [f"{module}.py"]
    if script is not None:
        files.append(script.name)
        (folder / script.name).write_text(script.read_text(encoding="utf-8"))
    project = PROJECT.format(name=name, files=json.dumps(files), dependencies=json.dumps(dependencies))
    (folder / "pyproject.toml").write_text(project)
    (folder / f"{module}.py").write_text(code)
    (folder / "README.md").write_text(f"# {name}\n")
    return folder


def package_folders(work: Path) -> dict[str, Path]:
    """Return the folder of every package by OWNER/NAME; write the packages that do not exist yet to `work`."""
    folders = {
        f"examples/{folder.name.replace('_', '-')}": folder
        for folder in sorted((ROOT / "environments").iterdir())
        if folder.is_dir()
    }
    for file in sorted(compat_runner.FOLDER.glob("*.py")):
        name = file.stem.replace("_", "-")
        code = file.read_text(encoding="utf-8")
        script = SERVER if "mcp_server.py" in code else None  # in the package, where an author would put it
        code = code.replace('__file__).parents[1] / "support" /', "__file__).parent /")
        dependencies = ["verifiers>=0.1.5,<0.4"]
        folders[f"compat/{name}"] = write_package(work / "compat" / name, name, code, dependencies, script)
    for name, version in ATTRS_PINS.items():
        code = CODE.format(reward=f'float(version("attrs") == "{version}")')
        folders[f"ada/{name}"] = write_package(work / "ada" / name, name, code, ["rove", f"attrs=={version}"])
    for owner, reward in (("ada", 0.25), ("bob", 0.75)):
        code = CODE.format(reward=reward)
        folders[f"{owner}/twin"] = write_package(work / owner / "twin", "twin", code, ["rove"])
    return folders


def start_hub(work: Path) -> tuple[subprocess.Popen[str], str, dict[str, str]]:
    """Start a hub; return its process, its address and a token for each owner."""
    command = [sys.executable, "-m", "rove.cli.main", "hub"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    tokens = {}
    for owner in ("ada", "bob", "examples", "compat"):
        result = subprocess.run(
            [*command, "token", owner, "--json"], cwd=work, env=env, capture_output=True, check=True
        )
        tokens[owner] = json.loads(result.stdout)["token"]
    process = subprocess.Popen(
        [*command, "serve", "--port", "0"],
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
    """Build a package and push it to the hub."""
    owner, _, short_name = name.partition("/")
    package = build(folder, work / "built" / owner, run_policies=owner != "compat")
    parts = {"manifest": package.folder / "manifest.json", "readme": package.folder / "README.md"}
    parts |= {entry.kind: package.folder / entry.filename for entry in package.manifest.files}
    async with Hub(url, token) as hub:
        assert await hub.upload(Reference(owner, short_name, package.manifest.version), parts)


async def install_one(name: str, work: Path, url: str) -> Installed:
    """Install a package from the hub as `rove install` does."""
    owner, _, short_name = name.partition("/")
    async with Hub(url) as hub:
        offer = await look_up(hub, Reference(owner, short_name))
        with tempfile.TemporaryDirectory(dir=work) as folder:
            return await asyncio.to_thread(install, offer, await fetch(hub, offer, Path(folder)))


def close_workers(env: rove.Environment) -> None:
    """End the environment's workers, so that `cpu_seconds` counts their CPU time."""
    if isinstance(env, IsolatedEnv):
        env.workers.close()


def scripted_results(env: rove.Environment) -> Any:
    """Return rewards and metrics of the environment's first scripted policy, seeded by each rollout's seed."""
    policy = sorted(env.policies)[0]
    client = rove.ScriptedClient(env.policies[policy], policy)
    records = env.generate_sync(client, rollouts_per_example=1)
    close_workers(env)
    assert all(record.error is None for record in records), next(record.error for record in records if record.error)
    return [
        (record.example_key, record.reward, record.scores and record.scores.rewards, record.stop_condition)
        for record in records
    ]


def compat_results(name: str) -> Any:
    """Return the rows of an installed package for verifiers v0 and the requests to its server; see `compat_runner.run`."""
    with ScriptedServer() as server:
        args = compat_runner.VARIANTS.get(name, lambda url: {})(server.url)
        env = load("compat/" + compat_runner.package_of(name).replace("_", "-"), args)
        compat_runner.load = lambda name, server: _InstalledEnv(env)
        rows = asyncio.run(compat_runner.run_bridged(name, server))
        close_workers(env)
        return {"rows": compat_runner.by_content(rows), "asked": compat_runner.by_content(server.asked)}


class _InstalledEnv:
    """Passes an installed environment to `compat_runner.run_bridged`, which expects an object that converts to one."""

    def __init__(self, env: rove.Environment):
        self.env = env

    def __rove_environment__(self) -> Any:
        self.env.used_in_run = contextlib.asynccontextmanager(_no_teardown)
        return self.env


async def _no_teardown() -> AsyncIterator[None]:
    yield


def compare_with_folder(name: str, expected: dict[str, Any]) -> str:
    """Evaluate an installed package and compare it with its folder; return the result as a text for the table.

    Args:
        name: OWNER/NAME of the package.
        expected: The results of the folders of the packages for verifiers v0, by the name that `compat_runner` uses.
    """
    owner, _, short_name = name.partition("/")
    if owner == "compat":
        variants = [
            variant
            for variant in compat_runner.NAMES
            if compat_runner.package_of(variant).replace("_", "-") == short_name
        ]
        differing = [
            variant for variant in variants if json.loads(json.dumps(compat_results(variant))) != expected[variant]
        ]
        return f"differs: {', '.join(differing)}" if differing else "same rows and requests"
    if owner == "examples":
        results = scripted_results(rove.load_environment(short_name, **EXAMPLE_ARGS))
        return "same rewards" if scripted_results(load(name, EXAMPLE_ARGS)) == results else "differs"
    rewards = [reward for _, reward, _, _ in scripted_results(load(name))]
    reward = {"ada/twin": 0.25, "bob/twin": 0.75}.get(name, 1.0)
    return f"reward {reward}" if rewards == [reward] * 3 else f"differs: rewards {rewards}, expected {reward}"


def _compare_or_error(name: str, expected: dict[str, Any]) -> str:
    try:
        return compare_with_folder(name, expected)
    except Exception as error:
        return f"failed: {type(error).__name__}: {error}".splitlines()[0][:300]


async def main() -> None:
    """Publish, install and evaluate the packages, and print a row for each."""
    os.environ.update(ENVIRONMENT_VARIABLES)
    with tempfile.TemporaryDirectory(prefix="side-by-side-") as temporary:
        work = Path(temporary)
        os.environ.update(XDG_DATA_HOME=str(work / "data"), XDG_CONFIG_HOME=str(work / "config"))
        selected = sys.argv[1:]
        packages = {name: folder for name, folder in package_folders(work).items() if not selected or name in selected}
        process, url, tokens = await asyncio.to_thread(start_hub, work)
        rows: dict[str, list[Any]] = {name: [] for name in packages}
        try:
            for name, folder in packages.items():
                start = cpu_seconds()
                await publish(name, folder, work, url, tokens[name.partition("/")[0]])
                rows[name].append(cpu_seconds() - start)
            for name in packages:
                start = cpu_seconds()
                await install_one(name, work, url)
                rows[name].append(cpu_seconds() - start)
        finally:
            process.terminate()
            process.communicate()
        assert len(all_installed()) == len(packages)
        expected = await asyncio.to_thread(lambda: compat_runner.results("bridge")["bridge"])
        for name in packages:
            start = cpu_seconds()
            result = await asyncio.to_thread(_compare_or_error, name, expected)
            rows[name] += [cpu_seconds() - start, result]
            print(f"{name:28}" + "".join(f"{seconds:7.1f}" for seconds in rows[name][:3]) + f"  {result}", flush=True)
        publishing, installing, evaluating = (sum(row[i] for row in rows.values()) for i in range(3))
        files = (file for file in (work / "data").rglob("*") if file.is_file() and not file.is_symlink())
        size = sum(file.stat().st_size for file in files) / 2**20
        wrong = sum("differs" in row[3] or "failed" in row[3] for row in rows.values())
        print(
            f"{len(packages)} packages; CPU-seconds: build and push {publishing:.1f}, install {installing:.1f}, "
            f"evaluate {evaluating:.1f}"
        )
        print(f"size on disk: {size:.1f} MiB; packages with wrong results: {wrong}")


if __name__ == "__main__":
    asyncio.run(main())
