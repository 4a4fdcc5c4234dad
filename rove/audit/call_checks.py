"""Calls that the task needs: the calls of a good policy, with one left out, in another order, or with values of another row."""

from __future__ import annotations

import json
import math
import random
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from itertools import chain, permutations, product
from typing import Any, NamedTuple

from rove.audit.baseline import MIN_PAIRS, Baseline, is_higher
from rove.audit.game_checks import balanced_share
from rove.audit.leak_checks import as_words
from rove.audit.reward_checks import HIGH_SHARE, TIED_SHARE
from rove.audit.subject import TRIED_EXAMPLES, Measured, Policy, Subject, evidence, highest, reward_of
from rove.audit.tool_checks import calling_policy, last_of_prompt, with_values
from rove.audit.traces import (
    Moves,
    arguments_of,
    calls_of,
    moves_by_row,
    replayed,
    tools_called,
    values_of_other_rows,
    with_argument,
    with_calls_reversed,
    without_calls,
)
from rove.core.findings import Finding, Severity
from rove.core.messages import AssistantMessage, Message, Messages, text_of
from rove.core.plain import JsonObject
from rove.core.state import State, bookkeeping

MAX_TOOLS, MAX_ARGUMENTS = 4, 6
"""Maximum number of tools whose calls are left out, and of arguments that are changed."""
SEQUENCE_TOOLS, SEQUENCE_LENGTH, SEQUENCE_TURNS = 3, 3, 6
"""Number of tools from which sequences of calls are formed, maximum length of a sequence, and turns in which it is repeated."""
REQUIRED = re.compile(
    r"\b(must|always|required?|needs? to|have to|make sure|be sure|only after|before|first)\b", re.IGNORECASE
)
"""Words of a sentence that states a requirement."""
INFORMING = re.compile(
    r"(get|read|list|look|lookup|search|find|show|view|fetch|query|inspect|browse|describe|count|cat|ls|open|check|scan|peek"
    r"|examine|ask|see|calc|calculate|calculator|compute|convert|retrieve|load|preview|observe|status|recall|note|think|plan"
    r"|python|run|execute|grep|head|lines|help|info|weather|translate|define|web|wiki)(?=_|$)",
    re.IGNORECASE,
)
"""First words of the names of tools that only return information. A scripted policy already knows this information, so it needs
no such call."""
OTHER_ROW = "with another row's "
"""Beginning of the names of changes that take the value of an argument from another row."""
REVERSED = "with its calls in the other order"
"""Name of the change of the order."""
ORDER = re.compile(r"\b(before|first|after|then|until)\b", re.IGNORECASE)
MIN_VERB = 4
"""Minimum length of the first word of a tool's name, such as "verify", by which a sentence may name the tool."""
AT_LEAST = re.compile(
    r"\b(at (least|most)|or (more|less|fewer)|(more|less|fewer) than|up to|enough|minimum|maximum|above|below|over|under)\b",
    re.IGNORECASE,
)
"""Words of a task in which a number need not be exact."""
FAR_ABOVE = 10
"""A value far above all others is the largest one times this factor. An environment that counts up to it must not hang."""
MIN_WRONG_VALUES = 3
"""Minimum number of different wrong values that the calls of other rows have for an argument."""
MAX_GUESSES = 60
"""Maximum number of calls in a turn with the values of other rows."""


MIN_LISTED_ITEMS, MAX_LISTED_ITEMS = 3, 30
"""Numbers of items in a tool's result for which another tool is called."""


class Change(NamedTuple):
    """A change of a policy's calls."""

    name: str
    choose: Callable[[int], Moves]
    """Position of a row → its changed moves."""
    severity: Severity
    """Severity of a finding if the change does not lower the reward."""
    argument_of: str = ""
    """The tool whose argument is changed."""
    is_reported: bool = True
    """Whether it is a defect that the change does not lower the reward."""


def has_policy_with_calls(base: Baseline) -> bool:
    """Return whether a scripted policy does the task with tools."""
    best = calling_policy(base)
    return best is not None and base.share_of_task(best.mean) >= HIGH_SHARE


