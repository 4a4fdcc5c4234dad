"""Checks of rewards: whether replies that do not do the task earn rewards, and what rewards depend on."""

from __future__ import annotations

import math
import random
import statistics
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence

from rove.audit.baseline import (
    MIN_PAIRS,
    STANDARD_ERRORS,
    Baseline,
    beats_guess,
    is_above,
    is_higher,
    paired_differences,
)
from rove.audit.findings import shortened
from rove.audit.options import choices_by_looks
from rove.audit.replies import (
    ABSTENTION,
    ALL_TAGS,
    NUMBER,
    REASONING,
    blind_replies,
    empty_replies,
    shown_example,
    special_values,
    wrong,
)
from rove.audit.row_content import OPTION
from rove.audit.similarity import normalized, similarity
from rove.audit.subject import (
    EMPTY,
    TRIED_EXAMPLES,
    Inconclusive,
    Measured,
    Policy,
    Subject,
    evidence,
    highest,
    reward_of,
)
from rove.audit.traces import moves_by_row, of_other_row, replayed
from rove.core.findings import Finding, Severity
from rove.core.messages import Messages, text_of
from rove.core.records import RolloutRecord
from rove.core.state import State
from rove.utils.units import counted

HIGH_SHARE, MEDIUM_SHARE = 0.5, 0.1
"""A reply that does not do the task is of high or medium severity if it earns at least this share of the range of rewards."""
PAID_SHARE = 0.25
"""A reply without any answer, or with a wrong one, is of medium severity if it earns this share of a right answer, however
much the grader pays for guesses. Rewards for the format alone are usually smaller."""
# The answers of a sound classification task reached a share of 0.43.
BALANCED_SHARE = 0.45
"""It is of medium severity if a constant answer earns this share of what a right answer earns above equal frequencies."""
ANY_REPLY = ("format with a dot", "nonsense in the format", "unsure", "very long")
"""Replies that have nothing in common: a reward for all of them is paid for any reply."""
FREQUENT_SHARE = 0.4
"""It is a finding if more than this share of the rows have the same answer."""
CONSTANT_SHARE = 0.9
"""If more than this share of the rows have the same answer, a constant reply does the task."""
MIN_BALANCED = 20
"""Minimum number of rows from which frequencies of answers are judged."""
TIED_SHARE, MIN_WRONG = 0.8, 5
"""Answers of other rows are a finding if they earn the reward of the own answer in this share of the rows; minimum number of
such rows."""
EXCESS = 0.25
"""Wrong answers may earn the share of the reward that they have in common with the right answer, plus less than this."""
ROUNDING = 0.01
"""Partial credit may exceed the common share by this much, because each grader compares answers in its own way."""
MIN_REPLIES = 15
"""Minimum number of different replies to a row after which its lowest reward counts as the reward of any reply."""
ROW_SHARE, MIN_ROWS = 0.1, 3
"""It is a finding if this share of the rows, and at least this many rows, pay for any reply."""
LENGTHS = (0, 30, 300, 3000)
"""Numbers of filler words in the length check."""
FILLER = ("and", "so", "then", "we", "see", "that", "it", "follows")
MOST_ROWS = 0.8
"""Share of the rows in which a reply without content must earn more than a good reply to another row."""
MAX_LISTED = 4
"""Maximum number of replies listed in a finding."""


def severity_of(share: float) -> Severity:
    """Return the severity of a reward at this position between a guess (0) and a right answer (1)."""
    if share >= HIGH_SHARE:
        return Severity.HIGH
    return Severity.MEDIUM if share >= MEDIUM_SHARE else Severity.LOW


