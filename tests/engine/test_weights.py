"""New weights, and what they may not do."""

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


def perturbed(loaded: LoadedModel) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {n: p.detach() + 0.1 * torch.randn(p.shape, generator=generator) for n, p in loaded.model.named_parameters()}


@pytest.mark.parametrize("in_place", [False, True])
async def test_new_weights_forget_the_cache_and_raise_the_version(in_place: bool):
    loaded = tiny_model(seed=7)
    engine = engine_of(loaded)
    prompt = list(range(20, 40))
    first = await engine.generate(prompt, SamplingParams(max_tokens=4), seed=1)
    assert first.policy_version == 0
    weights = perturbed(loaded)
    if in_place:
        loaded.model.load_state_dict(weights, strict=False)
        engine.update_weights(3)
    else:
        engine.update_weights(3, weights)
    assert engine.policy_version == 3
    before = engine.computed_tokens
    longer = [*prompt, *first.ids, 5]
    second = await engine.generate(longer, SamplingParams(max_tokens=4), seed=2)
    assert second.policy_version == 3
    assert engine.computed_tokens - before == len(longer) + len(second.ids) - 1
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


@pytest.mark.parametrize("arch", ["llama", "qwen3"])
async def test_a_tied_model_takes_the_state_dict_of_another(arch: str):
    loaded, other = tiny_model(arch, seed=1), tiny_model(arch, seed=2)
    weights = other.model.state_dict()
    assert "lm_head.weight" in weights and "lm_head.weight" not in dict(other.model.named_parameters())
    engine = engine_of(loaded)
    engine.update_weights(1, {name: weight.clone() for name, weight in weights.items()})
    assert_same(await engine.generate([5, 6], SamplingParams(max_tokens=8)), generate_naively(other, [5, 6], 0, 1.0, 8))
    engine.update_weights(2, weights)


@pytest.mark.parametrize("head", [torch.zeros(320, 32), torch.zeros(1)])
async def test_a_tied_model_refuses_another_output_matrix_and_changes_nothing(head: torch.Tensor):
    loaded = tiny_model()
    before = {name: p.clone() for name, p in loaded.model.named_parameters()}
    with pytest.raises(ConfigError, match=r"'lm_head.weight' and 'model.embed_tokens.weight' differ"):
        engine_of(loaded).update_weights(1, {**tiny_model(seed=2).model.state_dict(), "lm_head.weight": head})
    assert all(torch.equal(p, before[name]) for name, p in loaded.model.named_parameters())


async def test_weights_come_from_a_checkpoint_too(tmp_path: Path):
    loaded, other = tiny_model(seed=1), tiny_model(seed=2)
    other.save(tmp_path)
    engine = engine_of(loaded)
    await engine.generate([5, 6], SamplingParams(max_tokens=4))
    engine.update_weights(1, tmp_path)
    assert_same(await engine.generate([5, 6], SamplingParams(max_tokens=8)), generate_naively(other, [5, 6], 0, 1.0, 8))
    with pytest.raises(ConfigError, match="holds no weights"):
        engine.update_weights(2, tmp_path / "nothing")


async def test_weights_do_not_change_under_a_running_request():
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


async def test_weights_changed_by_an_optimizer_that_leaves_no_trace_are_seen():
    loaded = tiny_model(seed=7)
    engine = engine_of(loaded)
    await engine.generate([5, 6], SamplingParams(max_tokens=2))
    for parameter in loaded.model.parameters():
        parameter.data.mul_(0.9)  # as fused optimizers, without raising the tensor's version
    engine.update_weights(1)
    assert_same(
        await engine.generate([5, 6], SamplingParams(max_tokens=8)), generate_naively(loaded, [5, 6], 0, 1.0, 8)
    )


ARCHITECTURES = ["llama", "qwen3", "lfm2", "gemma2"]
LONG = SamplingParams(max_tokens=12, ignore_eos=True)


