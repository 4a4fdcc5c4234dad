"""Moves of a good policy, replayed without looking at what the environment shows: on their own row, changed, or on other rows."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rove.audit.subject import Measured, Policy
from rove.core.messages import AssistantMessage, Message, Messages, text_of
from rove.core.plain import JsonObject
from rove.core.records import RolloutRecord
from rove.core.state import State, bookkeeping

Moves = list[Message]
"""The model's messages of a rollout, in their order."""


def moves_by_row(measured: Measured) -> dict[int, Moves]:
    """Return the moves of a policy's rollouts by the position of their row."""
    by_row: dict[int, Moves] = {}
    # A row may have several rollouts; a scripted policy that draws at random moves differently in each, so the first one counts.
    for record in measured.scored:
        by_row.setdefault(record.example_id, moves_of(record))
    return by_row


def moves_of(record: RolloutRecord) -> Moves:
    """Return the moves of a rollout."""
    moves: Moves = []
    for message in record.completion:
        if message["role"] == "assistant":
            moves.append(_move(text_of(message), calls_of(message)))
    return moves


def calls_of(message: Mapping[str, Any]) -> list[JsonObject]:
    """Return the tool calls of a message; none if it has no calls."""
    return list(message.get("tool_calls") or [])


def arguments_of(call: JsonObject) -> JsonObject:
    """Return the arguments of a call; none if they are neither an object nor its JSON."""
    arguments = call["function"].get("arguments")
    try:
        arguments = arguments if isinstance(arguments, dict) else json.loads(arguments or "{}")
    except (TypeError, ValueError):
        return {}
    return arguments if isinstance(arguments, dict) else {}


def _move(text: str, calls: Sequence[JsonObject] = ()) -> Message:
    return AssistantMessage(text or None, tool_calls=list(calls)) if calls else AssistantMessage(text)


def replayed(choose: Callable[[int], Moves], ending: Callable[[State], str] = lambda state: "") -> Policy:
    """Return a policy that replays the moves that `choose` returns for a row, then ends with a reply.

    Args:
        choose: Position of a row → moves.
    """

    def policy(messages: Messages, state: State, rng: random.Random) -> Message | str:
        turn = len(bookkeeping(state).trajectory)
        moves = choose(int(state["example_id"]))
        return with_new_ids(moves[turn], turn) if turn < len(moves) else ending(state)

    return policy


def with_new_ids(move: Message, turn: int) -> Message:
    """Return a move whose calls have ids that are new in this turn, since a rollout may repeat a call."""
    calls = calls_of(move)
    if not calls:
        return move
    return AssistantMessage(
        move.get("content"), tool_calls=[{**call, "id": f"call_{turn}_{number}"} for number, call in enumerate(calls)]
    )


