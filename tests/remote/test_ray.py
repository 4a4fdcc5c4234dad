"""Environments in actors of a Ray cluster: three nodes on this machine. Without Ray only what is said of that is tested."""

from __future__ import annotations

import asyncio
import importlib.util
import io
import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes import tiny_model
from rich.console import Console

import rove as vf
from rove.cli.rl import run_rl
from rove.core.config import convert
from rove.core.errors import ConfigError
from rove.core.protocols import Request
from rove.remote import node as node_module
from rove.remote import ray as on_ray
from rove.remote.loading import Isolation, open_environment, temporary_environment
from rove.remote.rollout import MAX_LOST_NODES
from rove.runs.run import Run
from rove.train.config import RLConfig
from tests.remote.test_distributed import Fateful, as_here
from tests.remote.test_isolation import Echo, facts, package, wheel

HAS_RAY = importlib.util.find_spec("ray") is not None
needs_ray = pytest.mark.skipif(not HAS_RAY, reason="Ray is not installed: make test-ray")
NODES = 3
WHERE = "def where(state):\n    return float(os.getppid())\n"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Three nodes with a CPU each, on the first of which we are; what their actors install comes from a folder."""
    wheels = tmp_path_factory.mktemp("wheels")
    wheel(wheels, "1.0")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("PIP_NO_INDEX", "1")
        patch.setenv("PIP_FIND_LINKS", str(wheels))
        utils = importlib.import_module("ray.cluster_utils")
        made = utils.Cluster()
        for _ in range(NODES):
            add(made)
        try:
            yield made
        finally:
            importlib.import_module("ray").shutdown()
            made.shutdown()


def add(cluster: Any) -> Any:
    return cluster.add_node(num_cpus=1, object_store_memory=on_ray.OBJECT_STORE_BYTES, include_dashboard=False)


def opened(cluster: Any, folder: Path, **how: Any) -> Any:
    isolation = Isolation(on=True, ray=cluster.address, **how)
    return open_environment("talk", folder, {"num_examples": 24}, isolation)


def killed(cluster: Any, ray: Any) -> Any:
    """`kill -9` of a node that we are not on: its raylet and what that has started."""
    here = ray.get_runtime_context().get_node_id()
    node = next(one for one in cluster.list_all_nodes() if one.node_id != here)
    raylet = node.all_processes["raylet"][0].process.pid
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(raylet)], capture_output=True, text=True, check=True)
    for pid in [*map(int, listed.stdout.split()), raylet]:
        os.kill(pid, signal.SIGKILL)
    return node


@pytest.mark.slow
@needs_ray
def test_rollouts_are_as_they_are_here_on_all_nodes(cluster: Any, tmp_path: Path) -> None:
    env = opened(cluster, package(tmp_path, more=WHERE, functions=", where"))
    plain = vf.load_environment("talk", tmp_path, num_examples=24)
    assert env.identity == plain.identity and env.count_examples() == 24 and env.get_dataset(3) == plain.get_dataset(3)
    for _ in range(2):
        records = env.generate_sync(Echo(), rollouts_per_example=2)
        hosts = Counter(record.scores.rewards.pop("where") for record in records if record.scores)
        assert len(hosts) == NODES and min(hosts.values()) >= 8
    mine = plain.generate_sync(Echo(), rollouts_per_example=2)
    assert [facts(record)[:3] for record in records] == [facts(record)[:3] for record in mine]
    state = importlib.import_module("ray._private.state")
    alive = [one for one in state.actors().values() if one["State"] == "ALIVE"]
    assert len({one["Address"]["NodeID"] for one in alive}) == len(alive) == NODES
    env.close()


@pytest.mark.slow
@needs_ray
def test_environments_of_a_process_share_its_actors(cluster: Any, tmp_path: Path) -> None:
    """Held-out environments of a training run would find no place beside it otherwise."""
    package(tmp_path)
    one, two = opened(cluster, tmp_path), opened(cluster, tmp_path)
    assert (
        list(map(facts, one.generate_sync(Echo()))) == list(map(facts, two.generate_sync(Echo()))) == as_here(tmp_path)
    )
    with temporary_environment("talk", tmp_path, {}, Isolation(on=True, ray=cluster.address)) as env:
        assert len(env.nodes.nodes) == 1  # pyright: ignore[reportAttributeAccessIssue]
    one.close()
    two.close()


@pytest.mark.slow
@needs_ray
def test_a_killed_node_loses_nothing_and_repeats_nothing(cluster: Any, tmp_path: Path) -> None:
    ray = importlib.import_module("ray")
    env = opened(cluster, package(tmp_path))
    assert all(env.nodes.nodes)
    nodes: list[Any] = []

    def happens(count: int, request: Request) -> None:
        if count == 60:
            nodes.append(killed(cluster, ray))

    client = Fateful(happens)
    summary = asyncio.run(vf.evaluate(env, client, "m", run=tmp_path / "run", rollouts_per_example=4))
    assert (summary["scored"], summary["failed"]) == (96, 0) and env.nodes.lost == 1
    lines = Counter((one.example_key, one.rollout_index) for one in Run(tmp_path / "run").outcomes())
    assert len(lines) == 96 and set(lines.values()) == {1}
    assert set(client.seeds.values()) == {1} and client.seeds.total() == 96 * 3
    records = sorted(Run(tmp_path / "run").rollouts(), key=lambda one: (one.example_id, one.rollout_index))
    assert list(map(facts, records)) == as_here(tmp_path, 4)
    cluster.remove_node(nodes[0])
    add(cluster)  # as there was before
    again = env.generate_sync(Echo(), rollouts_per_example=4)
    assert list(map(facts, again)) == as_here(tmp_path, 4)
    env.close()


@pytest.mark.slow
@needs_ray
def test_a_package_has_its_virtual_environment_on_every_node(cluster: Any, tmp_path: Path) -> None:
    package(tmp_path, at_import="import colour", in_setup="state['note'] = colour.VERSION")
    (tmp_path / "talk" / "pyproject.toml").write_text('[project]\nname = "talk"\ndependencies = ["colour"]\n')
    env = opened(cluster, tmp_path)
    [record, *_] = env.generate_sync(Echo())
    assert record.completion[1]["content"].endswith("1.0")
    env.close()


@pytest.mark.slow
@needs_ray
def test_what_is_wrong_is_said_before_anything_is_played(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package(tmp_path, at_import="def broken():\n    raise KeyError('lost')\nbroken()")
    with pytest.raises(ConfigError, match="(?s)^on .*could not be imported: KeyError: 'lost'.*in broken"):
        opened(cluster, tmp_path)
    fine = package(tmp_path / "fine")
    with monkeypatch.context() as patch:
        ours = {**node_module.about(), "rove": "0.0.1 (old)"}
        patch.setattr(node_module, "about", lambda: ours)
        with pytest.raises(ConfigError, match=r"has rove .*, this process 0.0.1 \(old\)"):
            opened(cluster, fine)
    ray = importlib.import_module("ray")
    actors = on_ray.actor_registry(ray.get_runtime_context().get_job_id())
    assert len(actors) == NODES
    for number in range(NODES):  # all CPUs are taken by somebody else
        actor = actors.get(number, pytest.fail).actor
        actors.drop(number, actor)
        ray.kill(actor)
    others = [ray.remote(num_cpus=1)(node_module.NodeActor).remote() for _ in range(NODES)]
    ray.get([other.about.remote() for other in others])
    with pytest.raises(ConfigError, match="no Ray actor has started within 2 s .*of the cluster's 3 CPUs 0 are free"):
        opened(cluster, fine, start_seconds=2.0)
    for other in others:
        ray.kill(other)


@pytest.mark.slow
@needs_ray
@pytest.mark.parametrize("times", [MAX_LOST_NODES - 1, MAX_LOST_NODES])
def test_a_machine_that_is_lost_while_it_loads_is_replaced_unless_that_goes_on(
    cluster: Any, tmp_path: Path, times: int
) -> None:
    left = tmp_path / "left"
    left.write_text("x" * times)
    code = f"""
