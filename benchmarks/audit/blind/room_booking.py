"""Room booking: enter a meeting into the calendar of a team."""

from __future__ import annotations

import json
import random
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "You manage the calendars of several teams. Look at the calendar, book the meeting that the user asks for at the first "
    "free hour of the day, and then confirm it in one sentence."
)
TEAMS = ["Alder", "Birch", "Cedar", "Elm", "Fir", "Hazel", "Juniper", "Larch", "Maple", "Oak", "Pine", "Rowan"]
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday"]
HOURS = [9, 10, 11, 12, 13, 14, 15, 16]
TITLES = [
    "budget",
    "hiring",
    "retrospective",
    "roadmap",
    "security",
    "onboarding",
    "planning",
    "incident",
    "design",
    "pricing",
    "training",
    "launch",
]


def _call(tool: str, **arguments: Any) -> vf.AssistantMessage:
    function = {"name": tool, "arguments": json.dumps(arguments)}
    return vf.AssistantMessage(None, tool_calls=[{"id": tool, "type": "function", "function": function}])


def assistant(messages: vf.Messages, state: vf.State, rng: random.Random) -> vf.AssistantMessage | str:
    """Look at the day, book the first free hour, confirm."""
    info, turn = state["info"], len(state["trajectory"])
    if turn == 0:
        return _call("show_day", team=info["team"], day=info["day"])
    if turn == 1:
        free = [hour for hour in HOURS if str(hour) not in json.loads(messages[-1].content)]
        return _call("book", team=info["team"], day=info["day"], hour=free[0], title=info["title"])
    return "The meeting is booked."


def careless(messages: vf.Messages, state: vf.State, rng: random.Random) -> vf.AssistantMessage | str:
    """Try to book nine o'clock without looking."""
    info = state["info"]
    if not state["trajectory"]:
        return _call("book", team=info["team"], day=info["day"], hour=9, title=info["title"])
    return "The meeting is booked."


class BookingEnv(vf.StatefulToolEnv):
    """An environment with the calendars of several teams."""

    def __init__(self, **kwargs: Any):
        super().__init__(max_threads=0, parallel_calls=False, **kwargs)
        self.calendars: dict[str, dict[str, str]] = {}
        self.add_tool(self.show_day, args_to_skip=["state"])
        self.add_tool(self.book, args_to_skip=["state"])

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        info = state["info"]
        key = f"{info['team']}:{info['week']}"
        if key not in self.calendars:
            self.calendars[key] = dict(info["calendar"])
        state["calendar"] = self.calendars[key]

    def update_tool_args(
        self, tool_name: str, tool_args: dict[str, Any], messages: vf.Messages, state: vf.State, **kwargs: Any
    ) -> dict[str, Any]:
        return {**tool_args, "state": state}

    def show_day(self, team: str, day: str, state: vf.State) -> dict[int, str]:
        """Show the meetings of a team on one day: the hour and the title of each.

        Args:
            team: name of the team
            day: day of the week
        """
        self._check(team, day, state)
        entries = {hour: state["calendar"].get(f"{day} {hour}") for hour in HOURS}
        return {hour: title for hour, title in entries.items() if title}

    def book(self, team: str, day: str, hour: int, title: str, state: vf.State) -> str:
        """Enter a meeting.

        Args:
            team: name of the team
            day: day of the week
            hour: hour at which the meeting begins, 9 to 16
            title: title of the meeting
        """
        self._check(team, day, state)
        if hour not in HOURS:
            raise ValueError("meetings begin at 9 to 16 o'clock")
        slot = f"{day} {hour}"
        if slot in state["calendar"]:
            raise ValueError(f"{team} has another meeting at {hour}")
        state["calendar"][slot] = title
        return f"{title} is booked for {day} at {hour}."

    def _check(self, team: str, day: str, state: vf.State) -> None:
        if team != state["info"]["team"]:
            raise ValueError(f"you may not see the calendar of {team}")
        if day not in DAYS:
            raise ValueError(f"{day} is not a working day")


def booked(state: vf.State) -> float:
    """Return 1 if the meeting is in the calendar at the right time."""
    info = state["info"]
    return float(state["calendar"].get(info["slot"], "").lower() == info["title"])


def others_untouched(state: vf.State) -> float:
    """Return 1 if all meetings that were in the calendar before are still there."""
    return float(all(state["calendar"].get(slot) == title for slot, title in state["info"]["calendar"].items()))


def _rows(count: int, seed: str, first_week: int) -> list[dict[str, Any]]:
    rows = []
    for index in range(count):
        rng = random.Random(f"{seed}:{index}")
        team, day = rng.choice(TEAMS), rng.choice(DAYS)
        title, *others = rng.sample(TITLES, len(TITLES))
        calendar = {}
        for other_day in DAYS:
            for hour in rng.sample(HOURS, rng.randint(1, 4)):
                calendar[f"{other_day} {hour}"] = rng.choice(others)
        for hour in HOURS[: rng.randint(1, 4)]:
            calendar.setdefault(f"{day} {hour}", rng.choice(others))
        free = next(hour for hour in HOURS if f"{day} {hour}" not in calendar)
        week = first_week + index
        rows.append(
            {
                "question": f"Please book a {title} meeting for team {team} on {day}, week {week}.",
                "info": {
                    "team": team,
                    "day": day,
                    "week": week,
                    "title": title,
                    "slot": f"{day} {free}",
                    "calendar": calendar,
                },
            }
        )
    return rows


def load_environment(num_examples: int = 200, seed: int = 0, max_turns: int = 6) -> vf.Environment:
    """Return an environment in which the model books meetings.

    Args:
        num_examples: Number of requests for training, and for evaluation.
        seed: Random seed of the calendars and requests.
        max_turns: Maximum model turns.
    """
    rubric = vf.Rubric([booked])
    rubric.add_metric(others_untouched)
    return BookingEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", 1),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", 10_001),
        system_prompt=SYSTEM_PROMPT,
        rubric=rubric,
        policies={"assistant": assistant, "careless": careless},
        max_turns=max_turns,
    )
