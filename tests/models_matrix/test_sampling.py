"""Every family: rollouts of three turns compared with a plain forward pass, and the weights that vLLM servers load."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from toy_envs import generate_sync
from transformers import AutoModelForCausalLM

from rove.engine.client import EngineClient
from rove.envs.loading import load_environment
from rove.models.load import load_model
from rove.train.sequences import sequences_from_record
from rove.vllm.weights import write_served
from tests.models_matrix.conftest import Result, expect_failure
from tests.models_matrix.test_training import NOT_SAMPLED, PROMPT

pytestmark = [pytest.mark.slow, pytest.mark.matrix]

TOLERANCE = 1e-4
"""Largest difference of a log-probability from that of a plain forward pass in fp32, in nats."""
TOLERANCES = {"nemotron_h": 5e-3, "zamba2": 5e-3}
"""Families whose own steps with a cache differ from a whole sequence by up to 2e-3 in transformers 5.24."""


def plain_logprobs(model: Any, ids: list[int]) -> torch.Tensor:
    """Return the log-probability of each token after the first, computed by transformers alone."""
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, :-1]
    return logits.log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0]


def test_rollouts_have_the_log_probabilities_of_a_plain_forward_pass(
    request: pytest.FixtureRequest, family: str, folder: Path, environments: Path, result: Result
):
    result("Evaluate")
    expect_failure(request, NOT_SAMPLED, family)
    client = EngineClient.from_model(load_model(folder, "cpu"))
    environment = load_environment("matrix_letters", environments)
    # The rollouts of an example share their prompt, and each turn begins with the turn before it.
    records = generate_sync(
        environment, client, rollouts_per_example=4, sampling_args={"temperature": 1.0, "max_tokens": 6}
    )
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    assert len(records) == 16 and not any(record.error for record in records)
    for record in records:
        assert len(record.steps) == 3
        [sequence] = sequences_from_record(record, 1.0)
        assert sum(sequence.mask) == sum(len(step.tokens.logprobs) for step in record.steps if step.tokens)
        mask = torch.tensor(sequence.mask[1:])
        sampled = torch.tensor(sequence.logprobs[1:])[mask]
        difference = (plain_logprobs(plain, sequence.ids)[mask] - sampled).abs().max().item()
        assert difference < TOLERANCES.get(family, TOLERANCE)


def test_weights_for_vllm_have_the_names_and_shapes_of_the_published_ones(
    request: pytest.FixtureRequest, family: str, folder: Path, tmp_path: Path, result: Result
):
    result("vLLM weights")
    expect_failure(request, NOT_SAMPLED, family)
    loaded = load_model(folder, "cpu")
    write_served(loaded, tmp_path)
    published = {name: weight.shape for name, weight in load_file(folder / "model.safetensors").items()}
    written: dict[str, torch.Size] = {}
    for file in tmp_path.glob("*.safetensors"):
        written |= {name: weight.shape for name, weight in load_file(file).items()}
    # A head that is tied in the published model is a separate matrix here.
    head = loaded.model.get_output_embeddings()
    heads = {f"{name}.weight" for name, module in loaded.model.named_modules() if module is head}
    assert written.keys() <= published.keys() | heads
    assert {name: shape for name, shape in written.items() if name in published}.items() <= published.items()
    assert json.loads((tmp_path / "config.json").read_bytes())["tie_word_embeddings"] is False
    served, report = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32, output_loading_info=True)
    assert not any(report.values())
    with torch.inference_mode():
        logits = loaded.model(input_ids=PROMPT, use_cache=False).logits
        torch.testing.assert_close(
            served.eval()(input_ids=PROMPT, use_cache=False).logits, logits, atol=1e-4, rtol=1e-4
        )
