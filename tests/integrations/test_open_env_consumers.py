"""`rove serve --openenv` with the libraries that use OpenEnv servers: the same episodes and rewards as in `rove eval`.

`ROVE_OPENENV` names a Python with OpenEnv, and `ROVE_VERIFIERS_V1` one with verifiers 0.4 and its extra "openenv";
`make test-trainers` makes both.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestServer
from shipped_environments import ENVIRONMENTS
from verifiers_v1_runs import ReplayModel, reproducible_metrics, run_in_verifiers

import rove as vf
from rove.core.messages import as_messages
from rove.server.app import make_app

OPENENV = os.environ.get("ROVE_OPENENV", "")
VERIFIERS = os.environ.get("ROVE_VERIFIERS_V1", "")
ROWS = int(os.environ.get("ROVE_OPENENV_ROWS", "150"))
VERIFIERS_ROWS = min(ROWS, 20)
"""Rows of each environment in verifiers, whose episodes take longer."""
PLAYER = {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}}
"""A conversation on this machine; by default, verifiers gives the model a shell in Prime's sandboxes."""
DRIVER = Path(__file__).parents[1] / "support" / "open_env_driver.py"
DRIVER_TIMEOUT_S = 900
FAILING = """
import rove as vf


class Failing(vf.MultiTurnEnv):
    async def env_response(self, messages, state, **kwargs):
        raise ValueError("the environment broke")


def load_environment():
    return Failing(dataset=[{"question": "?", "answer": "!"}], max_turns=2)
"""

needs_openenv = pytest.mark.skipif(not OPENENV, reason="ROVE_OPENENV names no Python with OpenEnv")
needs_verifiers = pytest.mark.skipif(not VERIFIERS, reason="ROVE_VERIFIERS_V1 names no Python with verifiers 0.4")


@contextmanager
def served(name: str, arguments: Mapping[str, Any], folder: Path | None = None) -> Iterator[str]:
    """Run `rove serve --openenv`; yield its URL."""
    command = [sys.executable, "-m", "rove.cli.main", "serve", "--openenv", name, "--port", "0"]
    command += ["--env-args", json.dumps(dict(arguments))]
    if folder is not None:
        command += ["--env-dir", str(folder)]
    env = {**os.environ, "PYTHONPATH": str(Path(vf.__file__).parents[1])}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith(f"serving {name} at "), line
            yield line.split()[3]
        finally:
            process.terminate()


class ObservingModel(ReplayModel):
    """A model that reads observations as JSON, as verifiers shows them, and writes actions as JSON."""

    def answer(self, messages: vf.Messages, state: vf.State, rng: Any) -> Any:
        """Return the action in a conversation of observations."""
        conversation: list[Mapping[str, Any]] = []
        for message in messages:
            body = json.loads(message["content"])
            if message["role"] == "user":
                conversation += body["observation"]["messages"]
            else:
                conversation.append({"role": "assistant", "content": body["message"], **_calls_of(body)})
        return json.dumps(action_of(super().answer(as_messages(conversation), state, rng)))


def _calls_of(body: Mapping[str, Any]) -> dict[str, Any]:
    return {"tool_calls": body["tool_calls"]} if body.get("tool_calls") else {}


def action_of(message: Any) -> dict[str, Any]:
    """Return a message of the model as an action."""
    if isinstance(message, str):
        return {"message": message}
    return {"message": message.get("content") or "", **_calls_of(message)}


class Reference:
    """An environment, its rollouts in `rove eval`, and the server of the same environment."""

    def __init__(self, name: str, records: Sequence[vf.RolloutRecord], model: ReplayModel, url: str):
        self.name = name
        self.records = records
        self.model = model
        self.url = url

    def resets(self, count: int) -> list[dict[str, Any]]:
        """Return the arguments of `reset` for the first rows."""
        return [{"split": "eval", "index": record.example_id, "seed": 0} for record in self.records[:count]]


@pytest.fixture(scope="module")
def references() -> Iterator[dict[str, Reference]]:
    """The environments that ship with rove, with scripted policies."""
    chosen = os.environ.get("ROVE_VERIFIERS_ENVIRONMENTS", " ".join(ENVIRONMENTS)).split()
    with ExitStack() as stack:
        references = {}
        for name in chosen:
            policies, arguments = ENVIRONMENTS[name]
            url = stack.enter_context(served(name, arguments))
            model = ObservingModel()
            references[name] = Reference(name, asyncio.run(_records(model, name, policies, arguments)), model, url)
        yield references


async def _records(
    model: ReplayModel, name: str, policies: list[str], arguments: dict[str, Any]
) -> list[vf.RolloutRecord]:
    env = vf.load_environment(name, **arguments)
    await model.record_policies(env, policies, ROWS)

    def answer(messages: vf.Messages, state: vf.State, rng: Any) -> Any:
        return ReplayModel.answer(model, messages, state, rng)

    return await vf.generate(env, vf.ScriptedClient(answer), num_examples=ROWS)


