"""Checks of tools: calls that are paid, transcripts that are searched, and error messages with the answer."""

from __future__ import annotations

import json
import sqlite3
from typing import Any

import pytest

import rove as vf
from rove.audit.game_checks import check_blind_games, check_moves_of_other_rows
from rove.audit.tool_checks import (
    _descriptions,
    _typed,
    check_all_items,
    check_changed_data,
    check_error_leaks,
    check_paid_calls,
    check_values_of_errors,
    check_wrong_answers_after_calls,
    values_like_example,
)
from rove.core.findings import Severity
from tests.audit.test_checks import findings, text

PRICES = {f"item{number}": f"{100 + 7 * number}.50" for number in range(30)}


def price(item: str) -> str:
    """Return the price of an item.

    Args:
        item: Name of the item.
    """
    if item not in PRICES:
        raise ValueError(f"unknown item {item}")
    return PRICES[item]


def talkative_price(item: str) -> str:
    """Return the price of an item.

    Args:
        item: Name of the item.
    """
    if item not in PRICES:
        raise ValueError(f"unknown item {item}; expected item5 or so, which costs {PRICES.get(item[:-1])}")
    return PRICES[item]


def clerk(messages: Any, state: Any, rng: Any) -> Any:
    if state["trajectory"]:
        return f"EUR {state['answer']}"
    name = state["info"]["tool"]
    function = {"name": name, "arguments": json.dumps({"item": state["info"]["item"]})}
    return vf.AssistantMessage(None, tool_calls=[{"id": "call", "type": "function", "function": function}])


def shop(*rewards: Any, tool: Any = price) -> vf.Environment:
    rows: list[dict[str, Any]] = []
    for item, answer in PRICES.items():
        info = {"item": item, "tool": tool.__name__}
        rows.append({"question": f"What is the price of {item}?", "answer": answer, "info": info})
    return vf.ToolEnv(
        tools=[tool], dataset=rows, rubric=vf.Rubric(list(rewards)), policies={"clerk": clerk}, max_turns=8
    )


def exact(completion: Any, answer: str) -> float:
    return float(text(completion) == f"EUR {answer}")


def anywhere(completion: Any, answer: str) -> float:
    return float(any(answer in str(message["content"]) for message in completion))


def num_calls(completion: Any) -> float:
    return 0.3 * sum(message["role"] == "tool" for message in completion)


@pytest.mark.parametrize(("rewards", "is_found"), [((exact,), False), ((exact, num_calls), True)])
async def test_paid_calls(rewards: Any, is_found: bool) -> None:
    assert [finding.severity for finding in await findings(check_paid_calls, shop(*rewards))] == [
        Severity.HIGH
    ] * is_found


@pytest.mark.parametrize(("reward", "is_found"), [(exact, False), (anywhere, True)])
async def test_wrong_answers_after_the_calls(reward: Any, is_found: bool) -> None:
    reported = await findings(check_wrong_answers_after_calls, shop(reward))
    assert [finding.id for finding in reported] == ["paid-calls"] * is_found


@pytest.mark.parametrize(("tool", "is_found"), [(price, False), (talkative_price, True)])
async def test_error_messages_with_the_answer(tool: Any, is_found: bool) -> None:
    reported = await findings(check_error_leaks, shop(exact, tool=tool))
    assert [finding.id for finding in reported] == ["answer-leak"] * is_found


