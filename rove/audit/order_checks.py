"""The order of rewards: own answer ≥ good policy ≥ weak policy ≥ idle policy; a right answer in another form is right."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable, Sequence
from fractions import Fraction

from rove.audit.answer_checks import can_compare_variants
from rove.audit.baseline import Baseline, is_higher
from rove.audit.leak_checks import as_words
from rove.audit.replies import from_answer
from rove.audit.reward_checks import HIGH_SHARE, PAID_SHARE
from rove.audit.subject import Measured, Subject, evidence, highest, reward_of
from rove.audit.tool_checks import ERROR
from rove.core.findings import Finding, Severity
from rove.core.messages import text_of
from rove.core.records import RolloutRecord

MIN_FORMS = 5
"""Minimum number of rows whose answer can be written in another form."""
UNPAID_SHARE = 0.1
"""It is a finding if the own answer earns less than doing nothing in this share of the rows."""
REFUSED_SHARE = 0.5
"""A form is refused if it earns less than this share of the reward of the row's own answer."""


async def check_order(base: Baseline) -> AsyncIterator[Finding]:
    """Yield findings about idle policies that earn rewards, and about scripted policies that the grader rejects."""
    if base.honest:
        finding = _idle_above_best(base) or _idle_above_weak(base)
        if finding is not None:
            yield finding
    elif base.is_multi_turn and base.share_of_task(base.idle.mean) >= HIGH_SHARE:
        # In tasks of one turn, the check "blind-reply" reports this.
        text = f"'{base.idle.name}' earns {base.idle.mean:.3f}; a full reward is {base.full:.3f}"
        yield base.idle.finding("reward-order", text, Severity.HIGH, floor=base.zero)
    unpaid_rows = _idle_above_answers(base)
    if unpaid_rows is not None:
        yield unpaid_rows
    rejected = _rejected_policy(base)
    if rejected is not None:
        yield rejected


def _idle_above_best(base: Baseline) -> Finding | None:
    best = highest(base.honest)
    if base.right_answer is not None and base.right_answer.mean > best.mean:
        best = base.right_answer
    if base.idle.mean < best.mean:
        return None
    if all(policy.mean == base.idle.mean for policy in base.honest):  # all rewards are equal, or no rollout is paid
        return None
    text = f"'{base.idle.name}' earns {base.idle.mean:.3f}, and the best policy, '{best.name}', {best.mean:.3f}"
    return base.idle.finding("reward-order", text, Severity.HIGH, floor=best.mean)


def _idle_above_weak(base: Baseline) -> Finding | None:
    """Return a finding if an idle policy earns a reward, and no less than a policy that acts."""
    weak = min(base.honest, key=lambda policy: policy.mean)
    if len(base.honest) < 2 or base.idle.mean < weak.mean:
        return None
    share = base.share_of_task(base.idle.mean)
    if share < PAID_SHARE:
        # Punished mistakes put a weak policy below an idle one, which is a usual design.
        return None
    text = (
        f"'{base.idle.name}' earns {base.idle.mean:.3f}, and '{weak.name}', which acts, {weak.mean:.3f}; the best "
        f"policy or a right answer earns {base.full:.3f}"
    )
    severity = Severity.HIGH if share >= HIGH_SHARE else Severity.MEDIUM
    return base.idle.finding("reward-order", text, severity, floor=weak.mean)


def _idle_above_answers(base: Baseline) -> Finding | None:
    """Return a finding if doing nothing earns more than the own answer in many rows, though less on average.

    The usual cause is a penalty, such as one for length, that outweighs the reward of a right answer.
    """
    own_answer = base.own_answer
    if own_answer is None or own_answer.mean <= base.idle.mean:
        return None
    idle_rewards = {record.example_key: reward_of(record) for record in base.idle.scored}
    rows: list[RolloutRecord] = []
    for record in own_answer.scored:
        idle_reward = idle_rewards.get(record.example_key)
        if idle_reward is not None and reward_of(record) < idle_reward:
            rows.append(record)
    share = len(rows) / max(1, len(own_answer.scored))
    if share < UNPAID_SHARE:
        return None
    text = (
        f"in {share:.0%} of the rows, the own answer earns less than '{base.idle.name}': {own_answer.mean:.3f} and "
        f"{base.idle.mean:.3f} on average"
    )
    return Measured(own_answer.name, rows).finding("reward-order", text, Severity.MEDIUM, floor=base.idle.mean)


def _rejected_policy(base: Baseline) -> Finding | None:
    """Return a finding if the best scripted policy gives many rows' own answers and is not paid for them."""
    own_answer = base.own_answer
    if not base.honest or own_answer is None or not can_compare_variants(base):
        return None
    best = highest(base.honest)
    if not is_higher(own_answer, best, base.task_range):
        return None
    own_rewards = {record.example_key: reward_of(record) for record in own_answer.scored}
    rejected: list[RolloutRecord] = []
    for record in best.scored:
        own_reward = own_rewards.get(record.example_key, 0.0)
        if reward_of(record) < REFUSED_SHARE * own_reward and _gives_answer(record):
            rejected.append(record)
    share = len(rejected) / len(best.scored)
    if share < PAID_SHARE:
        return None
    return Measured(best.name, rejected).finding(
        "reward-order",
        f"the best policy, '{best.name}', earns {best.mean:.3f}, and the rows' own answers {own_answer.mean:.3f}; in "
        f"{share:.0%} of the rows, its reply contains the row's answer and is rejected",
        Severity.HIGH if share >= HIGH_SHARE else Severity.MEDIUM,
        floor=own_answer.mean,
    )


