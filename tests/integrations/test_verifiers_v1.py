"""rove environments in verifiers 0.4: the same rewards as in `rove eval`, and failures that are never a reward of 0.

`ROVE_VERIFIERS_V1` names a Python with verifiers 0.4 and rove's dependencies; `make test-trainers` makes one.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestServer
from shipped_environments import ENVIRONMENTS
from toy_envs import scripted_client
from verifiers_v1_runs import ReplayModel, records_by_row, run_in_verifiers, traces_by_row

import rove as vf
from rove.core.errors import ConfigError
from rove.integrations.verifiers_export import check_exportable, group_rewards_of
from rove.server.app import make_app

PYTHON = os.environ.get("ROVE_VERIFIERS_V1", "")
ROWS = int(os.environ.get("ROVE_VERIFIERS_ROWS", "150"))

needs_verifiers = pytest.mark.skipif(not PYTHON, reason="ROVE_VERIFIERS_V1 names no Python with verifiers 0.4 and rove")
RowsByRun = dict[str, dict[int, dict[str, Any]]]


@pytest.fixture(scope="module")
def comparisons(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RowsByRun]:
    """Return the results of rove and of verifiers for the same rows, by environment and by way of running them."""
    chosen = os.environ.get("ROVE_VERIFIERS_ENVIRONMENTS", " ".join(ENVIRONMENTS)).split()
    return asyncio.run(_compare(chosen, tmp_path_factory.mktemp("verifiers")))


async def _compare(names: list[str], folder: Path) -> dict[str, RowsByRun]:
    model = ReplayModel()
    results: dict[str, RowsByRun] = {}
    runs: list[dict[str, Any]] = []
    envs: dict[str, vf.Environment] = {}
    for name in names:
        policies, arguments = ENVIRONMENTS[name]
        envs[name] = vf.load_environment(name, **arguments)
        await model.record_policies(envs[name], policies, ROWS)
        config = {"split": "eval", "args": arguments}
        words = ["-n", str(ROWS), "--env.taskset.split", "eval"]
        for argument, value in arguments.items():
            words += [f"--env.taskset.args.{argument}", str(value)]
        serve = {"serve": True, "taskset_config": config, "limit": ROWS}
        runs.append({"taskset": f"{name}_v1", "words": words, **serve})
    async with model.serve() as url:
        for name, env in envs.items():
            records = await vf.generate(env, vf.OpenAIClient(url), "scripted", num_examples=ROWS)
            results[name] = {"rove eval": records_by_row(records)}
        modules = {f"{name}_v1": name for name in names}
        for name, traces in zip(names, await run_in_verifiers(PYTHON, url, runs, folder, modules), strict=True):
            results[name] |= {way: traces_by_row(of_way) for way, of_way in traces.items()}
    return results


@needs_verifiers
@pytest.mark.slow
@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_rewards_equal_those_of_rove_eval_row_by_row(name: str, comparisons: dict[str, RowsByRun]) -> None:
    if name not in comparisons:
        pytest.skip("not in ROVE_VERIFIERS_ENVIRONMENTS")
    expected = comparisons[name]["rove eval"]
    assert expected and all(row["ok"] for row in expected.values())
    assert comparisons[name]["vf-eval"] == expected
    assert comparisons[name]["server"] == expected


ODD_ENV = """
import rove as vf


async def verdict(state) -> float:
    judge = vf.ScriptedClient(lambda messages, state, rng: "bad")
    reply = await vf.query(state, state["answer"], judge, role="judge", model="unused")
    return float(reply.content == "good")


def fails(state) -> float:
    if "reward" in state["answer"]:
        raise ValueError("the reward broke")
    return 0.5


class Odd(vf.MultiTurnEnv):
    async def env_response(self, messages, state, **kwargs):
        if "env" in state["answer"]:
            raise ValueError("the environment broke")
        state["trajectory"][-1]["reward"] = 0.25
        return "go on"


ROWS = ["fine", "reward breaks", "env breaks", "model breaks", "silence", "silence later"]


def load_environment(judge=False):
    rubric = vf.Rubric([fails])
    if judge:
        rubric.add_reward_func(verdict, weight=2.0)
    rows = [{"question": text, "answer": text} for text in ROWS]
    return Odd(dataset=rows, rubric=rubric, max_turns=4)
"""


MIXED_ENV = """
import rove as vf


def load_environment():
    names = ["reverse_text", "sums"]
    return vf.EnvGroup([vf.load_environment(name, num_examples=4) for name in names], names)
