"""Which examples a step plays: their order over the run, what is skipped as too easy or too hard.

Everything follows from the seed, the step, and what was played before; a resumed run reads the latter from its folder.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

from rove.core.digest import derive_seed
from rove.core.errors import ConfigError, nearest
from rove.core.records import Outcome, RolloutRecord
from rove.train.config import CurriculumConfig

Example = Mapping[str, Any]


def column(examples: Sequence[Example], name: str) -> list[Any]:
    """The values of a column; "info.level" is what `info` has under "level".

    Raises:
        ConfigError: an example does not have it.
    """
    parts = name.split(".")
    values: list[Any] = []
    for i, example in enumerate(examples):
        value: Any = example
        for part in parts:
            if not isinstance(value, Mapping) or part not in value:
                inner = example.get("info")
                known = {*example, *(f"info.{key}" for key in inner or {})} - {"prompt", "info"}
                raise ConfigError(f"example {i} has no column '{name}'; {nearest(name, known)}")
            value = value[part]
        values.append(value)
    return values


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def strata(values: Sequence[Any], bins: int) -> list[int]:
    """The stratum of each value: one for each different value, or, of more than `bins` different numbers, its quantile.

    Equal values are in one stratum; the `bins` strata are as equal in size as ties allow.
    """
    if not all(_is_number(value) for value in values):
        names = {name: i for i, name in enumerate(dict.fromkeys(map(repr, values)))}
        return [names[repr(value)] for value in values]
    different = sorted(set(values))
    if len(different) <= bins:
        return [different.index(value) for value in values]
    counts = sorted(Counter(values).items())
    edges = [counts[place][0] for place in _even_parts([count for _, count in counts], bins)]
    return [bisect_right(edges, value) for value in values]


def _even_parts(sizes: Sequence[int], parts: int) -> list[int]:
    """Return where to cut a sequence so that the sums of its parts are as equal as possible.

    Dynamic programming over the sum of the squared sums, each row in linear time by the convex hull of its lines.

    Args:
        sizes: More than 0 each.
        parts: At most as many as `sizes`.

    Returns:
        the first place of every part but the first.
    """
    ends = [0, *accumulate(sizes)]
    best = [end * end for end in ends]
    came: list[list[int]] = []
    for part in range(1, parts):
        lines: deque[tuple[int, int, int]] = deque()  # slope, intercept and place of a cut
        row, cuts = [0] * len(ends), [0] * len(ends)
        for i in range(part + 1, len(ends)):
            line = (-2 * ends[i - 1], best[i - 1] + ends[i - 1] ** 2, i - 1)
            while len(lines) > 1 and _never_least(lines[-2], lines[-1], line):
                lines.pop()
            lines.append(line)
            while len(lines) > 1 and _at(lines[0], ends[i]) >= _at(lines[1], ends[i]):
                lines.popleft()
            row[i], cuts[i] = ends[i] ** 2 + _at(lines[0], ends[i]), lines[0][2]
        best = row
        came.append(cuts)
    found = [len(sizes)]
    for cuts in reversed(came):
        found.append(cuts[found[-1]])
    return found[:0:-1]


def _at(line: tuple[int, int, int], x: int) -> int:
    return line[0] * x + line[1]


def _never_least(a: tuple[int, int, int], b: tuple[int, int, int], c: tuple[int, int, int]) -> bool:
    """Whether line `b` is nowhere below both others; their slopes descend."""
    return (c[1] - a[1]) * (a[0] - b[0]) <= (b[1] - a[1]) * (a[0] - c[0])


def spread(order: Sequence[int], stratum: Sequence[int]) -> list[int]:
    """`order` rearranged so that every stretch of it has each stratum in nearly the share that the whole has.

    The i-th of m members of a stratum goes to the place (i + ½) / m of the way.
    """
    members: dict[int, list[int]] = {}
    for index in order:
        members.setdefault(stratum[index], []).append(index)
    places = [
        ((i + 0.5) / len(some), number, index) for number, some in members.items() for i, index in enumerate(some)
    ]
    return [index for _, _, index in sorted(places, key=lambda place: place[:2])]


class Order:
    """Examples by position: an endless sequence of which each step takes the next ones.

    Args:
        examples: the dataset.
        ordering: how they are ordered.
        seed: of the run.
        steps: of the run.
        width: groups of a step.

    Raises:
        ConfigError: a column is not there, or does not ascend because it has something else than numbers.
    """

    def __init__(self, examples: Sequence[Example], ordering: CurriculumConfig, seed: int, steps: int, width: int):
        self.size = len(examples)
        self.ordering = ordering
        self.seed = seed
        self.steps = steps
        self.width = width
        self._strata: list[int] | None = None
        self._ascending: list[int] | None = None
        self._epoch: tuple[int, list[int]] = (-1, [])
        if ordering.stratify is not None:
            self._strata = strata(column(examples, ordering.stratify), ordering.stratify_bins)
            if len(examples) > 1 and len(set(self._strata)) < 2:
                raise ConfigError(
                    f"stratify column '{ordering.stratify}' has the same value in all {len(examples)} examples; expected at "
                    "least two values: choose another column or remove stratify"
                )
        if ordering.column is not None:
            values = column(examples, ordering.column)
            wrong = next((value for value in values if not _is_number(value)), None)
            if wrong is not None:
                raise ConfigError(f"curriculum column '{ordering.column}' has {wrong!r}; expected numbers, to ascend")
            self._ascending = sorted(self._plain(0), key=lambda index: values[index])

    def step(self, step: int, position: int) -> Iterator[int]:
        """The examples a step may play, endlessly and the first choice first.

        Args:
            step: counted from 0.
            position: how many examples the steps before have taken; a curriculum does not go by it.
        """
        if self._ascending is None:
            while True:
                epoch, place = divmod(position, self.size)
                yield self._order(epoch)[place]
                position += 1
        window = min(self.width, self.size)  # slides over the sorted examples from the first to the last
        start = round(step / max(1, self.steps - 1) * (self.size - window))
        while True:
            yield from self._ascending[start:]
            yield from self._ascending[:start]

    def _order(self, epoch: int) -> list[int]:
        if self._epoch[0] != epoch:
            order = self._plain(epoch)
            self._epoch = (epoch, spread(order, self._strata) if self._strata is not None else order)
        return self._epoch[1]

    def _plain(self, epoch: int) -> list[int]:
        order = list(range(self.size))
        if self.ordering.shuffle:
            random.Random(derive_seed(self.seed, "order", epoch)).shuffle(order)
        return order


class Difficulty:
    """How examples have gone lately, and whether they still teach.

    Args:
        low: an example whose mean reward is at most this is skipped; None = none.
        high: so is one whose mean reward is at least this; None = none.
        steps: only rollouts of so many last steps count, so that a skipped example comes back.
    """

    def __init__(self, low: float | None, high: float | None, steps: int):
        self.low = low
        self.high = high
        self.steps = steps
        self._seen: dict[int, list[tuple[int, float]]] = {}

    @property
    def is_on(self) -> bool:
        """Whether anything can be skipped."""
        return self.low is not None or self.high is not None

    def add(self, records: Iterable[RolloutRecord | Outcome]) -> None:
        """Count rollouts, oldest steps first."""
        if not self.is_on:
            return
        for record in records:
            if record.reward is not None and record.step is not None:
                self._seen.setdefault(record.example_id, []).append((record.step, record.reward))

    def mean(self, example_id: int, step: int) -> float | None:
        """Mean reward of an example in the last steps before `step` (counted from 1); None when it was not played."""
        seen = self._seen.get(example_id)
        if not seen:
            return None
        seen[:] = [(played, reward) for played, reward in seen if played >= step - self.steps]
        return math.fsum(reward for _, reward in seen) / len(seen) if seen else None

    def skips(self, example_id: int, step: int) -> bool:
        """Whether an example is too hard or too easy to be played in `step`."""
        if not self.is_on:
            return False
        mean = self.mean(example_id, step)
        if mean is None:
            return False
        return (self.low is not None and mean <= self.low) or (self.high is not None and mean >= self.high)


class Draw:
    """Draws the examples of one step.

    Args:
        order: of the run.
        difficulty: of the examples so far.
        step: counted from 0.
        position: how many examples the steps before have drawn.
    """

    def __init__(self, order: Order, difficulty: Difficulty, step: int, position: int):
        self.size = order.size
        self.difficulty = difficulty
        self.number = step + 1
        self.position = position
        """How many examples have been drawn with this step's, those skipped included."""
        self.skipped = 0
        """Examples passed over as too hard or too easy."""
        self._candidates = order.step(step, position)

    def take(self, count: int) -> list[int]:
        """The next `count` examples that are not skipped; when a whole round of them would be, they are played after all."""
        taken: list[int] = []
        passed: list[int] = []
        while len(taken) < count:
            index = next(self._candidates)
            self.position += 1
            if len(passed) < self.size and self.difficulty.skips(index, self.number):
                passed.append(index)
                self.skipped += 1
            else:
                taken.append(index)
        return taken
