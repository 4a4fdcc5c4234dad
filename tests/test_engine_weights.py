"""New weights, and what they may not do."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch
from fakes import generate_naively, tiny_model
from test_engine import TOLERANCE, assert_same, engine_of

from rove.engine.engine import Engine
from rove.errors import ConfigError
from rove.models.load import LoadedModel
from rove.protocols import Sampling


def perturbed(loaded: LoadedModel) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {n: p.detach() + 0.1 * torch.randn(p.shape, generator=generator) for n, p in loaded.model.named_parameters()}


@pytest.mark.parametrize("in_place", [False, True])
async def test_new_weights_forget_the_cache_and_raise_the_version(in_place: bool):
    loaded = tiny_model(seed=7)
    engine = engine_of(loaded)
    prompt = list(range(20, 40))
    first = await engine.generate(prompt, Sampling(max_tokens=4), seed=1)
    assert first.policy_version == 0
    weights = perturbed(loaded)
    if in_place:
        loaded.model.load_state_dict(weights, strict=False)
        engine.update_weights(3)
    else:
        engine.update_weights(3, weights)
    assert engine.policy_version == 3
    before = engine.computed
    longer = [*prompt, *first.ids, 5]
    second = await engine.generate(longer, Sampling(max_tokens=4), seed=2)
    assert second.policy_version == 3
    assert engine.computed - before == len(longer) + len(second.ids) - 1
    assert_same(second, generate_naively(loaded, longer, 2, 1.0, 4))
    assert engine.score([*longer, *second.ids])[-len(second.ids) :] == pytest.approx(second.logprobs, abs=TOLERANCE)


async def test_weights_of_another_model_are_refused_and_change_nothing():
    loaded = tiny_model()
    engine = engine_of(loaded)
    before = {name: p.clone() for name, p in loaded.model.named_parameters()}
    weights = perturbed(loaded)
    name = "model.norm.weight"
    for wrong in (
        {k: v for k, v in weights.items() if k != name},
        {**weights, "more": weights[name]},
        {**weights, name: torch.ones(1)},
    ):
        with pytest.raises(ConfigError, match="do not match"):
            engine.update_weights(1, wrong)
    assert engine.policy_version == 0
    assert all(torch.equal(p, before[n]) for n, p in loaded.model.named_parameters())


async def test_weights_come_from_a_checkpoint_too(tmp_path: Path):
    loaded, other = tiny_model(seed=1), tiny_model(seed=2)
    other.save(tmp_path)
    engine = engine_of(loaded)
    await engine.generate([5, 6], Sampling(max_tokens=4))
    engine.update_weights(1, tmp_path)
    assert_same(await engine.generate([5, 6], Sampling(max_tokens=8)), generate_naively(other, [5, 6], 0, 1.0, 8))
    with pytest.raises(ConfigError, match="holds no weights"):
        engine.update_weights(2, tmp_path / "nothing")


async def test_weights_do_not_change_under_a_running_request():
    engine = Engine(tiny_model().model, [])
    running = asyncio.create_task(engine.generate([5], Sampling(max_tokens=50)))
    await asyncio.sleep(0)
    with pytest.raises(ConfigError, match="1 requests are under way"):
        engine.update_weights(1)
    assert (await running).policy_version == 0
    engine.update_weights(1)
    cancelled = asyncio.create_task(engine.generate([5], Sampling(max_tokens=50)))
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.gather(cancelled, return_exceptions=True)
    engine.update_weights(2)
    assert engine.policy_version == 2


async def test_weights_changed_by_an_optimizer_that_leaves_no_trace_are_seen():
    loaded = tiny_model(seed=7)
    engine = engine_of(loaded)
    await engine.generate([5, 6], Sampling(max_tokens=2))
    for parameter in loaded.model.parameters():
        parameter.data.mul_(0.9)  # as fused optimizers, without raising the tensor's version
    engine.update_weights(1)
    assert_same(await engine.generate([5, 6], Sampling(max_tokens=8)), generate_naively(loaded, [5, 6], 0, 1.0, 8))
