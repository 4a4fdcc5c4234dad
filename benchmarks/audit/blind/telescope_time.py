"""Telescope time: an assistant changes the schedule of an observatory, within its rules."""

from __future__ import annotations

import copy
import random
import re
from typing import Any

import rove as vf

SYSTEM_PROMPT = """You keep the schedule of an observatory. Astronomers ask you for changes. Rules:
- Only the owner of a slot may cancel it or move it.
- A slot can only be booked, or moved to, if it is free.
- Nobody may have more than two slots.
- A slot that is marked "locked" is never changed.
If a rule forbids the request, change nothing and explain why. Otherwise make the change, and then reply without a call."""
HOURS = tuple(f"{hour:02d}:00" for hour in (20, 21, 22, 23, 0, 1, 2, 3))
PEOPLE = ("Anand", "Bruno", "Carla", "Dmitri", "Eszter", "Farah")
LIMIT = 2


class Schedule:
    """Who has which slot, and which slots are locked."""

    def __init__(self, owners: dict[str, str], locked: list[str]):
        self.owners = dict(owners)
        self.locked = set(locked)

    def count(self, person: str) -> int:
        return sum(owner == person for owner in self.owners.values())

    def show(self) -> str:
        lines = []
        for hour in HOURS:
            mark = " (locked)" if hour in self.locked else ""
            lines.append(f"{hour} {self.owners.get(hour, 'free')}{mark}")
        return "\n".join(lines)


def show_schedule(schedule: Schedule) -> str:
    """Show all slots of the night."""
    return schedule.show()


def book(person: str, hour: str, schedule: Schedule) -> str:
    """Book a slot for a person.

    Args:
        person: name of the astronomer
        hour: start of the slot, for example 22:00
    """
    if hour not in HOURS:
        raise ValueError(f"there is no slot at {hour}")
    schedule.owners[hour] = person
    return f"{hour} booked for {person}"


def cancel(hour: str, schedule: Schedule) -> str:
    """Cancel a slot, so that it is free.

    Args:
        hour: start of the slot, for example 22:00
    """
    if hour not in schedule.owners:
        raise ValueError(f"nobody has the slot at {hour}")
    person = schedule.owners.pop(hour)
    return f"{hour} of {person} canceled"


def allowed(kind: str, person: str, hour: str, target: str | None, schedule: Schedule) -> bool:
    """Return whether the rules allow a request."""
    touched = [hour] if target is None else [hour, target]
    if schedule.locked.intersection(touched):
        return False
    if kind == "book":
        return hour not in schedule.owners and schedule.count(person) < LIMIT
    if schedule.owners.get(hour) != person:
        return False
    return target is None or target not in schedule.owners


def outcome(request: dict[str, Any], schedule: Schedule) -> dict[str, str]:
    """Return the slots after a request was handled correctly."""
    owners = dict(schedule.owners)
    if allowed(request["kind"], request["person"], request["hour"], request["target"], schedule):
        if request["kind"] == "book":
            owners[request["hour"]] = request["person"]
        else:
            del owners[request["hour"]]
            if request["target"]:
                owners[request["target"]] = request["person"]
    return owners


def handled(state: vf.State) -> float:
    """Return 1 if the schedule is as it should be after the request."""
    return float(state["schedule"].owners == state["info"]["expected"])


def _calls(request: dict[str, Any]) -> list[vf.AssistantMessage]:
    if request["kind"] == "book":
        return [vf.tool_call("book", person=request["person"], hour=request["hour"])]
    calls = [vf.tool_call("cancel", hour=request["hour"])]
    if request["target"]:
        calls.append(vf.tool_call("book", person=request["person"], hour=request["target"]))
    return calls


def _read(messages: vf.Messages) -> dict[str, Any]:
    text = next(message["content"] for message in messages if message["role"] == "user")
    person = re.search(r"(\w+): please", text)[1]
    hours = re.findall(r"\d\d:00", text)
    kind = "book" if "book" in text else "move" if len(hours) == 2 else "cancel"
    return {"kind": kind, "person": person, "hour": hours[0], "target": hours[1] if len(hours) == 2 else None}


