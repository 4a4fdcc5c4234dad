"""Checks of the dataset, without rollouts: overlap, rows that two seeds share, JSON round trips, answers in prompts."""

from __future__ import annotations

import math
import operator
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain

from rove.audit.findings import shortened
from rove.audit.rows import AS_LISTS
from rove.core.findings import Finding, Severity
from rove.core.plain import JsonMapping

Row = JsonMapping
"""A row of `rove.audit.rows`."""
DISTINCT_SHARE = 0.1
"""If the share of distinct training rows is lower, rows are meant to be equal, as in games with the same start."""
OVERLAP_SHARE = 0.02
"""If more than this share of the evaluation rows are also training rows, this is a finding."""
SEVERE_OVERLAP = 0.05
"""The severity is high if more than this share of the evaluation rows are also training rows."""
OPTION = re.compile(r"^\s*\(?([A-Ha-h1-8])[.):]\s+(\S.*)$")
"""A line with an option of a question, such as "A. Paris"."""
MIN_OPTIONS = 3
"""Minimum number of such lines in a question with options."""
LINE_NUMBER = re.compile(r"(?m)^\s*\d+[.):]\s")
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
NUMBER_LIST = re.compile(r"[\d\s.,;\[\]()-]+")
MAX_DECIMALS = 4
"""Numbers of decimals from 0 to below this one are tried as the rounding of a number."""
MIN_COPIED, MIN_DISTINCTIVE = 2, 20
"""Minimum count of an answer's numbers that are compared with its prompt, and minimum of such a number if it is whole."""
COPIED_SHARE = 0.4
"""Minimum share of rows whose answer is copied from the prompt."""
WRONG_SHARE = 0.05
"""If more than this share of the rows contradict another one, right answers are refused often."""
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


def check_overlap(train: Sequence[Row], evaluation: Sequence[Row], has_both: bool) -> Iterator[Finding]:
    """Yield a finding about evaluation rows that are also training rows."""
    if not train or not evaluation or len({row["digest"] for row in train}) < DISTINCT_SHARE * len(train):
        return
    if not has_both:
        text = "the environment has one dataset: evaluations use the training rows"
        yield Finding(id="data-overlap", severity=Severity.INFO, text=text)
        return
    shared = _equal_rows(train, evaluation)
    share = len(shared) / len(evaluation)
    if share > OVERLAP_SHARE:
        is_reordered = all(ours["text"] != theirs["text"] for ours, theirs in shared)
        suffix = " with their options in another order" if is_reordered else ""
        yield Finding(
            id="data-overlap",
            severity=Severity.HIGH if share > SEVERE_OVERLAP else Severity.MEDIUM,
            text=f"{share:.0%} of {len(evaluation)} evaluation rows are also among {len(train)} training rows{suffix}",
            rate=(share, share, share),
            floor=0.0,
            prompt=_pair(*shared[0]),
        )
        return
    same_questions = _with_other_options(train, evaluation)
    share = len(same_questions) / len(evaluation)
    if share > OVERLAP_SHARE:
        yield Finding(
            id="data-overlap",
            severity=Severity.HIGH if share > SEVERE_OVERLAP else Severity.MEDIUM,
            text=(
                f"{share:.0%} of {len(evaluation)} evaluation rows ask a question of the {len(train)} training rows, with the "
                "same right option and other wrong ones"
            ),
            rate=(share, share, share),
            floor=0.0,
            prompt=_pair(*same_questions[0]),
        )
        return
    # Some training rows are compared with nearly all others, since more rows have more that resemble them.
    part = train[::WITHIN_STEP]
    others = [row for number, row in enumerate(train) if number % WITHIN_STEP]
    near = _resembling(train, evaluation)
    share = len(near) / len(evaluation)
    if share > NEAR_SHARE:
        # If training rows resemble each other as often, they come from one template, and the evaluation rows are not copies.
        within = len(_resembling(others, part)) / len(part)
        text = f"{share:.0%} of {len(evaluation)} evaluation rows nearly equal a training row"
        is_template = within > 0.7 * share and not _come_in_pairs([*train, *evaluation], share)
        if is_template:
            text += (
                f"; {within:.0%} of the training rows nearly equal another one: ignore this if all rows come from one "
                "template and their answers or start positions differ"
            )
        yield Finding(
            id="data-overlap",
            severity=Severity.LOW if is_template else Severity.MEDIUM,
            text=text,
            rate=(share, share, share),
            floor=0.0,
            prompt=_pair(*near[0]),
        )
        return
    reworded = _reworded(train, evaluation)
    share = len(reworded) / len(evaluation)
    within = len(_reworded(others, part)) / len(part)
    # Problems with few possible numbers, such as lists to sort, are equal by chance, among training rows as well.
    can_be_seen = len(reworded) >= MIN_REWORDED and share * len(part) >= MIN_REWORDED
    if can_be_seen and share > NEAR_SHARE and within < REWORDED_BY_CHANCE * share:
        yield Finding(
            id="data-overlap",
            severity=Severity.HIGH,
            text=(
                f"{share:.0%} of {len(evaluation)} evaluation rows have the numbers and the answer of a training row, in other "
                f"words; among the training rows, this is so for {within:.0%}"
            ),
            rate=(share, share, share),
            floor=0.0,
            prompt=_pair(*reworded[0]),
        )


