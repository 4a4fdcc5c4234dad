"""Coin row: two players take coins from the ends of a row; who has more in the end wins."""

from __future__ import annotations

import functools
import random
import zlib
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "There is a row of coins. You and your opponent take turns; you begin. Each turn takes the coin at the left or the right end. "
    "The player with the higher total wins. Answer <take>left</take> or <take>right</take>"
)


@functools.lru_cache(maxsize=100_000)
def lead(coins: tuple[int, ...]) -> int:
    """Return by how much the player to move will be ahead if both play perfectly."""
    if not coins:
        return 0
    return max(coins[0] - lead(coins[1:]), coins[-1] - lead(coins[:-1]))


def best_side(coins: tuple[int, ...]) -> str:
    """Return the better end of a row."""
    return "left" if coins[0] - lead(coins[1:]) >= coins[-1] - lead(coins[:-1]) else "right"


def take(coins: tuple[int, ...], side: str) -> tuple[int, tuple[int, ...]]:
    """Return the coin at an end and the rest of the row."""
    return (coins[0], coins[1:]) if side == "left" else (coins[-1], coins[:-1])


def opponent_side(coins: tuple[int, ...], info: dict[str, Any]) -> str:
    """Return the opponent's choice, which depends only on the game's seed and the row."""
    rng = random.Random(f"{info['seed']}:{coins}")
    return best_side(coins) if rng.random() < info["skill"] else rng.choice(["left", "right"])


class CoinRowEnv(vf.MultiTurnEnv):
    """An environment in which the model takes coins against a scripted opponent."""

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state.update(coins=tuple(state["info"]["coins"]), mine=0, theirs=0, errors=0)

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str | None:
        side = (self.parser.parse_answer(messages) or "").strip().lower()
        if side not in ("left", "right"):
            state["errors"] += 1
            return self._end(state, "That is not a legal move. The game is over.")
        coin, state["coins"] = take(state["coins"], side)
        state["mine"] += coin
        if state["coins"]:
            coin, state["coins"] = take(state["coins"], opponent_side(state["coins"], state["info"]))
            state["theirs"] += coin
        if not state["coins"]:
            return self._end(state, "All coins are taken.")
        return f"Your opponent took {coin}. You have {state['mine']}, your opponent {state['theirs']}.\n{_show(state['coins'])}"

    def _end(self, state: vf.State, text: str) -> None:
        state["final_env_response"] = f"{text} You have {state['mine']}, your opponent {state['theirs']}."


def outcome(state: vf.State) -> float:
    """Return 1 for the higher total, 0.5 for equal totals, 0 for the lower total."""
    if state["mine"] == state["theirs"]:
        return 0.5
    return float(state["mine"] > state["theirs"])


def illegal(state: vf.State) -> float:
    """Return 1 if the game ended with an illegal move."""
    return float(state["errors"] > 0)


def thinker(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Play perfectly."""
    return f"<take>{best_side(state['coins'])}</take>"


def greedy(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Take the larger coin."""
    return f"<take>{'left' if state['coins'][0] >= state['coins'][-1] else 'right'}</take>"


def random_side(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Take any coin."""
    return f"<take>{rng.choice(['left', 'right'])}</take>"


def _show(coins: tuple[int, ...]) -> str:
    return "Coins: " + " ".join(map(str, coins))


def _rows(count: int, seed: str, held_out: bool, length: int) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    rows: list[dict[str, Any]] = []
    while len(rows) < count:
        coins = tuple(rng.randint(1, 20) for _ in range(length))
        text = _show(coins)
        if lead(coins) > 0 and (zlib.crc32(text.encode()) % 5 == 0) == held_out:
            info = {"coins": coins, "skill": rng.choice([0.8, 0.9, 1.0]), "seed": rng.getrandbits(32)}
            rows.append({"question": text, "answer": "", "info": info})
    return rows


def load_environment(num_examples: int = 400, seed: int = 0, length: int = 10) -> vf.Environment:
    """Return an environment with games of coin row that the model can win.

    Args:
        num_examples: Number of games for training and for evaluation.
        seed: Random seed of the games.
        length: Number of coins.
    """
    parser = vf.XMLParser(["take"], answer_field="take")
    rubric = vf.Rubric([outcome], parser=parser)
    rubric.add_metric(illegal)
    return CoinRowEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", False, length),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", True, length),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=rubric,
        policies={"thinker": thinker, "greedy": greedy, "random_side": random_side},
        max_turns=length,
    )