"""


class FailingModel:
    """A model that fails or never responds, depending on the question; the model "judge" replies "good"."""

    max_concurrent = 64

    async def respond(self, request: vf.Request) -> vf.Response:
        text = request.messages[0]["content"]
        if request.model == "judge":
            return vf.Response(vf.AssistantMessage("good"), vf.Usage(3, 1))
        if "model" in text:
            raise ConfigError("the model broke")
        if text == "silence" or ("later" in text and len(request.messages) > 1):
            await asyncio.Event().wait()
        return vf.Response(vf.AssistantMessage("yes"), vf.Usage(2, 1))

    async def close(self) -> None:
        """Do nothing."""


@pytest.fixture(scope="module")
def failing_traces(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, list[dict[str, Any]]]]:
    """Return traces of an environment with failures: with limits of the agent, with a judge, and after a server was killed."""
    folder = tmp_path_factory.mktemp("odd")
    (folder / "odd.py").write_text(ODD_ENV, encoding="utf-8")
    (folder / "mixed.py").write_text(MIXED_ENV, encoding="utf-8")
    limits = ["--env.agent.max-turns", "3", "--env.agent.timeout.rollout", "6"]
    judge = ["-n", "1", "--env.taskset.args.judge", "true", "--env.taskset.model-roles.judge.model", "judge"]
    killed = {"serve": True, "kill_after": 7, "taskset_config": {"split": "eval"}, "limit": 40}
    runs = [
        {"taskset": "odd_v1", "words": limits},
        {"taskset": "odd_v1", "words": judge},
        {"taskset": "reverse_text_v1", **killed},
        {"taskset": "mixed_v1", "serve": True, "taskset_config": {"split": "eval"}, "limit": 8},
    ]

    async def run() -> list[dict[str, list[dict[str, Any]]]]:
        async with TestServer(make_app(FailingModel(), ["scripted", "judge"])) as server:
            modules = {"odd_v1": "odd", "reverse_text_v1": "reverse_text", "mixed_v1": "mixed"}
            return await run_in_verifiers(PYTHON, f"{server.make_url('/v1')}", runs, folder, modules)

    return asyncio.run(run())


@needs_verifiers
@pytest.mark.slow
def test_failures_are_errors_and_limits_are_scored(failing_traces: list[dict[str, list[dict[str, Any]]]]) -> None:
    by_text = {trace["task"]["data"]["prompt"]: trace for trace in failing_traces[0]["vf-eval"]}
    outcomes = {text: (trace["ok"], trace["stop_condition"]) for text, trace in by_text.items()}
    assert outcomes == {
        "fine": (True, "max_turns"),
        "reward breaks": (False, "max_turns"),
        "env breaks": (False, "task_error"),
        "model breaks": (False, "provider_error"),
        "silence": (False, "agent_timeout"),
        "silence later": (True, "agent_timeout"),
    }
    for trace in by_text.values():
        scored = [reward for reward in trace["rewards"].values() if reward is not None]
        assert [reward["score"] for reward in scored] == ([0.5] if trace["ok"] else [])
    assert "the reward broke" in by_text["reward breaks"]["errors"][-1]["message"]
    assert "the environment broke" in by_text["env breaks"]["errors"][-1]["message"]
    assert "the model broke" in by_text["model breaks"]["errors"][-1]["message"]
    assert "no answer within" in by_text["silence"]["errors"][-1]["message"]
    assert by_text["fine"]["info"]["rove"]["turn_rewards"] == [0.25, 0.25, 0.25]
    assert by_text["fine"]["info"]["rove"]["is_truncated"] is True


@needs_verifiers
@pytest.mark.slow
def test_model_roles_are_replaced_counted_and_not_trained_on(
    failing_traces: list[dict[str, list[dict[str, Any]]]],
) -> None:
    [trace] = failing_traces[1]["vf-eval"]
    assert {name: reward["score"] for name, reward in trace["rewards"].items()} == {"fails": 0.5, "verdict": 1.0}
    assert trace["rewards"]["verdict"]["weight"] == 2.0
    assert [usage["completion_tokens"] for usage in trace["extra_usage"]] == [1]
    assert trace["info"]["rove"]["model_roles"] == {"judge": [["fine", "good"]]}
    assert [node["message"]["content"] for node in trace["nodes"] if node["sampled"]] == ["yes"] * 4


@needs_verifiers
@pytest.mark.slow
def test_a_killed_server_loses_no_rollout(failing_traces: list[dict[str, list[dict[str, Any]]]]) -> None:
    records = vf.load_environment("reverse_text").generate_sync(scripted_client("yes"), num_examples=40)
    assert traces_by_row(failing_traces[2]["server"]) == records_by_row(records)


@needs_verifiers
@pytest.mark.slow
def test_a_group_of_environments_is_one_taskset(failing_traces: list[dict[str, list[dict[str, Any]]]]) -> None:
    names = ["reverse_text", "sums"]
    group = vf.EnvGroup([vf.load_environment(name, num_examples=4) for name in names], names)
    records = group.generate_sync(scripted_client("yes"), num_examples=8)
    outcomes = traces_by_row(failing_traces[3]["server"])
    assert len(outcomes) == 8 and outcomes == records_by_row(records)


def test_what_verifiers_cannot_run_is_refused_by_name() -> None:
    @vf.group_reward
    def shortest(completions: list[vf.Messages]) -> list[float]:
        return [0.0 for _ in completions]

    env = vf.SingleTurnEnv(dataset=[{"question": "?"}], rubric=vf.Rubric([shortest]))
    assert group_rewards_of(env) == ["shortest"]
    assert group_rewards_of(vf.EnvGroup([env], ["mine"])) == ["shortest"]
    with pytest.raises(ConfigError, match=r"'mine' has group rewards \(shortest\), but verifiers v1 scores"):
        check_exportable("mine", group_rewards_of(env), env.message_type)
    with pytest.raises(ConfigError, match="has message_type 'completion', but verifiers v1 has only chat messages"):
        check_exportable("mine", [], "completion")
    check_exportable("mine", [], "chat")
