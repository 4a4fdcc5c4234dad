"""Run many rollouts concurrently: take groups of jobs, and yield records as soon as they are final."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import aclosing, nullcontext
from typing import Any

import msgspec

from rove.clients.limiter import AdmissionLimiter
from rove.core.errors import Error
from rove.core.model_roles import RoleClients
from rove.core.protocols import Client, SamplingParams
from rove.core.records import RolloutRecord, Scores
from rove.core.state import State
from rove.envs.environment import Environment
from rove.rollouts.runner import (
    Allowance,
    FinalRecord,
    Job,
    finished_rollout,
    make_turn,
    score,
    score_group,
    scores_after_cleanup,
    try_record,
)


async def run_groups(
    env: Environment,
    client: Client,
    groups: Iterable[Sequence[Job]],
    *,
    model: str = "",
    sampling: SamplingParams | None = None,
    max_concurrent: int | None = None,
    max_scoring: int | None = None,
    allowance: Allowance = Allowance(),  # noqa: B008  frozen
    fail_fast: bool = False,
    step: int | None = None,
    model_roles: RoleClients | None = None,
    keep: Callable[[RolloutRecord, bytes | None], None] = lambda record, line: None,
    for_training: bool = False,
) -> AsyncGenerator[RolloutRecord, None]:
    """Run every job of every group and yield each record as soon as it is final.

    A record is final when its rollout is scored; with group rewards, when the whole group is scored. `groups` is read
    lazily. At most `max_concurrent` rollouts run concurrently; with an adaptive limiter, a rollout starts only when its
    first request would be admitted immediately.

    Args:
        sampling: Sampling parameters. Default: the environment's.
        max_concurrent: Maximum concurrent rollouts. Default: the client's recommendation.
        max_scoring: Maximum number of rollouts scored concurrently. Default: no limit.
        keep: Called with each final record and, if it is encoded already, its line in rollouts.jsonl, in order within a group,
            even if the generator is closed early.
        for_training: Fail rollouts whose agent uses sampling parameters that the loss does not support; see
            `rove.rollouts.runner.check_trainable`.
    """
    sampling = sampling or SamplingParams.from_args(env.sampling_args)
    units = _units(groups, env.scoring_rubric.has_group_rewards)
    finished: asyncio.Queue[list[RolloutRecord] | None] = asyncio.Queue()
    scoring = asyncio.Semaphore(max_scoring) if max_scoring else nullcontext()

    async def run_job(unit: _Unit, position: int, reservation: _Reservation) -> None:
        turn = make_turn(client, model, sampling, allowance, reservation.release, for_training)
        job, seconds = unit.jobs[position], allowance.limits.timeout_seconds
        async with finished_rollout(env, job, turn, seconds, model_roles) as state, scoring:
            scores = await score(env, state)
        async with scoring:
            final_records = await unit.add(position, env, state, scores, sampling.temperature, step)
        for record, line in final_records:
            keep(record, line)  # before the consumer sees it: it may close the generator, or be canceled
        records = [final.record for final in final_records]
        for record in records:
            if fail_fast and record.error:
                raise RolloutError(record)
        if records:
            finished.put_nowait(records)
            await asyncio.sleep(0)  # let the consumer run, even if the client never waits

    pool = _Pool(env, client, units, run_job)
    count = max(1, max_concurrent or client.max_concurrent)
    async with aclosing(_until_done(pool.worker, count, finished)) as batches:
        async for records in batches:
            for record in records:
                yield record


class _Pool:
    """Workers that each run one rollout after another.

    The capacities of the environment and of the client limit new rollouts. The environment's capacity is acquired first, so that
    the client's capacity is not held idle.
    """

    def __init__(
        self,
        env: Environment,
        client: Client,
        units: Iterator[tuple[_Unit, int]],
        run_job: Callable[[_Unit, int, _Reservation], Coroutine[Any, Any, None]],
    ):
        limiter = getattr(client, "limiter", None)
        self.limiter = limiter if isinstance(limiter, AdmissionLimiter) and limiter.adaptive else None
        self.env = env
        self.units = units
        self.run_job = run_job
        self._next: tuple[_Unit, int] | None = None
        self._exhausted = False
        self._waiting: set[asyncio.Task[Any]] = set()  # workers that wait for capacity

    async def worker(self) -> None:
        """Run rollouts until no rollout is left."""
        reservation, this_task = _Reservation(self.limiter), asyncio.current_task()
        assert this_task is not None
        try:
            while self._more():
                self._waiting.add(this_task)
                async with self.env.rollout_slot():
                    await reservation.take()
                    self._waiting.discard(this_task)
                    if self._more():  # again: another worker may have taken the last rollout
                        assert self._next is not None
                        (unit, position), self._next = self._next, None
                        if self._waiting:
                            self._more()  # if this was the last, stop waiting workers now, not when they get capacity
                        await self.run_job(unit, position, reservation)
        except asyncio.CancelledError:
            if not (self._exhausted and this_task in self._waiting):  # `_more` cancels waiting workers: no error
                raise
        finally:
            self._waiting.discard(this_task)
            reservation.release()

    def _more(self) -> bool:
        """Return whether a rollout is left; if not, cancel the waiting workers."""
        if self._next is None and not self._exhausted:
            self._next = next(self.units, None)
            if self._next is None:
                self._exhausted = True
                for task in self._waiting:
                    task.cancel()
        return self._next is not None


async def _until_done(
    make_worker: Callable[[], Coroutine[object, object, None]],
    count: int,
    finished: asyncio.Queue[list[RolloutRecord] | None],
) -> AsyncGenerator[list[RolloutRecord], None]:
    """Run `count` workers, and yield the items that they put into the queue until all are done or one fails; cancel them when the
    generator closes.
    """
    # Each coroutine becomes a task at once: Ctrl-C may come at any line, and Python warns about coroutines that never ran.
    tasks = [asyncio.create_task(make_worker()) for _ in range(count)]
    together = asyncio.gather(*tasks)
    together.add_done_callback(lambda _: finished.put_nowait(None))
    try:
        while (records := await finished.get()) is not None:
            yield records
        await together
    finally:
        # Retrieves the exception, which asyncio would otherwise log.
        together.add_done_callback(lambda done: done.cancelled() or done.exception())
        for task in tasks:  # one by one: when a worker fails, gather leaves the others running
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Reservation:
    """A reservation for one more rollout at an adaptive limiter; without such a limiter, it is always granted.

    Without reservations, rollouts would start and hold sandboxes and servers while their first requests wait.
    """

    def __init__(self, limiter: AdmissionLimiter | None):
        self._limiter = limiter
        self._held = False

    async def take(self) -> None:
        """Wait for the reservation."""
        if self._limiter is not None and not self._held:
            await self._limiter.reserve()
            self._held = True

    def release(self) -> None:
        """Release the reservation, before the rollout's first request or when it will not run."""
        if self._limiter is not None and self._held:
            self._held = False
            self._limiter.unreserve()


