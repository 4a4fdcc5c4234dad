"""Checks of messages: does the environment show the answer to a policy that does nothing, or in an error message?"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

from rove.audit.baseline import Baseline
from rove.audit.findings import shortened
from rove.audit.replies import constant, last_message
from rove.audit.subject import Measured, Policy, Subject, evidence
from rove.core.findings import Finding
from rove.core.messages import AssistantMessage, Message, Messages, text_of
from rove.core.plain import is_list, is_object
from rove.core.records import RolloutRecord
from rove.core.state import State, bookkeeping
from rove.envs.tool import example_call

LEAK_EXAMPLES = 20
"""Number of examples on which messages are searched for answers."""
MAX_TOOLS = 12
"""Maximum number of tools that are called."""
LEAK_SHARE = 0.3
"""Minimum share of rollouts whose messages contain their own answer."""
MIN_LISTED = 3
"""Messages with at least this many answers of other rows list possible answers."""
MIN_DIGITS = 3
"""Minimum number of digits of a rounded number that counts as the answer."""
MAX_PARTS = 4
"""Maximum number of words and numbers in an answer for which its parts are searched."""
MAX_FIELDS = 3
"""Maximum number of hidden fields that a policy asks about."""
GENERIC_WORDS = ("id", "number", "name", "code", "key", "value")
"""Words in names of fields that do not say what a field is about."""


# Chinese and Japanese characters, Thai, Lao, Burmese and Khmer letters.
WITHOUT_SPACES = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
"""Characters of scripts that write no spaces between words."""
WORD_CHARACTER = rf"[^\W{WITHOUT_SPACES}]"


def as_words(text: str) -> str:
    """Return the pattern of a text that is no part of a longer word or number."""
    return rf"(?<!{WORD_CHARACTER}){re.escape(text)}(?!{WORD_CHARACTER})"


async def check_message_leaks(subject: Subject, base: Baseline) -> AsyncIterator[Finding]:
    """Yield a finding if messages after a useless reply contain the row's answer."""
    if not subject.answers:
        return
    policies = {
        "no action": constant("I do not know."),
        "nonsense": constant(base.form("qxzj")),
        "each tool": each_tool,
    }
    attempts = {name: (policy, "does nothing") for name, policy in policies.items()}
    # An environment that answers an idle reply may answer a question, too, even if a right answer ends the rollout at once.
    if any(len(record.steps) > 1 for record in base.idle.records):
        for field in hidden_fields(subject, base):
            action = f"asks for '{field}', which the prompt does not mention"
            attempts[f"a question about '{field}'"] = (_asks(field), action)
    for name, (policy, action) in attempts.items():
        measured = await subject.measure(f"messages after {name}", policy, LEAK_EXAMPLES)
        text = f"messages contain the answer in {{share}} of the rollouts of a policy that {action}"
        finding = leak_finding(measured, text, before_last_reply)
        if finding is not None:
            yield finding
            return


def hidden_fields(subject: Subject, base: Baseline) -> list[str]:
    """Return the names of fields of `info` with the row's answer that no prompt mentions.

    A field that the prompt names may be what the model is meant to ask for.
    """
    shown_text = "\n".join(text_of(message) for record in base.idle.records for message in record.prompt)
    shown_words = set(re.findall(r"[a-z]+", shown_text.lower()))
    counts: Counter[str] = Counter()
    for row in subject.rows:
        answer = str(row.get("answer"))
        fields_with_answer = [name for name, value in _fields(row.get("info")) if str(value) == answer]
        # Each field counts once per row. A set would have another order in each process.
        counts.update(list(dict.fromkeys(fields_with_answer)))
    names = [name for name, count in counts.items() if count >= len(subject.rows) / 2]
    return [name for name in names if shown_words.isdisjoint(_words_of(name))][:MAX_FIELDS]


def _words_of(field: str) -> list[str]:
    """Return the words of a field's name that say what it is about: "order" for "order_id"."""
    words = re.findall(r"[a-z]+", field.replace("_", " ").lower())
    return [word for word in words if word not in GENERIC_WORDS] or words