def _pair(ours: Row, theirs: Row) -> str:
    """Return two rows as a text, with their answers."""
    lines: list[str] = []
    for name, row in (("evaluation", ours), ("training", theirs)):
        answer = f" → {shortened(row['answer'], 200)}" if row["answer"] else ""
        lines.append(f"{name}: {shortened(row['text'], 500)}{answer}")
    return "\n".join(lines)


def _equal_rows(train: Sequence[Row], evaluation: Sequence[Row]) -> list[tuple[Row, Row]]:
    """Return the evaluation rows that are also training rows, each with that row.

    Rows are equal if all of their columns are. Rows with an answer are also equal if prompt and answer are, or if only the order
    of the options differs. Rows without answers but with equal prompts may still differ: games may begin alike and differ in
    other columns.
    """
    by_digest = {row["digest"]: row for row in train}
    pairs = {row["digest"]: (row, by_digest[row["digest"]]) for row in evaluation if row["digest"] in by_digest}
    by_content = {_content(row): row for row in train if row["answer"]}
    if _answers_follow_from_prompts(train, evaluation):
        for row in evaluation:
            training_row = by_content.get(_content(row)) if row["answer"] else None
            if training_row is not None:
                pairs.setdefault(row["digest"], (row, training_row))
    return [pairs[row["digest"]] for row in evaluation if row["digest"] in pairs]


def _content(row: Row) -> tuple[str, ...]:
    """Return prompt and answer of a row, without the order and the labels of its options."""
    lines = row["text"].splitlines()
    options = {match[1].upper(): _normalized(match[2]) for line in lines if (match := OPTION.match(line))}
    answer = _normalized(row["answer"])
    if len(options) < MIN_OPTIONS or row["answer"].strip("(). ").upper() not in options:
        return (_normalized(row["text"]), answer)
    other_lines = [_normalized(line) for line in lines if not OPTION.match(line)]
    return (*other_lines, *sorted(options.values()), options[row["answer"].strip("(). ").upper()])


def _with_other_options(train: Sequence[Row], evaluation: Sequence[Row]) -> list[tuple[Row, Row]]:
    """Return the evaluation rows with the question and the right option of a training row, each with that row.

    Nothing is returned if questions have several right options, since the rows then differ in what their options show.
    """
    by_question: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in [*train, *evaluation]:
        if _has_options(row):
            by_question[_question(row)].append(row)
    groups = list(by_question.values())
    rights = [{_content(row)[-1] for row in group} for group in groups]
    if not groups or sum(len(right) for right in rights) > (1 + CONTRADICTED) * len(groups):
        return []
    first_training: dict[tuple[str, ...], Row] = {}
    for row in train:
        if _has_options(row):
            first_training.setdefault((*_question(row), _content(row)[-1]), row)
    pairs: list[tuple[Row, Row]] = []
    for row in evaluation:
        training_row = first_training.get((*_question(row), _content(row)[-1])) if _has_options(row) else None
        if training_row is not None:
            pairs.append((row, training_row))
    return pairs


def _has_options(row: Row) -> bool:
    return len(_content(row)) > 2  # without options, these are the prompt and the answer


def _question(row: Row) -> tuple[str, ...]:
    """Return the lines of a question without its options."""
    return tuple(_normalized(line) for line in row["text"].splitlines() if not OPTION.match(line))


def _answers_follow_from_prompts(train: Sequence[Row], evaluation: Sequence[Row]) -> bool:
    """Return whether rows with the same prompt have the same answer more often than chance.

    Otherwise, the answers depend on something outside of the prompt, such as a document or a tool.
    """
    answers = {_without_answer(row): _content(row)[-1] for row in train if row["answer"]}
    compared = [row for row in evaluation if row["answer"] and _without_answer(row) in answers]
    if not compared:
        return False
    num_same = sum(answers[_without_answer(row)] == _content(row)[-1] for row in compared)
    by_chance = _equal_by_chance(train)
    return num_same / len(compared) > max(0.5, by_chance + 0.5 * (1 - by_chance))


def _equal_by_chance(rows: Sequence[Row]) -> float:
    """Return the probability that two random rows have the same answer."""
    counts = Counter(_content(row)[-1] for row in rows)
    return sum((count / counts.total()) ** 2 for count in counts.values())


