"""Checks of RL settings, environment and model name without sampling."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from commands import write_environment
from flat_settings import with_tables
from tiers import each_row
from toy_envs import Quiz, rows

from rove.core.config import convert
from rove.core.findings import HIGH, MEDIUM, OK, Finding, Severity
from rove.envs.loading import load_environment
from rove.train.config import EvaluationConfig, RLConfig
from rove.train.settings_checks import check_environment, check_learning_rate, check_model_name, check_settings


def config(**over: Any) -> RLConfig:
    return convert(RLConfig, with_tables({"env": "tictactoe", "model": "models/x", **over}))


def find(**over: Any) -> dict[str, Finding]:
    return {finding.id: finding for finding in check_settings(config(**over))}


def test_the_default_settings_pass_all_checks():
    assert {finding.severity for finding in find().values()} == {OK}


@pytest.mark.parametrize("over", [{"batch_size": 100}, {"loss__kind": "x"}])
def test_invalid_settings_fail(over: dict[str, Any]):
    findings = find(**over)
    assert list(findings) == ["settings"]
    assert any(finding.severity is HIGH for finding in findings.values())


@each_row(
    ("name", "over", "message"),
    [
        ("batch", {"batch_size": 32}, "collapse"),
        ("batch", {"batch_size": 128}, "noisy"),
        ("groups", {"rollouts_per_example": 2}, "equal rewards"),
        ("groups", {"rollouts_per_example": 64}, "few examples"),
        ("sampling", {"temperature": 1.4}, "collapse"),
        ("sampling", {"temperature": 0.3}, "similar"),
        ("schedule", {"loss__entropy_bonus": 0.1}, "destroyed"),
        ("schedule", {"steps": 4}, "never reaches its peak"),
        ("schedule", {"checkpoint_every": 100}, "no checkpoint"),
    ],
)
def test_valid_but_inadvisable_settings_are_warnings(name: str, over: dict[str, Any], message: str):
    findings = find(**over)
    assert findings[name].severity == MEDIUM
    assert not any(finding.severity is HIGH for finding in findings.values())
    assert message in repr(findings[name])


@pytest.mark.parametrize(("steps", "severity"), [(19, OK), (20, MEDIUM)])
def test_a_short_run_may_have_small_batches(steps: int, severity: Severity) -> None:
    small = {"batch_size": 32, "rollouts_per_example": 8}
    findings = find(**small, steps=steps, warmup_steps=1, checkpoint_every=5)
    assert {name: finding.severity for name, finding in findings.items() if finding.severity != OK} == (
        {} if severity == OK else {"batch": MEDIUM, "groups": MEDIUM}
    )


@each_row(
    ("rate", "parameters", "trained", "status"),
    [
        (3e-4, 5e5, 5e5, OK),
        (3e-3, 5e5, 5e5, MEDIUM),
        (1e-5, 5e5, 5e5, MEDIUM),
        (1e-6, 6e8, 6e8, OK),
        (5e-5, 6e8, 6e8, MEDIUM),  # fell from 57% to 2.4% in an experiment
        (5e-5, 6e8, 1e6, OK),  # an adapter
        (1e-3, 6e8, 1e6, MEDIUM),
        (1e-2, 5e5, 5e5, MEDIUM),
        (1.1e-2, 5e5, 5e5, HIGH),
        (1e-1, 6e8, 1e6, MEDIUM),
        (10, 6e8, 1e6, HIGH),
    ],
)
def test_check_learning_rate(rate: float, parameters: float, trained: float, status: str):
    assert check_learning_rate(rate, 0, int(parameters), int(trained)).severity == status


def test_higher_learning_rates_are_accepted_for_adapters_of_any_size():
    for rank, statuses in ((0, [OK, MEDIUM, HIGH]), (8, [MEDIUM, OK, MEDIUM])):
        findings = [check_learning_rate(rate, rank, 500_000, 400_000) for rate in (3e-4, 5e-3, 3e-2)]
        assert [finding.severity for finding in findings] == statuses
    slow = check_learning_rate(3e-4, 8, 500_000, 400_000)
    assert slow.remedy == "learning_rate 0.001 to 0.01"
    assert "an adapter of" in repr(slow)


def test_adapter_settings_are_checked():
    assert "adapter" not in find()
    assert find(lora__rank=8)["adapter"].text == "rank 8, alpha 32, all linear layers"
    assert find(lora__rank=8, lora__targets=["q_proj", "v_proj"])["adapter"].text.endswith("32, q_proj, v_proj")
    dropped = find(lora__rank=8, lora__dropout=0.1)["adapter"]
    assert dropped.severity == MEDIUM
    assert "sampled without dropout" in repr(dropped)
    assert find(lora__dropout=0.1)["settings"].severity == HIGH


def test_check_environment_checks_the_dataset():
    def statuses(env: Quiz) -> list[tuple[str, Severity]]:
        return [(finding.id, finding.severity) for finding in check_environment(config(), env)]

    assert statuses(Quiz(count=500)) == [("dataset", OK)]
    assert statuses(Quiz(count=3)) == [("dataset", MEDIUM)]
    assert statuses(Quiz(dataset=[])) == [("dataset", HIGH)]
    assert statuses(Quiz(dataset=lambda: iter(rows(500)))) == [("dataset", OK)]
    assert statuses(Quiz(count=500, sampling_args={"top_p": 0.8}))[1] == ("environment_sampling", MEDIUM)


@pytest.mark.parametrize(
    ("count", "different", "over", "status", "text"),
    [
        (2000, 2000, {}, OK, "2,000 rows, each used 1.6 times"),
        (2000, 2000, {"steps": 30}, OK, "2,000 rows, 960 of them used, each used 1 times"),
        (2000, 40, {"steps": 30}, MEDIUM, "2,000 rows, 960 of them used, only 40 different ones, each used 24 times"),
        (
            2000,
            20,
            {"steps": 30},
            MEDIUM,
            "2,000 rows, 960 of them used, only 20 different ones for 32 groups a step, which repeats examples",
        ),
        (
            2000,
            40,
            {"steps": 1, "curriculum__shuffle": True},
            MEDIUM,
            "2,000 rows, only 40 different ones, each used 0.8 times",
        ),
        (50, 40, {"steps": 30}, OK, "50 rows, 40 different ones, each used 24 times"),
        (20000, 20000, {"steps": 1000}, OK, "20,000 rows, the first 10,000 checked"),
    ],
)
def test_equal_rows_count_as_one_example(count: int, different: int, over: dict[str, Any], status: str, text: str):
    env = Quiz(dataset=[{"question": f"q{i % different}", "answer": "a"} for i in range(count)])
    [finding] = check_environment(config(**over), env)
    assert (finding.severity, finding.text) == (status, text)


def test_rows_of_a_generator_are_described():
    [finding] = check_environment(config(steps=10), Quiz(dataset=lambda: iter(rows(500))))
    assert finding.text == "rows generated on demand, 320 of them used, each used 1 times"


HELD_OUT = """
import rove as vf

