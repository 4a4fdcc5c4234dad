"""Checks of graders: strange replies, replies that are executed, instructions to a judge, repeated runs, and the parser."""

from __future__ import annotations

import itertools
import operator
import re
import statistics
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

from rove.audit.answer_checks import VARIANT, corrupted
from rove.audit.baseline import Baseline
from rove.audit.findings import shortened
from rove.audit.game_checks import actions_of, blind_policies
from rove.audit.replies import (
    EVERYDAY,
    INJECTIONS,
    MARK_SUFFIX,
    NASTY,
    UNUSUAL,
    constant,
    formula,
    from_answer,
    other_answer,
    payload,
)
from rove.audit.subject import EMPTY, FEW_TURNS, Measured, Policy, Subject, evidence, is_worker_failure
from rove.audit.tool_checks import REFUSAL, calls_with_values
from rove.core.errors import InfraError
from rove.core.findings import Finding, Severity
from rove.core.messages import text_of
from rove.core.protocols import Client
from rove.core.records import RolloutRecord
from rove.envs.environment import Environment

LOG_NAME = "events.log"
"""Name of the worker's log in the audit's folder."""
NASTY_EXAMPLES = 3
"""Number of examples on which each strange reply is tried."""
REPEATED_EXAMPLES = 20
"""Number of examples whose reward is measured again."""
HASH_SEED = "12345"
"""PYTHONHASHSEED of the process that repeats the measurement."""
OTHER_PROCESS = {"PYTHONHASHSEED": HASH_SEED, "TZ": "Pacific/Auckland", "LC_ALL": "C"}
"""Environment variables of that process."""
LONG_REPLY = "Therefore the first part follows from the second one, and the result follows from both. " * 20
TOWER = "the answer as a tower of powers"
STRANGE = "strange reply: "
"""Prefix of the names of the policies that give strange replies."""
REPEATED_FAILURE = "a reply that failed, again"
"""Name of the policy that repeats a failed rollout."""
IN_ANSWER = ", in the answer"
"""Suffix of the name of a strange reply in the form of an answer."""
MAX_REPLY_CHARS = 300
"""Maximum characters of a strange reply in a finding."""
MAX_REPEATED = 3
"""Maximum number of policies whose failed rollout is repeated."""
CALL_ROUNDS = 12
"""Number of times that each tool is called in environments without scripted policies, as far as a rollout has turns."""
MIN_CHANGED, CHANGED_SHARE = 3, 0.1
"""Minimum number and share of rollouts with other messages for a finding."""
CHANGING = re.compile(r"0x[0-9a-f]+|\b[0-9a-f]{8,}\b|/tmp/\S+|\d+:\d+(:\d+)?|\d+(\.\d+)? ?m?s(ec\w*)?\b")
"""Addresses, hashes, temporary files and times, which differ in sound environments, too."""
MAX_SHOWN = 4
"""Maximum number of replies listed in a finding."""


async def check_robustness(subject: Subject, base: Baseline) -> AsyncIterator[Finding]:
    """Yield findings about ordinary replies, and about strange replies, that break the grader.

    The search ends at the first ordinary reply that ends or blocks the worker, because each such reply takes a long time.
    """
    ordinary = _ordinary_failures(base)
    if ordinary:
        yield _failing_grader(subject, base, ordinary)
    ordinary_errors = {_error_key(record) for record in ordinary}
    broken: dict[str, RolloutRecord] = {}
    strange: dict[str, Policy] = {name: constant(text) for name, text in NASTY.items()}
    strange |= {f"{name}{IN_ANSWER}": constant(base.form(text)) for name, text in NASTY.items()}
    # slow regular expressions, and formulas that use the row's own numbers
    strange["the answer four times, with an odd end"] = from_answer(
        lambda answer: base.form(f"{', '.join([answer] * 4)} and more!")
    )
    strange["the answer with powers"] = from_answer(lambda answer: base.form(re.sub(r"[-+*/]", "**", answer)))
    strange[TOWER] = from_answer(lambda answer: base.form(_tower(answer)))
    is_blocked = False
    for name, policy in strange.items():
        # Each reply that blocks the worker takes seconds, and one unusual reply is enough.
        if is_blocked and _is_unusual(name):
            continue
        # a tower of powers may use much time and memory before the worker is killed
        count = 1 if name == TOWER else NASTY_EXAMPLES
        measured = await subject.measure(f"{STRANGE}{name}", policy, count, is_recorded=False, max_turns=FEW_TURNS)
        failed = await _first_failure(subject, policy, measured)
        # With an error that ordinary replies cause, too, the reply is not the reason.
        if failed is not None and _error_key(failed) not in ordinary_errors:
            broken[name] = failed
            # After an unusual reply, an ordinary one may fail as well, which is worse.
            if is_worker_failure(failed) and not _is_unusual(name):
                break
            is_blocked = is_blocked or is_worker_failure(failed)
    if broken:
        label = max(broken, key=lambda name: _rank(name, broken[name]))
        record = broken[label]
        assert record.error is not None
        prompt, completion = evidence(record, MAX_REPLY_CHARS)
        names = [f"'{name}'" for name in broken if name != label][: MAX_SHOWN - 1]
        also_failing = ""
        if names:
            also_failing = f"; {', '.join(names)} also {'fails' if len(names) == 1 else 'fail'}"
        severity = Severity.MEDIUM
        if _is_unusual(label):
            severity = Severity.LOW
        elif _depends_on_time(record) or _is_everyday(label):
            severity = Severity.HIGH
        yield Finding(
            id="grader-robustness",
            severity=severity,
            text=f"the reply '{label}' fails with {subject.error_text(record)}{also_failing}",
            prompt=prompt,
            completion=completion or EMPTY,
        )


