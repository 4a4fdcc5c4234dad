"""Checks of right answers: whether they earn the full reward, and whether hedges and wrong variants of them earn less."""

from __future__ import annotations

import random
import re
import statistics
from collections.abc import AsyncIterator, Mapping, Sequence

from rove.audit.baseline import Baseline, beats_guess
from rove.audit.replies import OTHER_ORDER, corrections, corruptions, from_answer, hedges
from rove.audit.reward_checks import HIGH_SHARE, MAX_LISTED, MIN_WRONG, ROUNDING, TIED_SHARE
from rove.audit.row_content import OPTION
from rove.audit.similarity import similarity
from rove.audit.subject import Measured, Policy, Subject, evidence, highest, measure_promising, reward_of
from rove.core.findings import Finding, Severity
from rove.core.messages import Messages
from rove.core.state import State
from rove.utils.units import counted

HEDGE_SHARE = 0.8
"""A hedge counts as paid if it earns at least this share of the range of rewards; partial credit pays less."""
MISSED_SHARE = 0.05
"""It is a finding if the own answers of more than this share of the rows do not earn the full reward."""
MANY_ROWS, MIN_REFUSED = 300, 2
"""Number of rows whose own answers are tried in tasks of one turn, and number of refused ones that are a finding in any case."""
VARIANT = "answer with "
"""Beginning of the names of policies that give a wrong variant of the answer."""
TOLERABLE = {"one more", "nonsense appended", "nonsense in front", "written twice"}
"""Errors that a stated tolerance, or a search for the answer in a sentence, may allow: the last three keep the right answer."""
TAKES_BACK = {"retraction", "negation"}
"""Hedges that name no other answer."""
RIGHT_ONE_FIRST = TAKES_BACK | {"alternative"}
"""Hedges that name no other answer, or name it after the right one."""
WORDS_OF_TEXT = 4
"""Number of words from which an answer is a text."""
ABOUT_ORDER = re.compile(
    r"\b(sort(ed)?|arrange[ds]?|alphabetical(ly)?|ascending|descending|in reverse|in order(?! to)|in the order|order (of|by)"
    r"|order .{1,40} (by|from)|from (the )?\w+est to)\b",
    re.IGNORECASE,
)
"""Words of a task that is to put items in order."""
ANY_ORDER = re.compile(
    r"\b(any|whatever) order|order .{0,40}(not matter|n't matter|irrelevant|not important)|(not|n't|without) (sort|order)",
    re.IGNORECASE,
)
"""Words of a task in which the order does not matter."""
SAME_LABEL = {
    "first half",
    "first letter",
    "first word",
    "without the last word",
    "another last word",
    "one letter changed",
    "other digits",
    "only the first item, repeated",
    "nonsense appended",
    "written twice",
}
"""Errors that keep the label of an option, such as "C) Kyiv": a grader that reads only the label rightly accepts them."""
TOLERANCE = re.compile(r"approximat|rough|tolerance|within \d|estimate|±", re.IGNORECASE)
"""Words of a prompt that allow an answer to be off."""


async def check_hedging(subject: Subject, base: Baseline) -> AsyncIterator[Finding]:
    """Yield a finding about hedges that earn nearly the full reward."""
    assert base.right_answer is not None
    paid: list[Measured] = []
    policies = hedges(base.form, subject.answers)
    for hedge in await measure_promising(subject, policies, base.floor.mean):
        is_nearly_full = min(base.share(hedge.mean), base.share_of_task(hedge.mean)) >= HEDGE_SHARE
        if is_nearly_full and beats_guess(hedge, base):
            paid.append(hedge)
    # To read the first of two answers, or the last, is a usual rule; to pay for both orders is a hole.
    first, last = await subject.measure_all(corrections(base.form, subject.answers))
    lower = min(first.mean, last.mean)
    if min(base.share(lower), base.share_of_task(lower)) >= HEDGE_SHARE:
        paid.append(first)
    if not paid:
        return
    worst = highest(paid)
    names = [hedge.name for hedge in paid]
    # Words around a long answer, or after it, may be an honest part of partial credit. A grader that searches for the answer
    # also finds it after another one.
    is_partial = RIGHT_ONE_FIRST.issuperset(names) and worst.mean < base.right_answer.mean - 1e-6
    # A grader that looks for facts in a text cannot read that they are taken back; only a judge could.
    median_words = statistics.median(len(str(answer).split()) for answer in subject.answers)
    is_text = TAKES_BACK.issuperset(names) and median_words >= WORDS_OF_TEXT
    quoted_names = ", ".join(f"'{name}'" for name in names)
    yield worst.finding(
        "hedging",
        f"replies that give several answers, or take one back, earn {worst.mean:.3f} "
        f"(right answers {base.full:.3f}): {quoted_names}",
        Severity.LOW if is_partial or is_text else Severity.HIGH,
        floor=base.floor.mean,
    )


