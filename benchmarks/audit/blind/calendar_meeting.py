"""Calendar meeting: find the first hour at which some colleagues are free, and put a meeting there."""

from __future__ import annotations

import random
from typing import Any, Literal

import rove as vf

SYSTEM_PROMPT = (
    "You are an assistant in an office. Look up the calendars, then create the meeting, with the topic as its title, at the "
    "earliest hour of the week at which everybody who takes part is free. The week runs from Monday to Friday; meetings "
    "start at a full hour from 9 to 16 and take one hour. When you are done, reply with a short confirmation."
)
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday")
Day = Literal["Monday", "Tuesday", "Wednesday", "Thursday", "Friday"]
HOURS = range(9, 17)
PEOPLE = "Amira Boris Carla Dario Elena Femi Greta Hugo Ines Jonas".split()  # noqa: SIM905
TOPICS = ("budget", "garden party", "new printer", "stock count", "holiday plan", "price list", "website")
SLOTS = [(day, hour) for day in DAYS for hour in HOURS]


def busy_hours(person: str, state: vf.State) -> str:
    """Return the hours of the week at which a person is busy.

    Args:
        person: first name
    """
    calendars = state["info"]["calendars"]
    if person not in calendars:
        raise ValueError(f"no calendar of '{person}'; there are calendars of {', '.join(calendars)}")
    return "\n".join(f"{day}: {', '.join(map(str, calendars[person][day])) or 'free all day'}" for day in DAYS)


def create_event(day: Day, hour: int, title: str, state: vf.State) -> str:
    """Create an event of one hour in the calendar of the team.

    Args:
        day: day of the week
        hour: hour at which the event starts, from 9 to 16
        title: title of the event
    """
    if hour not in HOURS:
        raise ValueError("events start between 9 and 16")
    state["events"].append({"day": day, "hour": hour, "title": title})
    return f"Created '{title}' on {day} at {hour}:00."


def scheduled(state: vf.State, info: dict[str, Any], answer: str) -> float:
    """Return 1 if the meeting is in the calendar at the right time; its title has to name the topic."""
    meetings = [event for event in state["events"] if info["topic"] in event["title"].lower()]
    return float(any(f"{event['day']} {event['hour']}" == answer for event in meetings))


def num_events(state: vf.State) -> float:
    """Return the number of events that were created."""
    return float(len(state["events"]))


def _busy(text: str) -> set[tuple[str, int]]:
    lines = (line.split(": ") for line in text.split("\n"))
    return {(day, int(hour)) for day, hours in lines if hours[0].isdigit() for hour in hours.split(", ")}


def assistant(messages: vf.Messages, state: vf.State, rng: random.Random) -> vf.AssistantMessage | str:
    """Look up everybody, then create the meeting at the first hour that suits."""
    people, turn = state["info"]["people"], len(state["trajectory"])
    if turn < len(people):
        return vf.tool_call("busy_hours", person=people[turn])
    if turn == len(people):
        results = [str(message.content) for message in messages if message.role == "tool"]
        busy = set().union(*map(_busy, results))
        day, hour = next(slot for slot in SLOTS if slot not in busy)
        return vf.tool_call("create_event", day=day, hour=hour, title=state["info"]["topic"])
    return "The meeting is in the calendar."


def one_calendar(messages: vf.Messages, state: vf.State, rng: random.Random) -> vf.AssistantMessage | str:
    """Look up only the first person."""
    turn = len(state["trajectory"])
    if turn == 0:
        return vf.tool_call("busy_hours", person=state["info"]["people"][0])
    if turn == 1:
        busy = _busy(str(messages[-1].content))
        day, hour = next(slot for slot in SLOTS if slot not in busy)
        return vf.tool_call("create_event", day=day, hour=hour, title=state["info"]["topic"])
    return "The meeting is in the calendar."


class CalendarEnv(vf.StatefulToolEnv):
    """An environment with the calendars of a team."""

    def __init__(self, **kwargs: Any):
        super().__init__(max_threads=0, parallel_calls=False, **kwargs)
        self.add_tool(busy_hours, args_to_skip=["state"])
        self.add_tool(create_event, args_to_skip=["state"])

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state["events"] = []

    def update_tool_args(
        self, tool_name: str, tool_args: dict[str, Any], messages: vf.Messages, state: vf.State, **kwargs: Any
    ) -> dict[str, Any]:
        return {**tool_args, "state": state}


def make_row(rng: random.Random) -> dict[str, Any]:
    """Return a request and the calendars of the people whom it names."""
    while True:
        people = rng.sample(PEOPLE, rng.randint(2, 4))
        share = 0.75 if len(people) == 2 else 0.6
        calendars = {
            person: {day: [hour for hour in HOURS if rng.random() < share] for day in DAYS} for person in people
        }
        free = [(day, hour) for day, hour in SLOTS if not any(hour in calendars[person][day] for person in people)]
        if free:
            break
    topic = rng.choice(TOPICS)
    question = f"Please arrange a meeting about the {topic} for {', '.join(people[:-1])} and {people[-1]}."
    info = {"people": people, "topic": topic, "calendars": calendars}
    return {"question": question, "answer": f"{free[0][0]} {free[0][1]}", "info": info}


def rows(count: int, seed: str) -> list[dict[str, Any]]:
    return [make_row(random.Random(f"{seed}:{index}")) for index in range(count)]


def load_environment(num_examples: int = 300, seed: int = 0, max_turns: int = 8) -> vf.Environment:
    """Return an environment in which the model arranges meetings.

    Args:
        num_examples: Number of requests for training, and for evaluation.
        seed: Random seed of the requests.
        max_turns: Maximum model turns.
    """
    rubric = vf.Rubric([scheduled])
    rubric.add_metric(num_events)
    return CalendarEnv(
        dataset=lambda: rows(num_examples, f"{seed}:train"),
        eval_dataset=lambda: rows(num_examples, f"{seed}:eval"),
        system_prompt=SYSTEM_PROMPT,
        rubric=rubric,
        policies={"assistant": assistant, "one_calendar": one_calendar},
        max_turns=max_turns,
    )
