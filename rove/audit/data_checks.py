"""Checks of the dataset: overlap, rows that two seeds share, JSON round trips, answers in prompts. No rollouts."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

from rove.audit.findings import shortened
from rove.core.findings import Finding, Severity
from rove.core.plain import JsonMapping

Row = JsonMapping
"""A row of `rove.audit.rows`."""
DISTINCT_SHARE = 0.1
"""Share of distinct training rows below which rows are meant to be equal, such as the same start of all games."""
OVERLAP_SHARE = 0.02
"""Share of evaluation rows in the training rows that matters."""
NEAR_SHARE = 0.1
"""The same for near duplicates."""
NGRAM = 5
"""Words in a row that near duplicates share."""
NEAR = 0.8
"""Share of equal n-grams from which two texts are near duplicates."""
MIN_DIGITS = 5
"""Minimum digits of the numbers in a text that identify a problem."""
MIN_WORDS = 12
"""Texts with fewer words are only compared as a whole."""
SHIFT_SHARE = 0.5
"""Share of equal rows of two seeds that matters."""
LEAK_SHARE = 0.3
"""Excess of prompts that contain their own answer over those that contain another row's, from which it is a leak."""
MIN_ANSWER = 3
"""Characters of an answer that is searched in prompts."""
REVEALING = re.compile(
    r"(answer|solution|expected|gold|label|correct|target|key)(\W{1,3}(is|was|are))?\W{0,12}$", re.IGNORECASE
)
"""Text before an answer that the prompt names as the answer."""


def check_overlap(train: Sequence[Row], evaluation: Sequence[Row], has_both: bool) -> Iterator[Finding]:
    """Yield a finding about evaluation rows that are also training rows."""
    if not train or not evaluation or len({row["digest"] for row in train}) < DISTINCT_SHARE * len(train):
        return
    if not has_both:
        text = "the environment has one dataset: evaluations use the training rows"
        yield Finding(id="data-overlap", severity=Severity.INFO, text=text)
        return
    # games may begin with equal texts and differ in the other columns; so may questions about a text that is not in the prompt
    by_text = len({row["text"] for row in train}) > 0.5 * len({row["digest"] for row in train})
    by_text = by_text and _has_same_answers(train, evaluation)
    key = "text" if by_text else "digest"
    known = {_normalized(row[key]) for row in train}
    shared = [row for row in evaluation if _normalized(row[key]) in known]
    share = len(shared) / len(evaluation)
    if share > OVERLAP_SHARE:
        yield Finding(
            id="data-overlap",
            severity=Severity.HIGH if share > 0.2 else Severity.MEDIUM,
            text=f"{share:.0%} of {len(evaluation)} evaluation rows are also among {len(train)} training rows",
            rate=(share, share, share),
            floor=0.0,
            prompt=shortened(shared[0]["text"]),
        )
        return
    near = _resembling(train, evaluation) if by_text else []
    share = len(near) / len(evaluation)
    if share > NEAR_SHARE:
        ours, theirs = near[0]
        half = len(train) // 2
        within = len(_resembling(train[:half], train[half:])) / max(1, len(train) - half)
        template = (
            f"; {within:.0%} of the training rows nearly equal another one: ignore this if all rows come from one "
            "template and their answers or start positions differ"
        )
        yield Finding(
            id="data-overlap",
            text=f"{share:.0%} of {len(evaluation)} evaluation rows nearly equal a training row"
            + (template if within > 0.7 * share else ""),
            rate=(share, share, share),
            floor=0.0,
            prompt=f"evaluation: {shortened(ours, 500)}\ntraining: {shortened(theirs, 500)}",
        )


def _has_same_answers(train: Sequence[Row], evaluation: Sequence[Row]) -> bool:
    """Return whether most rows with the same text have the same answer, so that a text is a task."""
    answers = {row["text"]: row["answer"] for row in train}
    same = [answers[row["text"]] == row["answer"] for row in evaluation if row["text"] in answers]
    return not same or sum(same) > 0.5 * len(same)


def _normalized(text: str) -> str:
    return " ".join(re.findall(r"\w+|[^\w\s]", text.lower()))


def _resembling(train: Sequence[Row], evaluation: Sequence[Row]) -> list[tuple[str, str]]:
    """Return evaluation rows that nearly equal a training row, each with that row."""
    found = [*_near_duplicates(train, evaluation), *_same_numbers(train, evaluation)]
    return list({ours: (ours, theirs) for ours, theirs in found}.values())


def _near_duplicates(train: Sequence[Row], evaluation: Sequence[Row]) -> Iterator[tuple[str, str]]:
    index: dict[tuple[str, ...], set[int]] = defaultdict(set)
    grams = [_ngrams(row["text"]) for row in train]
    for number, some in enumerate(grams):
        for gram in some:
            index[gram].add(number)
    for row in evaluation:
        own = _ngrams(row["text"])
        counts: dict[int, int] = defaultdict(int)
        for gram in own:
            if len(index[gram]) <= 0.1 * len(train):  # frequent ones are a template
                for number in index[gram]:
                    counts[number] += 1
        rare = sum(len(index[gram]) <= 0.1 * len(train) for gram in own)
        best = max(counts, key=lambda number: counts[number], default=None)
        if best is not None and rare >= NGRAM and counts[best] >= NEAR * rare:
            yield row["text"], train[best]["text"]


def _same_numbers(train: Sequence[Row], evaluation: Sequence[Row]) -> Iterator[tuple[str, str]]:
    """Yield rows of both datasets with the same numbers and the same answer: the same problem in other words."""
    known = {signature: row["text"] for row in train if (signature := _signature(row)) is not None}
    for row in evaluation:
        signature = _signature(row)
        if signature in known:
            yield row["text"], known[signature]