def _without_answer(row: Row) -> tuple[str, ...]:
    return _content(row)[:-1]


def _normalized(text: str) -> str:
    return " ".join(re.findall(r"\w+|[^\w\s]", text.lower()))


def _resembling(train: Sequence[Row], evaluation: Sequence[Row]) -> list[tuple[Row, Row]]:
    """Return evaluation rows that nearly equal a training row, each with the training row.

    Both rows have the same answer, and contain the same numbers in the same order.
    """
    pairs = [*_near_duplicates(train, evaluation), *_same_numbers(train, evaluation)]
    return list({ours["digest"]: (ours, theirs) for ours, theirs in pairs}.values())


def _near_duplicates(train: Sequence[Row], evaluation: Sequence[Row]) -> Iterator[tuple[Row, Row]]:
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
        if row["answer"] == train[best]["answer"] and _numbers(row) == _numbers(train[best]):
            yield row, train[best]


def _same_numbers(train: Sequence[Row], evaluation: Sequence[Row], in_order: bool = True) -> Iterator[tuple[Row, Row]]:
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
            yield row, rows[signature]


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


def _reworded(train: Sequence[Row], evaluation: Sequence[Row]) -> list[tuple[Row, Row]]:
    """Return rows with the numbers and the answer of a training row and other words, each with that row."""
    # With equal words, numbers in another order are another problem.
    return [
        (ours, theirs)
        for ours, theirs in _same_numbers(train, evaluation, in_order=False)
        if re.sub(r"\d+", "", ours["text"]) != re.sub(r"\d+", "", theirs["text"])
    ]


def _signature(row: Row, in_order: bool) -> tuple[str, ...] | None:
    numbers = _numbers(row)
    if len(numbers) < 3 or len("".join(numbers)) < MIN_DIGITS or not row["answer"]:  # equal by chance
        return None
    return (*(numbers if in_order else sorted(numbers)), row["answer"])


def _numbers(row: Row) -> tuple[str, ...]:
    """Return the numbers of a prompt in their order, without the numbers of its lines."""
    return tuple(re.findall(r"\d+", LINE_NUMBER.sub("", row["text"])))


def _ngrams(text: str) -> set[tuple[str, ...]]:
    words = re.findall(r"\w+", text.lower())
    if len(words) < MIN_WORDS:  # short texts of one template are nearly equal, though their answers differ
        return set()
    return {tuple(words[start : start + NGRAM]) for start in range(len(words) - NGRAM + 1)}


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
            by_question[(*rare, *_numbers(row))].append(row)
    pairs = [(group[0], row) for group in by_question.values() for row in group[1:]]
    contradictory = [pair for pair in pairs if not _agree(*pair)]
    if len(pairs) < MIN_QUESTIONS or len(contradictory) < MIN_CONTRADICTORY:
        return
    largest = min(MAX_CONTRADICTORY, MAX_OF_CHANCE * (1 - _equal_by_chance(answered)))
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
        numbers = [number for number in _values_of(row["answer"]) if number % 1 or abs(number) >= MIN_DISTINCTIVE]
        if len(numbers) < MIN_COPIED:
            continue
        shown = _values_of(row["text"])
        missing = [number for number in numbers if number not in shown]
        if not missing:
            copied.append(row)
        elif all(_is_rounded(number, shown) for number in missing):
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
    """Return the numbers of a text, with or without thousands separators."""
    return set(map(float, NUMBER.findall(re.sub(r"(?<=\d),(?=\d{3}\b)", "", text))))


def _is_rounded(number: float, shown: set[float]) -> bool:
    return any(round(value, decimals) == number for value in shown for decimals in range(MAX_DECIMALS))


def _agree(first: Row, second: Row) -> bool:
    return _content(first)[-1] == _content(second)[-1]


def _words(row: Row) -> set[str]:
    return set(_normalized(row["text"]).split())


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
    """Return whether a text contains an answer only as a part of longer words or numbers, such as "INV-2041".

    The same number in another notation, such as an option "2041.00", does not count as longer.
    """
    pattern = re.escape(answer)
    around = re.findall(rf"[\w.,-]*{pattern}[\w.,-]*", text)
    value = _value(answer)
    if value is not None and value in map(_value, around):
        return False
    is_alone = re.search(rf"(?<![\w-]){pattern}(?![\w-])", text) is not None
    return not is_alone and re.search(rf"[\w-]{pattern}|{pattern}[\w-]", text) is not None


def _value(word: str) -> float | None:
    try:
        return float(word.strip(".,").replace(",", ""))
    except ValueError:
        return None


def _is_revealed(answer: str, text: str) -> bool:
    position = text.find(answer)
    while position >= 0:
        if REVEALING.search(text[max(0, position - 40) : position]):
            return True
        position = text.find(answer, position + 1)
    return False
