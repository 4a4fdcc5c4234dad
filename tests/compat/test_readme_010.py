"""Run the code of README of verifiers 0.1.0 on rove.compat; test_trainer has its level 3."""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rove
import rove.compat

SCRIPT = Path(__file__).parents[1] / "compat_readme_010" / "script.py"

pytestmark = [pytest.mark.filterwarnings("ignore::FutureWarning"), pytest.mark.broad]


def answer_four(messages: Any, state: Any, rng: Any) -> str:
    return "<think>\neasy\n</think>\n<answer>\n4\n</answer>"


@pytest.fixture(scope="module")
def script() -> Iterator[dict[str, Any]]:
    pytest.importorskip("datasets")
    rove.compat.install()
    yield runpy.run_path(str(SCRIPT), {"client": rove.ScriptedClient(answer_four)}, run_name="__main__")
    rove.compat.uninstall()


def test_evaluate_returns_the_results_with_their_mean(script: dict[str, Any]) -> None:
    assert [output["reward"] for output in script["results"]["outputs"]] == pytest.approx([1.2, 0.2])
    assert script["mean_reward"] == pytest.approx(0.7)
    assert script["results"]["correct_avg"] == 0.5
    with pytest.raises(KeyError, match="means are rewards_avg"):
        script["results"]["other_avg"]


def test_results_become_a_dataset_that_can_be_sorted(script: dict[str, Any]) -> None:
    [row] = list(script["synthetic"])
    assert (row["answer"], row["reward"]) == ("4", pytest.approx(1.2))


def test_max_steps_limits_the_turns_of_a_tool_environment(script: dict[str, Any]) -> None:
    assert script["tool_env"].max_turns == 5


def test_one_message_and_a_state_are_a_response(script: dict[str, Any]) -> None:
    [output] = script["turn_results"]["outputs"]
    contents = [message["content"] for message in output["completion"] if message["role"] == "user"]
    assert contents == ["1 is enough", "2 is enough"] and output["reward"] == 4.0


def test_the_numbers_of_rows_of_reasoning_gym_have_their_old_names() -> None:
    pytest.importorskip("reasoning_gym")
    import rove.compat.verifiers as vf

    env = vf.ReasoningGymEnv("leg_counting", num_samples=3, num_eval_samples=2)
    assert (len(env.get_dataset()), len(env.get_eval_dataset())) == (3, 2)


def test_readmes_name_of_the_code_environment_exists() -> None:
    import rove.compat.verifiers as vf

    assert issubclass(vf.CodeEnv, vf.CodeMathEnv)
