"""The scheduler alone: a model that computes nothing, only takes note of what it was asked to compute."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rove.engine.kv_cache import CacheShape, KVCache
from rove.engine.scheduler import Scheduler, SequenceState, Step

SHAPE = CacheShape(layers=1, kv_heads=1, head_size=1, dtype=torch.float32, device=torch.device("cpu"))


def new_scheduler(rows: int = 8, max_batch: int = 8, chunk: int = 16) -> Scheduler:
    return Scheduler(KVCache(SHAPE, rows * 64 * SHAPE.position_bytes, 99), max_batch, chunk)


def row(number: int, prompt: list[int], max_tokens: int = 4) -> SequenceState:
    return SequenceState(number, list(prompt), max_tokens)


def compute(step: Step) -> None:
    """Write every computed token where its keys go; what a sequence needs must be there already."""
    for one, start, count in [*((r, len(r.tokens) - 1, 1) for r in step.decode), *step.chunks]:
        assert one.slot is not None
        keys = one.slot.pool.keys[0][one.slot.index, 0, 0, 0]
        assert keys[:start].tolist() == one.tokens[:start]
        keys[start : start + count] = torch.tensor(one.tokens[start : start + count], dtype=torch.float32)


def take_step(scheduler: Scheduler) -> tuple[Step, list[SequenceState]]:
    """Plan, compute, sample token 1 for all that are due, and finish those who have all of theirs."""
    step = scheduler.plan()
    compute(step)
    ready = scheduler.complete(step)
    ended = [one for one in ready if one.remaining_tokens == 1]
    for one in ready:
        if one not in ended:
            one.tokens.append(1)
    scheduler.finish(ended)
    return step, ended


def test_first_come_first_served_and_a_long_prompt_is_read_beside_those_who_run():
    scheduler = new_scheduler(max_batch=2)
    a, b, c = row(0, [1]), row(1, list(range(40))), row(2, [3])
    for one in (a, b, c):
        scheduler.submit(one)
    steps = [take_step(scheduler)[0] for _ in range(3)]
    assert [[one.arrival for one in step.decode] for step in steps] == [[0], [0], [0]]
    assert [[(chunk.seq.arrival, chunk.start, chunk.size) for chunk in step.chunks] for step in steps] == [
        [(1, 0, 15)],
        [(1, 15, 15)],
        [(1, 30, 10)],
    ]
    assert scheduler.waiting == [c]
    take_step(scheduler)  # a ends
    assert take_step(scheduler)[0].decode == [b, c]


def test_equal_prompts_wait_for_the_first_and_then_need_one_token():
    scheduler = new_scheduler(chunk=64)
    prompt = list(range(40))
    every = [row(i, prompt) for i in range(3)]
    for one in every:
        scheduler.submit(one)
    first, _ = take_step(scheduler)
    assert [(chunk.seq, chunk.size) for chunk in first.chunks] == [(every[0], 40)]
    second, _ = take_step(scheduler)
    assert second.decode == every and not second.chunks


def test_a_next_turn_takes_over_what_its_last_one_left():
    scheduler = new_scheduler(chunk=64)
    one = row(0, list(range(20)), max_tokens=3)
    scheduler.submit(one)
    while scheduler.running or scheduler.waiting:
        take_step(scheduler)
    turn = row(1, [*one.tokens, 1, 7, 8])
    scheduler.submit(turn)
    step, _ = take_step(scheduler)
    assert [(chunk.start, chunk.size) for chunk in step.chunks] == [(22, 3)]
    assert not scheduler.cache.reusable


def test_next_turns_of_more_conversations_than_rows_are_not_all_computed_again():
    scheduler = new_scheduler(rows=6, max_batch=4, chunk=64)
    prompts = [[number, *range(30)] for number in range(8)]
    prefilled = 0
    for turn in range(3):
        turns = [row(8 * turn + number, prompt, 2) for number, prompt in enumerate(prompts)]
        for one in turns:
            scheduler.submit(one)
        while scheduler.waiting or scheduler.running:
            step, _ = take_step(scheduler)
            prefilled += sum(chunk.size for chunk in step.chunks)
        prompts = [[*one.tokens, 2, 2] for one in turns]
    every_prompt = sum(31 + turn * 3 for turn in range(3)) * 8
    assert prefilled < every_prompt * 0.7


def test_the_last_to_come_gives_way_when_memory_runs_out():
    scheduler = new_scheduler(rows=4)
    rows = [row(i, [i] * 60, max_tokens=100) for i in range(3)]
    for one in rows:
        scheduler.submit(one)
    ended: list[SequenceState] = []
    least = 3
    while scheduler.running or scheduler.waiting:
        ended += take_step(scheduler)[1]
        least = min(least, len(scheduler.running)) if not ended else least
    assert least < 3
    assert ended[0] is rows[0] and set(ended) == set(rows)


requests = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 70), st.integers(1, 90), st.booleans(), st.booleans()),
    min_size=1,
    max_size=12,
)


@settings(deadline=None, max_examples=60)
@given(requests, st.integers(4, 10), st.integers(1, 5), st.sampled_from([1, 7, 64]))
def test_everybody_is_served_with_the_right_keys(
    asked: list[tuple[int, int, int, bool, bool]], memory: int, max_batch: int, chunk: int
):
    """Prompts that share beginnings, arriving a few steps apart, continued or cancelled: all end, in bounded memory."""

    def play() -> list[Any]:
        scheduler = new_scheduler(memory, max_batch, chunk)
        waiting = [
            (steps, row(i, list(range(length)), most), goes_on, gone)
            for i, (steps, length, most, goes_on, gone) in enumerate(asked)
        ]
        number, seen, idle = len(waiting), [], 0
        while waiting or scheduler.running or scheduler.waiting:
            if waiting and idle >= waiting[0][0]:
                _, one, goes_on, gone = waiting.pop(0)
                idle = 0
                if scheduler.cache.fits(len(one.tokens) + one.max_tokens):
                    one.request = goes_on, gone
                    scheduler.submit(one)
            idle += 1
            step, ended = take_step(scheduler)
            seen.append(([one.arrival for one in step.decode], [(c.seq.arrival, c.start, c.size) for c in step.chunks]))
            assert step.decode or step.chunks or not (scheduler.running or scheduler.waiting)
            assert scheduler.cache.allocated_bytes <= scheduler.cache.budget
            assert len(scheduler.running) <= max_batch
            scheduler.finish(
                [one for one in scheduler.running if one.request[1] and len(one.tokens) > one.prompt_length]
            )
            for one in ended:
                more = row(number, [*one.tokens, 1, 2], 3)
                if one.request[0] and scheduler.cache.fits(len(more.tokens) + 3):
                    more.request = False, False
                    number += 1
                    scheduler.submit(more)
        living = [slot for pool in scheduler.cache.pools.values() for slot in pool.slots if slot is not None]
        assert set(living) == set(scheduler.cache.reusable)  # nobody has left anything behind
        return seen

    assert play() == play()  # of the queue alone
