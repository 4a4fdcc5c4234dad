"""Hubs for tests: a folder in the layout that `rove hub export` writes, with packages that work."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import msgspec
from packages import put_wheel, wheel_files, with_record

from rove.hub.archives import check_wheel
from rove.hub.manifest import File, Manifest, manifest_bytes

DOUBLING = """
import rove as vf
{imports}

def load_environment(num_examples: int = 4, seed: int = 0):
    def correct(completion, answer):
        return float(completion[-1]["content"] == answer)

    return vf.SingleTurnEnv(
        dataset=[{{"question": f"{what} {{n}}", "answer": str({factor} * n)}} for n in range(seed, seed + num_examples)],
        rubric=vf.Rubric([correct], [{weight}]),
        players={{"oracle": lambda messages, state, rng: state["answer"]}},
    )
"""
V0 = """
import verifiers as vf


def load_environment(num_examples=4, **kwargs):
    def correct(completion, answer):
        return 1.0 if completion[-1]["content"] == answer else 0.0

    rows = [{"question": f"What is {n} + {n}?", "answer": str(2 * n)} for n in range(num_examples)]
    return vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric(funcs=[correct]))
"""


def code(what: str = "Double", factor: int = 2, weight: float = 1.0, imports: str = "") -> bytes:
    """A module that works: its oracle gets `weight`."""
    return DOUBLING.format(what=what, factor=factor, weight=weight, imports=imports).encode()


def publish(
    hub: Path,
    owner: str = "alice",
    name: str = "doubling",
    version: str = "1.0",
    module: bytes | None = None,
    module_name: str | None = None,
    dependencies: tuple[str, ...] = (),
    **fields: Any,
) -> Path:
    """Put a version into a hub's folder; returns where its files are."""
    folder = hub / owner / name / version
    folder.mkdir(parents=True)
    extra = "".join(f"Requires-Dist: {one}\n" for one in dependencies)
    modules = {f"{module_name or name.replace('-', '_')}.py": code() if module is None else module}
    files = with_record(wheel_files(name, version, modules, extra))
    wheel = check_wheel(put_wheel(folder, files, f"{name.replace('-', '_')}-{version}-py3-none-any.whl"))
    entry = File(filename=next(folder.glob("*.whl")).name, kind="wheel", sha256=wheel.sha256, size=wheel.size)
    manifest = Manifest(
        name=name,
        version=version,
        module=wheel.module,
        requires_python=wheel.requires_python,
        dependencies=wheel.dependencies,
        content=wheel.content,
        files=[entry],
        **{"description": f"{name} of {owner}", **fields},
    )
    (folder / "manifest.json").write_bytes(manifest_bytes(manifest))
    list_again(hub)
    return folder


def list_again(hub: Path, **said: dict[str, Any]) -> None:
    """Write the indexes of a hub's folder, from what lies in it.

    Args:
        said: more about an environment, by "OWNER/NAME": fields of its index.
    """
    listed = []
    for environment in sorted(folder for folder in hub.glob("*/*") if folder.is_dir()):
        owner, name = environment.parent.name, environment.name
        versions = []
        for folder in sorted(one for one in environment.iterdir() if one.is_dir()):
            content = (folder / "manifest.json").read_bytes()
            files = [{key: one[key] for key in ("filename", "sha256", "size")} for one in json.loads(content)["files"]]
            sha256 = hashlib.sha256(content).hexdigest()
            uploaded = "2026-11-22T00:00:00Z"
            versions.append(
                {"version": folder.name, "uploaded": uploaded, "yanked": None, "manifest": sha256, "files": files}
            )
        index = {"schema": 1, "owner": owner, "name": name, "versions": versions, "keys": []}
        (environment / "index.json").write_bytes(msgspec.json.encode(index | said.get(f"{owner}/{name}", {})))
        last = json.loads(content)
        kept = {key: last[key] for key in ("description", "tags", "compatibility", "licence")}
        listed.append(
            {"owner": owner, "name": name, "version": last["version"], "downloads": 0, "updated": uploaded} | kept
        )
    (hub / "index.json").write_bytes(
        msgspec.json.encode({"schema": 1, "hub": "test", "environments": listed, "search": None})
    )


def tampered(file: Path, old: bytes, new: bytes) -> None:
    """Change what a hub has."""
    content = file.read_bytes()
    assert old in content and len(old) == len(new)
    file.write_bytes(content.replace(old, new))
