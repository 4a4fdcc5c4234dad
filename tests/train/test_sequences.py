from __future__ import annotations

import pytest
from fakes import record_of, tiny_model
from hypothesis import given, settings
from hypothesis import strategies as st

from rove.core.errors import ConfigError
from rove.core.records import StepTokens
from rove.train.sequences import Origin, TrainingSequence, sequences_from_messages, sequences_from_record


def test_a_second_prompt_that_extends_the_first_turn_joins_it():
    # The drawing in samples.py.
    record = record_of([StepTokens([1, 2], [7, 8], [-0.1, -0.2]), StepTokens([1, 2, 7, 8, 3], [9], [-0.3])])
    assert sequences_from_record(record, 0.5) == [
        TrainingSequence(
            ids=[1, 2, 7, 8, 3, 9],
            mask=[False, False, True, True, False, True],
            logprobs=[0.0, 0.0, -0.1, -0.2, 0.0, -0.3],
            advantages=[0.0, 0.0, 0.5, 0.5, 0.0, 0.5],
            origin=Origin("a", 0, [(0, 2), (1, 1)]),
        )
    ]


def test_each_turn_has_its_own_advantage_in_whatever_sample_it_is():
    joined = StepTokens([1, 2, 7, 8, 3], [9], [-0.3])
    broken = StepTokens([1, 2, 7, 3], [9], [-0.3])
    for second, expected in (
        (joined, [[0.0, 0.0, 0.5, 0.5, 0.0, -2.0]]),
        (broken, [[0.0, 0.0, 0.5, 0.5], [0.0] * 4 + [-2.0]]),
    ):
        record = record_of([StepTokens([1, 2], [7, 8], [-0.1, -0.2]), second])
        assert [sample.advantages for sample in sequences_from_record(record, [0.5, -2.0])] == expected
        assert sequences_from_record(record, [0.5]) == sequences_from_record(record, 0.5)
    with pytest.raises(ValueError, match="shorter"):
        sequences_from_record(record_of([joined] * 3), [0.5, -2.0])


def test_a_second_prompt_that_breaks_with_the_first_turn_starts_a_sample():
    record = record_of([StepTokens([1, 2], [7, 8], [-0.1, -0.2]), StepTokens([1, 2, 7, 3], [9], [-0.3])])
    first, second = Origin("a", 0, [(0, 2)]), Origin("a", 0, [(1, 1)])
    assert sequences_from_record(record, -1.0) == [
        TrainingSequence([1, 2, 7, 8], [False, False, True, True], [0, 0, -0.1, -0.2], [0, 0, -1, -1], origin=first),
        TrainingSequence([1, 2, 7, 3, 9], [False] * 4 + [True], [0] * 4 + [-0.3], [0] * 4 + [-1], origin=second),
    ]


def test_a_prompt_that_ends_where_the_last_turn_ended_goes_on():
    record = record_of([StepTokens([1], [2], [-0.1]), StepTokens([1, 2], [3], [-0.2])])
    [sample] = sequences_from_record(record, 1.0)
    assert (sample.ids, sample.mask) == ([1, 2, 3], [False, True, True])


def test_conversations_held_in_turns_are_a_sample_each():
    agent = StepTokens([1], [2], [-0.1]), StepTokens([1, 2, 3], [4], [-0.2]), StepTokens([1, 2, 3, 4, 5], [6], [-0.3])
    helper = StepTokens([9], [8], [-0.4]), StepTokens([9, 8, 7], [6], [-0.5])
    record = record_of([agent[0], helper[0], agent[1], helper[1], agent[2]])
    whole, helped = sequences_from_record(record, [1.0, 2.0, 3.0, 4.0, 5.0])
    assert (whole.ids, whole.logprobs) == ([1, 2, 3, 4, 5, 6], [0.0, -0.1, 0.0, -0.2, 0.0, -0.3])
    assert whole.advantages == [0.0, 1.0, 0.0, 3.0, 0.0, 5.0]
    assert (helped.ids, helped.advantages) == ([9, 8, 7, 6], [0.0, 2.0, 0.0, 4.0])


def test_two_answers_to_one_prompt_are_each_trained_once():
    record = record_of(
        [StepTokens([1], [2], [-0.1]), StepTokens([1, 2, 3], [4], [-0.2]), StepTokens([1, 2, 5], [6], [-0.3])]
    )
    one, other = sequences_from_record(record, 1.0)
    assert (one.mask, other.mask) == ([False, True, False, True], [False, False, False, True])


def test_a_sample_is_as_old_as_its_oldest_token():
    turns = [StepTokens([1], [2], [0.0], policy_version=v) for v in (5,)]
    turns += [StepTokens([1, 2, 3], [4], [0.0], policy_version=4), StepTokens([9], [8], [0.0], policy_version=6)]
    assert [s.policy_version for s in sequences_from_record(record_of(turns), 1.0)] == [4, 6]


