"""Airline desk: handle a passenger's request with the tools of a booking system and follow the airline's policy."""

from __future__ import annotations

import copy
import random
from typing import Any

import rove as vf

SYSTEM_PROMPT = """\
You work at the service desk of an airline. Today is 2024-05-15. Handle the request of the passenger with the tools, then \
reply without a call and tell the passenger what you did.

Policy:
- Look at the booking before you change anything.
- A booking can be cancelled if its cabin is business, if it has insurance, or if it was booked on 2024-05-14 or later.
- The date of a flight can be changed unless the cabin is basic.
- A bag can be added if the booking has fewer than 2 bags.
- Do only what was asked for. If the policy does not allow it, change nothing and tell the passenger so."""
NAMES = "Aydin Baker Costa Dubois Eriksen Fischer Garcia Haas Ivanov Jansen Kowalski Lopez Moreau Novak Okafor Perez".split()
ROUTES = ["OSL-FRA", "LIS-GVA", "WAW-CDG", "ATH-VIE", "DUB-ZRH", "PRG-MAD"]


def make_booking(rng: random.Random) -> dict[str, Any]:
    return {
        "passenger": rng.choice(NAMES),
        "route": rng.choice(ROUTES),
        "date": f"2024-06-{rng.randint(1, 28):02}",
        "cabin": rng.choice(["basic", "basic", "economy", "economy", "business"]),
        "insurance": rng.random() < 0.1,
        "booked_on": f"2024-05-{rng.randint(2, 15):02}",
        "bags": rng.randint(0, 3),
        "status": "active",
    }


def may_cancel(booking: dict[str, Any]) -> bool:
    return booking["cabin"] == "business" or booking["insurance"] or booking["booked_on"] >= "2024-05-14"


def make_row(rng: random.Random) -> dict[str, Any]:
    code = "".join(rng.choice("ABCDEFGHJKLMNPRSTUVWXYZ") for _ in range(5))
    booking = make_booking(rng)
    name, after, calls = booking["passenger"], dict(booking), []
    kind = rng.choice(["cancel", "cancel", "date", "bag"])
    if kind == "cancel":
        request = rng.choice(
            ["My plans changed. Please cancel my booking", "I cannot travel. I want to cancel my booking"]
        )
        if may_cancel(booking):
            after["status"] = "cancelled"
            calls.append(("cancel_booking", {"code": code}))
    elif kind == "date":
        date = f"2024-07-{rng.randint(1, 28):02}"
        request = f"I would like to fly on {date} instead. Please change my booking"
        if booking["cabin"] != "basic":
            after["date"] = date
            calls.append(("change_date", {"code": code, "date": date}))
    else:
        request = "I would like to take one more bag. Please add it to my booking"
        if booking["bags"] < 2:
            after["bags"] += 1
            calls.append(("add_bag", {"code": code}))
    return {
        "question": f"{request} {code}. My name is {name}.",
        "info": {
            "code": code,
            "before": booking,
            "after": after,
            "calls": [list(call) for call in calls],
            "kind": kind,
        },
    }


def _rows(count: int, seed: str) -> list[dict[str, Any]]:
    return [make_row(random.Random(f"{seed}:{index}")) for index in range(count)]


class DeskEnv(vf.StatefulToolEnv):
    """An environment with a booking system and four tools."""

    def __init__(self, **kwargs: Any):
        super().__init__(max_threads=0, parallel_calls=False, **kwargs)
        for tool in (self.get_booking, self.cancel_booking, self.change_date, self.add_bag):
            self.add_tool(tool, args_to_skip=["bookings"])

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        info = state["info"]
        state["bookings"] = {info["code"]: copy.deepcopy(info["before"])}

    def update_tool_args(
        self, tool_name: str, tool_args: dict[str, Any], messages: vf.Messages, state: vf.State, **kwargs: Any
    ) -> dict[str, Any]:
        return {**tool_args, "bookings": state["bookings"]}

    @staticmethod
    def _find(code: str, bookings: dict[str, Any]) -> dict[str, Any]:
        if code not in bookings:
            raise ValueError(f"there is no booking {code}")
        return bookings[code]

    def get_booking(self, code: str, bookings: dict[str, Any]) -> dict[str, Any]:
        """Show a booking.

        Args:
            code: the booking's code, five letters
        """
        return dict(self._find(code, bookings))

    def cancel_booking(self, code: str, bookings: dict[str, Any]) -> str:
        """Cancel a booking.

        Args:
            code: the booking's code
        """
        self._find(code, bookings)["status"] = "cancelled"
        return "cancelled"

    def change_date(self, code: str, date: str, bookings: dict[str, Any]) -> str:
        """Move a booking to another date.

        Args:
            code: the booking's code
            date: new date, YYYY-MM-DD
        """
        self._find(code, bookings)["date"] = date
        return f"moved to {date}"

    def add_bag(self, code: str, bookings: dict[str, Any]) -> str:
        """Add one bag to a booking.

        Args:
            code: the booking's code
        """
        booking = self._find(code, bookings)
        booking["bags"] += 1
        return f"{booking['bags']} bags"


def resolved(state: vf.State) -> float:
    """1 if the booking is in the state that the policy requires."""
    info = state["info"]
    return float(state["bookings"][info["code"]] == info["after"])


def num_changes(completion: vf.Messages) -> float:
    """Calls that change a booking."""
    calls = [call for message in completion for call in (message.get("tool_calls") or [])]
    return float(sum(call["function"]["name"] != "get_booking" for call in calls))


def agent(messages: vf.Messages, state: vf.State, rng: random.Random) -> vf.AssistantMessage | str:
    """Looks at the booking and follows the policy."""
    info, turn = state["info"], len(state["trajectory"])
    if turn == 0:
        return vf.tool_call("get_booking", code=info["code"])
    if turn <= len(info["calls"]):
        name, arguments = info["calls"][turn - 1]
        return vf.tool_call(name, **arguments)
    return (
        "I have changed your booking as you asked." if info["calls"] else "I am sorry, your fare does not allow this."
    )


def trainee(messages: vf.Messages, state: vf.State, rng: random.Random) -> vf.AssistantMessage | str:
    """Cancels whatever the passenger asks for."""
    if not state["trajectory"]:
        return vf.tool_call("cancel_booking", code=state["info"]["code"])
    return "I have cancelled your booking."


def load_environment(
    num_examples: int = 200, num_eval_examples: int = 100, seed: int = 0, max_turns: int = 6
) -> vf.Environment:
    """Return an environment with requests of passengers.

    Args:
        num_examples: Requests for training.
        num_eval_examples: Requests for evaluation.
        seed: Random seed of bookings and requests.
        max_turns: Maximum model turns.
    """
    env = DeskEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train"),
        eval_dataset=lambda: _rows(num_eval_examples, f"{seed}:eval"),
        system_prompt=SYSTEM_PROMPT,
        policies={"agent": agent, "trainee": trainee},
        max_turns=max_turns,
    )
    env.rubric.add_reward_func(resolved)
    env.rubric.add_metric(num_changes)
    return env