import os, pathlib, signal
left = pathlib.Path({str(left)!r})
if left.read_text():
    left.write_text(left.read_text()[1:])
    os.kill(os.getppid(), signal.SIGKILL)
"""
    package(tmp_path, at_import=code)
    if times == MAX_LOST_NODES:
        with pytest.raises(ConfigError, match="^on .*, while the environment was loaded: "):
            opened(cluster, tmp_path, ray_actors=1)
    else:
        env = opened(cluster, tmp_path, ray_actors=1)
        assert list(map(facts, env.generate_sync(Echo()))) == as_here(tmp_path)
        env.close()
    assert left.read_text() == ""


@pytest.mark.slow
@needs_ray
def test_the_command_of_the_page_starts_a_cluster_of_its_own(tmp_path: Path) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs/scale.md").read_text(encoding="utf-8")
    [command] = re.findall(r"^rove (eval .* --ray)$", page, flags=re.MULTILINE)
    places = [str(Path(vf.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    runs = []
    for words in (command.split(), command.removesuffix(" --ray").split()):
        call = [sys.executable, "-m", "rove.cli.main", *words, "--json"]
        where = {**os.environ, "PYTHONPATH": os.pathsep.join(places)}
        done = subprocess.run(call, cwd=tmp_path, env=where, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        runs.append((json.loads(done.stdout), done.stderr))
    assert runs[0][0]["scored"] == 100
    assert "already has 100 rollouts" in runs[1][1]  # the same run, with Ray or without


@pytest.mark.slow
@needs_ray
def test_training_and_its_measurements_are_played_there(cluster: Any, tmp_path: Path) -> None:
    """Every rollout is; the held-out environment shares the actors."""
    tiny_model().save(tmp_path / "model")
    package(tmp_path, more=WHERE, functions=", where")
    config = convert(
        RLConfig,
        {
            **{
                "env": "talk",
                "model": str(tmp_path / "model"),
                "env_dir": str(tmp_path),
                "run_dir": str(tmp_path / "run"),
            },
            **{"steps": 1, "batch_size": 12, "rollouts_per_example": 2, "max_tokens": 2, "threads": 1},
            **{
                "evaluation": [{"env": "talk", "every": 1, "max_tokens": 2, "num_examples": 6}],
                "ray": {"address": cluster.address},
            },
        },
    )
    run_rl(config, Console(file=io.StringIO()))
    [measured] = (tmp_path / "run" / "evaluations" / "talk").iterdir()
    for run in (Run(tmp_path / "run"), Run(measured)):
        hosts = {record.scores.rewards["where"] for record in run.rollouts() if record.scores}
        assert hosts and os.getpid() not in hosts and os.getppid() not in hosts


def test_without_ray_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"--ray local needs Ray, which is not installed: pip install 'rove\[ray\]'"):
        open_environment("tictactoe", isolation=Isolation(on=True, ray="local"))


@pytest.mark.parametrize("address", ["nowhere", "ray://head:10001", "head:", ":6379"])
def test_an_address_is_one(address: str) -> None:
    with pytest.raises(ConfigError, match="expected HOST:PORT as"):
        on_ray._check_reachable(address)


def test_an_unreachable_cluster_is_an_error() -> None:
    with pytest.raises(
        ConfigError, match="--ray 127.0.0.1:1: nothing listens there .*`ray start --head` starts a cluster"
    ):
        on_ray._check_reachable("127.0.0.1:1")


def test_environments_around_here_are_named_by_their_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An actor's working directory is another one."""
    package(tmp_path / "environments")
    monkeypatch.chdir(tmp_path)
    assert on_ray._env_folder("talk", None) == str(tmp_path / "environments")
    assert on_ray._env_folder("talk", "elsewhere") == str(tmp_path / "elsewhere")
    assert on_ray._env_folder("tictactoe", None) is None and on_ray._env_folder("nothing_of_that_name", None) is None
