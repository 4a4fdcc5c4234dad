"""Checks of a dataset, without rollouts: contradictions, rows that two seeds share, JSON round trips, answers in prompts."""

from __future__ import annotations

import operator
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain

from rove.audit.findings import shortened
from rove.audit.row_content import Row, content, equal_by_chance, normalized, numbers
from rove.audit.rows import AS_LISTS
from rove.core.findings import Finding, Severity

MAX_RARE, RARE_SHARE = 4, 0.01
"""A word is rare if it is in at most this many rows, or in this share of the rows; rare words name the subject of a question."""
MIN_QUESTIONS = 10
"""Minimum number of pairs of rows with the same question."""
MIN_CONTRADICTORY = 2
MAX_CONTRADICTORY = 0.3
"""If more than this share of such pairs have different answers, their rare words do not determine the answer."""
MAX_OF_CHANCE = 0.5
"""Rare words do not determine the answer, either, if such pairs have different answers more than half as often as random rows. If
85% of the answers are "yes", two different questions about a person differ as rarely as rows with wrong answers do."""
NUMBER = re.compile(r"(?<![\w.-])-?\d+(?:\.\d+)?|\d+(?:\.\d+)?")
DOTTED_NUMBERS = re.compile(r"\d+(?:\.\d+){2,}")
"""Three or more whole numbers joined by dots, such as a date or a version."""
NUMBER_LIST = re.compile(r"[\d\s.,;\[\]()-]+")
MAX_DECIMALS = 4
"""Numbers of decimals from 0 to below this one are tried as the rounding of a number."""
MIN_COPIED, MIN_DISTINCTIVE = 2, 20
"""Minimum count of an answer's numbers that are compared with its prompt, and minimum of such a number if it is whole."""
COPIED_SHARE = 0.4
"""Minimum share of rows whose answer is copied from the prompt."""
WRONG_SHARE = 0.05
"""If more than this share of the rows contradict another one, right answers are refused often."""
SHIFT_SHARE = 0.5
"""Minimum share of rows that two seeds have in common for a finding."""
LEAK_SHARE = 0.3
"""Minimum excess of prompts with their own answer over prompts with another row's answer that counts as a leak."""
MIN_ANSWER = 3
"""Minimum characters of an answer that is searched for in prompts."""
REVEALING = re.compile(
    r"(answer|solution|expected|gold|label|correct|target|key)(\W{1,3}(is|was|are))?\W{0,12}$", re.IGNORECASE
)
"""Pattern of the text before an answer that a prompt presents as the answer."""
OTHER_OPTION = re.compile(r"['\"`’”)]{0,2}\s*(?:or\b|/|\||\n\s*[-*•]\s|,[^.?!\n]{0,80}\bor\b)", re.IGNORECASE)
"""Pattern of the text after an answer that is one of several options, as in "Which spelling is correct: receive or recieve?"."""


def check_contradictions(rows: Sequence[Row]) -> Iterator[Finding]:
    """Yield a finding about rows with the same question and different answers.

    Rows with the same prompt are compared, and rows with the same rare words: the same question in other words. Where most of
    these pairs have equal answers, the others contradict each other.
    """
    answered = [row for row in rows if row["answer"]]
    frequent = Counter(word for row in answered for word in _words(row))
    limit = max(MAX_RARE, int(RARE_SHARE * len(answered)))
    by_question: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in answered:
        rare = sorted(word for word in _words(row) if frequent[word] <= limit)
        if rare:
            by_question[(*rare, *numbers(row))].append(row)
    pairs = [(group[0], row) for group in by_question.values() for row in group[1:]]
    contradictory = [(first, row) for first, row in pairs if content(first).answer != content(row).answer]
    if len(pairs) < MIN_QUESTIONS or len(contradictory) < MIN_CONTRADICTORY:
        return
    largest = min(MAX_CONTRADICTORY, MAX_OF_CHANCE * (1 - equal_by_chance(answered)))
    if len(contradictory) > largest * len(pairs):
        return
    share = len(contradictory) / len(pairs)
    yield Finding(
        id="contradictory-rows",
        severity=Severity.HIGH if len(contradictory) > WRONG_SHARE * len(answered) else Severity.MEDIUM,
        text=(
            f"{len(contradictory)} of {len(pairs)} pairs of rows ask about the same and have different answers; the others "
            "have equal answers"
        ),
        rate=(share, share, share),
        floor=0.0,
        prompt="\n".join(
            f"{shortened(row['text'], 500)} → {shortened(row['answer'], 200)}" for row in contradictory[0]
        ),
    )


