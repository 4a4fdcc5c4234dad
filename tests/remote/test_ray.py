"""Environments in actors of a Ray cluster with three nodes on this machine; without Ray, only settings and errors are tested."""

from __future__ import annotations

import asyncio
import importlib.util
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

import rove as vf
from rove.core.config import convert
from rove.core.errors import ConfigError
from rove.core.protocols import Request
from rove.remote import node as node_module
from rove.remote import ray as ray_module
from rove.remote.isolation import Isolation
from rove.remote.loading import open_environment, temporary_environment
from rove.remote.rollout import MAX_LOST_NODES
from rove.runs.run import Run
from rove.stages.reporter import SilentReporter
from rove.stages.rl import run_rl
from rove.train.config import RLConfig
from tests.remote.test_distributed import HookedClient, run_locally
from tests.remote.test_isolation import Echo, facts, package, wheel

HAS_RAY = importlib.util.find_spec("ray") is not None
needs_ray = pytest.mark.skipif(not HAS_RAY, reason="Ray is not installed: make test-ray")
NODES = 3
HOST_REWARD = "def where(state):\n    return float(os.getppid())\n"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Yield a cluster of three nodes with one CPU each, with this process on the first; pip installs from a local folder."""
    wheels = tmp_path_factory.mktemp("wheels")
    wheel(wheels, "1.0")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("PIP_NO_INDEX", "1")
        patch.setenv("PIP_FIND_LINKS", str(wheels))
        utils = importlib.import_module("ray.cluster_utils")
        ray_cluster = utils.Cluster()
        for _ in range(NODES):
            add_node(ray_cluster)
        try:
            yield ray_cluster
        finally:
            importlib.import_module("ray").shutdown()
            ray_cluster.shutdown()


def add_node(cluster: Any) -> Any:
    return cluster.add_node(num_cpus=1, object_store_memory=ray_module.OBJECT_STORE_BYTES, include_dashboard=False)


def open_on_cluster(cluster: Any, folder: Path, **options: Any) -> Any:
    isolation = Isolation(on=True, ray=cluster.address, **options)
    return open_environment("talk", folder, {"num_examples": 24}, isolation)


def kill_node(cluster: Any, ray: Any) -> Any:
    """Kill another node than this process's with SIGKILL: its raylet and the raylet's children; return the node."""
    own_node_id = ray.get_runtime_context().get_node_id()
    node = next(node for node in cluster.list_all_nodes() if node.node_id != own_node_id)
    raylet = node.all_processes["raylet"][0].process.pid
    children = subprocess.run(["ps", "-o", "pid=", "--ppid", str(raylet)], capture_output=True, text=True, check=True)
    for pid in [*map(int, children.stdout.split()), raylet]:
        os.kill(pid, signal.SIGKILL)
    return node


@pytest.mark.slow
@needs_ray
def test_rollouts_on_all_nodes_equal_local_ones(cluster: Any, tmp_path: Path) -> None:
    env = open_on_cluster(cluster, package(tmp_path, more=HOST_REWARD, functions=", where"))
    plain = vf.load_environment("talk", tmp_path, num_examples=24)
    assert env.identity == plain.identity and env.count_examples() == 24 and env.get_dataset(3) == plain.get_dataset(3)
    for _ in range(2):
        records = env.generate_sync(Echo(), rollouts_per_example=2)
        hosts = Counter(record.scores.rewards.pop("where") for record in records if record.scores)
        assert len(hosts) == NODES and min(hosts.values()) >= 8
    local_records = plain.generate_sync(Echo(), rollouts_per_example=2)
    assert [facts(record)[:3] for record in records] == [facts(record)[:3] for record in local_records]
    state = importlib.import_module("ray._private.state")
    alive = [actor for actor in state.actors().values() if actor["State"] == "ALIVE"]
    assert len({node["Address"]["NodeID"] for node in alive}) == len(alive) == NODES
    env.close()


@pytest.mark.slow
@needs_ray
def test_environments_of_a_process_share_its_actors(cluster: Any, tmp_path: Path) -> None:
    """Otherwise no CPUs would be left for the held-out environments of a training run."""
    package(tmp_path)
    first, second = open_on_cluster(cluster, tmp_path), open_on_cluster(cluster, tmp_path)
    assert (
        list(map(facts, first.generate_sync(Echo())))
        == list(map(facts, second.generate_sync(Echo())))
        == run_locally(tmp_path)
    )
    with temporary_environment("talk", tmp_path, {}, Isolation(on=True, ray=cluster.address)) as env:
        assert len(env.nodes.nodes) == 1  # pyright: ignore[reportAttributeAccessIssue]
    first.close()
    second.close()


@pytest.mark.slow
@needs_ray
def test_a_killed_node_loses_no_rollout_and_repeats_no_request(cluster: Any, tmp_path: Path) -> None:
    ray = importlib.import_module("ray")
    env = open_on_cluster(cluster, package(tmp_path))
    assert all(env.nodes.nodes)
    killed_nodes: list[Any] = []

    def kill_one_node(count: int, request: Request) -> None:
        if count == 60:
            killed_nodes.append(kill_node(cluster, ray))

    client = HookedClient(kill_one_node)
    summary = asyncio.run(vf.evaluate(env, client, "m", run=tmp_path / "run", rollouts_per_example=4))
    assert (summary.scored, summary.failed) == (96, 0) and env.nodes.lost == 1
    lines = Counter((outcome.example_key, outcome.rollout_index) for outcome in Run(tmp_path / "run").outcomes())
    assert len(lines) == 96 and set(lines.values()) == {1}
    assert set(client.seeds.values()) == {1} and client.seeds.total() == 96 * 3
    records = sorted(Run(tmp_path / "run").rollouts(), key=lambda record: (record.example_id, record.rollout_index))
    assert list(map(facts, records)) == run_locally(tmp_path, 4)
    cluster.remove_node(killed_nodes[0])
    add_node(cluster)  # Restore the number of nodes.
    second_records = env.generate_sync(Echo(), rollouts_per_example=4)
    assert list(map(facts, second_records)) == run_locally(tmp_path, 4)
    env.close()


@pytest.mark.slow
@needs_ray
def test_a_package_has_its_virtual_environment_on_every_node(cluster: Any, tmp_path: Path) -> None:
    package(tmp_path, at_import="import colour", in_setup="state['note'] = colour.VERSION")
    (tmp_path / "talk" / "pyproject.toml").write_text('[project]\nname = "talk"\ndependencies = ["colour"]\n')
    env = open_on_cluster(cluster, tmp_path)
    [record, *_] = env.generate_sync(Echo())
    assert record.completion[1]["content"].endswith("1.0")
    env.close()


@pytest.mark.slow
@needs_ray
def test_config_errors_are_raised_before_any_rollout(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package(tmp_path, at_import="def broken():\n    raise KeyError('lost')\nbroken()")
    with pytest.raises(ConfigError, match="(?s)^on .*could not be imported: KeyError: 'lost'.*in broken"):
        open_on_cluster(cluster, tmp_path)
    valid = package(tmp_path / "fine")
    with monkeypatch.context() as patch:
        ours = {**node_module.about(), "rove": "0.0.1 (old)"}
        patch.setattr(node_module, "about", lambda: ours)
        with pytest.raises(ConfigError, match=r"has rove .*, this process 0.0.1 \(old\)"):
            open_on_cluster(cluster, valid)
    ray = importlib.import_module("ray")
    actors = ray_module.actor_registry(ray.get_runtime_context().get_job_id())
    assert len(actors) == NODES
    for number in range(NODES):  # Other actors take all CPUs.
        actor = actors.get(number, pytest.fail).actor
        actors.drop(number, actor)
        ray.kill(actor)
    blockers = [ray.remote(num_cpus=1)(node_module.NodeActor).remote() for _ in range(NODES)]
    ray.get([actor.about.remote() for actor in blockers])
    with pytest.raises(ConfigError, match="no Ray actor has started within 2 s .*of the cluster's 3 CPUs 0 are free"):
        open_on_cluster(cluster, valid, start_seconds=2.0)
    for blocker in blockers:
        ray.kill(blocker)


@pytest.mark.slow
@needs_ray
@pytest.mark.parametrize("times", [MAX_LOST_NODES - 1, MAX_LOST_NODES])
def test_nodes_lost_while_loading_are_replaced_up_to_a_limit(cluster: Any, tmp_path: Path, times: int) -> None:
    left_path = tmp_path / "left"
    left_path.write_text("x" * times)
    code = f"""
