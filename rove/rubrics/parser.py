"""Parsers read answers out of completions and score their format."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import chain
from types import SimpleNamespace
from typing import Any

from rove.core.errors import ConfigError, nearest
from rove.core.messages import Message, Messages, as_messages, text_of
from rove.core.plain import JsonMapping
from rove.rendering.reasoning import OPENED_REASONING
from rove.rubrics.quotations import REASONING_TAG

Completion = str | Iterable[JsonMapping]
"""The messages of a model (dicts or `Message`), or a text, which counts as one assistant message."""


def identity(text: str) -> str:
    """Return the text unchanged."""
    return text


def visible_response(text: str) -> str:
    """Return the part of a reply that is its response, without the reasoning and without surrounding white space.

    Reasoning is between `<think>` and `</think>` (or `<thinking>`, `<reasoning>`, `[THINK]`; case does not matter).
    The response is the text after the last closing tag. The opening tag may be missing, because chat templates may
    write it. A reply that opens its reasoning and does not close it, for example because it ended at its token limit,
    has no response: "".
    """
    start, unfinished = _reasoning(text)
    # Otherwise a reply that was cut at the token limit would earn a reward for a number that the reasoning mentions, and
    # RL would learn to reason until the limit (docs/decisions/answers.md).
    return "" if unfinished else text[start:].strip()


def _reasoning(text: str) -> tuple[int, bool]:
    """Return where the text after the last closing tag starts, and whether some reasoning is not closed."""
    start = 0
    is_open: dict[str, bool] = {}  # by opening tag: a `</think>` does not close a `[THINK]`
    for tag in REASONING_TAG.finditer(text):
        closes = "/" in tag[0]
        opening_tag = re.sub(r"[/\s]", "", tag[0]).lower()
        is_open[opening_tag] = not closes
        if closes:
            start = tag.end()
    return start, any(is_open.values())


@cache
def _is_reasoning_tag(name: str) -> bool:
    return REASONING_TAG.fullmatch(f"<{name}>") is not None


class Parser:
    """Extracts the answer from a completion; this class returns the whole last assistant message.

    No parser reads an answer out of reasoning that is not finished: see `visible_response`. This class then returns "", and
    keeps finished reasoning; `MaybeThinkParser` removes it. Subclasses override `parse`, `parse_answer` or `format_score`.

    Args:
        extract_fn: applied to the text of the answer, e.g. to extract a number.

    Example:
        parser = rove.Parser(rove.extract_boxed_answer)
        parser.parse_answer("The result is \\boxed{42}.")  # "42"
    """

    def __init__(self, extract_fn: Callable[[str], Any] = identity):
        self.extract_fn = extract_fn

    def parse(self, text: str) -> Any:
        """Read one text."""
        return self.extract_fn(text)

    def parse_answer(self, completion: Completion) -> Any:
        """Return the answer in the last assistant message, or None without such a message."""
        messages = self.get_assistant_messages(completion)
        if not messages:
            return None
        text = text_of(messages[-1])
        _, unfinished = _reasoning(text)
        return self.parse("" if unfinished else text)

    def format_score(self, text: str) -> float:
        """Return how well a text follows the format, from 0 to 1; 1.0 if there is no format."""
        return 1.0

    def get_format_reward_func(self) -> Callable[..., float]:
        """Return a reward function `format_reward(completion)`: the mean `format_score` of the assistant messages, 0
        without any.
        """

        def format_reward(completion: Completion) -> float:
            scores = [self.format_score(text_of(message)) for message in self.get_assistant_messages(completion)]
            return sum(scores) / len(scores) if scores else 0.0

        return format_reward

    def get_assistant_messages(self, completion: Completion) -> Messages:
        """Return the messages of the model.

        If the prompt opened the reasoning, as Qwen3.5's chat template does, the message's text begins with the opening
        tag.
        """
        messages = _messages_by_role("assistant", completion)
        return [
            message if message.get(OPENED_REASONING) is None else _with_opening_tag(message) for message in messages
        ]

    def get_system_messages(self, completion: Completion) -> Messages:
        """Return the system messages."""
        return _messages_by_role("system", completion)

    def get_user_messages(self, completion: Completion) -> Messages:
        """Return the user messages, often written by the environment."""
        return _messages_by_role("user", completion)

    def get_tool_messages(self, completion: Completion) -> Messages:
        """Return the results of tools."""
        return _messages_by_role("tool", completion)


def _messages_by_role(role: str, completion: Completion) -> Messages:
    return [message for message in as_messages(completion, role="assistant") if message["role"] == role]


def _with_opening_tag(message: Message) -> Message:
    return Message({**message, "content": f"{message.get(OPENED_REASONING) or ''}{text_of(message)}"})


class ThinkParser(Parser):
    """Reads the text after `<think>…</think>`, for models that write their reasoning into the text.

    The answer is "" without a `</think>`, so that unfinished reasoning is never graded. Use `MaybeThinkParser` if a
    server or chat template removes the reasoning.

    Example:
        rove.ThinkParser().parse("<think>6 * 7</think>42")  # "42"
    """

    def parse(self, text: str) -> Any:
        """Return the stripped text after the last `</think>`; "" without this tag, or if more reasoning begins after it."""
        start, _ = _reasoning(text)
        return self.extract_fn(visible_response(text) if start else "")

    def format_score(self, text: str) -> float:
        """Return 1.0 for one `<think>` at the start, one `</think>` and an answer after it; else 0.0."""
        opened = text.count("<think>") == 1 and text.lstrip().startswith("<think>")
        answer = text.rpartition("</think>")[2]
        return float(opened and text.count("</think>") == 1 and answer.strip() != "")


class MaybeThinkParser(Parser):
    """Reads the text after an optional `<think>…</think>`.

    Example:
        rove.MaybeThinkParser().parse("42")  # "42", as of "<think>6 * 7</think>42"
    """

    def parse(self, text: str) -> Any:
        """Return the stripped text after the last `</think>`, or the whole text; "" if its reasoning is not finished."""
        return self.extract_fn(visible_response(text))


class XMLParser(Parser):
    """Reads fields written as `<name>text</name>`.

    Args:
        fields: fields that the model writes, in order. A field is a tag name, or a list of alternatives, e.g.
            `["think", ("tool", "answer")]`; `format` writes the first.
        answer_field: tag that `parse_answer` reads.
        extract_fn: applied by `parse_answer` to the text of that tag.

    Raises:
        ConfigError: no fields, an invalid tag name, or a name given twice.

    Example:
        parser = rove.XMLParser(["think", "answer"])
        parser.parse("<think>6 * 7</think><answer>42</answer>").answer  # "42"
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
        self._reasoning_after_answer = _reasoning_after(self._fields, answer_field)
        self._starts = tuple(f"<{name}>" for name in self._fields[0])
        self._ends = tuple(f"</{name}>" for name in self._fields[-1])

    def parse(self, text: str, strip: bool = True, last: bool = False) -> SimpleNamespace:
        """Return the texts of all tags as attributes; None for a tag that is missing or not closed.

        `strip` removes white space around the texts; `last` uses the last complete pair of a repeated tag, not the first.
        """
        texts: dict[str, str | None] = {}
        for name in chain.from_iterable(self._fields):
            content = _between(text, name, last)
            texts[name] = content.strip() if content is not None and strip else content
        return SimpleNamespace(**texts)

    def parse_answer(self, completion: Completion) -> Any:
        """Return the last complete `answer_field` after the reasoning in the last assistant message, or None.

        The answer may be before the reasoning if the fields have this order, and may contain a tag such as `<think>`. If
        the answer field is itself the reasoning (`answer_field="reasoning"`), the whole message is read.

        Raises:
            ConfigError: `answer_field` is not one of the fields.
        """
        messages = self.get_assistant_messages(completion)
        if not messages:
            return None
        text = text_of(messages[-1])
        # A field such as <reasoning> is removed by `visible_response`, so it could never be read from the response.
        parsed = self.parse(text if _is_reasoning_tag(self.answer_field) else self._response(text), last=True)
        if not hasattr(parsed, self.answer_field):
            hint = nearest(self.answer_field, vars(parsed))
            raise ConfigError(f"answer_field='{self.answer_field}' of this XMLParser is not one of its fields: {hint}")
        answer = getattr(parsed, self.answer_field)
        return None if answer is None else self.extract_fn(answer)

    def _response(self, text: str) -> str:
        """Return the part of a text from which the answer is read."""
        response = visible_response(text)
        if _between(response, self.answer_field, last=True) is not None:
            return response
        for name in self._reasoning_after_answer:
            text = text.partition(f"<{name}>")[0]
        opening, closing = f"<{self.answer_field}>", f"</{self.answer_field}>"
        end = text.rfind(closing)
        start = text.rfind(opening, 0, max(end, 0))
        if start < 0:
            return response
        # Tags within the answer are its own, as in code that prints "<think>", unless the answer may be part of the reasoning:
        # before it, some reasoning is open; it begins with a closing tag; or there is a tag after it.
        _, unfinished = _reasoning(text[:start])
        tag = REASONING_TAG.search(text, start, end)
        is_closing = tag is not None and "/" in tag[0]
        if unfinished or is_closing or REASONING_TAG.search(text, end):
            return response
        return text[start : end + len(closing)]

    def format_score(self, text: str) -> float:
        """Return 0.4 times the share of fields present, plus 0.2 each for: tidy, starts with the first tag, ends with the last.

        Present means opened and closed. Tidy means that at least one field is present and that fields have at most one line
        break between tag and text, as `format` writes them. Text without tags scores 0.
        """
        text = text.strip()
        num_present = 0
        is_tidy = True
        for names in self._fields:
            contents = [_between(text, name, last=True) for name in names]
            present = [content for content in contents if content is not None]
            if present:
                num_present += 1
            is_tidy = is_tidy and all(map(_is_tidy, present))
        share = num_present / len(self._fields)
        # Without any field, nothing is tidy: otherwise a reply without tags would score 0.2.
        is_tidy = is_tidy and num_present > 0
        return (2 * share + int(is_tidy) + int(text.startswith(self._starts)) + int(text.endswith(self._ends))) / 5

    def get_fields(self) -> list[str]:
        """Return the first name of every field, in order."""
        return [names[0] for names in self._fields]

    def get_format_str(self) -> str:
        """Return a description of the format for a prompt."""
        parts: list[str] = []
        for names in self._fields:
            tag = names[0] if len(names) == 1 else f"[ {' | '.join(names)} ]"
            parts.append(f"<{tag}>\n...\n</{tag}>")
        return "\n".join(parts)

    def format(self, /, **values: Any) -> str:
        """Write a text in this format. Every field takes its value under any of its names.

        Raises:
            ConfigError: a field has no value, or a name is not that of a field.
        """
        all_names = list(chain.from_iterable(self._fields))
        for name in values:
            if name not in all_names:
                raise ConfigError(f"format() got '{name}', which is not one of the fields: {nearest(name, all_names)}")
        parts: list[str] = []
        for names in self._fields:
            tag = names[0]
            value = next((values[name] for name in names if values.get(name) is not None), None)
            if value is None:
                raise ConfigError(f"format() got no value for the field '{tag}'; pass {' or '.join(names)}=")
            parts.append(f"<{tag}>\n{value}\n</{tag}>")
        return "\n".join(parts)


