"""Building packages: reproducible archives and a manifest that describes the package."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
from packages import file_entry as file_entry
from packages import put_wheel, wheel_files, with_record
from tiers import first_quick

import rove
from rove.core.errors import ConfigError, PackageError
from rove.hub.package.archives import check_wheel, verify
from rove.hub.package.building import (
    Facts,
    Score,
    arguments,
    build,
    check_api,
    commit_of,
    compatibility,
    declared,
    describe,
    measure,
    read_code,
    secrets,
)
from rove.hub.package.manifest import ROVE, V0, Argument, Manifest, Needs, PolicyScores, manifest_bytes
from rove.hub.package.scaffold import scaffold

SETUPTOOLS = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[tool.setuptools]
py-modules = ["my_task"]
"""
V0_PACKAGE = '''
import verifiers as vf


def load_environment(num_examples: int = 4) -> vf.Environment:
    """Sums."""
    rows = [{"question": f"What is {n} + {n}?", "answer": str(2 * n)} for n in range(num_examples)]
    parser = vf.XMLParser(["answer"])

    def correct(completion, answer, **kwargs) -> float:
        return float(parser.parse_answer(completion) == answer)

    return vf.SingleTurnEnv(dataset=rows, parser=parser, rubric=vf.Rubric(funcs=[correct], parser=parser))
'''
V0_PROJECT = """
[project]
name = "v0-sums"
version = "0.3"
description = "Sums"
requires-python = ">=3.10"
dependencies = ["verifiers>=0.1.3"]

[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[tool.hatch.build]
include = ["v0_sums.py", "pyproject.toml"]
"""


def scaffold_with_source(folder: Path, source: str) -> Path:
    """Create the scaffold and replace its module's source."""
    target = scaffold("my_task", folder)
    (target / "my_task.py").write_text(source)
    return target


def read_files(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


@pytest.mark.broad
@pytest.mark.parametrize("backend", first_quick(["hatchling", "setuptools"], broad=0))
def test_builds_are_reproducible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str):
    built = {}
    for location, umask, date, mode in (("here", 0o022, 1e9, 0o644), ("far/away", 0o077, 1.6e9, 0o600)):
        folder = scaffold("my_task", tmp_path / location)
        if backend == "setuptools":
            project = folder / "pyproject.toml"
            project.write_text(project.read_text().split("[build-system]")[0] + SETUPTOOLS)
        for file in folder.rglob("*"):
            if file.is_file():
                file.chmod(mode)
            os.utime(file, (date, date))
        monkeypatch.setenv("SOURCE_DATE_EPOCH", str(int(date)))
        if location == "here":
            monkeypatch.delenv("SOURCE_DATE_EPOCH")
            for generated in ("__pycache__", "runs", ".pytest_cache", "my_task.egg-info"):
                (folder / generated).mkdir()
                (folder / generated / "left.py").write_text("load_environment = 1")
        mask_before = os.umask(umask)
        try:
            built[location] = build(folder, run_policies=False).folder
        finally:
            os.umask(mask_before)
        assert sorted(path.name for path in folder.iterdir() if "." not in path.name) == (
            ["__pycache__", "dist", "runs", "tests"] if location == "here" else ["dist", "tests"]
        )
    first, second = map(read_files, built.values())
    assert first == second
    assert sorted(first) == ["README.md", "manifest.json", "my_task-0.1.0-py3-none-any.whl", "my_task-0.1.0.tar.gz"]
    with zipfile.ZipFile(built["here"] / "my_task-0.1.0-py3-none-any.whl") as archive:
        contents = b"".join(archive.read(name) for name in archive.namelist())
        assert "my_task.py" in archive.namelist()
    with tarfile.open(built["here"] / "my_task-0.1.0.tar.gz") as archive:
        assert "my_task-0.1.0/tests/test_my_task.py" in archive.getnames()
        assert not [name for name in archive.getnames() if "left" in name]
        contents += b"".join(archive.extractfile(entry).read() for entry in archive if entry.isfile())  # type: ignore[union-attr]
    assert str(tmp_path).encode() not in contents
    manifest = verify(built["here"]).manifest
    assert manifest.source.builder.startswith(backend)


@pytest.mark.broad
def test_the_manifest_describes_the_built_package(tmp_path: Path):
    built = build(scaffold("my_task", tmp_path))
    assert built.folder == tmp_path / "my_task" / "dist" / "my-task-0.1.0"
    assert built.warnings == []
    package = verify(built.folder)
    manifest = package.manifest
    assert manifest == built.manifest
    assert (manifest.name, manifest.version, manifest.module) == ("my-task", "0.1.0", "my_task")
    assert (manifest.licence, manifest.tags, manifest.reward_range) == ("MIT", ["single-turn"], (0.0, 1.2))
    assert manifest.policies == {"guesser": PolicyScores(reward=0.2, n=5), "oracle": PolicyScores(reward=1.2, n=5)}
    assert manifest.metrics[:2] == ["correct", "format_reward"]
    assert [argument.name for argument in manifest.arguments] == ["num_examples", "seed"]
    assert (manifest.needs, manifest.compatibility, manifest.rove) == (Needs(), "rove", rove.__version__)
    assert "say here" not in package.wheel.summary
    assert (built.folder / "README.md").read_text() == package.wheel.readme


