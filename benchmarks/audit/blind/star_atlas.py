"""Star atlas: look up the distances of two stars of an invented sky, and say which one is nearer."""

from __future__ import annotations

import random
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "Which of the two stars is nearer to us? Look up both with distance(star), then call nearer(star). "
    "Distances are in light-years (ly) or parsecs (pc); 1 pc is 3.26 ly."
)
LIGHT_YEARS = {"ly": 1.0, "pc": 3.26}
SYLLABLES = "al ba cor den el fi gar hun il ju kel lo mar nor or pu ra sol tem ul vi wen xa yl zo".split()


def distance(star: str, state: vf.State) -> str:
    """Look up the distance of a star.

    Args:
        star: name of the star
    """
    catalog = state["info"]["catalog"]
    if star not in catalog:
        raise ValueError(f"{star!r} is not in the atlas; it has {', '.join(catalog)}")
    if "choice" not in state:
        state["seen"].append(star)
    value, unit = catalog[star]
    return f"{value} {unit}"


def nearer(star: str, state: vf.State) -> str:
    """Give the final answer.

    Args:
        star: name of the nearer star
    """
    state.setdefault("choice", star)
    return "Thank you."


def correct(state: vf.State, answer: str) -> float:
    """Return 1 if the right star was chosen after both had been looked up."""
    return both_seen(state) * float(state.get("choice") == answer)


def both_seen(state: vf.State) -> float:
    """Return 1 if both stars of the question were looked up."""
    return float(set(state["info"]["pair"]) <= set(state["seen"]))


def _look_up(messages: vf.Messages, state: vf.State, factors: dict[str, float]) -> vf.AssistantMessage:
    pair, turn = state["info"]["pair"], len(state["trajectory"])
    if turn < 2:
        return vf.tool_call("distance", star=pair[turn])
    results = [message["content"].split() for message in messages if message["role"] == "tool"]
    distances = [float(value) * factors[unit] for value, unit in results[:2]]
    return vf.tool_call("nearer", star=pair[distances.index(min(distances))])


def astronomer(messages: vf.Messages, state: vf.State, rng: random.Random) -> vf.AssistantMessage:
    """Look up both stars and convert the units."""
    return _look_up(messages, state, LIGHT_YEARS)


def unitless(messages: vf.Messages, state: vf.State, rng: random.Random) -> vf.AssistantMessage:
    """Look up both stars and compare the numbers without their units."""
    return _look_up(messages, state, {"ly": 1.0, "pc": 1.0})


class StarAtlasEnv(vf.StatefulToolEnv):
    """An environment with a catalog for each question; the answer ends the rollout."""

    def __init__(self, **kwargs: Any):
        super().__init__(max_threads=0, parallel_calls=False, **kwargs)
        self.add_tool(distance, args_to_skip=["state"])
        self.add_tool(nearer, args_to_skip=["state"])

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state["seen"] = []

    def update_tool_args(
        self, tool_name: str, tool_args: dict[str, Any], messages: vf.Messages, state: vf.State, **kwargs: Any
    ) -> dict[str, Any]:
        return {**tool_args, "state": state}

    @vf.stop
    def has_chosen(self, state: vf.State) -> bool:
        return "choice" in state


def _name(rng: random.Random) -> str:
    return "".join(rng.sample(SYLLABLES, 3)).capitalize()


def _row(seed: str) -> dict[str, Any]:
    rng = random.Random(seed)
    names: list[str] = []
    while len(names) < 6:
        name = _name(rng)
        if name not in names:
            names.append(name)
    catalog: dict[str, list[Any]] = {}
    light_years: dict[str, float] = {}
    while len(catalog) < len(names):
        unit = rng.choice(sorted(LIGHT_YEARS))
        value = round(rng.uniform(4, 90) / LIGHT_YEARS[unit], 1)
        converted = value * LIGHT_YEARS[unit]
        if all(abs(converted - other) > 1 for other in light_years.values()):
            name = names[len(catalog)]
            catalog[name], light_years[name] = [value, unit], converted
    pair = rng.sample(names, 2)
    answer = min(pair, key=light_years.__getitem__)
    return {"question": f"{pair[0]} or {pair[1]}?", "answer": answer, "info": {"pair": pair, "catalog": catalog}}


def load_environment(num_examples: int = 500, seed: int = 0, max_turns: int = 5) -> vf.Environment:
    """Return an environment with questions about the stars of an atlas.

    Args:
        num_examples: Number of questions for training, and for evaluation; each has its own atlas.
        seed: Random seed of the atlases.
        max_turns: Maximum model turns.
    """
    rubric = vf.Rubric([correct])
    rubric.add_metric(both_seen)
    return StarAtlasEnv(
        dataset=lambda: [_row(f"{seed}:train:{index}") for index in range(num_examples)],
        eval_dataset=lambda: [_row(f"{seed}:eval:{index}") for index in range(num_examples)],
        system_prompt=SYSTEM_PROMPT,
        rubric=rubric,
        policies={"astronomer": astronomer, "unitless": unitless},
        max_turns=max_turns,
    )
