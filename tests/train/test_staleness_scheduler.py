"""Which step trains which group."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from rove.train.async_collect import StalenessScheduler


def test_the_drawing():
    places = StalenessScheduler(groups=2, max_staleness=1, steps=9)
    due = {name: places.start() for name in "abcd"}
    assert set(due.values()) == {1}
    assert not places.may_start()  # a fifth might be trained in step 2 only
    assert [places.finish(due[name]) for name in "cd"] == [0, 0]
    assert places.is_full and not places.may_start()
    places.hand_out()
    places.version = 1
    assert places.may_start()
    due |= {name: places.start() for name in "ef"}
    assert [places.finish(due[name]) for name in "ef"] == [
        2,
        2,
    ]  # the places of step 1 are for a and b, however long they take
    assert not places.is_full
    assert [places.finish(due[name]) for name in "ab"] == [1, 1]


def test_places_are_kept_for_all_that_may_need_them_not_only_for_the_next_step():
    """With one place a step, two that are due by step 2 need steps 1 and 2: a later group may have neither."""
    places = StalenessScheduler(groups=1, max_staleness=2, steps=9)
    a, _, c = (places.start() for _ in range(3))
    assert places.finish(a) == 0
    places.hand_out()
    places.version = 1
    assert places.finish(places.start()) == 3
    assert places.finish(c) == 1


def test_nothing_is_started_that_no_step_trains():
    places = StalenessScheduler(groups=2, max_staleness=5, steps=2)
    for _ in range(4):
        assert places.may_start()
        places.start()
    assert not places.may_start()
    places = StalenessScheduler(groups=1, max_staleness=2, steps=1)
    places.finish(places.start())
    places.hand_out()
    assert not places.may_start()


def test_what_teaches_nothing_needs_no_place_until_there_is_too_much_of_it():
    places = StalenessScheduler(groups=1, max_staleness=2, steps=9, extra=2)
    assert [places.finish(places.start(), needs_place=False) for _ in range(3)] == [0, 0, 0]
    assert places.is_full
    assert places.finish(places.start()) == 1


@settings(max_examples=200, deadline=None)
@given(
    st.integers(0, 10**6),
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(1, 12),
    st.integers(0, 3),
    st.integers(0, 9),
)
def test_every_group_is_trained_in_time_whatever_ends_when(
    seed: int, width: int, most: int, steps: int, spare: int, slow: int
):
    """A world in which something happens at random: a group starts or ends, a step is taken, its training ends."""
    rng = random.Random(seed)
    places = StalenessScheduler(width, most, steps, extra=spare)
    under_way: list[tuple[int, int]] = []  # version, due
    living: Counter[int] = Counter()
    extra: Counter[int] = Counter()
    in_training = False
    while places.version < steps:
        choices = ["end"] * bool(under_way) + ["train"] * (in_training or places.is_full) * (1 + slow)
        choices += ["start"] * places.may_start()
        assert choices, "nobody can go on"
        what = rng.choice(choices)
        if what == "start":
            version = places.version
            under_way.append((version, places.start()))
        elif what == "end":
            version, due = under_way.pop(rng.randrange(len(under_way)))
            lives = rng.random() < 0.7
            step = places.finish(due, lives)
            assert places.first <= step <= min(version + most, steps - 1)
            (living if lives else extra)[step] += 1
        elif in_training:
            in_training, places.version = False, places.version + 1
        elif places.is_full:
            in_training = True
            places.hand_out()
    assert not under_way and not places.may_start()
    for step in range(steps):
        beside = min(extra[step], spare)
        assert living[step] + extra[step] - beside == width
