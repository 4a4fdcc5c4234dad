from __future__ import annotations

import asyncio
import random
import re
from typing import Any

import msgspec
import pytest
import torch
from fakes import generate_naively, tiny_model
from families import assert_matches_recomputation
from tiers import first_quick

from rove.core.errors import ConfigError, ModelError, OverlongPromptError
from rove.core.protocols import Generation, InferenceEngine, SamplingParams, Token
from rove.engine.engine import Engine
from rove.engine.sampler import Sampler, SamplerRow
from rove.models.load import LoadedModel

TOLERANCE = 1e-4
ARCHITECTURES = ["llama", "qwen3", "lfm2", "gemma2"]


def engine_of(loaded: LoadedModel, **options: Any) -> Engine:
    return Engine(loaded.model, sorted(loaded.renderer.stop_ids), renderer=loaded.renderer, **options)


def assert_same(got: Generation, expected: Generation) -> None:
    assert got.ids == expected.ids
    assert got.finish_reason == expected.finish_reason
    assert got.logprobs == pytest.approx(expected.logprobs, abs=TOLERANCE)


def ragged_prompts(count: int, seed: int = 0) -> list[list[int]]:
    """Return prompts of many lengths, some of them equal."""
    rng = random.Random(seed)
    prompts = [[rng.randrange(300) for _ in range(rng.randrange(1, 40))] for _ in range(count)]
    return [*prompts, *prompts[: count // 2]]


@pytest.mark.parametrize("arch", first_quick(ARCHITECTURES))
async def test_generation_equals_naive_recomputation_over_three_turns(arch: str):
    loaded = tiny_model(arch, seed=1, kv_heads=2)
    engine = engine_of(loaded)
    assert engine.is_fast == (arch != "gemma2")
    rng = random.Random(0)
    prompts = ragged_prompts(10)
    samplings = [
        SamplingParams(temperature=[1.0, 1.25, 0.7, 0.0][i % 4], max_tokens=3 + i % 10) for i in range(len(prompts))
    ]
    finish_reasons = set()
    for turn in range(3):
        generations = await asyncio.gather(
            *(
                engine.generate(p, s, seed=100 * turn + i)
                for i, (p, s) in enumerate(zip(prompts, samplings, strict=True))
            )
        )
        for i, (prompt, sampling, generation) in enumerate(zip(prompts, samplings, generations, strict=True)):
            assert sampling.temperature is not None and sampling.max_tokens is not None
            assert_same(
                generation, generate_naively(loaded, prompt, 100 * turn + i, sampling.temperature, sampling.max_tokens)
            )
            finish_reasons.add(generation.finish_reason)
        # Some conversations continue by one token, some by many, and some start over.
        prompts = [
            p + g.ids + [rng.randrange(300) for _ in range([1, 3, 90][i % 3])] if i % 5 else [7] * (i + 1)
            for i, (p, g) in enumerate(zip(prompts, generations, strict=True))
        ]
    assert finish_reasons == {"stop", "length"}


@pytest.mark.parametrize("arch", first_quick(ARCHITECTURES))
async def test_tokens_do_not_depend_on_other_requests_in_the_batch(arch: str):
    loaded = tiny_model(arch, seed=2)
    prompts = ragged_prompts(8, seed=3)
    sequential_engine, batched_engine = engine_of(loaded), engine_of(loaded)
    single = [
        await sequential_engine.generate(prompt, SamplingParams(max_tokens=10), seed=i)
        for i, prompt in enumerate(prompts)
    ]
    order = random.Random(0).sample(range(len(prompts)), len(prompts))
    generations = await asyncio.gather(
        *(batched_engine.generate(prompts[i], SamplingParams(max_tokens=10), seed=i) for i in order)
    )
    for i, generation in zip(order, generations, strict=True):
        assert_same(generation, single[i])


@pytest.mark.parametrize("arch", ARCHITECTURES)
async def test_scoring_agrees_with_sampling(arch: str):
    loaded = tiny_model(arch, seed=3)
    engine = engine_of(loaded)
    for temperature in (1.0, 1.25):
        generation = await engine.generate([5, 6, 7], SamplingParams(temperature=temperature, max_tokens=20), seed=1)
        assert engine.score([5, 6, 7, *generation.ids], temperature)[2:] == pytest.approx(
            generation.logprobs, abs=TOLERANCE
        )
    assert engine.score([5]) == []


async def test_max_tokens_0_only_scores_the_prompt():
    engine = engine_of(tiny_model())
    generation = await engine.generate([5, 6, 7], SamplingParams(max_tokens=0, prompt_logprobs=1))
    assert (generation.ids, generation.logprobs, generation.finish_reason) == ([], [], "length")
    assert generation.prompt_logprobs == pytest.approx(engine.score([5, 6, 7]), abs=TOLERANCE)
    assert generation.prompt_top_logprobs is not None and len(generation.prompt_top_logprobs) == 2
    assert (await engine.generate([5, 6, 7], SamplingParams(max_tokens=0, stop=["a"]))).ids == []


async def test_the_second_turn_computes_only_new_tokens():
    engine = engine_of(tiny_model())
    prompt = list(range(10, 50))
    first = await engine.generate(prompt, SamplingParams(max_tokens=5), seed=1)
    computed_tokens_before = engine.computed_tokens
    await engine.generate([*prompt, *first.ids, 1, 2, 3], SamplingParams(max_tokens=1), seed=2)
    # The last sampled token, which has not been fed back yet, and three new tokens.
    assert engine.computed_tokens - computed_tokens_before == 4


async def test_equal_prompts_are_computed_once():
    engine = engine_of(tiny_model())
    prompt = list(range(10, 50))
    await asyncio.gather(*(engine.generate(prompt, SamplingParams(max_tokens=1), seed=i) for i in range(8)))
    assert engine.computed_tokens == 40 + 7  # all but the first only need the logits of the last token


async def test_a_common_prefix_is_computed_once():
    engine = engine_of(tiny_model(), chunk=16)
    system = list(range(10, 110))
    prompts = [[*system, 200 + i, 7] for i in range(6)]
    await asyncio.gather(
        *(engine.generate(prompt, SamplingParams(max_tokens=1), seed=i) for i, prompt in enumerate(prompts))
    )
    assert engine.computed_tokens <= 102 + 5 * (2 + 16)


async def test_finished_requests_leave_the_batch():
    engine = Engine(tiny_model().model, [])
    limits = [2, 2, 2, 2, 2, 2, 2, 30]
    await asyncio.gather(
        *(engine.generate([i + 1], SamplingParams(max_tokens=n), seed=i) for i, n in enumerate(limits))
    )
    assert engine.computed_tokens == sum(limits)


async def test_new_requests_join_a_running_batch():
    loaded = tiny_model(seed=3)
    engine = Engine(loaded.model, [])
    sampled: list[int] = []
    long = asyncio.create_task(
        engine.generate([5], SamplingParams(max_tokens=200), on_token=lambda *_: sampled.append(1))
    )
    while len(sampled) < 10:  # noqa: ASYNC110
        await asyncio.sleep(0)
    short = await engine.generate([6, 7], SamplingParams(max_tokens=3), seed=1)
    assert len(short.ids) == 3
    assert 10 < len(sampled) < 30 and not long.done()
    assert len((await long).ids) == 200


async def test_a_long_prompt_is_prefilled_in_chunks_while_others_decode():
    loaded = tiny_model(seed=3)
    engine = Engine(loaded.model, [], chunk=16)
    sampled: list[int] = []
    running = asyncio.create_task(
        engine.generate([5], SamplingParams(max_tokens=200), on_token=lambda *_: sampled.append(1))
    )
    while not sampled:  # noqa: ASYNC110
        await asyncio.sleep(0)
    prompt = [i % 300 for i in range(160)]
    generation = await engine.generate(prompt, SamplingParams(max_tokens=1), seed=1)
    assert len(sampled) >= 10
    expected = await engine_of(loaded).generate(prompt, SamplingParams(max_tokens=1), seed=1)
    assert generation.ids == expected.ids
    await running


async def test_a_timeout_during_generation_frees_the_row():
    engine = Engine(tiny_model(context=100_000).model, [])
    sampled: list[int] = []

    def record(token: Token) -> None:
        sampled.append(token.id)

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await engine.generate([5], SamplingParams(max_tokens=50_000), on_token=record)
    await asyncio.sleep(0.05)
    count = len(sampled)
    await engine.generate([6], SamplingParams(max_tokens=5))
    assert len(sampled) == count
    assert engine._runner.active() == []


@pytest.mark.parametrize("arch", ["llama", "lfm2", "gemma2"])
async def test_on_token_is_called_for_every_sampled_token(arch: str):
    engine = engine_of(tiny_model(arch, seed=1))
    streamed: list[Token] = []
    generation = await engine.generate(
        [5, 6], SamplingParams(max_tokens=9, logprobs=2), seed=3, on_token=streamed.append
    )
    assert [(token.id, token.logprob, token.text) for token in streamed] == [
        (i, p, None) for i, p in zip(generation.ids, generation.logprobs)
    ]
    assert [token.top for token in streamed] == generation.top_logprobs


async def test_a_failing_callback_fails_only_its_own_request():
    engine = Engine(tiny_model().model, [])

    def broken(token: Token) -> None:
        raise RuntimeError("broken callback")

    bad, good = await asyncio.gather(
        engine.generate([5], SamplingParams(max_tokens=4), on_token=broken),
        engine.generate([6], SamplingParams(max_tokens=4)),
        return_exceptions=True,
    )
    assert isinstance(bad, RuntimeError)
    assert isinstance(good, Generation) and len(good.ids) == 4


async def test_rows_of_very_different_lengths_in_a_batch_stay_correct():
    # One row of the batch is long and continues by one token, the other is short and continues by many: the padded positions
    # of the long row lie beyond the capacity allocated for the batch.
    loaded = tiny_model(seed=4)
    engine = engine_of(loaded)
    sampling = SamplingParams(max_tokens=2)
    long, short = [i % 300 for i in range(3, 203)], [5, 6]
    first_turns = await asyncio.gather(
        engine.generate(long, sampling, seed=1), engine.generate(short, sampling, seed=2)
    )
    prompts = [[*long, *first_turns[0].ids, 9], [*short, *first_turns[1].ids, *range(20, 180)]]
    sampling = SamplingParams(max_tokens=8)
    second_turns = await asyncio.gather(
        *(engine.generate(p, sampling, seed=3) for p in prompts),
        engine.generate([1, 2, 3], sampling, seed=3),
    )
    for prompt, generation in zip([*prompts, [1, 2, 3]], second_turns, strict=True):
        assert_same(generation, generate_naively(loaded, prompt, 3, 1.0, 8))


async def test_group_members_with_equal_turns_all_get_a_generation():
    loaded = tiny_model(seed=5)
    engine = engine_of(loaded)
    greedy = SamplingParams(temperature=0.0, max_tokens=4)
    first = (await asyncio.gather(*(engine.generate([5, 6, 7], greedy) for _ in range(4))))[0]
    prompt = [5, 6, 7, *first.ids, 8]
    generations = await asyncio.gather(*(engine.generate(prompt, greedy) for _ in range(4)))
    expected = generate_naively(loaded, prompt, 0, 0.0, 4)
    for generation in generations:
        assert_same(generation, expected)


@pytest.mark.broad
async def test_requests_beyond_max_batch_wait():
    loaded = tiny_model()
    engine = engine_of(loaded, max_batch=3)
    running_counts: list[int] = []
    step = engine._runner.step
    engine._runner.step = lambda: (step(), running_counts.append(len(engine._runner.scheduler.running)))[0]  # pyright: ignore[reportAttributeAccessIssue]
    generations = await asyncio.gather(
        *(engine.generate([i + 1, 2], SamplingParams(max_tokens=6), seed=i) for i in range(8))
    )
    assert max(running_counts) == 3
    for i, generation in enumerate(generations):
        assert_same(generation, generate_naively(loaded, [i + 1, 2], i, 1.0, 6))


async def test_the_same_requests_are_computed_in_the_same_batches():
    loaded = tiny_model()

    async def converse(engine: Engine, seed: int) -> list[float]:
        ids, logprobs = [seed % 3 + 1], []
        for turn in range(3):
            generation = await engine.generate(ids, SamplingParams(max_tokens=seed % 4 + 1), seed=turn)
            for _ in range(seed % 3):  # an environment takes a few passes of the event loop between two turns
                await asyncio.sleep(0)
            ids, logprobs = ids + generation.ids + [9], logprobs + generation.logprobs
        return logprobs

    async def batches() -> tuple[list[tuple[int, int]], Any]:
        engine, sizes = engine_of(loaded), []
        step = engine._runner.step
        engine._runner.step = lambda: (
            step_output := step(),
            sizes.append((len(step_output[0]), engine.computed_tokens)),
        )[0]
        return sizes, await asyncio.gather(*(converse(engine, seed) for seed in range(6)))

    assert await batches() == await batches()  # bitwise equal


async def test_finish_reason_is_length_at_max_tokens_and_stop_at_a_stop_token():
    loaded = tiny_model(seed=1)
    unlimited = (await Engine(loaded.model, []).generate([5], SamplingParams(temperature=0.0, max_tokens=8))).ids
    assert len(unlimited) == 8
    stop = unlimited[3]
    expected = unlimited[: unlimited.index(stop) + 1]
    generation = await Engine(loaded.model, [stop]).generate([5], SamplingParams(temperature=0.0, max_tokens=8))
    assert (generation.ids, generation.finish_reason) == (expected, "stop")
    exact = await Engine(loaded.model, [stop]).generate([5], SamplingParams(temperature=0.0, max_tokens=len(expected)))
    assert (exact.ids, exact.finish_reason) == (expected, "stop")
    short = await Engine(loaded.model, []).generate([5], SamplingParams(temperature=0.0, max_tokens=3))
    assert (short.ids, short.finish_reason) == (unlimited[:3], "length")


@pytest.mark.parametrize("arch", ["llama", "lfm2", "gemma2"])
async def test_a_prompt_that_fills_the_context_is_refused(arch: str):
    engine = Engine(tiny_model(arch, context=16).model, [])
    with pytest.raises(OverlongPromptError, match="16"):
        await engine.generate([5] * 16, SamplingParams())
    generation = await engine.generate([5] * 13, SamplingParams(max_tokens=10))
    assert (len(generation.ids), generation.finish_reason) == (3, "length")


@pytest.mark.parametrize("arch", ["llama", "lfm2", "gemma2"])
async def test_a_prompt_that_is_only_scored_may_fill_the_context(arch: str):
    engine = Engine(tiny_model(arch, context=16).model, [])
    scoring = SamplingParams(max_tokens=0, prompt_logprobs=0)
    generation = await engine.generate([5] * 16, scoring)
    assert generation.ids == [] and generation.prompt_logprobs == pytest.approx(engine.score([5] * 16), abs=TOLERANCE)
    with pytest.raises(OverlongPromptError, match="17 tokens, the context is 16; expected at most 16"):
        await engine.generate([5] * 17, scoring)


async def test_unsupported_sampling_parameters_are_refused():
    loaded = tiny_model()
    with pytest.raises(ConfigError, match="does not support beams"):
        await engine_of(loaded).generate([5], SamplingParams(extra={"beams": 2}))
    with pytest.raises(ConfigError, match=r"tokens \[9999\]; expected ids from 0 to"):
        await engine_of(loaded).generate([5], SamplingParams(logit_bias={9999: 1.0}))
    with pytest.raises(ConfigError, match="stop needs the text of tokens"):
        await Engine(loaded.model, []).generate([5], SamplingParams(stop=["a"]))
    with pytest.raises(ConfigError, match="prompt_logprobs of 40 tokens needs"):
        await engine_of(loaded, cache_bytes=1 << 16).generate([5] * 40, SamplingParams(prompt_logprobs=0))


ALL_PARAMS = SamplingParams(
    temperature=0.9,
    max_tokens=12,
    top_p=0.95,
    top_k=80,
    min_p=0.001,
    repetition_penalty=1.2,
    presence_penalty=0.5,
    frequency_penalty=0.3,
    logit_bias={7: 2.0, 9: -100.0},
    min_tokens=4,
    logprobs=3,
)


def generate_with_sampler(loaded: LoadedModel, prompt: list[int], sampling: SamplingParams, seed: int) -> Generation:
    """Generate with a separate sampler on logits that are recomputed in full for every token."""
    assert sampling.max_tokens is not None
    ids, logprobs, top = [], [], []
    stop_ids = sorted(loaded.renderer.stop_ids)
    row = SamplerRow(sampling, seed, prompt)
    with torch.inference_mode():
        sampler = Sampler(loaded.model.config.vocab_size, stop_ids, rows=[row])
        while len(ids) < sampling.max_tokens and not (ids and ids[-1] in stop_ids):
            logits = loaded.model(input_ids=torch.tensor([[*prompt, *ids]]), use_cache=False).logits[:, -1]
            step = sampler.step(logits)
            ids.append(int(step.ids))
            logprobs.append(float(step.logprobs))
            top.append(step.top[0])
    return Generation(ids, logprobs, "stop" if ids[-1] in stop_ids else "length", 0, top_logprobs=top)


@pytest.mark.parametrize("arch", first_quick(ARCHITECTURES))
async def test_every_row_uses_its_own_sampling_parameters(arch: str):
    loaded = tiny_model(arch, seed=6)
    rng = random.Random(1)
    prompts = [[rng.randrange(300) for _ in range(rng.randrange(1, 30))] for _ in range(9)]
    samplings = [ALL_PARAMS if i % 2 else SamplingParams(max_tokens=3 + i, logprobs=2) for i in range(9)]
    engine = engine_of(loaded, max_batch=4)
    generations = await asyncio.gather(
        *(engine.generate(p, s, seed=i) for i, (p, s) in enumerate(zip(prompts, samplings, strict=True)))
    )
    for i, (prompt, sampling, generation) in enumerate(zip(prompts, samplings, generations, strict=True)):
        expected = generate_with_sampler(loaded, prompt, sampling, i)
        assert_same(generation, expected)
        assert generation.top_logprobs is not None and expected.top_logprobs is not None
        for actual_top, expected_top in zip(generation.top_logprobs, expected.top_logprobs, strict=True):
            assert dict(actual_top) == pytest.approx(dict(expected_top), abs=TOLERANCE)


@pytest.mark.slow
async def test_preempted_rows_resume_with_the_same_tokens():
    loaded = tiny_model(seed=8)
    row_bytes = 2 * 2 * 1 * 8 * 4 * 64  # layers, keys and values, key heads, head size, bytes, positions
    engine = engine_of(loaded, cache_bytes=3 * row_bytes, chunk=32)
    sampling = msgspec.structs.replace(ALL_PARAMS, max_tokens=70, min_tokens=70)
    prompts = [[i + 1] * (5 * i + 2) for i in range(6)]
    requests = (engine.generate(p, sampling, seed=i) for i, p in enumerate(prompts))
    waiting = asyncio.create_task(asyncio.wait_for(asyncio.gather(*requests), 60))
    generations = await waiting
    assert engine.computed_tokens > sum(len(p) + 70 for p in prompts)  # some tokens were computed twice
    for i, (prompt, generation) in enumerate(zip(prompts, generations, strict=True)):
        assert_same(generation, generate_with_sampler(loaded, prompt, sampling, i))


async def test_a_stop_string_ends_the_generation_and_is_excluded_from_its_text():
    loaded = tiny_model(seed=1)
    unstopped = await engine_of(loaded).generate([5, 6], SamplingParams(max_tokens=20, ignore_eos=True), seed=3)
    text = loaded.renderer.decode(unstopped.ids)
    stop = text[8:11]
    generation = await engine_of(loaded).generate(
        [5, 6], SamplingParams(max_tokens=20, ignore_eos=True, stop=[stop]), seed=3
    )
    assert (generation.text, generation.finish_reason, generation.stopped_by) == (
        text[: text.index(stop)],
        "stop",
        stop,
    )
    assert generation.ids == unstopped.ids[: len(generation.ids)]
    assert stop in loaded.renderer.decode(generation.ids)


async def test_structured_output_matches_the_requested_regex():
    loaded = tiny_model(seed=1)
    structured_outputs = {"regex": "(yes|no), [0-9]{2}"}
    plain = SamplingParams(max_tokens=30)
    generations = await asyncio.gather(
        *(
            engine_of(loaded).generate(
                [5], SamplingParams(max_tokens=30, structured_outputs=structured_outputs), seed=i
            )
            for i in range(3)
        ),
        engine_of(loaded).generate([5], plain, seed=3),
    )
    for generation in generations[:3]:
        text = loaded.renderer.decode(generation.ids)
        for stop in loaded.renderer.stop_ids:
            text = text.removesuffix(loaded.renderer.decode([stop]))
        assert re.fullmatch(structured_outputs["regex"], text)
        assert generation.finish_reason == "stop"
    assert_same(generations[3], generate_naively(loaded, [5], 3, 1.0, 30))
    with pytest.raises(ConfigError, match="not possible"):
        await engine_of(loaded).generate([5], SamplingParams(structured_outputs={"regex": "("}))


@pytest.mark.parametrize("top", [0, 2])
async def test_prompt_logprobs_equal_the_scores_of_the_prompt(top: int):
    loaded = tiny_model(seed=1)
    engine = engine_of(loaded)
    prompt = [5, 6, 7, 8]
    generation = await engine.generate(prompt, SamplingParams(max_tokens=1, prompt_logprobs=top), seed=3)
    assert generation.prompt_logprobs == pytest.approx(engine.score(prompt), abs=TOLERANCE)
    if top:
        assert generation.prompt_top_logprobs is not None
        assert [len(logprob) for logprob in generation.prompt_top_logprobs] == [top] * 3
    else:
        assert generation.prompt_top_logprobs is None


async def test_an_empty_prompt_is_refused_without_affecting_other_requests():
    engine = engine_of(tiny_model())
    empty, other_generation = await asyncio.gather(
        engine.generate([], SamplingParams()),
        engine.generate([5], SamplingParams(max_tokens=2)),
        return_exceptions=True,
    )
    assert isinstance(empty, ConfigError)
    assert isinstance(other_generation, Generation)


async def test_any_integer_is_a_valid_seed():
    engine = Engine(tiny_model().model, [])
    generations = [
        await engine.generate([5], SamplingParams(max_tokens=8), seed=seed)
        for seed in (0, 2**63 - 1, 2**63, 2**70 + 1, -1)
    ]
    assert all(len(g.ids) == 8 for g in generations)
    assert generations[0].ids == generations[2].ids  # seeds are taken modulo 2⁶³
    assert generations[1].ids == generations[4].ids != generations[0].ids


async def test_canceled_requests_do_not_affect_the_rest_of_the_batch():
    loaded = tiny_model()
    engine = engine_of(loaded)
    tasks = [asyncio.create_task(engine.generate([i + 1, 2], SamplingParams(max_tokens=6), seed=i)) for i in range(6)]
    await asyncio.sleep(0)  # all requests are waiting for the batch to start
    for task in tasks[::2]:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(generation, asyncio.CancelledError) for generation in results[::2])
    for i, generation in list(enumerate(results))[1::2]:
        assert isinstance(generation, Generation)
        assert_same(generation, generate_naively(loaded, [i + 1, 2], i, 1.0, 6))


async def test_the_engine_continues_after_all_requests_were_canceled():
    engine = engine_of(tiny_model())
    task = asyncio.create_task(engine.generate([5], SamplingParams(max_tokens=2)))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert len((await engine.generate([5], SamplingParams(max_tokens=2))).ids) == 2


def test_an_engine_can_be_used_from_a_second_event_loop():
    engine = engine_of(tiny_model())

    async def abandon() -> None:
        asyncio.create_task(engine.generate([5], SamplingParams(max_tokens=2)))  # noqa: RUF006 - abandoned on purpose
        await asyncio.sleep(0)

    async def generate_two_tokens() -> Generation:
        return await engine.generate([5], SamplingParams(max_tokens=2))

    asyncio.run(abandon())
    assert asyncio.run(generate_two_tokens()) == asyncio.run(generate_two_tokens())


async def test_an_error_in_a_step_fails_all_requests_and_the_engine_recovers(monkeypatch: pytest.MonkeyPatch):
    loaded = tiny_model()
    engine = engine_of(loaded)
    with monkeypatch.context() as broken:
        broken.setattr(engine._runner, "step", lambda: 1 / 0)
        results = await asyncio.gather(
            *(engine.generate(ids, SamplingParams(max_tokens=2)) for ids in ([5], [6])), return_exceptions=True
        )
    assert all(isinstance(generation, ZeroDivisionError) for generation in results)
    assert_same(await engine.generate([5], SamplingParams(max_tokens=2)), generate_naively(loaded, [5], 0, 1.0, 2))


async def test_a_step_that_fails_inside_the_sampler_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch):
    loaded = tiny_model()
    engine = engine_of(loaded)
    with monkeypatch.context() as broken:
        broken.setattr(engine._sampler, "keep", lambda rows: 1 / 0)  # after the new rows were added
        with pytest.raises(ZeroDivisionError):
            await engine.generate([5], SamplingParams(max_tokens=4, temperature=0.0))
    generation = await engine.generate([6, 7], SamplingParams(max_tokens=4), seed=1)
    assert_same(generation, generate_naively(loaded, [6, 7], 1, 1.0, 4))


