"""Calls that the task needs: left out, in another order, or with values of another row."""

from __future__ import annotations

import json
from typing import Any

import pytest

import rove as vf
from rove.audit.call_checks import (
    check_listed_items,
    check_many_calls,
    check_needed_calls,
    check_row_values,
    check_values_of_results,
    has_policy_with_calls,
    listed_items,
)
from rove.core.findings import Severity
from tests.audit.test_checks import findings, prepared


class Refunds(vf.StatefulToolEnv):
    """A shop that verifies a customer, and then refunds an order; `defect` names the missing check."""

    def __init__(
        self,
        defect: str = "",
        policies: Any = None,
        prompt: str = "Always verify the customer before a refund.",
        names_values: bool = True,
    ):
        def is_refunded(state: Any) -> float:
            return float(state["refunded"] and (state["verified"] or defect == "verify"))

        rows: list[dict[str, Any]] = []
        for number in range(30):
            customer, order, amount = f"C{100 + number}", f"R{500 + 7 * number}", 20 + 3 * number
            question = f"Customer {customer} wants back {amount} for order {order}."
            if not names_values:
                question = f"Case {number}."
            info = {"customer": customer, "order": order, "amount": amount}
            rows.append({"question": question, "info": info})
        super().__init__(
            dataset=rows, system_prompt=prompt, rubric=vf.Rubric([is_refunded]), policies=policies or {}, max_turns=8
        )
        self.defect = defect
        self.orders = {row["info"]["order"] for row in rows}
        for tool in (self.look, self.verify, self.refund):
            self.add_tool(tool, args_to_skip=["state"])

    async def setup_state(self, state: Any, **kwargs: Any) -> None:
        state.update(verified=False, refunded=False)

    def update_tool_args(self, tool_name: str, tool_args: Any, messages: Any, state: Any, **kwargs: Any) -> Any:
        return {**tool_args, "state": state}

    def look(self, order: str, state: Any) -> str:
        """Show an order."""
        return f"{order}: paid"

    def verify(self, customer: str, state: Any) -> str:
        """Verify a customer."""
        state["verified"] = customer == state["info"]["customer"]
        return "verified" if state["verified"] else "unknown customer"

    def refund(self, order: str, amount: int, state: Any) -> str:
        """Refund an order."""
        info = state["info"]
        if not state["verified"] and self.defect not in ("verify", "order", "any order"):
            return "not verified"
        is_own = order == info["order"] if self.defect != "any order" else order in self.orders
        is_enough = self.defect == "at least" and amount >= info["amount"]
        is_paid = amount == info["amount"] or is_enough or self.defect in ("amount", "any order")
        state["refunded"] = is_own and is_paid
        if self.defect == "any order":
            state["verified"] = True
        return "refunded" if state["refunded"] else "refused"


def agent(*names: str) -> Any:
    """Return a policy that calls tools with the values of the row."""

    def policy(messages: Any, state: Any, rng: Any) -> Any:
        turn = len(state["trajectory"])
        if turn >= len(names):
            return "done"
        info = state["info"]
        order = {"order": info["order"]}
        arguments = {
            "look": order,
            "verify": {"customer": info["customer"]},
            "refund": {**order, "amount": info["amount"]},
        }
        function = {"name": names[turn], "arguments": json.dumps(arguments[names[turn]])}
        return vf.AssistantMessage(None, tool_calls=[{"id": "call", "type": "function", "function": function}])

    return policy


@pytest.mark.parametrize(
    ("defect", "names", "severities", "text"),
    [
        ("", ("verify", "refund"), [], ""),
        ("", ("look", "verify", "refund"), [Severity.LOW], "without a call of look"),  # it only informs
        ("verify", ("verify", "refund"), [Severity.MEDIUM], "without a call of verify"),
        ("order", ("verify", "refund"), [Severity.MEDIUM], "in the other order"),
        ("amount", ("verify", "refund"), [Severity.HIGH], "another row's amount"),
        ("at least", ("verify", "refund"), [Severity.HIGH], "as amount in the calls of refund"),
    ],
)
async def test_calls_that_the_task_needs(
    defect: str, names: tuple[str, ...], severities: list[Severity], text: str
) -> None:
    env = Refunds(defect, {"agent": agent(*names), "lazy": lambda messages, state, rng: "done"})
    reported = await findings(check_needed_calls, env)
    assert [finding.severity for finding in reported] == severities
    assert all(text in finding.text for finding in reported)