@pytest.mark.slow
def test_the_manifest_lists_the_tools_of_an_mcp_server(tmp_path: Path):
    built = build(scaffold("my_task", tmp_path, "mcp"))
    assert built.manifest.tools == ["find"]
    assert built.manifest.policies == {
        "guesser": PolicyScores(reward=0.0, n=5),
        "oracle": PolicyScores(reward=1.0, n=5),
    }
    assert built.warnings == []


@pytest.mark.slow
def test_a_package_for_verifiers_v0_is_built_unchanged(tmp_path: Path):
    (tmp_path / "v0_sums.py").write_text(V0_PACKAGE)
    (tmp_path / "pyproject.toml").write_text(V0_PROJECT)
    built = build(tmp_path)
    assert built.manifest.compatibility == V0
    assert built.manifest.dependencies == ["verifiers>=0.1.3"]
    assert "correct" in built.manifest.metrics
    assert any("no scripted policies" in warning for warning in built.warnings)
    assert any("no license" in warning for warning in built.warnings)
    assert verify(built.folder).wheel.module == "v0_sums"


def describe_package(tmp_path: Path, facts: Facts | None, **rove_table: Any) -> tuple[Manifest, list[str]]:
    """Describe a package with these measured facts and declared fields."""
    files = with_record(wheel_files(modules={"my_sums.py": b"import os\nload_environment = os.environ['JUDGE_KEY']\n"}))
    file = put_wheel(tmp_path, files)
    return describe(
        check_wheel(file),
        files,
        read_code(files),
        declared({"tool": {"rove": rove_table}}),
        facts,
        [file_entry(file)],
        "",
    )


def test_declared_fields_are_added_to_measured_ones(tmp_path: Path):
    facts = Facts(metrics=["correct"], tools=["t"], policies={}, network=True, sandbox=False)
    needs = {"secrets": ["OTHER_KEY"], "sandbox": True}
    manifest, _ = describe_package(tmp_path, facts, needs=needs, data_sources=["a/b"], tags=["Two words", "a"])
    assert manifest.needs == Needs(network=True, secrets=["JUDGE_KEY", "OTHER_KEY"], sandbox=True)
    assert (manifest.metrics, manifest.tools, manifest.data_sources) == (["correct"], ["t"], ["a/b"])
    assert (manifest.tags, manifest.seeds, manifest.reward_range) == (["a", "two-words"], [], None)
    manifest, _ = describe_package(tmp_path, None)
    assert (manifest.needs, manifest.metrics) == (Needs(secrets=["JUDGE_KEY"]), [])
    assert manifest_bytes(manifest)


def test_long_license_and_author_fields_are_shortened(tmp_path: Path):
    fields = (
        "License: MIT License\n  \n  Copyright\nAuthor: Ann, Bob\nAuthor-email: Cy <cy@example.org>, d@example.org\n"
    )
    files = with_record(wheel_files(extra=fields))
    wheel = check_wheel(put_wheel(tmp_path, files))
    manifest, _ = describe(
        wheel, files, read_code(files), declared({}), None, [file_entry(tmp_path / "my_sums-1.0-py3-none-any.whl")], ""
    )
    assert manifest.licence == "MIT License"
    assert manifest.authors == ["Ann", "Bob", "Cy", "d@example.org"]
    assert manifest_bytes(manifest)


def test_failing_policies_and_rewards_outside_of_the_range_are_warnings(tmp_path: Path):
    scores = {
        "bad": Score(rewards=[], failed=3, error="ValueError: lost"),
        "good": Score(rewards=[1.0, 0.0], failed=1, error="X: y"),
    }
    facts = Facts(metrics=[], tools=[], policies=scores, network=False, sandbox=False)
    manifest, warnings = describe_package(tmp_path, facts, reward_range=[0, 0.5])
    assert manifest.policies == {"good": PolicyScores(reward=0.5, n=2)}
    assert (manifest.reward_range, manifest.seeds) == ((0.0, 0.5), [0])
    assert warnings[:3] == [
        "policy 'bad' failed in 3 of 3 rollouts: ValueError: lost",
        "policy 'good' failed in 1 of 3 rollouts: X: y",
        "policy 'good' had reward 1, outside the reward_range in pyproject.toml",
    ]
    manifest, _ = describe_package(tmp_path, facts)
    assert manifest.reward_range == (0.0, 1.0)