async def check_needed_calls(subject: Subject, base: Baseline) -> AsyncIterator[Finding]:
    """Yield a finding if the reward is equal without a call that the task needs, in the wrong order, or with wrong values."""
    best = calling_policy(base)
    if best is None or not has_policy_with_calls(base):
        return
    moves = moves_by_row(best)
    no_calls = await subject.measure(f"the {best.name} without its calls", replayed(without_calls(moves)))
    # A scripted policy knows the answer, so leaving out calls that only inform does not lower its reward.
    if base.share_of_task(no_calls.mean) >= HIGH_SHARE * base.share_of_task(best.mean):
        return
    costless: list[tuple[Measured, Change]] = []
    for change in [*_changes(base, moves), *_changed_arguments(base, moves, subject)]:
        if _follows(change, [costless_change.name for _, costless_change in costless]):
            continue
        name = f"the {best.name} {change.name}"
        tried = _changed_rows(await subject.measure(name, replayed(change.choose), TRIED_EXAMPLES), change, moves)
        if not _is_costless(tried, best):
            continue
        measured = _changed_rows(await subject.measure(name, replayed(change.choose)), change, moves)
        if _is_costless(measured, best) and is_higher(measured, no_calls, base.task_range):
            costless.append((measured, change))
    reported = [pair for pair in costless if pair[1].is_reported]
    if reported:
        measured, change = max(reported, key=lambda pair: pair[1].severity)
        similar = [pair[1].name for pair in reported if pair[1].severity == change.severity]
        similar.remove(change.name)
        also = f"; also {', '.join(similar[:3])}" if similar else ""
        yield measured.finding(
            "needed-calls",
            f"the {best.name} {change.name} earns {measured.mean:.3f}, and {best.mean:.3f} as it is{also}",
            change.severity,
            floor=no_calls.mean,
        )


def _follows(change: Change, costless_names: Sequence[str]) -> bool:
    """Return whether a change cannot lower the reward because earlier ones do not."""
    # The values of a call that is not needed do not matter.
    if change.argument_of and f"without any call of {change.argument_of}" in costless_names:
        return True
    # The order of calls does not matter if one of the tools is not needed at all.
    if change.name == REVERSED:
        return any(name.startswith("without any call of") for name in costless_names)
    # If the value of another row is as good, a value far above all others shows nothing new.
    arguments = [name.removeprefix(OTHER_ROW) for name in costless_names if name.startswith(OTHER_ROW)]
    return any(change.name.endswith(argument) for argument in arguments)


def _changes(base: Baseline, moves: Mapping[int, Moves]) -> list[Change]:
    tools = tools_called(moves)[:MAX_TOOLS]
    sentences = _sentences(base)
    changes: list[Change] = []
    for tool in tools:
        # If no sentence requires the call, it may only inform.
        severity = Severity.MEDIUM if _is_named(tool, sentences, REQUIRED) else Severity.LOW
        # If later calls have values that only this call can have found, it is needed, although a repetition works without it.
        is_reported = severity > Severity.LOW or _are_values_shown(base, moves, after_tool=tool)
        for name, limit in ((f"without a call of {tool}", 1), (f"without any call of {tool}", None)):
            changes.append(Change(name, without_calls(moves, tool, limit=limit), severity, is_reported=is_reported))
        if len(tools) > 2:
            left_out = [name for name in tools if name != tool]
            is_required = any(_is_named(name, sentences, REQUIRED) for name in left_out)
            severity = Severity.MEDIUM if is_required else Severity.LOW
            changes.append(Change(f"with calls of {tool} only", without_calls(moves, *left_out), severity))
    num_acting = sum(not INFORMING.match(tool) for tool in tools)
    is_ordered = num_acting > 1 and any(_is_named(tool, sentences, ORDER) for tool in tools)
    if is_ordered and _are_values_shown(base, moves):
        changes.append(Change(REVERSED, with_calls_reversed(moves), Severity.MEDIUM))
    return changes


def _are_values_shown(base: Baseline, moves: Mapping[int, Moves], after_tool: str = "") -> bool:
    """Return whether the prompts show most values of each tool that acts.

    A value that a policy computed from the results of earlier calls cannot be known before them, so these calls have an order.

    Args:
        after_tool: Only calls of other tools after the first call of this tool count; all calls by default.
    """
    prompts = _prompts_by_row(base)
    are_shown: dict[str, list[bool]] = {}
    for row, row_moves in moves.items():
        calls = list(chain.from_iterable(map(calls_of, row_moves)))
        if after_tool:
            names = [call["function"]["name"] for call in calls]
            later = calls[names.index(after_tool) :] if after_tool in names else []
            calls = [call for call in later if call["function"]["name"] != after_tool]
        for call in calls:
            name = call["function"]["name"]
            if not INFORMING.match(name):
                values = map(str, arguments_of(call).values())
                are_shown.setdefault(name, []).extend(value in prompts.get(row, "") for value in values)
    return all(sum(of_tool) >= len(of_tool) / 2 for of_tool in are_shown.values())


