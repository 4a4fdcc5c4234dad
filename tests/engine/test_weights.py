"""Weight updates of the embedded engine."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch
from fakes import generate_naively, sample, tiny_model
from tiers import first_quick

from rove.core.errors import ConfigError
from rove.core.protocols import Generation, SamplingParams
from rove.engine.engine import Engine
from rove.models.load import LoadedModel
from tests.engine.test_engine import TOLERANCE, assert_same, engine_of


def perturbed_weights(loaded: LoadedModel) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {n: p.detach() + 0.1 * torch.randn(p.shape, generator=generator) for n, p in loaded.model.named_parameters()}


@pytest.mark.parametrize("in_place", [False, True])
async def test_update_weights_clears_the_cache_and_sets_the_policy_version(in_place: bool):
    loaded = tiny_model(seed=7)
    engine = engine_of(loaded)
    prompt = list(range(20, 40))
    first = await engine.generate(prompt, SamplingParams(max_tokens=4), seed=1)
    assert first.policy_version == 0
    weights = perturbed_weights(loaded)
    if in_place:
        loaded.model.load_state_dict(weights, strict=False)
        engine.update_weights(3)
    else:
        engine.update_weights(3, weights)
    assert engine.policy_version == 3
    computed_tokens_before = engine.computed_tokens
    longer = [*prompt, *first.ids, 5]
    second = await engine.generate(longer, SamplingParams(max_tokens=4), seed=2)
    assert second.policy_version == 3
    assert engine.computed_tokens - computed_tokens_before == len(longer) + len(second.ids) - 1
    assert_same(second, generate_naively(loaded, longer, 2, 1.0, 4))
    assert engine.score([*longer, *second.ids])[-len(second.ids) :] == pytest.approx(second.logprobs, abs=TOLERANCE)


async def test_weights_of_another_architecture_are_refused_and_change_nothing():
    loaded = tiny_model()
    engine = engine_of(loaded)
    first_weights = {name: p.clone() for name, p in loaded.model.named_parameters()}
    weights = perturbed_weights(loaded)
    name = "model.norm.weight"
    for wrong in (
        {k: v for k, v in weights.items() if k != name},
        {**weights, "more": weights[name]},
        {**weights, name: torch.ones(1)},
    ):
        with pytest.raises(ConfigError, match="do not match"):
            engine.update_weights(1, wrong)
    assert engine.policy_version == 0
    assert all(torch.equal(p, first_weights[n]) for n, p in loaded.model.named_parameters())


@pytest.mark.parametrize("arch", ["llama", "qwen3"])
async def test_a_tied_model_accepts_a_state_dict_with_lm_head(arch: str):
    loaded, other_model = tiny_model(arch, seed=1), tiny_model(arch, seed=2)
    weights = other_model.model.state_dict()
    assert "lm_head.weight" in weights and "lm_head.weight" not in dict(other_model.model.named_parameters())
    engine = engine_of(loaded)
    engine.update_weights(1, {name: weight.clone() for name, weight in weights.items()})
    assert_same(
        await engine.generate([5, 6], SamplingParams(max_tokens=8)), generate_naively(other_model, [5, 6], 0, 1.0, 8)
    )
    engine.update_weights(2, weights)


@pytest.mark.parametrize("head", [torch.zeros(320, 32), torch.zeros(1)])
async def test_a_tied_model_refuses_a_different_lm_head_and_changes_nothing(head: torch.Tensor):
    loaded = tiny_model()
    first_weights = {name: p.clone() for name, p in loaded.model.named_parameters()}
    with pytest.raises(ConfigError, match=r"'lm_head.weight' and 'model.embed_tokens.weight' differ"):
        engine_of(loaded).update_weights(1, {**tiny_model(seed=2).model.state_dict(), "lm_head.weight": head})
    assert all(torch.equal(p, first_weights[name]) for name, p in loaded.model.named_parameters())


async def test_weights_can_be_loaded_from_a_checkpoint(tmp_path: Path):
    loaded, other_model = tiny_model(seed=1), tiny_model(seed=2)
    other_model.save(tmp_path)
    engine = engine_of(loaded)
    await engine.generate([5, 6], SamplingParams(max_tokens=4))
    engine.update_weights(1, tmp_path)
    assert_same(
        await engine.generate([5, 6], SamplingParams(max_tokens=8)), generate_naively(other_model, [5, 6], 0, 1.0, 8)
    )
    with pytest.raises(ConfigError, match="holds no weights"):
        engine.update_weights(2, tmp_path / "nothing")


async def test_update_weights_is_refused_while_requests_run():
    engine = Engine(tiny_model().model, [])
    running = asyncio.create_task(engine.generate([5], SamplingParams(max_tokens=50)))
    await asyncio.sleep(0)
    with pytest.raises(ConfigError, match="1 requests are running"):
        engine.update_weights(1)
    assert (await running).policy_version == 0
    engine.update_weights(1)
    cancelled = asyncio.create_task(engine.generate([5], SamplingParams(max_tokens=50)))
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.gather(cancelled, return_exceptions=True)
    engine.update_weights(2)
    assert engine.policy_version == 2


async def test_weights_changed_without_a_tensor_version_bump_are_used():
    loaded = tiny_model(seed=7)
    engine = engine_of(loaded)
    await engine.generate([5, 6], SamplingParams(max_tokens=2))
    for parameter in loaded.model.parameters():
        parameter.data.mul_(0.9)  # like fused optimizers, without incrementing the tensor's version
    engine.update_weights(1)
    assert_same(
        await engine.generate([5, 6], SamplingParams(max_tokens=8)), generate_naively(loaded, [5, 6], 0, 1.0, 8)
    )


ARCHITECTURES = ["llama", "qwen3", "lfm2", "gemma2"]
LONG_SAMPLING = SamplingParams(max_tokens=12, ignore_eos=True)


def generate_with_kept_cache(
    old: LoadedModel, new: LoadedModel, prompt: list[int], seed: int, change: int
) -> Generation:
    """Generate with new weights after `change` tokens; keys and values computed before stay in the cache."""
    ids: list[int] = []
    logprobs: list[float] = []
    cache, unread = None, list(prompt)
    while len(ids) < (LONG_SAMPLING.max_tokens or 0):
        model = (old if len(ids) < change else new).model
        with torch.inference_mode():
            out = model(input_ids=torch.tensor([unread]), past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache = out.past_key_values
        token, logprob = sample(out.logits[:, -1], torch.tensor([1.0]), torch.tensor([seed]), torch.tensor([len(ids)]))
        ids.append(int(token))
        logprobs.append(float(logprob))
        unread = ids[-1:]
    return Generation(ids, logprobs, "length", 0)


async def wait_for_tokens(counts: list[int], number: int) -> None:
    """Wait until `number` tokens have been sampled; requests advance only while this waits."""
    while len(counts) < number:  # noqa: ASYNC110  the engine steps between two passes of the loop
        await asyncio.sleep(0)


@pytest.mark.parametrize("arch", first_quick(ARCHITECTURES))
async def test_in_flight_updates_continue_with_the_kept_cache_and_new_weights(arch: str):
    loaded, old = tiny_model(arch, seed=7, kv_heads=2), tiny_model(arch, seed=7, kv_heads=2)
    weights = perturbed_weights(loaded)
    new = tiny_model(arch, seed=7, kv_heads=2)
    new.model.load_state_dict(weights, strict=False)
    engine = engine_of(loaded, in_flight_updates=True)
    prompts = [list(range(20, 40)), [*range(20, 36), 9], [5, 6]]  # two share a prefix, and so keys and values
    for seed, prompt in enumerate(prompts):  # the change comes after 1, 5 and 11 of 12 tokens
        change = [1, 5, 11][seed]
        sampled: list[int] = []
        running = asyncio.create_task(
            engine.generate(prompt, LONG_SAMPLING, seed, lambda token, to=sampled: to.append(token.id))
        )
        await wait_for_tokens(sampled, change)
        engine.update_weights(3 * seed + 1, weights)
        generation = await running
        assert_same(generation, generate_with_kept_cache(old, new, prompt, seed, change))
        assert generation.policy_version == 3 * seed
        assert generation.version_spans == [(3 * seed, change), (3 * seed + 1, 12 - change)]
        engine.update_weights(3 * seed + 3, dict(old.model.named_parameters()))


@pytest.mark.parametrize("arch", first_quick(ARCHITECTURES))
async def test_after_an_in_flight_update_new_requests_do_not_reuse_the_old_cache(arch: str):
    loaded, new = tiny_model(arch, seed=7), tiny_model(arch, seed=7)
    new.model.load_state_dict(perturbed_weights(loaded), strict=False)
    engine = engine_of(loaded, in_flight_updates=True)
    prompt, sampled = list(range(20, 60)), []
    # Leaves its keys and values in the cache.
    finished = await engine.generate([*prompt, 3], SamplingParams(max_tokens=3), seed=9)
    running = asyncio.create_task(engine.generate(prompt, LONG_SAMPLING, 1, lambda token: sampled.append(token.id)))
    await wait_for_tokens(sampled, 4)
    # Nothing of this request is computed yet.
    pending = asyncio.create_task(engine.generate([*prompt, 7], LONG_SAMPLING, seed=2))
    engine.update_weights(1, dict(new.model.named_parameters()))
    concurrent = await engine.generate([*prompt, 8], LONG_SAMPLING, seed=3)  # concurrent with the old request
    for number, generation in ((7, await pending), (8, concurrent)):
        assert_same(generation, generate_with_kept_cache(new, new, [*prompt, number], number - 5, 0))
        assert (generation.policy_version, generation.version_spans) == (1, [])
    mixed = await running
    assert mixed.version_spans[0] == (0, 4)
    # The next turns of both older requests.
    for prefix, seed in (
        ([*prompt, *mixed.ids], 4),
        ([*prompt, 3, *finished.ids], 5),
    ):
        generation = await engine.generate([*prefix, 5], LONG_SAMPLING, seed=seed)
        assert_same(generation, generate_with_kept_cache(new, new, [*prefix, 5], seed, 0))


@pytest.mark.broad
async def test_requests_continue_across_many_in_flight_updates():
    """Rows move to larger rows, a long prompt is prefilled in several steps, and every token has its policy version."""
    engine = Engine(tiny_model(seed=3).model, [], chunk=16, in_flight_updates=True)
    tasks = [
        asyncio.create_task(engine.generate(list(range(5, 5 + n)), SamplingParams(max_tokens=90), seed=n))
        for n in (3, 40, 70)
    ]
    version = 0
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0)
        version += 1
        engine.update_weights(version // 7)  # most updates change nothing but the cache
    for task in tasks:
        generation = task.result()
        versions, counts = zip(*generation.version_spans, strict=True)
        assert list(versions) == sorted(set(versions)) and versions[0] == generation.policy_version
        assert sum(counts) == len(generation.ids) == 90 and min(counts) > 0
    assert engine.computed_tokens == 3 * 89 + 3 + 40 + 70  # nothing was computed twice


async def test_an_update_with_the_same_version_does_not_split_the_span():
    loaded = tiny_model("qwen3", seed=7)
    engine = Engine(loaded.model, [], in_flight_updates=True)
    sampled: list[int] = []
    engine.update_weights(4)
    running = asyncio.create_task(engine.generate([5, 6], LONG_SAMPLING, 1, lambda token: sampled.append(token.id)))
    await wait_for_tokens(sampled, 2)
    engine.update_weights(4)  # the same version again is one span
    assert ((await running).policy_version, (await running).version_spans) == (4, [])
