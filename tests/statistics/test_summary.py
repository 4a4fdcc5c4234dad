"""The tally: its counts, its sums by example, and its memory."""

from __future__ import annotations

import math
import statistics
import tracemalloc
from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiers import each_row

from rove.core.errors import ConfigError
from rove.core.records import ErrorInfo, Outcome, Scores, Timing, TrajectoryStep, Usage
from rove.statistics import Column, Price, Tally, clopper_pearson, needed_examples
from rove.statistics.summary import Columns
from tests.runs.test_serialization import make_record


def scored(key: str, right: float, stop: str = "answered", **fields):
    scores = Scores(2 * right, {"correct": right}, {"correct": 2.0}, {"num_turns": 3.0})
    return make_record(example_key=key, scores=scores, stop_condition=stop, usage=Usage(10, 2), **fields)


def failed(phase: str = "model", kind: str = "InfraError"):
    error = ErrorInfo(phase, kind, "gone")
    return make_record(scores=None, error=error, usage=Usage(5, 0), is_truncated=True)


def outcome(key: str, reward: float, **fields) -> Outcome:
    return Outcome(key, 0, 0, "answered", False, Scores(reward, {}, {}), None, **fields)


def tally_of(*records, **options) -> dict:
    tally = Tally(**options)
    for record in records:
        tally.add(record)
    return tally.result().to_dict()


def test_a_tally_counts_failures_apart_from_scores():
    summary = tally_of(
        scored("a", 1.0, timing=Timing(4.0)),
        scored("b", 0.0, "max_turns_reached", timing=Timing(8.0)),
        failed(),
        failed(),
        failed("stop", "KeyError"),
    )
    t, few = 12.706204736174705, "interval may be too narrow: fewer than 30 examples"
    low, high = clopper_pearson(1, 2)
    half = {"mean": 0.5, "low": low, "high": high, "caveat": None}
    always = {**half, "examples": 2, "left_out": 0}
    assert summary == {
        "rollouts": 5,
        "scored": 2,
        "failed": 3,
        "truncated": 3,
        "retries": 0,
        "error_share": 0.6,
        "truncation_share": 0.6,
        "examples": 2,
        "reward": {"mean": 1.0, "low": pytest.approx(1 - t), "high": pytest.approx(1 + t), "caveat": few},
        "functions": {
            "correct": {**half, "weight": 2.0},
            "num_turns": {
                "mean": 3.0,
                "low": pytest.approx(math.nan, nan_ok=True),
                "high": pytest.approx(math.nan, nan_ok=True),
                "caveat": "no interval: all values are equal",
                "weight": 0.0,
            },
        },
        "pass_threshold": 1.0,
        "pass@k": {"1": always},
        "pass^k": {"1": always},
        "stops": {"answered": 1, "max_turns_reached": 1},
        "errors": {"model: InfraError": 2, "stop: KeyError": 1},
        "prompt_tokens": 35,
        "completion_tokens": 4,
        "tokens_per_rollout": {"prompt": 7.0, "completion": 0.8},
        "latency": {"rollout": {"p50": 6.0, "p90": pytest.approx(7.6), "p99": pytest.approx(7.96)}},
        "needed_examples": needed_examples(2 * 2.0),  # rewards 2 and 0: a variance of 2 in each run
        "too_few": "2 scored examples; two runs need about 78,489 each to show a difference of 0.02 (unpaired)",
        "not_run": 0,
    }


def test_the_interval_of_a_reward_does_not_exceed_the_sum_of_the_weights():
    weights = {"correct": 1.0, "short": 0.4}
    rare_errors = [1.0] * 60 + [0.9, 0.8]
    records = [
        make_record(example_key=str(n), scores=Scores(right + 0.4, {"correct": right, "short": 1.0}, weights))
        for n, right in enumerate(rare_errors)
    ]
    reward = tally_of(*records)["reward"]
    assert 1.39 < reward["mean"] < reward["high"] <= 1.4
    assert 0.0 < reward["low"] < reward["mean"]
    signed = [
        make_record(
            example_key=str(n), scores=Scores(right, {"correct": right, "penalty": -0.5}, {**weights, "penalty": 0.0})
        )
        for n, right in enumerate(rare_errors)
    ]
    assert tally_of(*signed)["reward"]["high"] <= 1.4  # a function without a weight does not count
    group = Columns()
    for name in ("f", "g"):  # two environments with different functions
        group.add(name, Scores(0.0, {name: 1.0}, {name: 1.4}))
    assert group.highest_reward == 1.4


@each_row(
    ("values", "weights", "highest"),
    [
        ({"f": 0.5, "g": 1.0}, {"f": 1.0, "g": 0.4}, 1.4),
        ({"f": 0.0, "g": 9.0}, {"f": 1.0, "g": 0.0}, 1.0),
        ({"f": 0.5}, {"f": 1.0, "missing": 2.0}, 1.0),
        ({"f": 1.1}, {"f": 1.0}, None),
        ({"f": -0.1}, {"f": 1.0}, None),
        ({"f": 0.5, "g": 0.5}, {"f": 1.0, "g": -0.1}, None),
    ],
)
def test_the_highest_reward_is_the_sum_of_the_weights_if_all_values_are_shares(
    values: dict[str, float], weights: dict[str, float], highest: float | None
):
    columns = Columns()
    columns.add("a", Scores(0.0, values, weights))
    assert columns.highest_reward == highest


