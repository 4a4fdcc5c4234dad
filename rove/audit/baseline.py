"""Facts about an environment before the checks: the form of an answer, the rewards of right and wrong answers, and chance."""

from __future__ import annotations

import math
import random
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rove.audit.replies import (
    Form,
    constant,
    forms,
    from_answer,
    label_forms,
    observed_actions,
    other_answer,
    policy_forms,
    random_answer,
)
from rove.audit.similarity import normalized
from rove.audit.subject import Measured, Policy, Subject, highest
from rove.core.messages import Messages, text_of
from rove.core.plain import JsonMapping
from rove.core.records import RolloutRecord
from rove.core.state import State, bookkeeping

RIGHT_ANSWER = "right answer"
"""Name of the policy that replies with the row's own answer."""
IDLE = {"doing nothing": "", "doing nothing, in words": "I do not know."}
"""Name → reply of the idle policies."""
FORM_EXAMPLES = 8
"""Number of examples on which forms of an answer are tried."""
FORMS_WITHOUT_ANSWER = 3
"""Number of forms that are tried without an answer if rows have no answers."""
STANDARD_ERRORS = 4.0
"""A paired difference counts as real if it exceeds this many standard errors; the limit accounts for the many replies of a
check."""
SEVERAL_TURNS = 1.5
"""If rollouts have more turns than this on average, they have several turns."""
MIN_PAIRS = 5
"""Minimum number of examples for a comparison."""
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
    """Names of the measured policies that give answers of other rows; empty without answers, and in games."""
    honest: list[Measured]
    """Rollouts of the environment's scripted policies."""
    is_multi_turn: bool
    """Whether rollouts have several turns."""
    is_retried: bool
    """Whether rollouts have several turns after a wrong answer or a valid move, although the scripted policies or the right
    answer need one: a guessing game, or a game that an invalid move ends."""
    has_tools: bool
    """Whether the model can call tools."""
    own_answer: Measured | None
    """The row's own answer in the form, also where it earns no more than a wrong answer; None if rows have no answers."""
    idle: Measured
    """The better one of the two idle policies: the empty reply, and "I do not know." (not in tasks of one turn without answers).
    """
    chance: float
    """Share of the rows that the most frequent answer gets right. It comes from the rows, so no grader can raise it."""

    @property
    def tools(self) -> Sequence[JsonMapping]:
        """The tools that the model can call."""
        for record in self.idle.records:
            if record.tools:
                return record.tools
        return []

    @property
    def zero(self) -> float:
        """The reward that a sound environment pays an idle policy: 0, or what it earns if all rewards are negative."""
        return 0.0 if self.full > 0 else self.idle.mean

    @property
    def task_range(self) -> float:
        """Reward of a right answer minus the reward of an idle policy in a sound environment."""
        return self.full - self.zero

    def share_of_task(self, reward: float, expected: float = 0.0) -> float:
        """Return the position of a reward between `zero` and a right answer, above an expected share.

        Unlike `share`, the comparison does not depend on what the grader pays for guesses.

        Args:
            expected: Share that the task itself gives a reply, such as the share of rows that a constant answer gets right.
        """
        share = (reward - self.zero) / max(self.task_range, 1e-9)
        return (share - expected) / max(1.0 - expected, 1e-9)

    @property
    def full(self) -> float:
        """Reward of a right answer or of the best policy, whichever is higher; 1 if both are missing."""
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


class _Guesses(NamedTuple):
    """The form of an answer, and the rewards of guesses and of right answers in this form."""

    form_name: str
    form: Form
    policies: Mapping[str, Policy]
    """Name → policy that does not know its row; `floor` is the measurement of one of them."""
    floor: Measured
    tried: Measured
    """Rollouts of the form on a few examples."""
    own_answer: Measured | None = None
    right_answer: Measured | None = None
    chance: float = 0.0