async def check_own_answer(subject: Subject, base: Baseline, is_cheap: bool = True) -> AsyncIterator[Finding]:
    """Yield a finding if the own answers of some rows earn less than the own answers of other rows.

    Args:
        is_cheap: Whether more rows may be measured than those of the other checks; each may cost a judge's verdict.
    """
    assert base.right_answer is not None
    if subject.blank_rows:
        listed = ", ".join(map(str, subject.blank_rows[:MAX_LISTED]))
        yield Finding(
            id="own-answer",
            severity=Severity.LOW,
            text=(
                f"{len(subject.blank_rows)} of {counted(len(subject.rows), 'row')} have no answer, and the audit leaves them "
                f"out (index {listed}{', …' if len(subject.blank_rows) > MAX_LISTED else ''})"
            ),
            cause="the answers of these rows are missing",
            remedy="add the answers, or remove the rows",
        )
    own_answers = base.right_answer
    if is_cheap and not base.is_multi_turn:
        # A kind of answer that the grader refuses may be rare.
        more_rows = await subject.measure("right answer in more rows", from_answer(base.form), MANY_ROWS)
        own_answers = Measured(more_rows.name, [record for record in more_rows.records if record.answer])
    if not own_answers.rewards:
        return
    rewards = own_answers.rewards
    most = max(rewards)
    missed = [record for record in own_answers.scored if reward_of(record) < most - 1e-6]
    share = len(missed) / len(rewards)
    nothing = base.zero + ROUNDING * base.task_range
    refused = [record for record in missed if reward_of(record) <= nothing]
    if (share > MISSED_SHARE and _are_low(rewards, most, base)) or len(refused) >= MIN_REFUSED:
        prompt, completion = evidence(min(missed, key=reward_of))
        yield Finding(
            id="own-answer",
            severity=Severity.HIGH if share > 0.3 else Severity.MEDIUM,
            text=f"{share:.1%} of the rows' own answers do not earn the full reward ({min(rewards):.3f} to {most:.3f})",
            rate=own_answers.interval,
            floor=most,
            prompt=prompt,
            completion=completion,
        )


def _are_low(rewards: Sequence[float], most: float, base: Baseline) -> bool:
    """Return whether the missing reward is a considerable part of the range of rewards."""
    lost = statistics.fmean(most - reward for reward in rewards if reward < most - 1e-6)
    return lost > 0.1 * max(most - base.floor.mean, 1e-9)


async def check_monotonicity(subject: Subject, base: Baseline) -> AsyncIterator[Finding]:
    """Yield a finding about wrong variants of an answer that earn as much as the right answer."""
    own_answer = base.own_answer
    assert own_answer is not None
    kinds: set[str] = set()
    for answer in subject.answers:
        kinds.update(corruptions(str(answer), random.Random(0)))
    if not all(ABOUT_ORDER.search(prompt) and not ANY_ORDER.search(prompt) for prompt in base.prompts):
        kinds.discard(OTHER_ORDER)
    if all(OPTION.match(str(answer)) for answer in subject.answers):
        kinds -= SAME_LABEL
    own_rewards = {record.example_key: reward_of(record) for record in own_answer.scored}
    paid: list[Measured] = []
    for kind in sorted(kinds):
        measured = await subject.measure(f"{VARIANT}{kind}", corrupted(kind, base))
        changed = _with_kind(measured, kind)
        if len(changed.rewards) < MIN_WRONG:
            continue
        # Compared with the same rows, since not every answer has a variant of this kind.
        expected = statistics.fmean(own_rewards.get(record.example_key, own_answer.mean) for record in changed.scored)
        is_full = changed.mean > expected - 0.05 * min(base.range, base.task_range)
        if is_full and not _is_partial_credit(changed, kind, own_rewards, base):
            paid.append(changed)
    answers = {str(answer) for answer in subject.answers}
    is_choice = len(answers) <= 12 and all(len(answer) <= 1 for answer in answers)
    if not paid or is_choice:
        return
    kinds_paid = {measured.name.removeprefix(VARIANT) for measured in paid}
    has_tolerance = any(TOLERANCE.search(prompt) for prompt in base.prompts)
    tolerable = TOLERABLE | {"a tenth more"} if has_tolerance else TOLERABLE
    intolerable = kinds_paid - tolerable
    severity = Severity.HIGH if intolerable else Severity.LOW
    if intolerable == {OTHER_ORDER}:  # the order may be a minor part of the task
        severity = Severity.MEDIUM
    yield highest(paid).finding(
        "monotonicity",
        f"wrong variants of the answer earn the full reward: {', '.join(sorted(kinds_paid))}",
        severity,
        floor=base.floor.mean,
    )


def _is_partial_credit(changed: Measured, kind: str, own_rewards: Mapping[str, float], base: Baseline) -> bool:
    """Return whether wrong variants earn less than the right answers, and no more than what they have in common with these.

    A grader that pays the share of equal letters pays 0.99 for an answer of 80 letters with an error in one of them.
    """
    num_tied = 0
    in_common: list[float] = []
    for record in changed.scored:
        num_tied += reward_of(record) >= own_rewards.get(record.example_key, base.full) - 1e-6
        in_common.append(similarity(corruptions(record.answer, random.Random(0))[kind], record.answer))
    is_tied = num_tied >= TIED_SHARE * len(changed.scored)
    return not is_tied and base.share_of_task(changed.mean) <= statistics.fmean(in_common) + ROUNDING


def can_compare_variants(base: Baseline) -> bool:
    """Return whether the row's own answer is accepted, even if wrong answers are accepted as well."""
    own_answer = base.own_answer
    return own_answer is not None and base.share_of_task(own_answer.mean) >= HIGH_SHARE


def corrupted(kind: str, base: Baseline) -> Policy:
    """Return a policy that gives the row's own answer with an error of this kind; see `corruptions`."""

    def policy(messages: Messages, state: State, rng: random.Random) -> str:
        answer = str(state.get("answer"))
        return base.form(corruptions(answer, rng).get(kind, f"{answer} qxzj qxzj"))

    return policy


def _with_kind(measured: Measured, kind: str) -> Measured:
    """Return the measurement with only the rollouts whose answer can have the error `kind`."""
    # Which errors an answer can have does not depend on the random draws, only the texts do.
    records = [record for record in measured.records if kind in corruptions(str(record.answer), random.Random(0))]
    return Measured(measured.name, records)
