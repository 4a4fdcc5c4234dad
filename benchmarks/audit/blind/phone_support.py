"""Phone support: find out what is wrong with a customer's device, and tell the customer how to repair it."""

import random
import re

import rove as vf

SYSTEM_PROMPT = (
    "You are on the phone with a customer whose device does not work. Ask about the light, the sound, the cable or the age "
    "of the device to find the cause, then tell the customer what to do. What to do: 'replace the fuse' if the light is off, "
    "'clean the filter' if it hums, 'swap the cable' if the cable is bent, 'install the update' if it is younger than a "
    "year and nothing else is wrong, 'send it in' if it is older and nothing else is wrong."
)
DEVICES = [
    "dishwasher",
    "amplifier",
    "air purifier",
    "projector",
    "dehumidifier",
    "coffee machine",
    "freezer",
    "printer",
    "sewing machine",
    "treadmill",
]
COMPLAINTS = [
    "My {0} stopped this morning.",
    "The {0} does nothing any more.",
    "Something is wrong with our {0}.",
    "I cannot get the {0} to start.",
    "The {0} keeps switching itself off.",
]
NAMES = [
    "Ruiz",
    "Okafor",
    "Lindqvist",
    "Haddad",
    "Moreau",
    "Kowalski",
    "Tanaka",
    "Byrne",
    "Costa",
    "Novak",
    "Silva",
    "Weber",
]
CONFIRM = re.compile(r"\b(working|works|solved|resolved|all right|ok|okay)\b.*\?", re.S)
THANKS = "Yes, it works again. Thank you, goodbye!"
LOST = "I do not know what you mean. Can you ask me something about the device?"


def facts(cause, rng):
    """What the customer can tell about the device."""
    return {
        "light": "The light is off." if cause == "fuse" else "The light is green.",
        "sound": "It hums loudly." if cause == "filter" else "I hear nothing unusual.",
        "cable": "The cable is bent right at the plug." if cause == "cable" else "The cable looks fine.",
        "age": f"It is {rng.randint(2, 11)} months old."
        if cause == "update"
        else f"It is {rng.randint(2, 9)} years old.",
    }


FIXES = {
    "fuse": "replace the fuse",
    "filter": "clean the filter",
    "cable": "swap the cable",
    "update": "install the update",
    "repair": "send it in",
}


def customer_says(text, info):
    """The customer's next sentence."""
    text = text.lower()
    advice = [fix for fix in FIXES.values() if fix in text]
    if len(advice) > 1:
        return "One thing at a time, please. What should I do first?"
    if advice == [info["fix"]] or CONFIRM.search(text):
        return THANKS
    if advice:
        return "I have done that, but it is still broken."
    told = [fact for topic, fact in info["facts"].items() if topic in text]
    return " ".join(told) or LOST


class SupportEnv(vf.MultiTurnEnv):
    """A call with a scripted customer."""

    async def setup_state(self, state, **kwargs):
        state["repaired"] = False
        state["attempts"] = 0

    async def env_response(self, messages, state, **kwargs):
        text = messages[-1].content or ""
        state["attempts"] += any(fix in text.lower() for fix in FIXES.values())
        answer = customer_says(text, state["info"])
        if answer == THANKS:
            state["repaired"] = True
            state["final_env_response"] = answer
            return None
        return answer


def repaired(state):
    """1 if the device works again, and less for every attempt that did not help."""
    if not state["repaired"]:
        return 0.0
    return max(0.0, 1 - 0.5 * max(0, state["attempts"] - 1))


def num_attempts(state):
    """How often the model told the customer what to do."""
    return float(state["attempts"])


def rows(count, seed):
    made = []
    for index in range(count):
        rng = random.Random(f"{seed}:{index}")
        cause = rng.choice(sorted(FIXES))
        opening = f"Hello, this is {rng.choice(NAMES)}, customer {rng.randint(1000, 9999)}{index:03}. "
        question = opening + rng.choice(COMPLAINTS).format(rng.choice(DEVICES))
        made.append({"question": question, "info": {"fix": FIXES[cause], "facts": facts(cause, rng)}})
    return made


def load_environment(num_examples: int = 200, seed: int = 0, max_turns: int = 8) -> vf.Environment:
    """Calls from customers; every call has its own device, cause and facts."""
    rubric = vf.Rubric([repaired])
    rubric.add_metric(num_attempts)
    return SupportEnv(
        dataset=lambda: rows(num_examples, f"{seed}:train"),
        eval_dataset=lambda: rows(num_examples, f"{seed}:eval"),
        system_prompt=SYSTEM_PROMPT,
        rubric=rubric,
        max_turns=max_turns,
    )