def kept_cache(old: LoadedModel, new: LoadedModel, prompt: list[int], seed: int, change: int) -> Generation:
    """What must be said when the weights change after `change` tokens: keys and values stay, all else is of the new ones."""
    ids: list[int] = []
    logprobs: list[float] = []
    cache, unread = None, list(prompt)
    while len(ids) < (LONG.max_tokens or 0):
        model = (old if len(ids) < change else new).model
        with torch.inference_mode():
            out = model(input_ids=torch.tensor([unread]), past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache = out.past_key_values
        token, logprob = sample(out.logits[:, -1], torch.tensor([1.0]), torch.tensor([seed]), torch.tensor([len(ids)]))
        ids.append(int(token))
        logprobs.append(float(logprob))
        unread = ids[-1:]
    return Generation(ids, logprobs, "length", 0)


async def said(counts: list[int], number: int) -> None:
    """Wait until so many tokens have been sampled; requests go on only when this lets them."""
    while len(counts) < number:  # noqa: ASYNC110  the engine steps between two passes of the loop
        await asyncio.sleep(0)


@pytest.mark.parametrize("arch", first_quick(ARCHITECTURES))
async def test_weights_taken_in_flight_say_the_rest_with_the_cache_that_was_kept(arch: str):
    loaded, old = tiny_model(arch, seed=7, kv_heads=2), tiny_model(arch, seed=7, kv_heads=2)
    weights = perturbed(loaded)
    new = tiny_model(arch, seed=7, kv_heads=2)
    new.model.load_state_dict(weights, strict=False)
    engine = engine_of(loaded, in_flight_updates=True)
    prompts = [list(range(20, 40)), [*range(20, 36), 9], [5, 6]]  # two share a beginning, and so keys and values
    for seed, prompt in enumerate(
        prompts
    ):  # the change comes after 1, 5 and 11 tokens: the first, the middle, the last one left
        change = [1, 5, 11][seed]
        heard: list[int] = []
        running = asyncio.create_task(engine.generate(prompt, LONG, seed, lambda token, to=heard: to.append(token.id)))
        await said(heard, change)
        engine.update_weights(3 * seed + 1, weights)
        made = await running
        assert_same(made, kept_cache(old, new, prompt, seed, change))
        assert made.policy_version == 3 * seed
        assert made.version_spans == [(3 * seed, change), (3 * seed + 1, 12 - change)]
        engine.update_weights(3 * seed + 3, dict(old.model.named_parameters()))


@pytest.mark.parametrize("arch", first_quick(ARCHITECTURES))
async def test_after_weights_taken_in_flight_nobody_reuses_what_older_ones_computed(arch: str):
    loaded, new = tiny_model(arch, seed=7), tiny_model(arch, seed=7)
    new.model.load_state_dict(perturbed(loaded), strict=False)
    engine = engine_of(loaded, in_flight_updates=True)
    prompt, heard = list(range(20, 60)), []
    kept = await engine.generate([*prompt, 3], SamplingParams(max_tokens=3), seed=9)  # leaves its keys and values
    running = asyncio.create_task(engine.generate(prompt, LONG, 1, lambda token: heard.append(token.id)))
    await said(heard, 4)
    late = asyncio.create_task(engine.generate([*prompt, 7], LONG, seed=2))  # nothing of it is computed yet
    engine.update_weights(1, dict(new.model.named_parameters()))
    beside = await engine.generate([*prompt, 8], LONG, seed=3)  # while the old request runs
    for number, made in ((7, await late), (8, beside)):
        assert_same(made, kept_cache(new, new, [*prompt, number], number - 5, 0))
        assert (made.policy_version, made.version_spans) == (1, [])
    mixed = await running
    assert mixed.version_spans[0] == (0, 4)
    for before, seed in (([*prompt, *mixed.ids], 4), ([*prompt, 3, *kept.ids], 5)):  # their next turns
        made = await engine.generate([*before, 5], LONG, seed=seed)
        assert_same(made, kept_cache(new, new, [*before, 5], seed, 0))


@pytest.mark.broad
async def test_requests_go_on_over_many_changes_as_they_grow_and_end():
    """Rows move to larger ones, a long prompt is read in over several steps, and every token knows its version."""
    engine = Engine(tiny_model(seed=3).model, [], chunk=16, in_flight_updates=True)
    tasks = [
        asyncio.create_task(engine.generate(list(range(5, 5 + n)), SamplingParams(max_tokens=90), seed=n))
        for n in (3, 40, 70)
    ]
    version = 0
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0)
        version += 1
        engine.update_weights(version // 7)  # most change nothing but the cache
    for task in tasks:
        made = task.result()
        versions, counts = zip(*made.version_spans, strict=True)
        assert list(versions) == sorted(set(versions)) and versions[0] == made.policy_version
        assert sum(counts) == len(made.ids) == 90 and min(counts) > 0
    assert engine.computed_tokens == 3 * 89 + 3 + 40 + 70  # nothing was computed twice


async def test_the_same_version_again_is_one_span():
    loaded = tiny_model("qwen3", seed=7)
    engine = Engine(loaded.model, [], in_flight_updates=True)
    heard: list[int] = []
    engine.update_weights(4)
    running = asyncio.create_task(engine.generate([5, 6], LONG, 1, lambda token: heard.append(token.id)))
    await said(heard, 2)
    engine.update_weights(4)  # the same version again is one span
    assert ((await running).policy_version, (await running).version_spans) == (4, [])
