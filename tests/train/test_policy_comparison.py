"""Comparison of a trained model with the scripted policies of an environment."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from fakes import make_rollout, tiny_model
from rich.console import Console
from tiers import each_row
from toy_envs import Quiz, correct, oracle, rows, scripted_client

import rove as vf
from rove.core.errors import ConfigError, RunError
from rove.core.messages import AssistantMessage, UserMessage
from rove.runs.run import Run
from rove.stages.placement import evaluation_target, place_model, placement_table
from rove.stages.reporter import ConsoleReporter
from rove.train.config import SFTConfig
from rove.train.policy_comparison import (
    PolicyResult,
    learned_only_format,
    longest_response,
    measure_policy,
    placement_text,
    turn_limit,
)
from rove.train.sft_data import SFTData
from tests.train.test_training_progress import ProgressRecorder


def row(name: str, task: float, format: float | None = 1.0, margin: float = 0.05) -> PolicyResult:
    return PolicyResult(name, task + 0.2 * (format or 0.0), 0.4, 0.6, format, task, margin, ["win"], 64)


POLICIES = [row("scripted:random", 0.3), row("scripted:teacher", 0.9)]


@each_row(
    ("model", "only_format", "text"),
    [
        (row("m", 0.34), True, "The model learned only the format: format 1.00, but win of 0.340 is no better than that"),
        (row("m", 0.1, format=0.2), False, "The model learned little of the task: win of 0.100 is no better than that"),
        (row("m", 0.6), False, "Its reward of 0.800 is between scripted:random (0.500) and scripted:teacher (1.100)."),
        (row("m", 0.45), False, "and scripted:teacher (1.100). The format is right: if the loss has been flat, train for more"),
        (row("m", 0.95), False, "is at least that of every scripted policy; the best is scripted:teacher (1.100)."),
        (row("m", 0.36, format=0.0), False, "is below every scripted policy; the weakest is scripted:random (0.500)."),
    ],
)  # fmt: skip
def test_a_model_is_compared_with_the_scripted_policies(model: PolicyResult, only_format: bool, text: str):
    assert learned_only_format(model, POLICIES) == only_format
    assert text in placement_text(model, POLICIES)


def test_more_epochs_are_advised_only_near_the_weaker_policy_with_correct_format():
    assert "epochs" not in placement_text(row("m", 0.7), POLICIES)
    assert "epochs" not in placement_text(row("m", 0.55, format=0.5), POLICIES)


def test_policies_with_equal_rewards_allow_no_conclusion():
    assert not learned_only_format(row("m", 0.3), POLICIES[:1])
    assert not learned_only_format(row("m", 0.3), [row("a", 0.3), row("b", 0.31)])
    assert "no scripted policies to compare with" in placement_text(row("m", 0.3), [])


def quiz(count: int = 4) -> Quiz:
    rubric = vf.Rubric([correct], [1.0])
    rubric.add_metric(lambda completion: 1.0, name="format_reward")
    return Quiz(dataset=rows(count), rubric=rubric, policies={"teacher": oracle})


async def test_measure_policy_limits_rollouts_and_reports_progress():
    progress = ProgressRecorder()
    result = await measure_policy(quiz(), vf.ScriptedClient(oracle, "teacher"), "teacher", 10, on_progress=progress)
    assert (result.name, result.reward, result.task, result.format, result.scored) == ("teacher", 1.0, 1.0, 1.0, 8)
    assert result.task_names == ["correct"]
    assert progress.counts["rollouts of teacher"][-1] == (8, 8)
    assert (await measure_policy(quiz(40), scripted_client("no"), "m", 10)).scored == 10


async def test_measure_policy_raises_if_all_rollouts_fail():
    def broken(*arguments: Any) -> str:
        raise KeyError("lost")

    with pytest.raises(RunError, match=r"no rollout of m was scored; the first error: model: .*lost"):
        await measure_policy(quiz(), vf.ScriptedClient(broken, "m"), "m", 4)


def test_the_turn_limit_comes_from_the_responses_in_the_data():
    renderer = tiny_model().renderer
    short = make_rollout(prompt=[UserMessage("a")], completion=[AssistantMessage("say"), UserMessage("hello " * 900)])
    long = make_rollout(prompt=[UserMessage("a")], completion=[AssistantMessage("hello " * 2000)])
    assert turn_limit(renderer, [short]) == 16 + 2 * len(renderer.encode("say<|end|>"))
    assert turn_limit(renderer, [short, long]) == 512
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    calls = make_rollout(prompt=[UserMessage("a")], completion=[AssistantMessage("", tool_calls=[call])])
    expected_text = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call><|end|>'
    assert longest_response(renderer, [short, calls]) == len(renderer.encode(expected_text))
    assert longest_response(renderer, [make_rollout(prompt=[UserMessage("a")], completion=[])]) == 0


def data_run(folder: Path, config: dict[str, Any]) -> Run:
    with Run(folder) as run:
        run.start("eval", config, {})
    return run


def config(**fields: Any) -> SFTConfig:
    return SFTConfig(data="games", model="m", **fields)


def test_the_environment_of_the_data_is_used_without_its_paths(tmp_path: Path):
    run_config = {
        "env": "tictactoe",
        "env_args": {"seed": 1, "num_examples": 3},
        "env_dir": "evil",
        "isolated_python": "./evil",
    }
    target = evaluation_target(config(env_args={"seed": 2}), data_run(tmp_path, run_config))
    assert target[:3] == ("tictactoe", {"seed": 2, "num_examples": 3}, None)
    assert (target.isolation.on, target.isolation.python) == (False, None)
    assert evaluation_target(config(env="mine", env_dir="envs"), data_run(tmp_path, run_config))[:3] == (
        "mine",
        {},
        "envs",
    )


@pytest.mark.parametrize(
    ("run_config", "message"), [({}, "give --env ENV"), ({"env": "a/b"}, "only on request: --env a/b")]
)
def test_an_unknown_environment_is_reported_in_one_line(tmp_path: Path, run_config: dict[str, Any], message: str):
    data = data_run(tmp_path / "games", run_config)
    with pytest.raises(ConfigError, match=message):
        evaluation_target(config(), data)
    out = io.StringIO()
    place_model(
        config(),
        tmp_path / "final",
        SFTData(data, config()),
        Run(tmp_path / "sft"),
        ConsoleReporter(Console(file=out, width=200)),
    )
    assert out.getvalue().startswith("not evaluated: ")
    assert f"evaluate it: rove eval ENV -m {tmp_path}/final; --final-eval-rollouts 0 skips this" in out.getvalue()


def test_zero_final_eval_rollouts_disable_the_evaluation(tmp_path: Path):
    out = io.StringIO()
    data = data_run(tmp_path / "games", {})
    place_model(
        config(final_eval_rollouts=0),
        tmp_path,
        SFTData(data, config()),
        Run(tmp_path / "sft"),
        ConsoleReporter(Console(file=out)),
    )
    assert out.getvalue() == ""
    with pytest.raises(ConfigError, match="final_eval_rollouts is -1"):
        config(final_eval_rollouts=-1).check()


def test_the_table_is_sorted_by_reward():
    out = io.StringIO()
    Console(file=out, width=100).print(placement_table([row("the trained model", 0.5), *POLICIES], "t"))
    lines = [line for line in out.getvalue().splitlines() if line.startswith("│")]
    assert [line.split()[1] for line in lines] == ["scripted:teacher", "the", "scripted:random"]
