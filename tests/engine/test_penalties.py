from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation.logits_process import RepetitionPenaltyLogitsProcessor

from rove.core.protocols import SamplingParams
from rove.engine.penalties import Penalties, has_penalty

V = 12
TOKENS = st.lists(st.integers(0, V - 1), max_size=10)


def logits_of(seed: int, rows: int = 1) -> torch.Tensor:
    return 3 * torch.randn(rows, V, generator=torch.Generator().manual_seed(seed))


def penalised(sampling: SamplingParams, prompt: list[int], answer: list[int], logits: torch.Tensor) -> torch.Tensor:
    penalties = Penalties(V)
    penalties.add([(sampling, prompt, answer)])
    return penalties.apply(logits)


@settings(deadline=None)
@given(TOKENS, TOKENS, st.floats(0.5, 2, width=32), st.integers(0, 1000))
def test_the_repetition_penalty_is_that_of_transformers(
    prompt: list[int], answer: list[int], penalty: float, seed: int
):
    had = torch.tensor([[*prompt, *answer]], dtype=torch.long)
    expected = RepetitionPenaltyLogitsProcessor(penalty)(had, logits_of(seed))
    torch.testing.assert_close(
        penalised(SamplingParams(repetition_penalty=penalty), prompt, answer, logits_of(seed)), expected
    )


@settings(deadline=None)
@given(TOKENS, TOKENS, st.floats(-2, 2, width=32), st.floats(-2, 2, width=32))
def test_presence_and_frequency_count_the_answer_alone(
    prompt: list[int], answer: list[int], presence: float, frequency: float
):
    sampling = SamplingParams(presence_penalty=presence, frequency_penalty=frequency)
    made = penalised(sampling, prompt, answer, logits_of(5))
    for token in range(V):
        count = answer.count(token)
        expected = logits_of(5)[0, token].item() - frequency * count - presence * (count > 0)
        assert made[0, token].item() == pytest.approx(expected, abs=1e-5)


def test_repetition_comes_before_what_is_taken_off():
    sampling = SamplingParams(repetition_penalty=2.0, presence_penalty=1.0, frequency_penalty=0.5)
    made = penalised(sampling, [0], [1, 1], torch.tensor([[4.0, 4.0, -4.0] + [0.0] * (V - 3)]))
    assert made[0, :3].tolist() == [2.0, 4 / 2 - 1 - 2 * 0.5, -4.0]


@settings(deadline=None)
@given(st.lists(st.tuples(TOKENS, TOKENS), min_size=1, max_size=4), st.data())
def test_counting_token_by_token_is_counting_all(rows: list[tuple[list[int], list[int]]], data: st.DataObject):
    sampling = SamplingParams(repetition_penalty=1.5, presence_penalty=0.3, frequency_penalty=0.2)
    steps = data.draw(st.lists(st.lists(st.integers(0, V - 1), min_size=len(rows), max_size=len(rows)), max_size=4))
    order = data.draw(st.permutations(range(len(rows))))[: data.draw(st.integers(0, len(rows)))]
    growing, whole = Penalties(V), Penalties(V)
    for prompt, answer in rows:
        growing.add([(sampling, prompt, answer)])
    for step in steps:
        growing.count(torch.tensor(step))
    growing.keep(order)
    whole.add([(sampling, rows[i][0], rows[i][1] + [step[i] for step in steps]) for i in order])
    logits = logits_of(2, len(order))
    torch.testing.assert_close(growing.apply(logits), whole.apply(logits))


def test_impossible_tokens_stay_impossible():
    logits = torch.full((1, V), -torch.inf)
    made = penalised(
        SamplingParams(repetition_penalty=1.5, presence_penalty=-2, frequency_penalty=-2), [1], [2, 2], logits
    )
    assert made.tolist() == logits.tolist()


@pytest.mark.parametrize(
    ("sampling", "has"),
    [
        (SamplingParams(), False),
        (SamplingParams(repetition_penalty=1.0, presence_penalty=0.0, frequency_penalty=0.0), False),
        (SamplingParams(repetition_penalty=1.1), True),
        (SamplingParams(presence_penalty=-0.1), True),
        (SamplingParams(frequency_penalty=0.1), True),
    ],
)
def test_what_is_off_is_no_penalty(sampling: SamplingParams, has: bool):
    assert has_penalty(sampling) is has
