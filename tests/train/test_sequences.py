from __future__ import annotations

import pytest
from fakes import make_rollout, tiny_model
from hypothesis import given, settings
from hypothesis import strategies as st

from rove.core.errors import ConfigError
from rove.core.records import StepTokens, TrajectoryStep
from rove.train.sequences import Origin, TrainingSequence, sequences_from_messages, sequences_from_record, total_reward


def test_a_prompt_that_extends_the_previous_turn_continues_its_sequence():
    # The example in the docstring of rove/train/sequences.py.
    record = make_rollout([StepTokens([1, 2], [7, 8], [-0.1, -0.2]), StepTokens([1, 2, 7, 8, 3], [9], [-0.3])])
    assert sequences_from_record(record, 0.5) == [
        TrainingSequence(
            ids=[1, 2, 7, 8, 3, 9],
            mask=[False, False, True, True, False, True],
            logprobs=[0.0, 0.0, -0.1, -0.2, 0.0, -0.3],
            advantages=[0.0, 0.0, 0.5, 0.5, 0.0, 0.5],
            origin=Origin("a", 0, [(0, 2), (1, 1)], [0.0, 0.0]),
        )
    ]


def test_each_turn_keeps_its_own_advantage_in_any_sequence():
    joined = StepTokens([1, 2, 7, 8, 3], [9], [-0.3])
    broken = StepTokens([1, 2, 7, 3], [9], [-0.3])
    for second, expected in (
        (joined, [[0.0, 0.0, 0.5, 0.5, 0.0, -2.0]]),
        (broken, [[0.0, 0.0, 0.5, 0.5], [0.0] * 4 + [-2.0]]),
    ):
        record = make_rollout([StepTokens([1, 2], [7, 8], [-0.1, -0.2]), second])
        assert [sequence.advantages for sequence in sequences_from_record(record, [0.5, -2.0])] == expected
        assert sequences_from_record(record, [0.5]) == sequences_from_record(record, 0.5)
    with pytest.raises(ValueError, match="shorter"):
        sequences_from_record(make_rollout([joined] * 3), [0.5, -2.0])


def test_a_prompt_that_does_not_extend_the_previous_turn_starts_a_sequence():
    record = make_rollout([StepTokens([1, 2], [7, 8], [-0.1, -0.2]), StepTokens([1, 2, 7, 3], [9], [-0.3])])
    first, second = Origin("a", 0, [(0, 2)], [0.0]), Origin("a", 0, [(1, 1)], [0.0])
    assert sequences_from_record(record, -1.0) == [
        TrainingSequence([1, 2, 7, 8], [False, False, True, True], [0, 0, -0.1, -0.2], [0, 0, -1, -1], origin=first),
        TrainingSequence([1, 2, 7, 3, 9], [False] * 4 + [True], [0] * 4 + [-0.3], [0] * 4 + [-1], origin=second),
    ]


def test_a_prompt_equal_to_the_previous_turn_continues_its_sequence():
    record = make_rollout([StepTokens([1], [2], [-0.1]), StepTokens([1, 2], [3], [-0.2])])
    [sequence] = sequences_from_record(record, 1.0)
    assert (sequence.ids, sequence.mask) == ([1, 2, 3], [False, True, True])


def test_interleaved_conversations_give_one_sequence_each():
    agent = StepTokens([1], [2], [-0.1]), StepTokens([1, 2, 3], [4], [-0.2]), StepTokens([1, 2, 3, 4, 5], [6], [-0.3])
    helper = StepTokens([9], [8], [-0.4]), StepTokens([9, 8, 7], [6], [-0.5])
    record = make_rollout([agent[0], helper[0], agent[1], helper[1], agent[2]])
    agent_sequence, helper_sequence = sequences_from_record(record, [1.0, 2.0, 3.0, 4.0, 5.0])
    assert (agent_sequence.ids, agent_sequence.logprobs) == ([1, 2, 3, 4, 5, 6], [0.0, -0.1, 0.0, -0.2, 0.0, -0.3])
    assert agent_sequence.advantages == [0.0, 1.0, 0.0, 3.0, 0.0, 5.0]
    assert (helper_sequence.ids, helper_sequence.advantages) == ([9, 8, 7, 6], [0.0, 2.0, 0.0, 4.0])


