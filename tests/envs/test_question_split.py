"""Held-out questions: equal questions are on one side, in whatever order the rows are."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiers import each_row

from rove.envs.question_split import question_key, split_by_content


def rows_of(questions: list[str]) -> list[dict[str, Any]]:
    return [{"question": question, "answer": str(index)} for index, question in enumerate(questions)]


@each_row(
    ("first", "second"),
    [
        ({"question": "What is 2 + 2?"}, {"question": " what is\n2+2 "}),
        ({"question": "Café?"}, {"question": "Cafe\u0301?"}),
        ({"question": "２+2?"}, {"question": "2+2\u200b?"}),
        (
            {"question": "Which?\n\nA) red\nB) blue", "choices": ["red", "blue"]},
            {"question": "Which?\n\nA) blue\nB) Red", "choices": ["blue", "Red"]},
        ),
        ({"question": "Hi"}, {"question": "Hi", "answer": "other", "info": {"id": 7}}),
        ({"prompt": [{"role": "user", "content": "Hi"}]}, {"prompt": [{"role": "user", "content": "hi."}]}),
    ],
)
def test_equal_questions_have_one_key(first: dict[str, Any], second: dict[str, Any]):
    assert question_key(first) == question_key(second)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"question": "2 + 2?"}, {"question": "2 - 2?"}),
        (
            {"question": "Which is true?\n\nA) x\nB) y", "choices": ["x", "y"]},
            {"question": "Which is true?\n\nA) x\nB) z", "choices": ["x", "z"]},
        ),
        ({"prompt": [{"role": "user", "content": "Hi"}]}, {"prompt": [{"role": "system", "content": "Hi"}]}),
    ],
)
def test_different_questions_have_different_keys(first: dict[str, Any], second: dict[str, Any]):
    assert question_key(first) != question_key(second)


@given(
    st.lists(st.sampled_from([f"Question {n}?" for n in range(30)]), max_size=60),
    st.floats(0, 0.99),
    st.randoms(use_true_random=False),
)
def test_a_question_is_on_one_side_in_every_order_of_the_rows(
    questions: list[str], fraction: float, order: random.Random
):
    split = split_by_content(rows_of(questions), fraction)
    training = {questions[index] for index in split.training}
    held_out = {questions[index] for index in split.held_out}
    assert sorted(split.training + split.held_out) == list(range(len(questions)))
    assert not training & held_out
    assert split.different == len(set(questions))
    if fraction and split.different > 1:
        assert training and held_out
        assert abs(len(held_out) - fraction * split.different) <= 1
    shuffled = questions[:]
    order.shuffle(shuffled)
    second_split = split_by_content(rows_of(shuffled), fraction)
    assert {shuffled[index] for index in second_split.held_out} == held_out


def test_the_description_counts_repeated_questions():
    split = split_by_content(rows_of([f"{n % 40} + 1?" for n in range(50)]), 0.1)
    assert split.repeated == 10
    assert split.description == (
        f"50 rows with 40 different questions; 10 rows repeat a question. {len(split.training)} rows are for training and "
        f"{len(split.held_out)} are held out; a hash of the question decides, so rows with equal questions are on the same side."
    )
    alone = split_by_content(rows_of(["a", "A"]), 0.5)
    assert (alone.held_out, alone.training) == ([], [0, 1])
    assert alone.description.endswith(
        "All rows are for training and for evaluation because there is only one question."
    )
