"""Choose the examples of each step: their order over the run, and the examples to skip as too easy or too hard.

The choice depends only on the seed, the step and earlier rollouts; a resumed run reads these rollouts from its folder.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from rove.core.digest import derive_seed
from rove.core.errors import ConfigError, nearest
from rove.core.plain import JsonMapping, is_mapping
from rove.core.records import Outcome, RolloutRecord
from rove.train.config import CurriculumConfig, FilterConfig

Example = JsonMapping


def column(examples: Sequence[Example], name: str) -> list[Any]:
    """Return the values of a column; "info.level" is the value of `info` under "level"."""
    parts = name.split(".")
    values: list[Any] = []
    for index, example in enumerate(examples):
        value: Any = example
        for part in parts:
            if not is_mapping(value) or part not in value:
                info_columns = {f"info.{key}" for key in example.get("info") or ()}
                columns = {*example, *info_columns} - {"prompt", "info"}
                raise ConfigError(f"example {index} has no column '{name}'; {nearest(name, columns)}")
            value = value[part]
        values.append(value)
    return values


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def strata(values: Sequence[Any], bins: int) -> list[int]:
    """Return the stratum of each value: one stratum per distinct value, or quantiles if there are more than `bins` distinct
    numbers.

    Equal values share a stratum; quantiles are as equal in size as ties allow.
    """
    if not all(_is_number(value) for value in values):
        names = {name: i for i, name in enumerate(dict.fromkeys(map(repr, values)))}
        return [names[repr(value)] for value in values]
    distinct = sorted(set(values))
    if len(distinct) <= bins:
        return [distinct.index(value) for value in values]
    counts = sorted(Counter(values).items())
    # Quantiles of skewed columns would put most values into one bin; these are as equal in size as ties allow.
    edges = [counts[cut][0] for cut in _even_cuts([count for _, count in counts], bins)]
    return [bisect_right(edges, value) for value in values]


def _even_cuts(sizes: Sequence[int], parts: int) -> list[int]:
    """Return the positions at which to cut a sequence of sizes so that the sum of the squared sums of its parts is minimal.

    Args:
        parts: Number of parts, at most the number of `sizes`.

    Returns:
        The first index of every part except the first part.
    """
    ends = np.array([0, *accumulate(sizes)])
    lowest = ends**2  # minimum for the sizes before each position, in one part
    starts: list[list[int]] = []  # for each further part, and for each of its ends: where it starts
    for part in range(1, parts):
        minimum, cuts = lowest.copy(), [0] * len(ends)
        for end in range(part + 1, len(ends)):
            costs = lowest[part:end] + (ends[end] - ends[part:end]) ** 2
            cuts[end] = end - 1 - int(costs[::-1].argmin())
            minimum[end] = costs.min()
        lowest = minimum
        starts.append(cuts)
    # Trace the best cuts back, from the last part to the first.
    first_indices: list[int] = []
    end = len(sizes)
    for cuts in reversed(starts):
        end = cuts[end]
        first_indices.append(end)
    return first_indices[::-1]


def interleave(order: Sequence[int], stratum: Sequence[int]) -> list[int]:
    """Rearrange `order` so that every section of it contains the strata in nearly the same proportions as the whole.

    Member i of the m members of a stratum goes to the relative position (i + ½) / m.
    """
    members: dict[int, list[int]] = {}
    for index in order:
        members.setdefault(stratum[index], []).append(index)
    positions: list[tuple[float, int, int]] = []
    for number, indices in members.items():
        positions += [((i + 0.5) / len(indices), number, index) for i, index in enumerate(indices)]
    return [index for _, _, index in sorted(positions, key=lambda position: position[:2])]


class ExampleOrder:
    """The examples of a run as an endless sequence, from which each step takes the next examples."""

    def __init__(self, examples: Sequence[Example], curriculum: CurriculumConfig, seed: int, steps: int, groups: int):
        self.size = len(examples)
        self.curriculum = curriculum
        self.seed = seed
        self.steps = steps
        self.groups = groups
        self._strata: list[int] | None = None
        self._ascending: list[int] | None = None
        self._epoch: tuple[int, list[int]] = (-1, [])
        if curriculum.stratify is not None:
            self._strata = strata(column(examples, curriculum.stratify), curriculum.stratify_bins)
            if len(examples) > 1 and len(set(self._strata)) < 2:
                raise ConfigError(
                    f"stratify column '{curriculum.stratify}' has the same value in all {len(examples)} examples; expected at "
                    "least two values: choose another column or remove stratify"
                )
        if curriculum.column is not None:
            values = column(examples, curriculum.column)
            wrong = next((value for value in values if not _is_number(value)), None)
            if wrong is not None:
                raise ConfigError(f"curriculum column '{curriculum.column}' has {wrong!r}; expected numbers")
            # Sorting is stable: examples with equal values keep the dataset's order, or the shuffled one.
            self._ascending = sorted(self._epoch_order(0), key=lambda index: values[index])

    def step(self, step: int, position: int) -> Iterator[int]:
        """Yield the indices of examples for a step endlessly, in order of preference.

        Args:
            step: Number of the step, from 0.
            position: Number of examples that earlier steps have drawn; ignored if examples are ordered by a column.
        """
        if self._ascending is None:
            while True:
                epoch, index = divmod(position, self.size)
                yield self._interleaved(epoch)[index]
                position += 1
        window = min(self.groups, self.size)  # slides over the sorted examples from the first to the last
        start = round(step / max(1, self.steps - 1) * (self.size - window))
        while True:
            yield from self._ascending[start:]
            yield from self._ascending[:start]

    def _interleaved(self, epoch: int) -> list[int]:
        if self._epoch[0] != epoch:
            order = self._epoch_order(epoch)
            self._epoch = (epoch, interleave(order, self._strata) if self._strata is not None else order)
        return self._epoch[1]

    def _epoch_order(self, epoch: int) -> list[int]:
        order = list(range(self.size))
        if self.curriculum.shuffle:
            random.Random(derive_seed(self.seed, "order", epoch)).shuffle(order)
        return order


class Difficulty:
    """Recent mean rewards of examples, which decide whether an example is too easy or too hard."""

    def __init__(self, config: FilterConfig):
        self.config = config
        self._rewards: dict[int, list[tuple[int, float]]] = {}

    def add(self, records: Iterable[RolloutRecord | Outcome]) -> None:
        """Add rollouts, in the order of their steps."""
        if not self.config.skips_examples:
            return
        for record in records:
            if record.reward is not None and record.step is not None:
                self._rewards.setdefault(record.example_id, []).append((record.step, record.reward))

    def mean(self, example_id: int, step: int) -> float | None:
        """Return the mean reward of an example in the window before `step` (counted from 1); None if the window has no
        rollouts.
        """
        rewards = self._rewards.get(example_id)
        if not rewards:
            return None
        first = step - self.config.difficulty_window
        # Older rewards can be forgotten: steps only increase.
        rewards[:] = [(number, reward) for number, reward in rewards if number >= first]
        return math.fsum(reward for _, reward in rewards) / len(rewards) if rewards else None

    def skips(self, example_id: int, step: int) -> bool:
        """Return whether an example is too hard or too easy for `step` (counted from 1)."""
        if not self.config.skips_examples:
            return False
        mean = self.mean(example_id, step)
        if mean is None:
            return False
        low, high = self.config.hard_threshold, self.config.easy_threshold
        is_too_hard = low is not None and mean <= low
        is_too_easy = high is not None and mean >= high
        return is_too_hard or is_too_easy


class StepExamples:
    """Chooses the examples of one step.

    Args:
        step: Number of the step, from 0.
    """

    def __init__(self, order: ExampleOrder, difficulty: Difficulty, step: int, position: int):
        self.size = order.size
        self.difficulty = difficulty
        self.number = step + 1
        self.position = position
        """Number of examples drawn so far, including examples of this step and skipped examples."""
        self.skipped = 0
        """Number of examples skipped as too hard or too easy."""
        self._candidates = order.step(step, position)

    def take(self, count: int) -> list[int]:
        """Return the next `count` examples that are not skipped; after a full round of skipped examples, no more are skipped."""
        taken: list[int] = []
        skipped_before = self.skipped
        while len(taken) < count:
            index = next(self._candidates)
            self.position += 1
            # After a whole round of skipped examples, all would be skipped, and the loop would not end.
            may_skip = self.skipped - skipped_before < self.size
            if may_skip and self.difficulty.skips(index, self.number):
                self.skipped += 1
            else:
                taken.append(index)
        return taken