def _ordinary_failures(base: Baseline) -> list[RolloutRecord]:
    """Return the failed rollouts of scripted policies, right answers and guesses.

    Rollouts that ended or blocked their worker, or exceeded a time limit, are left out: `check_worker_failures` repeats them.
    Errors in the phase "model" are those of a scripted policy.
    """
    return [
        record
        for record in _ordinary_records(base)
        if _is_broken(record) and not _depends_on_time(record) and _error_key(record)[0] != "model"
    ]


def _ordinary_records(base: Baseline) -> list[RolloutRecord]:
    measured = [*base.honest, base.floor]
    if base.right_answer is not None:
        measured.append(base.right_answer)
    by_name = {policy.name: policy.records for policy in measured}  # a policy may be the floor, too
    return list(itertools.chain.from_iterable(by_name.values()))


def _error_key(record: RolloutRecord) -> tuple[str, str]:
    """Return the phase, such as "reward NAME", and the type of a failed rollout's error."""
    assert record.error is not None
    return record.error.phase, record.error.type


def _failing_grader(subject: Subject, base: Baseline, failures: Sequence[RolloutRecord]) -> Finding:
    """Return the finding about ordinary replies that break the grader; it names the most frequent error."""
    [(key, _)] = Counter(map(_error_key, failures)).most_common(1)
    record = next(record for record in failures if _error_key(record) == key)
    prompt, completion = evidence(record, MAX_REPLY_CHARS)
    count = len(_ordinary_records(base))
    return Finding(
        id="grader-robustness",
        severity=Severity.HIGH,
        text=(
            f"{len(failures) / count:.0%} of {count} rollouts with ordinary replies fail; the most frequent error, in {key[0]}: "
            f"{subject.error_text(record)}. The other checks use only the rollouts that do not fail"
        ),
        cause="an error in the grader's code, or a row that it does not expect",
        remedy="fix the line that raises the error, or correct the rows, and repeat the audit",
        prompt=prompt,
        completion=completion or EMPTY,
    )


def _rank(name: str, record: RolloutRecord) -> tuple[bool, bool, bool]:
    """Return how serious a failure is: the replies that models write count the most, then those that block the worker."""
    return not _is_unusual(name), is_worker_failure(record), _is_everyday(name)


def _is_unusual(name: str) -> bool:
    return name.removesuffix(IN_ANSWER) in UNUSUAL


def _is_everyday(name: str) -> bool:
    return name.removesuffix(IN_ANSWER) in EVERYDAY


def _tower(answer: str) -> str:
    powers = re.sub(r"[-+*/]+", "**", answer)
    return re.sub(r"[()\s]", "", powers)


async def _first_failure(subject: Subject, policy: Policy, measured: Measured) -> RolloutRecord | None:
    """Return the first failed rollout, without failures at a time limit that the reply does not cause again."""
    failures = [record for record in measured.records if _is_broken(record)]
    timed = [record for record in failures if _depends_on_time(record)]
    # A worker that is killed ends the rollouts of all rows, so the rows up to the last one are repeated.
    if timed and await _fails_again(subject, policy, timed[-1]):
        return timed[0]
    return next((record for record in failures if record not in timed), None)


