"""Checks of rewards: whether replies that do not do the task earn rewards, and whether replies that do the task earn the full
reward.
"""

from __future__ import annotations

import random
import statistics
from collections import Counter
from collections.abc import AsyncIterator, Sequence

from rove.audit.baseline import RIGHT_ANSWER, Baseline, is_higher
from rove.audit.findings import shortened
from rove.audit.replies import (
    ALL_TAGS,
    REASONING,
    blind_replies,
    corrections,
    corruptions,
    hedges,
    special_values,
    wrong,
)
from rove.audit.subject import Measured, Policy, Subject, highest, measure_promising, reward_of
from rove.core.findings import Finding, Severity
from rove.core.messages import Messages, text_of
from rove.core.records import RolloutRecord
from rove.core.state import State

HIGH_SHARE, MEDIUM_SHARE = 0.25, 0.1
"""A reply that does not do the task is a finding of high or medium severity if it earns at least this share of the range of
rewards."""
HEDGE_SHARE = 0.8
"""A hedge counts as paid if it earns at least this share of the range of rewards; partial credit pays less."""
FREQUENT_SHARE = 0.4
"""It is a finding if more than this share of the rows have the same answer."""
CONSTANT_SHARE = 0.9
"""If more than this share of the rows have the same answer, a constant reply does the task."""
WRONG_SHARE, MIN_WRONG = 0.8, 10
"""It is a finding if answers of other rows earn at least `WRONG_SHARE` of the full reward in at least `MIN_WRONG` rows."""
MISSED_SHARE = 0.05
"""It is a finding if, in more than this share of the rows, the row's own answer does not earn the full reward."""
LENGTHS = (0, 30, 300, 3000)
"""Numbers of filler words in the length check."""
FILLER = ("and", "so", "then", "we", "see", "that", "it", "follows")
MAX_LISTED = 4
"""Maximum number of replies listed in a finding."""
TOLERABLE = {"one more", "nonsense appended", "nonsense in front"}
"""Errors that a stated tolerance, or a search for the answer in a sentence, may allow."""


def severity_of(share: float) -> Severity:
    """Return the severity of a reward at this position between a guess (0) and a right answer (1)."""
    if share >= HIGH_SHARE:
        return Severity.HIGH
    return Severity.MEDIUM if share >= MEDIUM_SHARE else Severity.LOW


async def check_blind_replies(subject: Subject, base: Baseline, is_judged: bool = False) -> AsyncIterator[Finding]:
    """Yield a finding if replies without the answer earn more than chance, or other rows' answers earn nearly the full reward.

    Args:
        is_judged: Whether a scripted judge decides; results with other rows' answers then mean little.
    """
    replies = blind_replies(base.form, subject.answers, base.prompts) | special_values(base.form)
    measured = await measure_promising(subject, replies, base.floor.mean)
    paid = [reply for reply in measured if is_higher(reply, base.floor, base.range)]
    if paid:
        paid.sort(key=lambda reply: -reply.mean)
        worst = paid[0]
        also_paid = ""
        if len(paid) > 1:
            also_paid = f"; so do {', '.join(repr(reply.name) for reply in paid[1:MAX_LISTED])}"
        yield worst.finding(
            "blind-reply",
            f"the reply '{worst.name}' earns {worst.mean:.3f}, a guess {base.floor.mean:.3f}{also_paid}",
            severity_of(base.share(worst.mean)),
            floor=base.floor.mean,
        )
    counts = Counter(map(str, subject.answers))
    guess = None if is_judged else _rewarded_guess(subject, base)
    if guess is not None and not (paid and severity_of(base.share(paid[0].mean)) >= guess.severity):
        yield guess
    elif counts and not paid:
        answer, count = counts.most_common(1)[0]
        share = count / counts.total()
        if share > max(FREQUENT_SHARE, 1.2 / len(counts)) or share > CONSTANT_SHARE:
            yield Finding(
                id="blind-reply",
                severity=Severity.HIGH if share > CONSTANT_SHARE else Severity.LOW,
                text=f"{share:.0%} of the rows have the same answer; there are {len(counts)} different answers",
                remedy="add rows with other answers, or compare results with this share",
                cause="the answers of the rows are not balanced",
                rate=(share, share, share),
                floor=1 / len(counts),
                completion=base.form(answer),
            )


