"""The model card in `final/`: the hub reads it, and it contains no information about the machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fakes import tiny_model
from huggingface_hub import ModelCard, metadata_load

from rove.core.config import convert
from rove.runs.run import Run
from rove.train.config import RLConfig, SFTConfig
from rove.train.model_card import Measurement, save_result, write_card

CARD = "README.md"
ROWS = [
    {
        "step": 0,
        "eval/held/reward/mean": 0.25,
        "eval/held/reward/interval_low": 0.1,
        "eval/held/reward/interval_high": 0.4,
    },
    {"step": 1, "reward/mean": 0.5},
    {"step": 2, "reward/mean": 0.75, "eval/held/reward/mean": 0.5}
    | {"eval/held/reward/interval_low": 0.375, "eval/held/reward/interval_high": 0.625},
]


def rl_run(folder: Path, rows: list[dict[str, Any]] = ROWS, **settings: Any) -> tuple[Run, RLConfig]:
    """Return a finished run and its settings."""
    config = convert(RLConfig, {"env": "arithmetic", "model": str(folder / "base"), **settings})
    identity = {"env": "arithmetic#abc", "evaluated": ["arithmetic#abc"] * len(config.evaluation)}
    run = Run(folder / "run")
    with run:
        run.start("rl", {"env": "arithmetic"}, identity)
        for row in rows:
            run.append_metrics(row)
    (folder / "base").mkdir()
    (folder / "final").mkdir()
    return run, config


def test_the_hub_reads_the_card_of_an_rl_run(tmp_path: Path):
    evaluation = [{"env": "arithmetic", "name": "held"}]
    run, config = rl_run(tmp_path, evaluation=evaluation, learning_rate=1e-5, loss={"kind": "grpo"})
    base_card = "---\nlicense: apache-2.0\nbase_model: someone/else\n---\n# Base\n"
    (tmp_path / "base" / CARD).write_text(base_card)
    write_card(tmp_path / "final", run, config, {"steps": 2})

    data: Any = ModelCard.load(tmp_path / "final" / CARD).data
    assert (data.library_name, data.license, data.tags) == ("transformers", "apache-2.0", ["rove", "rl"])
    assert data.base_model is None  # the base is a folder, whose card names what that derives from
    [result] = data.eval_results
    assert (result.dataset_type, result.dataset_revision) == ("arithmetic", "abc")
    assert (result.metric_type, result.metric_value, result.metric_args) == (
        "reward",
        0.5,
        {"interval_95": [0.375, 0.625]},
    )

    text = (tmp_path / "final" / CARD).read_text()
    assert "| before training | arithmetic#abc held, temperature 0 | reward | 0.250 | [0.100, 0.400] |" in text
    assert "| after step 2 | arithmetic#abc held, temperature 0 | reward | 0.500 | [0.375, 0.625] |" in text
    assert "| learning_rate | 0.00001 |" in text
    assert "| loss.kind | grpo |" in text
    assert "chosen by" not in text


def test_a_card_has_no_secrets_and_no_folders_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SEARCH_API_KEY", "from-the-environment-7")
    env_args = {
        "api_key": "tea-and-biscuits-41",
        "query": "from-the-environment-7",
        "file": str(tmp_path / "a" / "b.csv"),
    }
    run, config = rl_run(tmp_path, env_args=env_args, run_dir=str(tmp_path / "run"))
    write_card(tmp_path / "final", run, config, {"steps": 2})
    text = (tmp_path / "final" / CARD).read_text()
    assert str(tmp_path) not in text
    assert '{"api_key":"***","query":"***","file":"a/b.csv"}' in text
    assert """rove eval arithmetic -m FOLDER -a '{"api_key":"***",""" in text
    assert "The run has no evaluation. Measured in training at step 2: reward/mean 0.75." in text


def test_the_card_of_an_adapter_names_the_published_model_through_a_chain_of_runs(tmp_path: Path):
    config = convert(SFTConfig, {"data": "chats.jsonl", "model": str(tmp_path / "base"), "lora": {"rank": 8}})
    run = Run(tmp_path / "run")
    with run:
        run.start("sft", {}, {"data": "file#abc"})
        run.append_metrics({"step": 3, "validation_loss": 1.5, "loss": 2.0})
    for name in ("base", "final"):
        (tmp_path / name).mkdir()
    base_card = "---\nlicense: other\nlicense_name: gemma\nbase_model: google/gemma-3-1b-it\ntags: [rove, rl]\n---\n"
    (tmp_path / "base" / CARD).write_text(base_card)
    (tmp_path / "final" / "adapter_config.json").write_text("{}")
    summary = {"conversations": 7, "best": {"metric": "validation_loss", "step": 3, "value": 1.5}}
    measurements = [
        Measurement("base", "arithmetic#abc", "easy", {"reward": {"mean": 0.125, "low": 0.0, "high": 0.25}}),
        Measurement("+ SFT", "arithmetic#abc", "easy", {"reward": {"mean": 0.5, "low": 0.25, "high": 0.75}}),
    ]
    write_card(
        tmp_path / "final", run, config, summary, measurements, "+ SFT", ["examples of the table chose the weights"]
    )

    data: Any = metadata_load(tmp_path / "final" / CARD)
    assert data["base_model"] == "google/gemma-3-1b-it"
    assert (data["license"], data["license_name"]) == ("other", "gemma")
    assert (data["library_name"], data["tags"]) == ("peft", ["rove", "sft", "lora"])
    [entry] = data["model-index"]
    assert [result["metrics"][0]["value"] for result in entry["results"]] == [0.5]
    text = (tmp_path / "final" / CARD).read_text()
    assert "| weights | after step 3, chosen by `validation_loss` |" in text
    assert "| + SFT | arithmetic#abc easy | reward | 0.500 | [0.250, 0.750] |" in text
    assert "Note: examples of the table chose the weights" in text and "probably higher" not in text