def _checked_fields(fields: Sequence[str | Sequence[str]]) -> list[tuple[str, ...]]:
    if isinstance(fields, str) or not fields:
        raise ConfigError(f"fields is {fields!r}; expected a list of tag names such as ['think', 'answer']")
    groups = [(field,) if isinstance(field, str) else tuple(field) for field in fields]
    used_names: set[str] = set()
    for group in groups:
        if not group:
            raise ConfigError(f"fields has an empty group of names: {fields!r}; give each field at least one")
        for name in group:
            # A caller may pass anything in place of a name.
            if not isinstance(name, str) or not re.fullmatch(r"[^\s<>/]+", name):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ConfigError(f"{name!r} cannot be a tag; expected a name without white space, '<', '>' and '/'")
            if name in used_names:
                raise ConfigError(f"the field '{name}' is given twice in {fields!r}; every tag needs its own name")
            used_names.add(name)
    return groups


def _reasoning_after(fields: Sequence[tuple[str, ...]], answer_field: str) -> list[str]:
    """Return the tags of reasoning among the fields after the answer."""
    names: list[str] = []
    is_after = False
    for group in fields:
        if is_after:
            names += [name for name in group if _is_reasoning_tag(name)]
        is_after = is_after or answer_field in group
    return names


def _between(text: str, name: str, last: bool) -> str | None:
    """Return the text of the first or last complete pair of tags.

    If a tag is opened several times before it is closed, the innermost pair counts, so that an abandoned draft is not
    part of the answer. Uses string searches: a lazy regular expression needs quadratic time on many unclosed tags.
    """
    opening, closing = f"<{name}>", f"</{name}>"
    if last:
        start = text.rfind(opening, 0, max(text.rfind(closing), 0))
        end = text.find(closing, start)
    else:
        first = text.find(opening)
        end = text.find(closing, first)
        start = text.rfind(opening, first, end) if first >= 0 and end >= 0 else -1
    return text[start + len(opening) : end] if start >= 0 else None


def _is_tidy(raw: str) -> bool:
    inner = raw.strip()
    return raw in (inner, f"\n{inner}", f"{inner}\n", f"\n{inner}\n")


def extract_boxed_answer(text: str, strict: bool = False) -> str:
    """Return the content of the last complete `\\boxed{…}`, with inner braces; if there is none, the text, or "" if `strict`."""
    opened: list[int] = []  # for every open brace: where the content of its box starts, or -1 if it is not a box
    start, end = -1, -1  # of the last complete box so far
    # One pass with a stack: a regular expression cannot match nested braces, and escaped braces are text.
    for match in re.finditer(r"\\boxed\s*\{|\\[\\{}]|[{}]", text):
        token = match[0]
        if token.startswith("\\boxed"):
            opened.append(match.end())
        elif token == "{":
            opened.append(-1)
        elif token == "}" and opened:
            closed_start = opened.pop()
            if closed_start > start:
                start, end = closed_start, match.start()
    if start >= 0:
        return text[start:end]
    return "" if strict else text


def extract_hash_answer(text: str) -> str:
    """Return the stripped text after the last `####`, as in GSM8K answers; if there is none, the whole text."""
    return text.rpartition("####")[2].strip() if "####" in text else text