def _prompts_by_row(base: Baseline) -> dict[int, str]:
    """Return the text of each row's prompt."""
    return {record.example_id: "\n".join(map(text_of, record.prompt)) for record in base.idle.records}


def _share_without_task(base: Baseline) -> float:
    """Return the share of the task's reward that a policy can earn by chance or by doing nothing."""
    return max(base.chance, balanced_share(base), base.share_of_task(max(base.idle.mean, base.floor.mean)))


def _changed_arguments(base: Baseline, moves: Mapping[int, Moves], subject: Subject) -> list[Change]:
    """Return changes that give an argument the value of another row, or a number far above all others.

    Only arguments whose values are names or numbers are changed.
    """
    values: dict[tuple[str, str], dict[int, object]] = {}
    for row, row_moves in moves.items():
        for call in chain.from_iterable(map(calls_of, row_moves)):
            for argument, value in arguments_of(call).items():
                values.setdefault((call["function"]["name"], argument), {}).setdefault(row, value)
    prompts = [str(row["prompt"]) for row in subject.rows]
    is_exact = not AT_LEAST.search("\n".join([*prompts, *_sentences(base)]))
    changes: list[Change] = []
    num_changed = 0
    for (tool, argument), by_row in values.items():
        named = {row: value for row, value in by_row.items() if re.fullmatch(r"[\w.#-]+", str(value))}
        # A value that is the same in most rows may be a constant, and a text in free words may be anything.
        is_constant = len({str(value) for value in named.values()}) <= len(moves) / 2
        if is_constant or tool not in tools_called(moves)[:MAX_TOOLS] or num_changed == MAX_ARGUMENTS:
            continue
        num_changed += 1
        num_shown = sum(row < len(prompts) and str(value) in prompts[row] for row, value in named.items())
        severity = Severity.HIGH if num_shown > len(named) / 2 else Severity.MEDIUM
        choose = with_argument(moves, tool, argument, named, values_of_other_rows(named))
        in_calls = f"{argument} in the calls of {tool}"
        changes.append(Change(f"{OTHER_ROW}{in_calls}", choose, severity, argument_of=tool))
        numbers = _finite_numbers(named.values())
        if is_exact and len(numbers) == len(named):
            far_above = FAR_ABOVE * max(map(abs, numbers)) + 7
            choose = with_argument(moves, tool, argument, named, dict.fromkeys(named, far_above))
            changes.append(Change(f"with {far_above} as {in_calls}", choose, severity, argument_of=tool))
    return changes


def _finite_numbers(values: Iterable[object]) -> list[float]:
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    return [number for number in numbers if math.isfinite(number)]


def _changed_rows(measured: Measured, change: Change, moves: Mapping[int, Moves]) -> Measured:
    """Return the rollouts of the rows whose moves the change concerns."""
    # The rewards of other rows are equal in any environment, and would hide that the change matters.
    records = [record for record in measured.scored if change.choose(record.example_id) != moves.get(record.example_id)]
    return Measured(measured.name, records)


def _is_costless(measured: Measured, best: Measured) -> bool:
    rewards = {record.example_id: reward_of(record) for record in best.scored}
    # A row in which the unchanged moves earn nothing cannot show a loss.
    paid = [record for record in measured.scored if rewards.get(record.example_id, 0.0) > 0]
    num_equal = sum(reward_of(record) >= rewards[record.example_id] - 1e-6 for record in paid)
    return len(paid) >= MIN_PAIRS and num_equal >= TIED_SHARE * len(measured.scored)


def _sentences(base: Baseline) -> list[str]:
    """Return the sentences of prompts and of the descriptions of tools."""
    texts = list(base.prompts)
    record = next((record for record in base.idle.records if record.tools), None)
    if record is not None:
        texts += [text_of(message) for message in record.prompt if message["role"] == "system"]
        texts += [str(tool["function"].get("description") or "") for tool in base.tools]
    return re.split(r"[.!?](?:\s|$)|\n", "\n".join(dict.fromkeys(texts)))


def _is_named(tool: str, sentences: Sequence[str], words: re.Pattern[str]) -> bool:
    """Return whether a sentence with such words names a tool that acts, by its name or by the verb of its name."""
    if INFORMING.match(tool):
        return False
    verb = tool.partition("_")[0].casefold()
    names = [tool.casefold(), tool.replace("_", " ").casefold()]
    names += [verb] if len(verb) >= MIN_VERB else []
    matching = [sentence.casefold() for sentence in sentences if words.search(sentence)]
    return any(name in sentence for name in names for sentence in matching)