def test_a_tally_of_failures_has_no_reward():
    summary = tally_of(failed())
    assert math.isnan(summary["reward"]["mean"])
    assert summary["functions"] == summary["pass@k"] == summary["pass^k"] == summary["latency"] == {}
    assert (summary["error_share"], summary["examples"], summary["needed_examples"]) == (1.0, 0, None)


def test_an_empty_tally():
    tally = Tally()
    empty = tally.result()
    tally.add(make_record())
    summary = empty.to_dict()
    assert (summary["rollouts"], summary["scored"], summary["failed"], summary["stops"]) == (0, 0, 0, {})
    assert math.isnan(summary["error_share"])
    assert msgspec.json.decode(msgspec.json.encode(summary))["reward"] == {
        "mean": None,
        "low": None,
        "high": None,
        "caveat": "no interval: fewer than 2 examples",
    }


values = st.floats(-100, 100)
rollouts = st.lists(
    st.tuples(
        st.sampled_from("abcd"), values, st.dictionaries(st.sampled_from(["f", "g", "reward"]), values, max_size=3)
    ),
    min_size=1,
    max_size=20,
)


def by_example(pairs):
    """Return the mean over the means of the examples, so that failed rollouts do not change an example's weight."""
    keys = dict.fromkeys(key for key, _ in pairs)
    return statistics.fmean(statistics.fmean([value for k, value in pairs if k == key]) for key in keys)


@given(rollouts)
def test_sums_by_example_give_the_same_means_as_all_pairs(given_rollouts):
    records = [make_record(example_key=key, scores=Scores(r, fs, {})) for key, r, fs in given_rollouts]
    summary = tally_of(*records)
    expected = {"reward": [(key, reward) for key, reward, _ in given_rollouts]}
    assert summary["reward"]["mean"] == pytest.approx(by_example(expected["reward"]), abs=1e-9)
    for name in {name for _, _, functions in given_rollouts for name in functions}:
        pairs = [(key, functions[name]) for key, _, functions in given_rollouts if name in functions]
        assert summary["functions"][name]["mean"] == pytest.approx(by_example(pairs), abs=1e-9)


def test_a_column_keeps_the_range_and_up_to_three_values():
    column = Column()
    for example, value in enumerate([0.3, 0.1 + 0.2, -1.0]):
        column.add(example, value)
    assert (column.levels, column.low, column.high) == ({0.3, -1.0}, -1.0, 0.1 + 0.2)
    for value in range(9):
        column.add(0, float(value))
    assert len(column.levels) == 3
    assert column.high == 8.0


def test_records_and_outcomes_count_the_same():
    steps = [TrajectoryStep([], [], seconds=seconds) for seconds in (0.5, 1.5)]
    records = [scored("a", 1.0, steps=steps, timing=Timing(2.5)), scored("b", 0.0, steps=steps[:1]), failed()]
    assert tally_of(*records) == tally_of(*(record.outcome for record in records))


def test_latency_is_that_of_every_answer_and_of_scored_rollouts():
    error = ErrorInfo("model", "InfraError", "gone")
    slow = msgspec.structs.replace(
        outcome("a", 0.0, timing=Timing(90.0), turn_seconds=[30.0]), scores=None, error=error
    )
    quick = [outcome("a", 1.0, timing=Timing(3.00049), turn_seconds=[1.0, 1.0, 2.0]) for _ in range(49)]
    latency = tally_of(slow, *quick)["latency"]
    assert latency["answer"] == {"p50": 1.0, "p90": 2.0, "p99": 2.0}
    assert latency["rollout"] == {"p50": 3.0, "p90": 3.0, "p99": 3.0}


def test_model_roles_have_calls_tokens_and_a_cost_if_they_have_a_price():
    roles = {"judge": [Usage(10, 2), Usage(5, 1)], "user": [Usage(1, 1)]}
    summary = tally_of(outcome("a", 1.0, model_roles=roles), role_prices={"judge": Price(1.0, 2.0)})
    assert summary["model_roles"] == {
        "judge": {"calls": 2, "prompt_tokens": 15, "completion_tokens": 3, "cost": pytest.approx(21e-6)},
        "user": {"calls": 1, "prompt_tokens": 1, "completion_tokens": 1},
    }