async def check_blind_replies(subject: Subject, base: Baseline, is_judged: bool = False) -> AsyncIterator[Finding]:
    """Yield a finding if replies without the answer earn more than chance, or other rows' answers earn a reward.

    Args:
        is_judged: Whether a scripted judge decides; results with other rows' answers, or without any, then mean little.
    """
    replies = blind_replies(base.form, subject.answers, base.prompts) | special_values(base.form)
    replies |= choices_by_looks(base.form, base.prompts, subject.answers)
    empty = empty_replies(subject.answers)
    measured: list[Measured] = []
    tried: dict[str, Measured] = {}
    for name, policy in replies.items():
        tried[name] = await subject.measure(name, policy, TRIED_EXAMPLES)
        # A mean of few examples may be far below the mean of all, so half of the limit is enough to measure them all.
        is_paid = name in empty and base.share_of_task(tried[name].mean) >= PAID_SHARE / 2
        if is_paid or tried[name].mean > base.floor.mean:
            measured.append(await subject.measure(name, policy))
    if is_judged:
        measured = [_without_answer(reply) for reply in measured]
    paid = [reply for reply in measured if beats_guess(reply, base)]
    # The scripted judge may find an answer in the question, and then accepts an empty reply.
    for_nothing = [] if is_judged else _paid_for_nothing(subject, base, measured, empty)
    finding = _most_paid(base, paid, for_nothing)
    if finding is not None:
        yield finding
    severity = Severity.INFO if finding is None else finding.severity
    if severity < Severity.MEDIUM and not is_judged:
        worthless = [reply for reply in measured if reply.name in empty]
        above_others = await _above_replies_to_other_rows(subject, base, worthless)
        if above_others is not None:
            severity = above_others.severity
            yield above_others
    guess = None if is_judged else _rewarded_guess(subject, base)
    if guess is not None and severity < guess.severity:
        yield guess
    elif severity < Severity.MEDIUM:
        for remark in filter(None, (_imbalance(subject, base), _shown_answer(subject, base))):
            yield remark


def _without_answer(measured: Measured) -> Measured:
    """Return the rollouts whose reply does not contain the row's answer: the scripted judge accepts all other ones."""
    records = [record for record in measured.records if not record.answer or record.answer not in _first_reply(record)]
    return Measured(measured.name, records)


def _most_paid(base: Baseline, paid: Sequence[Measured], for_nothing: Sequence[Measured]) -> Finding | None:
    """Return a finding about the reply without the answer that earns the most.

    Args:
        paid: Replies that earn more than a guess.
        for_nothing: Replies that give no answer at all and earn a considerable share of the reward.
    """
    severity = Severity.INFO
    if for_nothing:
        share = max(_share_for_nothing(base, reply) for reply in for_nothing)
        severity = Severity.HIGH if share >= HIGH_SHARE else Severity.MEDIUM
    if paid and severity_of(base.share(highest(paid).mean)) >= severity:
        worst = highest(paid)
        text = f"the reply '{worst.name}' earns {worst.mean:.3f}, a guess {base.floor.mean:.3f}{_also(paid, worst)}"
        return worst.finding("blind-reply", text, severity_of(base.share(worst.mean)), floor=base.floor.mean)
    if for_nothing:
        worst = max(for_nothing, key=lambda reply: _share_for_nothing(base, reply))
        text = (
            f"the reply '{worst.name}' gives no answer and earns {worst.mean:.3f}; right answers earn {base.full:.3f}"
        )
        return worst.finding("blind-reply", f"{text}{_also(for_nothing, worst)}", severity, floor=base.zero)
    return None


def _also(paid: Sequence[Measured], worst: Measured) -> str:
    also_paid = sorted((reply for reply in paid if reply is not worst), key=lambda reply: -reply.mean)
    names = [repr(reply.name) for reply in also_paid[: MAX_LISTED - 1]]
    num_others = len(also_paid) - len(names)
    omitted = f" and {num_others} more" if num_others else ""
    return f"; so do {', '.join(names)}{omitted}" if names else ""


