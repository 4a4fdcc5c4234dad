"""Why training does not progress."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from toys import roll

import rove as vf
from rove.train.diagnosis import (
    TokenClass,
    after_sft,
    before_training,
    during_rl,
    hidden_share,
    merged_symbols,
    token_classes,
)
from rove.train.sequences import TrainingSequence


def records(policy: Any, question: str = "Guess the number.") -> list[Any]:
    rows = [{"question": question.format(n=n), "answer": str(n % 7)} for n in range(60)]
    env = vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric())
    return roll(env, vf.ScriptedClient(policy, "policy"), rollouts_per_example=2)


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
def test_a_policy_that_uses_what_the_prompt_does_not_show(policy: Any, low: float, high: float):
    share = hidden_share(records(policy))
    assert share is not None and low <= share <= high


def test_different_prompts_cannot_be_compared():
    assert hidden_share(records(knows, "What is {n} modulo 7?")) is None


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
def test_words_of_few_letters_look_like_merged_symbols(words: list[str], expected: list[str]):
    assert merged_symbols(words) == expected


def token_class(entropy: float, loss: float, training_loss: float | None = None) -> TokenClass:
    return TokenClass("<answer>", ["0", "1"], 300, entropy, loss, loss if training_loss is None else training_loss)


FORMAT = token_class(0.0, 0.001)
GUESS = math.log(7)
LOW: list[dict[str, float]] = [{"step": 100, "eval/sampled/reward/mean": 0.34}]


@pytest.mark.parametrize(
    ("classes", "hidden", "merged", "kinds"),
    [
        ([FORMAT, token_class(GUESS, 0.3 * GUESS)], None, [], []),
        ([FORMAT, token_class(GUESS, GUESS)], None, [], ["guessing"]),
        ([FORMAT, token_class(GUESS, 1.5 * GUESS, 0.2 * GUESS)], None, [], ["unpredictable"]),
        ([FORMAT, token_class(GUESS, GUESS)], 1.0, [], ["hidden_state"]),
        ([FORMAT, token_class(GUESS, GUESS)], 0.1, ["RGB"], ["merged_tokens"]),
        ([token_class(0.0, 2.5), token_class(GUESS, GUESS)], None, [], ["learning_rate"]),
        ([], None, [], []),
    ],
)
def test_a_stuck_sft(classes: list[TokenClass], hidden: float | None, merged: list[str], kinds: list[str]):
    assert [one.kind for one in after_sft(LOW, classes, 0.34, 1.2, hidden, merged)] == kinds


def test_guessing_names_the_tokens_and_the_number_of_choices():
    (one,) = after_sft(LOW, [FORMAT, token_class(GUESS, GUESS)], 0.34, 1.2, None, [])
    assert "After '<answer>' the model guesses: '0', '1' have a loss of 1.95 nats" in one.text
    assert "uniform choice among 7.0" in one.text


def test_a_reward_above_the_weakest_policy_is_no_guessing():
    history = [{"step": 100, "eval/sampled/reward/mean": 0.6}]
    assert after_sft(history, [FORMAT, token_class(GUESS, 0.95 * GUESS)], 0.34, 1.2, None, []) == []


def test_negative_rewards_are_compared_by_their_range():
    history = [{"step": 100, "eval/sampled/reward/mean": -1.0}]
    classes = [FORMAT, token_class(GUESS, GUESS)]
    assert [one.kind for one in after_sft(history, classes, -1.0, 1.0, None, [])] == ["guessing"]
    assert after_sft([{"step": 100, "eval/sampled/reward/mean": 0.0}], classes, -1.0, 1.0, None, []) == []


def test_token_classes_compare_losses_with_frequencies():
    def sequence(answer: int) -> TrainingSequence:
        return TrainingSequence([1, 2, answer, 9], [False, True, True, True], [0.0] * 4, [0.0] * 4)

    def score(ids: Any) -> list[float]:
        return [-0.01, -math.log(4), -0.02]

    sequences = [sequence(answer) for answer in (3, 4, 5, 6)]
    classes = {one.before: one for one in token_classes(sequences, sequences, score, str)}
    assert (classes["2"].entropy, classes["2"].loss) == pytest.approx((math.log(4), math.log(4)))
    assert classes["1"].is_format and not classes["2"].is_format
    assert sorted(classes["2"].tokens) == ["3", "4", "5", "6"]


def rl(rewards: list[float], zero: float = 0.0) -> list[dict[str, float]]:
    return [
        {"step": step, "reward/mean": reward, "groups/zero_spread": zero, "groups/all": 32.0}
        for step, reward in enumerate(rewards, start=1)
    ]


@pytest.mark.parametrize(
    ("history", "kinds"),
    [
        (rl([0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.8]), []),
        (rl([0.7] * 10 + [0.1] * 10), ["collapse"]),
        (rl([1.0] * 10, zero=32.0), ["saturated"]),
        (rl([0.2] * 10, zero=32.0), ["no_spread"]),
        (rl([0.2] * 3, zero=32.0), []),
    ],
)
def test_rl_that_does_not_progress(history: list[dict[str, float]], kinds: list[str]):
    assert [one.kind for one in during_rl(history, 0.0, 1.0)] == kinds


def test_errors_and_equal_rewards_are_found_before_training():
    assert before_training({"good": [1.0, 0.5], "bad": [0.0, 0.5]}, {}, None) == []
    assert [one.kind for one in before_training({}, {"good": "reward: ValueError: x"}, None)] == ["reward_error"]
    (equal,) = before_training({"good": [1.0, 1.0], "bad": [1.0, 1.0]}, {}, None)
    assert (equal.kind, equal.text) == ("no_spread", "every rollout of 2 scripted policies has the reward 1")
    assert [one.kind for one in before_training({"good": [1.0], "bad": [0.0]}, {}, 0.9)] == ["hidden_state"]
