"""Which step trains which group, where groups end in any order: always in time, and whoever ends first is trained first.

A step has `width` places, and trains weights of its own number: step 0 those of version 0. A group that was started with
version v has to be trained by step v + `most`. With width 2, most 1 and four groups a b c d that were started with version 0
(all due by step 1), of which c and d end first:

    step 0   c d
    step 1   a b     which are waited for; were they under way still, no other group could take their places

A group is started only when it is sure to find a place in time, however slow it and the others are: so none is ever given up.
"""

from __future__ import annotations

from collections import Counter


class Places:
    """The places of all steps to come.

    Args:
        width: places of a step.
        most: versions that the weights may be ahead of those a group was started with, when it is trained.
        steps: of the run; later ones have no places.
        first: the next step that is trained, counted from 0.
        spare: groups that need no place (see `finish`) which a step may have besides.
    """

    def __init__(self, width: int, most: int, steps: int, first: int = 0, spare: int = 0):
        self.width, self.most, self.steps, self.spare = width, most, steps, spare
        self.first = first
        """The step that is handed out next."""
        self.version = first
        """Of the newest weights."""
        self._taken: Counter[int] = Counter()
        self._extra: Counter[int] = Counter()
        self._due: Counter[int] = Counter()  # groups under way, by the last step that may train them

    @property
    def is_full(self) -> bool:
        """Whether the next step has all its groups."""
        return self._taken[self.first] >= self.width

    @property
    def _last(self) -> int:
        return min(self.version + self.most, self.steps - 1)

    def may_start(self) -> bool:
        """Whether one more group would be trained in time in any case."""
        return self.first <= self._last and self._fits(self._last)

    def start(self) -> int:
        """A group is started with the newest weights; the last step that may train it."""
        self._due[self._last] += 1
        return self._last

    def finish(self, due: int, needs_place: bool = True) -> int:
        """A group has ended; the step that trains it, the earliest that leaves the others their places.

        Args:
            due: what `start` said.
            needs_place: it teaches something. One that does not is put beside the others, while there are few of them.
        """
        self._due[due] -= 1
        for step in range(self.first, due + 1):
            if self._taken[step] < self.width and self.put(step, needs_place):
                return step
        raise AssertionError(f"no place up to step {due}")

    def put(self, step: int, needs_place: bool = True) -> bool:
        """Give an ended group to a step if that leaves the others their places; whether it was."""
        if not needs_place and self._extra[step] < self.spare:
            self._extra[step] += 1
            return True
        self._taken[step] += 1
        if self._fits():
            return True
        self._taken[step] -= 1
        return False

    def hand_out(self) -> None:
        """The next step has been taken, to be trained."""
        del self._taken[self.first], self._extra[self.first]
        self.first += 1

    def _fits(self, another: int | None = None) -> bool:
        """Whether all groups under way, and another one due by a step, have places however long they take.

        They do when, for each step, no more are due by it than there are places up to it (Hall's condition).
        """
        due, free = 0, 0
        for step in range(self.first, self._last + 1):
            due += self._due[step] + (step == another)
            free += self.width - self._taken[step]
            if due > free:
                return False
        return True
