"""Split questions into training questions and held-out questions, by their content."""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rove.core.errors import ConfigError
from rove.core.messages import text_of
from rove.core.plain import JsonMapping


class Split(NamedTuple):
    """The positions of the training rows and of the rows that are only for evaluation."""

    training: list[int]
    held_out: list[int]
    """Positions of the rows that are only for evaluation; [] if no rows are held out."""
    different: int
    """Number of different questions."""
    is_requested: bool
    """Whether the settings request held-out rows."""

    @property
    def repeated(self) -> int:
        """Number of rows whose question occurs in an earlier row."""
        return len(self.training) + len(self.held_out) - self.different

    @property
    def description(self) -> str:
        """One or two sentences: the number of rows, repeated questions, and how rows are held out."""
        rows = len(self.training) + len(self.held_out)
        count = f"{rows:,} rows with {self.different:,} different questions"
        repeated = f"; {self.repeated:,} rows repeat a question" if self.repeated else ""
        if not self.held_out:
            reason = " because there is only one question" if self.is_requested else ""
            return f"{count}{repeated}. All rows are for training and for evaluation{reason}."
        return (
            f"{count}{repeated}. {len(self.training):,} rows are for training and {len(self.held_out):,} are held out; a hash of "
            "the question decides, so rows with equal questions are on the same side."
        )


def check_held_out(held_out: float) -> None:
    """Raise a `ConfigError` if a fraction of held-out examples is out of range."""
    if not 0 <= held_out < 1:
        raise ConfigError(f"held_out is {held_out}; expected a fraction from 0 to below 1")


def split_by_content(examples: Sequence[Mapping[str, object]], fraction: float) -> Split:
    """Hold out a fraction of the different questions, chosen by their hashes: at least one if there are two or more,
    but never all.

    The order of the rows and their answers make no difference, and rows with equal questions are in the same part:
    otherwise a model would be evaluated on questions that it was trained on.

    Args:
        examples: rows with "question" or "prompt", and "choices" if the question has options.
        fraction: share of the different questions, from 0 to below 1.
    """
    keys = [question_key(example) for example in examples]
    ordered = sorted(set(keys))
    count = 0
    if fraction and len(ordered) > 1:
        count = max(1, round(fraction * len(ordered)))
        count = min(count, len(ordered) - 1)  # at least one question is for training
    chosen = frozenset(ordered[:count])
    training = [index for index, key in enumerate(keys) if key not in chosen]
    held_out = [index for index, key in enumerate(keys) if key in chosen]
    return Split(training, held_out, len(ordered), fraction > 0)


def question_key(example: JsonMapping) -> str:
    """Return a hash of a question and its options in any order.

    Case, white space, invisible characters, punctuation at the end and the width of letters make no difference.
    """
    prompt = example.get("prompt")
    if prompt is None:
        options: list[Any] = example.get("choices") or []
        question = str(example["question"])
        if options:  # the options are also written below the question
            question = question.rpartition("\n\nA) ")[0]
        parts = [_normalized(question), *sorted(_normalized(str(option)) for option in options)]
    else:
        parts = [f"{message['role']}: {_normalized(text_of(message))}" for message in prompt]
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()


def _normalized(text: str) -> str:
    text = unicodedata.normalize("NFKC", text).casefold()
    text = "".join(text.split())
    # Two questions that look the same must be on the same side of the split, so invisible characters do not count.
    visible = "".join(char for char in text if unicodedata.category(char) not in ("Cf", "Cc"))
    return visible.rstrip(".?!:;,。？！：")
