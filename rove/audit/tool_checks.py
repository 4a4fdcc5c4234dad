"""Checks of tools: rewards for calls, wrong answers after the calls of a good policy, and answers in error messages."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from itertools import chain, product
from typing import Any

import msgspec

from rove.audit.answer_checks import can_compare_variants
from rove.audit.baseline import Baseline, is_higher
from rove.audit.leak_checks import LEAK_EXAMPLES, leak_finding
from rove.audit.replies import constant, last_message, wrong
from rove.audit.reward_checks import HIGH_SHARE, PAID_SHARE
from rove.audit.subject import TRIED_EXAMPLES, Measured, Policy, Subject, highest
from rove.audit.traces import (
    Moves,
    arguments_of,
    calls_of,
    changed_arguments,
    moves_by_row,
    only_calls,
    repeated_call,
    replayed,
    tools_called,
    with_new_ids,
    with_repeated_calls,
)
from rove.core.findings import Finding, Severity
from rove.core.messages import AssistantMessage, Message, Messages, text_of
from rove.core.plain import JsonMapping, JsonObject, is_object
from rove.core.state import State, bookkeeping
from rove.envs.tool import example_call

MAX_TOOLS = 3
"""Maximum number of tools whose calls are repeated."""
CALL_TURNS, CALLS_PER_TURN, COPIES = 6, 5, 3
"""Turns with the same call, calls in one turn, and copies of each call of a good policy."""
EXTRA_SHARE = 0.1
"""It is a finding if superfluous calls of a good policy raise its reward by this share of the full reward."""
ERROR = re.compile(
    r"error|exception|invalid|unknown|no such|not found|there is no|does not|expected|cannot|fail|denied|missing|wrong",
    re.IGNORECASE,
)
"""Words of a message about a call that failed."""


VALUE = re.compile(r"-?\d{1,40}(?:\.\d{1,40})?(?!\w)|'[^']{1,60}'|\"[^\"]{1,60}\"")
"""Numbers and quoted texts of an error message."""
EXAMPLE = re.compile(
    r"\b(?i:such as|for example|for instance|e\.g\.|like)[:,]?\s{1,4}"
    r"(?:\"([^\"]{1,40})\"|'([^']{1,40})'|`([^`]{1,40})`|([\w.:/#-]{0,40}\d[\w:/#-]{0,40}))"
)
"""An example in the description of an argument, such as "4 March"."""
PART = re.compile(r"\d+|[^\W\d_]+|.", re.DOTALL)
"""A number, a word, or another character."""
SEARCHED_CHARS = 20_000
"""Number of characters of a prompt in which values are searched."""
REFUSAL = re.compile(
    rf"{ERROR.pattern}|\bnot\b|already|unavailable|refuse|closed|taken|occupied|sold out", re.IGNORECASE
)
"""Words of a message that refuses a call."""
SELECT = re.compile(r"\s*SELECT\b", re.IGNORECASE)
TABLE = re.compile(r"\b(?:FROM|JOIN)\s+(\w+)", re.IGNORECASE)
FIXED_ANSWERS = ("0", "none")
"""Answers that queries of empty tables give, and sums over no items."""
MAX_ITEMS = 24
"""Maximum number of items for which a tool is called in a rollout."""
CONTEXT = 6
"""Number of characters before a value in a tool's result by which other values of its kind are recognized."""


def calling_policy(base: Baseline) -> Measured | None:
    """Return the best scripted policy that calls tools; None if there is none."""
    calling = [policy for policy in base.honest if tools_called(moves_by_row(policy))]
    return highest(calling) if calling else None