async def test_a_call_that_only_informs_although_a_sentence_asks_for_it() -> None:
    env = Refunds("", {"agent": agent("look", "verify", "refund")}, prompt="Always look at the order first.")
    assert [finding.severity for finding in await findings(check_needed_calls, env)] == [Severity.LOW]


async def test_a_call_that_no_sentence_asks_for() -> None:
    env = Refunds("verify", {"agent": agent("verify", "refund")}, prompt="You are a clerk.")
    assert [finding.severity for finding in await findings(check_needed_calls, env)] == [Severity.LOW]


async def test_a_number_that_need_not_be_exact() -> None:
    env = Refunds("at least", {"agent": agent("verify", "refund")}, prompt="Verify the customer. Refund at least that.")
    assert not any("as amount" in finding.text for finding in await findings(check_needed_calls, env))


async def test_the_check_needs_a_policy_that_does_the_task() -> None:
    for policies, expected in (({}, False), ({"agent": agent("verify", "refund")}, True)):
        _, base = await prepared(Refunds(policies=policies))
        assert has_policy_with_calls(base) == expected


async def test_a_call_that_finds_the_values_of_the_others_is_needed() -> None:
    env = Refunds("", {"agent": agent("look", "verify", "refund")}, names_values=False)
    assert await findings(check_needed_calls, env) == []


async def test_each_argument_has_its_changes() -> None:
    """Arguments with numbers have two changes; the last argument must not be left out."""
    row = {"a": 1, "b": 20, "c": 300, "d": 4000, "e": 50000}
    calls = {n: {name: value + n for name, value in row.items()} for n in range(30)}

    class Booking(vf.ToolEnv):
        def book(self, a: int, b: int, c: int, d: int, e: int) -> str:
            """Book a place."""
            return "booked"

    def policy(messages: Any, state: Any, rng: Any) -> Any:
        return "done" if state["trajectory"] else vf.tool_call("book", **calls[state["info"]["number"]])

    def is_booked(completion: Any, info: Any) -> float:
        tool_calls = [call for message in completion for call in message.get("tool_calls") or []]
        arguments = [json.loads(call["function"]["arguments"]) for call in tool_calls]
        exact = {name: value for name, value in calls[info["number"]].items() if name != "e"}
        return float(bool(arguments) and all(arguments[0].get(name) == value for name, value in exact.items()))

    rows = [{"question": f"Book {list(calls[n].values())}.", "info": {"number": n}} for n in range(30)]
    env = Booking(dataset=rows, rubric=vf.Rubric([is_booked]), policies={"agent": policy}, tools=[])
    env.add_tool(env.book)
    [finding] = await findings(check_needed_calls, env)
    assert "another row's e in the calls of book" in finding.text


async def test_calls_whose_values_come_from_earlier_calls_have_an_order() -> None:
    env = Refunds("order", {"agent": agent("verify", "refund")}, names_values=False)
    reported = await findings(check_needed_calls, env)
    assert not any("in the other order" in finding.text for finding in reported)


@pytest.mark.parametrize(("defect", "is_found"), [("", False), ("any order", True)])
async def test_calls_with_values_of_another_row(defect: str, is_found: bool) -> None:
    reported = await findings(check_row_values, Refunds(defect))
    assert [(finding.id, finding.severity) for finding in reported] == [("blind-game", Severity.HIGH)] * is_found


class Bookings(vf.StatefulToolEnv):
    """A calendar in which a meeting is booked at the only free day, which a tool shows.

    Args:
        counts: The bookings that count: "only" one, "any", or the "last".
        names_day: Whether a booking of another day names the free one.
        num_days: Number of days.
    """

    def __init__(self, counts: str, names_day: bool = False, num_days: int = 12):
        self.names_day = names_day

        def is_booked(state: Any) -> float:
            booked, day = state["booked"], state["answer"]
            return float({"only": booked == [day], "any": day in booked, "last": booked[-1:] == [day]}[counts])

        days = [f"day {number}" for number in range(num_days)]
        rows = [{"question": f"Book room {n}.", "answer": days[n * 5 % num_days]} for n in range(36)]
        super().__init__(
            dataset=rows, rubric=vf.Rubric([is_booked]), policies={"booker": booker, "guesser": guesser}, max_turns=4
        )
        for tool in (self.show_free, self.book):
            self.add_tool(tool, args_to_skip=["state"])

    async def setup_state(self, state: Any, **kwargs: Any) -> None:
        state["booked"] = []

    def update_tool_args(self, tool_name: str, tool_args: Any, messages: Any, state: Any, **kwargs: Any) -> Any:
        return {**tool_args, "state": state}

    def show_free(self, state: Any) -> str:
        """Show the free day."""
        return state["answer"]

    def book(self, day: str, state: Any) -> str:
        """Book a day."""
        state["booked"].append(day)
        return (
            "booked" if day == state["answer"] or not self.names_day else f"booked, although {state['answer']} is free"
        )


