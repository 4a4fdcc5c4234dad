"""Every family: SFT and RL that are stopped and resumed, and the result in plain transformers. Run by `make test-models`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from rove.core.config import convert
from rove.engine.engine import Engine
from rove.envs.loading import load_environment
from rove.models.load import load_model
from rove.runs.run import Run
from rove.train.config import RLConfig, SFTConfig
from rove.train.rl import train_rl
from rove.train.sft import train_sft
from tests.models_matrix.conftest import Result, expect_failure

pytestmark = [pytest.mark.slow, pytest.mark.matrix]

ROWS = [
    [{"role": "user", "content": f" {number}"}, {"role": "assistant", "content": f"say {number}"}]
    for number in range(12)
]
PROMPT = torch.arange(5, 25)[None]


NOT_TRAINED = {"rwkv": "rove refuses it: its modules scale their own weights"}
"""Family → why it cannot be trained; docs/decisions/model_families.md."""
NOT_SAMPLED = NOT_TRAINED
NO_ADAPTER = NOT_TRAINED


class Killed(Exception):
    """Simulates `kill -9`."""


def train_with_sft(
    model: Path, environments: Path, run_folder: Path, kill_at: int | None = None, lora_rank: int = 0
) -> None:
    config = convert(
        SFTConfig,
        {
            "lora": {"rank": lora_rank},
            "data": "rows",
            "model": str(model),
            "batch_size": 4,
            "epochs": 2,
            "warmup_steps": 1,
            # An adapter begins without effect: with a small rate, an error in merging it stays below the tolerance.
            "learning_rate": 0.05 if lora_rank else 1e-3,
            "validate_every": 1,
            "threads": 1,
        },
    )

    def on_step(step: int, total: int, metrics: Mapping[str, float]) -> None:
        if step == kill_at:
            raise Killed

    with Run(run_folder) as run:
        run.start("sft", {}, {})
        train_sft(config, ROWS, load_model(model, "cpu"), run, on_step)


def train_with_rl(model: Path, environments: Path, run_folder: Path, kill_at: int | None = None) -> None:
    config = convert(
        RLConfig,
        {
            "env": "matrix_letters",
            "model": str(model),
            "steps": 2,
            "batch_size": 8,
            "rollouts_per_example": 4,
            "warmup_steps": 1,
            "max_tokens": 4,
            "checkpoint_every": 1,
            "env_dir": str(environments),
            "evaluation": [{"env": "matrix_letters", "every": 1, "num_examples": 2, "max_tokens": 4}],
            "keep_best": "eval/matrix_letters/reward/mean",
            "threads": 1,
        },
    )

    def on_step(step: int, metrics: Mapping[str, float]) -> None:
        if step == kill_at:
            raise Killed

    with Run(run_folder) as run:
        run.start("rl", {}, {})
        asyncio.run(
            train_rl(config, load_environment("matrix_letters", environments), load_model(model, "cpu"), run, on_step)
        )


def check_result(folder: Path, final: Path) -> None:
    """Check that the result is a model like the published one, and that transformers alone and rove compute the same with it."""
    published, trained = (load_file(path / "model.safetensors") for path in (folder, final))
    assert trained.keys() <= published.keys()
    assert {tensor.dtype for tensor in trained.values()} <= {tensor.dtype for tensor in published.values()}
    assert json.loads((final / "config.json").read_bytes())["dtype"] == "bfloat16"
    model, report = AutoModelForCausalLM.from_pretrained(final, dtype=torch.float32, output_loading_info=True)
    assert not any(report.values())
    assert AutoTokenizer.from_pretrained(final).chat_template
    loaded = load_model(final, "cpu")
    with torch.inference_mode():
        logits = model.eval()(input_ids=PROMPT, use_cache=False).logits
        torch.testing.assert_close(loaded.model(input_ids=PROMPT, use_cache=False).logits, logits, atol=1e-3, rtol=1e-3)


def assert_equal_files(results: Sequence[Path]) -> None:
    """Check that all files hold exactly the same weights."""
    first, *remaining = (load_file(file) for file in results)
    for weights in remaining:
        assert first.keys() == weights.keys()
        assert not [name for name, tensor in first.items() if not torch.equal(tensor, weights[name])]


@pytest.mark.parametrize("train", [train_with_sft, train_with_rl], ids=["sft", "rl"])
def test_a_stopped_run_ends_with_the_weights_of_an_uninterrupted_one(
    request: pytest.FixtureRequest,
    train: Any,
    family: str,
    folder: Path,
    environments: Path,
    tmp_path: Path,
    result: Result,
):
    result("SFT" if train is train_with_sft else "RL")
    expect_failure(request, NOT_TRAINED if train is train_with_sft else NOT_SAMPLED, family)
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    train(folder, environments, whole)
    with pytest.raises(Killed):
        train(folder, environments, stopped, kill_at=1)
    train(folder, environments, stopped)
    assert_equal_files([run / "final/model.safetensors" for run in (whole, stopped)])
    check_result(folder, stopped / "final")
    loaded = load_model(folder, "cpu")
    Engine(loaded.model, []).update_weights(1, stopped / "final")
    expected = load_model(stopped / "final", "cpu").model.state_dict()
    assert not [name for name, tensor in loaded.model.state_dict().items() if not torch.equal(tensor, expected[name])]


def test_an_adapter_is_resumed_and_is_the_same_in_peft(
    request: pytest.FixtureRequest, family: str, folder: Path, environments: Path, tmp_path: Path, result: Result
):
    result("LoRA")
    expect_failure(request, NO_ADAPTER, family)
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    train_with_sft(folder, environments, whole, lora_rank=2)
    with pytest.raises(Killed):
        train_with_sft(folder, environments, stopped, kill_at=1, lora_rank=2)
    train_with_sft(folder, environments, stopped, lora_rank=2)
    assert_equal_files([run / "final/adapter_model.safetensors" for run in (whole, stopped)])
    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        plain = base.eval()(input_ids=PROMPT, use_cache=False).logits
        adapted = PeftModel.from_pretrained(base, str(stopped / "final")).eval()
        expected = adapted(input_ids=PROMPT, use_cache=False).logits
        merged = load_model(stopped / "final", "cpu").model(input_ids=PROMPT, use_cache=False).logits
    assert not torch.equal(plain, expected)
    torch.testing.assert_close(merged, expected, atol=1e-3, rtol=1e-3)