async def check_paid_calls(subject: Subject, base: Baseline) -> AsyncIterator[Finding]:
    """Yield a finding if calls are paid whether or not they help."""
    best = calling_policy(base)
    moves = moves_by_row(best) if best is not None else _example_moves(base)
    span = max(base.task_range, 1e-9)
    # A tool that a good policy calls repeatedly with equal arguments may be meant to be repeated.
    tools = [tool for tool in tools_called(moves) if not _repeats(moves, tool)]
    paid: list[tuple[Measured, Measured]] = []
    for tool in tools[:MAX_TOOLS]:
        once = await subject.measure(f"one call of {tool}", replayed(repeated_call(moves, tool, 1)))
        turns = repeated_call(moves, tool, CALL_TURNS)
        steady = await subject.measure(f"{CALL_TURNS} turns with a call of {tool}", replayed(turns))
        at_once = repeated_call(moves, tool, 1, CALLS_PER_TURN)
        burst = await subject.measure(f"{CALLS_PER_TURN} calls of {tool} in a turn", replayed(at_once))
        repeated = highest([steady, burst])
        if is_higher(repeated, once, span) and repeated.mean - once.mean >= PAID_SHARE * span:
            paid.append((repeated, once))
    if best is not None and tools:
        copied = replayed(with_repeated_calls(moves, COPIES))
        extra = await subject.measure(f"the {best.name} with each call {COPIES} times", copied)
        if is_higher(extra, best, span) and extra.mean - best.mean >= EXTRA_SHARE * span:
            paid.append((extra, best))
    if paid:
        worst, reference = max(paid, key=lambda pair: pair[0].mean - pair[1].mean)
        is_severe = worst.mean - reference.mean >= HIGH_SHARE * span or worst.mean >= base.full
        yield worst.finding(
            "paid-calls",
            f"'{worst.name}' earns {worst.mean:.3f}, '{reference.name}' {reference.mean:.3f}; the best policy or a right answer "
            f"earns {base.full:.3f}",
            Severity.HIGH if is_severe else Severity.MEDIUM,
            floor=reference.mean,
        )


def _repeats(moves: Mapping[int, Moves], tool: str) -> bool:
    """Return whether a rollout has two equal calls of a tool."""
    for row_moves in moves.values():
        functions = [call["function"] for move in row_moves for call in calls_of(move)]
        counts = Counter(function["arguments"] for function in functions if function["name"] == tool)
        if counts and max(counts.values()) > 1:
            return True
    return False


def _example_moves(base: Baseline) -> dict[int, Moves]:
    """Return a call of each tool for each row, with values that fit the schemas."""
    moves: Moves = []
    for tool in base.tools:
        moves.append(AssistantMessage(None, tool_calls=[example_call(tool, "call")]))
    return {record.example_id: moves for record in base.idle.records}


async def check_wrong_answers_after_calls(subject: Subject, base: Baseline) -> AsyncIterator[Finding]:
    """Yield a finding if a wrong answer earns a reward after the calls of a good policy.

    The usual cause is a grader that searches the whole transcript, with the messages of the tools.
    """
    best = calling_policy(base)
    # Without calls, right answers must be paid: else the reward may depend on what the calls have changed.
    if best is None or not subject.answers or not can_compare_variants(base):
        return
    chosen = only_calls(moves_by_row(best))

    def wrong_answer(state: State) -> str:
        rng = random.Random(int(state["example_id"]))  # rollouts run concurrently, in no fixed order
        return base.form(wrong(str(state.get("answer")), subject.answers, rng))

    endings: dict[str, Callable[[State], str]] = {"ok": lambda state: "ok", "a wrong answer": wrong_answer}
    for name, ending in endings.items():
        measured = await subject.measure(f"the calls of the {best.name}, then {name}", replayed(chosen, ending))
        if base.share_of_task(measured.mean) >= HIGH_SHARE and is_higher(measured, base.idle, base.task_range):
            yield measured.finding(
                "paid-calls",
                f"'{measured.name}' earns {measured.mean:.3f}; the {best.name} earns {best.mean:.3f} with its own answers",
                Severity.HIGH,
                floor=base.idle.mean,
            )
            return


