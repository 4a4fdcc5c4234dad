"""What the teacher's rollouts show of hidden state, merged symbols, and relations between prompts and responses."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tiers import each_row
from toy_envs import generate_sync

import rove as vf
from rove.train.predictability import hidden_share, merged_symbols, prompts_are_related
from rove.train.sequences import TrainingSequence


def records(policy: Any, question: str = "Guess the number.") -> list[Any]:
    rows = [{"question": question.format(n=n), "answer": str(n % 7)} for n in range(60)]
    env = vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric())
    return generate_sync(env, vf.ScriptedClient(policy, "policy"), rollouts_per_example=2)


def knows(messages: Any, state: Any, rng: random.Random) -> str:
    return state["answer"]


def guesses(messages: Any, state: Any, rng: random.Random) -> str:
    return str(rng.randrange(7))


def constant(messages: Any, state: Any, rng: random.Random) -> str:
    return "3"


def often_knows(messages: Any, state: Any, rng: random.Random) -> str:
    return state["answer"] if rng.random() < 0.7 else str(rng.randrange(7))


@pytest.mark.parametrize(
    ("policy", "low", "high"), [(knows, 1.0, 1.0), (often_knows, 0.2, 0.9), (constant, 0.0, 0.0), (guesses, 0.0, 0.0)]
)
def test_hidden_share_measures_the_use_of_information_missing_from_the_prompt(policy: Any, low: float, high: float):
    share = hidden_share(records(policy))
    assert share is not None and low <= share <= high


def test_hidden_share_is_none_for_different_prompts():
    assert hidden_share(records(knows, "What is {n} modulo 7?")) is None


def test_hidden_share_counts_every_conversation_the_same():
    """Random responses to one common prompt, and certain ones to rare prompts, hide nothing."""

    def random_or_certain(messages: Any, state: Any, rng: random.Random) -> str:
        return str(rng.randrange(7)) if messages[-1].content == "Guess." else messages[-1].content

    rows = [{"question": "Guess." if n < 30 else f"Repeat {n // 2}.", "answer": str(n)} for n in range(60)]
    env = vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric())
    rollouts = generate_sync(env, vf.ScriptedClient(random_or_certain, "policy"), rollouts_per_example=2)
    assert hidden_share(rollouts) == 0.0


def test_hidden_share_sees_a_hidden_answer_in_several_conversations():
    rows = [{"question": f"Guess the number of group {n // 15}.", "answer": str(n % 7)} for n in range(60)]
    env = vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric())
    assert hidden_share(generate_sync(env, vf.ScriptedClient(knows, "policy"), rollouts_per_example=2)) == 1.0


def test_the_teacher_of_tictactoe_hides_nothing():
    """It breaks ties at random, and most later turns leave it no choice."""
    env = vf.load_environment("tictactoe", num_examples=100)
    teacher = vf.ScriptedClient(env.policies["teacher"], "teacher")
    assert hidden_share(generate_sync(env, teacher, rollouts_per_example=2, train=True)) == 0.0


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            ["RGB", "RBG", "GRB", "GBR", "BRG", "BGR", "RRR", "GGG"],
            ["BGR", "BRG", "GBR", "GGG", "GRB", "RBG", "RGB", "RRR"],
        ),
        (["red", "green", "blue", "white", "Find", "the", "code", "of", "three", "pegs", "is", "it", "as", "at"], []),
        (["<move>", "</move>", "4", " 5", "..", "X"], []),
        ([], []),
    ],
)
def test_merged_symbols_are_detected(words: list[str], expected: list[str]):
    assert merged_symbols(words) == expected


def exchange(prompt: list[int], response: list[int]) -> TrainingSequence:
    mask = [False] * len(prompt) + [True] * len(response)
    return TrainingSequence([*prompt, *response], mask, [0.0] * len(mask), [0.0] * len(mask))


@pytest.mark.broad
@each_row(
    ("answer", "expected"),
    [
        (lambda rng, word: word[-1], True),  # a token at a position
        (lambda rng, word: 20 + word.count(3), True),  # a token anywhere
        (lambda rng, word: 20 + rng.randrange(5), False),  # labels of other rows
        (lambda rng, word: 20 + sum(word) % 2, False),  # needs all tokens at once
        (lambda rng, word: 20, None),  # always the same
    ],
)
def test_prompts_are_related_detects_single_token_dependencies(answer: Any, expected: bool | None):
    rng = random.Random(0)
    words = [[rng.randrange(8) for _ in range(6)] for _ in range(2000)]
    sequences = [exchange([30, *word, 31], [40, answer(rng, word), 41]) for word in words]
    assert prompts_are_related(sequences) is expected
    assert prompts_are_related(sequences[:400]) is None


@pytest.mark.broad
def test_unrelated_prompts_are_rarely_called_related():
    rng = random.Random(1)
    results = [
        prompts_are_related(
            exchange([rng.randrange(50) for _ in range(8)], [60 + rng.randrange(10)]) for _ in range(600)
        )
        for _ in range(20)
    ]
    assert results.count(True) <= 1