async def check_many_calls(subject: Subject, base: Baseline) -> AsyncIterator[Finding]:
    """Yield a finding if one of many calls may be right: values that the prompt does not show are taken from all other rows.

    The usual cause is a grader that looks for a right change and not for further ones.
    """
    best = calling_policy(base)
    if best is None:
        return
    last_calls = _last_acting_calls(moves_by_row(best))
    prompts = _prompts_by_row(base)
    policy = replayed(lambda row: [AssistantMessage(None, tool_calls=_guesses(row, last_calls, prompts))])
    name = f"up to {MAX_GUESSES} calls with the values of other rows, in one turn"
    if not any(len(_guesses(row, last_calls, prompts)) > 1 for row in last_calls):
        return
    first = await subject.measure(name, policy, TRIED_EXAMPLES)
    expected = _share_without_task(base)
    if expected >= 1 or base.share_of_task(first.mean, expected) < HIGH_SHARE:
        return
    measured = await subject.measure(name, policy)
    one_guess = replayed(lambda row: [AssistantMessage(None, tool_calls=_guesses(row, last_calls, prompts)[:1])])
    single = await subject.measure("one call with the values of another row", one_guess)
    is_paid = base.share_of_task(measured.mean, expected) >= HIGH_SHARE
    if is_paid and is_higher(measured, highest([single, base.idle, base.floor]), base.task_range):
        yield measured.finding(
            "blind-game",
            f"{measured.name}, earn {measured.mean:.3f}, one such call {single.mean:.3f}; the best policy or a full reward is "
            f"{base.full:.3f}",
            Severity.HIGH,
            floor=single.mean,
        )


def _last_acting_calls(moves: Mapping[int, Moves]) -> dict[int, JsonObject]:
    """Return the last call of each row that does more than inform, of the tool that most rows call last."""
    by_row: dict[int, JsonObject] = {}
    for row, row_moves in moves.items():
        for call in chain.from_iterable(map(calls_of, row_moves)):
            if not INFORMING.match(call["function"]["name"]):
                by_row[row] = call  # the last one stays
    tools = Counter(call["function"]["name"] for call in by_row.values())
    most_called = tools.most_common(1)[0][0] if tools else ""
    return {row: call for row, call in by_row.items() if call["function"]["name"] == most_called}


def _guesses(row: int, last_calls: Mapping[int, JsonObject], prompts: Mapping[int, str]) -> list[JsonObject]:
    """Return a row's call with the values of other rows in place of those that its prompt does not show."""
    own_call = last_calls.get(row) or next(iter(last_calls.values()), None)
    if own_call is None:
        return []
    arguments = arguments_of(own_call)
    hidden = [name for name, value in arguments.items() if str(value) not in prompts.get(row, "")]
    guesses: dict[str, JsonObject] = {}
    for other_row, call in last_calls.items():
        values = arguments_of(call)
        if other_row == row or not all(name in values for name in hidden):
            continue
        text = json.dumps({**arguments, **{name: values[name] for name in hidden}})
        guesses[text] = {**own_call, "function": {**own_call["function"], "arguments": text}}
    return list(guesses.values())[:MAX_GUESSES]


async def check_values_of_results(subject: Subject, base: Baseline) -> AsyncIterator[Finding]:
    """Yield a finding if the result of a wrong call names the right value, with which the call is then repeated."""
    best = calling_policy(base)
    if best is None:
        return
    last_calls = _last_acting_calls(moves_by_row(best))
    prompts = _prompts_by_row(base)
    arguments = dict.fromkeys(
        name for call in last_calls.values() for name, value in arguments_of(call).items() if isinstance(value, str)
    )
    for argument in list(arguments)[:MAX_ARGUMENTS]:
        name = f"a wrong {argument}, then the one that the result names"
        policy = _corrected_call(last_calls, argument, prompts)
        tried = await subject.measure(name, policy, TRIED_EXAMPLES)
        expected = _share_without_task(base)
        if expected >= 1 or base.share_of_task(tried.mean, expected) < HIGH_SHARE / 2:
            continue
        measured = await subject.measure(name, policy)
        alone = await subject.measure(f"a wrong {argument}", _corrected_call(last_calls, argument, prompts, 1))
        is_paid = base.share_of_task(measured.mean, expected) >= HIGH_SHARE
        if is_paid and is_higher(measured, highest([base.idle, alone]), base.task_range):
            yield measured.finding(
                "answer-leak",
                f"'{name}' earns {measured.mean:.3f}, the wrong call alone {alone.mean:.3f}; the {best.name} earns "
                f"{best.mean:.3f}",
                Severity.HIGH,
                floor=alone.mean,
            )
            return