@pytest.fixture(scope="module")
def episodes(references: dict[str, Reference]) -> dict[str, list[dict[str, Any]]]:
    """The episodes of OpenEnv's client, by environment."""
    job = [
        {"url": reference.url, "reset": reset, "actions": [action_of(step.completion[0]) for step in record.steps]}
        for reference in references.values()
        for record, reset in zip(reference.records, reference.resets(ROWS), strict=True)
    ]
    completed = subprocess.run(
        [OPENENV, str(DRIVER)],
        input=json.dumps(job),
        capture_output=True,
        text=True,
        timeout=DRIVER_TIMEOUT_S,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr[-4000:]
    results = iter(json.loads(completed.stdout))
    return {name: [next(results) for _ in reference.records] for name, reference in references.items()}


@needs_openenv
@pytest.mark.slow
@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_episodes_of_openenvs_client_equal_those_of_rove_eval(
    name: str, references: dict[str, Reference], episodes: dict[str, list[dict[str, Any]]]
) -> None:
    if name not in references:
        pytest.skip("not in ROVE_VERIFIERS_ENVIRONMENTS")
    records = references[name].records
    assert records
    for record, episode in zip(records, episodes[name], strict=True):
        assert record.scores is not None and episode["done"]
        assert episode["reward"] == record.reward
        assert episode["metadata"]["rewards"] == record.scores.rewards
        assert reproducible_metrics(episode["metadata"]["metrics"]) == reproducible_metrics(record.scores.metrics)
        assert episode["metadata"]["stop_condition"] == record.stop_condition
        assert episode["steps"] == len(record.steps)
        observed = [message for observation in episode["observations"] for message in observation["messages"]]
        conversation = [*record.prompt, *record.completion]
        expected = [message for message in conversation if message["role"] != "assistant"]
        assert [message["content"] for message in observed] == [message["content"] for message in expected]


@needs_verifiers
@pytest.mark.slow
def test_rewards_in_the_openenv_taskset_of_verifiers_equal_those_of_rove_eval(
    references: dict[str, Reference], tmp_path: Path
) -> None:
    model = ObservingModel()
    runs: list[dict[str, Any]] = []
    for reference in references.values():
        model.replies |= reference.model.replies
        config = {"base_url": reference.url, "resets": reference.resets(VERIFIERS_ROWS)}
        runs.append(taskset_run(config, VERIFIERS_ROWS))

    async def run() -> list[dict[str, list[dict[str, Any]]]]:
        async with model.serve() as url:
            return await run_in_verifiers(VERIFIERS, url, runs, tmp_path, {})

    for reference, traces in zip(references.values(), asyncio.run(run()), strict=True):
        rewards = {trace["task"]["data"]["reset"]["index"]: _reward_of(trace) for trace in traces["server"]}
        expected = {record.example_id: record.reward for record in reference.records[:VERIFIERS_ROWS]}
        assert rewards == expected, reference.name


def taskset_run(config: dict[str, Any], limit: int) -> dict[str, Any]:
    """Return a run of verifiers' taskset for `run_in_verifiers`."""
    env = {"player": PLAYER}
    return {"taskset": "openenv", "serve": True, "taskset_config": config, "env": env, "limit": limit}


def _reward_of(trace: Mapping[str, Any]) -> float:
    assert trace["ok"], trace["errors"]
    return trace["rewards"]["openenv_reward"]["score"]


@needs_openenv
@pytest.mark.slow
def test_a_failed_rollout_has_no_reward_for_openenvs_client(tmp_path: Path) -> None:
    (tmp_path / "failing.py").write_text(FAILING, encoding="utf-8")
    with served("failing", {}, tmp_path) as url:
        job = [{"url": url, "reset": {"index": 0}, "actions": [{"message": "a"}]}]
        completed = subprocess.run(
            [OPENENV, str(DRIVER)], input=json.dumps(job), capture_output=True, text=True, check=True
        )
    [episode] = json.loads(completed.stdout)
    assert (episode["done"], episode["reward"]) == (True, None)
    assert "the environment broke" in episode["metadata"]["error"]["message"]


@needs_verifiers
@pytest.mark.slow
def test_the_openenv_taskset_of_verifiers_counts_a_failed_rollout_as_zero(tmp_path: Path) -> None:
    """This is why the guide advises `rove build --verifiers-v1`, where failed rollouts have no reward."""
    (tmp_path / "failing.py").write_text(FAILING, encoding="utf-8")

    async def run(openenv_url: str) -> list[dict[str, list[dict[str, Any]]]]:
        client = vf.ScriptedClient(lambda messages, state, rng: '{"message": "a"}')
        async with TestServer(make_app(client, "scripted")) as server:
            config = {"base_url": openenv_url, "resets": [{"index": 0}]}
            return await run_in_verifiers(
                VERIFIERS, f"{server.make_url('/v1')}", [taskset_run(config, 1)], tmp_path, {}
            )

    with served("failing", {}, tmp_path) as url:
        [[trace]] = [traces["server"] for traces in asyncio.run(run(url))]
    assert _reward_of(trace) == 0.0
