"""Apple bag: draw apples from a bag and stop before you draw a wormy one."""

from __future__ import annotations

import random
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "A bag holds red apples (1 point), golden apples (2 points) and wormy ones. You take one apple after the other, and you "
    "feel whether the next one is firm or soft: wormy apples are soft, but some good ones are soft, too. Reply 'draw' to draw "
    "it, 'skip' to lay it aside (at most four times), or 'stop' to keep your points. If you draw a wormy apple, you lose all "
    "points. A full basket has ten points."
)
GOAL, SKIPS = 10, 4
POINTS = {"red": 1, "golden": 2}


def feel(state: vf.State) -> str:
    """Return what the model knows about the next apple."""
    return f"The next apple is {state['info']['bag'][state['place']][1]}."


def picker(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Draw firm apples, skip soft ones, and stop when nothing can be skipped any more."""
    if state["info"]["bag"][state["place"]][1] == "firm":
        return "draw"
    return "skip" if state["skips"] < SKIPS else "stop"


def cautious(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Draw one apple and stop."""
    return "stop" if state["place"] else "draw"


class BagEnv(vf.MultiTurnEnv):
    """An environment in which the order of the apples is fixed by the example."""

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state.update(place=0, points=0, skips=0)

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str | None:
        word = str(messages[-1].content or "").strip().strip("'.").lower()
        if word == "stop":
            return self._end(state, f"You keep {state['points']} points.")
        if word == "skip" and state["skips"] < SKIPS:
            state["skips"] += 1
            text = f"You laid the apple aside; you can skip {SKIPS - state['skips']} more."
        elif word == "draw":
            apple = state["info"]["bag"][state["place"]][0]
            if apple == "wormy":
                state["points"] = 0
                return self._end(state, "A wormy apple! You lose all points.")
            state["points"] += POINTS[apple]
            text = f"A {apple} apple. You have {state['points']} points."
            if state["points"] >= GOAL:
                return self._end(state, f"{text} The basket is full.")
        else:
            state["points"] = 0
            return self._end(state, "You cannot do that. You lose all points.")
        state["place"] += 1
        if state["place"] == len(state["info"]["bag"]):
            return self._end(state, f"{text} The bag is empty.")
        return f"{text} {feel(state)}"

    def _end(self, state: vf.State, text: str) -> None:
        state["final_env_response"] = text


def kept(state: vf.State) -> float:
    """Return the points that were kept, as a share of a full basket."""
    return min(state["points"], GOAL) / GOAL


def skipped(state: vf.State) -> float:
    """Return the number of apples laid aside."""
    return float(state["skips"])


def _rows(count: int, seed: str) -> list[dict[str, Any]]:
    rows = []
    for index in range(count):
        rng = random.Random(f"{seed}:{index}")
        red, golden, wormy = rng.randint(5, 9), rng.randint(4, 7), rng.randint(3, 5)
        bag = [(kind, "soft" if rng.random() < 0.15 else "firm") for kind in ["red"] * red + ["golden"] * golden]
        bag += [("wormy", "soft")] * wormy
        rng.shuffle(bag)
        question = f"Bag {seed.split(':')[-1]} {index + 1}: {red} red, {golden} golden, {wormy} wormy. The first apple is {bag[0][1]}."
        rows.append({"question": question, "info": {"bag": bag}})
    return rows


def load_environment(num_examples: int = 400, seed: int = 0) -> vf.Environment:
    """Return an environment with bags of different contents.

    Args:
        num_examples: Number of bags for training, and for evaluation.
        seed: Random seed of the bags.
    """
    rubric = vf.Rubric([kept])
    rubric.add_metric(skipped)
    return BagEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train"),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval"),
        system_prompt=SYSTEM_PROMPT,
        rubric=rubric,
        policies={"picker": picker, "cautious": cautious},
        max_turns=24,
    )