def _corrected_call(
    last_calls: Mapping[int, JsonObject], argument: str, prompts: Mapping[int, str], max_calls: int = 2
) -> Policy:
    """Return a policy that gives an argument a wrong value, then a value of another row that the call's result contains."""

    def policy(messages: Messages, state: State, rng: random.Random) -> Message | str:
        row, turn = int(state["example_id"]), len(bookkeeping(state).trajectory)
        call = last_calls.get(row)
        if call is None or turn >= max_calls:
            return ""
        own_arguments = arguments_of(call)
        values = [arguments_of(other_call).get(argument) for number, other_call in last_calls.items() if number != row]
        texts = list(dict.fromkeys(value for value in values if isinstance(value, str) and value.strip()))
        wrong = [value for value in texts if value != own_arguments.get(argument)]
        # A value that the prompt names is one that the tool knows.
        wrong.sort(key=lambda value: value not in prompts.get(row, ""))
        if len(wrong) < MIN_WRONG_VALUES:  # of two values, the one that is not wrong is right
            return ""
        value = wrong[0]
        if turn > 0:
            result = next((text_of(message) for message in reversed(messages) if message["role"] == "tool"), "")
            named = [text for text in texts if text != value and re.search(as_words(text), result)]
            if len(named) != 1:  # a list of values does not tell which one is right
                return ""
            value = named[0]
        function = {**call["function"], "arguments": json.dumps({**own_arguments, argument: value})}
        return AssistantMessage(None, tool_calls=[{**call, "id": f"call_{turn}", "function": function}])

    return policy


async def check_row_values(subject: Subject, base: Baseline) -> AsyncIterator[Finding]:
    """Yield a finding if a fixed sequence of calls with the values of another row's prompt earns a reward."""
    prompts = [last_of_prompt(row["prompt"]) for row in subject.rows]
    tools = [tool["function"]["name"] for tool in base.tools[:SEQUENCE_TOOLS]]
    if not tools or len(set(prompts)) < MIN_PAIRS:
        return
    sequences = [names for length in range(1, SEQUENCE_LENGTH + 1) for names in permutations(tools, length)]
    half = len(prompts) // 2
    tried: list[tuple[Measured, Policy]] = []
    for names in sequences:
        policy = _sequence(names, [*prompts[half:], *prompts[:half]])
        label = f"calls of {', '.join(names)} with another row's values"
        tried.append((await subject.measure(label, policy, TRIED_EXAMPLES), policy))
    first, policy = max(tried, key=lambda pair: pair[0].mean)
    expected = _share_without_task(base)
    if expected >= 1 or base.share_of_task(first.mean, expected) < HIGH_SHARE:
        return
    measured = await subject.measure(first.name, policy)
    is_paid = base.share_of_task(measured.mean, expected) >= HIGH_SHARE
    if is_paid and is_higher(measured, highest([base.idle, base.floor]), base.task_range):
        prompt, completion = evidence(max(measured.scored, key=reward_of))
        yield Finding(
            "blind-game",
            f"{measured.name} earn {measured.mean:.3f}, without looking at the row or at any result; the best policy or a full "
            f"reward is {base.full:.3f}",
            Severity.HIGH,
            rate=measured.interval,
            floor=base.idle.mean,
            prompt=prompt,
            completion=completion,
        )