def test_two_responses_to_one_prompt_are_each_trained_once():
    record = make_rollout(
        [StepTokens([1], [2], [-0.1]), StepTokens([1, 2, 3], [4], [-0.2]), StepTokens([1, 2, 5], [6], [-0.3])]
    )
    first, second = sequences_from_record(record, 1.0)
    assert (first.mask, second.mask) == ([False, True, False, True], [False, False, False, True])


def test_the_version_of_a_sequence_is_that_of_its_oldest_token():
    turns = [StepTokens([1], [2], [0.0], policy_version=v) for v in (5,)]
    turns += [StepTokens([1, 2, 3], [4], [0.0], policy_version=4), StepTokens([9], [8], [0.0], policy_version=6)]
    assert [s.policy_version for s in sequences_from_record(make_rollout(turns), 1.0)] == [4, 6]


def test_version_spans_record_the_version_of_every_token():
    first = StepTokens([1], [2, 3, 4], [-0.1] * 3, 4, [(4, 1), (5, 2)])
    second = StepTokens([1, 2, 3, 4, 9], [6], [-0.1], 5)
    third = StepTokens([1, 2, 3, 4, 9, 6, 9], [7, 8], [-0.1] * 2, 6, [(6, 1), (8, 1)])
    unrelated = StepTokens([7], [7, 7], [-0.1] * 2, 8)
    joined, separate = sequences_from_record(make_rollout([first, second, third, unrelated]), 1.0)
    assert (joined.policy_version, joined.version_spans) == (4, [(4, 1), (5, 3), (6, 1), (8, 1)])
    assert joined.versions == joined.version_spans
    assert (separate.policy_version, separate.version_spans, separate.versions) == (8, [], [(8, 2)])


def test_sequences_keep_the_temperature_and_greedy_sampling_counts_as_1():
    turns = [StepTokens([1], [2], [0.0])]
    assert [sequences_from_record(make_rollout(turns, temperature=t), 1.0)[0].temperature for t in (1.25, 0.0)] == [
        1.25,
        1.0,
    ]


def test_a_rollout_without_tokens_is_rejected():
    with pytest.raises(ConfigError, match="no token record"):
        sequences_from_record(make_rollout([StepTokens([1], [2], [0.0]), None]), 1.0)


def test_a_rollout_without_turns_gives_no_sequences():
    assert sequences_from_record(make_rollout([]), 1.0) == []