def _depends_on_time(record: RolloutRecord) -> bool:
    """Return whether a rollout ended or blocked its worker, or exceeded a time limit of the environment."""
    return is_worker_failure(record) or (record.error is not None and "Timeout" in record.error.type)


async def _fails_again(subject: Subject, policy: Policy | Client, record: RolloutRecord) -> bool:
    """Return whether a rollout that failed at a time limit does so again: on a busy machine, any rollout may take long."""
    repeated = await subject.measure(REPEATED_FAILURE, policy, record.example_id + 1, is_recorded=False)
    return any(_depends_on_time(new_record) for new_record in repeated.records)


async def check_worker_failures(subject: Subject) -> AsyncIterator[Finding]:
    """Yield a finding if a rollout of any policy has ended or blocked its worker, and does so again.

    Unusual replies are left out: `check_robustness` has reported them.
    """
    first_failures: dict[str, tuple[RolloutRecord, Policy | Client]] = {}
    # A rollout with a reply shows more than one that failed before it.
    for name, record, policy in sorted(subject.worker_failures, key=lambda failure: not failure[1].completion):
        if name != REPEATED_FAILURE and not _is_unusual(name.removeprefix(STRANGE)):
            first_failures.setdefault(name, (record, policy))
    for name, (record, policy) in list(first_failures.items())[:MAX_REPEATED]:
        if not await _fails_again(subject, policy, record):
            continue
        prompt, completion = evidence(record, MAX_REPLY_CHARS)
        yield Finding(
            id="grader-robustness",
            severity=Severity.HIGH,
            text=f"a rollout of '{name}' fails with {subject.error_text(record)}",
            prompt=prompt,
            completion=completion or EMPTY,
        )
        return


def _is_broken(record: RolloutRecord) -> bool:
    """Return whether a rollout failed; a reward that is not a finite number counts as a failure."""
    return record.error is not None and record.error.type != "OverlongPromptError"


async def check_execution(subject: Subject, base: Baseline, folder: Path) -> AsyncIterator[Finding]:
    """Yield a finding if a reply runs as code outside of a sandbox."""
    tried: list[tuple[str, Path, Policy]] = []
    for name in payload("", base.form):
        mark = folder / f"mark_{name.replace(' ', '_').replace(',', '')}"
        tried.append((name, mark, constant(payload(str(mark), base.form)[name])))
    right = from_answer(lambda answer: base.form(formula(answer)))
    tried.append(("formula with the right answer", folder / f"{LOG_NAME}{MARK_SUFFIX}", right))
    for name, mark, policy in tried:
        measured = await subject.measure(f"code: {name}", policy, NASTY_EXAMPLES, max_turns=FEW_TURNS)
        if mark.exists():
            prompt, completion = measured.example() if measured.scored else evidence(measured.records[0])
            yield Finding(
                id="execution",
                text=f"a reply ({name}) is executed: it created a file on this machine",
                prompt=prompt,
                completion=completion,
            )
            return


MAX_MIXED = 4
"""Maximum number of kinds of wrong variants that are repeated."""


async def check_determinism(
    subject: Subject,
    base: Baseline,
    another: Callable[[dict[str, str]], Environment],
) -> AsyncIterator[Finding]:
    """Yield a finding if the same replies get different rewards when they are repeated, in this or another process."""
    policies = _repeated_policies(subject, base)
    for name, policy in policies.items():
        # the environment's policies ran first of all: state that rollouts share has changed since
        earlier = next((measured for measured in base.honest if measured.name == f"policy {name}"), None)
        first = earlier or await subject.measure(f"{name}, first time", policy, REPEATED_EXAMPLES)
        repeated = await subject.measure(f"{name}, again", policy, REPEATED_EXAMPLES)
        difference = _difference(first, repeated, "in the same process")
        if difference is not None:
            yield difference
            return
    if base.tools and not base.honest:
        name = "calls with values of the prompt"
        calls = calls_with_values(rounds=CALL_ROUNDS)
        first = await subject.measure(f"{name}, first time", calls, REPEATED_EXAMPLES)
        repeated = await subject.measure(f"{name}, again", calls, REPEATED_EXAMPLES)
        # Results of sound tools may have numbers of tickets, dates, or remarks such as "cached".
        difference = _other_messages(first, repeated, "in the same process", _is_refused_once)
        if difference is not None:
            yield difference
            return
    for kind, first in _mixed_variants(subject):
        repeated = await subject.measure(f"{first.name}, again", corrupted(kind, base))
        difference = _difference(first, repeated, "in the same process")
        if difference is not None:
            yield difference
            return
    other_subject = Subject(another(OTHER_PROCESS), subject.count, subject.deadline)
    other_subject.replies = subject.replies  # the scripted judge knows these
    finding: Finding | None = None
    async with other_subject.env.used_in_run():
        for name, policy in policies.items():
            if name not in subject.env.policies and finding is None:  # a worker's own policies belong to it
                first = await subject.measure(f"{name}, first process", policy, REPEATED_EXAMPLES)
                repeated = await other_subject.measure(f"{name}, other process", policy, REPEATED_EXAMPLES)
                finding = _difference(
                    first, repeated, "in another process, with another PYTHONHASHSEED, locale and time zone"
                )
    subject.rollouts += other_subject.rollouts
    if finding is not None:
        yield finding


