"""Fleets of vLLM servers with the same weights; see also tests/vllm/test_engine.py and tests/train/test_backends.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes import tiny_model
from vllm_server import FakeVLLM

from rove.core.errors import RunError
from rove.models.adapter import add_adapter
from rove.train.backends import parity_check
from rove.vllm.fleet import AdapterRefusedError, Fleet, ServedWeights
from rove.vllm.server import LoRAShape, VLLMConfig
from rove.vllm.weights import write_adapter, write_served

LOADED = tiny_model()
IDS = LOADED.renderer.encode("hello world, you say 4")


@pytest.fixture
def weights(tmp_path: Path) -> ServedWeights:
    """Base weights and an adapter."""
    loaded = tiny_model()
    adapter = add_adapter(loaded.model, 3, 8.0, 0.0, ["up_proj", "k_proj"], 0, "somewhere")
    write_served(loaded, tmp_path / "model", merged=False)
    write_adapter(adapter, tmp_path / "adapter")
    return ServedWeights(4, tmp_path / "model", tmp_path / "adapter")


@pytest.fixture
def fake(weights: ServedWeights) -> Iterator[FakeVLLM]:
    with FakeVLLM(weights.model) as server:
        yield server


def fleet_of(fake: FakeVLLM, path: Path) -> Fleet:
    return Fleet(VLLMConfig(urls=[fake.url]), path, 1024)


def test_lora_shape_is_read_from_the_adapter(weights: ServedWeights):
    assert weights.lora_shape == LoRAShape(3, ["k_proj", "up_proj"])
    assert weights._replace(adapter=None).lora_shape is None


def test_requests_contain_the_adapter_name_and_a_cache_salt_per_update(
    tmp_path: Path, fake: FakeVLLM, weights: ServedWeights
):
    fleet = fleet_of(fake, tmp_path)
    assert "model" not in fleet.request_body(IDS, {})
    fleet.update(weights)
    body = fleet.request_body(IDS, {"max_tokens": 2})
    assert (body["token_ids"], body["sampling_params"]) == (IDS, {"max_tokens": 2})
    assert body["model"] in fake.adapters
    assert body["cache_salt"].endswith("-1")
    fleet.update(weights)  # the same version again
    assert fleet.request_body(IDS, {})["cache_salt"].endswith("-2")
    fleet.check(parity_check(LOADED.model, IDS))  # the adapter changes nothing yet
    assert fleet.parity_error <= 1e-4
    fleet.update(weights._replace(adapter=None))
    assert "model" not in fleet.request_body(IDS, {})


def test_parity_checks_have_priority_on_servers_that_rove_starts(tmp_path: Path):
    external = Fleet(VLLMConfig(urls=["http://127.0.0.1:9"]), tmp_path, 1024)  # its scheduling policy is unknown
    assert "priority" not in external.scoring_body(IDS, 1.0)
    managed = Fleet(VLLMConfig(command="true"), tmp_path, 1024)
    assert managed.scoring_body(IDS, 1.0)["priority"] < 0
    assert "priority" not in managed.request_body(IDS, {})


def test_base_weights_are_loaded_once(tmp_path: Path, fake: FakeVLLM, weights: ServedWeights):
    fleet = fleet_of(fake, tmp_path)
    for version in range(3):
        fleet.update(weights._replace(version=version))
    methods = [body["method"] for path, body in fake.requests if path == "/collective_rpc"]
    # No request has used the adapter since.
    assert methods == [
        "reload_weights",
        "list_loras",
        "remove_lora",
        "list_loras",
    ]


def test_a_refused_adapter_does_not_end_the_run(tmp_path: Path, fake: FakeVLLM, weights: ServedWeights):
    fake.faults.append("refuses_lora")
    fleet = fleet_of(fake, tmp_path)
    with pytest.raises(AdapterRefusedError, match="does not yet support DoRA"):
        fleet.update(weights)
    fleet.update(weights._replace(adapter=None))


def test_after_a_parity_failure_no_weights_are_accepted(tmp_path: Path, fake: FakeVLLM, weights: ServedWeights):
    fleet = fleet_of(fake, tmp_path)
    fleet.parity_failure = RunError("it was wrong")
    with pytest.raises(RunError, match="it was wrong"):
        fleet.update(weights)
