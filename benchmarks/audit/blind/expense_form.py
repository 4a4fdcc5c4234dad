"""Expense form: read an e-mail about a business trip and fill in the expense form of the company."""

from __future__ import annotations

import datetime
import random
from typing import Any

import rove as vf

SYSTEM_PROMPT = """Fill in the expense form for the e-mail with the tool submit_form. The form needs:
- employee: last name, in capital letters
- date: first day of the trip, as YYYY-MM-DD
- nights: number of nights
- total: sum of all costs in euros, with two decimals, such as 120.50
- code: cost center, which is the department's first three letters in capitals, a hyphen, and the two-digit month
When the form is accepted, you are done."""
PEOPLE = "Berger Castillo Dubois Eklund Fischer Greco Horvat Iversen Jovic Keller Lindqvist Moretti".split()
DEPARTMENTS = "Sales Marketing Research Logistics Finance Design".split()
CITIES = "Vienna Madrid Prague Dublin Athens Lisbon Warsaw Geneva".split()


def submit_form(employee: str, date: str, nights: int, total: str, code: str, state: vf.State) -> str:
    """Submit the expense form.

    Args:
        employee: last name in capital letters
        date: first day of the trip, as YYYY-MM-DD
        nights: number of nights
        total: sum of all costs, such as 120.50
        code: cost center, such as SAL-04
    """
    given = {"employee": employee, "date": date, "nights": nights, "total": total, "code": code}
    problems = [
        f"{field}: expected {value!r}, got {given[field]!r}"
        for field, value in state["info"]["form"].items()
        if given[field] != value
    ]
    if problems:
        raise ValueError("the form was not accepted:\n" + "\n".join(problems))
    state["accepted"] = True
    return "The form was accepted."


def accepted(state: vf.State) -> float:
    """Return 1 if the form was accepted."""
    return float(state["accepted"])


def clerk(messages: vf.Messages, state: vf.State, rng: random.Random) -> vf.AssistantMessage:
    """Submit the right form."""
    return vf.tool_call("submit_form", **state["info"]["form"])


def trainee(messages: vf.Messages, state: vf.State, rng: random.Random) -> Any:
    """Forget the form of the date, and give up."""
    form = state["info"]["form"]
    if state["trajectory"]:
        return "I could not submit the form."
    return vf.tool_call("submit_form", **{**form, "date": form["date"].replace("-", "/")})


class ExpenseEnv(vf.StatefulToolEnv):
    """An environment with one form, which can be corrected until it is accepted."""

    def __init__(self, **kwargs: Any):
        super().__init__(max_threads=0, parallel_calls=False, **kwargs)
        self.add_tool(submit_form, args_to_skip=["state"])

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state["accepted"] = False

    def update_tool_args(
        self, tool_name: str, tool_args: dict[str, Any], messages: vf.Messages, state: vf.State, **kwargs: Any
    ) -> dict[str, Any]:
        return {**tool_args, "state": state}

    @vf.stop
    def is_accepted(self, state: vf.State) -> bool:
        """Stop when the form is accepted."""
        return state["accepted"]


def _row(seed: str) -> dict[str, Any]:
    rng = random.Random(seed)
    person, department, city = rng.choice(PEOPLE), rng.choice(DEPARTMENTS), rng.choice(CITIES)
    start = datetime.date(2026, 1, 1) + datetime.timedelta(days=rng.randrange(340))
    nights = rng.randint(1, 6)
    hotel, train, meals = rng.randint(6000, 19000), rng.randint(2500, 21000), rng.randint(1200, 5000)
    total = hotel * nights + train + meals
    question = (
        f"Hi, this is {person} from {department}. I traveled to {city} on {start:%B} {start.day}, {start.year} and came "
        f"home {nights} {'day' if nights == 1 else 'days'} later. The hotel was {hotel / 100:.2f} euros per night, the "
        f"train tickets were {train / 100:.2f} euros, and I spent {meals / 100:.2f} euros on meals. Thanks!"
    )
    form = {
        "employee": person.upper(),
        "date": start.isoformat(),
        "nights": nights,
        "total": f"{total / 100:.2f}",
        "code": f"{department[:3].upper()}-{start.month:02}",
    }
    return {"question": question, "info": {"form": form}}


def load_environment(num_train: int = 400, num_eval: int = 200, seed: int = 0, max_turns: int = 5) -> vf.Environment:
    """Return an environment with an expense form.

    Args:
        num_train, num_eval: Number of e-mails.
        seed: Random seed of the e-mails.
        max_turns: Maximum model turns.
    """
    return ExpenseEnv(
        dataset=lambda: [_row(f"{seed}:train:{index}") for index in range(num_train)],
        eval_dataset=lambda: [_row(f"{seed}:eval:{index}") for index in range(num_eval)],
        system_prompt=SYSTEM_PROMPT,
        rubric=vf.Rubric([accepted]),
        policies={"clerk": clerk, "trainee": trainee},
        max_turns=max_turns,
    )
