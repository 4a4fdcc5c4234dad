"""Stone piles: take stones from one of several piles; whoever takes the last stone wins (Nim)."""

from __future__ import annotations

import functools
import operator
import random
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "You and a rival take turns. In each turn, take one or more stones from one pile. Whoever takes the last stone wins. "
    "Reply with the pile and the number of stones, for example <take>2 3</take> for three stones from pile 2. "
    "A move that is not possible loses the game."
)
Move = tuple[int, int]


def all_moves(piles: list[int]) -> list[Move]:
    """Return all moves as (index of the pile, stones)."""
    return [(index, stones) for index, pile in enumerate(piles) for stones in range(1, pile + 1)]


def winning_moves(piles: list[int]) -> list[Move]:
    """Return the moves after which the other player cannot win against best play."""
    total = functools.reduce(operator.xor, piles)
    return [(index, pile - (pile ^ total)) for index, pile in enumerate(piles) if pile ^ total < pile]


def rival_move(piles: list[int], seed: int, skill: float) -> Move:
    """Return the rival's move: a winning one with probability `skill` if there is any, otherwise a random one."""
    rng = random.Random(f"{seed}:{piles}")
    good = winning_moves(piles)
    return rng.choice(good if good and rng.random() < skill else all_moves(piles))


def show(piles: list[int]) -> str:
    return "\n".join(f"Pile {number}: {stones}" for number, stones in enumerate(piles, start=1))


class PilesEnv(vf.MultiTurnEnv):
    """A game of Nim in which the model begins."""

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state.update(piles=list(state["info"]["piles"]), winner=None)

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str | None:
        piles, info = state["piles"], state["info"]
        parts = (self.parser.parse_answer(messages) or "").split()
        numbers = [int(part) for part in parts if part.isascii() and part.isdigit() and len(part) < 4]
        move = (numbers[0] - 1, numbers[1]) if len(parts) == len(numbers) == 2 else None
        if move not in all_moves(piles):
            state["winner"] = "rival"
            state["final_env_response"] = "That move is not possible. You lose."
            return None
        piles[move[0]] -= move[1]
        if not any(piles):
            state["winner"] = "player"
            state["final_env_response"] = "You took the last stone. You win."
            return None
        index, stones = rival_move(piles, info["seed"], info["skill"])
        piles[index] -= stones
        news = f"The rival takes {stones} from pile {index + 1}."
        if not any(piles):
            state["winner"] = "rival"
            state["final_env_response"] = f"{news} You lose."
            return None
        return f"{news}\n{show(piles)}"


def won(state: vf.State) -> float:
    """Return 1 if the player took the last stone."""
    return float(state["winner"] == "player")


def expert(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Take a winning move."""
    index, stones = rng.choice(winning_moves(state["piles"]) or all_moves(state["piles"]))
    return f"<take>{index + 1} {stones}</take>"


def any_move(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Take a random move."""
    index, stones = rng.choice(all_moves(state["piles"]))
    return f"<take>{index + 1} {stones}</take>"


def _rows(count: int, seed: str, held_out: bool) -> list[dict[str, Any]]:
    starts = [
        [a, b, c]
        for a in range(2, 13)
        for b in range(2, 13)
        for c in range(2, 13)
        if a ^ b ^ c and (a * 169 + b * 13 + c) % 4 == (0 if held_out else 1)
    ]
    rng = random.Random(seed)
    rows = []
    for piles in rng.sample(starts, min(count, len(starts))):
        info = {"piles": piles, "seed": rng.getrandbits(32), "skill": rng.uniform(0.3, 0.7)}
        rows.append({"question": show(piles), "info": info})
    return rows


def load_environment(num_examples: int = 250, seed: int = 0, max_turns: int = 40) -> vf.Environment:
    """Return an environment with games of Nim against rivals of different strength.

    Args:
        num_examples: Number of games in each dataset.
        seed: Random seed of the games.
        max_turns: Maximum moves of the player.
    """
    parser = vf.XMLParser(["take"], answer_field="take")
    return PilesEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", False),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", True),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([won], parser=parser),
        policies={"expert": expert, "any_move": any_move},
        max_turns=max_turns,
    )