@pytest.mark.broad
def test_a_failed_build_keeps_the_previous_one(tmp_path: Path):
    folder = scaffold_with_source(tmp_path, "import os\nos._exit(7)\ndef load_environment(): ...\n")
    built = build(folder, run_policies=False)
    previous_files = read_files(built.folder)
    with pytest.raises(PackageError, match=r"--no-play"):
        build(folder)
    project = folder / "pyproject.toml"
    original = project.read_text()
    for old, new, words in (
        (
            'dependencies = ["rove"]',
            'dependencies = ["a @ https://example.org/a.whl"]',
            "could not make the sdist(.|\n)*direct reference",
        ),
        ("hatchling.build", "hatchling.nothing", "could not make the sdist"),
        ('["hatchling"]\n', '["hatchling"]\nbackend-path = ["none"]\n', "'none' does not exist"),
        ("tags =", "tag =", "did you mean 'tags'"),
    ):
        project.write_text(original.replace(old, new))
        with pytest.raises((PackageError, ConfigError), match=words):
            build(folder, run_policies=False)
    assert read_files(built.folder) == previous_files
    assert [path.name for path in (folder / "dist").iterdir()] == ["my-task-0.1.0"]


def test_a_folder_without_a_package_is_an_error(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"has no pyproject\.toml; .* rove init NAME"):
        build(tmp_path)