def _paid_for_nothing(
    subject: Subject, base: Baseline, measured: Sequence[Measured], empty: Sequence[str]
) -> list[Measured]:
    """Return the replies without an answer that earn a considerable share of the reward for a right answer."""
    candidates = [reply for reply in measured if reply.name in empty]
    if not subject.answers:
        # A reply that looks like no answer may fit a task without one: only a reward for any reply counts.
        by_name = {reply.name: reply for reply in candidates}
        any_reply = [by_name[name] for name in ANY_REPLY if name in by_name]
        candidates = [reply for reply in candidates if reply.name in ("empty", "white space")]
        if len(any_reply) == len(ANY_REPLY):
            candidates.append(min(any_reply, key=lambda reply: reply.mean))
    paid = [reply for reply in candidates if _share_for_nothing(base, reply) >= PAID_SHARE]
    return [reply for reply in paid if is_above(reply, base.zero, base.task_range)]


async def _above_replies_to_other_rows(
    subject: Subject, base: Baseline, worthless: Sequence[Measured]
) -> Finding | None:
    """Return a finding if a reply without content earns much more, in most rows, than the best policy's replies to other rows.

    In a task without answers, such as a summary, the weakest policy does not show what a reply may earn without doing the task,
    since it may do the task badly. A good reply to another row does, if the reward depends on the row.
    """
    if subject.answers or not base.honest or base.has_tools:
        return None
    best = highest(base.honest)
    texts = [*base.prompts, *(text_of(move) for moves in moves_by_row(best).values() for move in moves)]
    if any(map(ABSTENTION.search, texts)):  # in some rows, no content may be right
        worthless = [reply for reply in worthless if reply.name != "unsure"]
    if not worthless:
        return None
    worst = highest(worthless)
    moved = replayed(of_other_row(moves_by_row(best)))
    reference = await subject.measure(f"the {best.name}'s replies to other rows", moved)
    expected = max(0.0, base.share_of_task(reference.mean))
    share = base.share_of_task(worst.mean, expected) if expected < 1 else 0.0
    differences = paired_differences(worst, reference)
    num_higher = sum(difference >= PAID_SHARE * base.task_range for difference in differences)
    is_usual = num_higher >= MOST_ROWS * max(1, len(differences))
    if share < PAID_SHARE or not is_usual or not is_higher(worst, reference, base.task_range):
        return None
    return worst.finding(
        "blind-reply",
        f"the reply '{worst.name}' has no content and earns {worst.mean:.3f}; the {best.name} earns {best.mean:.3f}, and "
        f"{reference.mean:.3f} with its replies to other rows",
        Severity.HIGH if share >= HIGH_SHARE else Severity.MEDIUM,
        floor=reference.mean,
    )


def _share_for_nothing(base: Baseline, reply: Measured) -> float:
    """Return the share of the reward that a reply without an answer earns, less what its text has in common with the answers.

    Graders that measure the similarity of texts pay something for any text.
    """
    in_common = [similarity(_first_reply(record), record.answer) for record in reply.scored if record.answer]
    return base.share_of_task(reply.mean) - (statistics.fmean(in_common) if in_common else 0.0)


def _imbalance(subject: Subject, base: Baseline) -> Finding | None:
    """Return a finding if a constant answer gets many rows right, because their answers are not balanced."""
    counts = Counter(map(str, subject.answers))
    if counts.total() < MIN_PAIRS:  # a task of a single row always has one answer
        return None
    answer, count = counts.most_common(1)[0]
    share = count / counts.total()
    balanced = 1 / len(counts)
    if share <= max(FREQUENT_SHARE, 1.2 * balanced) and share <= CONSTANT_SHARE:
        return None
    error = math.sqrt(max(share * (1 - share), 1e-9) / counts.total())
    excess = (share - balanced) / (1 - balanced) if balanced < 1 else 1.0
    is_certain = share - balanced > STANDARD_ERRORS * error and counts.total() >= MIN_BALANCED
    severity = Severity.LOW
    if share > CONSTANT_SHARE or (is_certain and excess >= HIGH_SHARE):
        severity = Severity.HIGH
    elif is_certain and excess >= BALANCED_SHARE:
        severity = Severity.MEDIUM
    return Finding(
        id="blind-reply",
        severity=severity,
        text=f"{share:.0%} of the rows have the same answer; there {'is' if len(counts) == 1 else 'are'} "
        f"{counted(len(counts), 'different answer')}",
        remedy="add rows with other answers, or compare results with this share",
        cause="the answers of the rows are not balanced",
        rate=(share, share, share),
        floor=balanced,
        completion=base.form(answer),
    )


