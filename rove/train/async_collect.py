"""Asynchronous collection: groups are sampled continuously, and the trainer gets whichever groups finish first.

    choose examples → run groups (while a step has room) → finished → rollouts.jsonl, with the step that trains them
                                                              ↓
    trainer: take (waits until its step is full) → learn in a thread → publish while groups run → take …

Everything but learning runs on the event loop's thread, so a checkpoint always sees a consistent state.
docs/decisions/async.md explains why no group is discarded, and why `max_off_policy_steps` 0 and 1 do not use this loop.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Mapping
from functools import partial

import msgspec

from rove.core.digest import derive_seed
from rove.core.plain import JsonMapping, JsonObject
from rove.core.protocols import Client
from rove.core.records import RolloutRecord
from rove.envs.environment import Environment
from rove.rollouts.groups import run_groups
from rove.rollouts.runner import Job
from rove.runs.run import Run
from rove.train.callbacks import OnProgress, ignore
from rove.train.collect import (
    DRAWN,
    CollectedStep,
    RolloutCollector,
    check_failures,
    check_rewards,
    rollout_metrics,
    training_sequences,
)
from rove.train.config import RLConfig
from rove.train.curriculum import StepExamples


class PlannedGroup(msgspec.Struct, frozen=True):
    """A group that is to be run."""

    step: int
    """Step that determines the seeds: the step that would train the group in synchronous training."""
    example: int
    key: str


class _Group(msgspec.Struct, eq=False):
    """A running group."""

    planned: PlannedGroup
    due: int
    """Last step that may train the group."""
    version: int
    """Policy version when the group started."""
    records: list[RolloutRecord] = []


class StalenessScheduler:
    """Assigns groups to steps so that no group is trained too late, even if slow groups finish last.

    A step has room for `groups` groups, and step n trains policy version n. A group that started with version v has to be trained
    by step v + `max_staleness`. With 2 groups per step, max_staleness 1 and four groups a, b, c, d that started with version 0
    (all due by step 1), of which c and d finish first:

        step 0   c d
        step 1   a b     even if they finish last: no other group can take their places

    A group starts only if it will find a place in time, however slow the running groups are, so no group is ever discarded.

    Args:
        first: Next step to train, counted from 0.
    """

    def __init__(self, groups: int, max_staleness: int, steps: int, first: int = 0, extra: int = 0):
        self.groups = groups
        self.max_staleness = max_staleness
        self.steps = steps
        self.extra = extra
        self.first = first
        """Next step to hand out."""
        self.version = first
        """Newest policy version."""
        self._assigned: Counter[int] = Counter()
        self._assigned_extra: Counter[int] = Counter()
        self._due: Counter[int] = Counter()  # running groups by the last step that may train them

    @property
    def is_full(self) -> bool:
        """Whether the next step has all of its groups."""
        return self._assigned[self.first] >= self.groups

    @property
    def _last(self) -> int:
        return min(self.version + self.max_staleness, self.steps - 1)

    def may_start(self) -> bool:
        """Return whether one more group would surely be trained in time."""
        return self.first <= self._last and self._fits(self._last)

    def start(self) -> int:
        """Register a group that starts with the newest weights; return the last step that may train it."""
        self._due[self._last] += 1
        return self._last

    def finish(self, due: int, needs_place: bool = True) -> int:
        """Assign a finished group to the earliest step that leaves places for the running groups; return the step.

        Args:
            needs_place: Whether the group has advantages; a zero-advantage group may be one of a step's `extra` groups.
        """
        self._due[due] -= 1
        for step in range(self.first, due + 1):
            if self._assigned[step] < self.groups and self.assign(step, needs_place):
                return step
        raise AssertionError(f"no place up to step {due}")

    def assign(self, step: int, needs_place: bool = True) -> bool:
        """Assign a finished group to a step if this leaves places for the running groups; return whether it was assigned."""
        # Zero-advantage groups train nothing. As with dynamic sampling in a synchronous step, they do not count up to a limit.
        if not needs_place and self._assigned_extra[step] < self.extra:
            self._assigned_extra[step] += 1
            return True
        # Try it, and undo it if a running group would then be too late.
        self._assigned[step] += 1
        if self._fits():
            return True
        self._assigned[step] -= 1
        return False

    def hand_out(self) -> None:
        """Advance to the next step."""
        del self._assigned[self.first], self._assigned_extra[self.first]
        self.first += 1

    def _fits(self, another: int | None = None) -> bool:
        """Return whether all running groups, and another group due by step `another`, have places however long they take.

        They do if, for each step, the groups due by this step are no more than the free places up to this step (Hall's
        condition).
        """
        due, free = 0, 0
        for step in range(self.first, self._last + 1):
            due += self._due[step]
            if step == another:
                due += 1
            free += self.groups - self._assigned[step]
            if due > free:
                return False
        return True


class AsyncCollector(RolloutCollector):
    """Samples groups continuously and hands them out step by step.

    At most `batch_size` rollouts run at a time. No group starts that might be trained too late (see `StalenessScheduler`), or
    while a full step waits for the trainer.

    Args:
        max_staleness: Maximum age of the sampling weights, in steps.
        step: Next step to train, counted from 0.
        state: `state()` at the checkpoint that the run resumes from. Finished groups that were not trained are read from the run
            folder; groups that were running start again.
    """

    def __init__(
        self,
        config: RLConfig,
        env: Environment,
        client: Client,
        run: Run,
        drawn: int = 0,
        on_progress: OnProgress = ignore,
        *,
        max_staleness: int,
        step: int,
        state: JsonMapping,
    ):
        super().__init__(config, env, client, run, drawn, on_progress)
        extra = config.filter.dynamic_sampling_rounds * config.groups
        self.scheduler = StalenessScheduler(config.groups, max_staleness, config.steps, step, extra)
        self.running: list[_Group] = []
        """Running groups in the order of their start."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._planned = deque(msgspec.convert(state.get("groups", []), list[PlannedGroup]))
        self._next_step = int(state.get("next_step", step))
        self.drawn = int(state.get("drawn", drawn))
        self._skipped = 0
        self._finished: dict[int, list[RolloutRecord]] = {}
        self._keys: set[str] = set()
        self._rollouts = TimeAverage()
        self._changed = asyncio.Event()
        self._failure: BaseException | None = None
        self._taken_at = time.perf_counter()
        self._is_waiting = False
        self._late = 0
        for number, records in _untrained_groups(run, step):
            self.scheduler.assign(number, self._has_advantages(records))
            self._assign(records, number)

    def state(self) -> JsonObject:
        """Return the state for resuming the run: planned and running groups in their order, and the position in the dataset."""
        open_groups = [*(group.planned for group in self.running), *self._planned]
        return {"groups": msgspec.to_builtins(open_groups), "next_step": self._next_step, "drawn": self.drawn}

    async def take(self, step: int) -> CollectedStep:
        """Wait until all rollouts of the next step are finished, and return them."""
        assert step == self.scheduler.first
        started = time.perf_counter()
        self._is_waiting = True
        self._late = 0
        self._start_groups()
        # An error in a group ends the run here, where the trainer waits: the tasks of the groups have no caller.
        while not self.scheduler.is_full or self._failure:
            if self._failure is not None:
                raise self._failure
            self._changed.clear()
            await self._changed.wait()
        self._is_waiting = False
        records = self._finished.pop(step)
        self._keys -= {record.example_key for record in records}
        self.scheduler.hand_out()
        self._start_groups()
        check_failures(records, step + 1)
        check_rewards(records, step + 1)
        rollouts, counts = self._training_sequences(records)
        metrics = {**rollout_metrics(records), **counts, **self._queue_metrics(counts, started)}
        return CollectedStep(records, self._weigh(rollouts), metrics)

    def use_version(self, version: int) -> None:
        """Record that the client now samples with the weights of this version."""
        self.scheduler.version = version
        self._start_groups()

    async def close(self) -> None:
        """Cancel running groups; their finished rollouts are stored as rollouts of the next step."""
        self._failure = self._failure or asyncio.CancelledError()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # Their groups start again when the run is resumed, but these rollouts were paid for: they stay in the run folder.
        for group in self.running:
            for record in group.records:
                self.run.append_rollout(msgspec.structs.replace(record, step=self.scheduler.first + 1))

    def _start_groups(self) -> None:
        """Start as many groups as allowed."""
        group_size = self.config.rollouts_per_example
        while self._rollouts.value + group_size <= self.config.batch_size:
            if self._failure is not None or self.scheduler.is_full or not self.scheduler.may_start():
                return
            group = _Group(self._next_group(), self.scheduler.start(), self.scheduler.version)
            self._keys.add(group.planned.key)
            self._rollouts.set(self._rollouts.value + group_size)
            self.running.append(group)
            task = asyncio.create_task(self._run_group(group))
            self._tasks.add(task)
            task.add_done_callback(self._on_task_done)

    async def _run_group(self, group: _Group) -> None:
        planned = group.planned
        group_size = self.config.rollouts_per_example
        seed = derive_seed(self.config.seed, planned.step)
        example = self.examples[planned.example]
        rollouts = run_groups(
            self.env,
            self.client,
            [[Job(example, planned.key, index, seed) for index in range(group_size)]],
            sampling=self.sampling,
            max_concurrent=group_size,
            keep=partial(self._on_rollout, group),
            for_training=True,
        )
        async for _ in rollouts:
            pass

    def _on_rollout(self, group: _Group, record: RolloutRecord, line: bytes | None) -> None:
        """Add a finished rollout; assign and store its group once the group is complete."""
        group.records.append(record)
        self._report_progress()
        self._rollouts.set(self._rollouts.value - 1)
        if len(group.records) == self.config.rollouts_per_example:
            scheduler = self.scheduler
            self.running.remove(group)
            step = scheduler.finish(group.due, self._has_advantages(group.records))
            is_last_chance = step == scheduler.first == group.version + scheduler.max_staleness
            if self._is_waiting and is_last_chance:
                self._late += 1
            # Only complete groups are stored, with the step that trains them: a resumed run then trains each of them once.
            for assigned in self._assign(group.records, step):
                self.run.append_rollout(assigned)
                self.difficulty.add([assigned])
            self._changed.set()
        self._start_groups()

    def _report_progress(self) -> None:
        """Report how many rollouts of the next step are finished, including rollouts of incomplete groups."""
        finished = len(self._finished.get(self.scheduler.first, [])) + sum(len(group.records) for group in self.running)
        batch_size = self.config.batch_size
        self.on_progress("rollouts", min(batch_size, finished), batch_size)

    def _assign(self, records: list[RolloutRecord], step: int) -> list[RolloutRecord]:
        """Add a group to a step; return its records with the number of the step."""
        self._keys.add(records[0].example_key)
        ordered = sorted(records, key=lambda record: record.rollout_index)
        assigned = [msgspec.structs.replace(record, step=step + 1) for record in ordered]
        self._finished.setdefault(step, []).extend(assigned)
        return assigned

    def _has_advantages(self, records: list[RolloutRecord]) -> bool:
        """Return whether a group takes one of a step's places; with dynamic sampling, zero-advantage groups take none."""
        if not self.config.filter.dynamic_sampling_rounds:
            return True
        # Which groups have advantages does not depend on the estimator; "mean" works for a single group.
        _, counts = training_sequences(records, self.config.truncated, gamma=self.config.gamma)
        return not (counts["groups/zero_spread"] or counts["groups/too_few"])

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failure = self._failure or error
            self._changed.set()

    def _next_group(self) -> PlannedGroup:
        """Return the next group, under a key that no other group of the same step can have."""
        if not self._planned:
            step = self._next_step
            chooser = StepExamples(self.order, self.difficulty, min(step, self.config.steps - 1), self.drawn)
            chosen = chooser.take(self.config.groups)
            groups = self._plan_groups(step, chosen)
            self._planned += [
                PlannedGroup(step, index, jobs[0].key) for index, jobs in zip(chosen, groups, strict=True)
            ]
            self._next_step = step + 1
            self.drawn = chooser.position
            self._skipped += chooser.skipped
        # Two epochs may give one step the same example; equal keys would make their groups one.
        planned = self._planned.popleft()
        if planned.key in self._keys:
            return msgspec.structs.replace(planned, key=f"{planned.key}@{planned.step + 1}")
        return planned

    def _queue_metrics(self, counts: Mapping[str, float], started: float) -> dict[str, float]:
        """Return the metrics of a step for which the trainer has waited since `started`."""
        taken_at = time.perf_counter()
        waited = taken_at - started
        elapsed = max(taken_at - self._taken_at, 1e-9)
        config = self.config
        metrics = {
            "groups/resampled": counts["groups/all"] - config.groups,
            "examples/skipped": float(self._skipped),
            DRAWN: float(self.drawn),
            "queue/ended": sum(map(len, self._finished.values())) / config.rollouts_per_example,
            "queue/under_way": float(len(self.running)),
            "queue/late": float(self._late),
            "idle/trainer": waited / elapsed,
            "idle/sampler": max(0.0, 1 - self._rollouts.mean() / config.batch_size),
            "time/sampling": waited,
        }
        self._skipped = 0
        self._taken_at = taken_at
        return metrics


class TimeAverage:
    """A number and its mean over time."""

    def __init__(self) -> None:
        self.value = 0
        self._sum = 0.0
        self._since = self._changed_at = time.perf_counter()

    def set(self, value: int) -> None:
        """Set the number."""
        changed_at = time.perf_counter()
        self._sum += self.value * (changed_at - self._changed_at)
        self._changed_at = changed_at
        self.value = value

    def mean(self) -> float:
        """Return the mean since the last call."""
        self.set(self.value)
        mean = self._sum / max(self._changed_at - self._since, 1e-9)
        self._sum, self._since = 0.0, self._changed_at
        return mean


def _untrained_groups(run: Run, step: int) -> list[tuple[int, list[RolloutRecord]]]:
    """Return the finished groups in the run folder that no step before `step` has trained, each with its step (from 0)."""
    groups: dict[tuple[int, str], list[RolloutRecord]] = {}
    for (number, key, _), line in run.ledger()[0].items():
        if number is not None and number > step:
            groups.setdefault((number, key), []).append(run.record_at(line.offset))
    return [(number - 1, records) for (number, _), records in groups.items()]