def check_copied_numbers(rows: Sequence[Row]) -> Iterator[Finding]:
    """Yield a finding if answers have rounded numbers of their prompt, although those of the other rows are copied from it.

    For example, the readings of a list were rounded in some answers, so right answers are refused. Only answers that are lists
    of numbers are compared; one number may be in a prompt by chance.
    """
    copied: list[Row] = []
    rounded: list[Row] = []
    for row in rows:
        if not NUMBER_LIST.fullmatch(row["answer"]):
            continue
        # Small whole numbers are in many prompts by chance.
        answer_numbers = _values_of(row["answer"])
        distinctive = [number for number in answer_numbers if number % 1 or abs(number) >= MIN_DISTINCTIVE]
        if len(distinctive) < MIN_COPIED:
            continue
        prompt_numbers = _values_of(row["text"])
        missing = [number for number in distinctive if number not in prompt_numbers]
        if not missing:
            copied.append(row)
        elif all(_is_rounded(number, prompt_numbers) for number in missing):
            rounded.append(row)
    count = len(copied) + len(rounded)
    if count < MIN_QUESTIONS or len(rounded) < MIN_CONTRADICTORY or len(copied) < COPIED_SHARE * count:
        return
    share = len(rounded) / count
    yield Finding(
        id="contradictory-rows",
        severity=Severity.HIGH if share > WRONG_SHARE else Severity.MEDIUM,
        text=(
            f"the answers of {len(rounded)} of {count} rows contain rounded numbers of their prompt; those of the other rows are "
            "copied from the prompt"
        ),
        rate=(share, share, share),
        floor=0.0,
        prompt=f"{shortened(rounded[0]['text'], 500)} → {shortened(rounded[0]['answer'], 200)}",
    )


def _values_of(text: str) -> set[float]:
    """Return the numbers of a text, with or without thousands separators.

    The parts of a date, a version or an address, such as "2016.2.22", are whole numbers.
    """
    without_separators = re.sub(r"(?<=\d),(?=\d{3}\b)", "", text)
    separated = DOTTED_NUMBERS.sub(lambda match: match[0].replace(".", " "), without_separators)
    return set(map(float, NUMBER.findall(separated)))


def _is_rounded(number: float, prompt_numbers: set[float]) -> bool:
    return any(round(value, decimals) == number for value in prompt_numbers for decimals in range(MAX_DECIMALS))


def _words(row: Row) -> set[str]:
    return set(normalized(row["text"]).split())


def check_seed_shift(rows: Sequence[Row], shifted_rows: Sequence[Row]) -> Iterator[Finding]:
    """Yield a finding if the rows of one seed are mostly those of the next seed, shifted by one.

    The same rows in the same or in a random order are not a finding: the seed only orders them, or has no effect. They may
    also be shifted and all equal, if the number of rows covers everything that the generator makes.
    """
    first, second = _keys(rows), _keys(shifted_rows)
    if not first or not second or first == second:
        return
    share = len(set(first) & set(second)) / len(set(first))
    # `random.Random(seed + index)`, as in reasoning-gym, shifts the rows: row i + 1 of one seed is row i of the next.
    num_equal = sum(map(operator.eq, first[1:], second))
    is_shifted = num_equal > 0.5 * min(len(first) - 1, len(second))
    if is_shifted and share > SHIFT_SHARE:
        yield Finding(
            id="seed-shift",
            text=f"the rows of the next seed are this seed's rows shifted by one: {share:.0%} are equal",
            rate=(share, share, share),
            floor=0.0,
            prompt=shortened(rows[1]["text"]) if len(rows) > 1 else "",
        )


def _keys(rows: Sequence[Row]) -> list[str]:
    """Return the keys of rows: prompt and answer, because other columns may contain the row's number; for games, the whole
    content.
    """
    keys = [f"{row['text']}\n{row['answer']}" for row in rows]
    # Games often have equal prompts and no answers; their rows differ only in other columns.
    return keys if len(set(keys)) > 0.5 * len(keys) else [row["digest"] for row in rows]


def check_same_rows(rows: Sequence[Row], repeated_rows: Sequence[Row]) -> Iterator[Finding]:
    """Yield a finding if a process with another PYTHONHASHSEED generates different rows."""
    changed = [(row, repeated) for row, repeated in zip(rows, repeated_rows) if row["digest"] != repeated["digest"]]
    if changed or len(rows) != len(repeated_rows):
        example = ""
        if changed:
            row, repeated = changed[0]
            example = f"one process: {row['text'][:500]}\nanother: {repeated['text'][:500]}"
        difference = f"{len(changed)} of {len(rows)} rows differ"
        if len(rows) != len(repeated_rows):
            difference = f"there are {len(repeated_rows)} instead of {len(rows)} rows"
        yield Finding(
            id="determinism",
            text=f"in another process, with another PYTHONHASHSEED, {difference}",
            prompt=example,
        )