class Lamp(vf.StatefulToolEnv):
    """A lamp that two calls without arguments switch on, or only the code of the row."""

    def __init__(self, needs_code: bool):
        def is_on(state: Any) -> float:
            return float(state["on"])

        def electrician(messages: Any, state: Any, rng: Any) -> Any:
            turn = len(state["trajectory"])
            if turn > 1:
                return "done"
            function = {"name": ("unlock", "switch")[turn], "arguments": json.dumps({"code": state["info"]["code"]})}
            return vf.AssistantMessage(None, tool_calls=[{"id": "call", "type": "function", "function": function}])

        rows = [
            {"question": f"Lamp {number}: code {number}", "info": {"code": str(number)}} for number in range(100, 130)
        ]
        policies = {"electrician": electrician, "lazy": lambda m, s, rng: "done"}
        super().__init__(dataset=rows, rubric=vf.Rubric([is_on]), policies=policies, max_turns=5)
        self.needs_code = needs_code
        self.add_tool(self.unlock, args_to_skip=["state"])
        self.add_tool(self.switch, args_to_skip=["state"])

    async def setup_state(self, state: Any, **kwargs: Any) -> None:
        state.update(unlocked=False, on=False)

    def update_tool_args(self, tool_name: str, tool_args: Any, messages: Any, state: Any, **kwargs: Any) -> Any:
        return {**tool_args, "state": state}

    def unlock(self, code: str, state: Any) -> str:
        """Unlock the lamp with its code."""
        state["unlocked"] = not self.needs_code or code == state["info"]["code"]
        return "unlocked" if state["unlocked"] else "wrong code"

    def switch(self, code: str, state: Any) -> str:
        """Switch the lamp on."""
        state["on"] = state["unlocked"]
        return "on" if state["on"] else "locked"


@pytest.mark.parametrize("needs_code", [True, False])
async def test_a_goal_that_two_blind_calls_meet(needs_code: bool) -> None:
    for check in (check_blind_games, check_moves_of_other_rows):
        reported = await findings(check, Lamp(needs_code))
        assert [finding.severity for finding in reported] == [Severity.HIGH] * (not needs_code)


@pytest.mark.parametrize("is_found", [False, True])
async def test_a_grader_that_reads_data_which_the_model_can_delete(is_found: bool) -> None:
    class Store(vf.StatefulToolEnv):
        def __init__(self) -> None:
            rows = [
                {"question": f"How many orders are there? {count}", "info": {"count": count}} for count in range(2, 32)
            ]
            policies = {"analyst": analyst, "guesser": lambda messages, state, rng: "1"}
            super().__init__(dataset=rows, rubric=vf.Rubric([counted]), policies=policies, max_turns=4)
            self.add_tool(self.run_sql, args_to_skip=["database"])

        async def setup_state(self, state: Any, **kwargs: Any) -> None:
            database = sqlite3.connect(":memory:", check_same_thread=False)
            database.execute("CREATE TABLE orders (id)")
            database.executemany(
                "INSERT INTO orders VALUES (?)", [(number,) for number in range(state["info"]["count"])]
            )
            state["database"] = database

        def update_tool_args(self, tool_name: str, tool_args: Any, messages: Any, state: Any, **kwargs: Any) -> Any:
            return {**tool_args, "database": state["database"]}

        def run_sql(self, query: str, database: Any) -> str:
            """Run a query.

            Args:
                query: SQL text.
            """
            return str(database.execute(query).fetchall())

    def analyst(messages: Any, state: Any, rng: Any) -> Any:
        if not state["trajectory"]:
            return vf.tool_call("run_sql", query="SELECT count(*) FROM orders")
        return text([messages[-1]]).strip("[](),")

    def counted(completion: Any, state: Any, info: Any) -> float:
        [count] = state["database"].execute("SELECT count(*) FROM orders").fetchone()
        return float(text(completion) == str(count if is_found else info["count"]))

    reported_findings = await findings(check_changed_data, Store())
    assert [finding.severity for finding in reported_findings] == [Severity.HIGH] * is_found


