"""Fill in a form by asking a caller, field by field.

The caller is a state machine: asked for a field, they answer clearly, answer in a form that must be clarified, or refuse.
"""

from __future__ import annotations

import random
import re
from typing import Any

import rove as vf

FIELDS = ("name", "date", "size", "diet")
SYSTEM_PROMPT = """You take bookings for a restaurant. The form has four fields: name, date, size, diet.
Each turn, write one of these:
ASK field        to ask the caller for a field
CLARIFY field    to ask again if the answer was not definite
SUBMIT name=...; date=...; size=...; diet=...
Write dates as DD.MM. and the size as a number. Leave a field empty if the caller does not want to say it.
You earn a share for each field that is right."""
SURNAMES = "Aarts Bell Cruz Dorn Ekman Fox Gunn Hahn Ibsen Jost Kaur Lenz Moro Nash".split()
DIETS = ["none", "vegan", "vegetarian", "gluten-free", "halal", "kosher", "no nuts"]
LINE = re.compile(r"^\s*(ASK|CLARIFY|SUBMIT)\b[ :]*(.*)$", re.I | re.M)


def vague(field: str, value: str, rng: random.Random) -> str:
    """Return an answer that does not give the value away."""
    return {
        "name": "The usual name, you know me.",
        "date": rng.choice(["Some day next week.", "The day of the match."]),
        "size": rng.choice(["My family and a few friends.", "Rather a big table."]),
        "diet": "My partner is a bit picky.",
    }[field]


class Caller:
    """Answers by the mode of each field: clear, vague (until asked to clarify), or silent."""

    def __init__(self, values: dict[str, str], modes: dict[str, str], seed: str):
        self.values, self.modes, self.seed = values, modes, seed
        self.asked: set[str] = set()

    def reply(self, action: str, field: str) -> str:
        if field not in FIELDS:
            return "Pardon?"
        mode = self.modes[field]
        if mode == "silent":
            return "I would rather not say."
        if mode == "vague" and not (action == "CLARIFY" and field in self.asked):
            self.asked.add(field)
            return vague(field, self.values[field], random.Random(f"{self.seed}{field}"))
        return {
            "name": f"It is {self.values['name']}.",
            "date": f"On {self.values['date']}",
            "size": f"We are {self.values['size']}.",
            "diet": f"Diet: {self.values['diet']}.",
        }[field]


class IntakeEnv(vf.MultiTurnEnv):
    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        info = state["info"]
        state["caller"] = Caller(info["values"], info["modes"], info["seed"])
        state["form"] = None

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str | None:
        found = LINE.search(str(messages[-1].content or ""))
        if not found:
            return "(Write ASK, CLARIFY or SUBMIT.)"
        action, rest = found[1].upper(), found[2].strip()
        if action != "SUBMIT":
            return state["caller"].reply(action, rest.lower())
        pairs = (part.split("=", 1) for part in rest.split(";") if "=" in part)
        state["form"] = {key.strip().lower(): value.strip() for key, value in pairs}
        state["final_env_response"] = "Thank you, goodbye."
        return None


def fields_right(state: vf.State, info: dict[str, Any]) -> float:
    """Return the share of fields that are right; nothing without a submitted form."""
    form = state["form"]
    if form is None:
        return 0.0
    return sum(
        form.get(field, "").lower().rstrip(".") == info["form"][field].lower().rstrip(".") for field in FIELDS
    ) / len(FIELDS)


def all_right(state: vf.State, info: dict[str, Any]) -> float:
    return float(fields_right(state, info) == 1.0)


def _row(rng: random.Random) -> dict[str, Any]:
    values = {
        "name": rng.choice(SURNAMES),
        "date": f"{rng.randint(1, 28):02d}.{rng.randint(1, 12):02d}.",
        "size": str(rng.randint(2, 24)),
        "diet": rng.choice(DIETS),
    }
    modes = {field: rng.choices(["clear", "vague", "silent"], [4, 5, 1])[0] for field in FIELDS}
    greeting = rng.choice(["Hello, I'd like a table.", "Hi, do you take bookings?", "Good evening, a table please."])
    form = {field: "" if modes[field] == "silent" else values[field] for field in FIELDS}
    info = {"values": values, "modes": modes, "form": form, "seed": str(rng.getrandbits(32))}
    return {"question": f"(Call {rng.randint(10**6, 10**7)}) {greeting}", "info": info}


def _submit(heard: dict[str, str]) -> str:
    return "SUBMIT " + "; ".join(f"{field}={heard.get(field, '')}" for field in FIELDS)


def _interview(clarify: bool):
    def policy(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
        replies = [m.content for m in messages if m.role == "user"][1:]
        actions = [m.content.split() for m in messages if m.role == "assistant"]
        heard, unclear = {}, set()
        for (action, field), reply in zip(actions, replies):
            known = re.fullmatch(r"(?:It is|On|We are|Diet:) (.+?)\.?", reply)
            if known:
                heard[field] = known[1] + ("." if field == "date" else "")
                unclear.discard(field)
            elif reply != "I would rather not say.":
                unclear.add(field)
        asked = {field for _, field in actions}
        for field in FIELDS:
            if field not in asked:
                return f"ASK {field}"
            if field in unclear and clarify and ["CLARIFY", field] not in actions:
                return f"CLARIFY {field}"
        return _submit(heard)

    return policy


def load_environment(num_examples: int = 200, seed: int = 0, max_turns: int = 10) -> vf.Environment:
    """Return the environment.

    Args:
        num_examples: Number of callers for training, and for evaluation.
        seed: Random seed of the callers.
        max_turns: Maximum model turns.
    """
    rubric = vf.Rubric([fields_right])
    rubric.add_metric(all_right)
    return IntakeEnv(
        dataset=lambda: [_row(random.Random(f"{seed}:train:{i}")) for i in range(num_examples)],
        eval_dataset=lambda: [_row(random.Random(f"{seed}:eval:{i}")) for i in range(num_examples)],
        system_prompt=SYSTEM_PROMPT,
        rubric=rubric,
        policies={"thorough": _interview(True), "hurried": _interview(False)},
        max_turns=max_turns,
    )