def _gives_answer(record: RolloutRecord) -> bool:
    """Return whether the last reply of a rollout contains the row's answer as a word, and no other number if it is a number."""
    if not record.completion or record.completion[-1]["role"] != "assistant" or not record.answer:
        return False
    text, answer = text_of(record.completion[-1]).casefold(), record.answer.casefold()
    if re.fullmatch(r"-?\d+(\.\d+)?", answer):
        # A grader may rightly refuse a reply that lists several numbers, even if the right one is among them.
        return {number.rstrip(".") for number in re.findall(r"-?\d[\d.]*", text)} == {answer}
    return re.search(as_words(answer), text) is not None


FRACTION = re.compile(r"(-?)\\[dt]?frac\{(-?\d+)\}\{([1-9]\d*)\}")
Rewrite = Callable[[str], str]
"""Function that writes an answer in another form; "" if it has none."""


def _plain_fraction(answer: str) -> str:
    match = FRACTION.fullmatch(answer.strip("$ "))
    return f"{match[1]}{match[2]}/{match[3]}" if match else ""


def _decimal(answer: str) -> str:
    match = FRACTION.fullmatch(answer.strip("$ "))
    if not match:
        return ""
    # Two signs cancel each other: -\frac{-1}{2} is 1/2.
    value = Fraction(int(f"{match[1]}{match[2]}".replace("--", "")), int(match[3]))
    text = f"{float(value):g}"
    # A rounded number, such as 0.333333 for 1/3, is another answer, which a grader may refuse.
    return text if Fraction(text) == value else ""


def _without_latex(answer: str) -> str:
    text = re.sub(r"\\(?:text|mathrm|mathbf)\{([^{}]*)\}", r"\1", answer.strip("$ "))
    text = re.sub(r"\\[,;! ]|\\left|\\right|\\%", lambda match: "%" if match[0] == "\\%" else "", text)
    return text.strip() if text.strip() != answer.strip() and "\\" not in text else ""


def _without_thousands(answer: str) -> str:
    return answer.replace(",", "") if re.fullmatch(r"-?\d{1,3}(,\d{3})+(\.\d+)?", answer) else ""


def _without_zeros(answer: str) -> str:
    return re.sub(r"\.0+$", "", answer) if re.fullmatch(r"-?\d+\.0+", answer) else ""


def _without_margin(answer: str) -> str:
    text = answer.strip().rstrip(".")
    return text if text != answer and text else ""


def _words(pattern: str) -> re.Pattern[str]:
    return re.compile(rf"\b(?:{pattern})\b", re.IGNORECASE)


REWRITES: dict[str, tuple[Rewrite, str, re.Pattern[str]]] = {
    "as a plain fraction": (_plain_fraction, "frac", _words("latex")),
    "as a decimal number": (_decimal, "frac", _words("latex|fractions?|exact form|lowest terms|simplest form")),
    "without LaTeX": (_without_latex, "\\", _words("latex")),
    "without thousands separators": (_without_thousands, ",", _words("commas?|separators?")),
    "without zeros after the point": (_without_zeros, ".0", _words("decimals?|digits? after")),
    # No instruction shows a period or white space at the end, so this text is one that prompts hardly contain.
    "without a period or white space at the end": (
        _without_margin,
        "\n\n\n",
        _words("period(?! of)|full stop|punctuat(?:e|ion)"),
    ),
}
"""Name → function, and what means that a prompt asks for the form of the row's answer: a text in its instructions, or words
anywhere in it."""


def _with_thousands(answer: str) -> str:
    number = re.fullmatch(r"(-?[1-9]\d{3,})(\.\d+)?", answer)
    return f"{int(number[1]):,}{number[2] or ''}" if number else ""


SEPARATED = r"(?<![\d,])\d{1,3}(?:,\d{3})+(?![\d,])"
SHOWN_FORMS: dict[str, tuple[Rewrite, re.Pattern[str], re.Pattern[str]]] = {
    "with thousands separators": (
        _with_thousands,
        re.compile(SEPARATED),
        re.compile(rf"[$€£¥] ?{SEPARATED}|{SEPARATED}(?: ?[€%]| [A-Za-z])"),
    ),
}
"""Name → function, and patterns of prompts and of results of tools that show this form, so that a model will use it. In a result,
only a number with a currency or a unit counts, because "1,108" may be two cells of a table."""
MIN_RESULTS = 3
"""Minimum number of different results of tools from which a form is read."""
PLAIN_EXAMPLE = re.compile(r">\d{4,}<")
"""An example of an answer without separators."""