def _signature(row: Row) -> tuple[str, ...] | None:
    numbers = re.findall(r"\d+", row["text"])
    return (*sorted(numbers), row["answer"]) if len(numbers) >= 3 and len("".join(numbers)) >= MIN_DIGITS else None


def _ngrams(text: str) -> set[tuple[str, ...]]:
    words = re.findall(r"\w+", text.lower())
    return {tuple(words[i : i + NGRAM]) for i in range(len(words) - NGRAM + 1)} if len(words) >= MIN_WORDS else set()


def check_seed_shift(rows: Sequence[Row], others: Sequence[Row]) -> Iterator[Finding]:
    """Yield a finding if the rows of two neighboring seeds are mostly equal, but not all.

    All rows are equal if the seed only orders them, or if the environment has no generated rows.
    """
    first, second = _keys(rows), _keys(others)
    if not first or not second or set(first) == set(second):
        return
    share = len(set(first) & set(second)) / len(set(first))
    is_shifted = sum(a == b for a, b in zip(first[1:], second)) > 0.5 * min(len(first) - 1, len(second))
    if is_shifted and share > SHIFT_SHARE:
        yield Finding(
            id="seed-shift",
            text=f"the rows of the next seed are this seed's rows shifted by one: {share:.0%} are equal",
            rate=(share, share, share),
            floor=0.0,
            prompt=shortened(rows[1]["text"]) if len(rows) > 1 else "",
        )


def _keys(rows: Sequence[Row]) -> list[str]:
    """Return what identifies rows: prompt and answer, since other columns may have the row's number; the content of games."""
    keys = [f"{row['text']}\n{row['answer']}" for row in rows]
    return keys if len(set(keys)) > 0.5 * len(keys) else [row["digest"] for row in rows]


def check_same_rows(rows: Sequence[Row], again: Sequence[Row]) -> Iterator[Finding]:
    """Yield a finding if another process with another PYTHONHASHSEED has other rows."""
    changed = [(one, other) for one, other in zip(rows, again) if one["digest"] != other["digest"]]
    if changed or len(rows) != len(again):
        shown = [f"one process: {one['text'][:500]}\nanother: {other['text'][:500]}" for one, other in changed[:1]]
        yield Finding(
            id="determinism",
            text=(
                f"another process, with another PYTHONHASHSEED, has {len(again)} instead of {len(rows)} rows; {len(changed)} of "
                "them differ"
            ),
            prompt="".join(shown),
        )


def check_round_trip(rows: Sequence[Row]) -> Iterator[Finding]:
    """Yield a finding about rows that JSON changes."""
    changed = [row for row in rows if row["changed"]]
    if changed:
        names = ", ".join(sorted({name for row in changed for name in row["changed"]})[:4])
        yield Finding(
            id="row-round-trip",
            text=f"{len(changed)} of {len(rows)} rows change in a JSON round trip ({names})",
            prompt=shortened(changed[0]["text"]),
        )


def check_leaks(rows: Sequence[Row], shown: str = "") -> Iterator[Finding]:
    """Yield a finding about answers that the prompt shows.

    Args:
        shown: Text that every row shows, such as the system prompt and the descriptions of tools.
    """
    usable = [row for row in rows if len(row["answer"]) >= MIN_ANSWER]
    if len(usable) < 10 or len({row["answer"] for row in usable}) < 5:
        return
    revealed = [row for row in usable if _is_revealed(row["answer"], row["text"])]
    share = len(revealed) / len(usable)
    if share > LEAK_SHARE:
        yield Finding(
            id="answer-leak",
            text=f"{share:.0%} of the prompts name their answer as such",
            rate=(share, share, share),
            floor=0.0,
            prompt=shortened(revealed[0]["text"]),
            completion=revealed[0]["answer"],
        )
        return
    hidden = [row for row in usable if _is_inside(row["answer"], row["text"])]
    others = sum(_is_inside(other["answer"], row["text"]) for row, other in zip(usable, [*usable[1:], usable[0]]))
    if len(hidden) - others > LEAK_SHARE * len(usable):
        share = len(hidden) / len(usable)
        yield Finding(
            id="answer-leak",
            text=f"{share:.0%} of the prompts contain their answer inside of a longer word or number",
            rate=(share, share, share),
            floor=others / len(usable),
            prompt=shortened(hidden[0]["text"]),
            completion=hidden[0]["answer"],
        )
        return
    listed = [row for row in usable if row["answer"] in shown]
    if shown and len(listed) > LEAK_SHARE * len(usable):
        share = len(listed) / len(usable)
        yield Finding(
            id="answer-leak",
            text=f"the system prompt or a tool's description contains {share:.0%} of the answers",
            rate=(share, share, share),
            floor=0.0,
            prompt=shortened(shown),
            completion=listed[0]["answer"],
        )


def _is_inside(answer: str, text: str) -> bool:
    """Return whether a text contains an answer only as a part of longer words or numbers, such as "INV-2041".

    The same number in another notation, such as an option "2041.00", is none.
    """
    pattern = re.escape(answer)
    around = re.findall(rf"[\w.,-]*{pattern}[\w.,-]*", text)
    if any(_value(word) == _value(answer) is not None for word in around):
        return False
    return bool(re.search(rf"[\w-]{pattern}|{pattern}[\w-]", text)) and not re.search(
        rf"(?<![\w-]){pattern}(?![\w-])", text
    )


def _value(word: str) -> float | None:
    try:
        return float(word.strip(".,").replace(",", ""))
    except ValueError:
        return None


def _is_revealed(answer: str, text: str) -> bool:
    at = text.find(answer)
    while at >= 0:
        if REVEALING.search(text[max(0, at - 40) : at]):
            return True
        at = text.find(answer, at + 1)
    return False