async def check_changed_data(subject: Subject, base: Baseline) -> AsyncIterator[Finding]:
    """Yield a finding if a fixed answer earns a reward after the model has deleted data with its SQL tool.

    A grader must not read data that the model can change: without rows, every sum is 0.
    """
    best = calling_policy(base)
    if best is None:
        return
    deletions = {row: _deletions(moves) for row, moves in moves_by_row(best).items()}
    if not any(deletions.values()):
        return
    for answer in FIXED_ANSWERS:
        reply = base.form(answer)
        alone = await subject.measure(f"the answer '{answer}'", constant(reply))
        deleting = replayed(lambda row: deletions.get(row, []), lambda state, reply=reply: reply)
        measured = await subject.measure(f"DELETE, then the answer '{answer}'", deleting)
        if base.share_of_task(measured.mean) >= HIGH_SHARE and is_higher(measured, alone, base.task_range):
            finding = measured.finding(
                "paid-calls",
                f"after the deletion of the tables that the {best.name} reads, the answer '{answer}' earns {measured.mean:.3f}, "
                f"without it {alone.mean:.3f}",
                Severity.HIGH,
                floor=alone.mean,
            )
            yield msgspec.structs.replace(
                finding,
                cause="the grader reads data that the model can change",
                remedy="let the tool only read, or compute the expected result before the rollout",
            )
            return


def _deletions(moves: Moves) -> Moves:
    """Return calls that delete all rows of the tables that the SQL queries of a rollout read."""
    deletions: Moves = []
    for call in chain.from_iterable(map(calls_of, moves)):
        queries = [value for value in arguments_of(call).values() if isinstance(value, str) and SELECT.match(value)]
        for table in dict.fromkeys(TABLE.findall(" ".join(queries))):
            deletion = changed_arguments(call, partial(_replace_query, f"DELETE FROM {table}"))
            deletions.append(AssistantMessage(None, tool_calls=[deletion]))
    return deletions[:CALL_TURNS]


def _replace_query(deletion: str, value: Any) -> Any:
    return deletion if isinstance(value, str) and SELECT.match(value) else value


async def check_all_items(subject: Subject, base: Baseline) -> AsyncIterator[Finding]:
    """Yield a finding if a fixed answer earns a reward after a tool was called for every item that results have listed.

    For example, after all entries of a ledger were deleted, their sum is 0, and a grader that computes the expected sum from the
    ledger accepts it.
    """
    best = calling_policy(base)
    if best is None:
        return
    moves = moves_by_row(best)
    results: dict[int, str] = {}
    for record in best.scored:
        texts = [text_of(message) for message in record.completion if message["role"] == "tool"]
        results.setdefault(record.example_id, "\n".join(texts))
    for tool, answer in product(tools_called(moves)[-MAX_TOOLS:], FIXED_ANSWERS):
        calls = {row: _calls_of_all_items(row_moves, tool, results[row]) for row, row_moves in moves.items()}
        if not any(calls.values()):
            continue
        reply = base.form(answer)
        name = f"a call of {tool} for every item, then the answer '{answer}'"
        every_item = replayed(lambda row, calls=calls: calls[row], lambda state, reply=reply: reply)
        tried = await subject.measure(name, every_item, TRIED_EXAMPLES)
        if base.share_of_task(tried.mean) < HIGH_SHARE / 2:
            continue
        measured = await subject.measure(name, every_item)
        alone = await subject.measure(f"the answer '{answer}'", constant(reply))
        if base.share_of_task(measured.mean) >= HIGH_SHARE and is_higher(measured, alone, base.task_range):
            finding = measured.finding(
                "paid-calls",
                f"'{name}' earns {measured.mean:.3f}, the answer alone {alone.mean:.3f}, the {best.name} {best.mean:.3f}",
                Severity.HIGH,
                floor=alone.mean,
            )
            yield msgspec.structs.replace(
                finding,
                cause="the grader computes the expected answer from data that the model can change",
                remedy="compute the expected answer before the rollout, and check what the model has changed",
            )
            return