class _Unit(msgspec.Struct):
    """Jobs that are scored together, and the results of the finished jobs by position."""

    jobs: Sequence[Job]
    finished: dict[int, tuple[State, Scores | None]] = {}

    async def add(
        self,
        position: int,
        env: Environment,
        state: State,
        scores: Scores | None,
        temperature: float | None,
        step: int | None,
    ) -> list[FinalRecord]:
        """Add a scored rollout; after the last rollout of a group, score the group. Return the records that are now final."""
        self.finished[position] = state, scores_after_cleanup(state, scores)
        if len(self.finished) < len(self.jobs):
            return []
        results = [self.finished[index] for index in range(len(self.jobs))]
        states = [member for member, _ in results]
        group_scores = await score_group(env, states, [member_scores for _, member_scores in results])
        members = zip(self.jobs, states, group_scores, strict=True)
        return [try_record(job, member, final, temperature, step) for job, member, final in members]


def _units(groups: Iterable[Sequence[Job]], scored_together: bool) -> Iterator[tuple[_Unit, int]]:
    """Yield the unit of every job, and the job's position in it; without group rewards, each job is a separate unit."""
    for jobs in groups:
        if not scored_together:
            for job in jobs:
                yield _Unit([job]), 0
            continue
        unit = _Unit(jobs)
        for position in range(len(jobs)):
            yield unit, position


class RolloutError(Error):
    """A rollout failed, and the run stops at the first failure (`fail_fast`)."""

    def __init__(self, record: RolloutRecord):
        error = record.error
        assert error is not None
        super().__init__(
            f"{error.phase}: {error.type}: {error.message} (example {record.example_id})\n{error.traceback}"
        )
        self.record = record
