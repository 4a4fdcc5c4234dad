"""v0's parsers. What differs from rove's: joins of content parts, first matches, texts without a tag that keep the format."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from rove.compat.verifiers.messages import content_text
from rove.compat.verifiers.mode import fixed, set_former
from rove.parsers.parser import identity


def _field(message: Any, name: str, default: Any = None) -> Any:
    return message.get(name, default) if isinstance(message, Mapping) else getattr(message, name, default)


class Parser:
    """Reads the answer out of a completion: the last assistant message, through `extract_fn`.

    Args:
        extract_fn: what is done to the text.
        former: other keywords, which 0.1.0 to 0.1.4 set as attributes.

    Raises:
        TypeError: another keyword, with ROVE_COMPAT=fixed.
    """

    def __init__(self, extract_fn: Callable[[str], Any] = identity, **former: Any):
        self.logger = logging.getLogger(f"verifiers.{type(self).__name__}")
        self.extract_fn = extract_fn
        set_former(self, former)

    def parse(self, text: str) -> Any:
        """What one text says."""
        return self.extract_fn(text)

    def _content_to_text(self, content: Any) -> str:
        return content_text(content)

    def _text(self, message: Any) -> str:
        return self._content_to_text(_field(message, "content", "") or "")

    def get_assistant_messages(self, completion: Any) -> list[Any]:
        """What the model said."""
        return [message for message in completion if _field(message, "role") == "assistant"]

    def get_system_messages(self, completion: Any) -> list[Any]:
        """The system messages."""
        return [message for message in completion if _field(message, "role") == "system"]

    def get_user_messages(self, completion: Any) -> list[Any]:
        """What the user said."""
        return [message for message in completion if _field(message, "role") == "user"]

    def get_tool_messages(self, completion: Any) -> list[Any]:
        """What tools returned."""
        return [message for message in completion if _field(message, "role") == "tool"]

    def parse_answer(self, completion: Any) -> Any:
        """The answer in the last assistant message, or in a text; None without one."""
        if isinstance(completion, str):
            return self.parse(completion)
        said = self.get_assistant_messages(completion)
        return self.parse(self._text(said[-1])) if said else None

    def get_format_reward_func(self) -> Callable[..., float]:
        """A reward function; this parser asks for no format, so that it is always 1.0."""

        def format_reward_func(completion: Any, **kwargs: Any) -> float:
            return 1.0

        return format_reward_func


class ThinkParser(Parser):
    """What follows the last `</think>`; "" without one."""

    def parse(self, text: str) -> Any:
        """The text after the thoughts."""
        return self.extract_fn(text.rpartition("</think>")[2].strip() if "</think>" in text else "")

    def get_format_reward_func(self) -> Callable[..., float]:
        """1.0 where every assistant message is `<think>…</think>` and something after it; else the share that is."""

        def keeps_format(text: str) -> float:
            once = text.count("<think>") == 1 and text.count("</think>") == 1
            return float(once and text.strip().startswith("<think>") and not text.endswith("</think>"))

        def format_reward_func(completion: Any, **kwargs: Any) -> float:
            said = self.get_assistant_messages(completion)
            return sum(keeps_format(self._text(message)) for message in said) / len(said) if said else 0.0

        return format_reward_func


class MaybeThinkParser(Parser):
    """What follows the last `</think>`, or the whole text."""

    def parse(self, text: str) -> Any:
        """The text after the thoughts, if there are any."""
        return self.extract_fn(text.rpartition("</think>")[2].strip())


class XMLParser(Parser):
    """Reads fields written as `<name>text</name>`; a tuple of names is a field that may be written in several ways.

    Raises:
        ValueError: a field is empty or given twice.
        TypeError: a field is something else.
    """

    def __init__(
        self,
        fields: Sequence[str | tuple[str, ...]],
        answer_field: str = "answer",
        extract_fn: Callable[[str], Any] = identity,
    ):
        super().__init__(extract_fn)
        self.answer_field = answer_field
        self._fields = _checked(fields)

    def parse(self, text: str, strip: bool = True, last: bool = False) -> Any:
        """The text of every tag as attributes, None without one; the first of several, or the `last`."""
        found: dict[str, str | None] = {}
        for name in (name for _, names in self._fields for name in names):
            matches = re.finditer(rf"<{name}>\s*(.*?)\s*</{name}>", text, re.DOTALL)
            match = next(matches, None)
            if last:
                for match in matches:  # noqa: B007  the last one
                    pass
            raw = match.group(1) if match else None
            found[name] = raw.strip() if raw and strip else raw
        return SimpleNamespace(**found)

    def parse_answer(self, completion: Any) -> Any:
        """The answer field of the last assistant message that has it: its first one there (its last with ROVE_COMPAT=fixed),
        of a text its last."""
        if isinstance(completion, str):
            return getattr(self.parse(completion, last=True), self.answer_field, None)
        for message in reversed(self.get_assistant_messages(completion)):
            text = self._text(message)
            parsed = self.parse(text, last=True) if fixed() else self.parse(text)
            answer = getattr(parsed, self.answer_field, None)
            if answer is not None:
                return answer
        return None

    def get_fields(self) -> list[str]:
        """The first name of every field."""
        return [name for name, _ in self._fields]

    def get_format_str(self) -> str:
        """The format as a text for a prompt."""
        tags = [name if len(names) == 1 else f"[ {' | '.join(names)} ]" for name, names in self._fields]
        return "\n".join(f"<{tag}>\n...\n</{tag}>" for tag in tags)

    def format(self, **values: Any) -> str:
        """A text in this format; a field's value is given under any of its names, and written under its first.

        Raises:
            ValueError: a field has no value.
        """
        parts: list[str] = []
        for name, names in self._fields:
            given = next((values[one] for one in [name, *names] if one in values), None)
            if given is None:
                raise ValueError(f"Missing value for field '{name}' (allowed: {names})")
            parts.append(f"<{name}>\n{given}\n</{name}>")
        return "\n".join(parts)

    def get_format_reward_func(self) -> Callable[..., float]:
        """Mean over the assistant messages: 0.4 × share of the fields, 0.2 always (for spacing, which v0 never finds wrong),
        0.2 for beginning with the first field and 0.2 for ending with the last."""

        def format_reward_func(completion: Any) -> float:
            said = self.get_assistant_messages(completion)
            return sum(self._format_score(self._text(message)) for message in said) / len(said) if said else 0.0

        return format_reward_func

    def _format_score(self, text: str) -> float:
        parsed = vars(self.parse(text))
        read = any(value is not None for value in parsed.values())
        if fixed() and not read:
            return 0.0
        seen = [
            any(parsed[name] is not None or f"<{name}>" in text or f"</{name}>" in text for name in names)
            for _, names in self._fields
        ]
        score = 0.4 * (sum(seen) / len(seen)) if read else 0.0
        stripped = text.strip()
        score += 0.2
        if stripped.startswith(tuple(f"<{name}>" for name in self._fields[0][1])):
            score += 0.2
        if stripped.endswith(tuple(f"</{name}>" for name in self._fields[-1][1])):
            score += 0.2
        return score


def _checked(fields: Sequence[Any]) -> list[tuple[str, list[str]]]:
    made: list[tuple[str, list[str]]] = []
    for field in fields:
        if not isinstance(field, (str, tuple)):
            raise TypeError("Each field must be a string or a tuple of strings.")
        names = [field] if isinstance(field, str) else list(field)
        if not names:
            raise ValueError("Field tuple cannot be empty.")
        if not all(isinstance(name, str) for name in names):
            raise TypeError("All alternatives in a tuple must be strings.")
        if names[0] in [name for name, _ in made]:
            raise ValueError(f"Duplicate field name: {names[0]}")
        made.append((names[0], names))
    return made
