"""The scheduler with a model that computes nothing and only records the tokens that it is given."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rove.engine.kv_cache import CacheShape, KVCache
from rove.engine.scheduler import Scheduler, SequenceState, Step

SHAPE = CacheShape(layers=1, kv_heads=1, head_size=1, dtype=torch.float32, device=torch.device("cpu"))


def new_scheduler(rows: int = 8, max_batch: int = 8, chunk: int = 16) -> Scheduler:
    return Scheduler(KVCache(SHAPE, rows * 64 * SHAPE.position_bytes, 99), max_batch, chunk)


def new_sequence(number: int, prompt: list[int], max_tokens: int = 4) -> SequenceState:
    return SequenceState(number, list(prompt), max_tokens)


def compute(step: Step) -> None:
    """Write every computed token as its key; the keys of all earlier tokens must already be present."""
    for seq, start, count in [*((r, len(r.tokens) - 1, 1) for r in step.decode), *step.chunks]:
        assert seq.slot is not None
        keys = seq.slot.pool.keys[0][seq.slot.index, 0, 0, 0]
        assert keys[:start].tolist() == seq.tokens[:start]
        keys[start : start + count] = torch.tensor(seq.tokens[start : start + count], dtype=torch.float32)


def take_step(scheduler: Scheduler) -> tuple[Step, list[SequenceState]]:
    """Plan and compute a step, sample token 1 for every ready sequence, and finish the complete ones."""
    step = scheduler.plan()
    compute(step)
    ready = scheduler.complete(step)
    ended = [seq for seq in ready if seq.remaining_tokens == 1]
    for seq in ready:
        if seq not in ended:
            seq.tokens.append(1)
    scheduler.finish(ended)
    return step, ended


def test_requests_run_in_order_and_a_long_prompt_is_prefilled_while_others_decode():
    scheduler = new_scheduler(max_batch=2)
    a, b, c = new_sequence(0, [1]), new_sequence(1, list(range(40))), new_sequence(2, [3])
    for seq in (a, b, c):
        scheduler.submit(seq)
    steps = [take_step(scheduler)[0] for _ in range(3)]
    assert [[seq.arrival for seq in step.decode] for step in steps] == [[0], [0], [0]]
    assert [[(chunk.seq.arrival, chunk.start, chunk.size) for chunk in step.chunks] for step in steps] == [
        [(1, 0, 15)],
        [(1, 15, 15)],
        [(1, 30, 10)],
    ]
    assert scheduler.waiting == [c]
    take_step(scheduler)  # a ends
    assert take_step(scheduler)[0].decode == [b, c]


def test_equal_prompts_wait_for_the_first_one_and_then_compute_one_token():
    scheduler = new_scheduler(chunk=64)
    prompt = list(range(40))
    sequences = [new_sequence(i, prompt) for i in range(3)]
    for seq in sequences:
        scheduler.submit(seq)
    first, _ = take_step(scheduler)
    assert [(chunk.seq, chunk.size) for chunk in first.chunks] == [(sequences[0], 40)]
    second, _ = take_step(scheduler)
    assert second.decode == sequences and not second.chunks


def test_a_next_turn_reuses_the_row_of_its_previous_turn():
    scheduler = new_scheduler(chunk=64)
    seq = new_sequence(0, list(range(20)), max_tokens=3)
    scheduler.submit(seq)
    while scheduler.running or scheduler.waiting:
        take_step(scheduler)
    next_turn = new_sequence(1, [*seq.tokens, 1, 7, 8])
    scheduler.submit(next_turn)
    step, _ = take_step(scheduler)
    assert [(chunk.start, chunk.size) for chunk in step.chunks] == [(22, 3)]
    assert not scheduler.cache.reusable


def test_prefixes_are_reused_even_with_more_conversations_than_rows():
    scheduler = new_scheduler(rows=6, max_batch=4, chunk=64)
    prompts = [[number, *range(30)] for number in range(8)]
    prefilled = 0
    for turn in range(3):
        turns = [new_sequence(8 * turn + number, prompt, 2) for number, prompt in enumerate(prompts)]
        for seq in turns:
            scheduler.submit(seq)
        while scheduler.waiting or scheduler.running:
            step, _ = take_step(scheduler)
            prefilled += sum(chunk.size for chunk in step.chunks)
        prompts = [[*seq.tokens, 2, 2] for seq in turns]
    total_prompt_tokens = sum(31 + turn * 3 for turn in range(3)) * 8
    assert prefilled < total_prompt_tokens * 0.7


def admissions(first: int) -> list[int]:
    """Return the order in which the turns of 16 conversations are computed; `first` is the number of the first request."""
    scheduler = new_scheduler(rows=64, max_batch=2, chunk=64)
    conversations = [new_sequence(first + i, [i, *range(20)], max_tokens=2) for i in range(16)]
    for seq in conversations:
        scheduler.submit(seq)
    arrivals = itertools.count(first + 16)
    order: dict[int, None] = {}
    while scheduler.waiting or scheduler.running:
        step, ended = take_step(scheduler)
        order |= dict.fromkeys(chunk.seq.arrival - first for chunk in step.chunks)
        for seq in ended:
            if len(seq.tokens) < 30:
                scheduler.submit(new_sequence(next(arrivals), [*seq.tokens, 1, 7], max_tokens=2))
    return list(order)


def test_requests_before_an_idle_moment_change_no_batch():
    # A resumed process has had fewer requests.
    assert [admissions(first) for first in range(1, 9)] == [admissions(0)] * 8


def test_the_most_recent_request_is_preempted_when_memory_runs_out():
    scheduler = new_scheduler(rows=4)
    sequences = [new_sequence(i, [i] * 60, max_tokens=100) for i in range(3)]
    for seq in sequences:
        scheduler.submit(seq)
    ended: list[SequenceState] = []
    fewest_running = 3
    while scheduler.running or scheduler.waiting:
        ended += take_step(scheduler)[1]
        fewest_running = min(fewest_running, len(scheduler.running)) if not ended else fewest_running
    assert fewest_running < 3
    assert ended[0] is sequences[0] and set(ended) == set(sequences)


request_lists = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 70), st.integers(1, 90), st.booleans(), st.booleans()),
    min_size=1,
    max_size=12,
)


@settings(deadline=None, max_examples=60)
@given(request_lists, st.integers(4, 10), st.integers(1, 5), st.sampled_from([1, 7, 64]))
def test_every_request_finishes_with_the_right_keys_in_bounded_memory(
    planned_requests: list[tuple[int, int, int, bool, bool]], memory: int, max_batch: int, chunk: int
):
    """Prompts share prefixes, arrive a few steps apart, and are continued or canceled; all finish in bounded memory."""

    def run() -> list[Any]:
        scheduler = new_scheduler(memory, max_batch, chunk)
        arrivals = [
            (delay, new_sequence(i, list(range(length)), max_tokens), continues, canceled)
            for i, (delay, length, max_tokens, continues, canceled) in enumerate(planned_requests)
        ]
        number, plans, idle = len(arrivals), [], 0
        while arrivals or scheduler.running or scheduler.waiting:
            if arrivals and idle >= arrivals[0][0]:
                _, seq, continues, canceled = arrivals.pop(0)
                idle = 0
                if scheduler.cache.fits(len(seq.tokens) + seq.max_tokens):
                    seq.request = continues, canceled
                    scheduler.submit(seq)
            idle += 1
            step, ended = take_step(scheduler)
            plans.append(
                ([seq.arrival for seq in step.decode], [(c.seq.arrival, c.start, c.size) for c in step.chunks])
            )
            assert step.decode or step.chunks or not (scheduler.running or scheduler.waiting)
            assert scheduler.cache.allocated_bytes <= scheduler.cache.budget
            assert len(scheduler.running) <= max_batch
            scheduler.finish(
                [seq for seq in scheduler.running if seq.request[1] and len(seq.tokens) > seq.prompt_length]
            )
            for seq in ended:
                next_turn = new_sequence(number, [*seq.tokens, 1, 2], 3)
                if seq.request[0] and scheduler.cache.fits(len(next_turn.tokens) + 3):
                    next_turn.request = False, False
                    number += 1
                    scheduler.submit(next_turn)
        used = [slot for pool in scheduler.cache.pools.values() for slot in pool.slots if slot is not None]
        assert set(used) == set(scheduler.cache.reusable)  # all other slots were freed
        return plans

    assert run() == run()  # scheduling depends only on the queue
