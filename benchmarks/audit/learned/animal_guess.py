"""Animal guess: find the animal by questions."""

from __future__ import annotations

import random
from typing import Any

import rove as vf

PROPERTIES = {
    "can fly": "bat bee crow owl swan",
    "can swim": "duck seal shark swan frog fish bear",
    "has fur": "bat bear cat cow mouse seal wolf",
    "has feathers": "crow owl swan duck",
    "has horns": "cow goat",
    "has a tail": "cat cow mouse wolf shark fish snake crow goat",
    "lays eggs": "bee crow owl swan duck frog fish snake",
    "eats meat": "bear cat owl seal shark snake wolf",
    "eats grass": "cow goat swan",
    "is small": "bat bee mouse frog",
    "is wild": "bat bear crow owl seal shark snake wolf frog",
    "is loud": "crow duck cow wolf frog",
    "likes night": "bat owl mouse wolf",
    "likes cold": "seal shark",
}
HAS = {name: set(animals.split()) for name, animals in PROPERTIES.items()}
ANIMALS = sorted(set().union(*HAS.values()))
SYSTEM_PROMPT = (
    f"Find the animal. Ask one question per turn: {'; '.join(PROPERTIES)}. Then name the animal; there is one guess. "
    "Answer <say>question or animal</say>"
)
MAX_TURNS, ENOUGH = 9, 8


def detective(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Ask a question that rules an animal out, until one is left."""
    possible = [
        animal for animal in ANIMALS if all((animal in HAS[name]) == told for name, told in state["told"].items())
    ]
    useful = [name for name in PROPERTIES if 0 < len(HAS[name] & set(possible)) < len(possible)]
    return f"<say>{rng.choice(useful) if len(possible) > 1 else possible[0]}</say>"


class AnimalGuessEnv(vf.MultiTurnEnv):
    """An environment that answers yes or no."""

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state.update(told={}, found=False)

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str | None:
        said = self.parser.parse_answer(messages) or ""
        if said not in PROPERTIES:
            state["found"] = said == state["answer"]
            state["final_env_response"] = "Right." if state["found"] else "The game is over."
            return None
        state["told"][said] = state["answer"] in HAS[said]
        if len(state["trajectory"]) < MAX_TURNS:
            return "yes" if state["told"][said] else "no"
        state["final_env_response"] = "The game is over."
        return None


def found(state: vf.State) -> float:
    """Return 1 if the animal was found."""
    return float(state["found"])


def research(state: vf.State) -> float:
    """Return the number of different questions as a share of eight, which are enough for every animal."""
    return min(1.0, len(state["told"]) / ENOUGH)


def _rows(count: int, seed: str, evaluation: bool) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    numbers = rng.sample(range(10 + evaluation, 9999, 2), count)
    return [{"question": f"Game {number}.", "answer": rng.choice(ANIMALS)} for number in numbers]


def load_environment(num_examples: int = 400, seed: int = 0) -> vf.Environment:
    """Return an environment with one game per example.

    The reward is 1 for the animal and up to 0.64 for questions, 0 to 1.64 in all.

    Args:
        num_examples: Number of games.
        seed: Random seed of the dataset; evaluation games differ from training games.
    """
    parser = vf.XMLParser(["say"], answer_field="say")
    return AnimalGuessEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", False),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", True),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([found, research], [1.0, 0.64], parser=parser),
        policies={"detective": detective},
        max_turns=MAX_TURNS,
    )
