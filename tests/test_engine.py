from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from fakes import generate_naively, tiny_model

from rove.engine.engine import CACHE_BYTES, Engine
from rove.errors import ConfigError, ModelError, OverlongPromptError
from rove.models.load import LoadedModel
from rove.protocols import Generation, InferenceEngine, Sampling

TOLERANCE = 1e-4
ARCHITECTURES = ["llama", "qwen3", "lfm2"]


def engine_of(loaded: LoadedModel, **options: Any) -> Engine:
    return Engine(loaded.model, sorted(loaded.renderer.stop_ids), **options)


def assert_same(got: Generation, wanted: Generation) -> None:
    assert got.ids == wanted.ids
    assert got.finish_reason == wanted.finish_reason
    assert got.logprobs == pytest.approx(wanted.logprobs, abs=TOLERANCE)


def ragged_prompts(count: int, seed: int = 0) -> list[list[int]]:
    """Prompts of many lengths, some of them equal."""
    rng = random.Random(seed)
    prompts = [[rng.randrange(300) for _ in range(rng.randrange(1, 40))] for _ in range(count)]
    return [*prompts, *prompts[: count // 2]]


def count_computed(loaded: LoadedModel, counted: list[int]) -> Any:
    """Append the number of tokens [rows × new] of every forward pass to `counted`."""
    return loaded.model.register_forward_pre_hook(
        lambda _, __, kwargs: counted.append(kwargs["input_ids"].numel()), with_kwargs=True
    )


@pytest.mark.parametrize("arch", ARCHITECTURES)
async def test_it_says_what_naive_recomputation_says_over_three_turns(arch: str):
    loaded = tiny_model(arch, seed=1, kv_heads=2)
    engine = engine_of(loaded)
    assert engine._cached == (arch != "lfm2")
    rng = random.Random(0)
    prompts = ragged_prompts(10)
    known = [0] * len(prompts)
    samplings = [Sampling(temperature=[1.0, 1.25, 0.7, 0.0][i % 4], max_tokens=3 + i % 10) for i in range(len(prompts))]
    reasons = set()
    for turn in range(3):
        made = await asyncio.gather(
            *(
                engine.generate(p, s, seed=100 * turn + i, known=known[i])
                for i, (p, s) in enumerate(zip(prompts, samplings, strict=True))
            )
        )
        for i, (prompt, sampling, got) in enumerate(zip(prompts, samplings, made, strict=True)):
            assert sampling.temperature is not None and sampling.max_tokens is not None
            assert_same(
                got, generate_naively(loaded, prompt, 100 * turn + i, sampling.temperature, sampling.max_tokens)
            )
            reasons.add(got.finish_reason)
        # Some conversations go on by one token, some by many, some forget everything.
        known = [len(p) + len(g.ids) - 1 if i % 5 else 0 for i, (p, g) in enumerate(zip(prompts, made, strict=True))]
        prompts = [
            p + g.ids + [rng.randrange(300) for _ in range([1, 3, 90][i % 3])] if i % 5 else [7] * (i + 1)
            for i, (p, g) in enumerate(zip(prompts, made, strict=True))
        ]
    assert reasons == {"stop", "length"}


@pytest.mark.parametrize("arch", ARCHITECTURES)
async def test_tokens_do_not_depend_on_what_else_is_in_the_batch(arch: str):
    loaded = tiny_model(arch, seed=2)
    prompts = ragged_prompts(8, seed=3)
    alone, together = engine_of(loaded), engine_of(loaded)
    single = [await alone.generate(prompt, Sampling(max_tokens=10), seed=i) for i, prompt in enumerate(prompts)]
    order = random.Random(0).sample(range(len(prompts)), len(prompts))
    made = await asyncio.gather(*(together.generate(prompts[i], Sampling(max_tokens=10), seed=i) for i in order))
    for i, got in zip(order, made, strict=True):
        assert_same(got, single[i])


@pytest.mark.parametrize("arch", ARCHITECTURES)
async def test_scoring_agrees_with_sampling(arch: str):
    loaded = tiny_model(arch, seed=3)
    engine = engine_of(loaded)
    for temperature in (1.0, 1.25):
        made = await engine.generate([5, 6, 7], Sampling(temperature=temperature, max_tokens=20), seed=1)
        assert engine.score([5, 6, 7, *made.ids], temperature)[2:] == pytest.approx(made.logprobs, abs=TOLERANCE)
    assert engine.score([5]) == []


async def test_a_second_turn_computes_only_its_new_tokens():
    loaded = tiny_model()
    engine = engine_of(loaded)
    prompt = list(range(10, 50))
    first = await engine.generate(prompt, Sampling(max_tokens=5), seed=1)
    counted: list[int] = []
    count_computed(loaded, counted)
    again = [*prompt, *first.ids, 1, 2, 3]
    await engine.generate(again, Sampling(max_tokens=1), seed=2, known=len(prompt) + len(first.ids) - 1)
    assert counted == [4]  # the last sampled token, never fed back until now, and three new ones


async def test_equal_prompts_of_a_wave_are_computed_once():
    loaded = tiny_model()
    counted: list[int] = []
    count_computed(loaded, counted)
    engine = engine_of(loaded)
    prompt = list(range(10, 50))
    await asyncio.gather(*(engine.generate(prompt, Sampling(max_tokens=2), seed=i) for i in range(8)))
    assert counted == [40, 8]


async def test_ended_rows_leave_the_batch():
    loaded = tiny_model()
    counted: list[int] = []
    count_computed(loaded, counted)
    engine = Engine(loaded.model, [])
    limits = [2, 2, 2, 2, 2, 2, 2, 30]
    await asyncio.gather(*(engine.generate([i + 1], Sampling(max_tokens=n), seed=i) for i, n in enumerate(limits)))
    assert counted == [8, 8, *[1] * 28]


async def test_a_conversation_that_outgrows_its_neighbours_cache_is_still_right():
    # One row of the wave is long and goes on by one token, the other is short and goes on by many: the padded positions
    # of the long row lie past the room that was made for the wave.
    loaded = tiny_model(seed=4)
    engine = engine_of(loaded)
    sampling = Sampling(max_tokens=2)
    long, short = [i % 300 for i in range(3, 203)], [5, 6]
    firsts = await asyncio.gather(engine.generate(long, sampling, seed=1), engine.generate(short, sampling, seed=2))
    prompts = [[*long, *firsts[0].ids, 9], [*short, *firsts[1].ids, *range(20, 180)]]
    known = [len(long) + 1, len(short) + 1]
    sampling = Sampling(max_tokens=8)
    seconds = await asyncio.gather(
        *(engine.generate(p, sampling, seed=3, known=k) for p, k in zip(prompts, known, strict=True)),
        engine.generate([1, 2, 3], sampling, seed=3),
    )
    for prompt, got in zip([*prompts, [1, 2, 3]], seconds, strict=True):
        assert_same(got, generate_naively(loaded, prompt, 3, 1.0, 8))


async def test_siblings_whose_turns_came_out_equal_are_all_answered():
    loaded = tiny_model(seed=5)
    engine = engine_of(loaded)
    greedy = Sampling(temperature=0.0, max_tokens=4)
    first = (await asyncio.gather(*(engine.generate([5, 6, 7], greedy) for _ in range(4))))[0]
    prompt = [5, 6, 7, *first.ids, 8]
    made = await asyncio.gather(*(engine.generate(prompt, greedy, known=2 + len(first.ids)) for _ in range(4)))
    wanted = generate_naively(loaded, prompt, 0, 0.0, 4)
    for got in made:
        assert_same(got, wanted)


@pytest.mark.parametrize("known", [0, 2, 3, 4, 99])
async def test_a_wrong_hint_of_what_is_known_costs_time_not_truth(known: int):
    loaded = tiny_model(seed=6)
    engine = engine_of(loaded)
    wanted = generate_naively(loaded, [5, 6, 7], 9, 1.0, 4)
    for _ in range(2):  # with nothing kept, then with the cache of a one-token answer to this very prompt kept
        assert_same(await engine.generate([5, 6, 7], Sampling(max_tokens=4), seed=9, known=known), wanted)
        await engine.generate([5, 6, 7], Sampling(max_tokens=1), seed=1)


async def test_more_requests_than_fit_a_batch_go_in_waves():
    loaded = tiny_model()
    engine = engine_of(loaded, max_batch=3)
    counted: list[int] = []
    hook = count_computed(loaded, counted)
    made = await asyncio.gather(*(engine.generate([i + 1, 2], Sampling(max_tokens=6), seed=i) for i in range(8)))
    hook.remove()
    assert max(counted) == 3 * 2
    for i, got in enumerate(made):
        assert_same(got, generate_naively(loaded, [i + 1, 2], i, 1.0, 6))


async def test_requests_of_many_tasks_share_a_wave():
    loaded = tiny_model()
    engine = engine_of(loaded)
    counted: list[int] = []
    count_computed(loaded, counted)

    async def play(seed: int) -> list[int]:
        ids: list[int] = [seed + 1]
        for turn in range(3):
            made = await engine.generate(ids, Sampling(max_tokens=1), seed=turn, known=len(ids) - 1)
            for _ in range(seed % 3):  # what an environment does between two turns takes a few passes of the event loop
                await asyncio.sleep(0)
            ids = ids + made.ids + [9]
        return ids

    await asyncio.gather(*(play(seed) for seed in range(6)))
    assert len(counted) == 3


async def test_max_tokens_ends_with_length_and_a_stop_token_with_stop():
    loaded = tiny_model(seed=1)
    free = (await Engine(loaded.model, []).generate([5], Sampling(temperature=0.0, max_tokens=8))).ids
    assert len(free) == 8
    stop = free[3]
    wanted = free[: free.index(stop) + 1]
    made = await Engine(loaded.model, [stop]).generate([5], Sampling(temperature=0.0, max_tokens=8))
    assert (made.ids, made.finish_reason) == (wanted, "stop")
    exact = await Engine(loaded.model, [stop]).generate([5], Sampling(temperature=0.0, max_tokens=len(wanted)))
    assert (exact.ids, exact.finish_reason) == (wanted, "stop")
    short = await Engine(loaded.model, []).generate([5], Sampling(temperature=0.0, max_tokens=3))
    assert (short.ids, short.finish_reason) == (free[:3], "length")


@pytest.mark.parametrize("arch", ["llama", "lfm2"])
async def test_a_prompt_must_leave_room_in_the_context(arch: str):
    engine = Engine(tiny_model(arch, context=16).model, [])
    with pytest.raises(OverlongPromptError, match="16"):
        await engine.generate([5] * 16, Sampling())
    made = await engine.generate([5] * 13, Sampling(max_tokens=10))
    assert (len(made.ids), made.finish_reason) == (3, "length")


@pytest.mark.parametrize("sampling", [Sampling(top_p=0.9), Sampling(stop=["\n"]), Sampling(extra={"min_p": 0.1})])
async def test_sampling_it_does_not_have_is_refused(sampling: Sampling):
    with pytest.raises(ConfigError, match=r"does not have (top_p|stop|min_p)"):
        await engine_of(tiny_model()).generate([5], sampling)


async def test_an_empty_prompt_is_refused_and_hurts_nobody():
    engine = engine_of(tiny_model())
    empty, other = await asyncio.gather(
        engine.generate([], Sampling()), engine.generate([5], Sampling(max_tokens=2)), return_exceptions=True
    )
    assert isinstance(empty, ConfigError)
    assert isinstance(other, Generation)


async def test_any_integer_is_a_seed():
    engine = Engine(tiny_model().model, [])
    made = [
        await engine.generate([5], Sampling(max_tokens=8), seed=seed) for seed in (0, 2**63 - 1, 2**63, 2**70 + 1, -1)
    ]
    assert all(len(g.ids) == 8 for g in made)
    assert made[0].ids == made[2].ids  # taken modulo 2⁶³
    assert made[1].ids == made[4].ids != made[0].ids


def perturbed(loaded: LoadedModel) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {n: p.detach() + 0.1 * torch.randn(p.shape, generator=generator) for n, p in loaded.model.named_parameters()}


@pytest.mark.parametrize("in_place", [False, True])
async def test_new_weights_forget_the_cache_and_raise_the_version(in_place: bool):
    loaded = tiny_model(seed=7)
    engine = engine_of(loaded)
    prompt = list(range(20, 40))
    first = await engine.generate(prompt, Sampling(max_tokens=4), seed=1)
    known = len(prompt) + len(first.ids) - 1
    assert (first.policy_version, engine._store.tokens) == (0, known)
    weights = perturbed(loaded)
    if in_place:
        loaded.model.load_state_dict(weights, strict=False)
        engine.update_weights(3)
    else:
        engine.update_weights(3, weights)
    assert (engine.policy_version, engine._store.tokens) == (3, 0)
    longer = [*prompt, *first.ids, 5]
    second = await engine.generate(longer, Sampling(max_tokens=4), seed=2, known=known)
    assert second.policy_version == 3
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


async def test_cancelled_requests_do_not_break_the_wave():
    loaded = tiny_model()
    engine = engine_of(loaded)
    tasks = [asyncio.create_task(engine.generate([i + 1, 2], Sampling(max_tokens=6), seed=i)) for i in range(6)]
    await asyncio.sleep(0)  # all are waiting for the wave to start
    for task in tasks[::2]:
        task.cancel()
    made = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(got, asyncio.CancelledError) for got in made[::2])
    for i, got in list(enumerate(made))[1::2]:
        assert isinstance(got, Generation)
        assert_same(got, generate_naively(loaded, [i + 1, 2], i, 1.0, 6))


async def test_a_wave_of_cancelled_requests_only_leaves_the_engine_alive():
    engine = engine_of(tiny_model())
    task = asyncio.create_task(engine.generate([5], Sampling(max_tokens=2)))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert len((await engine.generate([5], Sampling(max_tokens=2))).ids) == 2


def test_an_engine_outlives_its_event_loop():
    engine = engine_of(tiny_model())

    async def abandon() -> None:
        asyncio.create_task(engine.generate([5], Sampling(max_tokens=2)))  # noqa: RUF006 - left behind on purpose
        await asyncio.sleep(0)

    async def ask() -> Generation:
        return await engine.generate([5], Sampling(max_tokens=2))

    asyncio.run(abandon())
    assert asyncio.run(ask()) == asyncio.run(ask())


async def test_an_error_reaches_every_request_of_the_wave_and_the_engine_lives_on():
    loaded = tiny_model()
    engine = engine_of(loaded)
    made = await asyncio.gather(
        *(engine.generate(ids, Sampling(max_tokens=2)) for ids in ([5], [10_000])), return_exceptions=True
    )
    assert all(isinstance(got, IndexError) for got in made)
    assert_same(await engine.generate([5], Sampling(max_tokens=2)), generate_naively(loaded, [5], 0, 1.0, 2))


async def conversation(engine: Engine, loaded: LoadedModel, starts: Sequence[list[int]], turns: int) -> None:
    prompts, known = list(starts), [0] * len(starts)
    for turn in range(turns):
        made = await asyncio.gather(
            *(
                engine.generate(p, Sampling(max_tokens=5), seed=turn, known=k)
                for p, k in zip(prompts, known, strict=True)
            )
        )
        for prompt, got in zip(prompts, made, strict=True):
            assert_same(got, generate_naively(loaded, prompt, turn, 1.0, 5))
        known = [len(p) + len(g.ids) - 1 for p, g in zip(prompts, made, strict=True)]
        prompts = [[*p, *g.ids, 9, 8] for p, g in zip(prompts, made, strict=True)]


@pytest.mark.parametrize("bound", [0, 30, 75])
async def test_a_small_cache_is_never_exceeded_and_never_wrong(bound: int):
    loaded = tiny_model(seed=8)
    engine = engine_of(loaded, max_cached_tokens=bound)
    most: list[int] = []
    put = engine._store.put
    engine._store.put = lambda ids, kv: (put(ids, kv), most.append(engine._store.tokens))[0]
    await conversation(engine, loaded, [[i + 1] * (3 * i + 2) for i in range(5)], turns=3)
    assert max(most) <= bound
    assert bound < 75 or max(most) > 30  # something was kept, so something was evicted


async def test_the_default_cache_is_bounded_in_bytes():
    engine = engine_of(tiny_model(kv_heads=2))
    per_token = 2 * 2 * 2 * 8 * 4  # layers, keys and values, key heads, head size, bytes
    assert engine._store.max_tokens == CACHE_BYTES // per_token


def test_it_is_an_inference_engine():
    assert isinstance(engine_of(tiny_model()), InferenceEngine)


def test_weights_that_are_no_numbers_are_an_error_not_a_token() -> None:
    loaded = tiny_model()
    engine = Engine(loaded.model, sorted(loaded.renderer.stop_ids))
    with torch.no_grad():
        next(loaded.model.parameters()).fill_(float("nan"))
    with pytest.raises(ModelError, match="not finite"):
        asyncio.run(engine.generate([7, 8, 9], Sampling(max_tokens=3)))
