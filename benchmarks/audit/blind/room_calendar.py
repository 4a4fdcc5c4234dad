"""Room booking: find the smallest free meeting room that is large enough, and book it."""

import functools
import json
import random
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "You book meeting rooms. Use rooms() to see the rooms and their seats, and calendar(hour) to see what is booked at an "
    "hour. Book the smallest room that is free and has enough seats with book(room, hour, title), then say that you are "
    "done. Book exactly one room."
)
ROOMS = {"Birch": 4, "Cedar": 6, "Elm": 8, "Maple": 10, "Oak": 14, "Pine": 20}
HOURS = range(9, 17)
TOPICS = ["budget review", "sprint planning", "job interview", "safety briefing", "supplier call", "team lunch"]


@functools.lru_cache(maxsize=None)
def office_day(name: str) -> dict:
    """Return the calendar of a day as {room: {hour: title}}."""
    rng = random.Random(name)
    return {room: {hour: "busy" for hour in HOURS if rng.random() < 0.45} for room in ROOMS}


def best_room(day, hour, people):
    free = [room for room, seats in ROOMS.items() if seats >= people and hour not in day[room]]
    return min(free, key=ROOMS.get, default=None)


class BookingEnv(vf.StatefulToolEnv):
    def __init__(self, **kwargs: Any):
        super().__init__(max_threads=0, parallel_calls=False, **kwargs)
        self.add_tool(self.rooms)
        self.add_tool(self.calendar, args_to_skip=["state"])
        self.add_tool(self.book, args_to_skip=["state"])

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state["day"] = office_day(state["info"]["day"])

    def update_tool_args(self, tool_name, tool_args, messages, state, **kwargs):
        return {**tool_args, "state": state} if tool_name != "rooms" else tool_args

    def rooms(self) -> dict:
        """List the rooms with their number of seats."""
        return ROOMS

    def calendar(self, hour: int, state: vf.State) -> dict:
        """Show which rooms are booked at an hour.

        Args:
            hour: full hour from 9 to 16
        """
        return {room: booked.get(hour, "free") for room, booked in state["day"].items()}

    def book(self, room: str, hour: int, title: str, state: vf.State) -> str:
        """Book a room for one hour.

        Args:
            room: name of the room
            hour: full hour from 9 to 16
            title: title of the meeting
        """
        if room not in ROOMS:
            raise ValueError(f"there is no room '{room}'")
        if hour not in HOURS:
            raise ValueError("the office is open from 9 to 17")
        if hour in state["day"][room]:
            raise ValueError(f"{room} is taken at {hour}:00")
        state["day"][room][hour] = title
        return f"{room} is booked at {hour}:00 for '{title}'."


def booked_well(state, info) -> float:
    """1 if the meeting is in the right room, and only there."""
    found = [room for room, booked in state["day"].items() if info["title"] in booked.values()]
    return float(found == [info["room"]] and state["day"][info["room"]].get(info["hour"]) == info["title"])


def planner(messages, state, rng):
    """Look at the calendar, then book the smallest room that fits."""
    info, turn = state["info"], len(state["trajectory"])
    if turn == 0:
        return vf.tool_call("calendar", hour=info["hour"])
    if turn == 1:
        seen = json.loads(messages[-1].content)
        free = [room for room, what in seen.items() if what == "free" and ROOMS[room] >= info["people"]]
        if free:
            return vf.tool_call("book", room=min(free, key=ROOMS.get), hour=info["hour"], title=info["title"])
    return "Done."


def hurried(messages, state, rng):
    """Book the smallest room that is large enough without a look at the calendar."""
    info = state["info"]
    if not state["trajectory"]:
        room = min((room for room in ROOMS if ROOMS[room] >= info["people"]), key=ROOMS.get)
        return vf.tool_call("book", room=room, hour=info["hour"], title=info["title"])
    return "Done."


def make_rows(count, seed):
    rows, index = [], 0
    while len(rows) < count:
        rng = random.Random(f"{seed}:{index}")
        index += 1
        name, hour, people = f"{seed}:{index}", rng.choice(HOURS), rng.randint(2, 14)
        room = best_room(office_day(name), hour, people)
        if room is None:
            continue
        title = f"{rng.choice(TOPICS)} {rng.randint(100, 999)}"
        info = {"day": name, "hour": hour, "people": people, "title": title, "room": room}
        rows.append({"question": f"Book a room for {people} people at {hour}:00, title '{title}'.", "info": info})
    return rows


def load_environment(num_examples: int = 300, seed: int = 0, max_turns: int = 6) -> vf.Environment:
    """Meeting rooms of one office; each request has a calendar of its own."""
    return BookingEnv(
        dataset=lambda: make_rows(num_examples, f"train-{seed}"),
        eval_dataset=lambda: make_rows(num_examples // 2, f"eval-{seed}"),
        system_prompt=SYSTEM_PROMPT,
        rubric=vf.Rubric([booked_well]),
        policies={"planner": planner, "hurried": hurried},
        max_turns=max_turns,
    )