@pytest.mark.parametrize("is_found", [False, True])
async def test_a_grader_that_reads_a_list_from_which_the_model_can_delete_everything(is_found: bool) -> None:
    class Ledger(vf.StatefulToolEnv):
        def __init__(self) -> None:
            rows = [
                {"question": f"Delete the zeros of ledger {number}.", "info": {"last": number}}
                for number in range(1, 31)
            ]
            super().__init__(dataset=rows, rubric=vf.Rubric([correct]), policies={"clerk": clerk}, max_turns=8)
            self.add_tool(self.entries, args_to_skip=["state"])
            self.add_tool(self.delete, args_to_skip=["state"])

        async def setup_state(self, state: Any, **kwargs: Any) -> None:
            state["ledger"] = {"E01": 0, "E02": 7, "E03": state["info"]["last"]}

        def update_tool_args(self, tool_name: str, tool_args: Any, messages: Any, state: Any, **kwargs: Any) -> Any:
            return {**tool_args, "state": state}

        def entries(self, state: Any) -> str:
            """List the entries."""
            return ", ".join(f"{entry}: {amount}" for entry, amount in state["ledger"].items())

        def delete(self, entry: str, state: Any) -> str:
            """Delete an entry.

            Args:
                entry: Name of the entry.
            """
            state["ledger"].pop(entry, None)
            return "deleted"

    def clerk(messages: Any, state: Any, rng: Any) -> Any:
        calls = [vf.tool_call("entries"), vf.tool_call("delete", entry="E01")]
        turn = len(state["trajectory"])
        return calls[turn] if turn < len(calls) else str(7 + state["info"]["last"])

    def correct(completion: Any, state: Any, info: Any) -> float:
        total = sum(state["ledger"].values()) if is_found else 7 + info["last"]
        return float(0 not in state["ledger"].values() and text(completion) == str(total))

    reported_findings = await findings(check_all_items, Ledger())
    assert [finding.severity for finding in reported_findings] == [Severity.HIGH] * is_found


@pytest.mark.parametrize("stated", ["", "expected", "difference"])
async def test_a_tool_whose_error_states_the_value_that_it_expects(stated: str) -> None:
    class Archive(vf.StatefulToolEnv):
        def __init__(self) -> None:
            rows = [{"question": f"What is {count} times 7?", "info": {"total": 7 * count}} for count in range(10, 40)]
            policies = {"clerk": clerk, "guesser": lambda messages, state, rng: vf.tool_call("submit", total=1)}
            super().__init__(dataset=rows, rubric=vf.Rubric([right]), policies=policies, max_turns=4)
            self.add_tool(self.submit, args_to_skip=["state"])

        def update_tool_args(self, tool_name: str, tool_args: Any, messages: Any, state: Any, **kwargs: Any) -> Any:
            return {**tool_args, "state": state}

        def submit(self, total: int, state: Any) -> str:
            """Submit the total.

            Args:
                total: The total.
            """
            expected = state["info"]["total"]
            state["right"] = total == expected
            if not state["right"]:
                hints = {"expected": f", expected {expected}", "difference": f"; the difference is {expected - total}"}
                raise ValueError(f"the total is not {total}" + hints.get(stated, ""))
            return "Thank you."

    def clerk(messages: Any, state: Any, rng: Any) -> Any:
        return vf.tool_call("submit", total=state["info"]["total"])

    def right(state: Any) -> float:
        return float(state.get("right", False))

    reported_findings = await findings(check_values_of_errors, Archive())
    assert [finding.severity for finding in reported_findings] == [Severity.HIGH] * bool(stated)


async def test_a_call_without_numbers_has_no_neutral_values() -> None:
    class Choice(vf.StatefulToolEnv):
        def __init__(self) -> None:
            rows = [
                {"question": f"Who has more? Ada{n} has 31 coins, Ben has 12.", "info": {"name": f"Ada{n}"}}
                for n in range(30)
            ]
            policies = {"clerk": lambda messages, state, rng: vf.tool_call("choose", name=state["info"]["name"])}
            super().__init__(dataset=rows, rubric=vf.Rubric([right]), policies=policies, max_turns=3)
            self.add_tool(self.choose, args_to_skip=["state"])

        def update_tool_args(self, tool_name: str, tool_args: Any, messages: Any, state: Any, **kwargs: Any) -> Any:
            return {**tool_args, "state": state}

        def choose(self, name: str, state: Any) -> str:
            """Choose a person."""
            state.setdefault("chosen", name)
            return "Thank you."

    def right(state: Any, info: Any) -> float:
        return float(state.get("chosen") == info["name"])

    assert await findings(check_values_of_errors, Choice()) == []