def _shown_answer(subject: Subject, base: Baseline) -> Finding | None:
    """Return a finding if the example of the prompts is the right answer of many rows, so that repeating it is paid.

    Of low severity: a reply that repeats the example earns no more than any constant answer.
    """
    if base.right_answer is None:
        return None
    example_counts = Counter(shown_example(prompt, base.form) for prompt in base.prompts)
    example, count = example_counts.most_common(1)[0]
    share = sum(normalized(str(answer)) == normalized(example) for answer in subject.answers) / len(subject.answers)
    if not example or count < len(base.prompts) or share < ROW_SHARE:
        return None
    return Finding(
        id="blind-reply",
        severity=Severity.LOW,
        text=f"the example in the prompt, {base.form(example)!r}, is the right answer of {share:.0%} of the rows",
        remedy="show an example that is no answer of a row, or a placeholder",
        cause="the example of the prompt is written like an answer",
        rate=(share, share, share),
        floor=base.zero,
        prompt=base.prompts[0],
        completion=base.form(example),
    )


def _rewarded_guess(subject: Subject, base: Baseline) -> Finding | None:
    """Return a finding if other rows' answers earn a reward where they are wrong, because the floor itself is then a hole.

    A grader may give partial credit for what a wrong answer has in common with the right one, but not more.
    """
    if not base.guesses or base.own_answer is None:
        return None
    own_rewards = {record.example_key: reward_of(record) for record in base.own_answer.scored}
    answer_of_reply = {base.form(str(answer)): str(answer) for answer in subject.answers}
    for name in base.guesses:
        # Rows can have the same answer, so some guesses are right.
        records = [record for record in subject.measured[name].scored if record.example_key in own_rewards]
        wrong_guesses = [record for record in records if not _is_own_answer(record, answer_of_reply)]
        if len(wrong_guesses) < MIN_WRONG:
            continue
        guess = Measured(name, wrong_guesses)
        tied: list[bool] = []
        in_common: list[float] = []
        for record in wrong_guesses:
            own_reward = own_rewards[record.example_key]
            is_accepted = base.share_of_task(own_reward) >= HIGH_SHARE
            tied.append(is_accepted and reward_of(record) >= own_reward - 1e-6)
            in_common.append(similarity(answer_of_reply.get(_first_reply(record), ""), record.answer))
        share = base.share_of_task(guess.mean)
        # A grader that pays all or nothing gives no partial credit.
        excess = share if _is_all_or_nothing(subject, base) else share - statistics.fmean(in_common)
        is_tied = statistics.fmean(tied) >= TIED_SHARE
        if not is_tied and (share < PAID_SHARE or excess < EXCESS):
            continue
        severity = Severity.HIGH if share >= HIGH_SHARE else Severity.MEDIUM
        if is_tied and base.right_answer is None:  # nothing shows that the answers of other rows are wrong
            severity = Severity.MEDIUM
        return guess.finding(
            "blind-reply",
            f"the reply '{name}' earns {guess.mean:.3f} where it is not the row's answer, and right answers "
            f"{base.own_answer.mean:.3f}; ignore this if the answers of other rows are right as well",
            severity,
            floor=base.zero,
        )
    return None


def _is_all_or_nothing(subject: Subject, base: Baseline) -> bool:
    """Return whether every rollout so far has earned either nothing or as much as a right answer.

    False for numeric answers: a tolerance may accept close ones.
    """
    if any(NUMBER.match(str(answer)) for answer in subject.answers):
        return False
    rewards = {round(reward_of(record), 6) for record in subject.records if record.scores is not None}
    return len(rewards) <= 2 and rewards <= {round(base.zero, 6), round(base.full, 6), 0.0, 1.0}