async def check_listed_items(subject: Subject, base: Baseline) -> AsyncIterator[Finding]:
    """Yield a finding if calling a tool for every item that another tool lists earns a high reward, although not every item is
    needed: then the prompt asks for some of them, and nothing is checked about the others.

    For environments without a scripted policy that calls tools.
    """
    if calling_policy(base) is not None:
        return
    functions = [tool["function"] for tool in base.tools]
    listing = [function["name"] for function in functions if not _parameters(function)]
    acting = [function for function in functions if len(_parameters(function)) == 1]
    acting = [function for function in acting if not INFORMING.match(function["name"])]
    for lister, function in list(product(listing, acting))[:MAX_TOOLS]:
        name = f"a call of {lister}, then of {function['name']} with every item of its result"
        policy = _on_listed_items(lister, function)
        tried = await subject.measure(name, policy, TRIED_EXAMPLES)
        if base.share_of_task(tried.mean) < HIGH_SHARE / 2:
            continue
        measured = await subject.measure(name, policy)
        if base.share_of_task(measured.mean) < HIGH_SHARE or not is_higher(measured, base.idle, base.task_range):
            continue
        fewer = await subject.measure(f"{name} but one", _on_listed_items(lister, function, left_out=1))
        if _share_not_lower(fewer, measured) < HIGH_SHARE:  # all items are needed: to act on all of them is the task
            continue
        yield measured.finding(
            "blind-game",
            f"{name} earns {measured.mean:.3f}, without reading what the prompt asks for; the best policy or a full reward is "
            f"{base.full:.3f}",
            Severity.HIGH,
            floor=base.idle.mean,
        )
        return


def _share_not_lower(measured: Measured, reference: Measured) -> float:
    """Return the share of rows in which a policy earns at least what another one earns."""
    rewards = {record.example_key: reward_of(record) for record in reference.scored}
    pairs = [(reward_of(record), rewards.get(record.example_key, 0.0)) for record in measured.scored]
    return sum(reward >= reference_reward > 0 for reward, reference_reward in pairs) / max(1, len(pairs))


def _parameters(function: JsonObject) -> JsonObject:
    parameters = function.get("parameters") or {}
    return parameters.get("properties") or {}


def _on_listed_items(lister: str, function: JsonObject, left_out: int = 0) -> Policy:
    """Return a policy that calls a tool without arguments, then another one with the items of the result.

    Args:
        left_out: Number of items, from the middle of the list, with which it is not called.
    """
    [(argument, schema)] = _parameters(function).items()
    is_list = schema.get("type") == "array"
    is_number = (schema.get("items", {}) if is_list else schema).get("type") in ("integer", "number")

    def policy(messages: Messages, state: State, rng: random.Random) -> str | Message:
        turn = len(bookkeeping(state).trajectory)
        if turn == 0:
            return AssistantMessage(None, tool_calls=[_call(lister, {}, 0)])
        result = next((text_of(message) for message in reversed(messages) if message["role"] == "tool"), "")
        items = listed_items(result, is_number)[:MAX_LISTED_ITEMS]
        if turn > 1 or len(items) < MIN_LISTED_ITEMS:
            return ""
        middle = len(items) // 2
        items = items[:middle] + items[middle + left_out :]
        values = [items] if is_list else items
        calls = [_call(function["name"], {argument: value}, number) for number, value in enumerate(values)]
        return AssistantMessage(None, tool_calls=calls)

    return policy


def listed_items(result: str, are_numbers: bool) -> list[Any]:
    """Return what a tool's result lists: the first value of each entry of a JSON list, of each line, or between commas.

    Args:
        are_numbers: Whether the items are the first whole numbers of the entries.
    """
    try:
        content = json.loads(result)
    except ValueError:
        lines = result.splitlines()
        content = lines if len(lines) > 1 else re.split(r"[,;]\s", result)
    if isinstance(content, dict):
        content = next((value for value in content.values() if isinstance(value, list)), [])
    if not isinstance(content, list):
        return []
    items: dict[Any, None] = {}
    for entry in content:
        # The first key is usually "id", "name" or "key".
        text = str(next(iter(entry.values()), "") if isinstance(entry, dict) else entry)
        value = re.search(r"\d{1,40}" if are_numbers else r"[\w.@-]*\w", text)
        if value:
            items[int(value[0]) if are_numbers else value[0]] = None
    return list(items)


def _call(name: str, arguments: JsonObject, number: int) -> JsonObject:
    return {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


def _sequence(names: Sequence[str], prompts: Sequence[str]) -> Policy:
    """Return a policy that calls tools in a fixed order with values of the texts in `prompts`, one text per row."""

    def policy(messages: Messages, state: State, rng: random.Random) -> str | Message:
        turn = len(bookkeeping(state).trajectory)
        if turn >= max(SEQUENCE_TURNS, len(names)):
            return ""
        by_name = {tool["function"]["name"]: tool for tool in bookkeeping(state).tools or []}
        tool = by_name.get(names[turn % len(names)])
        if tool is None:
            return ""
        call = with_values(tool, f"call_{turn}", prompts[int(state["example_id"]) % len(prompts)])
        return AssistantMessage(None, tool_calls=[call])

    return policy