def _calls_of_all_items(moves: Moves, tool: str, results: str) -> Moves:
    """Return a row's moves before its first call of a tool with an item, then a call for every item of the results."""
    new_moves: Moves = []
    for move in moves:
        for call in calls_of(move):
            function = call["function"]
            values = [value for value in arguments_of(call).values() if isinstance(value, str)]
            items = _items_like(values[0], results) if function["name"] == tool and len(values) == 1 else []
            if len(items) > 1:
                for item in items[:MAX_ITEMS]:
                    new_moves.append(AssistantMessage(None, tool_calls=[changed_arguments(call, partial(_item, item))]))
                return new_moves
        new_moves.append(move)
    return []


def _item(item: str, value: Any) -> Any:
    return item if isinstance(value, str) else value


def _items_like(value: str, results: str) -> list[str]:
    """Return the values of tools' results that stand where `value` does, or that have its letters and other digits."""
    position = results.find(value)
    if not value or position < 0:
        return []
    pattern = re.sub(r"\d+", r"\\d+", re.escape(value))
    items = re.findall(rf"(?<!\w){pattern}(?!\w)", results) if any(map(str.isdigit, value)) else []
    context = results[max(0, position - CONTEXT) : position]
    if not items and context.strip():
        items = re.findall(rf"{re.escape(context)}([\w-]+)", results)
    return list(dict.fromkeys(items))


async def check_error_leaks(subject: Subject, base: Baseline) -> AsyncIterator[Finding]:
    """Yield a finding if messages about calls that failed contain the row's answer."""
    if not subject.answers:
        return
    best = calling_policy(base)
    moves = moves_by_row(best) if best is not None else {}
    policies: dict[str, Policy] = {"calls with values of the row": calls_with_values(rounds=1)}
    if moves:
        policies["calls with wrong arguments"] = replayed(lambda row: _changed_calls(moves.get(row, [])))
    for name, policy in policies.items():
        measured = await subject.measure(name, policy, LEAK_EXAMPLES)
        text = f"after {name}, error messages contain the answer in {{share}} of the rollouts"
        finding = leak_finding(measured, text, _errors)
        if finding is not None:
            yield finding
            return


async def check_values_of_errors(subject: Subject, base: Baseline) -> AsyncIterator[Finding]:
    """Yield a finding if a wrong call shows values with which the same call then earns a reward.

    Neither answers of the rows nor scripted policies are needed: without a policy, the calls have values of the prompt.
    """
    best = calling_policy(base)
    moves = moves_by_row(best) if best is not None else _moves_with_row_values(base)
    attempts = {"wrong": _wrong_value, "neutral": _neutral_value}
    for tool, (kind, change) in product(tools_called(moves)[-MAX_TOOLS:], attempts.items()):
        name = f"a call of {tool} with {kind} values, then with the values of the error message"
        policy = _values_of_errors(moves, tool, change)
        tried = await subject.measure(name, policy, LEAK_EXAMPLES)
        if base.share_of_task(tried.mean) < HIGH_SHARE / 2:
            continue
        measured = await subject.measure(name, policy)
        # The values that were changed may not matter; then the call is right without any message.
        alone = await subject.measure(f"a call of {tool} with {kind} values", _values_of_errors(moves, tool, change, 1))
        if base.share_of_task(measured.mean) >= HIGH_SHARE and is_higher(
            measured, highest([base.idle, alone]), base.task_range
        ):
            right = (
                f"the {best.name} earns {best.mean:.3f}" if best is not None else f"a full reward is {base.full:.3f}"
            )
            yield measured.finding(
                "answer-leak",
                f"'{name}' earns {measured.mean:.3f}; {right}",
                Severity.HIGH,
                floor=base.idle.mean,
            )
            return


