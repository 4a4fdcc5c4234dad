"""Test TasksetEnv: tasksets of verifiers v1 run in verifiers, and rove records their turns and errors.

The folder `tasksets` has three tasksets. `tasksets/recorded.json` has the results of verifiers' vf-eval for them with the same
scripted endpoint. The tests need verifiers 0.4, in this virtual environment or in another one whose interpreter
`ROVE_VERIFIERS_V1` names.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import in_process_rove
from taskset_policy import IDS, policy, record_summary
from toy_envs import scripted_client

import rove as vf
from rove.core.errors import ConfigError, ModelError
from rove.integrations.environments.taskset import TasksetEnv

TASKSETS = Path(__file__).parents[1] / "tasksets"
RECORDED = json.loads((TASKSETS / "recorded.json").read_text(encoding="utf-8"))
PYTHON = os.environ.get("ROVE_VERIFIERS_V1")


def is_verifiers_available() -> bool:
    """Return whether verifiers 0.4 is available; earlier versions have no `v1`, or a different one."""
    if PYTHON is not None or importlib.util.find_spec("verifiers") is None:
        return PYTHON is not None
    return importlib.metadata.version("verifiers") >= "0.4"


library = pytest.mark.skipif(
    not is_verifiers_available(), reason="verifiers 0.4 is not installed, and ROVE_VERIFIERS_V1 names no Python"
)


def load_taskset(name: str, **options: Any) -> TasksetEnv:
    return TasksetEnv(name, python=PYTHON, taskset_dir=TASKSETS, start_seconds=300, **options)


@pytest.fixture(scope="module")
def reversal() -> TasksetEnv:
    return load_taskset("reversal_v1", config={"split": "train"}, eval_config={"split": "all"})


@pytest.fixture(scope="module")
def guessing() -> TasksetEnv:
    return load_taskset("guessing_v1")


@pytest.fixture(scope="module")
def warehouse() -> TasksetEnv:
    return load_taskset("warehouse_v1")


@library
@pytest.mark.parametrize("name", IDS)
def test_rollouts_match_those_of_verifiers(name: str, request: pytest.FixtureRequest) -> None:
    env: TasksetEnv = request.getfixturevalue(name.removesuffix("_v1"))
    records = sorted(env.generate_sync(scripted_client(policy)), key=lambda record: record.example_id)
    assert [record_summary(record) for record in records] == RECORDED[name]


@library
def test_rows_contain_the_tasks(reversal: TasksetEnv, warehouse: TasksetEnv) -> None:
    assert (len(reversal.get_dataset()), len(reversal.get_eval_dataset())) == (4, 6)
    row = reversal.get_dataset()[0]
    assert [message["role"] for message in row["prompt"]] == ["system", "user"]
    assert (row["answer"], row["info"]["task"]["name"]) == ("nretnal", "lantern")
    assert reversal.identity["verifiers"].startswith("0.")
    assert reversal.identity != warehouse.identity
    assert reversal.rubric.names[:2] == ["exact", "letters"]


@library
def test_turns_and_tools_are_recorded(warehouse: TasksetEnv) -> None:
    [record] = warehouse.generate_sync(scripted_client(policy), num_examples=1)
    assert [name["function"]["name"] for name in record.tools or []] == ["shelf_count", "shelf_take"]
    assert [step.completion[0]["tool_calls"] is not None for step in record.steps[:2]] == [True, True]
    assert record.steps[2].prompt[:-1] == [*record.steps[1].prompt, *record.steps[1].completion]
    assert record.env_id == "" and record.usage.completion_tokens > 0


@library
def test_a_rollout_that_reaches_a_limit_is_scored(guessing: TasksetEnv) -> None:
    records = guessing.generate_sync(scripted_client(policy), limits=vf.Limits(max_turns=2))
    assert [(record.reward, record.stop_condition, len(record.steps)) for record in records] == [
        (0.5, "user_closed", 2),
        (0.5, "user_closed", 2),
        (0.0, "max_turns_reached", 2),
    ]
    assert [record.error for record in records] == [None] * 3


@library
def test_a_rollout_that_is_stopped_is_scored(guessing: TasksetEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    async def stop_at_once(state: vf.State) -> bool:
        state["stop_condition"] = "enough"
        return True

    monkeypatch.setattr(guessing, "check_stops", stop_at_once)
    records = guessing.generate_sync(scripted_client(policy))
    assert [(record.reward, record.stop_condition, len(record.steps)) for record in records] == [(0.0, "enough", 1)] * 3


class Silent:
    """A client that never responds."""

    max_concurrent = 8

    async def respond(self, request: vf.Request) -> vf.Response:
        await asyncio.Event().wait()
        raise AssertionError

    async def close(self) -> None: ...


@library
@pytest.mark.slow
def test_a_rollout_that_times_out_is_scored() -> None:
    [record] = load_taskset("reversal_v1", num_examples=1, timeout_seconds=0.5).generate_sync(Silent())
    assert (record.stop_condition, record.reward) == ("agent_timeout", 0.0)


@library
def test_errors_fail_only_their_rollout(reversal: TasksetEnv) -> None:
    responses = {"lantern": "break", "harbour": "crash", "pepper": "fail"}

    async def answer(messages: vf.Messages, state: vf.State, rng: Any) -> Any:
        word = str(messages[-1]["content"]).split()[1]
        if responses.get(word) == "fail":
            raise ModelError("no such model")
        return responses.get(word, word[::-1])

    records = reversal.generate_sync(scripted_client(answer), max_concurrent=1)
    errors = [record.error for record in sorted(records, key=lambda record: record.example_id)]
    assert [error and (error.phase, error.type) for error in errors] == [
        ("agent", "AgentError"),
        ("agent", "WorkerError"),
        ("model", "ModelError"),
        None,
        None,
        None,
    ]
    assert errors[0] is not None and "TaskError" in errors[0].message and "the metric broke" in errors[0].message
    assert errors[1] is not None and "exit code 3" in errors[1].message


@library
def test_a_simulated_user_has_a_role() -> None:
    env = load_taskset("reversal_v1", env={"id": "user-sim"}, agent="assistant", num_examples=2)
    assert env.description["model_roles"] == ["user"]

    def user_or_model(messages: vf.Messages, state: vf.State, rng: Any) -> str:
        if "role-playing a USER" in str(messages[0]["content"]):
            word = re.findall(r"Say (\w+) backwards", str(messages[0]["content"]))[0]
            return "###DONE###" if len(messages) > 3 else f"Would you turn {word} around?"
        return str(messages[-1]["content"]).split()[3][::-1]

    records = env.generate_sync(scripted_client(user_or_model))
    assert [record.error for record in records] == [None, None]
    for record in records:
        assert (record.reward, len(record.steps), len(record.model_roles["user"])) == (1.0, 1, 2)
        assert record.scores is not None and record.scores.metrics["user_turns"] == 2.0
        assert record.prompt[-1]["content"].startswith("Would you turn")


@library
@pytest.mark.slow
def test_unsupported_settings_are_refused() -> None:
    for options, message in (
        ({"env": {"id": "user-sim"}}, "select the model.s with agent="),
        ({"env": {"id": "user-sim"}, "agent": "nobody"}, "no agent 'nobody'"),
        ({"env": {"retries": {"max_retries": 2}}}, "set max_retries to 0"),
        ({"config": {"splitt": "all"}}, "splitt"),
    ):
        with pytest.raises(ConfigError, match=message):
            load_taskset("reversal_v1", **options)
    with pytest.raises(ConfigError, match="nowhere_v1"):
        load_taskset("nowhere_v1")


@library
@pytest.mark.slow
def test_an_agent_that_runs_twice_is_an_error() -> None:
    [record] = load_taskset("reversal_v1", env={"id": "best-of-n", "n": 2}, num_examples=1).generate_sync(
        scripted_client(policy)
    )
    assert record.error is not None and "ran 2 times" in record.error.message


def test_missing_verifiers_is_reported(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    python = tmp_path / "bare/bin/python"
    with pytest.raises(ConfigError, match=r"pip install 'verifiers>=0\.4'"):
        TasksetEnv("reversal_v1", python=str(python), taskset_dir=TASKSETS)


@library
def test_rove_eval_runs_a_taskset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rove = in_process_rove(tmp_path, monkeypatch, capsys)
    page = (TASKSETS.parents[1] / "docs/integrations.md").read_text(encoding="utf-8")
    [package] = re.findall(
        r"^```python file=environments/reversal.py\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL
    )
    package = package.replace('"verifiers-venv/bin/python"', repr(PYTHON))
    first = "lambda messages, state, rng: messages[-1].content.split()[1][::-1]"
    package = package.replace(
        "num_examples=num_examples,", f"num_examples=num_examples, policies={{'first': {first}}},"
    )
    (tmp_path / "environments").mkdir()
    (tmp_path / "environments/reversal.py").write_text(package)
    shutil.copytree(TASKSETS, tmp_path / "tasksets")
    completed = rove("eval", "reversal", "-m", "scripted:first", "-n", "2", "-r", "2", "--run-dir", "run")
    assert completed.status == 0, completed.err
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert (summary["scored"], summary["failed"], summary["reward"]["mean"]) == (4, 0, 1.0)