SHOWN_SHARE = 0.3
"""A form is tried if at least this share of the prompts show it."""
SEPARATOR_RULE = re.compile(
    r"\b(comma|separator|digits only|only digits|plain number|whole number|integer)s?\b", re.IGNORECASE
)
"""Words of instructions about the form of numbers."""


async def check_refused_forms(subject: Subject, base: Baseline) -> AsyncIterator[Finding]:
    """Yield a finding if right answers in another form are refused although no prompt asks for the form of the rows' answers.

    Only forms are tried that are plainer than the row's answer, or that prompts show: a grader may ask for a certain form, but a
    model cannot guess LaTeX, separators or spaces that no prompt mentions.
    """
    own_answer = base.own_answer
    if own_answer is None or not can_compare_variants(base):
        return
    own_rewards = {record.example_key: reward_of(record) for record in own_answer.scored}
    worst: tuple[float, Measured, str] | None = None
    instructions = _instructions(base.prompts)
    plainer: list[tuple[str, Rewrite]] = []
    for name, (rewrite, mark, words) in REWRITES.items():
        if not any(mark in text for text in instructions) and not _is_shown(base.prompts, words):
            plainer.append((name, rewrite))
    shown_by = _forms_shown(subject, base)
    shown_forms = [(name, SHOWN_FORMS[name][0]) for name in shown_by]
    for name, rewrite in [*plainer, *shown_forms]:
        if sum(bool(rewrite(str(answer))) for answer in subject.answers) < MIN_FORMS:
            continue
        measured = await subject.measure(f"right answer {name}", from_answer(_in_form(base, rewrite)))
        changed = Measured(measured.name, [record for record in measured.scored if rewrite(record.answer)])
        expected = sum(own_rewards.get(record.example_key, 0.0) for record in changed.scored)
        refused = 1 - sum(changed.rewards) / expected if expected > 0 else 0.0
        share_of_rows = len(changed.scored) / max(1, len(measured.scored))
        if refused >= REFUSED_SHARE and (worst is None or share_of_rows > worst[0]):
            worst = (share_of_rows, changed, name)
    if worst is None:
        return
    share, changed, name = worst
    # The lowest reward: the grader may accept the other form in some rows, and their replies would show no refusal.
    record = min(changed.scored, key=reward_of)
    prompt, completion = evidence(record)
    reason = f"{shown_by[name]} this form, and not" if name in shown_by else "the prompt does not ask for"
    yield Finding(
        id="own-answer",
        severity=Severity.HIGH if share > PAID_SHARE else Severity.MEDIUM,
        text=(
            f"right answers are refused {name}, although {reason} the form of the rows' answers, such as {record.answer!r}: "
            f"they earn {changed.mean:.3f}"
        ),
        cause="the grader compares texts where it should compare values",
        remedy="compare values, or state the required form in the prompt",
        rate=changed.interval,
        floor=own_answer.mean,
        prompt=prompt,
        completion=completion,
    )


def _forms_shown(subject: Subject, base: Baseline) -> dict[str, str]:
    """Return forms that prompts or results of tools show, and which of them does: name → "the prompt shows"."""
    descriptions = re.findall(r'"description": "([^"]*)"', json.dumps([*base.tools]))
    instructions = [*base.prompts, *descriptions]
    if any(SEPARATOR_RULE.search(text) or PLAIN_EXAMPLE.search(text) for text in instructions):
        return {}
    results = _results_of_tools(subject)
    shown_by: dict[str, str] = {}
    for name, (_, in_prompts, in_results) in SHOWN_FORMS.items():
        if _is_shown(base.prompts, in_prompts):
            shown_by[name] = "the prompt shows"
        elif len(results) >= MIN_RESULTS and _is_shown(results, in_results):
            shown_by[name] = "results of tools show"
    return shown_by


def _is_shown(texts: Sequence[str], pattern: re.Pattern[str]) -> bool:
    return sum(bool(pattern.search(text)) for text in texts) >= SHOWN_SHARE * len(texts)


def _results_of_tools(subject: Subject) -> list[str]:
    """Return different results of tools, without messages about errors."""
    results: dict[str, None] = {}
    for record in subject.records:
        for message in record.completion:
            if message["role"] == "tool" and not ERROR.search(text_of(message)):
                results[text_of(message)] = None
    return list(results)


def _instructions(prompts: Sequence[str]) -> list[str]:
    """Return the parts of prompts that may show a form: all but the last line, which holds the question.

    Of prompts with one line, the words that all of them have. The punctuation around a word shows no form.
    """
    if any("\n" in prompt for prompt in prompts):
        return [prompt.rpartition("\n")[0] for prompt in prompts]
    common_words = set.intersection(*(set(prompt.split()) for prompt in prompts))
    return [word.strip(".,;:") for word in common_words]


def _in_form(base: Baseline, rewrite: Rewrite) -> Rewrite:
    return lambda answer: base.form(rewrite(answer) or answer)
