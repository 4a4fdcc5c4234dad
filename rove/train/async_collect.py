"""Rollouts without end: groups are played one after another, and whoever is done first is trained first.

    draw → start (while there is room, and a place in time) → ended → rollouts.jsonl, with the step that will train it
                                                                  ↓
    trainer: take (waits until its step is full) → learn in a thread → publish, while rollouts go on → take …

Everything but learning happens on the event loop's thread, so nothing here is ever half done when a checkpoint is written.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Mapping
from functools import partial
from typing import Any

import msgspec

from rove.core.digest import derive_seed
from rove.core.protocols import SamplingParams
from rove.core.records import RolloutRecord
from rove.rollouts.groups import run_groups
from rove.rollouts.runner import Job
from rove.train.collect import (
    DRAWN,
    Played,
    RolloutCollector,
    check_failures,
    check_rewards,
    made_of,
    plan_groups,
    training_samples,
)
from rove.train.curriculum import Draw
from rove.train.staleness import Places


class Planned(msgspec.Struct, frozen=True):
    """A group that is to be played."""

    step: int
    """Whose seeds it has: the one that would train it if nothing were played ahead."""
    example: int
    key: str


class _Group(msgspec.Struct, eq=False):
    """A group under way."""

    planned: Planned
    due: int
    """The last step that may train it."""
    version: int
    """Newest when it was started."""
    records: list[RolloutRecord] = []


class Stream:
    """Plays groups, and hands out those of one step after another.

    At most `batch_size` rollouts are under way, and no group is started that might come too late (see `Places`) or while a whole
    step waits for the trainer.

    Args:
        player: knows the run, where it is played, and in which order examples come.
        step: the next step that is trained, counted from 0.
        left: what `state` told when the checkpoint was written that the run goes on from; {} at the beginning. Ended groups that
            were not trained then are read from the run folder, those that were under way are played again.
    """

    def __init__(self, player: RolloutCollector, step: int, left: Mapping[str, Any]):
        config = player.config
        self.player = player
        self.places = Places(
            config.groups,
            config.max_off_policy_steps,
            config.steps,
            step,
            config.filter.dynamic_sampling_rounds * config.groups,
        )
        self.under_way: list[_Group] = []
        """Groups that were started and have not ended, in that order."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._planned = deque(msgspec.convert(left.get("groups", []), list[Planned]))
        self._next_step = int(left.get("next_step", step))
        self._drawn = int(left.get("drawn", player.drawn))
        self._skipped = 0
        self._ended: dict[int, list[RolloutRecord]] = {}
        self._keys: set[str] = set()
        self._playing = Level()
        self._changed = asyncio.Event()
        self._failure: BaseException | None = None
        self._taken_at = time.perf_counter()
        self._waits, self._late = False, 0
        for number, records in _untrained(player, step):
            self.places.put(number, self._needs_place(records))
            self._put(records, number)

    def state(self) -> dict[str, Any]:
        """What a run that is resumed here has to know: groups that were drawn and have not ended, in their order, and how far
        drawing has come."""
        open_groups = [*(group.planned for group in self.under_way), *self._planned]
        return {"groups": msgspec.to_builtins(open_groups), "next_step": self._next_step, "drawn": self._drawn}

    async def take(self, step: int) -> Played:
        """The rollouts of the next step, as soon as it has all of them.

        Raises:
            RunError: every rollout failed, or a reward function raised in every rollout of the first step.
            Exception: what else went wrong while playing.
        """
        assert step == self.places.first
        started, self._waits, self._late = time.perf_counter(), True, 0
        self.go_on()
        while not self.places.is_full or self._failure:
            if self._failure is not None:
                raise self._failure
            self._changed.clear()
            await self._changed.wait()
        self._waits = False
        records = self._ended.pop(step)
        self._keys -= {record.example_key for record in records}
        self.places.hand_out()
        self.go_on()
        check_failures(records, step + 1)
        check_rewards(records, step + 1)
        samples, metrics = made_of(self.player.config, records)
        return Played(records, samples, {**metrics, **self._told(metrics, started)})

    def trained(self, version: int) -> None:
        """The sampler has newer weights."""
        self.places.version = version
        self.go_on()

    def go_on(self) -> None:
        """Start as many groups as may be."""
        config = self.player.config
        while self._playing.value + config.rollouts_per_example <= config.batch_size:
            if self._failure is not None or self.places.is_full or not self.places.may_start():
                return
            group = _Group(self._draw(), self.places.start(), self.places.version)
            self._keys.add(group.planned.key)
            self._playing.set(self._playing.value + config.rollouts_per_example)
            self.under_way.append(group)
            task = asyncio.create_task(self._play(group))
            self._tasks.add(task)
            task.add_done_callback(self._seen)

    async def close(self) -> None:
        """Give up what is under way; rollouts that have ended are kept, as if of the next step."""
        self._failure = self._failure or asyncio.CancelledError()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for group in self.under_way:
            for record in group.records:
                self.player.run.append_rollout(msgspec.structs.replace(record, step=self.places.first + 1))

    async def _play(self, group: _Group) -> None:
        player, planned = self.player, group.planned
        config = player.config
        seed = derive_seed(config.seed, planned.step)
        count = config.rollouts_per_example
        jobs = [Job(player.examples[planned.example], planned.key, index, seed) for index in range(count)]
        sampling = SamplingParams(temperature=config.temperature, max_tokens=config.max_tokens)
        rollouts = run_groups(
            player.env,
            player.client,
            [jobs],
            sampling=sampling,
            max_concurrent=count,
            keep=partial(self._keep, group),
            for_training=True,
        )
        async for _ in rollouts:
            pass

    def _keep(self, group: _Group, record: RolloutRecord) -> None:
        """A rollout has ended; with its last sibling the group has, too."""
        group.records.append(record)
        self._report_progress()
        self._playing.set(self._playing.value - 1)
        if len(group.records) == self.player.config.rollouts_per_example:
            self.under_way.remove(group)
            step = self.places.finish(group.due, self._needs_place(group.records))
            self._late += self._waits and step == self.places.first == group.version + self.places.most
            for told in self._put(group.records, step):
                self.player.run.append_rollout(told)
                self.player.difficulty.add([told])
            self._changed.set()
        self.go_on()

    def _report_progress(self) -> None:
        """Report how many rollouts of the next step have ended, those of groups that have not ended included."""
        ended = len(self._ended.get(self.places.first, []))
        open_groups = [group for group in self.under_way if group.records]
        total = self.player.config.batch_size
        self.player.on_progress("rollouts", min(total, ended + sum(len(g.records) for g in open_groups)), total)

    def _put(self, records: list[RolloutRecord], step: int) -> list[RolloutRecord]:
        """Let this step train them; the records that say so."""
        self._keys.add(records[0].example_key)
        told = [msgspec.structs.replace(r, step=step + 1) for r in sorted(records, key=lambda r: r.rollout_index)]
        self._ended.setdefault(step, []).extend(told)
        return told

    def _needs_place(self, records: list[RolloutRecord]) -> bool:
        """Whether a group takes the place of another; where those without spread are replaced, they do not."""
        config = self.player.config
        if not config.filter.dynamic_sampling_rounds:
            return True
        counts = training_samples(records, config.truncated, "mean", config.gamma)[1]
        return not (counts["groups/zero_spread"] or counts["groups/too_few"])

    def _seen(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failure = self._failure or error
            self._changed.set()

    def _draw(self) -> Planned:
        """The next group, under a key that no other has which may be trained with it."""
        player = self.player
        config = player.config
        if not self._planned:
            step = self._next_step
            draw = Draw(player.order, player.difficulty, min(step, config.steps - 1), self._drawn)
            chosen = draw.take(config.groups)
            jobs = plan_groups(config, step, [player.examples[index] for index in chosen])
            self._planned += [Planned(step, index, group[0].key) for index, group in zip(chosen, jobs, strict=True)]
            self._next_step, self._drawn, self._skipped = step + 1, draw.position, self._skipped + draw.skipped
        planned = self._planned.popleft()
        if planned.key in self._keys:
            return msgspec.structs.replace(planned, key=f"{planned.key}@{planned.step + 1}")
        return planned

    def _told(self, counts: Mapping[str, float], started: float) -> dict[str, float]:
        """Metrics of a step that is handed out now and was asked for at `started`."""
        config, now = self.player.config, time.perf_counter()
        waited, passed = now - started, max(now - self._taken_at, 1e-9)
        told = {
            "groups/resampled": counts["groups/all"] - config.groups,
            "examples/skipped": float(self._skipped),
            DRAWN: float(self._drawn),
            "queue/ended": sum(map(len, self._ended.values())) / config.rollouts_per_example,
            "queue/under_way": float(len(self.under_way)),
            "queue/late": float(self._late),
            "idle/trainer": waited / passed,
            "idle/sampler": max(0.0, 1 - self._playing.mean() / config.batch_size),
            "time/sampling": waited,
        }
        self._skipped, self._taken_at = 0, now
        return told


class Level:
    """A number that changes now and then, and its mean over time."""

    def __init__(self) -> None:
        self.value = 0
        self._sum = 0.0
        self._from = self._at = time.perf_counter()

    def set(self, value: int) -> None:
        """It is another one from now on."""
        now = time.perf_counter()
        self._sum, self._at, self.value = self._sum + self.value * (now - self._at), now, value

    def mean(self) -> float:
        """Since this was last asked."""
        self.set(self.value)
        mean = self._sum / max(self._at - self._from, 1e-9)
        self._sum, self._from = 0.0, self._at
        return mean


def _untrained(player: RolloutCollector, step: int) -> list[tuple[int, list[RolloutRecord]]]:
    """The step (counted from 0) and rollouts of each ended group in the run folder that no step before this one has trained."""
    groups: dict[tuple[int, str], list[RolloutRecord]] = {}
    for (number, key, _), line in player.run.ledger()[0].items():
        if number is not None and number > step:
            groups.setdefault((number, key), []).append(player.run.record_at(line.offset))
    return [(number - 1, records) for (number, _), records in groups.items()]