def test_a_damaged_card_of_the_base_is_ignored(tmp_path: Path):
    run, config = rl_run(tmp_path)
    (tmp_path / "base" / CARD).write_text("---\nlicense: [apache\n---\n")
    write_card(tmp_path / "final", run, config, {"steps": 2})
    assert "license" not in json.dumps(metadata_load(tmp_path / "final" / CARD))


@pytest.mark.parametrize("model", ["~/base", "~/missing", "/missing/models/base", "owner/missing"])
def test_a_base_that_is_gone_or_in_the_home_folder_has_a_card_without_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str
):
    monkeypatch.setenv("HOME", str(tmp_path))
    run, config = rl_run(tmp_path, model=model)
    (tmp_path / "base" / CARD).write_text("---\nlicense: mit\n---\n")
    write_card(tmp_path / "final", run, config, {"steps": 2})
    data: Any = metadata_load(tmp_path / "final" / CARD)
    assert "base_model" not in data
    assert data.get("license") == ("mit" if model == "~/base" else None)
    name = "models/base" if model.startswith("/") else model
    assert f"# {name} trained with RL" in (tmp_path / "final" / CARD).read_text()


def test_a_model_of_the_hugging_face_cache_is_named_as_on_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("rove.models.load.try_to_load_from_cache", lambda name, file: str(tmp_path / name / file))
    run, config = rl_run(tmp_path, model="owner/name")
    write_card(tmp_path / "final", run, config, {"steps": 2})
    data: Any = metadata_load(tmp_path / "final" / CARD)
    assert data["base_model"] == "owner/name"


def test_a_card_that_cannot_be_written_does_not_cost_the_model(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    run, config = rl_run(tmp_path, rows=[{"step": 1}])  # no row of the step that is named as the best
    final = save_result(config, run, tiny_model(), {"best": {"metric": "reward/mean", "step": 2}})
    assert (final / "config.json").exists() and not (final / CARD).exists()
    assert "saved without its card README.md: RuntimeError" in caplog.text


@pytest.mark.parametrize("base", ["/home/alice/secret", "~/secret", "../secret", "a/b/secret", 7])
def test_a_card_inherits_only_names_on_the_hub(tmp_path: Path, base: object):
    run, config = rl_run(tmp_path)
    metadata = {"tags": ["rove"], "base_model": base, "license_link": "file:///home/alice/secret/x/LICENSE"}
    (tmp_path / "base" / CARD).write_text(f"---\n{json.dumps(metadata)}\n---\n")
    write_card(tmp_path / "final", run, config, {"steps": 2})
    data: Any = metadata_load(tmp_path / "final" / CARD)
    assert "base_model" not in data
    assert data["license_link"] == "x/LICENSE"


def test_the_card_shows_the_variables_of_the_template_that_the_model_was_trained_with(tmp_path: Path):
    run, config = rl_run(tmp_path)
    write_card(tmp_path / "final", run, config, {"steps": 2})
    assert "AutoTokenizer" not in (tmp_path / "final" / CARD).read_text()
    (tmp_path / "final" / "template_args.json").write_text('{"enable_thinking": false, "effort": "low"}')
    write_card(tmp_path / "final", run, config, {"steps": 2})
    card = (tmp_path / "final" / CARD).read_text()
    assert 'tokenizer = AutoTokenizer.from_pretrained("FOLDER")' in card
    assert "messages, add_generation_prompt=True, enable_thinking=False, effort='low')" in card
    (tmp_path / "final" / "adapter_config.json").write_text("{}")
    (tmp_path / "final" / "chat_template.jinja").write_text("{{ messages }}")
    write_card(tmp_path / "final", run, config, {"steps": 2})
    card = (tmp_path / "final" / CARD).read_text()
    assert (
        'AutoTokenizer.from_pretrained("BASE MODEL")\ntokenizer.chat_template = open("FOLDER/chat_template.jinja")'
        in card
    )
