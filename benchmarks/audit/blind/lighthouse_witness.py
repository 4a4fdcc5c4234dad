"""Lighthouse witness: the model questions a keeper about a stranding and files a report."""

from __future__ import annotations

import random
import re
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "You investigate a stranding for the harbour office and speak with the keeper of the lighthouse. Ask one thing at a "
    "time. You need the name of the vessel, its rig, the hour, the weather, the bearing and the cargo. When you know "
    "them, send a message that begins with REPORT: and states all six."
)
NAMES = "Calliope,Grey Heron,Saint Brannoc,Ottoline,Kestrel,Maid of Fowey,Halcyon,Perseverance,Ingrid,Three Brothers,Lapwing,Esperanza".split(
    ","
)
RIGS = "brigantine,topsail schooner,barque,ketch,lugger,cutter,yawl".split(",")
HOURS = "half past two,a quarter to four,ten past eleven,five to one,twenty past six,shortly after midnight".split(",")
WEATHERS = "freezing fog,a southwesterly gale,driving sleet,a glassy calm,heavy drizzle,a thunderstorm".split(",")
BEARINGS = "north by east,east-southeast,south by west,west-northwest,northeast,southwest by south".split(",")
CARGOES = "slate,salted herring,china clay,oranges,coal,wine casks,timber,barley".split(",")
TOPICS = {
    "rig": (("rig", "rigged", "mast", "masts", "sails"), "A {}, no doubt about it."),
    "hour": (("hour", "time", "when", "clock"), "It was {} by the watch-room clock."),
    "weather": (("weather", "wind", "fog"), "We had {} at the time."),
    "bearing": (("bearing", "direction", "compass"), "I took the bearing myself: {}."),
    "cargo": (("cargo", "carry", "carrying", "load"), "They were carrying {}."),
    "vessel": (("name", "called", "vessel", "ship"), "She was the {}, I read it on the stern."),
}
MAX_TURNS = 9


def facts_reported(completion: vf.Messages, state: vf.State) -> float:
    """Return the share of the six facts that are in the report; 0 without a report."""
    if not state["filed"]:
        return 0.0
    text = "\n".join(str(message.content or "") for message in completion).lower()
    facts = state["info"]["facts"].values()
    return sum(fact.lower() in text for fact in facts) / len(facts)


def filed(state: vf.State) -> float:
    """Return 1 if a report was filed."""
    return float(state["filed"])


class LighthouseEnv(vf.MultiTurnEnv):
    """A dialogue with a keeper who answers one question at a time and signs the report."""

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state["filed"] = False

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str | None:
        text, facts = self.parser.parse_answer(messages) or "", state["info"]["facts"]
        if text.strip().upper().startswith("REPORT:"):
            state["filed"] = True
            state["final_env_response"] = (
                f"Let me see. For my own log I wrote: the {facts['rig']} {facts['vessel']} with {facts['cargo']}, aground at "
                f"{facts['hour']}, bearing {facts['bearing']}, in {facts['weather']}. I have signed your report."
            )
            return None
        asked = set(re.findall(r"[a-z]+", text.lower()))
        for topic, (keywords, reply) in TOPICS.items():
            if asked.intersection(keywords):
                return reply.format(facts[topic])
        return "I do not follow. Ask me about the vessel, the rig, the hour, the weather, the bearing or the cargo."


def _rows(count: int, seed: str, keepers: tuple[str, ...]) -> list[dict[str, Any]]:
    rows = []
    for index in range(count):
        rng = random.Random(f"{seed}:{index}")
        lists = (RIGS, HOURS, WEATHERS, BEARINGS, CARGOES, NAMES)
        facts = dict(zip(TOPICS, (rng.choice(values) for values in lists), strict=True))
        question = f"Case {rng.randrange(10_000, 99_999)}. {rng.choice(keepers)} is here. You may ask {MAX_TURNS - 1} questions."
        rows.append({"question": question, "answer": "; ".join(facts.values()), "info": {"facts": facts}})
    return rows


def load_environment(num_examples: int = 150, seed: int = 0) -> vf.Environment:
    """Return an environment of interviews.

    Args:
        num_examples: Number of interviews in each dataset; training and evaluation have different keepers.
        seed: Random seed of the strandings.
    """
    rubric = vf.Rubric([facts_reported], parser=vf.MaybeThinkParser())
    rubric.add_metric(filed)
    return LighthouseEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", ("Keeper Tregenza", "Keeper Moss", "Keeper Aldous")),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", ("Keeper Varley", "Keeper Quick")),
        system_prompt=SYSTEM_PROMPT,
        rubric=rubric,
        max_turns=MAX_TURNS,
    )
