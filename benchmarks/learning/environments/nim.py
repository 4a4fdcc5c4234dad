"""Nim: take one to three stones; the player who takes the last one wins. The opponent plays half of its moves perfectly."""

from __future__ import annotations

import random
from typing import Any

import rove as vf

SYSTEM_PROMPT = "Nim: take 1, 2 or 3 stones; the last stone wins. Answer <take>number</take>"
MAX_TAKE = 3
MIN_STONES, MAX_STONES = 8, 21


def best_take(stones: int, rng: random.Random) -> int:
    """Return the winning move, or any move if there is none."""
    return stones % (MAX_TAKE + 1) or rng.randint(1, min(MAX_TAKE, stones))


def amateur(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Play half of the moves perfectly, the others at random."""
    stones = state["stones"]
    take = best_take(stones, rng) if rng.random() < 0.5 else rng.randint(1, min(MAX_TAKE, stones))
    return f"<take>{take}</take>"


def random_player(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Take a random number of stones."""
    return f"<take>{rng.randint(1, min(MAX_TAKE, state['stones']))}</take>"


class NimEnv(vf.MultiTurnEnv):
    """The model moves first in every game."""

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state.update(stones=state["info"]["stones"], winner="")

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str | None:
        take, stones = self.parser.parse_answer(messages) or "", state["stones"]
        if take not in ("1", "2", "3") or int(take) > stones:
            state["winner"] = "opponent"
            state["final_env_response"] = "Invalid. You lose."
            return None
        stones -= int(take)
        if stones:
            rng = random.Random(f"{state['info']['seed']}:{stones}")
            reply = best_take(stones, rng) if rng.random() < 0.5 else rng.randint(1, min(MAX_TAKE, stones))
            stones -= reply
            if stones:
                state["stones"] = stones
                return f"{stones} stones"
        state["winner"] = "opponent" if state["stones"] > int(take) else "model"
        state["final_env_response"] = "You win." if state["winner"] == "model" else "You lose."
        return None


def won(state: vf.State) -> float:
    """Return 1 for a game that the model won."""
    return float(state["winner"] == "model")


def _rows(count: int, seed: str) -> list[dict[str, Any]]:
    rows = []
    for index in range(count):
        stones = random.Random(f"{seed}:{index}").choice(
            [n for n in range(MIN_STONES, MAX_STONES + 1) if n % (MAX_TAKE + 1)]
        )
        rows.append({"question": f"{stones} stones", "info": {"stones": stones, "seed": f"{seed}:{index}"}})
    return rows


def load_environment(num_examples: int = 2000, seed: int = 0) -> vf.Environment:
    """Return an environment with one game per example; the model can win each.

    Args:
        num_examples: Number of games.
        seed: Random seed of the dataset and of the opponent.
    """
    parser = vf.XMLParser(["take"], answer_field="take")
    rubric = vf.Rubric(parser=parser)
    rubric.add_reward_func(won, weight=1.0)
    rubric.add_reward_func(parser.get_format_reward_func(), weight=0.2, name="format")
    return NimEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train"),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval"),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=rubric,
        policies={"amateur": amateur, "random_player": random_player},
        max_turns=MAX_STONES,
    )
