"""Day finder: on which weekday does a period end? The model has a calendar tool."""

import datetime
import json
import random

import rove as vf

SYSTEM_PROMPT = "Find the weekday. The tools know the Gregorian calendar. Reply with the weekday only, for example: <day>Monday</day>"
WEEKDAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
MONTH_DAYS = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
EVENTS = [
    "The lease starts",
    "The warranty begins",
    "The expedition left",
    "The bond was issued",
    "The trial began",
    "The seed was planted",
    "The ship sailed",
    "The patent was filed",
]


def days_in_year(year):
    return 366 if year % 4 == 0 else 365


def day_number(year, month, day):
    """Days since 1 January 2000, which was a Saturday; negative before."""
    if year >= 2000:
        number = sum(days_in_year(y) for y in range(2000, year))
    else:
        number = -sum(days_in_year(y) for y in range(year, 2000))
    number += sum(MONTH_DAYS[: month - 1]) + day - 1
    return number + (month > 2 and days_in_year(year) == 366)


def weekday_after(year, month, day, days):
    """The weekday that is some days after a date."""
    return WEEKDAYS[(day_number(year, month, day) + days + 5) % 7]


def add_days(date: str, days: int) -> str:
    """Return the date that is some days after another date.

    Args:
        date: a date such as 1999-12-31
        days: number of days
    """
    return (datetime.date.fromisoformat(date) + datetime.timedelta(days=days)).isoformat()


def weekday(date: str) -> str:
    """Return the weekday of a date.

    Args:
        date: a date such as 1999-12-31
    """
    return datetime.date.fromisoformat(date).strftime("%A")


def correct(completion, answer, parser):
    """1 for the right weekday."""
    return float((parser.parse_answer(completion) or "").capitalize() == answer)


def call(tool, **arguments):
    function = {"name": tool, "arguments": json.dumps(arguments)}
    return vf.AssistantMessage(None, tool_calls=[{"id": tool, "type": "function", "function": function}])


def planner(messages, state, rng):
    """Adds the days, then asks for the weekday."""
    turn = len(state["trajectory"])
    if turn == 0:
        return call("add_days", date=state["info"]["date"], days=state["info"]["days"])
    if turn == 1:
        return call("weekday", date=messages[-1].content)
    return f"<day>{messages[-1].content}</day>"


def guesser(messages, state, rng):
    """Names any weekday."""
    return f"<day>{rng.choice(WEEKDAYS)}</day>"


def rows(count, seed):
    made = []
    for index in range(count):
        rng = random.Random(f"{seed}:{index}")
        year, month = rng.randint(1850, 2150), rng.randint(1, 12)
        day, days = rng.randint(1, MONTH_DAYS[month - 1]), rng.randint(10, 400)
        date = f"{year}-{month:02}-{day:02}"
        question = f"{rng.choice(EVENTS)} on {date}. Which weekday is it {days} days later?"
        made.append(
            {
                "question": question,
                "answer": weekday_after(year, month, day, days),
                "info": {"date": date, "days": days},
            }
        )
    return made


def load_environment(num_examples: int = 250, seed: int = 0, max_turns: int = 6) -> vf.Environment:
    """Questions about weekdays between 1850 and 2151.

    Args:
        num_examples: Number of questions for training, and for evaluation.
        seed: Random seed of the questions.
        max_turns: Maximum replies.
    """
    parser = vf.XMLParser(["day"], answer_field="day")
    return vf.ToolEnv(
        tools=[add_days, weekday],
        dataset=lambda: rows(num_examples, f"{seed}:train"),
        eval_dataset=lambda: rows(num_examples, f"{seed}:eval"),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([correct], parser=parser),
        policies={"planner": planner, "guesser": guesser},
        max_turns=max_turns,
        max_threads=0,
    )
