"""Calendar desk: book a meeting at the first hour that is free for two people."""

from __future__ import annotations

import functools
import random
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "You manage the calendars of a small company; hours go from 8 to 17. Look at the calendars with show_day and book the "
    "requested meeting with book, at the first hour of the day at which both people are free. Then tell the user the hour."
)
PEOPLE = ["Alma", "Bruno", "Cora", "Dario", "Edith", "Fabio"]
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday"]
HOURS = range(8, 18)
EVENTS = ["call", "workshop", "interview", "review", "lunch", "training", "visit", "travel"]
TITLES = ["budget talk", "design check", "hiring plan", "launch meeting", "vendor call", "road map", "safety briefing"]

Week = dict[str, dict[str, dict[int, str]]]


@functools.lru_cache(maxsize=4096)
def company_week(seed: str) -> Week:
    """Return the events of all people: person, day, hour."""
    rng = random.Random(seed)
    week: Week = {}
    for person in PEOPLE:
        week[person] = {day: {hour: rng.choice(EVENTS) for hour in HOURS if rng.random() < 0.45} for day in DAYS}
    return week


def common_hours(week: Week, day: str, people: list[str]) -> list[int]:
    """Return the hours at which all of the people are free."""
    return [hour for hour in HOURS if all(hour not in week[person][day] for person in people)]


def show_day(person: str, day: str, state: vf.State) -> str:
    """Show the events of a person on a day.

    Args:
        person: First name.
        day: Day of the week, such as Monday.
    """
    week = state["week"]
    if person not in week or day not in DAYS:
        raise ValueError("unknown person or day")
    events = week[person][day]
    return "\n".join(f"{hour}:00 {events[hour]}" for hour in sorted(events)) or "no events"


def book(title: str, people: list[str], day: str, hour: int, state: vf.State) -> str:
    """Book a meeting of one hour for several people.

    Args:
        title: Title of the meeting.
        people: First names.
        day: Day of the week.
        hour: Full hour at which the meeting starts, 8 to 17.
    """
    week = state["week"]
    if day not in DAYS or hour not in HOURS or any(person not in week for person in people):
        raise ValueError("unknown person, day or hour")
    for person in people:
        if hour in week[person][day]:
            raise ValueError(f"{person} is not free at {hour}:00")
    for person in people:
        week[person][day][hour] = title
    return "booked"


def meeting_booked(state: vf.State) -> float:
    """Return 1 if the meeting is in the calendars of both people at the right hour."""
    info = state["info"]
    return float(
        all(state["week"][person][info["day"]].get(info["hour"]) == info["title"] for person in info["people"])
    )


def only_once(state: vf.State) -> float:
    """Return 1 if the title occurs once in the day of each of the two people."""
    info = state["info"]
    return float(
        all(list(state["week"][person][info["day"]].values()).count(info["title"]) == 1 for person in info["people"])
    )


def planner(messages: vf.Messages, state: vf.State, rng: random.Random) -> vf.AssistantMessage | str:
    """Look at both calendars and book the first common hour."""
    info, turn = state["info"], len(state["trajectory"])
    if turn < 2:
        return vf.tool_call("show_day", person=info["people"][turn], day=info["day"])
    if turn == 2:
        return vf.tool_call("book", title=info["title"], people=info["people"], day=info["day"], hour=info["hour"])
    return f"It is at {info['hour']}:00."


def one_sided(messages: vf.Messages, state: vf.State, rng: random.Random) -> vf.AssistantMessage | str:
    """Look at one calendar and book the first hour that is free there."""
    info, turn = state["info"], len(state["trajectory"])
    if turn == 0:
        return vf.tool_call("show_day", person=info["people"][0], day=info["day"])
    if turn == 1:
        hour = common_hours(state["week"], info["day"], info["people"][:1])[0]
        return vf.tool_call("book", title=info["title"], people=info["people"], day=info["day"], hour=hour)
    return "It is booked."


class CalendarEnv(vf.StatefulToolEnv):
    """An environment with the calendars of a company."""

    def __init__(self, **kwargs: Any):
        super().__init__(max_threads=0, parallel_calls=False, **kwargs)
        self.add_tool(show_day, args_to_skip=["state"])
        self.add_tool(book, args_to_skip=["state"])

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state["week"] = company_week(state["info"]["seed"])

    def update_tool_args(
        self, tool_name: str, tool_args: dict[str, Any], messages: vf.Messages, state: vf.State, **kwargs: Any
    ) -> dict[str, Any]:
        return {**tool_args, "state": state}


def _rows(count: int, seed: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    index = 0
    while len(rows) < count:
        index += 1
        key = f"{seed}:{index}"
        rng = random.Random(f"request:{key}")
        people, day, title = rng.sample(PEOPLE, 2), rng.choice(DAYS), rng.choice(TITLES)
        hours = common_hours(company_week(key), day, people)
        if hours:
            text = f"Company {company_name(key)}: please book “{title}” for {people[0]} and {people[1]} on {day}."
            rows.append(
                {
                    "question": text,
                    "answer": str(hours[0]),
                    "info": {"seed": key, "people": people, "day": day, "title": title, "hour": hours[0]},
                }
            )
    return rows


def company_name(key: str) -> str:
    """Return a company's name."""
    rng = random.Random(f"name:{key}")
    return f"{rng.choice(['Alder', 'Birch', 'Cedar', 'Elm', 'Hazel', 'Linden', 'Rowan'])} {rng.randint(10, 99999)}"


def load_environment(num_examples: int = 150, seed: int = 0, max_turns: int = 8) -> vf.Environment:
    """Return an environment with requests for meetings.

    Args:
        num_examples: Number of requests for training and for evaluation; each is about another company.
        seed: Random seed of the requests and the calendars.
        max_turns: Maximum model turns.
    """
    rubric = vf.Rubric([meeting_booked], [1.0])
    rubric.add_metric(only_once)
    return CalendarEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train"),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval"),
        system_prompt=SYSTEM_PROMPT,
        rubric=rubric,
        policies={"planner": planner, "one_sided": one_sided},
        max_turns=max_turns,
    )