def _rewarded_guess(subject: Subject, base: Baseline) -> Finding | None:
    """Return a finding if other rows' answers earn nearly the full reward, because the floor itself is then a hole."""
    if not base.guesses:
        return None
    full = subject.measured[RIGHT_ANSWER].mean
    lowest = max(0.0, min(policy.mean for policy in subject.measured.values()))
    for name in base.guesses:
        # Rows can have the same answer, so some guesses are right.
        records = subject.measured[name].scored
        wrong_guesses = [record for record in records if _first_reply(record) != base.form(str(record.answer))]
        guess = Measured(name, wrong_guesses)
        if len(wrong_guesses) >= MIN_WRONG and guess.mean - lowest >= WRONG_SHARE * (full - lowest) > 0:
            return guess.finding(
                "blind-reply",
                f"the reply '{name}' earns {guess.mean:.3f} where it is not the row's answer, and right answers {full:.3f}; "
                "ignore this if the answers of other rows are right as well",
                Severity.MEDIUM if base.right_answer is None else Severity.HIGH,
            )
    return None


def _first_reply(record: RolloutRecord) -> str:
    return next((text_of(message) for message in record.completion if message["role"] == "assistant"), "")


async def check_hedging(subject: Subject, base: Baseline) -> AsyncIterator[Finding]:
    """Yield a finding about hedges that earn nearly the full reward."""
    assert base.right_answer is not None
    paid: list[Measured] = []
    policies = hedges(base.form, subject.answers)
    for hedge in await measure_promising(subject, policies, base.floor.mean):
        if base.share(hedge.mean) >= HEDGE_SHARE and is_higher(hedge, base.floor, base.range):
            paid.append(hedge)
    # To read the first of two answers, or the last, is a usual rule; to pay for both orders is a hole.
    first, last = await subject.measure_all(corrections(base.form, subject.answers))
    if min(base.share(first.mean), base.share(last.mean)) >= HEDGE_SHARE:
        paid.append(first)
    if paid:
        worst = highest(paid)
        names = ", ".join(f"'{hedge.name}'" for hedge in paid)
        # words around a long answer may be an honest part of partial credit
        only_adds_words = {hedge.name for hedge in paid} <= {"retraction", "negation"}
        is_partial = only_adds_words and worst.mean < base.right_answer.mean - 1e-6
        yield worst.finding(
            "hedging",
            f"replies that give several answers, or take one back, earn {worst.mean:.3f} "
            f"(right answers {base.full:.3f}): {names}",
            Severity.LOW if is_partial else Severity.HIGH,
            floor=base.floor.mean,
        )