async def measure_baseline(subject: Subject) -> Baseline:
    """Find the form of an answer, and measure right answers, guesses, and the environment's policies."""
    prompts = [_prompt_text(row["prompt"]) for row in subject.rows[:FORM_EXAMPLES]]
    policies = {f"policy {name}": policy for name, policy in subject.env.policies.items()}
    honest = [measured for measured in await subject.measure_all(policies) if measured.scored]
    answers = subject.answers
    forms_by_name = forms(prompts) | label_forms(prompts, answers)
    if honest:
        forms_by_name |= policy_forms([(_last_reply(record), record.answer) for record in highest(honest).scored])
    if answers:
        guesses = await _guesses_with_answers(subject, forms_by_name)
    else:
        guesses = await _guesses_without_answers(subject, forms_by_name, policies, honest)
    turns: list[int] = []
    for measured in [*honest, guesses.tried] if answers else honest:
        turns += [len(record.steps) for record in measured.scored]
    is_multi_turn = statistics.fmean(turns or [1.0]) > SEVERAL_TURNS
    is_retried = _mean_turns(guesses.floor) > SEVERAL_TURNS
    if not (is_retried or is_multi_turn or honest):
        # A game may end at the first invalid move, so that only valid moves show that it has several turns.
        moves = [
            await subject.measure(name, policy, FORM_EXAMPLES) for name, policy in _moves(prompts, guesses.form).items()
        ]
        is_retried = max(map(_mean_turns, moves)) > SEVERAL_TURNS
    idle_replies = [await _idle(subject, name, reply) for name, reply in IDLE.items()]
    has_tools = any(record.tools for record in idle_replies[0].records)
    # In a task without answers, such as writing a short sentence, "I do not know." may be right.
    idle = highest(idle_replies if answers or is_multi_turn or has_tools else idle_replies[:1])
    names = list(guesses.policies) if answers and (has_tools or not is_multi_turn) else []
    return Baseline(
        prompts=prompts,
        form_name=guesses.form_name,
        form=guesses.form,
        right_answer=guesses.right_answer,
        guess=guesses.policies[guesses.floor.name],
        floor=guesses.floor,
        guesses=names,
        honest=honest,
        is_multi_turn=is_multi_turn,
        is_retried=is_retried,
        has_tools=has_tools,
        own_answer=guesses.own_answer,
        idle=idle,
        chance=guesses.chance,
    )


def _mean_turns(measured: Measured) -> float:
    return statistics.fmean([len(record.steps) for record in measured.scored] or [1.0])


def _moves(prompts: Sequence[str], form: Form) -> dict[str, Policy]:
    """Return policies whose moves may be valid in a game: those that prompts mention, and the numbers from 1."""
    actions = list(dict.fromkeys(action for prompt in prompts for action in observed_actions(prompt))) or ["1"]

    def mentioned(messages: Messages, state: State, rng: random.Random) -> str:
        return form(actions[len(bookkeeping(state).trajectory) % len(actions)])

    def numbers(messages: Messages, state: State, rng: random.Random) -> str:
        return form(str(len(bookkeeping(state).trajectory) + 1))

    return {"the moves of the prompts in turns": mentioned, "the numbers from 1": numbers}


async def _guesses_with_answers(subject: Subject, forms_by_name: Mapping[str, Form]) -> _Guesses:
    """Measure answers of other rows, in the form in which the row's own answer earns the most."""
    answers = subject.answers
    # No setting names the form that a grader reads, so the form with the highest reward counts as the right one.
    tried = [await subject.measure(name, from_answer(form), FORM_EXAMPLES) for name, form in forms_by_name.items()]
    best = highest(tried)
    form = forms_by_name[best.name]
    own_answer = await subject.measure(RIGHT_ANSWER, from_answer(form))
    policies = {
        "most frequent answer": constant(form(statistics.mode(map(str, answers)))),
        "another row's answer": other_answer(answers, form),
        "a random row's answer": random_answer(answers, form),
    }
    floor = highest(await subject.measure_all(policies))
    # Without a difference from a guess, the form is wrong or rows' answers are not what the grader compares with.
    # Rewards may be small as a whole; without a positive one, small differences may come from penalties, such as one for length.
    scale = own_answer.mean if own_answer.mean > 0 else max(1.0, -own_answer.mean)
    is_accepted = own_answer.mean > floor.mean + MIN_DIFFERENCE * scale
    _, count = Counter(normalized(str(answer)) for answer in answers).most_common(1)[0]
    return _Guesses(
        form_name=best.name,
        form=form,
        policies=policies,
        floor=floor,
        tried=best,
        own_answer=own_answer,
        right_answer=own_answer if is_accepted else None,
        chance=count / len(answers),
    )


