"""The staleness scheduler assigns groups to training steps."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from rove.train.async_collect import StalenessScheduler


def test_late_groups_keep_their_places_in_a_step():
    scheduler = StalenessScheduler(groups=2, max_staleness=1, steps=9)
    due = {name: scheduler.start() for name in "abcd"}
    assert set(due.values()) == {1}
    assert not scheduler.may_start()  # a fifth group might not be trained before step 2
    assert [scheduler.finish(due[name]) for name in "cd"] == [0, 0]
    assert scheduler.is_full and not scheduler.may_start()
    scheduler.hand_out()
    scheduler.version = 1
    assert scheduler.may_start()
    due |= {name: scheduler.start() for name in "ef"}
    assert [scheduler.finish(due[name]) for name in "ef"] == [
        2,
        2,
    ]  # the places of step 1 are reserved for a and b
    assert not scheduler.is_full
    assert [scheduler.finish(due[name]) for name in "ab"] == [1, 1]


def test_places_are_reserved_for_all_running_groups_in_all_steps():
    """With one place per step, two groups due by step 2 need steps 1 and 2, so a later group gets neither."""
    scheduler = StalenessScheduler(groups=1, max_staleness=2, steps=9)
    a, _, c = (scheduler.start() for _ in range(3))
    assert scheduler.finish(a) == 0
    scheduler.hand_out()
    scheduler.version = 1
    assert scheduler.finish(scheduler.start()) == 3
    assert scheduler.finish(c) == 1


def test_no_group_is_started_that_no_step_can_train():
    scheduler = StalenessScheduler(groups=2, max_staleness=5, steps=2)
    for _ in range(4):
        assert scheduler.may_start()
        scheduler.start()
    assert not scheduler.may_start()
    scheduler = StalenessScheduler(groups=1, max_staleness=2, steps=1)
    scheduler.finish(scheduler.start())
    scheduler.hand_out()
    assert not scheduler.may_start()


def test_zero_advantage_groups_need_no_place_up_to_the_extra_limit():
    scheduler = StalenessScheduler(groups=1, max_staleness=2, steps=9, extra=2)
    assert [scheduler.finish(scheduler.start(), needs_place=False) for _ in range(3)] == [0, 0, 0]
    assert scheduler.is_full
    assert scheduler.finish(scheduler.start()) == 1


@settings(max_examples=200, deadline=None)
@given(
    st.integers(0, 10**6),
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(1, 12),
    st.integers(0, 3),
    st.integers(0, 9),
)
def test_every_group_is_trained_in_time_in_any_order_of_events(
    seed: int, width: int, most: int, steps: int, spare: int, slow: int
):
    """Simulate random events: a group starts or ends, a step is taken, its training ends."""
    rng = random.Random(seed)
    scheduler = StalenessScheduler(width, most, steps, extra=spare)
    running: list[tuple[int, int]] = []  # version, due
    trained: Counter[int] = Counter()
    extra: Counter[int] = Counter()
    in_training = False
    while scheduler.version < steps:
        choices = ["end"] * bool(running) + ["train"] * (in_training or scheduler.is_full) * (1 + slow)
        choices += ["start"] * scheduler.may_start()
        assert choices, "nobody can go on"
        event = rng.choice(choices)
        if event == "start":
            version = scheduler.version
            running.append((version, scheduler.start()))
        elif event == "end":
            version, due = running.pop(rng.randrange(len(running)))
            needs_place = rng.random() < 0.7
            step = scheduler.finish(due, needs_place)
            assert scheduler.first <= step <= min(version + most, steps - 1)
            (trained if needs_place else extra)[step] += 1
        elif in_training:
            in_training, scheduler.version = False, scheduler.version + 1
        elif scheduler.is_full:
            in_training = True
            scheduler.hand_out()
    assert not running and not scheduler.may_start()
    for step in range(steps):
        extra_groups = min(extra[step], spare)
        assert trained[step] + extra[step] - extra_groups == width