@pytest.mark.parametrize(("is_stated", "price"), [(False, 17), (True, 17), (True, 17.25)])
async def test_an_error_that_states_the_right_amount_without_policies_and_answers(
    is_stated: bool, price: float
) -> None:
    class Till(vf.StatefulToolEnv):
        def __init__(self) -> None:
            rows = [
                {"question": f"Pay order R-{number}.", "info": {"due": price * number}} for number in range(101, 131, 2)
            ]
            rubric = vf.Rubric([lambda state: float(state["paid"])])
            super().__init__(dataset=rows, rubric=rubric, max_turns=8)
            self.add_tool(self.pay, args_to_skip=["state"])

        async def setup_state(self, state: Any, **kwargs: Any) -> None:
            state["paid"] = False

        def update_tool_args(self, tool_name: str, tool_args: Any, messages: Any, state: Any, **kwargs: Any) -> Any:
            return {**tool_args, "state": state}

        def pay(self, order: str, amount: float, state: Any) -> str:
            """Pay an order.

            Args:
                order: Number of the order.
                amount: Amount.
            """
            due = state["info"]["due"]
            if not state["prompt"][-1].content.endswith(f"{order}."):
                raise ValueError("no such order")
            if amount != due:
                raise ValueError(f"{amount} booked, {due} due" if is_stated else "a wrong amount")
            state["paid"] = True
            return "paid"

    reported_findings = await findings(check_values_of_errors, Till())
    assert [finding.severity for finding in reported_findings] == [Severity.HIGH] * is_stated


@pytest.mark.parametrize(
    ("description", "prompt", "values"),
    [
        ('Day and month, such as "30 June".', "On 4 May or 17 August?", ["4 May", "17 August"]),
        ('Number of the order, such as "R500".', "Refund order R731 of R12, not S.", ["R731", "R12"]),
        ("The user, for example `user_12`", "The user_7 and the_9 wait.", ["user_7"]),
        ("For example, AB12-X", "Take CD3-Y.", ["CD3-Y"]),
        ('Город и день, like "Москва 12"', "Поезд в Омск 7 и Тверь 30", ["Омск 7", "Тверь 30"]),
        ('A city, such as "paris"', "any word is like it", []),
        ("Number of the order.", "R500", []),
        ('Hour, e.g. "21:00"', "a" * 200_000 + " 10:30", []),  # too far away
    ],
)
def test_values_of_a_prompt_that_look_like_an_example(description: str, prompt: str, values: list[str]) -> None:
    extracted = values_like_example(description, prompt)
    assert extracted[: len(values)] == values and len(extracted) - len(values) <= (description.endswith("`user_12`"))


@pytest.mark.parametrize(
    "parameters",
    [None, {}, {"properties": None}, {"properties": {"order": True}}, {"properties": {"order": {"description": 3}}}],
)
def test_odd_schemas_of_tools_have_no_descriptions(parameters: Any) -> None:
    assert _descriptions({"function": {"name": "pay", "parameters": parameters}}) == {}


@pytest.mark.parametrize(
    ("text", "value", "typed"),
    [
        ("17.00", 5, 17),
        ("17.25", 5, 17.25),
        ("17", 5.0, 17),
        ("12345678901234567891", 5, 12345678901234567891),
        ("'R5'", "R1", "R5"),
        ("x", 5, 5),
        ("1", True, "1"),
    ],
)
def test_a_value_of_a_message_has_the_type_of_the_argument(text: str, value: Any, typed: Any) -> None:
    assert repr(_typed(text, value)) == repr(typed)