@pytest.mark.skipif(shutil.which("git") is None, reason="there is no git here")
def test_the_commit_of_a_folder_is_found_and_marked_if_dirty(tmp_path: Path):
    def git(*words: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        return subprocess.run(
            ["git", *identity, *words], cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout.strip()

    folder = scaffold("my_task", tmp_path)
    git("init", "-q")
    assert commit_of(folder) == ""
    git("add", ".")
    git("commit", "-qm", "x")
    (folder / "dist").mkdir()
    (folder / "dist" / "made").write_text("")
    assert commit_of(folder) == git("rev-parse", "HEAD")
    (folder / "my_task.py").write_text("")
    assert commit_of(folder) == git("rev-parse", "HEAD") + "-dirty"


MODULE_HEAD = """
import rove as vf

def good(messages, state, rng):
    return state["answer"]

def bad(messages, state, rng):
    raise ValueError("lost its mind")

def double(n: int) -> int:
    "Twice as much."
    return 2 * n

def load_environment() -> vf.Environment:
"""
ROWS = 'dataset=[{"question": "?", "answer": "a"}] * 3'
PLAIN_BODY = f"""
    import my_words  # beside it in the wheel
    import socket
    try:
        socket.getaddrinfo("example.invalid", 80)
    except OSError:
        pass
    def correct(completion, answer):
        return float(completion[-1]["content"] == answer)
    return vf.SingleTurnEnv({ROWS}, rubric=vf.Rubric([correct]), policies={{"good": good, "bad": bad}})
"""


def test_policies_metrics_and_network_use_are_measured(tmp_path: Path):
    (tmp_path / "my_env.py").write_text(MODULE_HEAD + PLAIN_BODY)
    (tmp_path / "my_words.py").write_text("")
    facts = measure(tmp_path, "my_env")
    assert facts.policies["good"] == Score(rewards=[1.0, 1.0, 1.0])
    assert facts.policies["bad"] == Score(rewards=[], failed=3, error="ValueError: lost its mind")
    assert "correct" in facts.metrics
    assert (facts.tools, facts.network, facts.sandbox) == ([], True, False)


def test_tools_and_sandboxes_of_groups_are_measured_without_policies(tmp_path: Path):
    body = f"    return vf.EnvGroup([vf.ToolEnv(tools=[double], {ROWS}), vf.PythonEnv({ROWS})], env_names=['a', 'b'])\n"
    (tmp_path / "my_env.py").write_text(MODULE_HEAD + body)
    facts = measure(tmp_path, "my_env", python=sys.executable)
    assert {"double", "python"} <= set(facts.tools)
    assert (facts.policies, facts.network, facts.sandbox) == ({}, False, True)


@pytest.mark.parametrize(
    ("body", "words"),
    first_quick(
        [
            ("raise KeyError('the data is gone')", r"the data is gone(.|\n)*--python(.|\n)*--no-play"),
            ("import nothing_of_that_name", r"nothing_of_that_name(.|\n)*--no-play"),
            ("import os; os._exit(7)", "--no-play"),
            ("import time; time.sleep(60)", r"--no-play"),
            ("return 5", "expected a rove Environment"),
        ]
    ),
)
def test_an_environment_that_does_not_load_is_an_error(tmp_path: Path, body: str, words: str):
    (tmp_path / "my_env.py").write_text(MODULE_HEAD + "    " + body)
    with pytest.raises(PackageError, match=words):
        measure(tmp_path, "my_env", seconds=5.0 if "sleep" in body else 60.0)


LOADER = b"""
def load_environment(a, b: int = 3, *, level: "str | None" = None, names=("x", "y"), **more):
    ...
"""


def test_arguments_are_read_from_the_source():
    expected = [
        Argument(name="a"),
        Argument(name="b", type="int", default="3"),
        Argument(name="level", type="'str | None'", default="None"),
        Argument(name="names", default="('x', 'y')"),
    ]
    assert arguments({"m.py": LOADER}, "m") == expected
    package = {"m/__init__.py": b"from .envs.main import load as load_environment\n", "m/envs/__init__.py": b""}
    package["m/envs/main.py"] = b"from m.deep import load_environment as load\n"
    package["m/deep.py"] = LOADER
    assert arguments(package, "m") == expected


def test_a_long_default_is_shortened():
    [argument] = arguments({"m.py": f"def load_environment(prompt={'x' * 1000!r}): ...".encode()}, "m")
    assert argument.default == "'" + "x" * 198 + "…"
    [argument] = arguments({"m.py": b'def load_environment(prompt="""a\nb"""): ...'}, "m")
    assert argument.default == r"'a\nb'"


def test_arguments_that_cannot_be_resolved_are_empty():
    assert arguments({"m.py": b"load_environment = make()"}, "m") == []
    assert arguments({"m.py": b"from elsewhere import load_environment"}, "m") == []
    assert (
        arguments(
            {"m/__init__.py": b"from .a import load_environment", "m/a.py": b"from . import load_environment"}, "m"
        )
        == []
    )


@pytest.mark.parametrize(
    ("source", "api"),
    [
        (b"import rove as vf", ROVE),
        (b"import verifiers as vf", V0),
        (b"from verifiers.types import State", V0),
        (b"def load_environment():\n    import verifiers", V0),
        (b"from .verifiers import x", ROVE),
        (b"# import verifiers", ROVE),
        (b"import verifiers_tools", ROVE),
    ],
)
def test_the_api_is_detected_from_imports(source: bytes, api: str):
    assert compatibility(read_code({"m/__init__.py": b"", "m/a.py": source})) == api


@pytest.mark.parametrize(
    "source", [b"import verifiers.v1 as vf", b"from verifiers import v1", b"from verifiers.v1 import Task"]
)
def test_packages_for_verifiers_v1_are_rejected(source: bytes):
    with pytest.raises(
        PackageError, match=r"written for verifiers v1, which has another API; rove provides the API of 0\.1\.0"
    ):
        check_api(read_code({"m/a.py": source}))
    check_api(read_code({"m/a.py": source, "m/b.py": b"from rove import TasksetEnv"}))
    check_api(read_code({"m/a.py": b"from verifiers import v10, types"}))


def test_names_of_secrets_are_found_and_other_variables_ignored():
    source = b"""
import os
from os import environ, getenv
os.environ["JUDGE_API_KEY"]; environ.get("MY_TOKEN", ""); getenv("DB_PASSWORD"); os.getenv("HOME")
{}.get("NOT_A_KEY"); Judge(api_key_var="OTHER_KEY"); os.environ["PATH"]; os.getenv(name)
"""
    assert secrets(read_code({"m.py": source})) == ["DB_PASSWORD", "JUDGE_API_KEY", "MY_TOKEN", "OTHER_KEY"]


def test_data_sources_are_found_in_the_source():
    source = b'load_dataset("openai/gsm8k", "main"); datasets.load_dataset("a/b"); load_dataset(name); load("c/d")'
    assert read_code({"m.py": source}).datasets == {"a/b", "openai/gsm8k"}


def test_a_syntax_error_is_reported():
    with pytest.raises(PackageError, match=r"m/a\.py cannot be parsed as Python"):
        read_code({"m/a.py": b"def ("})


def test_the_rove_table_in_pyproject_is_parsed_and_checked():
    table = {"tags": ["a"], "reward_range": [0, 1], "needs": {"secrets": ["A_KEY"]}, "eval": {"num_examples": 5}}
    parsed = declared({"tool": {"rove": table}})
    assert (parsed.tags, parsed.reward_range, parsed.needs.secrets) == (["a"], (0.0, 1.0), ["A_KEY"])
    assert declared({}).tags is None
    for invalid, words in (
        ({"tag": []}, "did you mean 'tags'"),
        ({"tags": "a"}, "tags"),
        ({"needs": {"secret": ["A"]}}, "secret"),
        ({"reward_range": [0]}, "reward_range"),
    ):
        with pytest.raises(ConfigError, match=words):
            declared({"tool": {"rove": invalid}})