def test_every_token_of_a_sample_knows_the_version_that_sampled_it():
    first = StepTokens([1], [2, 3, 4], [-0.1] * 3, 4, [(4, 1), (5, 2)])
    second = StepTokens([1, 2, 3, 4, 9], [6], [-0.1], 5)
    third = StepTokens([1, 2, 3, 4, 9, 6, 9], [7, 8], [-0.1] * 2, 6, [(6, 1), (8, 1)])
    other = StepTokens([7], [7, 7], [-0.1] * 2, 8)
    whole, alone = sequences_from_record(record_of([first, second, third, other]), 1.0)
    assert (whole.policy_version, whole.version_spans) == (4, [(4, 1), (5, 3), (6, 1), (8, 1)])
    assert whole.versions == whole.version_spans
    assert (alone.policy_version, alone.version_spans, alone.versions) == (8, [], [(8, 2)])


def test_the_sampling_temperature_goes_along_and_greedy_counts_as_one():
    turns = [StepTokens([1], [2], [0.0])]
    assert [sequences_from_record(record_of(turns, temperature=t), 1.0)[0].temperature for t in (1.25, 0.0)] == [
        1.25,
        1.0,
    ]


def test_a_rollout_without_tokens_is_refused():
    with pytest.raises(ConfigError, match="no token record"):
        sequences_from_record(record_of([StepTokens([1], [2], [0.0]), None]), 1.0)


def test_a_rollout_without_turns_gives_nothing():
    assert sequences_from_record(record_of([]), 1.0) == []


def test_a_turn_goes_on_with_the_latest_sample_that_it_extends():
    own = [
        StepTokens([1, 2], [7], [-0.1]),
        StepTokens([1, 2, 7, 3], [8], [-0.2]),
        StepTokens([1, 2, 7, 3, 8, 4], [9], [-0.3]),
    ]
    others = [StepTokens([5], [6], [-1.0]), StepTokens([1, 2], [6], [-2.0]), StepTokens([5, 6, 0], [7], [-3.0])]
    record = record_of([step for pair in zip(own, others, strict=True) for step in pair])
    assert sequences_from_record(record, 1.0) == [
        TrainingSequence(
            [1, 2, 7, 3, 8, 4, 9],
            [False, False, True, False, True, False, True],
            [0, 0, -0.1, 0, -0.2, 0, -0.3],
            [0, 0, 1, 0, 1, 0, 1],
            origin=Origin("a", 0, [(0, 1), (2, 1), (4, 1)]),
        ),
        TrainingSequence(
            [5, 6, 0, 7],
            [False, True, False, True],
            [0, -1, 0, -3],
            [0, 1, 0, 1],
            origin=Origin("a", 0, [(1, 1), (5, 1)]),
        ),
        TrainingSequence([1, 2, 6], [False, False, True], [0, 0, -2], [0, 0, 1], origin=Origin("a", 0, [(3, 1)])),
    ]


ids = st.integers(0, 5)
turn = st.tuples(
    st.sampled_from(["extends", "breaks", "shares"]), st.lists(ids, max_size=4), st.lists(ids, min_size=1, max_size=4)
)


@settings(deadline=None, max_examples=300)
@given(st.lists(turn, min_size=1, max_size=6))
def test_each_sampled_token_is_trained_exactly_once_and_never_a_prompt_token(
    plan: list[tuple[str, list[int], list[int]]],
):
    turns: list[StepTokens] = []
    said: list[int] = []
    counter = 0
    for kind, added, completion in plan:
        prompt = {"extends": said, "breaks": [], "shares": said[: len(said) // 2]}[kind] + added
        logprobs = [-1.0 - counter - i for i in range(len(completion))]  # a name for every sampled token
        counter += len(completion)
        turns.append(StepTokens(prompt, completion, logprobs))
        said = turns[-1].ids
    samples = sequences_from_record(record_of(turns), 2.0)
    trained = []
    for sample in samples:
        assert len(sample.ids) == len(sample.mask) == len(sample.logprobs) == len(sample.advantages)
        assert all(
            (a, p != 0) == ((2.0, True) if m else (0.0, False))
            for a, p, m in zip(sample.advantages, sample.logprobs, sample.mask, strict=True)
        )
        trained += [(p, i) for p, i, m in zip(sample.logprobs, sample.ids, sample.mask, strict=True) if m]
    sampled = [(p, i) for t in turns for p, i in zip(t.logprobs, t.completion_ids, strict=True)]
    assert sorted(trained) == sorted(sampled)
    # Every trained token stands right behind the very prompt that it was sampled from.
    for t in turns:
        assert any(
            sample.ids[: len(t.ids)] == t.ids and all(sample.mask[len(t.prompt_ids) : len(t.ids)]) for sample in samples
        )


def test_what_the_assistant_said_is_learnt_with_advantage_one():
    renderer = tiny_model().renderer
    talk: list[dict[str, object]] = [
        {"role": "user", "content": "no"},
        {"role": "assistant", "content": "yes"},
        {"role": "user", "content": "4"},
    ]
    [sample] = sequences_from_messages(renderer, talk)
    [(wanted, mask)] = renderer.training_branches(talk)
    assert (sample.ids, sample.mask) == (wanted, mask)
    assert sample.advantages == [float(m) for m in mask]
    assert sample.logprobs == [0.0] * len(wanted)
    assert renderer.decode([i for i, m in zip(sample.ids, mask, strict=True) if m]) == "yes<|end|>"