def test_chances_to_pass_over_groups_of_unlike_size():
    groups = {"a": [1, 1, 1, 1, 1, 1], "b": [1, 0, 0, 0, 0, 0], "c": [1, 0, 0]}
    summary = tally_of(*(outcome(key, reward) for key, rewards in groups.items() for reward in rewards), failed())
    any_of, all_of = summary["pass@k"], summary["pass^k"]
    assert list(any_of) == list(all_of) == ["1", "2", "4", "6"]
    assert any_of["1"]["mean"] == pytest.approx((1 + 1 / 6 + 1 / 3) / 3)
    assert any_of["2"]["mean"] == pytest.approx((1 + 1 / 3 + 2 / 3) / 3)
    assert [any_of[k]["left_out"] for k in any_of] == [0, 0, 1, 1]
    assert [any_of[k]["examples"] for k in any_of] == [3, 3, 2, 2]
    assert any_of["4"]["mean"] == pytest.approx((1 + 4 / 6) / 2)
    assert all_of["1"] == any_of["1"]
    assert all_of["4"]["mean"] == all_of["6"]["mean"] == 0.5
    low = clopper_pearson(2, 2)[0]
    assert any_of["6"] == {"mean": 1.0, "low": low, "high": 1.0, "caveat": None, "examples": 2, "left_out": 1}


def test_a_group_of_eight_has_each_k_once():
    summary = tally_of(*(outcome("a", 1.0) for _ in range(8)))
    assert list(summary["pass@k"]) == ["1", "2", "4", "8"]


def test_the_pass_threshold_tolerates_rounding():
    below = 0.7 + 0.2 + 0.1
    assert below < 1.0
    records = [outcome("a", below), outcome("b", 0.5)]
    assert tally_of(*records)["pass@k"]["1"]["mean"] == 0.5
    assert tally_of(*records, pass_threshold=0.5)["pass@k"]["1"]["mean"] == 1.0
    assert tally_of(*records, pass_threshold=1.2)["pass@k"]["1"]["mean"] == 0.0


def test_cost_requires_a_price():
    records = [scored("a", 1.0), scored("b", 0.0), failed()]
    assert "cost" not in tally_of(*records)
    cost = tally_of(*records, price=Price(input=3.0, output=15.0))["cost"]
    assert cost["total"] == pytest.approx(25 * 3e-6 + 4 * 15e-6)
    assert cost["per_rollout"] == pytest.approx(cost["total"] / 3)


@pytest.mark.parametrize("price", [(-1.0, 2.0), (1.0, -2.0), (math.nan, 1.0)])
def test_a_price_must_be_a_number_of_at_least_0(price: tuple[float, float]):
    with pytest.raises(ConfigError, match="put is .*; expected a .*number, 0 or more"):
        Price(*price)


def test_enough_examples_are_not_called_too_few():
    few = tally_of(*(outcome(str(i), 0.5) for i in range(149)))
    enough = tally_of(*(outcome(str(i), 0.5) for i in range(150)))
    assert (
        few["too_few"]
        == "149 scored examples with equal mean rewards; about 150 are needed to notice that 1 in 50 differs"
    )
    assert "too_few" not in enough
    assert tally_of(outcome("a", 1.0))["too_few"] == "1 scored example, at least 2 are needed for an interval"


# Memory

SCORES = [
    Scores(right, {"right": right, "format": 1.0}, {"right": 1.0, "format": 0.2}, {"turns": 3.0})
    for right in (0.0, 1.0)
]


def many(examples: int, times: int) -> Iterator[Outcome]:
    for i in range(examples * times):
        key, seconds = f"{i % examples:016x}", [i / 7, i / 11, i / 13]
        yield Outcome(key, i, 0, "answered", False, SCORES[i % 2], None, Usage(9, 9), Timing(i / 3), None, seconds)


def bytes_of(examples: int, times: int = 1) -> int:
    """Return the peak memory of a tally and its summary."""
    tracemalloc.start()
    try:
        tally = Tally()
        for rollout in many(examples, times):
            tally.add(rollout)
        tally.result().to_dict()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_memory_grows_with_the_examples_and_slowly():
    # 300 bytes an example are 30 MB for 100,000; in addition, there are counts of latencies, at most 900 for each power of ten.
    bytes_of(100)  # what is imported and cached at the first time
    once, twice = bytes_of(10_000), bytes_of(20_000)
    print(f"\n{once} and {twice} bytes")
    assert twice - once < 300 * 10_000
    assert twice < 300 * 20_000 + 1_500_000


@pytest.mark.slow
def test_memory_does_not_grow_with_the_rollouts_of_an_example():
    bytes_of(100)
    assert bytes_of(100, 200) < 1_500_000


def test_equal_values_of_a_metric_have_no_interval():
    """A metric may be a count: one turn in each of 40 rollouts does not show the largest number of turns."""
    for value in (0.0, 1.0):
        scores = Scores(value, {"right": value}, {"right": 1.0}, {"num_turns": value, "won": value})
        records = [make_record(example_key=str(n), scores=scores) for n in range(40)]
        records[0] = msgspec.structs.replace(
            records[0], scores=Scores(value, scores.rewards, scores.weights, {"won": 1 - value})
        )
        functions = tally_of(*records)["functions"]
        assert (functions["num_turns"]["mean"], functions["num_turns"]["caveat"]) == (
            value,
            "no interval: all values are equal",
        )
        assert math.isnan(functions["num_turns"]["low"]) and math.isnan(functions["num_turns"]["high"])
        assert functions["right"]["caveat"] is functions["won"]["caveat"] is None
