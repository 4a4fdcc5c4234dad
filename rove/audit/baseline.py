"""Facts about an environment before the checks: the form of an answer, the rewards of right and wrong answers, and chance."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

from rove.audit.replies import Form, constant, forms, from_answer, other_answer, random_answer
from rove.audit.subject import Measured, Policy, Subject, highest
from rove.core.messages import text_of

RIGHT_ANSWER = "right answer"
"""Name of the policy that replies with the row's own answer."""
FORM_EXAMPLES = 8
"""Number of examples on which forms of an answer are tried."""
FORMS_WITHOUT_ANSWER = 3
"""Number of forms that are tried without an answer if rows have no answers."""
STANDARD_ERRORS = 4.0
"""A paired difference counts as real if it exceeds this many standard errors; the limit accounts for the many replies of a
check."""
MIN_DIFFERENCE = 0.05
"""Minimum relevant difference between rewards, as a share of the range of rewards."""


class Baseline(NamedTuple):
    """Rewards with which other rewards are compared."""

    prompts: list[str]
    """Texts of some prompts."""
    form_name: str
    form: Form
    """The form of an answer that earned the most."""
    right_answer: Measured | None
    """Rollouts with the row's own answer in this form; None if rows have no answers, or no form earns more than a wrong answer.
    """
    guess: Policy
    """The policy that `floor` measures."""
    floor: Measured
    """Rollouts of the best policy without knowledge of the row, which gives another row's answer or the most frequent answer."""
    guesses: list[str]
    """Names of the measured policies that give answers of other rows; empty without answers or with several turns."""
    honest: list[Measured]
    """Rollouts of the environment's scripted policies."""
    is_multi_turn: bool
    """Whether rollouts have several turns."""

    @property
    def full(self) -> float:
        """Reward of a right answer, or of the best policy; at least 1 if both are missing."""
        means = [measured.mean for measured in self.honest]
        if self.right_answer is not None:
            means.append(self.right_answer.mean)
        return max(means, default=1.0)

    @property
    def range(self) -> float:
        """Reward of a right answer minus the reward of a guess."""
        return max(self.full - self.floor.mean, 1e-9)

    def share(self, reward: float) -> float:
        """Return the position of a reward between the rewards of a guess (0) and of a right answer (1)."""
        return (reward - self.floor.mean) / self.range


async def measure_baseline(subject: Subject) -> Baseline:
    """Find the form of an answer, and measure right answers, guesses, and the environment's policies."""
    rows = subject.rows[:FORM_EXAMPLES]
    prompts = [_prompt_text(row["prompt"]) for row in rows]
    policies = {f"policy {name}": policy for name, policy in subject.env.policies.items()}
    honest = [measured for measured in await subject.measure_all(policies) if measured.scored]
    turns: list[int] = []
    for measured in honest:
        turns += [len(record.steps) for record in measured.scored]
    answers = subject.answers
    forms_by_name = forms(prompts)
    right_answer: Measured | None = None
    if answers:
        tried = [await subject.measure(name, from_answer(form), FORM_EXAMPLES) for name, form in forms_by_name.items()]
        best = highest(tried)
        turns += [len(record.steps) for record in best.scored]
        form = forms_by_name[best.name]
        right_answer = await subject.measure(RIGHT_ANSWER, from_answer(form))
        guesses = {
            "most frequent answer": constant(form(statistics.mode(map(str, answers)))),
            "another row's answer": other_answer(answers, form),
            "a random row's answer": random_answer(answers, form),
        }
        floor = highest(await subject.measure_all(guesses))
        # Without a difference from a guess, the form is wrong or rows' answers are not what the grader compares with.
        if right_answer.mean <= floor.mean + MIN_DIFFERENCE * max(1.0, abs(right_answer.mean)):
            right_answer = None
    else:
        empty = {name: constant(form("")) for name, form in list(forms_by_name.items())[:FORMS_WITHOUT_ANSWER]}
        tried = await subject.measure_all(empty)
        best = highest(tried)
        form = forms_by_name[best.name]
        unsure = constant("I do not know.")
        guesses = {**empty, "unsure": unsure, **policies}
        candidates = [*tried, await subject.measure("unsure", unsure)]
        if len(honest) > 1:  # of several scripted policies, the weakest one shows chance
            candidates.append(min(honest, key=lambda measured: measured.mean))
        floor = highest(candidates)
    is_multi_turn = statistics.fmean(turns or [1.0]) > 1.5
    names = list(guesses) if answers and not is_multi_turn else []
    return Baseline(prompts, best.name, form, right_answer, guesses[floor.name], floor, names, honest, is_multi_turn)


def _prompt_text(prompt: Any) -> str:
    return prompt if isinstance(prompt, str) else "\n".join(map(text_of, prompt))


def is_higher(measured: Measured, reference: Measured, range_: float) -> bool:
    """Return whether a policy earns more than another on the same examples, beyond chance."""
    pairs = _paired(measured, reference)
    if len(pairs) < 5:
        return False
    difference = statistics.fmean(pairs)
    root = math.sqrt(len(pairs))
    # A few equal rewards have no deviation, but do not prove a difference.
    error = max(statistics.stdev(pairs), 0.5 * range_ / root) / root
    return difference > max(MIN_DIFFERENCE * range_, STANDARD_ERRORS * error)


def _paired(measured: Measured, reference: Measured) -> Sequence[float]:
    rewards = {record.example_id: record.scores.reward for record in reference.scored if record.scores}
    differences: list[float] = []
    for record in measured.scored:
        if record.scores and record.example_id in rewards:
            differences.append(record.scores.reward - rewards[record.example_id])
    return differences
