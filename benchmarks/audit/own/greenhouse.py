"""Greenhouse: keep the temperature in its range through ten hours of changing weather."""

from __future__ import annotations

import random
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "Keep the greenhouse between 15 and 25 degrees. Every hour you may heat (3 degrees more), vent (3 degrees less) or wait; the "
    "weather changes the temperature too. Answer <action>heat, vent or wait</action>"
)
LOWEST, HIGHEST, HOURS = 15, 25, 10
ACTIONS = {"heat": 3, "vent": -3, "wait": 0}
WEATHER = (-2, -1, -1, 0, 0, 1, 1, 2)


def gardener(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Heat below 18 degrees, vent above 22."""
    temperature = state["temperature"]
    return f"<action>{'heat' if temperature < 18 else 'vent' if temperature > 22 else 'wait'}</action>"


def sleepy(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Act like the gardener, with a random action in 30 % of the hours."""
    return f"<action>{rng.choice(list(ACTIONS))}</action>" if rng.random() < 0.3 else gardener(messages, state, rng)


class GreenhouseEnv(vf.MultiTurnEnv):
    """An environment that shows the temperature after every hour."""

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state.update(temperature=state["info"]["start"], good_hours=0, hours=0)

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str | None:
        action = self.parser.parse_answer(messages)
        state["temperature"] += ACTIONS.get(action, 0) + state["info"]["weather"][state["hours"]]
        state["hours"] += 1
        state["good_hours"] += LOWEST <= state["temperature"] <= HIGHEST
        if state["hours"] < HOURS:
            return f"{state['temperature']} degrees."
        state["final_env_response"] = f"{state['temperature']} degrees. The day is over."
        return None


def comfort(state: vf.State) -> float:
    """Return the share of the hours in which the temperature was in its range."""
    return state["good_hours"] / HOURS


def _rows(count: int, seed: str, evaluation: bool) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    rows = []
    for day in rng.sample(range(1 + evaluation, 10_000, 2), count):
        info = {"start": rng.randint(18, 22), "weather": rng.choices(WEATHER, k=HOURS)}
        rows.append({"question": f"Day {day}: it is {info['start']} degrees.", "info": info})
    return rows


def load_environment(num_examples: int = 100, seed: int = 0) -> vf.Environment:
    """Return an environment with one day per example. The reward is 0 to 1.

    Args:
        num_examples: Number of days.
        seed: Random seed of the dataset; evaluation days differ from training days.
    """
    parser = vf.XMLParser(["action"], answer_field="action")
    return GreenhouseEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", False),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", True),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([comfort], parser=parser),
        policies={"gardener": gardener, "sleepy": sleepy},
        max_turns=HOURS,
    )
