"""Mountain huts: handle requests of guests who have booked a night in a hut."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

import rove as vf

SYSTEM_PROMPT = """You handle requests for mountain huts. Look up the booking first. The rules:
- A booking can be canceled until 7 days before the arrival.
- The arrival of a flex booking can be moved. A saver booking cannot be moved.
- Guests can be added up to 6 guests in a booking.
If the rules allow the request, carry it out. If not, tell the guest why. End with a message to the guest."""
HUTS = ("Adlerhorst", "Blauspitz", "Cima Rossa", "Dent Noire", "Edelrast", "Falkenkar", "Gratblick", "Hochsee")


def get_booking(number: str, state: vf.State) -> str:
    """Return a booking as JSON.

    Args:
        number: booking number
    """
    return json.dumps(_booking(number, state))


def cancel_booking(number: str, state: vf.State) -> str:
    """Cancel a booking.

    Args:
        number: booking number
    """
    _booking(number, state)["status"] = "canceled"
    return "canceled"


def move_booking(number: str, arrival: int, state: vf.State) -> str:
    """Move a booking to another day of arrival.

    Args:
        number: booking number
        arrival: new day of arrival, as the number of the day in the season
    """
    _booking(number, state)["arrival"] = arrival
    return "moved"


def set_guests(number: str, guests: int, state: vf.State) -> str:
    """Change the number of guests of a booking.

    Args:
        number: booking number
        guests: new number of guests
    """
    _booking(number, state)["guests"] = guests
    return "changed"


def _booking(number: str, state: vf.State) -> dict[str, Any]:
    if number not in state["bookings"]:
        raise ValueError(f"there is no booking {number!r}")
    return state["bookings"][number]


def allowed(booking: dict[str, Any], request: dict[str, Any], today: int) -> bool:
    if request["kind"] == "cancel":
        return booking["arrival"] - today >= 7
    if request["kind"] == "move":
        return booking["fare"] == "flex"
    return booking["guests"] + request["more"] <= 6


def change(booking: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    if request["kind"] == "cancel":
        return {**booking, "status": "canceled"}
    if request["kind"] == "move":
        return {**booking, "arrival": request["arrival"]}
    return {**booking, "guests": booking["guests"] + request["more"]}


def resolved(state: vf.State) -> float:
    """Return 1 if the bookings are as they should be after the request."""
    return float(state["bookings"] == state["info"]["expected"])


def _act(request: dict[str, Any], booking: dict[str, Any]) -> vf.AssistantMessage:
    number = request["number"]
    if request["kind"] == "cancel":
        return vf.tool_call("cancel_booking", number=number)
    if request["kind"] == "move":
        return vf.tool_call("move_booking", number=number, arrival=request["arrival"])
    return vf.tool_call("set_guests", number=number, guests=booking["guests"] + request["more"])


def warden(messages: vf.Messages, state: vf.State, rng: random.Random) -> vf.AssistantMessage | str:
    """Look up the booking, apply the rules, act or explain."""
    request, turn = state["info"]["request"], len(state["trajectory"])
    if turn == 0:
        return vf.tool_call("get_booking", number=request["number"])
    if turn == 2:
        return "Done, see you in the mountains."
    booking = json.loads(messages[-1].content)
    if allowed(booking, request, state["info"]["today"]):
        return _act(request, booking)
    return "I am sorry, our rules do not allow this change."


def trainee(messages: vf.Messages, state: vf.State, rng: random.Random) -> vf.AssistantMessage | str:
    """Look up the booking and do whatever the guest wants."""
    request, turn = state["info"]["request"], len(state["trajectory"])
    if turn == 0:
        return vf.tool_call("get_booking", number=request["number"])
    return _act(request, json.loads(messages[-1].content)) if turn == 1 else "Done."


class MountainHutsEnv(vf.StatefulToolEnv):
    """An environment with a table of bookings for each rollout."""

    def __init__(self, **kwargs: Any):
        super().__init__(max_threads=0, parallel_calls=False, **kwargs)
        for tool in (get_booking, cancel_booking, move_booking, set_guests):
            self.add_tool(tool, args_to_skip=["state"])

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state["bookings"] = copy.deepcopy(state["info"]["bookings"])

    def update_tool_args(
        self, tool_name: str, tool_args: dict[str, Any], messages: vf.Messages, state: vf.State, **kwargs: Any
    ) -> dict[str, Any]:
        return {**tool_args, "state": state}


def _rows(count: int, seed: str) -> list[dict[str, Any]]:
    rows = []
    for index in range(count):
        rng = random.Random(f"{seed}:{index}")
        today = rng.randint(1, 80)
        bookings = {}
        for number in rng.sample(range(100000, 999999), 4):
            bookings[f"H{number}"] = {
                "hut": rng.choice(HUTS),
                "arrival": today + rng.randint(1, 12),
                "fare": rng.choice(("flex", "saver", "saver")),
                "guests": rng.randint(2, 6),
                "status": "confirmed",
            }
        number = rng.choice(sorted(bookings))
        booking, kind = bookings[number], rng.choice(("cancel", "move", "add"))
        request: dict[str, Any] = {"kind": kind, "number": number}
        if kind == "cancel":
            text = "We cannot come. Please cancel it."
        elif kind == "move":
            request["arrival"] = booking["arrival"] + rng.randint(1, 9)
            text = f"Please move our arrival to day {request['arrival']}."
        else:
            request["more"] = rng.randint(1, 4)
            text = f"Please add {request['more']} more guests."
        expected = dict(bookings)
        if allowed(booking, request, today):
            expected[number] = change(booking, request)
        question = f"Today is day {today}. My booking is {number}. {text}"
        info = {"today": today, "request": request, "bookings": bookings, "expected": expected}
        rows.append({"question": question, "info": info})
    return rows


def load_environment(num_examples: int = 300, seed: int = 0, max_turns: int = 6) -> vf.Environment:
    """Return an environment with requests about bookings of mountain huts.

    Args:
        num_examples: Number of requests in each dataset.
        seed: Random seed of the requests; evaluation requests are drawn separately.
        max_turns: Maximum model turns.
    """
    return MountainHutsEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train"),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval"),
        system_prompt=SYSTEM_PROMPT,
        rubric=vf.Rubric([resolved]),
        policies={"warden": warden, "trainee": trainee},
        max_turns=max_turns,
    )
