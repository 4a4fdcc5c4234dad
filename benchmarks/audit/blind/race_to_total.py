"""Count up: a parlor game in which two players add small numbers in turns until one reaches the target."""

from __future__ import annotations

import random
import zlib
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "You and an opponent take turns adding a whole number to a total. Whoever reaches the target exactly wins. You may not "
    "add more than the limit, and you may not go beyond the target; a move that is not allowed loses. You begin. Answer "
    "<add>number</add>."
)


def best_step(total: int, target: int, limit: int) -> int:
    """Return the step that wins, or 0 if there is none."""
    return (target - total) % (limit + 1)


class CountEnv(vf.MultiTurnEnv):
    """An environment with an opponent that reaches the target when it can, and otherwise adds a random number."""

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state.update(total=state["info"]["start"], winner=None)

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str | None:
        target, limit = state["info"]["target"], state["info"]["limit"]
        text = (self.parser.parse_answer(messages) or "").strip()
        step = int(text) if len(text) == 1 and text in "123456789" else 0
        if not 1 <= step <= min(limit, target - state["total"]):
            return self.finish(state, "opponent", "That move is not allowed. You lose.")
        state["total"] += step
        if state["total"] == target:
            return self.finish(state, "model", "You reach the target and win.")
        reply = self.opponent_step(state)
        state["total"] += reply
        if state["total"] == target:
            return self.finish(state, "opponent", f"The opponent adds {reply} and wins.")
        return f"The opponent adds {reply}. Total {state['total']}, target {target}, limit {limit}."

    def opponent_step(self, state: vf.State) -> int:
        info, total = state["info"], state["total"]
        left = info["target"] - total
        if left <= info["limit"]:
            return left
        return random.Random(f"{info['seed']}:{total}").randint(1, info["limit"])

    def finish(self, state: vf.State, winner: str, news: str) -> None:
        state["winner"] = winner
        state["final_env_response"] = news


def won(state: vf.State) -> float:
    """Return 1 for a win."""
    return float(state["winner"] == "model")


def player(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Add what wins; if nothing does, any number that is allowed."""
    info, total = state["info"], state["total"]
    step = best_step(total, info["target"], info["limit"])
    return f"<add>{step or rng.randint(1, min(info['limit'], info['target'] - total))}</add>"


def child(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Add any number that is allowed."""
    info, total = state["info"], state["total"]
    return f"<add>{rng.randint(1, min(info['limit'], info['target'] - total))}</add>"


def is_held_out(start: int, target: int, limit: int) -> bool:
    return zlib.crc32(f"{start}:{target}:{limit}".encode()) % 5 == 0


def rows(count: int, seed: str, held_out: bool) -> list[dict[str, Any]]:
    """Return games that the first player can win."""
    made = []
    for index in range(count):
        rng = random.Random(f"{seed}:{index}")
        while True:
            start, target, limit = rng.randint(0, 15), rng.randint(24, 60), rng.randint(3, 7)
            if best_step(start, target, limit) and is_held_out(start, target, limit) == held_out:
                break
        info = {"start": start, "target": target, "limit": limit, "seed": rng.getrandbits(32)}
        made.append({"question": f"Total {start}, target {target}, limit {limit}.", "info": info})
    return made


def load_environment(num_examples: int = 500, seed: int = 0) -> vf.Environment:
    """Return an environment with games; a fifth of the start positions is reserved for evaluation.

    Args:
        num_examples: Number of games for training, and for evaluation.
        seed: Random seed of the games.
    """
    parser = vf.XMLParser(["add"], answer_field="add")
    return CountEnv(
        dataset=lambda: rows(num_examples, f"{seed}:train", held_out=False),
        eval_dataset=lambda: rows(num_examples, f"{seed}:eval", held_out=True),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([won], parser=parser),
        policies={"player": player, "child": child},
        max_turns=40,
    )
