"""Airline desk: handle requests of customers with tools, within the airline's policy."""

from __future__ import annotations

import copy
import random
from typing import Any

import rove as vf

SYSTEM_PROMPT = """You are an agent of Kite Air. Look up the booking first, then act within this policy:
- Basic fares cannot be cancelled or moved to another date.
- Flex and business fares can be cancelled, and moved to another date, unless the customer has already checked in.
- A checked bag can be added to any fare, up to two bags per booking.
Do what the customer asks if the policy allows it; otherwise change nothing and explain why. Reply without a tool call
when you are done."""
NAMES = "Abara Bloom Costa Dietz Evans Fujii Grant Hansen Ilves Jansen Kaur Lopez Moreau Novak Okafor".split()
CITIES = "Oslo Rome Lima Cairo Delhi Perth Quito Accra".split()
FARES = ("basic", "basic", "flex", "business")


def get_booking(code: str, state: vf.State) -> dict[str, Any]:
    """Return a booking.

    Args:
        code: booking code, such as "KA1234"
    """
    if code not in state["bookings"]:
        raise ValueError("there is no booking with this code")
    return copy.deepcopy(state["bookings"][code])


def _booking(code: str, state: vf.State) -> dict[str, Any]:
    if code not in state["bookings"]:
        raise ValueError("there is no booking with this code")
    return state["bookings"][code]


def cancel_booking(code: str, state: vf.State) -> str:
    """Cancel a booking.

    Args:
        code: booking code
    """
    _booking(code, state)["status"] = "cancelled"
    return "The booking is cancelled."


def change_date(code: str, date: str, state: vf.State) -> str:
    """Move a booking to another date.

    Args:
        code: booking code
        date: new date, as YYYY-MM-DD
    """
    _booking(code, state)["date"] = date
    return f"The booking is moved to {date}."


def add_bag(code: str, state: vf.State) -> str:
    """Add one checked bag to a booking.

    Args:
        code: booking code
    """
    _booking(code, state)["bags"] += 1
    return "One bag is added."


TOOLS = {"cancel": cancel_booking, "move": change_date, "bag": add_bag}


def resolved(state: vf.State) -> float:
    """Return 1 if the bookings are in the state that the policy requires."""
    return float(state["bookings"] == state["info"]["expected"])


def _allowed(action: str, booking: dict[str, Any]) -> bool:
    if action == "bag":
        return booking["bags"] < 2
    return booking["fare"] != "basic" and not booking["checked_in"]


def careful(messages: vf.Messages, state: vf.State, rng: random.Random) -> Any:
    """Look up the booking, and do what the policy allows."""
    info, turn = state["info"], len(state["trajectory"])
    code, action = info["code"], info["action"]
    if turn == 0:
        return vf.tool_call("get_booking", code=code)
    if turn == 1 and _allowed(action, info["bookings"][code]):
        arguments = {"code": code, "date": info["date"]} if action == "move" else {"code": code}
        return vf.tool_call(TOOLS[action].__name__, **arguments)
    return "Your request is done." if turn > 1 else "I am sorry, our policy does not allow this."


def obliging(messages: vf.Messages, state: vf.State, rng: random.Random) -> Any:
    """Do whatever the customer asks."""
    info = state["info"]
    if state["trajectory"]:
        return "Your request is done."
    arguments = {"code": info["code"], "date": info["date"]} if info["action"] == "move" else {"code": info["code"]}
    return vf.tool_call(TOOLS[info["action"]].__name__, **arguments)


class AirlineEnv(vf.StatefulToolEnv):
    """An environment whose tools read and change the rollout's own bookings."""

    def __init__(self, **kwargs: Any):
        super().__init__(max_threads=0, parallel_calls=False, **kwargs)
        for tool in (get_booking, cancel_booking, change_date, add_bag):
            self.add_tool(tool, args_to_skip=["state"])

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state["bookings"] = copy.deepcopy(state["info"]["bookings"])

    def update_tool_args(
        self, tool_name: str, tool_args: dict[str, Any], messages: vf.Messages, state: vf.State, **kwargs: Any
    ) -> dict[str, Any]:
        return {**tool_args, "state": state}


def _row(seed: str) -> dict[str, Any]:
    rng = random.Random(seed)
    codes = [f"KA{number}" for number in rng.sample(range(1000, 10000), 3)]
    bookings = {
        code: {
            "name": name,
            "to": rng.choice(CITIES),
            "date": f"2026-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}",
            "fare": rng.choice(FARES),
            "checked_in": rng.random() < 0.4,
            "bags": rng.choice((0, 1, 2, 2)),
            "status": "booked",
        }
        for code, name in zip(codes, rng.sample(NAMES, 3))
    }
    code, action, date = codes[0], rng.choice(sorted(TOOLS)), f"2027-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"
    booking = bookings[code]
    wish = {
        "cancel": "Please cancel it.",
        "move": f"Please move it to {date}.",
        "bag": "Please add one checked bag.",
    }[action]
    expected = copy.deepcopy(bookings)
    if _allowed(action, booking):
        if action == "cancel":
            expected[code]["status"] = "cancelled"
        elif action == "move":
            expected[code]["date"] = date
        else:
            expected[code]["bags"] += 1
    info = {"code": code, "action": action, "date": date, "bookings": bookings, "expected": expected}
    question = f"Hello, I am {booking['name']}, and my booking to {booking['to']} is {code}. {wish}"
    return {"question": question, "info": info}


def load_environment(num_train: int = 400, num_eval: int = 200, seed: int = 0, max_turns: int = 6) -> vf.Environment:
    """Return an environment with requests of airline customers.

    Args:
        num_train, num_eval: Number of requests.
        seed: Random seed of the bookings and requests.
        max_turns: Maximum model turns.
    """
    return AirlineEnv(
        dataset=lambda: [_row(f"{seed}:train:{index}") for index in range(num_train)],
        eval_dataset=lambda: [_row(f"{seed}:eval:{index}") for index in range(num_eval)],
        system_prompt=SYSTEM_PROMPT,
        rubric=vf.Rubric([resolved]),
        policies={"careful": careful, "obliging": obliging},
        max_turns=max_turns,
    )