def careful(messages: vf.Messages, state: vf.State, rng: random.Random) -> vf.AssistantMessage | str:
    """Look at the schedule, check the rules, then make the change."""
    request, turn = _read(messages), len(state["trajectory"])
    if turn == 0:
        return vf.tool_call("show_schedule")
    table = next(message["content"] for message in messages if message["role"] == "tool")
    slots = [line.split() for line in table.splitlines()]
    schedule = Schedule(
        {slot[0]: slot[1] for slot in slots if slot[1] != "free"}, [slot[0] for slot in slots if slot[2:]]
    )
    if not allowed(request["kind"], request["person"], request["hour"], request["target"], schedule):
        return "I am sorry, the rules do not allow this."
    calls = _calls(request)
    return calls[turn - 1] if turn <= len(calls) else "Done."


def obliging(messages: vf.Messages, state: vf.State, rng: random.Random) -> vf.AssistantMessage | str:
    """Make every change that is asked for."""
    calls, turn = _calls(_read(messages)), len(state["trajectory"])
    return calls[turn] if turn < len(calls) else "Done."


class TelescopeEnv(vf.StatefulToolEnv):
    """An environment whose tools change a schedule."""

    def __init__(self, **kwargs: Any):
        super().__init__(max_threads=0, parallel_calls=False, **kwargs)
        for tool in (show_schedule, book, cancel):
            self.add_tool(tool, args_to_skip=["schedule"])

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        info = copy.deepcopy(dict(state["info"]))
        state["schedule"] = Schedule(info["owners"], info["locked"])

    def update_tool_args(
        self, tool_name: str, tool_args: dict[str, Any], messages: vf.Messages, state: vf.State, **kwargs: Any
    ) -> dict[str, Any]:
        return {**tool_args, "schedule": state["schedule"]}


def _row(seed: int, night: int) -> dict[str, Any]:
    rng = random.Random(f"{seed}:{night}")
    taken = rng.sample(HOURS, rng.randint(4, 6))
    owners: dict[str, str] = {}
    for hour in taken:
        owners[hour] = rng.choice([person for person in PEOPLE if list(owners.values()).count(person) < LIMIT])
    locked = [hour for hour in taken if rng.random() < 0.15]
    person, kind = rng.choice(PEOPLE), rng.choice(["book", "cancel", "move", "move"])
    own = [hour for hour in taken if owners[hour] == person]
    target = None
    if kind == "book":
        hour = rng.choice(HOURS)
        text = f"{person}: please book {hour} for me."
    else:
        hour = rng.choice(own) if own and rng.random() < 0.85 else rng.choice(taken)
        text = f"{person}: please cancel {hour}."
        if kind == "move":
            target = rng.choice([other for other in HOURS if other != hour])
            text = f"{person}: please move my slot at {hour} to {target}."
    request = {"kind": kind, "person": person, "hour": hour, "target": target}
    expected = outcome(request, Schedule(owners, locked))
    return {"question": f"Night {night}. {text}", "info": {"owners": owners, "locked": locked, "expected": expected}}


def load_environment(num_examples: int = 300, seed: int = 0, max_turns: int = 6) -> vf.Environment:
    """Return an environment with requests for changes of a schedule.

    Args:
        num_examples: Number of requests for training, and for evaluation.
        seed: Random seed of the schedules and requests.
        max_turns: Maximum model turns.
    """
    return TelescopeEnv(
        dataset=lambda: [_row(seed, 2 * index) for index in range(num_examples)],
        eval_dataset=lambda: [_row(seed, 2 * index + 1) for index in range(num_examples)],
        system_prompt=SYSTEM_PROMPT,
        rubric=vf.Rubric([handled]),
        policies={"careful": careful, "obliging": obliging},
        max_turns=max_turns,
    )
