"""Reading answers out of what a model said, and scoring how well it kept the format it was asked for."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from rove.core.errors import ConfigError, nearest
from rove.core.messages import Messages, as_messages, text_of

Completion = str | Iterable[Mapping[str, Any]]
"""What a model said: messages (dicts or `Message`), or a text, which counts as one assistant message."""


def identity(text: str) -> str:
    """The text itself."""
    return text


class Parser:
    """Reads the answer out of a completion; this one takes the whole last assistant message.

    Subclasses override `parse`, `parse_answer` or `format_score`.

    Args:
        extract_fn: applied to the text that is read, e.g. to take a number out of a sentence. Default: the text itself.
    """

    def __init__(self, extract_fn: Callable[[str], Any] = identity):
        self.extract_fn = extract_fn

    def parse(self, text: str) -> Any:
        """What one text says."""
        return self.extract_fn(text)

    def parse_answer(self, completion: Completion) -> Any:
        """The answer in the last assistant message, or None when there is no such message."""
        said = self.get_assistant_messages(completion)
        return self.parse(text_of(said[-1])) if said else None

    def format_score(self, text: str) -> float:
        """How well one text keeps the format, 0 to 1; a parser that asks for no format gives 1.0."""
        return 1.0

    def get_format_reward_func(self) -> Callable[..., float]:
        """A reward function `format_reward(completion)`: mean `format_score` of the assistant messages, 0 if none."""

        def format_reward(completion: Completion) -> float:
            scores = [self.format_score(text_of(message)) for message in self.get_assistant_messages(completion)]
            return sum(scores) / len(scores) if scores else 0.0

        return format_reward

    def get_assistant_messages(self, completion: Completion) -> Messages:
        """What the model said."""
        return _said_by("assistant", completion)

    def get_system_messages(self, completion: Completion) -> Messages:
        """The system messages."""
        return _said_by("system", completion)

    def get_user_messages(self, completion: Completion) -> Messages:
        """What the user, often the environment, said."""
        return _said_by("user", completion)

    def get_tool_messages(self, completion: Completion) -> Messages:
        """What tools returned."""
        return _said_by("tool", completion)


def _said_by(role: str, completion: Completion) -> Messages:
    return [message for message in as_messages(completion, role="assistant") if message["role"] == role]


class ThinkParser(Parser):
    """For models that write `<think>…</think>` before their answer, into the text itself.

    The answer is what follows the last `</think>`, and "" without one: unfinished thoughts are never graded. Where a
    server or chat template takes the thoughts out of the text, use `MaybeThinkParser`.
    """

    def parse(self, text: str) -> Any:
        """What follows the last `</think>`, stripped; "" without one."""
        return self.extract_fn(text.rpartition("</think>")[2].strip() if "</think>" in text else "")

    def format_score(self, text: str) -> float:
        """1.0 for exactly one `<think>`, at the start, one `</think>` and an answer after it; else 0.0."""
        opened = text.count("<think>") == 1 and text.lstrip().startswith("<think>")
        answer = text.rpartition("</think>")[2]
        return float(opened and text.count("</think>") == 1 and answer.strip() != "")


class MaybeThinkParser(Parser):
    """For models that may write `<think>…</think>` before their answer, or leave it out."""

    def parse(self, text: str) -> Any:
        """What follows the last `</think>`, or the whole text; stripped."""
        return self.extract_fn(text.rpartition("</think>")[2].strip())


class XMLParser(Parser):
    """Reads fields written as `<name>text</name>`.

    Args:
        fields: what the model is asked to write, in order. A field is a tag name, or several of which the model writes
            one, e.g. `["think", ("tool", "answer")]`; `format` writes the first.
        answer_field: the tag that `parse_answer` reads. Default "answer".
        extract_fn: applied by `parse_answer` to the text of that tag. Default: the text itself.

    Raises:
        ConfigError: no fields, a name that cannot be a tag, or a name given twice.
    """

    def __init__(
        self,
        fields: Sequence[str | Sequence[str]],
        answer_field: str = "answer",
        extract_fn: Callable[[str], Any] = identity,
    ):
        super().__init__(extract_fn)
        self.answer_field = answer_field
        self._fields = _checked_fields(fields)
        self._starts = tuple(f"<{name}>" for name in self._fields[0])
        self._ends = tuple(f"</{name}>" for name in self._fields[-1])

    def parse(self, text: str, strip: bool = True, last: bool = False) -> SimpleNamespace:
        """The text of every tag as attributes; None where a tag is not there or not closed.

        Args:
            strip: drop white space around the texts.
            last: of a tag written several times, take the last complete pair instead of the first.
        """
        found = {name: _between(text, name, last) for names in self._fields for name in names}
        return SimpleNamespace(**{name: raw.strip() if raw and strip else raw for name, raw in found.items()})

    def parse_answer(self, completion: Completion) -> Any:
        """The last complete `answer_field` in the last assistant message, or None.

        Raises:
            ConfigError: `answer_field` is none of the fields.
        """
        said = self.get_assistant_messages(completion)
        if not said:
            return None
        parsed = self.parse(text_of(said[-1]), last=True)
        if not hasattr(parsed, self.answer_field):
            hint = nearest(self.answer_field, vars(parsed))
            raise ConfigError(f"answer_field='{self.answer_field}' of this XMLParser is none of its fields: {hint}")
        answer = getattr(parsed, self.answer_field)
        return None if answer is None else self.extract_fn(answer)

    def format_score(self, text: str) -> float:
        """0.4 for the share of fields present, 0.2 each for tidy, starts with the first tag, ends with the last.

        Present means opened and closed. Tidy means that at least one field is present and that none has white space
        between its tags and its text beyond one line break, as `format` writes it. Text without any tag scores 0.
        """
        text = text.strip()
        found = [[_between(text, name, last=True) for name in names] for names in self._fields]
        share = sum(any(raw is not None for raw in raws) for raws in found) / len(found)
        tidy = share > 0 and all(raw is None or _is_tidy(raw) for raws in found for raw in raws)
        return (2 * share + tidy + text.startswith(self._starts) + text.endswith(self._ends)) / 5

    def get_fields(self) -> list[str]:
        """The first name of every field, in order."""
        return [names[0] for names in self._fields]

    def get_format_str(self) -> str:
        """The format as a text for a prompt."""
        tags = (names[0] if len(names) == 1 else f"[ {' | '.join(names)} ]" for names in self._fields)
        return "\n".join(f"<{tag}>\n...\n</{tag}>" for tag in tags)

    def format(self, /, **values: Any) -> str:
        """A text in this format. Every field takes its value by any of its names and is written under its first.

        Raises:
            ConfigError: a field has no value, or a name belongs to no field.
        """
        known = [name for names in self._fields for name in names]
        for name in values:
            if name not in known:
                raise ConfigError(f"format() got '{name}', which is none of the fields: {nearest(name, known)}")
        parts: list[str] = []
        for names in self._fields:
            value = next((values[name] for name in names if values.get(name) is not None), None)
            if value is None:
                raise ConfigError(f"format() got no value for the field '{names[0]}'; pass {' or '.join(names)}=")
            parts.append(f"<{names[0]}>\n{value}\n</{names[0]}>")
        return "\n".join(parts)


def _checked_fields(fields: Sequence[str | Sequence[str]]) -> list[tuple[str, ...]]:
    if isinstance(fields, str) or not fields:
        raise ConfigError(f"fields is {fields!r}; expected a list of tag names such as ['think', 'answer']")
    groups = [(field,) if isinstance(field, str) else tuple(field) for field in fields]
    seen: set[str] = set()
    for group in groups:
        if not group:
            raise ConfigError(f"fields has an empty group of names: {fields!r}; give each field at least one")
        for name in group:
            if not isinstance(name, str) or not re.fullmatch(r"[^\s<>/]+", name):
                raise ConfigError(f"{name!r} cannot be a tag; expected a name without white space, '<', '>' and '/'")
            if name in seen:
                raise ConfigError(f"the field '{name}' is given twice in {fields!r}; every tag needs its own name")
            seen.add(name)
    return groups


def _between(text: str, name: str, last: bool) -> str | None:
    """The text of the first or last complete pair of tags.

    Of tags opened several times before they are closed the innermost counts, so that a draft cut off is no part of the
    answer. String searches, because a lazy regular expression needs quadratic time on a text full of unclosed tags.
    """
    opening, closing = f"<{name}>", f"</{name}>"
    if last:
        start = text.rfind(opening, 0, max(text.rfind(closing), 0))
        end = text.find(closing, start)
    else:
        first = text.find(opening)
        end = text.find(closing, first)
        start = text.rfind(opening, first, end) if first >= 0 <= end else -1
    return text[start + len(opening) : end] if start >= 0 else None


def _is_tidy(raw: str) -> bool:
    inner = raw.strip()
    return raw in (inner, f"\n{inner}", f"{inner}\n", f"\n{inner}\n")


def extract_boxed_answer(text: str, strict: bool = False) -> str:
    """What stands in the last complete `\\boxed{…}`, braces inside it included.

    Args:
        strict: without one return "" instead of the whole text.
    """
    opened: list[int] = []  # where the braces begin that are open; -1 for those that box nothing
    first, last = -1, -1
    for found in re.finditer(r"\\boxed\s*\{|\\[\\{}]|[{}]", text):
        token = found[0]
        if token == "}":
            start = opened.pop() if opened else -1
            if start > first:
                first, last = start, found.start()
        elif token == "{" or token.startswith("\\boxed"):
            opened.append(-1 if token == "{" else found.end())
    return text[first:last] if first >= 0 else "" if strict else text


def extract_hash_answer(text: str) -> str:
    """What follows the last `####`, as GSM8K writes its answers, stripped; the whole text without one."""
    return text.rpartition("####")[2].strip() if "####" in text else text
