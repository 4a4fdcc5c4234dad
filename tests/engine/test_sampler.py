"""The batched sampler: penalties, filters, biases, constraints and seeds per row."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from fakes import sample
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tiers import each_row
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from rove.core.errors import ConfigError
from rove.core.protocols import SamplingParams
from rove.engine.sampler import Penalties, Sampler, SamplerRow, has_penalty, uniforms

PENALTY_VOCAB = 12
TOKENS = st.lists(st.integers(0, PENALTY_VOCAB - 1), max_size=10)


def penalty_logits(seed: int, rows: int = 1) -> torch.Tensor:
    return 3 * torch.randn(rows, PENALTY_VOCAB, generator=torch.Generator().manual_seed(seed))


def penalized_logits(
    sampling: SamplingParams, prompt: list[int], answer: list[int], logits: torch.Tensor
) -> torch.Tensor:
    penalties = Penalties(PENALTY_VOCAB)
    penalties.add([(sampling, prompt, answer)])
    return penalties.apply(logits)


@settings(deadline=None)
@given(TOKENS, TOKENS, st.floats(0.5, 2, width=32), st.integers(0, 1000))
def test_the_repetition_penalty_equals_that_of_transformers(
    prompt: list[int], answer: list[int], penalty: float, seed: int
):
    previous = torch.tensor([[*prompt, *answer]], dtype=torch.long)
    expected = RepetitionPenaltyLogitsProcessor(penalty)(previous, penalty_logits(seed))
    torch.testing.assert_close(
        penalized_logits(SamplingParams(repetition_penalty=penalty), prompt, answer, penalty_logits(seed)), expected
    )


@settings(deadline=None)
@given(TOKENS, TOKENS, st.floats(-2, 2, width=32), st.floats(-2, 2, width=32))
def test_presence_and_frequency_penalties_count_only_completion_tokens(
    prompt: list[int], answer: list[int], presence: float, frequency: float
):
    sampling = SamplingParams(presence_penalty=presence, frequency_penalty=frequency)
    result = penalized_logits(sampling, prompt, answer, penalty_logits(5))
    for token in range(PENALTY_VOCAB):
        count = answer.count(token)
        expected = penalty_logits(5)[0, token].item() - frequency * count - presence * (count > 0)
        assert result[0, token].item() == pytest.approx(expected, abs=1e-5)


def test_the_repetition_penalty_is_applied_before_presence_and_frequency():
    sampling = SamplingParams(repetition_penalty=2.0, presence_penalty=1.0, frequency_penalty=0.5)
    result = penalized_logits(sampling, [0], [1, 1], torch.tensor([[4.0, 4.0, -4.0] + [0.0] * (PENALTY_VOCAB - 3)]))
    assert result[0, :3].tolist() == [2.0, 4 / 2 - 1 - 2 * 0.5, -4.0]


@settings(deadline=None)
@given(st.lists(st.tuples(TOKENS, TOKENS), min_size=1, max_size=4), st.data())
def test_counting_tokens_one_by_one_equals_counting_them_at_once(
    rows: list[tuple[list[int], list[int]]], data: st.DataObject
):
    sampling = SamplingParams(repetition_penalty=1.5, presence_penalty=0.3, frequency_penalty=0.2)
    steps = data.draw(
        st.lists(st.lists(st.integers(0, PENALTY_VOCAB - 1), min_size=len(rows), max_size=len(rows)), max_size=4)
    )
    order = data.draw(st.permutations(range(len(rows))))[: data.draw(st.integers(0, len(rows)))]
    incremental, whole = Penalties(PENALTY_VOCAB), Penalties(PENALTY_VOCAB)
    for prompt, answer in rows:
        incremental.add([(sampling, prompt, answer)])
    for step in steps:
        incremental.count(torch.tensor(step))
    incremental.keep(order)
    whole.add([(sampling, rows[i][0], rows[i][1] + [step[i] for step in steps]) for i in order])
    logits = penalty_logits(2, len(order))
    torch.testing.assert_close(incremental.apply(logits), whole.apply(logits))


def test_penalties_keep_impossible_tokens_impossible():
    logits = torch.full((1, PENALTY_VOCAB), -torch.inf)
    result = penalized_logits(
        SamplingParams(repetition_penalty=1.5, presence_penalty=-2, frequency_penalty=-2), [1], [2, 2], logits
    )
    assert result.tolist() == logits.tolist()


@each_row(
    ("sampling", "has"),
    [
        (SamplingParams(), False),
        (SamplingParams(repetition_penalty=1.0, presence_penalty=0.0, frequency_penalty=0.0), False),
        (SamplingParams(repetition_penalty=1.1), True),
        (SamplingParams(presence_penalty=-0.1), True),
        (SamplingParams(frequency_penalty=0.1), True),
    ],
)
def test_has_penalty_is_false_for_neutral_values(sampling: SamplingParams, has: bool):
    assert has_penalty(sampling) is has


VOCAB = 24
EOS = 3

NONE = st.none()
SAMPLINGS = st.builds(
    SamplingParams,
    temperature=NONE | st.sampled_from([0.0, 0.5, 1.0, 1.7]),
    top_k=NONE | st.integers(-1, 30),
    top_p=NONE | st.floats(0.125, 1, width=32),
    min_p=NONE | st.floats(0, 0.5, width=32),
    repetition_penalty=NONE | st.floats(0.75, 1.5, width=32),
    presence_penalty=NONE | st.floats(-2, 2, width=32),
    frequency_penalty=NONE | st.floats(-2, 2, width=32),
    logit_bias=NONE | st.dictionaries(st.integers(0, VOCAB - 1), st.floats(-5, 5, width=32), max_size=3),
    min_tokens=NONE | st.integers(0, 4),
    stop_token_ids=NONE | st.lists(st.integers(0, VOCAB - 1), max_size=2),
    ignore_eos=NONE | st.booleans(),
    logprobs=NONE | st.integers(0, VOCAB + 3),
)
PROMPTS = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=6)


def row_of(sampling: SamplingParams, seed: int = 0, **fields: Any) -> SamplerRow:
    return SamplerRow(sampling, seed, fields.pop("prompt", (1, 2)), **fields)


def sampler_of(*rows: SamplerRow) -> Sampler:
    return Sampler(VOCAB, (EOS,), rows=rows)


def logits_of(row: int, position: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * row + position)
    return 2 * torch.randn(1, VOCAB, generator=generator)


def sample_alone(row: SamplerRow, key: int, steps: int) -> list[tuple[int, float]]:
    sampler, results = sampler_of(row), []
    for position in range(steps):
        step = sampler.step(logits_of(key, position))
        results.append((step.ids.item(), step.logprobs.item()))
    return results


def test_plain_rows_are_sampled_as_by_the_reference_function():
    logits = torch.cat([logits_of(i, 0) for i in range(6)])
    temperature = [1.0, 0.0, 0.7, 0.0, 2.0, 1.0]
    seeds = [5, 5, 6, 2**63 + 7, -1, 0]
    step = sampler_of(
        *(row_of(SamplingParams(temperature=t), seed, answer=[0] * 4) for t, seed in zip(temperature, seeds))
    ).step(logits)
    ids, logprobs = sample(
        logits,
        torch.tensor(temperature),
        torch.tensor([seed % 2**63 for seed in seeds]),
        torch.full((6,), 4),
    )
    assert step.ids.tolist() == ids.tolist()
    assert step.logprobs.tolist() == logprobs.tolist()
    assert step.top == {}


def reference_distribution(row: SamplerRow, logits: torch.Tensor) -> torch.Tensor:
    """Return the distribution of a row's next token [VOCAB], computed in the documented order with transformers' filters."""
    sampling, previous = row.sampling, torch.tensor([[*row.prompt, *row.answer]], dtype=torch.long)
    scores = logits.clone()
    if len(row.answer) < (sampling.min_tokens or 0):
        for token in {*(sampling.stop_token_ids or ()), *(() if sampling.ignore_eos else (EOS,))}:
            scores[0, token] = -math.inf
    for token, bias in (sampling.logit_bias or {}).items():
        scores[0, token] += bias
    scores = RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty or 1.0)(previous, scores)
    for token in set(row.answer):
        scores[0, token] -= (sampling.presence_penalty or 0) + (sampling.frequency_penalty or 0) * row.answer.count(
            token
        )
    if sampling.temperature == 0:
        return scores.softmax(-1)[0]
    scores = TemperatureLogitsWarper(sampling.temperature or 1.0)(previous, scores)
    filters = LogitsProcessorList([MinPLogitsWarper(sampling.min_p or 0.0)])
    if sampling.top_k is not None and sampling.top_k > 0:
        filters.append(TopKLogitsWarper(sampling.top_k))
    probabilities = filters(previous, scores).softmax(-1)
    # Exactly at the edge of a filter and among ties, rounding decides.
    margins = probabilities.sort().values.cumsum(-1) - (1 - (sampling.top_p or 1.0))
    assume(margins.abs().min() > 1e-5)
    min_p_margins = scores.softmax(-1) / scores.softmax(-1).max() - (sampling.min_p or 0.0)
    assume(min_p_margins.abs().min() > 1e-5 or not sampling.min_p)
    assume(scores[0].sort().values.diff().min() > 1e-4)
    filters.append(TopPLogitsWarper(1.0 if sampling.top_p is None else sampling.top_p))
    return filters(previous, scores).softmax(-1)[0]


@pytest.mark.broad
@settings(deadline=None, max_examples=300)
@given(
    SAMPLINGS,
    PROMPTS,
    st.lists(st.integers(0, VOCAB - 1), max_size=6),
    st.integers(0, 10**6),
    st.integers(0, 2**63 - 1),
)
def test_a_token_is_sampled_from_the_reference_distribution(
    sampling: SamplingParams, prompt: list[int], answer: list[int], key: int, seed: int
):
    row, logits = SamplerRow(sampling, seed, prompt, answer), logits_of(key, 0)
    expected = reference_distribution(row, logits)
    original = logits.clone()
    step = sampler_of(row).step(logits)
    id = step.ids.item()
    assert torch.equal(logits, original)
    assert math.exp(step.logprobs.item()) == pytest.approx(expected[id].item(), rel=1e-4)
    if sampling.temperature == 0:
        assert expected[id] == expected.max()
    else:
        u = uniforms(torch.tensor([seed]), torch.tensor([len(answer)])).item()
        edges = expected.double().cumsum(0) / expected.double().sum()
        assert (edges[id] - expected[id]).item() - 1e-5 <= u <= edges[id].item() + 1e-5
    for token, logprob in step.top.get(0, []):
        assert math.exp(logprob) == pytest.approx(expected[token].item(), rel=1e-4, abs=1e-9)


@pytest.mark.broad
@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(SAMPLINGS, PROMPTS, st.integers(0, 2**63 - 1)), min_size=1, max_size=5), st.data())
def test_tokens_of_a_row_do_not_depend_on_other_rows_in_the_batch(rows: list[Any], data: st.DataObject):
    """Rows are added, removed, added again and reordered; each generates the same tokens as alone."""
    sampler_rows = [SamplerRow(sampling, seed, prompt) for sampling, prompt, seed in rows]
    alone = [sample_alone(row, key, 6) for key, row in enumerate(sampler_rows)]
    sampler, active = Sampler(VOCAB, (EOS,)), []
    results: list[list[tuple[int, float]]] = [[] for _ in sampler_rows]
    for _ in range(6):
        inactive = [key for key in range(len(sampler_rows)) if key not in active]
        joining = data.draw(st.lists(st.sampled_from(inactive), unique=True) if inactive else st.just([]))
        sampler.add([sampler_rows[key]._replace(answer=[id for id, _ in results[key]]) for key in joining])
        active += joining
        order = data.draw(st.permutations(range(len(active))))[: data.draw(st.integers(0, len(active)))]
        sampler.keep(order)
        active = [active[i] for i in order]
        if active:
            step = sampler.step(torch.cat([logits_of(key, len(results[key])) for key in active]))
            for key, id, logprob in zip(active, step.ids.tolist(), step.logprobs.tolist(), strict=True):
                results[key].append((id, logprob))
    assert len(sampler) == len(active)
    for result, expected in zip(results, alone):
        assert [id for id, _ in result] == [id for id, _ in expected[: len(result)]]
        assert [logprob for _, logprob in result] == pytest.approx([logprob for _, logprob in expected[: len(result)]])


@settings(deadline=None)
@given(st.integers(0, 100), st.integers(1, VOCAB), st.floats(0.125, 1, width=32), st.floats(0, 1, width=32))
def test_filters_do_not_affect_greedy_rows(key: int, k: int, p: float, least: float):
    logits = logits_of(key, 0)
    step = sampler_of(row_of(SamplingParams(temperature=0, top_k=k, top_p=p, min_p=least, logprobs=VOCAB))).step(logits)
    assert step.ids.item() == logits.argmax()
    torch.testing.assert_close(step.logprobs[0], logits.log_softmax(-1).max())
    assert len(step.top[0]) == VOCAB


def test_logit_bias_can_force_and_forbid_tokens():
    logits = logits_of(1, 0).expand(2, VOCAB)
    best = int(logits[0].argmax())
    for temperature in (0.0, 1.0):
        forced = row_of(SamplingParams(temperature=temperature, logit_bias={7: 100}))
        forbidden = row_of(SamplingParams(temperature=temperature, logit_bias={best: -100}))
        for seed in range(20):
            ids = sampler_of(forced._replace(seed=seed), forbidden._replace(seed=seed)).step(logits).ids.tolist()
            assert ids[0] == 7
            assert ids[1] != best


def test_min_tokens_suppresses_end_tokens_until_reached():
    logits = torch.zeros(3, VOCAB)
    logits[:, [EOS, 5]] = 50.0
    samplings = [
        SamplingParams(temperature=0, min_tokens=2),
        SamplingParams(temperature=0, min_tokens=2, stop_token_ids=[5, VOCAB + 10]),
        SamplingParams(temperature=0, min_tokens=2, ignore_eos=True),
    ]
    sampler = sampler_of(*(row_of(sampling) for sampling in samplings))
    assert [sampler.step(logits).ids.tolist() for _ in range(3)] == [[5, 0, EOS], [5, 0, EOS], [EOS, EOS, EOS]]


def test_top_logprobs_come_from_the_filtered_distribution():
    logits = torch.tensor([[0.0] * (VOCAB - 3) + [1.0, 3.0, 2.0]])
    samplings = [
        SamplingParams(logprobs=5, top_k=2),
        SamplingParams(),
        SamplingParams(logprobs=3, temperature=0.5),
        SamplingParams(logprobs=0),
    ]
    step = sampler_of(*(row_of(sampling) for sampling in samplings)).step(logits.expand(4, VOCAB))
    assert sorted(step.top) == [0, 2]
    assert [id for id, _ in step.top[0]] == [VOCAB - 2, VOCAB - 1]
    assert sum(math.exp(logprob) for _, logprob in step.top[0]) == pytest.approx(1)
    assert step.top[2] == [
        (id, pytest.approx((logits[0] / 0.5).log_softmax(-1)[id].item())) for id in (VOCAB - 2, VOCAB - 1, VOCAB - 3)
    ]


class FixedSequenceGrammar:
    """A grammar that allows exactly one sequence of tokens."""

    def __init__(self, *tokens: int):
        self.tokens = list(tokens)
        self.accepted: list[int] = []

    def mask(self, vocab: int) -> torch.Tensor:
        return torch.arange(vocab) == self.tokens[len(self.accepted)]

    def advance(self, token: int) -> None:
        self.accepted.append(token)


def test_a_constrained_row_generates_only_tokens_its_grammar_allows():
    constraints: Any = FixedSequenceGrammar(4, 9, 2), FixedSequenceGrammar(1, 1, 1)
    samplings = [SamplingParams(repetition_penalty=1.5), SamplingParams(), SamplingParams(temperature=0, top_p=0.5)]
    sampler = sampler_of(
        row_of(samplings[0], constraint=constraints[0]),
        row_of(samplings[1]),
        row_of(samplings[2], constraint=constraints[1]),
    )
    steps = [sampler.step(logits_of(4, i).expand(3, VOCAB)) for i in range(3)]
    assert [step.ids[0].item() for step in steps] == constraints[0].accepted == [4, 9, 2]
    assert [step.ids[2].item() for step in steps] == constraints[1].accepted == [1, 1, 1]
    assert [step.logprobs[0].item() for step in steps] == [0.0] * 3


def test_low_precision_logits_are_sampled_in_fp32():
    logits = logits_of(5, 0).bfloat16()
    sampling = SamplingParams(logit_bias={1: 0.001}, top_p=0.9)
    low, full = (sampler_of(row_of(sampling)).step(x) for x in (logits, logits.float()))
    assert low.logprobs.dtype == torch.float32
    assert (low.ids.item(), low.logprobs.item()) == (full.ids.item(), full.logprobs.item())


@pytest.mark.parametrize(
    "sampling", [SamplingParams(), SamplingParams(temperature=0), SamplingParams(top_p=0.5, presence_penalty=1.0)]
)
def test_a_row_with_nan_logits_returns_nan_without_affecting_other_rows(sampling: SamplingParams):
    logits = logits_of(6, 0).repeat(2, 1)
    logits[0, 3] = math.nan
    step = sampler_of(row_of(sampling), row_of(sampling)).step(logits)
    assert math.isnan(step.logprobs[0])
    assert (step.ids[1], step.logprobs[1]) == (sampler_of(row_of(sampling)).step(logits[1:]).ids[0], step.logprobs[1])
    assert not math.isnan(step.logprobs[1])
    assert 0 <= step.ids[0] < VOCAB


def test_a_step_without_rows_returns_no_tokens():
    sampler = Sampler(VOCAB)
    assert sampler.step(torch.zeros(0, VOCAB)).ids.tolist() == []


def test_a_logit_bias_outside_the_vocabulary_is_refused_before_rows_are_added():
    sampler = Sampler(VOCAB)
    with pytest.raises(ConfigError, match=rf"logit_bias is for the tokens \[{VOCAB}\]; expected ids below {VOCAB}"):
        sampler.add([row_of(SamplingParams()), row_of(SamplingParams(logit_bias={VOCAB: 1.0, 2: 1.0}))])
    assert len(sampler) == 0
