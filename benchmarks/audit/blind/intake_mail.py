"""Intake form: fill in a registration form from a customer's e-mail, one field per message."""

import random
import re
from typing import Any

import rove as vf

FIELDS = ["surname", "city", "plan", "start", "seats"]
SYSTEM_PROMPT = (
    "Fill in the form from the e-mail. Write one field per message as <set>field: value</set>; the fields are "
    f"{', '.join(FIELDS)}. The plan is basic, team or pro; the start is a month; seats is a number. A field may be "
    "entered again to correct it. Write <set>send</set> when the form is complete."
)
SURNAMES = "Arnold Becker Conti Dubois Evans Ferrer Gruber Hansen Ilic Jensen Kovacs Lopez".split()
CITIES = "Lyon Turin Ghent Bergen Malaga Leeds Basel Krakow Aarhus Porto".split()
MONTHS = "January February March April May June July August September October November December".split()
TEMPLATES = [
    "Hello, {surname} from {city} here. We would like the {plan} plan from {start} on, for {seats} people.",
    "Good morning! Please set up {seats} seats on the {plan} plan for us, starting in {start}. Regards, {surname}, {city}",
    "Our office in {city} needs {seats} seats as of {start}. The {plan} plan should do. Best wishes, {surname}",
]


class IntakeEnv(vf.MultiTurnEnv):
    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state.update(form={}, accepted=0, sent=False)

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str | None:
        entry = self.parser.parse_answer(messages)
        if entry is None:
            return "Please write <set>field: value</set>."
        if entry.strip().lower() == "send":
            state["sent"] = True
            state["final_env_response"] = "The form was sent."
            return None
        match = re.fullmatch(r"\s*(\w+)\s*:\s*(.+?)\s*", entry)
        if not match or match.group(1).lower() not in FIELDS:
            return f"Unknown field. Fields: {', '.join(FIELDS)}"
        field, value = match.group(1).lower(), match.group(2)
        state["form"][field] = value
        if value.lower() == state["info"]["form"][field].lower():
            state["accepted"] += 1
        missing = [name for name in FIELDS if name not in state["form"]]
        return f"Saved {field}. " + (f"Still empty: {', '.join(missing)}" if missing else "All fields are filled in.")


def progress(state) -> float:
    """Credit for each correct entry."""
    return state["accepted"] / len(FIELDS)


def complete(state, info) -> float:
    """1 if the form was sent and every field is right."""
    form = {field: value.lower() for field, value in state["form"].items()}
    return float(state["sent"] and form == {field: value.lower() for field, value in info["form"].items()})


def clerk(messages, state, rng):
    """Enter every field, then send."""
    left = [field for field in FIELDS if field not in state["form"]]
    return f"<set>{left[0]}: {state['info']['form'][left[0]]}</set>" if left else "<set>send</set>"


def forgetful(messages, state, rng):
    """Enter three fields and send the form."""
    left = [field for field in FIELDS[:3] if field not in state["form"]]
    return f"<set>{left[0]}: {state['info']['form'][left[0]]}</set>" if left else "<set>send</set>"


def make_rows(count, split, seed):
    rows = []
    for index in range(count):
        rng = random.Random(f"{seed}/{split}/{index}")
        half = slice(None, None, 2) if split == "train" else slice(1, None, 2)
        form = {
            "surname": rng.choice(SURNAMES[half]),
            "city": rng.choice(CITIES),
            "plan": rng.choice(["basic", "team", "pro"]),
            "start": rng.choice(MONTHS),
            "seats": str(rng.randint(2, 60)),
        }
        rows.append({"question": rng.choice(TEMPLATES).format(**form), "info": {"form": form}})
    return rows


def load_environment(num_examples: int = 400, seed: int = 0, max_turns: int = 20) -> vf.Environment:
    """E-mails with a registration; the reward is half for correct entries and full for a complete form."""
    parser = vf.XMLParser(["set"], answer_field="set")
    return IntakeEnv(
        dataset=lambda: make_rows(num_examples, "train", seed),
        eval_dataset=lambda: make_rows(num_examples // 2, "eval", seed),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([progress, complete], [0.5, 1.0], parser=parser),
        policies={"clerk": clerk, "forgetful": forgetful},
        max_turns=max_turns,
    )
