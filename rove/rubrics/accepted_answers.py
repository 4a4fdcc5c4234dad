"""Score a reply against several accepted answers."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from rove.core.records import Scores
from rove.core.state import State
from rove.rubrics.rubric import Rubric, RubricGroup

ACCEPTED_ANSWERS = "accepted_answers"
"""Column of a dataset row with its accepted answers, if it has several."""


def accepted_answers(state: State) -> Sequence[str]:
    """Return the accepted answers of a rollout's dataset row; empty if it has only one."""
    row: Any = state.get("input") or {}
    return row.get(ACCEPTED_ANSWERS) or []


class AcceptedAnswersRubric(RubricGroup):
    """Scores a reply against each accepted answer of its row, and keeps the scores with the highest reward.

    Reward functions see one answer at a time as `answer`. Functions over a whole group see the first one.
    """

    def __init__(self, rubric: Rubric):
        super().__init__([rubric])

    async def score_rollout(self, state: State) -> Scores:
        """Score one finished rollout; see `Rubric.score_rollout`."""
        answers = accepted_answers(state)
        if not answers:
            return await super().score_rollout(state)
        scores: list[Scores] = []
        for answer in answers:
            view = copy.copy(state)
            view["answer"] = answer
            scores.append(await super().score_rollout(view))
        return max(scores, key=lambda scored: scored.reward)