def _fields(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of the fields of nested objects and lists."""
    if is_list(value):
        for element in value:
            yield from _fields(element)
    if is_object(value):
        for name, content in value.items():
            if is_object(content) or is_list(content):
                yield from _fields(content)
            else:
                yield name, content


def _asks(field: str) -> Policy:
    """Return a policy that asks for a field in several ways, then gives up."""
    name = field.replace("_", " ")
    questions = (f"What is your {name}?", f"What is the {name}?", field, f"Tell me the {name}.")

    def policy(messages: Messages, state: State, rng: random.Random) -> str:
        turn = len(bookkeeping(state).trajectory)
        return questions[turn] if turn < len(questions) else "qxzj"

    return policy


def leak_finding(measured: Measured, text: str, choose: Callable[[list[Any]], list[Any]] = list) -> Finding | None:
    """Return a finding if the messages of many rollouts contain their row's answer.

    Args:
        text: Text of the finding, in which `{share}` is replaced by the share of such rollouts.
        choose: Messages of a rollout → the messages that are searched; all by default.
    """
    leaking, num_by_chance = _leaking_records(measured, choose)
    count = len(measured.records)
    if not count or len(leaking) - num_by_chance <= LEAK_SHARE * count:
        return None
    prompt, completion = evidence(leaking[0])
    share = len(leaking) / count
    return Finding(
        id="answer-leak",
        text=text.format(share=f"{share:.0%}"),
        rate=(share, share, share),
        floor=num_by_chance / count,
        prompt=prompt,
        completion=shortened(completion, 800),
    )


def before_last_reply(messages: Sequence[dict[str, object]]) -> list[dict[str, object]]:
    """Return the messages to which the model could still reply: an answer that is shown after the last reply is no leak."""
    last = max((index for index, message in enumerate(messages) if message["role"] == "assistant"), default=0)
    return list(messages[:last])


def _leaking_records(measured: Measured, choose: Callable[[list[Any]], list[Any]]) -> tuple[list[RolloutRecord], int]:
    """Return the rollouts whose messages contain their row's answer, and how many contain the answer of the next row.

    Answers of other rows show how often messages contain an answer by chance. An error message with all valid names is no leak;
    it has the answers of other rows as well, or the other options of the prompt.
    """
    leaking: list[RolloutRecord] = []
    num_by_chance = 0
    neighbors = [*measured.records[1:], *measured.records[:1]]
    answers = {record.answer for record in measured.records}
    for record, neighbor in zip(measured.records, neighbors, strict=True):
        messages = choose(record.completion)
        if contains_answer(messages, record.answer):
            other_answers = [answer for answer in answers - {record.answer} if contains_answer(messages, answer)]
            options = [
                option for option in options_like(record.answer, record.prompt) if contains_answer(messages, option)
            ]
            if len(other_answers) < MIN_LISTED and not options:
                leaking.append(record)
        # A neighbor with the same answer would count every leak as chance.
        if neighbor.answer != record.answer:
            num_by_chance += contains_answer(messages, neighbor.answer)
    return leaking, num_by_chance


def options_like(answer: str, prompt: Any) -> list[str]:
    """Return the words that the prompt offers beside the answer, as in "A or B?" and "A, B or C?"."""
    text = last_message(prompt) if is_list(prompt) else str(prompt)
    if not re.fullmatch(r"\w[\w-]*", answer):
        return []
    other_options: list[str] = []
    for listed in re.findall(r"\w[\w-]*(?:, \w[\w-]*)*,? or \w[\w-]*", text):
        options = re.findall(r"(?!or\b)\w[\w-]*", listed)
        if answer in options:
            other_options += [option for option in options if option != answer]
    return other_options


def each_tool(messages: Messages, state: State, rng: random.Random) -> str | Message:
    """Call each tool once with values that fit its schema, then reply nonsense."""
    tools = bookkeeping(state).tools or []
    turn = len(bookkeeping(state).trajectory)
    if turn >= min(MAX_TOOLS, len(tools)):
        return "qxzj"
    return AssistantMessage(None, tool_calls=[example_call(tools[turn], f"call_{turn}")])


def contains_answer(completion: Sequence[dict[str, object]], answer: str) -> bool:
    """Return whether the environment's messages contain an answer.

    A number that equals the answer when it is rounded counts, too, and so do all parts of an answer in one line.
    """
    if not answer:
        return False
    texts = [text_of(message) for message in completion if message["role"] != "assistant"]
    pattern = as_words(answer)
    return any(re.search(pattern, text) or _has_rounded(text, answer) or _has_parts(text, answer) for text in texts)


def _has_rounded(text: str, answer: str) -> bool:
    """Return whether a text contains a number such as 39.618 for the answer 39.618176."""
    if not re.fullmatch(r"-?\d+\.\d+", answer):
        return False
    value = float(answer)
    for number in re.findall(r"(?<![\w.])-?\d+\.\d+(?![\w.]*\d)", text):
        digits = number.lstrip("-0.").replace(".", "")
        decimals = len(number.partition(".")[2])
        if len(digits) >= MIN_DIGITS and abs(float(number) - value) <= 0.5 * 10**-decimals * (1 + 1e-9):
            return True
    return False


def _has_parts(text: str, answer: str) -> bool:
    """Return whether a line has all parts of an answer such as "size = 12"."""
    parts = set(re.findall(r"\w+", answer))
    if not 2 <= len(parts) <= MAX_PARTS or not any(part.isdigit() for part in parts):
        return False
    return any(parts <= set(re.findall(r"\w+", line)) for line in text.splitlines())


def shown_to_all(record: RolloutRecord) -> str:
    """Return the text that every rollout shows: the system prompt, and names and descriptions of tools."""
    system = [text_of(message) for message in record.prompt if message["role"] == "system"]
    return "\n".join([*system, *map(str, record.tools or [])])
