"""Rollouts as dataset rows."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import islice
from typing import Any

from rove.core.errors import ConfigError, RunError, nearest
from rove.core.records import RolloutRecord, Scores
from rove.rollouts.filters import Filter, merged_metrics
from rove.runs.annotations import Annotations
from rove.runs.run import RolloutKey, Run

CHECKED = 100
"""So many rollouts are put to a filter before anything is written."""

Row = dict[str, Any]


def dataset_row(record: RolloutRecord, scores: Scores) -> Row:
    """Return a scored rollout as a dataset row; `metrics` has every function of the rubric, `tools` those of the prompt."""
    return {
        "prompt": [dict(m) for m in record.prompt],
        "completion": [dict(m) for m in record.completion],
        "reward": scores.reward,
        "answer": record.answer,
        "info": record.info,
        "metrics": merged_metrics(scores),
        **({"tools": record.tools} if record.tools else {}),
    }


class RunRows:
    """Rows of the scored rollouts of a run that pass a filter, read from disk each time they are iterated.

    The rollouts are those of `Run.finished()`. Memory grows by a few numbers per rollout, never by texts.

    Args:
        run: the run folder.
        passes: which rollouts; all scored ones when not given.
        tags: Only rollouts with one of these tags (`rove view --annotate`). Default: all.
        not_tags: No rollouts with one of these tags.

    Raises:
        RunError: the folder is no run, none of its rollouts was scored, or annotations cannot be read.
        ConfigError: the filter cannot be applied to the first rollouts, or no rollout has a requested tag.
    """

    def __init__(
        self, run: Run, passes: Filter | None = None, tags: Collection[str] = (), not_tags: Collection[str] = ()
    ):
        run.config()
        self._run = run
        self._passes = passes
        lines = run.ledger()[0]
        self._places = {line.number for line in lines.values() if not line.failed}
        self.scored = len(self._places)
        """How many rollouts there are to choose from."""
        self.failed = len(lines) - self.scored
        """How many failed."""
        if not self._places:
            raise RunError(f"{run.path} has no scored rollouts ({self.failed} failed)")
        if tags or not_tags:
            of = _tags(run, (*tags, *not_tags))
            kept = {
                line.number
                for place, line in lines.items()
                if (not tags or of.get(place, set()) & set(tags)) and not of.get(place, set()) & set(not_tags)
            }
            self._places &= kept
        if passes is not None:
            for record in islice(self._records(), CHECKED):
                passes(record)

    def _records(self) -> Iterator[RolloutRecord]:
        return (record for place, record in enumerate(self._run.rollouts()) if place in self._places)

    def __iter__(self) -> Iterator[Row]:
        for record in self._records():
            if record.scores is not None and (self._passes is None or self._passes(record)):
                yield {
                    **dataset_row(record, record.scores),
                    "example_id": record.example_id,
                    "rollout_index": record.rollout_index,
                    "stop_condition": record.stop_condition,
                }


def _tags(run: Run, requested: Collection[str]) -> dict[RolloutKey, set[str]]:
    """Return the tags of every tagged rollout; raise an error if a requested tag is unknown."""
    annotations = Annotations(run.path)
    annotations.check()
    known = annotations.tags()
    for tag in requested:
        if tag not in known:
            raise ConfigError(f"no rollout of {run.path} is tagged '{tag}'; {nearest(tag, known)}")
    return {key: set(one.tags) for key, one in annotations.rollouts.items()}
