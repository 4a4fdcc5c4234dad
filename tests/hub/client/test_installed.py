"""Installed environments: found by owner and name, each with its own interpreter, also when module names are equal."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hubs import code, publish

import rove
from rove.core.errors import ConfigError, HubError
from rove.envs import loading
from rove.hub.client import installed
from rove.hub.client.hub import Hub
from rove.hub.client.installed import (
    Installed,
    all_installed,
    environment_folder,
    find,
    load,
    packages_named,
    uninstall,
)
from rove.hub.client.installing import fetch, install, look_up
from rove.hub.package.names import Reference, parse_reference

ENVIRONMENT_READER = """
import os, sys
import rove as vf


def load_environment():
    def seen(state):
        return 1.0

    seen.__name__ = "seen"
    rows = [{"question": name, "answer": os.environ.get(name, "-")} for name in ("DECLARED_KEY", "OTHER_KEY", "PASSED")]
    rows.append({"question": "prefix", "answer": sys.prefix})
    return vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric([seen]), policies={"p": lambda m, s, r: "x"})
"""


def put(hub: Path, name: str, tmp: Path) -> Installed:
    async def fetch_and_install() -> Installed:
        async with Hub(str(hub)) as client:
            offer = await look_up(client, parse_reference(name))
            return install(offer, await fetch(client, offer, tmp))

    return asyncio.run(fetch_and_install())


@pytest.fixture(scope="module")
def installed_environments(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield a data folder with three installed environments, two of which have the same module name."""
    folder = tmp_path_factory.mktemp("shelf")
    hub = folder / "hub"
    hub.mkdir()
    publish(hub)
    publish(hub, owner="bob", module=code("Triple", 3, 0.5))
    publish(hub, owner="bob", name="sees", module=ENVIRONMENT_READER.encode(), needs={"secrets": ["DECLARED_KEY"]})
    first_values = {name: os.environ.get(name) for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME")}
    os.environ.update(XDG_DATA_HOME=str(folder / "data"), XDG_CONFIG_HOME=str(folder / "config"))
    for name in ("alice/doubling", "bob/doubling", "bob/sees"):
        put(hub, name, folder)
    yield folder
    for name, value in first_values.items():
        os.environ.pop(name) if value is None else os.environ.update({name: value})


@pytest.fixture
def finders() -> Iterator[None]:
    external_finders_before = list(loading.external_finders)
    loading.external_finders[:] = [installed.finder]
    yield
    loading.external_finders[:] = external_finders_before


def mean_reward(env: rove.Environment) -> float:
    client = rove.ScriptedClient(env.policies["oracle"])
    return env.evaluate_sync(client, num_examples=2).reward.mean


@pytest.mark.slow
def test_two_environments_with_the_same_module_name_stay_separate(installed_environments: Path, finders: None) -> None:
    alice, bob = rove.load_environment("alice/doubling"), rove.load_environment("bob/doubling@1.0", seed=5)
    assert (mean_reward(alice), mean_reward(bob)) == (1.0, 0.5)
    assert alice.get_dataset(2)[1]["prompt"][0]["content"] == "Double 1"
    assert bob.get_dataset(2)[1]["prompt"][0]["content"] == "Triple 6"
    assert (alice.env_id, bob.env_id) == ("alice/doubling", "bob/doubling")
    assert alice.identity != bob.identity
    assert loading.environment_version("alice/doubling") != loading.environment_version("bob/doubling")
    assert loading.environment_file("bob/doubling").is_relative_to(environment_folder(Reference("bob", "doubling")))


def test_names_that_are_not_installed_resolve_to_local_modules(installed_environments: Path, finders: None) -> None:
    for name in ("tictactoe", "someone/tictactoe", "someone/tictactoe@9", "alice/tictactoe"):
        assert loading.environment_file(name).name == "tictactoe.py"
    with pytest.raises(ConfigError, match="no environment 'doubling'"):
        loading.environment_file("doubling")
    with pytest.raises(ConfigError, match="no environment 'doubling'"):
        loading.environment_file("alice/doubling@2.0")
    with pytest.raises(ConfigError, match="no environment 'doubling'"):
        loading.environment_file("alice/doubling", installed_environments)


def test_rove_check_uses_the_wheel_of_an_installed_environment(installed_environments: Path) -> None:
    [package] = packages_named("alice/doubling", None)
    assert package.kind == "wheel" and package.path.suffix == ".whl"
    assert package.path.is_relative_to(environment_folder(parse_reference("alice/doubling")))


def test_a_misspelled_argument_is_an_error_with_a_suggestion(installed_environments: Path, finders: None) -> None:
    with pytest.raises(ConfigError, match="no argument 'num_exmaples'; did you mean 'num_examples'"):
        rove.load_environment("alice/doubling", num_exmaples=2)


def test_an_environment_sees_only_declared_and_passed_variables(
    installed_environments: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DECLARED_KEY", "for it")
    monkeypatch.setenv("OTHER_KEY", "for somebody else")
    monkeypatch.setenv("PASSED", "on purpose")
    monkeypatch.setenv("ROVE_PASS", "PASSED, NOT_THERE")
    visible = {row["prompt"][0]["content"]: row["answer"] for row in load("bob/sees").get_dataset()}
    assert [visible[name] for name in ("DECLARED_KEY", "OTHER_KEY", "PASSED")] == ["for it", "-", "on purpose"]
    assert Path(visible["prefix"]).is_relative_to(installed_environments / "data")


def test_installed_environments_are_listed_and_damaged_ones_are_errors(
    installed_environments: Path, finders: None
) -> None:
    assert [str(installed_package.reference) for installed_package in all_installed()] == [
        "alice/doubling@1.0",
        "bob/doubling@1.0",
        "bob/sees@1.0",
    ]
    installed_package = find(Reference("bob", "doubling"))
    assert installed_package is not None
    file = installed_package.path / installed_package.file
    original_code = file.read_bytes()
    file.unlink()
    try:
        with pytest.raises(ConfigError, match=r"bob/doubling@1\.0 is damaged .*rove install bob/doubling@1\.0"):
            loading.environment_file("bob/doubling")
    finally:
        file.write_bytes(original_code)
    record = environment_folder(Reference("bob", "doubling")) / installed.RECORD
    original_record = record.read_bytes()
    record.write_bytes(b"{")
    try:
        with pytest.raises(HubError, match="install it again"):
            find(Reference("bob", "doubling"))
    finally:
        record.write_bytes(original_record)


@pytest.mark.broad
def test_uninstall_removes_one_environment_and_keeps_the_others(installed_environments: Path, tmp_path: Path) -> None:
    publish(installed_environments / "hub", owner="carol")
    put(installed_environments / "hub", "carol/doubling", tmp_path)
    assert uninstall(Reference("carol", "doubling")).version == "1.0"
    assert (
        find(Reference("carol", "doubling")) is None and not environment_folder(Reference("carol", "doubling")).exists()
    )
    with pytest.raises(HubError, match=r"carol/doubling is not installed; installed: alice/doubling@1\.0, bob"):
        uninstall(Reference("carol", "doubling"))
    assert find(Reference("alice", "doubling")) is not None


INSTALL_SCRIPT = """
import asyncio, sys, pathlib
sys.path[:0] = {path!r}
from tests.hub.client.test_installed import put
print("begun", flush=True)
put(pathlib.Path({hub!r}), "alice/doubling@2.0", pathlib.Path({tmp!r}))
print("done", flush=True)
"""


@pytest.mark.broad
def test_a_killed_installation_keeps_the_previous_version(installed_environments: Path, tmp_path: Path) -> None:
    publish(installed_environments / "hub", version="2.0", module=code("Double", 2, 4.0))
    script = INSTALL_SCRIPT.format(path=sys.path, hub=str(installed_environments / "hub"), tmp=str(tmp_path))
    environment_path = environment_folder(Reference("alice", "doubling"))
    for seconds in (0.3, 1.0):
        process = subprocess.Popen(
            [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        assert process.stdout is not None and process.stdout.readline() == "begun\n"
        time.sleep(seconds)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        installed_package = find(Reference("alice", "doubling"))
        assert installed_package is not None and installed_package.python.exists()
        if installed_package.version == "2.0":  # The installation finished before the signal.
            break
        assert mean_reward(load("alice/doubling")) == 1.0
    environment = put(installed_environments / "hub", "alice/doubling@2.0", tmp_path)
    assert mean_reward(load("alice/doubling")) == 4.0
    folders = {child.name for child in environment_path.iterdir() if child.is_dir()}
    # The previous version may be in use; the unfinished one is gone.
    assert environment.folder in folders and len(folders) <= 2
    assert json.loads((environment_path / installed.RECORD).read_bytes())["version"] == "2.0"


def test_a_damaged_record_does_not_hide_other_environments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    good = {"owner": "b", "name": "y", "version": "1.0", "module": "y", "folder": "f", "file": "y.py", "origin": "h"}
    for folder, content in {
        "a/x": "{",
        "b/y": json.dumps(good | {"manifest": "", "wheel": "", "installed": ""}),
    }.items():
        record = tmp_path / "rove/environments" / folder / installed.RECORD
        record.parent.mkdir(parents=True)
        record.write_text(content)
    assert [installed_package.name for installed_package in all_installed()] == ["y"]
    assert "a/x and install it again" in caplog.text


@pytest.mark.broad
def test_load_environment_finds_installed_environments_of_the_requested_version(installed_environments: Path) -> None:
    code = """
import rove
env = rove.load_environment("bob/doubling", num_examples=2)
print(env.env_id, len(env.get_dataset()))
try:
    rove.load_environment("alice/word-game@9.9")
except rove.ConfigError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    first, second = done.stdout.splitlines()
    assert first == "bob/doubling 2", done.stderr
    assert "alice/word-game@9.9 is not installed; 'word_game' in " in second and "(rove install alice" in second
