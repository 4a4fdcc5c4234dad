"""Run the code of README of verifiers 0.1.0 on rove.compat."""

from __future__ import annotations

import json
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import tiny_model

import rove
import rove.compat
from rove.core.errors import ConfigError

SCRIPT = Path(__file__).parents[1] / "compat_readme_010" / "script.py"

pytestmark = [pytest.mark.filterwarnings("ignore::FutureWarning"), pytest.mark.broad]


def answer_four(messages: Any, state: Any, rng: Any) -> str:
    return "<think>\neasy\n</think>\n<answer>\n4\n</answer>"


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    pytest.importorskip("datasets")
    folder = tmp_path_factory.mktemp("readme")
    tiny_model().save(folder / "model")
    values = {"client": rove.ScriptedClient(answer_four), "model_name": str(folder / "model")}
    rove.compat.install()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield {**runpy.run_path(str(SCRIPT), values, run_name="__main__"), "folder": folder}
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


def test_the_dataset_has_the_requested_columns(script: dict[str, Any]) -> None:
    make_dataset, results = script["vf_env"].make_dataset, script["results"]
    assert {"prompt", "completion", "answer", "reward"} <= set(make_dataset(results).column_names)
    with pytest.warns(UserWarning, match=r"skips 'turn', .* evaluate\(state_columns=\['turn'\]\)"):
        make_dataset(results, state_columns=["turn"], extra_columns=["answer"])
    with pytest.raises(ConfigError, match="hub_name is missing"):
        make_dataset(results, push_to_hub=True)


def test_the_dataset_is_uploaded_under_the_given_name(script: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []
    monkeypatch.setattr("datasets.Dataset.push_to_hub", lambda dataset, name: names.append(name))
    script["vf_env"].make_dataset(script["results"], push_to_hub=True, hub_name="old/name")
    script["vf_env"].make_dataset(script["results"], push_to_hf_hub=True, hf_hub_dataset_name="new/name")
    assert names == ["old/name", "new/name"]


def test_the_trainer_changes_the_model_in_place_and_writes_a_run_folder(script: dict[str, Any]) -> None:
    pairs = zip(script["weights_before"], script["model"].parameters(), strict=True)
    assert not any(torch.equal(old_weight, new_weight) for old_weight, new_weight in pairs)
    rows = (script["folder"] / "outputs" / "readme" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(row)["step"] for row in rows] == [1, 2]
    assert (script["folder"] / "outputs" / "readme" / "final" / "model.safetensors").is_file()


def test_max_steps_limits_the_turns_of_a_tool_environment(script: dict[str, Any]) -> None:
    assert script["tool_env"].max_turns == 5


def test_one_message_and_a_state_are_a_response(script: dict[str, Any]) -> None:
    [output] = script["turn_results"]["outputs"]
    contents = [message["content"] for message in output["completion"] if message["role"] == "user"]
    assert contents == ["1 is enough", "2 is enough"] and output["reward"] == 4.0


@pytest.mark.slow
def test_the_numbers_of_rows_of_reasoning_gym_have_their_old_names() -> None:
    pytest.importorskip("reasoning_gym")
    import rove.compat.verifiers as vf

    env = vf.ReasoningGymEnv("leg_counting", num_samples=3, num_eval_samples=2)
    assert (len(env.get_dataset()), len(env.get_eval_dataset())) == (3, 2)


def test_readmes_name_of_the_code_environment_exists() -> None:
    import rove.compat.verifiers as vf

    assert issubclass(vf.CodeEnv, vf.CodeMathEnv)