import os, pathlib, signal
left = pathlib.Path({str(left_path)!r})
if left.read_text():
    left.write_text(left.read_text()[1:])
    os.kill(os.getppid(), signal.SIGKILL)
"""
    package(tmp_path, at_import=code)
    if times == MAX_LOST_NODES:
        with pytest.raises(ConfigError, match="^on .*, while the environment was loaded: "):
            open_on_cluster(cluster, tmp_path, ray_actors=1)
    else:
        env = open_on_cluster(cluster, tmp_path, ray_actors=1)
        assert list(map(facts, env.generate_sync(Echo()))) == run_locally(tmp_path)
        env.close()
    assert left_path.read_text() == ""


@pytest.mark.slow
@needs_ray
def test_the_documented_command_starts_its_own_cluster(tmp_path: Path) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs/scale.md").read_text(encoding="utf-8")
    [command] = re.findall(r"^rove (eval .* --ray)$", page, flags=re.MULTILINE)
    python_path = [str(Path(vf.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    runs = []
    for words in (command.split(), command.removesuffix(" --ray").split()):
        call = [sys.executable, "-m", "rove.cli.main", *words, "--json"]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(python_path)}
        done = subprocess.run(call, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        runs.append((json.loads(done.stdout), done.stderr))
    assert runs[0][0]["scored"] == 100
    assert "already has 100 rollouts" in runs[1][1]  # The run's identity is the same without Ray.


@pytest.mark.slow
@needs_ray
def test_training_and_evaluation_rollouts_run_on_the_cluster(cluster: Any, tmp_path: Path) -> None:
    """All rollouts run there; the held-out environment shares the actors."""
    tiny_model().save(tmp_path / "model")
    package(tmp_path, more=HOST_REWARD, functions=", where")
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
    run_rl(config, SilentReporter())
    [evaluation] = (tmp_path / "run" / "evaluations" / "talk").iterdir()
    for run in (Run(tmp_path / "run"), Run(evaluation)):
        hosts = {record.scores.rewards["where"] for record in run.rollouts() if record.scores}
        assert hosts and os.getpid() not in hosts and os.getppid() not in hosts


def test_without_ray_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"--ray local needs Ray, which is not installed: pip install 'rove\[ray\]'"):
        open_environment("tictactoe", isolation=Isolation(on=True, ray="local"))


@pytest.mark.parametrize("address", ["nowhere", "ray://head:10001", "head:", ":6379"])
def test_invalid_cluster_addresses_are_errors(address: str) -> None:
    with pytest.raises(ConfigError, match="expected HOST:PORT as"):
        ray_module._check_reachable(address)


def test_an_unreachable_cluster_is_an_error() -> None:
    with pytest.raises(
        ConfigError, match="--ray 127.0.0.1:1: nothing listens there .*`ray start --head` starts a cluster"
    ):
        ray_module._check_reachable("127.0.0.1:1")


def test_local_environments_are_passed_with_their_absolute_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An actor has another working directory."""
    package(tmp_path / "environments")
    monkeypatch.chdir(tmp_path)
    assert ray_module._env_folder("talk", None) == str(tmp_path / "environments")
    assert ray_module._env_folder("talk", "elsewhere") == str(tmp_path / "elsewhere")
    assert (
        ray_module._env_folder("tictactoe", None) is None
        and ray_module._env_folder("nothing_of_that_name", None) is None
    )