def check_round_trip(rows: Sequence[Row], is_anything_paid: bool = True) -> Iterator[Finding]:
    """Yield a finding about rows that JSON changes.

    Args:
        is_anything_paid: Whether any rollout earned a reward. The audit sends rows as JSON to a worker: if no rollout is paid
            there, the grader may compare tuples with lists.
    """
    changed = [row for row in rows if row["changed"]]
    if changed:
        columns = set(chain.from_iterable(row["changed"] for row in changed))
        names = ", ".join(sorted(columns)[:4])
        has_other_changes = not all(column.endswith(AS_LISTS) for column in columns)
        yield Finding(
            id="row-round-trip",
            severity=Severity.MEDIUM if has_other_changes or not is_anything_paid else Severity.LOW,
            text=f"{len(changed)} of {len(rows)} rows change in a JSON round trip ({names})",
            prompt=shortened(changed[0]["text"]),
        )


def check_leaks(rows: Sequence[Row], common_text: str = "") -> Iterator[Finding]:
    """Yield a finding about answers that the prompt shows.

    Args:
        common_text: Text that every row shows, such as the system prompt and the descriptions of tools.
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
    # Answers of neighboring rows show how often a prompt contains an answer by chance.
    neighbors = [*usable[1:], usable[0]]
    num_by_chance = sum(_is_inside(next_row["answer"], row["text"]) for row, next_row in zip(usable, neighbors))
    if len(hidden) - num_by_chance > LEAK_SHARE * len(usable):
        share = len(hidden) / len(usable)
        yield Finding(
            id="answer-leak",
            text=f"{share:.0%} of the prompts contain their answer inside of a longer word or number",
            rate=(share, share, share),
            floor=num_by_chance / len(usable),
            prompt=shortened(hidden[0]["text"]),
            completion=hidden[0]["answer"],
        )
        return
    listed = [row for row in usable if row["answer"] in common_text]
    # Few answers for many rows are options, which a prompt must list.
    are_options = 2 * len({row["answer"] for row in listed}) < len(listed)
    if common_text and len(listed) > LEAK_SHARE * len(usable) and not are_options:
        share = len(listed) / len(usable)
        yield Finding(
            id="answer-leak",
            text=f"the system prompt or a tool's description contains {share:.0%} of the answers",
            rate=(share, share, share),
            floor=0.0,
            prompt=shortened(common_text),
            completion=listed[0]["answer"],
        )


def _is_inside(answer: str, text: str) -> bool:
    """Return whether a text contains an answer only as a part of identifiers, such as "INV-2041".

    The same number in another notation, such as an option "2041.00", does not count as longer. Ordinary words and numbers do
    not count either: a task may be about them, such as the first letters of a word or the last digits of a number.
    """
    pattern = re.escape(answer)
    around = re.findall(rf"[\w.,-]*{pattern}[\w.,-]*", text)
    value = _value(answer)
    if value is not None and value in map(_value, around):
        return False
    if re.search(rf"(?<![A-Za-z0-9_-]){pattern}(?![A-Za-z0-9_-])", text):
        return False
    return any(map(_is_field_of, re.findall(rf"([A-Za-z0-9_-]+)({pattern})([A-Za-z0-9_-]*)", text)))


def _is_field_of(parts: tuple[str, str, str]) -> bool:
    """Return whether an answer is a field of an identifier, whose letters come before the field: "INV-2041", "row17_paris".

    Args:
        parts: The text before the answer, the answer, and the text after it.
    """
    prefix, answer, _ = parts
    is_separated = prefix[-1] in "-_" or prefix[-1].isalpha() != answer[0].isalpha()
    has_letters = any(map(str.isalpha, prefix))
    has_digits = any(map(str.isdigit, "".join(parts)))
    return is_separated and has_letters and has_digits


def _value(word: str) -> float | None:
    try:
        return float(word.strip(".,").replace(",", ""))
    except ValueError:
        return None


def _is_revealed(answer: str, text: str) -> bool:
    position = text.find(answer)
    while position >= 0:
        is_option = OTHER_OPTION.match(text, position + len(answer))
        if not is_option and REVEALING.search(text[max(0, position - 40) : position]):
            return True
        position = text.find(answer, position + 1)
    return False