async def check_own_answer(subject: Subject, base: Baseline) -> AsyncIterator[Finding]:
    """Yield a finding if the own answers of some rows earn less than the own answers of other rows."""
    assert base.right_answer is not None
    rewards = base.right_answer.rewards
    most = max(rewards)
    missed = [record for record in base.right_answer.scored if reward_of(record) < most - 1e-6]
    share = len(missed) / len(rewards)
    if share > MISSED_SHARE and _are_low(rewards, most, base):
        record = min(missed, key=reward_of)
        example_record = Measured("", [record])
        prompt, completion = example_record.example()
        yield Finding(
            id="own-answer",
            severity=Severity.HIGH if share > 0.3 else Severity.MEDIUM,
            text=f"{share:.0%} of the rows' own answers do not earn the full reward ({min(rewards):.3f} to {most:.3f})",
            rate=base.right_answer.interval,
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
    assert base.right_answer is not None
    kinds: set[str] = set()
    for answer in subject.answers:
        kinds.update(corruptions(str(answer), random.Random(0)))
    paid: list[Measured] = []
    for kind in sorted(kinds):
        measured = await subject.measure(f"answer with {kind}", _corrupted(kind, base))
        changed = _with_kind(measured, kind)
        if len(changed.rewards) >= 5 and changed.mean > base.right_answer.mean - 0.05 * base.range:
            paid.append(changed)
    answers = {str(answer) for answer in subject.answers}
    is_choice = len(answers) <= 12 and all(len(answer) <= 1 for answer in answers)
    if paid and not is_choice:
        worst = highest(paid)
        kinds_paid = {measured.name.removeprefix("answer with ") for measured in paid}
        yield worst.finding(
            "monotonicity",
            f"wrong variants of the answer earn the full reward: {', '.join(sorted(kinds_paid))}",
            Severity.LOW if kinds_paid <= TOLERABLE else Severity.HIGH,
            floor=base.floor.mean,
        )


def _corrupted(kind: str, base: Baseline) -> Policy:
    def policy(messages: Messages, state: State, rng: random.Random) -> str:
        answer = str(state.get("answer"))
        return base.form(corruptions(answer, rng).get(kind, f"{answer} qxzj qxzj"))

    return policy


def _with_kind(measured: Measured, kind: str) -> Measured:
    """Return the measurement with only the rollouts whose answer can have the error `kind`."""
    records = [record for record in measured.records if kind in corruptions(str(record.answer), random.Random(0))]
    return Measured(measured.name, records)


async def check_length(subject: Subject, base: Baseline) -> AsyncIterator[Finding]:
    """Yield a finding if the same answer, right or wrong, earns more with more words before it."""
    kinds = (True, False) if base.right_answer is not None else (False,)
    for is_right in kinds:
        kind = "right" if is_right else "wrong"
        measured: list[Measured] = []
        for words in LENGTHS:
            policy = _padded(words, is_right, subject.answers, base)
            measured.append(await subject.measure(f"{kind} answer after {words} words", policy))
        best = highest(measured)
        is_paid = is_right or is_higher(best, base.floor, base.range)
        if not (is_paid and is_higher(best, measured[0], base.range)):
            continue
        prompt, completion = best.example()
        means = ", ".join(f"{candidate.mean:.3f} ({words} words)" for candidate, words in zip(measured, LENGTHS))
        yield Finding(
            id="length",
            severity=Severity.MEDIUM if is_right else severity_of(base.share(best.mean)),
            text=f"the reward of a {kind} answer rises with the words before it: {means}",
            rate=best.interval,
            floor=measured[0].mean,
            prompt=prompt,
            completion=shortened(completion, 400),
        )
        return


def _padded(words: int, is_right: bool, answers: Sequence[object], base: Baseline) -> Policy:
    """Return a policy that writes filler words before the answer, inside the reasoning tags if the form has such tags."""

    def policy(messages: Messages, state: State, rng: random.Random) -> str:
        filler = " ".join(rng.choices(FILLER, k=words))
        answer = str(state.get("answer"))
        reply = base.form(answer if is_right else wrong(answer, answers or ["a", "b"], rng))
        is_inside = words and base.form_name == ALL_TAGS and REASONING in reply
        return reply.replace(REASONING, filler) if is_inside else f"{filler}\n{reply}"

    return policy


async def check_statistics(subject: Subject, base: Baseline) -> AsyncIterator[Finding]:
    """Yield findings about rewards that never differ, and about rewards outside of or far below the weights' range."""
    scored = [record for record in subject.records if record.scores is not None]
    rewards = {round(record.scores.reward, 6) for record in scored if record.scores}
    if len(rewards) == 1:
        yield Finding(
            id="reward-statistics",
            severity=Severity.HIGH,
            text=f"all {len(scored)} rollouts of all policies have the reward {rewards.pop():g}",
        )
        return
    weights = scored[0].scores.weights if scored and scored[0].scores else {}
    positive = sum(weight for weight in weights.values() if weight > 0)
    most = max(rewards, default=0.0)
    least = min(rewards, default=0.0)
    limit = max(positive, sum(map(abs, weights.values())))
    if positive and (least < -2 * limit or most > 1.1 * positive):
        yield Finding(
            id="reward-statistics",
            text=f"rewards are between {least:.3f} and {most:.3f}; the weights add up to {positive:.3f}",
        )
    has_reference = bool(base.honest) or base.right_answer is not None  # else no policy knows the task
    if has_reference and positive and most < 0.9 * positive:
        yield Finding(
            id="reward-statistics",
            text=f"the highest reward of {len(scored)} rollouts is {most:.3f}; the weights add up to {positive:.3f}",
        )
