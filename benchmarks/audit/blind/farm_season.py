"""Farm season: sow the right crop for the weather of each month."""

from __future__ import annotations

import random
import re
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "You run a farm for six months. Each month you see the chance of rain and sow one crop. Rice grows only in a rainy "
    "month, wheat only in a dry one; barley always gives half a harvest. Answer with the crop: <sow>wheat</sow>"
)
MONTHS = ("April", "May", "June", "July", "August", "September")
HARVEST = {"rice": (0.0, 1.0), "wheat": (1.0, 0.0), "barley": (0.5, 0.5)}
"""Crop → harvest in a dry month and in a rainy month."""


def forecast(state: vf.State) -> str:
    month = state["month"]
    return f"{MONTHS[month]}: chance of rain {state['info']['rain'][month]}%."


class FarmSeasonEnv(vf.MultiTurnEnv):
    """An environment in which every reply sows one month."""

    def __init__(self, seed: int, **kwargs: Any):
        super().__init__(**kwargs)
        self.weather = random.Random(seed)

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state.update(month=0, harvest=0.0)

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str | None:
        crop, month = self.parser.parse_answer(messages), state["month"]
        rainy = self.weather.random() * 100 < state["info"]["rain"][month]
        grown = HARVEST.get(crop, (0.0, 0.0))[rainy]
        state["harvest"] += grown
        state["month"] += 1
        report = f"{MONTHS[month]} was {'rainy' if rainy else 'dry'}. Harvest: {grown:g}."
        if state["month"] == len(MONTHS):
            state["final_env_response"] = f"{report} The season is over, the barn holds {state['harvest']:g}."
            return None
        return f"{report}\n{forecast(state)}"


def harvest(state: vf.State) -> float:
    """Return the harvest as a fraction of six full months."""
    return state["harvest"] / len(MONTHS)


def farmer(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Sow what the forecast suggests."""
    chance = int(re.search(r"chance of rain (\d+)%", messages[-1].content).group(1))
    return f"<sow>{'rice' if chance > 50 else 'wheat'}</sow>"


def gambler(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Sow a random crop."""
    return f"<sow>{rng.choice(('rice', 'wheat'))}</sow>"


def _rows(count: int, seed: str) -> list[dict[str, Any]]:
    rows = []
    for index in range(count):
        rng = random.Random(f"{seed}:{index}")
        rain = [rng.choice((5, 10, 15, 20, 25, 30, 70, 75, 80, 85, 90, 95)) for _ in MONTHS]
        fields = rng.randint(3, 400)
        question = f"Season {index + 1} on a farm of {fields} fields. {MONTHS[0]}: chance of rain {rain[0]}%."
        rows.append({"question": question, "info": {"season": f"{seed}:{index}", "rain": rain}})
    return rows


def load_environment(num_examples: int = 300, seed: int = 0) -> vf.Environment:
    """Return an environment with farming seasons.

    Args:
        num_examples: Number of seasons in each dataset.
        seed: Random seed of the forecasts and of the weather, so that a season is the same whenever it is played.
    """
    parser = vf.XMLParser(["sow"], answer_field="sow")
    return FarmSeasonEnv(
        seed,
        dataset=lambda: _rows(num_examples, f"{seed}:train"),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval"),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([harvest], parser=parser),
        policies={"farmer": farmer, "gambler": gambler},
        max_turns=len(MONTHS),
    )
