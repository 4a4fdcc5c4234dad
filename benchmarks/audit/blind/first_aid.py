"""First aid: guide a caller through an emergency, one instruction at a time."""

from __future__ import annotations

import random
from typing import Any

import rove as vf

PROTOCOLS = {
    "choking": ("check_airway", "back_blows", "abdominal_thrusts", "call_ambulance", "stay_until_help"),
    "burn": ("remove_source", "cool_with_water", "cover_loosely", "call_ambulance", "stay_until_help"),
    "bleeding": ("put_on_gloves", "press_on_wound", "raise_limb", "call_ambulance", "stay_until_help"),
    "faint": ("check_breathing", "lay_flat", "raise_legs", "call_ambulance", "stay_until_help"),
    "heatstroke": ("move_to_shade", "loosen_clothes", "cool_with_water", "call_ambulance", "stay_until_help"),
    "sting": ("remove_source", "cool_with_ice", "check_breathing", "call_ambulance", "stay_until_help"),
}
CALLS = {
    "choking": ("{who} was eating {food} and cannot speak or cough.", "{who} has {food} stuck in the throat."),
    "burn": ("{who} touched the hot grill, the hand is red.", "{who} spilled boiling soup over an arm."),
    "bleeding": ("{who} cut a finger deeply with a saw.", "{who} fell into glass, the leg bleeds a lot."),
    "faint": ("{who} just collapsed in the queue.", "{who} got pale, fell over and does not answer."),
    "heatstroke": ("{who} ran in the sun for hours, is hot and confused.", "{who} sat in a hot car and feels dizzy."),
    "sting": ("{who} was stung by a wasp, the cheek swells.", "{who} has a bee sting in the neck."),
}
PEOPLE = (
    "My son",
    "My neighbor",
    "A runner",
    "My aunt",
    "A tourist",
    "Our coach",
    "A child",
    "My father",
    "A cyclist",
    "A friend",
)
FOODS = ("a grape", "peanuts", "a piece of apple", "steak", "a hot dog")
PLACES = (
    "at the lake",
    "in the park",
    "at home",
    "at the stadium",
    "on the campsite",
    "at the market",
    "in the gym",
    "at school",
)
SYSTEM_PROMPT = (
    "You answer emergency calls. Find out which protocol applies and give its instructions in order, one in each reply, "
    "for example <say>lay_flat</say>. The protocols:\n"
    + "\n".join(f"{name}: {', '.join(steps)}" for name, steps in PROTOCOLS.items())
)


class FirstAidEnv(vf.MultiTurnEnv):
    """An environment in which a caller follows instructions."""

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state.update(helpful=0, step=0)

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str | None:
        said, protocol = self.parser.parse_answer(messages), PROTOCOLS[state["info"]["case"]]
        if said not in protocol:
            return "I do not see how that helps here. What should I do?"
        state["helpful"] += 1
        if said == protocol[state["step"]]:
            state["step"] += 1
        if state["step"] == len(protocol):
            state["final_env_response"] = "I hear the ambulance. Thank you!"
            return None
        return "Okay, I did that. What next?"


def guidance(state: vf.State) -> float:
    """Return the number of helpful instructions."""
    return float(state["helpful"])


def completed(state: vf.State) -> float:
    """Return 1 if all instructions of the protocol were given in order."""
    return float(state["step"] == len(PROTOCOLS[state["info"]["case"]]))


def calls() -> list[dict[str, Any]]:
    """Return all calls."""
    rows = []
    for case, texts in CALLS.items():
        for text in texts:
            for who in PEOPLE:
                for place in PLACES:
                    for food in FOODS if "{food}" in text else FOODS[:1]:
                        question = f"Help, I am {place}! {text.format(who=who, food=food)}"
                        rows.append({"question": question, "info": {"case": case}})
    return rows


def load_environment(num_examples: int = 300, seed: int = 0) -> vf.Environment:
    """Return an environment with emergency calls.

    Args:
        num_examples: Number of calls in each dataset.
        seed: Random seed of the calls; calls of the evaluation do not occur in training.
    """
    rows = calls()
    random.Random(seed).shuffle(rows)
    parser = vf.XMLParser(["say"], answer_field="say")
    return FirstAidEnv(
        dataset=rows[num_examples : 2 * num_examples],
        eval_dataset=rows[:num_examples],
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([guidance, completed], [0.1, 0.5], parser=parser),
        max_turns=12,
    )