async def test_a_token_id_outside_the_vocabulary_is_refused():
    with pytest.raises(ConfigError, match="token 10000; expected ids from 0 to"):
        await engine_of(tiny_model()).generate([5, 10_000], SamplingParams())


@pytest.mark.broad
@pytest.mark.parametrize("rows", first_quick([3, 5, 9], broad=0))
async def test_a_small_cache_causes_waiting_and_recomputation_but_never_a_wrong_token(rows: int):
    loaded = tiny_model(seed=8)
    row_bytes = 2 * 2 * 1 * 8 * 4 * 64  # layers, keys and values, key heads, head size, bytes, positions
    engine = Engine(loaded.model, [], cache_bytes=rows * row_bytes, chunk=32)
    cache = engine._runner.cache  # pyright: ignore[reportAttributeAccessIssue]
    prompts = [[i + 1] * (5 * i + 2) for i in range(8)]
    for turn in range(2):
        generations = await asyncio.gather(
            *(engine.generate(p, SamplingParams(max_tokens=70), seed=i) for i, p in enumerate(prompts))
        )
        assert cache.allocated_bytes <= rows * row_bytes
        for i, (prompt, generation) in enumerate(zip(prompts, generations, strict=True)):
            assert_matches_recomputation(loaded, prompt, generation, i, 1.0)
        prompts = [[*p, *g.ids, 9][: 100 + turn] for p, g in zip(prompts, generations, strict=True)]


@pytest.mark.parametrize("arch", ["llama", "lfm2", "gemma2"])
async def test_a_request_that_can_never_fit_the_cache_is_refused(arch: str):
    engine = Engine(tiny_model(arch).model, [], cache_bytes=64 * 1024)
    with pytest.raises(ConfigError, match=r"needs up to .* MiB .*lower max_tokens"):
        await engine.generate([5] * 100, SamplingParams(max_tokens=900))
    assert len((await engine.generate([5], SamplingParams(max_tokens=3))).ids) == 3


def test_engine_implements_the_inference_engine_protocol():
    assert isinstance(engine_of(tiny_model()), InferenceEngine)


def test_nan_weights_raise_an_error_instead_of_sampling_a_token() -> None:
    loaded = tiny_model()
    engine = Engine(loaded.model, sorted(loaded.renderer.stop_ids))
    with torch.no_grad():
        next(loaded.model.parameters()).fill_(float("nan"))
    with pytest.raises(ModelError, match="not finite"):
        asyncio.run(engine.generate([7, 8, 9], SamplingParams(max_tokens=3)))