def test_a_turn_continues_the_longest_sequence_that_it_extends():
    main_steps = [
        StepTokens([1, 2], [7], [-0.1]),
        StepTokens([1, 2, 7, 3], [8], [-0.2]),
        StepTokens([1, 2, 7, 3, 8, 4], [9], [-0.3]),
    ]
    other_steps = [StepTokens([5], [6], [-1.0]), StepTokens([1, 2], [6], [-2.0]), StepTokens([5, 6, 0], [7], [-3.0])]
    record = make_rollout([step for pair in zip(main_steps, other_steps, strict=True) for step in pair])
    assert sequences_from_record(record, 1.0) == [
        TrainingSequence(
            [1, 2, 7, 3, 8, 4, 9],
            [False, False, True, False, True, False, True],
            [0, 0, -0.1, 0, -0.2, 0, -0.3],
            [0, 0, 1, 0, 1, 0, 1],
            origin=Origin("a", 0, [(0, 1), (2, 1), (4, 1)], [0.0] * 3),
        ),
        TrainingSequence(
            [5, 6, 0, 7],
            [False, True, False, True],
            [0, -1, 0, -3],
            [0, 1, 0, 1],
            origin=Origin("a", 0, [(1, 1), (5, 1)], [0.0] * 2),
        ),
        TrainingSequence(
            [1, 2, 6], [False, False, True], [0, 0, -2], [0, 0, 1], origin=Origin("a", 0, [(3, 1)], [0.0])
        ),
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
    previous_ids: list[int] = []
    counter = 0
    for kind, added, completion in plan:
        prompt = {"extends": previous_ids, "breaks": [], "shares": previous_ids[: len(previous_ids) // 2]}[kind] + added
        logprobs = [-1.0 - counter - i for i in range(len(completion))]  # unique for every sampled token
        counter += len(completion)
        turns.append(StepTokens(prompt, completion, logprobs))
        previous_ids = turns[-1].ids
    sequences = sequences_from_record(make_rollout(turns), 2.0)
    trained = []
    for sequence in sequences:
        assert len(sequence.ids) == len(sequence.mask) == len(sequence.logprobs) == len(sequence.advantages)
        assert all(
            (a, p != 0) == ((2.0, True) if m else (0.0, False))
            for a, p, m in zip(sequence.advantages, sequence.logprobs, sequence.mask, strict=True)
        )
        trained += [(p, i) for p, i, m in zip(sequence.logprobs, sequence.ids, sequence.mask, strict=True) if m]
    sampled = [(p, i) for t in turns for p, i in zip(t.logprobs, t.completion_ids, strict=True)]
    assert sorted(trained) == sorted(sampled)
    # Every completion directly follows the prompt that it was sampled from.
    for t in turns:
        assert any(
            sequence.ids[: len(t.ids)] == t.ids and all(sequence.mask[len(t.prompt_ids) : len(t.ids)])
            for sequence in sequences
        )


def test_assistant_messages_are_trained_with_advantage_1():
    renderer = tiny_model().renderer
    messages: list[dict[str, object]] = [
        {"role": "user", "content": "no"},
        {"role": "assistant", "content": "yes"},
        {"role": "user", "content": "4"},
    ]
    [sequence] = sequences_from_messages(renderer, messages)
    [(expected_ids, mask)] = renderer.training_branches(messages)
    assert (sequence.ids, sequence.mask) == (expected_ids, mask)
    assert sequence.advantages == [float(m) for m in mask]
    assert sequence.logprobs == [0.0] * len(expected_ids)
    assert renderer.decode([i for i, m in zip(sequence.ids, mask, strict=True) if m]) == "yes<|end|>"


def test_sequences_have_the_rewards_of_their_turns():
    tokens = [StepTokens([1], [2], [-0.1]), StepTokens([9], [8], [-0.4]), StepTokens([1, 2, 3], [4], [-0.2])]
    steps = [TrajectoryStep([], [], tokens=turn) for turn in tokens]
    steps[0]["reward"] = 0.25
    origins = [sequence.origin for sequence in sequences_from_record(make_rollout(reward=1.0, steps=steps))]
    assert origins == [Origin("a", 0, [(0, 1), (2, 1)], [0.25, 1.0]), Origin("a", 0, [(1, 1)], [0.0])]
    failed = sequences_from_record(make_rollout(reward=None, steps=steps))
    assert [sequence.origin.rewards for sequence in failed if sequence.origin] == [[], []]


def test_the_total_reward_includes_the_turns_and_needs_none():
    steps = [TrajectoryStep([], []), TrajectoryStep([], [])]
    steps[0]["reward"] = 0.25
    assert total_reward(make_rollout(reward=1.0, steps=steps)) == 1.25
    assert total_reward(make_rollout(reward=1.0)) == 1.0
    assert total_reward(make_rollout(reward=0.0)) == 0.0
    assert total_reward(make_rollout(reward=0.0, steps=steps)) == 0.25


def test_a_record_without_tokens_is_tokenized_again_as_for_sft():
    renderer = tiny_model().renderer
    prompt, reply = [{"role": "user", "content": "say"}], [{"role": "assistant", "content": "hello"}]
    record = make_rollout(steps=[TrajectoryStep(prompt, reply)], prompt=prompt, completion=reply)
    [expected] = sequences_from_messages(renderer, [*prompt, *reply])
    [sequence] = sequences_from_record(record, renderer=renderer)
    assert sequence == expected
    assert (sequence.origin, set(sequence.logprobs)) == (None, {0.0})
    [halved] = sequences_from_record(record, 0.5, renderer)
    assert halved.advantages == [0.5 * trained for trained in expected.mask]
    with pytest.raises(ConfigError, match="advantages is a list of 1 numbers"):
        sequences_from_record(record, [0.5], renderer)
    exact = make_rollout([StepTokens([1], [2], [-0.1])])
    assert sequences_from_record(exact, 1.0, renderer) == sequences_from_record(exact)