def _values_of_errors(
    moves: Mapping[int, Moves], tool: str, change: Callable[[Any], Any], max_calls: int = CALL_TURNS + 1
) -> Policy:
    """Return a policy that calls a tool with changed values, then with each value of the error message, the last one first."""

    def policy(messages: Messages, state: State, rng: random.Random) -> Message | str:
        row_moves = moves.get(int(state["example_id"]), [])
        calls = [call for call in chain.from_iterable(map(calls_of, row_moves)) if call["function"]["name"] == tool]
        turn = len(bookkeeping(state).trajectory)
        if not calls or turn >= max_calls:
            return ""
        wrong_call = changed_arguments(calls[-1], change)
        if arguments_of(wrong_call) == arguments_of(calls[-1]):
            return ""
        if turn == 0:
            return with_new_ids(AssistantMessage(None, tool_calls=[wrong_call]), turn)
        errors = [text_of(message) for message in messages if message["role"] == "tool"]
        sent = set(map(str, arguments_of(wrong_call).values()))
        values = [value for value in VALUE.findall(errors[0] if errors else "") if value not in sent]
        if turn > min(len(values), CALL_TURNS):
            return ""
        # Arguments that the first call did not change, such as the number of an order, stay as they are.
        arguments = arguments_of(calls[-1])
        for argument, value in arguments_of(wrong_call).items():
            if value != arguments[argument]:
                arguments[argument] = _typed(values[-turn], arguments[argument])
        function = {**calls[-1]["function"], "arguments": json.dumps(arguments)}
        return with_new_ids(AssistantMessage(None, tool_calls=[{**calls[-1], "function": function}]), turn)

    return policy


def _typed(text: str, value: Any) -> Any:
    """Return a text as a number if `value` is one, with decimals if the text needs them."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return text.strip("'\"")
    whole = re.fullmatch(r"(-?\d+)(\.0*)?", text)
    if whole:  # not by way of a float, which would change long numbers
        return int(whole[1])
    return float(text) if re.fullmatch(r"-?\d+\.\d+", text) else value


def _errors(completion: list[Any]) -> list[Any]:
    """Return the messages about calls that failed."""
    messages = [message for message in completion if message["role"] != "assistant"]
    return [message for message in messages if ERROR.search(text_of(message))]


def _changed_calls(moves: Moves) -> Moves:
    """Return the calls of a rollout with wrong arguments: each once with a changed value, and once without any."""
    changed: Moves = []
    for move in moves:
        for call in calls_of(move)[:1]:
            without = {**call, "function": {**call["function"], "arguments": "{}"}}
            for variant in (changed_arguments(call, _wrong_value), without):
                changed.append(AssistantMessage(None, tool_calls=[variant]))
    return changed[: 2 * CALL_TURNS]


def _wrong_value(value: Any) -> Any:
    if isinstance(value, str):
        return f"{value}9"
    # `isinstance` would also accept True, and True + 1 is no value of a flag.
    return value + 1 if type(value) in (int, float) else value


def _neutral_value(value: Any) -> Any:
    """Return 0 for a number, also for one in a text; an error message about it may state the difference from the right value."""
    if isinstance(value, str):
        return re.sub(r"[1-9]", "0", value.lstrip("-")) if re.fullmatch(r"-?\d+(\.\d+)?", value) else value
    return type(value)(0) if type(value) in (int, float) else value


def _moves_with_row_values(base: Baseline) -> dict[int, Moves]:
    """Return a call of each tool for each row, with words and numbers of its prompt as arguments."""
    moves: dict[int, Moves] = {}
    for record in base.idle.records:
        prompt = last_of_prompt(record.prompt)
        calls = [with_values(tool, "call", prompt) for tool in base.tools]
        moves[record.example_id] = [AssistantMessage(None, tool_calls=[call]) for call in calls]
    return moves


def last_of_prompt(prompt: Any) -> str:
    """Return the text of a prompt, or of its last message."""
    return prompt if isinstance(prompt, str) else last_message(prompt)


def with_values(tool: JsonMapping, call_id: str, prompt: str, attempt: int = 0) -> JsonObject:
    """Return a call of a tool with the names and numbers that a prompt is about as arguments, in their order.

    Args:
        tool: The tool's definition in OpenAI's form.
        attempt: Which of the values counts that look like the example in an argument's description, from 0.
    """
    names = re.findall(r"\b(?=[\w-]*\d)(?=[\w-]*[A-Za-z])[\w-]+\b", prompt)
    if not names:
        # The first capitalized word usually begins the sentence, and is not a name.
        names = re.findall(r"\b[A-Z]\w+", prompt)[1:]
    # Python refuses to read numbers of thousands of digits.
    numbers = re.findall(r"\b\d{1,40}\b", prompt) or re.findall(r"\d{1,40}", prompt)
    words = iter(names or numbers)
    amounts = iter(numbers)
    call = example_call(tool, call_id)
    descriptions = _descriptions(tool)
    values: JsonObject = {}
    for name, value in arguments_of(call).items():
        values[name] = value
        if isinstance(value, str):
            like_example = values_like_example(descriptions.get(name, ""), prompt)
            suitable = like_example[attempt % len(like_example)] if like_example else _named_value(name, prompt)
            if suitable:
                values[name] = suitable
            elif names or numbers:
                values[name] = next(words, (names or numbers)[-1])
        elif type(value) in (int, float) and numbers:
            values[name] = int(next(amounts, numbers[-1]))
    return {**call, "function": {**call["function"], "arguments": json.dumps(values)}}


def _descriptions(tool: JsonMapping) -> dict[str, str]:
    """Return the descriptions of a tool's arguments; what a stranger's schema has instead of texts is left out."""
    parameters = tool["function"].get("parameters")
    properties = parameters.get("properties") if is_object(parameters) else None
    descriptions: dict[str, str] = {}
    for name, schema in (properties if is_object(properties) else {}).items():
        if is_object(schema) and isinstance(schema.get("description"), str):
            descriptions[name] = schema["description"]
    return descriptions


def values_like_example(description: str, prompt: str) -> list[str]:
    """Return the texts of a prompt that look like the example in an argument's description: "4 May" for 'such as "30 June"'."""
    example_match = EXAMPLE.search(description)
    if example_match is None:
        return []
    example = [_kind(part) for part in PART.findall(next(filter(None, example_match.groups())))]
    # An example of small letters only looks like every word.
    if "number" not in example and "Word" not in example:
        return []
    parts = PART.findall(prompt[:SEARCHED_CHARS])
    kinds = [_kind(part) for part in parts]
    values: dict[str, None] = {}
    for start in range(len(parts) - len(example) + 1):
        end = start + len(example)
        is_whole = (start == 0 or not _is_word(kinds[start - 1])) and (end == len(parts) or not _is_word(kinds[end]))
        if is_whole and kinds[start:end] == example:
            values["".join(parts[start:end])] = None
    return list(values)