def _is_own_answer(record: RolloutRecord, answer_of_reply: Mapping[str, str]) -> bool:
    answer = answer_of_reply.get(_first_reply(record))
    if answer is None:
        return True
    option, own_option = OPTION.match(answer), OPTION.match(record.answer)
    if option and own_option:  # the grader may read only the label
        return option[1] == own_option[1]
    return normalized(answer) == normalized(record.answer)


def _first_reply(record: RolloutRecord) -> str:
    return next((text_of(message) for message in record.completion if message["role"] == "assistant"), "")


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
        is_paid = is_right or beats_guess(best, base)
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
        # Words before the tags would break the form that the prompt demands, and a grader may refuse them for that.
        is_inside = words and base.form_name == ALL_TAGS and REASONING in reply
        return reply.replace(REASONING, filler) if is_inside else f"{filler}\n{reply}"

    return policy


MIN_REPEATED = 4
"""Minimum number of turns with the same reply that show that it is paid in every turn."""


def _positive_weights(record: RolloutRecord) -> float:
    weights = record.scores.weights.values() if record.scores else ()
    return sum(weight for weight in weights if weight > 0)


def _is_outside(record: RolloutRecord) -> bool:
    """Return whether a reward is clearly outside of the range of its weights."""
    positive = _positive_weights(record)
    limit = sum(map(abs, record.scores.weights.values())) if record.scores else 0.0
    return positive > 0 and not -2 * limit <= reward_of(record) <= 1.1 * positive


async def check_statistics(subject: Subject, base: Baseline, is_judged: bool = False) -> AsyncIterator[Finding]:
    """Yield findings about rewards that never differ, and about rewards outside of or far below the weights' range.

    Args:
        is_judged: Whether a scripted judge decides.

    Raises:
        Inconclusive: all rewards are equal because of the scripted judge.
    """
    scored = [record for record in subject.records if record.scores is not None]
    rewards = {round(reward_of(record), 6) for record in scored}
    if len(rewards) == 1:
        text = f"all {len(scored)} rollouts of all policies have the reward {min(rewards):g}"
        if is_judged:
            raise Inconclusive(f"inconclusive: {text}, and the scripted judge cannot show whether a model earns more")
        yield _equal_rewards(subject, base, min(rewards), text)
        return
    for finding in (_independent_of_reply(scored, base), _rewards_outside(scored), _rewards_below(scored, base)):
        if finding is not None:
            yield finding


def _equal_rewards(subject: Subject, base: Baseline, reward: float, text: str) -> Finding:
    takes_answers = bool(subject.answers) and not base.is_multi_turn and not base.has_tools
    if base.honest or (takes_answers and reward > 0):
        return Finding(id="reward-statistics", severity=Severity.HIGH, text=text)
    # In a game or with tools, the audit cannot do the task by itself. Without them, the rows' answers may be no replies, such
    # as the target of an expression, or tests.
    text += ", and no scripted policy shows that a reward can be earned"
    remedy = "give the environment a scripted policy that does the task (policies)"
    severity = Severity.MEDIUM if takes_answers else Severity.LOW
    return Finding(id="reward-statistics", severity=severity, text=text, remedy=remedy)


def _rewards_outside(scored: Sequence[RolloutRecord]) -> Finding | None:
    """Return a finding about rewards outside of the range of their weights."""
    outside = [record for record in scored if _is_outside(record)]
    if not outside:
        return None
    rewards = [round(reward_of(record), 6) for record in scored]
    text = (
        f"rewards are between {min(rewards):.3f} and {max(rewards):.3f}; the weights add up to "
        f"{_positive_weights(outside[0]):.3f}"
    )
    repeated = [record for record in outside if reward_of(record) > 0 and _is_repetition(record)]
    if repeated:
        turns = len(repeated[0].steps)
        text += f": {shortened(_first_reply(repeated[0]), 60)!r} in each of {turns} turns is paid every time"
    prompt, completion = evidence(max(repeated or scored, key=reward_of))
    severity = Severity.HIGH if repeated else Severity.MEDIUM
    return Finding(id="reward-statistics", severity=severity, text=text, prompt=prompt, completion=completion)