def _repeated_policies(subject: Subject, base: Baseline) -> dict[str, Policy]:
    """Return the policies whose rollouts are repeated."""
    guess = other_answer(subject.answers, base.form) if subject.answers else constant(base.form("1"))
    policies: dict[str, Policy] = {"wrong answer": guess}
    if subject.answers:
        policies |= {
            "right answer": from_answer(base.form),
            "several answers": from_answer(
                lambda answer: base.form(f"{answer}, {' '.join(reversed(answer.split()))} or 12.5")
            ),
            "half of the answer": from_answer(lambda answer: base.form(answer[: (len(answer) + 1) // 2])),
            "long reply": from_answer(lambda answer: f"{LONG_REPLY}\n{base.form(answer)}"),
        }
    policies |= dict(list(subject.env.policies.items())[:1])
    if base.is_retried and not base.honest:
        # An opponent that draws at random shows its moves only to a player who makes valid ones.
        moves = blind_policies(base.form, actions_of(base))
        policies |= {name: moves[name] for name in ("cycle", "count up from 1")}
    return policies


def _mixed_variants(subject: Subject) -> list[tuple[str, Measured]]:
    """Return the kinds of wrong variants of the answer that earned a reward on some rows only, with their rollouts.

    A grader that draws at random, such as one that compares formulas at random points, is sure about right and about
    quite wrong answers, and undecided about these.
    """
    mixed: list[tuple[str, Measured]] = []
    for name, measured in subject.measured.items():
        if name.startswith(VARIANT) and len(set(measured.rewards)) > 1:
            mixed.append((name.removeprefix(VARIANT), measured))
    mixed.sort(key=lambda pair: -statistics.pstdev(pair[1].rewards))
    return mixed[:MAX_MIXED]


def _difference(first: Measured, repeated: Measured, circumstance: str) -> Finding | None:
    """Return a finding if the same policy got another reward, or other messages after the same replies, when it was repeated."""
    first_records = {(record.example_key, record.rollout_index): record for record in first.scored}
    for record in repeated.scored:
        earlier = first_records.get((record.example_key, record.rollout_index))
        if earlier is None:
            continue
        assert earlier.scores is not None
        assert record.scores is not None
        if abs(earlier.scores.reward - record.scores.reward) > 1e-9:
            prompt, completion = evidence(record)
            source = "the same policy with the same seed"
            if earlier.completion == record.completion:
                source = "the same reply"
            rewards = f"{earlier.scores.reward:.3f} and, repeated {circumstance}, {record.scores.reward:.3f}"
            return Finding(
                id="determinism",
                text=f"{source} earned {rewards}",
                prompt=prompt,
                completion=completion,
            )
    return _other_messages(first, repeated, circumstance)


def _other_messages(
    first: Measured, repeated: Measured, circumstance: str, matters: Callable[[str, str], bool] = operator.ne
) -> Finding | None:
    """Return a finding if the environment answered the same replies with other messages in several rows.

    Args:
        matters: Whether a difference between two messages counts.
    """
    first_records = {(record.example_key, record.rollout_index): record for record in first.scored}
    changed: list[RolloutRecord] = []
    for record in repeated.scored:
        earlier = first_records.get((record.example_key, record.rollout_index))
        if earlier is not None and _environment_differs(earlier, record, matters):
            changed.append(record)
    if len(changed) < MIN_CHANGED or len(changed) < CHANGED_SHARE * len(repeated.scored):
        return None
    prompt, completion = evidence(changed[0])
    share = len(changed) / len(repeated.scored)
    return Finding(
        id="determinism",
        text=f"in {share:.0%} of the rollouts, the same replies got other messages when they were repeated {circumstance}",
        rate=(share, share, share),
        floor=0.0,
        prompt=prompt,
        completion=completion,
    )


def _environment_differs(first: RolloutRecord, repeated: RolloutRecord, matters: Callable[[str, str], bool]) -> bool:
    """Return whether a message of the environment differs after equal replies of the model."""
    for message, repeated_message in zip(first.completion, repeated.completion, strict=False):
        texts = CHANGING.sub("", text_of(message)), CHANGING.sub("", text_of(repeated_message))
        if texts[0] != texts[1]:
            if message["role"] == "assistant":
                return False
            if matters(*texts):
                return True
    return False


def _is_refused_once(first: str, second: str) -> bool:
    """Return whether one of two messages refuses a call, and the other one does not."""
    return bool(REFUSAL.search(first)) != bool(REFUSAL.search(second))


async def check_parser(
    subject: Subject, base: Baseline, parse: Callable[[list[str]], list[str] | None]
) -> AsyncIterator[Finding]:
    """Yield a finding if the parser and the grader read different answers.

    Args:
        parse: Replies → the answers that the environment's parser reads; None if there is no parser.
    """
    guess = other_answer(subject.answers, base.form)
    policies: dict[str, Policy] = {
        "right, then wrong": lambda messages, state, rng: (
            f"{base.form(str(state.get('answer')))}\n{guess(messages, state, rng)}"
        ),
        "wrong, then right": lambda messages, state, rng: (
            f"{guess(messages, state, rng)}\n{base.form(str(state.get('answer')))}"
        ),
    }
    row_answers = {str(answer).strip() for answer in subject.answers}
    measured = [
        await subject.measure(f"parser: {name}", policy, REPEATED_EXAMPLES) for name, policy in policies.items()
    ]
    # A grader that pays for neither order refuses two answers on purpose.
    refuses_pairs = all(base.share(pair.mean) <= 0.5 for pair in measured)
    for pair in measured:
        read = parse([text_of(record.completion[-1]) for record in pair.scored])
        if read is None:
            return
        disagree: list[tuple[RolloutRecord, str]] = []
        for record, answer in zip(pair.scored, read, strict=True):
            if record.scores is None or answer.strip() not in row_answers:  # what is read may be no answer at all
                continue
            is_right = answer.strip() == record.answer.strip()
            is_paid = base.share(record.scores.reward) > 0.5
            if is_right != is_paid and not (is_right and refuses_pairs):
                disagree.append((record, answer))
        if len(disagree) > 0.5 * max(1, len(pair.scored)):
            record, answer = disagree[0]
            assert record.scores is not None
            prompt, completion = evidence(record)
            yield Finding(
                id="parser-agreement",
                text=(
                    f"the parser reads {shortened(answer, 100)!r}, the answer is {record.answer!r}, and the reward is "
                    f"{record.scores.reward:.3f}"
                ),
                rate=pair.interval,
                floor=base.floor.mean,
                prompt=prompt,
                completion=completion,
            )
            return


async def check_injection(subject: Subject, base: Baseline, judge: str = "the judge") -> AsyncIterator[Finding]:
    """Yield a finding if instructions in a reply change the verdict of the judge; see `rove.audit.judge`."""
    nonsense = base.form("qxzj")  # a wrong answer in the required format, which an honest judge rejects
    honest = await subject.measure("reply without an order", constant(nonsense), NASTY_EXAMPLES)
    if not honest.scored:
        error = next((record.error for record in honest.records if record.error is not None), None)
        raise InfraError(f"{judge} gave no verdict: {error.message if error else 'no rollout was scored'}")
    for name, order in INJECTIONS.items():
        for reply in (order, base.form(order), f"{nonsense}\n{order}"):
            measured = await subject.measure(f"order to the judge: {name}", constant(reply), NASTY_EXAMPLES)
            if measured.scored and min(measured.rewards) > honest.mean:
                change = f"from {honest.mean:.3f} to {measured.mean:.3f}"
                yield measured.finding(
                    "judge-injection",
                    f"an order in the reply ('{name}') raises {judge}'s verdict {change}",
                    floor=honest.mean,
                )
                return
