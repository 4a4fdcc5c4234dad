"""v0's parsers. They differ from rove's parsers in how they join content parts, in using first matches, and in the
format score of texts without tags."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from rove.compat.verifiers.messages import content_text, field_of
from rove.compat.verifiers.release import fixed, set_legacy_attributes
from rove.rubrics.parser import identity


def _of_role(messages: Any, role: str) -> list[Any]:
    return [message for message in messages if field_of(message, "role") == role]


class Parser:
    """Extracts the answer from the last assistant message of a completion with `extract_fn`.

    Args:
        extract_fn: applied to the text.
        legacy: other keywords, which 0.1.0 to 0.1.4 set as attributes.

    Raises:
        TypeError: a keyword is unknown, with ROVE_COMPAT=fixed.
    """

    def __init__(self, extract_fn: Callable[[str], Any] = identity, **legacy: Any):
        self.logger = logging.getLogger(f"verifiers.{type(self).__name__}")
        self.extract_fn = extract_fn
        set_legacy_attributes(self, legacy)

    def parse(self, text: str) -> Any:
        """Return the result of `extract_fn` for a text."""
        return self.extract_fn(text)

    def _content_to_text(self, content: Any) -> str:
        return content_text(content)

    def _text(self, message: Any) -> str:
        return self._content_to_text(field_of(message, "content", "") or "")

    def get_assistant_messages(self, completion: Any) -> list[Any]:
        """Return the messages of the model."""
        return _of_role(completion, "assistant")

    def get_system_messages(self, completion: Any) -> list[Any]:
        """Return the system messages."""
        return _of_role(completion, "system")

    def get_user_messages(self, completion: Any) -> list[Any]:
        """Return the user messages."""
        return _of_role(completion, "user")

    def get_tool_messages(self, completion: Any) -> list[Any]:
        """Return the tool messages."""
        return _of_role(completion, "tool")

    def _mean_score(self, completion: Any, score: Callable[[str], float]) -> float:
        """Return the mean score of the texts of the assistant messages; 0 if there are none."""
        texts = [self._text(message) for message in self.get_assistant_messages(completion)]
        return sum(map(score, texts)) / len(texts) if texts else 0.0

    def parse_answer(self, completion: Any) -> Any:
        """Return the answer in the last assistant message, or in a string; None without an assistant message."""
        if isinstance(completion, str):
            return self.parse(completion)
        messages = self.get_assistant_messages(completion)
        return self.parse(self._text(messages[-1])) if messages else None

    def get_format_reward_func(self) -> Callable[..., float]:
        """Return a reward function that is always 1.0, since this parser expects no format."""

        def format_reward_func(completion: Any, **kwargs: Any) -> float:
            return 1.0

        return format_reward_func


class ThinkParser(Parser):
    """Extracts the text after the last `</think>`; "" without one."""

    def parse(self, text: str) -> Any:
        """Return the text after the reasoning."""
        # Reasoning that was cut off at the length limit has no closing tag, and no answer.
        _, closing_tag, response = text.rpartition("</think>")
        return self.extract_fn(response.strip() if closing_tag else "")

    def get_format_reward_func(self) -> Callable[..., float]:
        """Return the share of assistant messages that are `<think>…</think>` followed by text."""

        def has_format(text: str) -> float:
            has_one_block = text.count("<think>") == 1 and text.count("</think>") == 1
            is_first = text.strip().startswith("<think>")
            # As in v0, without `strip`: a line break after the closing tag counts as text.
            has_response = not text.endswith("</think>")
            return 1.0 if has_one_block and is_first and has_response else 0.0

        def format_reward_func(completion: Any, **kwargs: Any) -> float:
            return self._mean_score(completion, has_format)

        return format_reward_func


class MaybeThinkParser(Parser):
    """Extracts the text after the last `</think>`, or the whole text."""

    def parse(self, text: str) -> Any:
        """Return the text after the reasoning, if there is any."""
        return self.extract_fn(text.rpartition("</think>")[2].strip())


class XMLParser(Parser):
    """Extracts fields in the form `<name>text</name>`; a tuple of names is one field with alternative names.

        XMLParser(["think", ("answer", "result")]).parse("<answer>4</answer>").answer == "4"

    Raises:
        ValueError: a field is empty or given twice.
        TypeError: a field is neither a string nor a sequence of strings.
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
        """Return the text of every tag as an attribute (None if the tag is missing); of repeated tags, the first or,
        with `last`, the last.
        """
        values: dict[str, str | None] = {}
        for _, names in self._fields:
            for name in names:
                contents = [match[1] for match in re.finditer(rf"<{name}>\s*(.*?)\s*</{name}>", text, re.DOTALL)]
                index = -1 if last else 0
                value = contents[index] if contents else None
                values[name] = value.strip() if value and strip else value
        return SimpleNamespace(**values)

    def parse_answer(self, completion: Any) -> Any:
        """Return the answer field of the last assistant message that has it.

        Within a message, the first occurrence counts (with ROVE_COMPAT=fixed, the last); within a string, the last.
        """
        if isinstance(completion, str):
            return getattr(self.parse(completion, last=True), self.answer_field, None)
        for message in reversed(self.get_assistant_messages(completion)):
            text = self._text(message)
            # v0 grades the first of several answers in a message, which may be a draft; published scores depend on it.
            # Without `last=False`, because packages override `parse(text)` without that argument.
            parsed = self.parse(text, last=True) if fixed() else self.parse(text)
            answer = getattr(parsed, self.answer_field, None)
            if answer is not None:
                return answer
        return None

    def get_fields(self) -> list[str]:
        """Return the first name of every field."""
        return [name for name, _ in self._fields]

    def get_format_str(self) -> str:
        """Return the format as text for a prompt."""
        lines: list[str] = []
        for name, names in self._fields:
            tag = name if len(names) == 1 else f"[ {' | '.join(names)} ]"
            lines.append(f"<{tag}>\n...\n</{tag}>")
        return "\n".join(lines)

    def format(self, **values: Any) -> str:
        """Return a text in this format; a value may be given under any name of its field.

        Raises:
            ValueError: a field has no value.
        """
        parts: list[str] = []
        for name, names in self._fields:
            value = next((values[alternative] for alternative in names if alternative in values), None)
            if value is None:
                raise ValueError(f"Missing value for field '{name}' (allowed: {names})")
            parts.append(f"<{name}>\n{value}\n</{name}>")
        return "\n".join(parts)

    def get_format_reward_func(self) -> Callable[..., float]:
        """Return the mean format score of the assistant messages.

        The score is 0.4 × share of fields that occur + 0.2 (for spacing, which v0 never finds wrong) + 0.2 for starting with the
        first field + 0.2 for ending with the last one.
        """

        def format_reward_func(completion: Any) -> float:
            return self._mean_score(completion, self._format_score)

        return format_reward_func

    def _format_score(self, text: str) -> float:
        parsed = vars(self.parse(text))
        has_fields = any(value is not None for value in parsed.values())
        if fixed() and not has_fields:
            return 0.0
        score = 0.0
        if has_fields:
            num_present = 0
            for _, names in self._fields:
                # An opening or closing tag alone counts as well.
                if any(parsed[name] is not None or _has_tag(text, name) for name in names):
                    num_present += 1
            score = 0.4 * (num_present / len(self._fields))
        stripped = text.strip()
        # For the spacing: v0 parses again without stripping and finds the same fields, so even a text without tags passes.
        score += 0.2
        if stripped.startswith(tuple(f"<{name}>" for name in self._fields[0][1])):
            score += 0.2
        if stripped.endswith(tuple(f"</{name}>" for name in self._fields[-1][1])):
            score += 0.2
        return score


def _has_tag(text: str, name: str) -> bool:
    return f"<{name}>" in text or f"</{name}>" in text


def _checked(fields: Sequence[Any]) -> list[tuple[str, list[str]]]:
    parsed_fields: list[tuple[str, list[str]]] = []
    for field in fields:
        if not isinstance(field, (str, tuple)):
            raise TypeError("Each field must be a string or a tuple of strings.")
        names = [field] if isinstance(field, str) else list(field)
        if not names:
            raise ValueError("Field tuple cannot be empty.")
        if not all(isinstance(name, str) for name in names):
            raise TypeError("All alternatives in a tuple must be strings.")
        # As in v0, only the first names must differ: the answer may have a name that is another field's alternative.
        if names[0] in [name for name, _ in parsed_fields]:
            raise ValueError(f"Duplicate field name: {names[0]}")
        parsed_fields.append((names[0], names))
    return parsed_fields