def load_environment(first=0, count=300, apart=False):
    def rows(start):
        return [{"question": f"q{i}", "answer": "a"} for i in range(start, start + count)]

    return vf.SingleTurnEnv(dataset=rows(first), eval_dataset=rows(first + count) if apart else None, rubric=vf.Rubric())
"""


@pytest.mark.parametrize(
    ("env_args", "status", "text"),
    [
        ({}, MEDIUM, "evaluation mine: 100 of 100 rows are also trained on"),
        ({"first": 250}, MEDIUM, "evaluation mine: 50 of 100 rows are also trained on"),
        ({"first": 300}, OK, "mine: none of 100 rows is a training row"),
        ({"apart": True}, OK, "mine: none of 100 rows is a training row"),
    ],
)
def test_evaluation_rows_that_are_also_trained_on_are_a_warning(
    tmp_path: Path, env_args: dict[str, Any], status: str, text: str
):
    write_environment(tmp_path, "quiz_rows", HELD_OUT)
    evaluations = [EvaluationConfig(env="quiz_rows", name="mine", env_args=env_args)]
    settings = config(env="quiz_rows", env_dir=str(tmp_path), evaluation=evaluations)
    dataset, held_out = check_environment(settings, load_environment("quiz_rows", tmp_path))
    assert (held_out.id, held_out.severity, held_out.text) == ("held_out", status, text)
    assert dataset.severity == OK


def test_scripted_policies_cannot_be_trained():
    finding = check_model_name("scripted:teacher")
    assert finding is not None and finding.severity == HIGH
    assert check_model_name("models/x") is None