def of_other_row(moves: Mapping[int, Moves]) -> Callable[[int], Moves]:
    """Return a function that chooses the moves of a row in the other half of the rows."""
    rows = sorted(moves)

    def choose(row: int) -> Moves:
        position = rows.index(row) if row in moves else 0
        return moves[rows[(position + len(rows) // 2) % len(rows)]]

    return choose


def of_other_rows(moves: Mapping[int, Moves], limit: int) -> Callable[[int], Moves]:
    """Return a function that chooses the moves of other rows one after the other, at most `limit` of them."""
    rows = sorted(moves)

    def choose(row: int) -> Moves:
        position = rows.index(row) if row in moves else 0
        chosen: Moves = []
        for distance in range(1, len(rows)):
            chosen += moves[rows[(position + distance) % len(rows)]]
            if len(chosen) >= limit:
                break
        return chosen[:limit]

    return choose


def only_calls(moves: Mapping[int, Moves]) -> Callable[[int], Moves]:
    """Return a function that chooses a row's moves up to its last call of a tool, without the reply at the end."""
    return lambda row: [move for move in moves.get(row, []) if calls_of(move)]


def without_calls(moves: Mapping[int, Moves], *tools: str, limit: int | None = None) -> Callable[[int], Moves]:
    """Return a function that chooses a row's moves without the calls of some tools.

    Args:
        tools: Names of the tools; all if empty.
        limit: Number of calls that are left out, from the first one; None leaves out all.
    """

    def choose(row: int) -> Moves:
        chosen: Moves = []
        num_left_out = 0
        for move in moves.get(row, []):
            remaining_calls: list[JsonObject] = []
            for call in calls_of(move):
                is_named = not tools or call["function"]["name"] in tools
                if is_named and (limit is None or num_left_out < limit):
                    num_left_out += 1
                else:
                    remaining_calls.append(call)
            # A turn that had only such calls is left out, since a reply without calls may end the rollout.
            if remaining_calls or not calls_of(move):
                chosen.append(
                    move if len(remaining_calls) == len(calls_of(move)) else _move(text_of(move), remaining_calls)
                )
        return chosen

    return choose


def with_calls_reversed(moves: Mapping[int, Moves]) -> Callable[[int], Moves]:
    """Return a function that chooses a row's moves with its calls in the reverse order."""

    def choose(row: int) -> Moves:
        row_moves = moves.get(row, [])
        calls: list[JsonObject] = []
        for move in row_moves:
            calls += calls_of(move)
        # The replies stay at the end: a reply without calls would end the rollout before the calls after it.
        replies = [move for move in row_moves if not calls_of(move)]
        return [*(_move("", [call]) for call in reversed(calls)), *replies]

    return choose


def values_of_other_rows(values: Mapping[int, object]) -> dict[int, object]:
    """Return the value of another row for each row.

    Args:
        values: Position of a row → its value.
    """
    rows = sorted(values)
    new_values: dict[int, object] = {}
    for position, row in enumerate(rows):
        start = position + len(rows) // 2
        # Rows often share a value; the unchanged value would leave the calls right.
        candidates = [values[rows[(start + step) % len(rows)]] for step in range(len(rows))]
        new_values[row] = next((value for value in candidates if value != values[row]), values[row])
    return new_values


def with_argument(
    moves: Mapping[int, Moves],
    tool: str,
    argument: str,
    values: Mapping[int, object],
    new_values: Mapping[int, object],
) -> Callable[[int], Moves]:
    """Return a function that chooses a row's moves with a new value of an argument in all calls of a tool.

    Args:
        values: Position of a row → the value to be replaced.
        new_values: Position of the same row → the value that replaces it.
    """

    def choose(row: int) -> Moves:
        if row not in values:
            return moves.get(row, [])

        def changed(call: JsonObject) -> JsonObject:
            arguments = arguments_of(call)
            if call["function"]["name"] != tool or arguments.get(argument) != values[row]:
                return call
            function = {**call["function"], "arguments": json.dumps({**arguments, argument: new_values[row]})}
            return {**call, "function": function}

        chosen: Moves = []
        for move in moves.get(row, []):
            calls = calls_of(move)
            chosen.append(_move(text_of(move), [changed(call) for call in calls]) if calls else move)
        return chosen

    return choose


def repeated_call(moves: Mapping[int, Moves], tool: str, turns: int, per_turn: int = 1) -> Callable[[int], Moves]:
    """Return a function that chooses the first call of a tool, with the arguments for the row, in each of some turns."""

    def choose(row: int) -> Moves:
        for move in moves.get(row, []):
            for call in calls_of(move):
                if call["function"]["name"] == tool:
                    return [_move("", [call] * per_turn)] * turns
        return []

    return choose


def with_repeated_moves(moves: Mapping[int, Moves], copies: int) -> Callable[[int], Moves]:
    """Return a function that chooses a row's moves with each one repeated in the turns after it."""
    return lambda row: [move for move in moves.get(row, []) for _ in range(copies)]


def with_repeated_calls(moves: Mapping[int, Moves], copies: int) -> Callable[[int], Moves]:
    """Return a function that chooses a row's moves with each call repeated in the turns after it."""

    def choose(row: int) -> Moves:
        chosen: Moves = []
        for move in moves.get(row, []):
            chosen += [move] * (copies if calls_of(move) else 1)
        return chosen

    return choose


def tools_called(moves: Mapping[int, Moves]) -> list[str]:
    """Return the names of the tools that a policy calls, in the order of their first use."""
    names: dict[str, None] = {}
    for row_moves in moves.values():
        for move in row_moves:
            names |= dict.fromkeys(call["function"]["name"] for call in calls_of(move))
    return list(names)


def changed_arguments(call: JsonObject, change: Callable[[Any], Any]) -> JsonObject:
    """Return a call with every argument changed."""
    values = {name: change(value) for name, value in arguments_of(call).items()}
    return {**call, "function": {**call["function"], "arguments": json.dumps(values)}}