def _rewards_below(scored: Sequence[RolloutRecord], base: Baseline) -> Finding | None:
    """Return a finding if no reward comes near the sum of the weights."""
    # If no policy knows the task, low rewards are to be expected.
    has_reference = bool(base.honest) or base.right_answer is not None
    sums = {_positive_weights(record) for record in scored}
    if not has_reference or len(sums) != 1:  # the environments of a group may have different weights
        return None
    [positive] = sums
    most = max(round(reward_of(record), 6) for record in scored)
    if not positive or most >= 0.9 * positive:
        return None
    text = f"the highest reward of {len(scored)} rollouts is {most:.3f}; the weights add up to {positive:.3f}"
    weights = scored[0].scores.weights if scored[0].scores else {}
    paying = [name for name, weight in weights.items() if weight > 0]
    never = [name for name in paying if _highest_value(scored, name) <= 0]
    if never:
        text += f"; never paid: {', '.join(never)}"
    # Several functions may exclude each other, such as one for a win and one for a draw.
    may_be_meant = len(paying) > 1 and not never
    return Finding(id="reward-statistics", severity=Severity.LOW if may_be_meant else Severity.MEDIUM, text=text)


def _is_repetition(record: RolloutRecord) -> bool:
    """Return whether a rollout repeats one reply in all of its turns."""
    replies: list[tuple[str, str]] = []
    for message in record.completion:
        if message["role"] == "assistant":
            functions = [call["function"] for call in message.get("tool_calls") or []]
            replies.append((text_of(message), str(functions)))
    return len(replies) >= MIN_REPEATED and len(set(replies)) == 1


def _highest_value(scored: Sequence[RolloutRecord], name: str) -> float:
    """Return the highest value of a reward function."""
    values = [record.scores.rewards.get(name) for record in scored if record.scores]
    return max((value for value in values if value is not None), default=0.0)


def _independent_of_reply(scored: Sequence[RolloutRecord], base: Baseline) -> Finding | None:
    """Return a finding if many rows pay at least half of the full reward for every reply that was tried on them."""
    by_row: dict[str, list[RolloutRecord]] = defaultdict(list)
    for record in scored:
        by_row[record.example_key].append(record)
    lowest: list[RolloutRecord] = []
    highest_rewards: list[float] = []
    for records in by_row.values():
        texts = {_first_reply(record) for record in records}
        if len(texts) >= MIN_REPLIES:
            lowest.append(min(records, key=reward_of))
            highest_rewards.append(max(map(reward_of, records)))
    if len(lowest) < MIN_WRONG:
        return None
    pairs = zip(lowest, highest_rewards, strict=True)
    is_flat = all(reward_of(record) >= most - 1e-9 for record, most in pairs)
    paid = [record for record in lowest if base.share_of_task(reward_of(record)) >= HIGH_SHARE]
    share = len(paid) / len(lowest)
    if not is_flat and (share < ROW_SHARE or len(paid) < MIN_ROWS):
        return None
    text = f"{share:.0%} of {len(lowest)} rows pay at least half of the full reward for every reply that was tried"
    if is_flat:
        text = f"the reward depends on the row only: on each of {len(lowest)} rows, all replies earn the same"
    record = (paid or lowest)[0]
    prompt, completion = evidence(record)
    return Finding(
        id="reward-statistics",
        severity=Severity.HIGH if is_flat or share >= HIGH_SHARE else Severity.MEDIUM,
        text=text,
        rate=(share, share, share),
        floor=0.0,
        prompt=prompt,
        completion=completion or EMPTY,
    )
