"""Comparison of two runs: what counts, what is reported, and how often a report is wrong."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiers import first_quick

import rove
from rove.core.errors import ConfigError
from rove.core.records import ErrorInfo, Outcome, Scores
from rove.envs.question_files import SUFFIXES
from rove.statistics import Comparison, Tally, compare
from rove.statistics.compare import QUESTION_FILES, sign_flip_test
from rove.statistics.intervals import widened_t
from tests.runs.test_serialization import make_record

WEIGHTS = {"win": 1.0, "format": 0.2, "cost": -0.1}


def outcome(key: str, reward: float, index: int = 0, weights: dict[str, float] = WEIGHTS, **values: float) -> Outcome:
    rewards = {name: value for name, value in values.items() if name in weights}
    metrics = {name: value for name, value in values.items() if name not in weights}
    scores = Scores(reward, rewards, {name: weights[name] for name in rewards}, metrics)
    return Outcome(key, int(key), index, "answered", False, scores, None)


def run(rewards: Iterable[float | Sequence[float]], start: int = 0) -> list[Outcome]:
    """Return the outcomes of examples numbered from `start`, with one or several rollouts each."""
    groups = (reward if isinstance(reward, Sequence) else [reward] for reward in rewards)
    return [outcome(str(key), r, i) for key, group in enumerate(groups, start) for i, r in enumerate(group)]


def failed(key: str) -> Outcome:
    return Outcome(key, 0, 0, None, False, None, ErrorInfo("model", "InfraError", "gone"))


def test_the_paired_difference_computed_by_hand():
    a = run([[0.0, 1.0], [0.0, 0.0], 1.0, 0.5])
    b = run([[1.0, 1.0], [1.0, 0.0, 0.5], 1.0, 0.25])
    comparison = compare(a, b)
    gaps = [0.5, 0.5, 0.0, -0.25]
    expected = widened_t(gaps)
    assert (comparison.main.a, comparison.main.b, comparison.main.difference) == (0.5, 0.6875, 0.1875)
    assert (comparison.main.low, comparison.main.high) == pytest.approx((expected.low, expected.high))
    assert comparison.main.caveat == "interval may be too narrow: fewer than 10 examples"
    assert (comparison.wins, comparison.ties, comparison.losses) == (2, 1, 1)
    assert (comparison.paired, comparison.main.examples, comparison.only_a, comparison.only_b) == (True, 4, 0, 0)
    assert comparison.main.direction == 0


@pytest.mark.parametrize("start", [0, 100])
def test_rewards_near_the_largest_float_have_no_interval(start: int):
    huge = run([1e308, -1e308, 1.5e308, 0.0] * 10)
    comparison = compare(huge, run([1e308] * 40, start))
    assert math.isnan(comparison.main.low) and comparison.main.direction == 0
    assert comparison.main.caveat == "no interval: a value exceeds 1e+100"
    tally = Tally()
    for rollout in huge:
        tally.add(rollout)
    assert tally.result().to_dict()


def test_only_examples_scored_in_both_runs_count():
    a = [*run([0.0] * 30), failed("30"), outcome("50", 1.0)]
    b = [*run([1.0, 0.9] * 15), outcome("30", 0.0), failed("31"), outcome("60", 0.0), outcome("61", 0.0)]
    comparison = compare(a, b)
    assert (comparison.main.examples, comparison.only_a, comparison.only_b) == (30, 1, 3)
    assert comparison.main.difference == pytest.approx(0.95)
    assert comparison.verdict == "B is better than A: reward +0.950 [+0.931, +0.969] on 30 shared examples"
    assert comparison.notes == ["excluded because the other run did not score them: 1 of A, 3 of B"]


def test_records_compare_as_their_outcomes_do():
    records = [make_record(example_key=str(i), scores=Scores(i / 10, {}, {})) for i in range(10)]
    better = [make_record(example_key=str(i), scores=Scores(i / 5, {}, {})) for i in range(10)]
    assert compare(records, better) == compare((r.outcome for r in records), (r.outcome for r in better))


rewards = st.lists(st.lists(st.floats(-2, 2), min_size=1, max_size=3), min_size=1, max_size=8)


@given(rewards, rewards, st.randoms(use_true_random=False))
def test_swapping_the_runs_negates_the_difference(a, b, rng):
    there, back = compare(run(a), run(b)), compare(run(b), run(a))
    assert there.main.difference == pytest.approx(-back.main.difference)
    assert (there.main.low, there.main.high) == pytest.approx((-back.main.high, -back.main.low), nan_ok=True)
    assert (there.main.direction, there.wins, there.ties) == (-back.main.direction, back.losses, back.ties)
    assert [mover.example_key for mover in there.up] == [mover.example_key for mover in back.down]
    shuffled = compare(rng.sample(run(a), len(run(a))), rng.sample(run(b), len(run(b))))
    assert shuffled.main.difference == pytest.approx(there.main.difference, abs=1e-9)


@given(rewards)
def test_a_run_is_as_good_as_itself(a):
    comparison = compare(run(a), run(a))
    assert (comparison.main.difference, comparison.main.direction, comparison.wins, comparison.losses) == (0.0, 0, 0, 0)
    assert comparison.up == comparison.down == []


def test_ties_are_as_wide_as_rounding():
    comparison = compare(run([0.3, 0.3, 0.3]), run([0.1 + 0.2, 0.3 + 1e-8, 0.3 - 1e-8]))
    assert (comparison.wins, comparison.ties, comparison.losses) == (1, 1, 1)


def test_rounding_is_no_difference():
    comparison = compare(run([0.3] * 50), run([0.1 + 0.2] * 50))
    assert comparison.main.direction == 0
    assert comparison.needed_examples == 150


def test_a_handful_that_agrees_is_not_enough():
    few, enough = (compare(run([0.0] * n), run([1.0] * n)) for n in (5, 6))
    assert (few.main.direction, enough.main.direction) == (0, 1)
    assert few.verdict == (
        "too few examples to determine a direction: reward +1.000 [+0.000, +1.000] on 5 shared examples; "
        "at least 6 examples must differ"
    )


def test_graded_differences_state_a_direction_from_6_examples_on():
    gaps = [0.1, 0.2, 0.15, 0.3, 0.25, 0.1, 0.2, 0.2, 0.15, 0.3]
    few, enough = (compare(run([0.5] * n), run([0.5 + gap for gap in gaps[:n]])) for n in (5, 10))
    assert (few.main.low, few.main.direction) == (0.0, 0)
    assert few.verdict.endswith("on 5 shared examples; at least 6 examples must differ")
    assert enough.verdict.startswith("B is better than A: reward +0.195 [+0.14")


def test_skewed_differences_have_a_wider_interval_on_their_side():
    gaps = [0.1, 0.12] * 49 + [3.0, 2.0]
    main = compare(run([0.0] * 100), run(gaps)).main
    assert main.direction == 1  # all 100 examples are higher
    assert main.high - main.difference > 2 * (main.difference - main.low) > 0.0


def test_one_shared_example_decides_nothing():
    comparison = compare(run([0.0]), run([1.0]))
    assert math.isnan(comparison.main.low)
    assert comparison.needed_examples is None
    assert comparison.verdict == (
        "too few examples: reward +1.000 on 1 shared example; an interval needs at least 2 examples"
    )


def test_verdicts_state_how_many_more_examples_are_needed_or_that_they_suffice():
    noise = [(-1) ** i * 0.5 for i in range(100)]
    comparison = compare(run([0.0] * 100), run(noise))
    missing = comparison.needed_examples - 100
    assert comparison.needed_examples == pytest.approx(7.849 * 0.25 / 0.0004, rel=0.02)
    assert comparison.verdict.endswith(
        f"; about {missing:,} more examples would be needed to detect a difference of 0.02"
    )
    quiet = compare(run([0.0] * 100), run([x / 100 for x in noise]))
    assert quiet.verdict.endswith("; a difference of 0.02 would probably have been detected")
    same = compare(run([0.0] * 200), run([0.0] * 200))
    assert same.verdict == (
        "no detectable difference: reward +0.000 [-0.014, +0.014] on 200 shared examples; "
        "a difference of 0.02 would probably have been detected"
    )


# Unpaired


def test_without_common_examples_the_difference_is_unpaired_and_says_so():
    rng = np.random.default_rng(2)
    a, b = rng.normal(0.0, 1.0, 20), rng.normal(2.0, 3.0, 12)
    comparison = compare(run(a.tolist()), run(b.tolist(), start=100))
    difference = b.mean() - a.mean()
    sides = [widened_t(side.tolist()) for side in (a, b)]
    low = difference - math.hypot(b.mean() - sides[1].low, sides[0].high - a.mean())
    high = difference + math.hypot(sides[1].high - b.mean(), a.mean() - sides[0].low)
    assert comparison.main.difference == pytest.approx(difference)
    assert (comparison.main.low, comparison.main.high) == pytest.approx((low, high))
    assert (comparison.paired, comparison.main.examples, comparison.only_a, comparison.only_b) == (False, 0, 20, 12)
    assert (comparison.wins, comparison.ties, comparison.losses, comparison.up, comparison.down) == (0, 0, 0, [], [])
    assert "between 20 and 12 different examples" in comparison.verdict
    assert comparison.notes == ["the runs share no examples: a difference between different examples is less certain"]


def test_a_constant_run_is_compared_with_other_examples():
    """0.8 each time, against 0/1 rewards: the observed values show the range of both runs."""
    main = compare(run([0.8] * 40), run([1.0] * 32 + [0.0] * 8, start=100)).main
    assert main.low < -0.1 < main.difference < 0.1 < main.high
    assert main.direction == 0


def test_unpaired_needs_four_examples_each():
    few, enough = (compare(run([0.0] * n), run([1.0] * n, start=50)) for n in (3, 4))
    assert (few.main.direction, enough.main.direction) == (0, 1)
    assert few.verdict.startswith("no detectable difference: reward +1.000 [-0.001, +1.000] between 3 and 3")
    comparison = compare(run([0.0]), run([1.0, 2.0], start=50))
    assert math.isnan(comparison.main.low)
    assert comparison.verdict.endswith("an interval needs at least 2 examples")


# Other values


def with_values(shift: float) -> list[Outcome]:
    rng = random.Random(1)
    return [
        outcome(str(i), rng.random(), win=rng.random(), cost=i + shift, turns=i + shift, format=1.0) for i in range(30)
    ]


def test_every_value_of_both_is_compared_the_reward_first_then_by_weight():
    comparison = compare(with_values(0.0), with_values(0.5))
    assert [row.name for row in comparison.others] == ["win", "format", "cost", "turns"]
    assert [row.weight for row in comparison.others] == [1.0, 0.2, -0.1, 0.0]
    assert [row.direction for row in comparison.others] == [0, 0, 1, 1]
    other_comparison = compare(with_values(0.0), with_values(0.5), "turns")
    assert [row.name for row in other_comparison.others] == ["reward", "win", "format", "cost"]
    assert other_comparison.main == comparison.others[-1]


def test_only_values_of_the_reward_are_called_better_or_worse():
    a, b = with_values(0.0), with_values(0.5)
    assert compare(a, b, "cost").verdict.startswith("B is worse than A: cost +0.500")
    assert compare(b, a, "cost").verdict.startswith("B is better than A: cost -0.500")
    assert compare(a, b, "turns").verdict.startswith("B is higher than A: turns +0.500")
    assert compare(b, a, "turns", names=("new", "old")).verdict.startswith("old is lower than new: turns -0.500")


def test_a_value_that_some_rollouts_lack_is_compared_on_the_others():
    a = [outcome(str(i), 0.0, **({"turns": 1.0} if i < 4 else {})) for i in range(10)]
    b = [outcome(str(i), 0.0, **({"turns": 2.0} if i > 1 else {})) for i in range(10)]
    comparison = compare(a, b, "turns")
    assert (comparison.main.examples, comparison.only_a, comparison.only_b) == (2, 2, 6)
    assert comparison.others[0].examples == 10


def test_differing_weights_and_functions_are_noted():
    a = [outcome(str(i), 1.0, win=1.0, format=1.0, old=1.0) for i in range(3)]
    b = [outcome(str(i), 1.0, weights={"win": 0.5}, win=1.0, format=1.0, new=1.0) for i in range(3)]
    assert compare(a, b).notes == [
        "reward weights differ (format 0.2 → 0, win 1 → 0.5): the rewards are not comparable",
        "only A has old",
        "only B has new",
    ]


# Movers


def test_a_name_in_a_table_is_broken_only_at_the_end_of_its_column():
    rollouts = [outcome(str(n), 1.0, right_answer=1.0) for n in range(6)]
    assert "│ right_answer " in str(compare(rollouts, rollouts, names=("the old run", "the new run")).table)


def test_movers_are_the_largest_changes_in_each_direction():
    gaps = [i / 100 for i in range(-15, 16)]
    comparison = compare(run([0.5] * 31), run([0.5 + gap for gap in gaps]))
    assert [mover.b - mover.a for mover in comparison.up] == pytest.approx([i / 100 for i in range(15, 5, -1)])
    assert [mover.b - mover.a for mover in comparison.down] == pytest.approx([i / 100 for i in range(-15, -5)])
    assert (comparison.up[0].example_key, comparison.up[0].example_id) == ("30", 30)
    assert [len(group) for group in (compare(run([0.5] * 3), run([0.5, 0.6, 0.5])).up, comparison.down)] == [1, 10]


# What is refused


def test_runs_and_values_that_cannot_be_compared_are_refused():
    a = with_values(0.0)
    with pytest.raises(ConfigError, match="B has no scored rollout; a comparison needs at least one in each run"):
        compare(a, [failed("1")])
    with pytest.raises(ConfigError, match="mine has no scored rollout"):
        compare([], a, names=("mine", "yours"))
    with pytest.raises(ConfigError, match="A has no value 'turnz'; did you mean 'turns'?"):
        compare(a, a, "turnz")
    with pytest.raises(ConfigError, match="B has no value 'turns'"):
        compare(a, run([0.0] * 20), "turns")


def test_a_comparison_survives_json():
    comparison = compare(run([0.0]), run([1.0]))
    plain = msgspec.json.decode(msgspec.json.encode(comparison))
    assert plain["main"]["low"] is plain["main"]["high"] is None
    assert set(plain) == set(Comparison.__struct_fields__)


# Simulations


@pytest.mark.broad
def test_equal_runs_are_called_different_in_5_of_100_cases():
    rng, wrong, cases = np.random.default_rng(3), 0, 500
    for _ in range(cases):
        example = rng.beta(0.5, 0.5, 40)
        a, b = ((rng.binomial(4, example) / 4).tolist() for _ in range(2))
        wrong += compare(run(a), run(b)).main.direction != 0
    print(f"\n{wrong / cases:.3f}")
    assert wrong / cases <= 0.075


def test_few_binary_examples_are_not_called_different_by_chance():
    rng, wrong, cases = np.random.default_rng(4), 0, 500
    for _ in range(cases):
        a, b = (rng.binomial(1, 0.5, 8).astype(float).tolist() for _ in range(2))
        wrong += compare(run(a), run(b)).main.direction != 0
    assert wrong / cases <= 0.05


def test_pairing_finds_what_different_examples_hide():
    rng, detected, cases = np.random.default_rng(5), [0, 0], 100
    for _ in range(cases):
        example = rng.uniform(0.0, 1.0, 80)
        a = (example + rng.normal(0.0, 0.1, 80)).tolist()
        b = (example + 0.05 + rng.normal(0.0, 0.1, 80)).tolist()
        detected[0] += compare(run(a), run(b)).main.direction == 1
        detected[1] += compare(run(a), run(b, start=100)).main.direction == 1
    assert detected[0] > 0.75 * cases
    assert detected[1] < 0.4 * cases


# One method: the verdict follows from the printed interval


def many(differences: Sequence[float], rollouts: int) -> tuple[list[Outcome], list[Outcome]]:
    """Return two runs of 0/1 rewards with an example per difference; differences are multiples of 1/rollouts."""
    a = [[0.0] * rollouts if gap >= 0 else [1.0] * rollouts for gap in differences]
    shares = [gap if gap >= 0 else 1.0 + gap for gap in differences]
    ones = [round(share * rollouts) for share in shares]
    return run(a), run([[1.0] * count + [0.0] * (rollouts - count) for count in ones])


def test_many_rollouts_of_few_changed_examples_are_a_clear_result():
    higher = [2 / 16] * 16 + [11 / 16] * 6
    comparison = compare(*many([*higher, *[-3 / 16] * 3, *[0.0] * 75], 16))
    assert (comparison.wins, comparison.losses, comparison.ties) == (22, 3, 75)
    assert comparison.verdict == "B is better than A: reward +0.056 [+0.022, +0.124] on 100 shared examples"


@pytest.mark.parametrize("rollouts", first_quick([1, 4, 16], broad=0))
def test_more_rollouts_and_more_examples_decide_what_fewer_decided(rollouts: int):
    rng = np.random.default_rng(6)

    def decided(examples: int, each: int) -> int:
        total = 0
        for _ in range(25):
            chance = rng.beta(0.3, 0.3, examples)
            better = np.clip(chance + 0.7 * (rng.random(examples) < 0.3), 0.0, 1.0)
            a, b = ([(rng.random((each,)) < p).astype(float).tolist() for p in side] for side in (chance, better))
            total += compare(run(a), run(b)).main.direction == 1
        return total

    few_decided, many_decided = decided(40, rollouts), decided(160, rollouts)
    assert few_decided <= many_decided + 3
    assert many_decided >= 15
    assert decided(160, 4 * rollouts) >= many_decided - 3


gaps = st.lists(st.sampled_from([-1.0, -0.5, -0.25, 0.0, 0.0, 0.0, 0.25, 0.5, 1.0]), min_size=2, max_size=40)


@given(gaps, st.floats(-1, 1))
def test_a_direction_is_reported_if_and_only_if_the_interval_excludes_zero(differences, shift):
    for values in (differences, [gap + shift for gap in differences]):
        comparison = compare(run([0.0] * len(values)), run(values))
        excludes = comparison.main.low > 1e-9 or comparison.main.high < -1e-9
        assert (comparison.main.direction != 0) == excludes
        assert comparison.verdict.startswith(("B is better", "B is worse")) == excludes
        assert (
            math.isnan(comparison.main.low)
            or comparison.main.low - 1e-9 <= comparison.main.difference <= comparison.main.high + 1e-9
        )


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=2, max_size=12))
def test_the_interval_of_shares_stays_between_minus_1_and_1(counts):
    sides = [run([[1.0] * pair[side] + [0.0] * (4 - pair[side]) for pair in counts]) for side in (0, 1)]
    main = compare(*sides).main
    assert -1.0 <= main.low <= main.high <= 1.0


def test_signs_that_could_be_chance_decide_nothing():
    """Exact p-values, computed by hand."""
    assert sign_flip_test([1.0, 2.0, 4.0, 0.0]) == 2 / 8
    assert sign_flip_test([1.0, 2.0, -4.0]) == 1.0  # every choice of signs is at least as far from 0 as -1
    assert sign_flip_test([0.25] * 6 + [0.0] * 50) == pytest.approx(2 / 64)
    assert sign_flip_test([0.1, 0.2, 0.3, 0.4, 0.5]) == 2 / 32
    assert sign_flip_test([0.0, 0.0]) == 1.0


def test_equal_differences_decide_where_the_range_of_values_is_known():
    """The unseen value may have a probability of 1 − 0.025^(1/n)."""
    comparison = compare(run([[0.0, 0.0]] * 20), run([[1.0, 0.0]] * 20))
    unseen = 1 - 0.025 ** (1 / 20)
    assert (comparison.main.low, comparison.main.high) == pytest.approx((0.5 - 1.5 * unseen, 0.5 + 0.5 * unseen))
    assert comparison.main.direction == 1
    unknown = compare(run([0.3] * 10), run([0.4] * 10))
    assert math.isnan(unknown.main.low) and unknown.main.direction == 0


def test_a_verdict_says_why_few_differing_examples_decide_nothing():
    verdict = compare(run([0.0] * 30), run([1.0] * 5 + [0.0] * 25)).verdict
    assert verdict.startswith("too few examples to determine a direction") and "None" not in verdict


def test_run_folders_are_compared_by_their_names_and_printed_as_text(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    env = rove.SingleTurnEnv(
        dataset=[{"question": str(n), "answer": str(n)} for n in range(12)],
        rubric=rove.Rubric([lambda completion, answer: float(completion[-1]["content"] == answer)]),
    )
    for name, reply in (("before", "0"), ("after", None)):
        client = rove.ScriptedClient(lambda messages, state, rng, reply=reply: reply or state["answer"])
        env.evaluate_sync(client, name, run=f"runs/{name}")
    comparison = rove.compare("runs/before", rove.Run("runs/after"))
    assert comparison.names == ("before", "after")
    text = str(comparison)
    assert text.startswith("after is better than before") and "│ reward" in text
    assert max(map(len, text.splitlines())) <= 100 or "is better" in text.splitlines()[0]
    with pytest.raises(rove.RunError, match="nowhere"):
        rove.compare("runs/nowhere", "runs/after")


def test_runs_of_different_environments_are_not_compared(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = {"num_examples": 2, "rollouts_per_example": 1, "reporter": rove.SilentReporter()}
    first = rove.evaluate_model("scripted:teacher", "tictactoe", run_dir="runs/a", **settings)
    second = rove.evaluate_model("scripted:copycat", "reverse_text", run_dir="runs/b", **settings)
    with pytest.raises(ConfigError, match="different environments, 'tictactoe' and 'reverse_text'"):
        rove.compare(first, second)
    assert rove.compare(first, first).ties == 2

    assert rove.compare(first, second, any_environment=True).main.examples == 0


def test_runs_are_compared_under_the_same_rules_as_by_the_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    records = [make_record(example_key=f"key{i}", scores=Scores(1.0, {}, {})) for i in range(3)]
    for name, env, keys in (("a", "quiz#1", records), ("b", "nim#1", records), ("c", "quiz#2", records[:0])):
        with rove.Run(name) as folder:
            folder.start("eval", {}, {"env": env})
            for record in keys or [make_record(example_key="other", scores=Scores(1.0, {}, {}))]:
                folder.append_rollout(record)
    with pytest.raises(ConfigError, match="different environments, 'quiz' and 'nim'.*any_environment=True"):
        rove.compare("a", "b")
    assert rove.compare("a", "b", any_environment=True).ties == 3
    with pytest.raises(ConfigError, match="share no examples, and these settings of the environment differ: env"):
        rove.compare("a", "c")


def test_files_of_questions_have_the_suffixes_that_environments_read():
    assert QUESTION_FILES == SUFFIXES


def test_equal_metrics_have_no_interval_of_their_difference():
    sides = [[outcome(str(i), 1.0, win=1.0, turns=1.0, ended=float(side)) for i in range(20)] for side in (0, 1)]
    for b in (sides[1], [msgspec.structs.replace(rollout, example_key=f"b{i}") for i, rollout in enumerate(sides[1])]):
        differences = {difference.name: difference for difference in compare(sides[0], b).others}
        assert differences["turns"].caveat == "no interval: all values are equal"
        assert math.isnan(differences["turns"].low)
        assert differences["win"].low < 0.0 < differences["win"].high
        assert 0.5 < differences["ended"].low < differences["ended"].high <= 1.0


async def test_synchronous_methods_work_while_an_event_loop_runs():
    env = rove.SingleTurnEnv(dataset=[{"question": "1", "answer": "1"}], rubric=rove.Rubric([lambda answer: 1.0]))
    client = rove.ScriptedClient(lambda messages, state, rng: "1")
    assert env.evaluate_sync(client).reward.mean == 1.0
    assert env.generate_sync(client)[0].reward == 1.0