def booker(messages: Any, state: Any, rng: Any) -> Any:
    turn = len(state["trajectory"])
    if turn == 0:
        return vf.tool_call("show_free")
    return vf.tool_call("book", day=state["answer"]) if turn == 1 else "done"


def guesser(messages: Any, state: Any, rng: Any) -> Any:
    return vf.tool_call("book", day="day 3") if not state["trajectory"] else "done"


@pytest.mark.parametrize(("counts", "is_found"), [("only", False), ("any", True)])
async def test_calls_with_the_values_of_all_other_rows(counts: str, is_found: bool) -> None:
    reported = await findings(check_many_calls, Bookings(counts))
    assert [finding.severity for finding in reported] == [Severity.HIGH] * is_found


@pytest.mark.parametrize(
    ("counts", "names_day", "num_days", "is_found"),
    [("last", True, 12, True), ("last", False, 12, False), ("only", True, 12, False), ("last", True, 2, False)],
)
async def test_a_result_of_a_wrong_call_that_names_the_right_value(
    counts: str, names_day: bool, num_days: int, is_found: bool
) -> None:
    """Of two values, the one that is not wrong is right, independent of the result of the call."""
    reported = await findings(check_values_of_results, Bookings(counts, names_day, num_days))
    assert [finding.id for finding in reported] == ["answer-leak"] * is_found


class Inbox(vf.StatefulToolEnv):
    """Messages of which some have to be archived.

    Args:
        counts_others: Whether the others must stay.
        wants_all: Whether all have to be archived.
    """

    def __init__(self, counts_others: bool, wants_all: bool = False):
        def is_clean(state: Any) -> float:
            targets = set(state["info"]["wanted"])
            return float(targets == state["archived"] if counts_others else targets <= state["archived"])

        rows: list[dict[str, Any]] = []
        for n in range(30):
            targets = list(range(1, 10)) if wants_all else [1 + n % 5, 6 + n % 3]
            rows.append({"question": f"Archive what came on day {n}.", "info": {"wanted": targets}})
        super().__init__(dataset=rows, rubric=vf.Rubric([is_clean]), max_turns=4)
        for tool in (self.show, self.archive):
            self.add_tool(tool, args_to_skip=["state"])

    async def setup_state(self, state: Any, **kwargs: Any) -> None:
        state["archived"] = set()

    def update_tool_args(self, tool_name: str, tool_args: Any, messages: Any, state: Any, **kwargs: Any) -> Any:
        return {**tool_args, "state": state}

    def show(self, state: Any) -> str:
        """Show the messages."""
        return "\n".join(f"{number} | day {number % 7} | Hello" for number in range(1, 10))

    def archive(self, ids: list[int], state: Any) -> str:
        """Archive messages."""
        if not set(ids) <= set(range(1, 10)):
            raise ValueError("no such message")
        state["archived"].update(ids)
        return "done"


@pytest.mark.parametrize(
    ("counts_others", "wants_all", "is_found"), [(False, False, True), (True, False, False), (False, True, False)]
)
async def test_calls_with_every_item_of_a_result(counts_others: bool, wants_all: bool, is_found: bool) -> None:
    reported = await findings(check_listed_items, Inbox(counts_others, wants_all))
    assert [(finding.id, finding.severity) for finding in reported] == [("blind-game", Severity.HIGH)] * is_found


def test_items_of_a_result() -> None:
    assert listed_items("1 | May\n- message 3\nnone\n3", True) == [1, 3]
    assert listed_items("a-1: x\n* b.2\n\n--", False) == ["a-1", "b.2"]
    assert listed_items('[{"id": 7, "day": 2}, {"id": 9}]', True) == [7, 9]
    assert listed_items('{"total": 2, "names": ["Ida", "Tom"]}', False) == ["Ida", "Tom"]
    assert listed_items("Arlow, Bexley, Cole", False) == ["Arlow", "Bexley", "Cole"]
    assert listed_items("true", False) == []


async def test_an_order_of_calls_that_are_not_needed() -> None:
    policies = {"agent": agent("look", "verify", "refund"), "lazy": lambda messages, state, rng: "done"}
    env = Refunds("verify", policies, prompt="First verify the customer, then refund.")
    assert not any("in the other order" in finding.text for finding in await findings(check_needed_calls, env))