def _kind(part: str) -> str:
    """Return what a part of a text looks like: any number, any word, any capitalized word, or the character itself."""
    if part.isdigit():
        return "number"
    if part[0].isalpha():
        return "Word" if part[0].isupper() else "word"
    return part


def _is_word(kind: str) -> bool:
    return kind in ("number", "Word", "word", "_")


def calls_with_values(rounds: int) -> Policy:
    """Return a policy that calls all tools in turn with values of the prompt, in each round with others, then gives no answer."""

    def policy(messages: Messages, state: State, rng: random.Random) -> str | Message:
        tools = bookkeeping(state).tools or []
        turn = len(bookkeeping(state).trajectory)
        if turn >= min(2 * CALL_TURNS, rounds * len(tools)):
            return "ok"
        tool, prompt = tools[turn % len(tools)], last_of_prompt(state["prompt"])
        call = with_values(tool, f"call_{turn}", prompt, attempt=turn // len(tools))
        return AssistantMessage(None, tool_calls=[call])

    return policy


def _named_value(argument: str, prompt: str) -> str:
    """Return the value that follows the name of an argument in a prompt, such as "order R500"; "" if there is none."""
    for word in argument.split("_"):
        match = re.search(rf"\b{re.escape(word)}\W{{1,3}}((?=\S*\d)[\w-]+)", prompt, re.IGNORECASE)
        if match:
            return match[1]
    return ""