async def _guesses_without_answers(
    subject: Subject, forms_by_name: Mapping[str, Form], policies: Mapping[str, Policy], honest: Sequence[Measured]
) -> _Guesses:
    """Measure forms without an answer, and "I do not know."."""
    empty = {name: constant(form("")) for name, form in list(forms_by_name.items())[:FORMS_WITHOUT_ANSWER]}
    best = highest([await subject.measure(name, policy, FORM_EXAMPLES) for name, policy in empty.items()])
    unsure = constant("I do not know.")
    candidates = [await subject.measure(best.name, empty[best.name]), await subject.measure("unsure", unsure)]
    if len(honest) > 1:  # of several scripted policies, the weakest one shows chance
        candidates.append(min(honest, key=lambda measured: measured.mean))
    return _Guesses(
        form_name=best.name,
        form=forms_by_name[best.name],
        policies={**empty, "unsure": unsure, **policies},
        floor=highest(candidates),
        tried=best,
    )


async def _idle(subject: Subject, name: str, reply: str) -> Measured:
    """Measure an idle policy; long games are expensive, so an equal reply is not measured again."""
    # Without answers, the guesses were these replies: the form "plain" without an answer is the empty reply.
    equal = subject.measured.get("plain" if reply == "" else "unsure")
    if equal is not None and not subject.answers and len(equal.records) == min(subject.count, len(subject.rows)):
        return Measured(name, equal.records)
    return await subject.measure(name, constant(reply))


def _last_reply(record: RolloutRecord) -> str:
    is_reply = bool(record.completion) and record.completion[-1]["role"] == "assistant"
    return text_of(record.completion[-1]) if is_reply else ""


def _prompt_text(prompt: Any) -> str:
    return prompt if isinstance(prompt, str) else "\n".join(map(text_of, prompt))


def is_higher(measured: Measured, reference: Measured, range_: float) -> bool:
    """Return whether a policy earns more than another on the same examples, beyond chance."""
    pairs = paired_differences(measured, reference)
    if len(pairs) < MIN_PAIRS:
        return False
    return statistics.fmean(pairs) > max(MIN_DIFFERENCE * range_, STANDARD_ERRORS * _error(pairs, range_))


def beats_guess(measured: Measured, base: Baseline) -> bool:
    """Return whether a policy earns more than a guess, beyond chance, and more than a sound environment pays an idle policy.

    Where wrong answers are punished, guesses earn less than an empty reply, which is a usual design.
    """
    limit = base.zero + MIN_DIFFERENCE * base.task_range
    return measured.mean > limit and is_higher(measured, base.floor, base.range)


def is_above(measured: Measured, reward: float, range_: float) -> bool:
    """Return whether a policy earns more than a fixed reward, beyond chance."""
    count = len(measured.rewards)
    if count < MIN_PAIRS:
        return False
    difference = measured.mean - reward
    return difference > max(MIN_DIFFERENCE * range_, STANDARD_ERRORS * _error(measured.rewards, range_))


def visible_share(count: int) -> float:
    """Return the smallest share of `count` rows with a full reward that can be distinguished from chance.

    It solves share = `STANDARD_ERRORS` · √(share · (1 − share) / count), the condition of `is_above`.
    """
    return max(MIN_DIFFERENCE, STANDARD_ERRORS**2 / (count + STANDARD_ERRORS**2))


def _error(values: Sequence[float], range_: float) -> float:
    """Return the standard error of a mean, computed with a deviation of at least half of the range divided by √n."""
    # A few equal values have no deviation, but they prove little: without the minimum, any difference would be significant.
    root = math.sqrt(len(values))
    return max(statistics.stdev(values), 0.5 * range_ / root) / root


def paired_differences(measured: Measured, reference: Measured) -> Sequence[float]:
    """Return what a policy earns more than another one, for each example of both."""
    rewards = {record.example_id: record.scores.reward for record in reference.scored if record.scores}
    differences: list[float] = []
    for record in measured.scored:
        if record.scores and record.example_id in rewards:
            differences.append(record.scores.reward - rewards[record.example_id])
    return differences
