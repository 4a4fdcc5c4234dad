"""Are evaluation rows also training rows: equal, with other options, nearly equal, or in other words?"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from rove.audit.findings import shortened
from rove.audit.row_content import Row, content, equal_by_chance, numbers
from rove.core.findings import Finding, Severity

DISTINCT_SHARE = 0.1
"""If the share of distinct training rows is lower, rows are meant to be equal, as in games with the same start."""
OVERLAP_SHARE = 0.02
"""If more than this share of the evaluation rows are also training rows, this is a finding."""
SEVERE_OVERLAP = 0.05
"""The severity is high if more than this share of the evaluation rows are also training rows."""
CONTRADICTED = 0.1
"""Maximum mean number of further right options of a question, if its right option follows from the question."""
NEAR_SHARE = 0.1
"""If more than this share of the evaluation rows are near duplicates of training rows, this is a finding."""
MIN_REWORDED = 5
"""Minimum number of such evaluation rows, and of the training rows that would resemble another one if they did so as often."""
WITHIN_STEP = 7
"""Every seventh training row is compared with the other training rows."""
REWORDED_BY_CHANCE = 0.2
"""Evaluation rows with the numbers of a training row are copies only if training rows resemble each other less than this fraction
as often."""
NGRAM = 5
"""Length of the word sequences by which near duplicates are recognized."""
NEAR = 0.8
"""Two texts are near duplicates if they share at least this fraction of their n-grams."""
MIN_DIGITS = 5
"""Minimum number of digits that the numbers in a text must have together to identify a problem."""
MIN_EXPECTED = 5
"""Number of groups of three equal problems or more that chance must make before their absence shows something."""
FEW_OF_EXPECTED = 0.2
"""Rows come in pairs if there are fewer than this share of the larger groups that chance would make."""
MAX_SHARE_BY_CHANCE = 0.95
"""Share of rows with an equal one from which the number of larger groups is computed at most; at 1 it would be infinite."""
MIN_WORDS = 12
"""Minimum number of words for n-grams; shorter texts are only compared as a whole."""


class Pair(NamedTuple):
    """An evaluation row and a training row that resembles it."""

    evaluation: Row
    training: Row

    @property
    def text(self) -> str:
        """Both rows, with their answers."""
        lines: list[str] = []
        for name, row in (("evaluation", self.evaluation), ("training", self.training)):
            answer = f" → {shortened(row['answer'], 200)}" if row["answer"] else ""
            lines.append(f"{name}: {shortened(row['text'], 500)}{answer}")
        return "\n".join(lines)


def check_overlap(train: Sequence[Row], evaluation: Sequence[Row], has_both: bool) -> Iterator[Finding]:
    """Yield a finding about evaluation rows that are also training rows."""
    if not train or not evaluation or len({row["digest"] for row in train}) < DISTINCT_SHARE * len(train):
        return
    if not has_both:
        text = "the environment has one dataset: evaluations use the training rows"
        yield Finding(id="data-overlap", severity=Severity.INFO, text=text)
        return
    # Rows that are equal are also nearly equal, so only the first finding is reported.
    for check in (_check_equal, _check_other_options, _check_near, _check_reworded):
        finding = check(train, evaluation)
        if finding is not None:
            yield finding
            return


def _finding(pairs: Sequence[Pair], share: float, severity: Severity, text: str) -> Finding:
    rate = (share, share, share)
    return Finding(id="data-overlap", severity=severity, text=text, rate=rate, floor=0.0, prompt=pairs[0].text)


def _check_equal(train: Sequence[Row], evaluation: Sequence[Row]) -> Finding | None:
    pairs = _equal_rows(train, evaluation)
    is_reordered = all(pair.evaluation["text"] != pair.training["text"] for pair in pairs)
    suffix = " with their options in another order" if is_reordered else ""
    return _copied(pairs, evaluation, f"are also among {len(train)} training rows{suffix}")


def _check_other_options(train: Sequence[Row], evaluation: Sequence[Row]) -> Finding | None:
    text = f"ask a question of the {len(train)} training rows, with the same right option and other wrong ones"
    return _copied(_with_other_options(train, evaluation), evaluation, text)


def _copied(pairs: Sequence[Pair], evaluation: Sequence[Row], text: str) -> Finding | None:
    """Return a finding about evaluation rows that are copies of training rows; None if there are few."""
    share = len(pairs) / len(evaluation)
    if share <= OVERLAP_SHARE:
        return None
    severity = Severity.HIGH if share > SEVERE_OVERLAP else Severity.MEDIUM
    return _finding(pairs, share, severity, f"{share:.0%} of {len(evaluation)} evaluation rows {text}")


def _check_near(train: Sequence[Row], evaluation: Sequence[Row]) -> Finding | None:
    pairs = _resembling(train, evaluation)
    share = len(pairs) / len(evaluation)
    if share <= NEAR_SHARE:
        return None
    # If training rows resemble each other as often, they come from one template, and the evaluation rows are not copies.
    within = _share_within(train, _resembling)
    text = f"{share:.0%} of {len(evaluation)} evaluation rows nearly equal a training row"
    is_template = within > 0.7 * share and not _come_in_pairs([*train, *evaluation], share)
    if is_template:
        text += (
            f"; {within:.0%} of the training rows nearly equal another one: ignore this if all rows come from one template and "
            "their answers or start positions differ"
        )
    return _finding(pairs, share, Severity.LOW if is_template else Severity.MEDIUM, text)


def _check_reworded(train: Sequence[Row], evaluation: Sequence[Row]) -> Finding | None:
    pairs = _reworded(train, evaluation)
    share = len(pairs) / len(evaluation)
    within = _share_within(train, _reworded)
    # Problems with few possible numbers, such as lists to sort, are equal by chance, among training rows as well.
    can_be_seen = len(pairs) >= MIN_REWORDED and share * len(train[::WITHIN_STEP]) >= MIN_REWORDED
    if not can_be_seen or share <= NEAR_SHARE or within >= REWORDED_BY_CHANCE * share:
        return None
    text = (
        f"{share:.0%} of {len(evaluation)} evaluation rows have the numbers and the answer of a training row, in other words; "
        f"among the training rows, this is so for {within:.0%}"
    )
    return _finding(pairs, share, Severity.HIGH, text)


def _share_within(train: Sequence[Row], resembling: Callable[[Sequence[Row], Sequence[Row]], Sequence[Pair]]) -> float:
    """Return the share of training rows that resemble another one.

    Some rows are compared with nearly all others, since more rows have more that resemble them.
    """
    part = train[::WITHIN_STEP]
    other_rows = [row for number, row in enumerate(train) if number % WITHIN_STEP]
    return len(resembling(other_rows, part)) / len(part)


def _equal_rows(train: Sequence[Row], evaluation: Sequence[Row]) -> list[Pair]:
    """Return the evaluation rows that are also training rows, each with that row.

    Rows are equal if all of their columns are. Rows with an answer are also equal if prompt and answer are, or if only the order
    of the options differs. Rows without answers but with equal prompts may still differ: games may begin alike and differ in
    other columns.
    """
    by_digest = {row["digest"]: row for row in train}
    pairs = {row["digest"]: Pair(row, by_digest[row["digest"]]) for row in evaluation if row["digest"] in by_digest}
    by_content = {content(row): row for row in train if row["answer"]}
    if _answers_follow_from_prompts(train, evaluation):
        for row in evaluation:
            training_row = by_content.get(content(row)) if row["answer"] else None
            if training_row is not None:
                pairs.setdefault(row["digest"], Pair(row, training_row))
    return [pairs[row["digest"]] for row in evaluation if row["digest"] in pairs]


def _with_other_options(train: Sequence[Row], evaluation: Sequence[Row]) -> list[Pair]:
    """Return the evaluation rows with the question and the right option of a training row, each with that row.

    Nothing is returned if questions have several right options, since the rows then differ in what their options show.
    """
    answers: dict[tuple[str, ...], set[str]] = defaultdict(set)
    training_rows: dict[tuple[tuple[str, ...], str], Row] = {}
    for row in train:
        question, options, answer = content(row)
        if options:
            answers[question].add(answer)
            training_rows.setdefault((question, answer), row)
    pairs: list[Pair] = []
    for row in evaluation:
        question, options, answer = content(row)
        if options:
            answers[question].add(answer)
            if (question, answer) in training_rows:
                pairs.append(Pair(row, training_rows[question, answer]))
    has_one_answer = sum(map(len, answers.values())) <= (1 + CONTRADICTED) * len(answers)
    return pairs if has_one_answer else []


def _answers_follow_from_prompts(train: Sequence[Row], evaluation: Sequence[Row]) -> bool:
    """Return whether rows with the same prompt have the same answer more often than chance.

    Otherwise, the answers depend on something outside of the prompt, such as a document or a tool.
    """
    answers: dict[tuple[tuple[str, ...], tuple[str, ...]], str] = {}
    for row_content in (content(row) for row in train if row["answer"]):
        answers[row_content.question, row_content.options] = row_content.answer
    answered = [content(row) for row in evaluation if row["answer"]]
    compared = [row_content for row_content in answered if (row_content.question, row_content.options) in answers]
    if not compared:
        return False
    num_same = sum(answers[row_content.question, row_content.options] == row_content.answer for row_content in compared)
    by_chance = equal_by_chance(train)
    return num_same / len(compared) > max(0.5, by_chance + 0.5 * (1 - by_chance))


def _resembling(train: Sequence[Row], evaluation: Sequence[Row]) -> list[Pair]:
    """Return evaluation rows that nearly equal a training row, each with the training row.

    Both rows have the same answer, and contain the same numbers in the same order.
    """
    pairs = [*_near_duplicates(train, evaluation), *_same_numbers(train, evaluation)]
    return list({pair.evaluation["digest"]: pair for pair in pairs}.values())


def _near_duplicates(train: Sequence[Row], evaluation: Sequence[Row]) -> Iterator[Pair]:
    index: dict[tuple[str, ...], set[int]] = defaultdict(set)
    grams = [_ngrams(row["text"]) for row in train]
    for number, row_grams in enumerate(grams):
        for gram in row_grams:
            index[gram].add(number)
    for row in evaluation:
        grams_of_row = _ngrams(row["text"])
        # Frequent n-grams are a template that most rows share.
        rare = [gram for gram in grams_of_row if len(index[gram]) <= 0.1 * len(train)]
        counts: Counter[int] = Counter()
        for gram in rare:
            counts.update(index[gram])
        best = max(counts, key=lambda number: counts[number], default=None)
        if best is None or len(rare) < NGRAM or counts[best] < NEAR * len(rare):
            continue
        # Long addresses, or boards of a game, may be alike although the problems differ.
        if row["answer"] == train[best]["answer"] and numbers(row) == numbers(train[best]):
            yield Pair(row, train[best])


def _same_numbers(train: Sequence[Row], evaluation: Sequence[Row], in_order: bool = True) -> Iterator[Pair]:
    """Yield rows of both datasets with the same numbers and the same answer: the same problem in other words.

    Args:
        train: Training rows.
        evaluation: Evaluation rows.
        in_order: Whether the numbers must stand in the same order.
    """
    rows = {_signature(row, in_order): row for row in train}
    for row in evaluation:
        signature = _signature(row, in_order)
        if signature is not None and signature in rows:
            yield Pair(row, rows[signature])


def _come_in_pairs(rows: Sequence[Row], share: float) -> bool:
    """Return whether hardly any three rows have the same numbers and answer, although many would if numbers met by chance.

    Problems that were each written in two wordings come in pairs; a template with few possible numbers has groups of all sizes.

    Args:
        share: Share of rows that have such a partner.
    """
    sizes = Counter(signature for row in rows if (signature := _signature(row, in_order=True)) is not None)
    num_pairs = sum(size == 2 for size in sizes.values())
    num_larger = sum(size > 2 for size in sizes.values())
    # By chance, the number of rows in a group has a Poisson distribution.
    expected = num_pairs * -math.log(1 - min(share, MAX_SHARE_BY_CHANCE)) / 3
    return expected >= MIN_EXPECTED and num_larger < FEW_OF_EXPECTED * expected


def _reworded(train: Sequence[Row], evaluation: Sequence[Row]) -> list[Pair]:
    """Return rows with the numbers and the answer of a training row and other words, each with that row."""
    # With equal words, numbers in another order are another problem.
    return [
        pair
        for pair in _same_numbers(train, evaluation, in_order=False)
        if re.sub(r"\d+", "", pair.evaluation["text"]) != re.sub(r"\d+", "", pair.training["text"])
    ]


def _signature(row: Row, in_order: bool) -> tuple[str, ...] | None:
    of_prompt = numbers(row)
    if len(of_prompt) < 3 or len("".join(of_prompt)) < MIN_DIGITS or not row["answer"]:  # equal by chance
        return None
    return (*(of_prompt if in_order else sorted(of_prompt)), row["answer"])


def _ngrams(text: str) -> set[tuple[str, ...]]:
    words = re.findall(r"\w+", text.lower())
    if len(words) < MIN_WORDS:  # short texts of one template are nearly equal, though their answers differ
        return set()
    return {tuple(words[start : start + NGRAM]) for start in range(len(words) - NGRAM + 1)}
