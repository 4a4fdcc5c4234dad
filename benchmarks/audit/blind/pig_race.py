"""Pig: a dice game for two. Roll to collect points, hold to keep them, lose them with a 1."""

from __future__ import annotations

import random
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "You play Pig against a rival. In your turn, roll a die as often as you like: 2 to 6 add to your turn total, "
    "a 1 ends your turn and you lose the turn total. Hold to add the turn total to your score. "
    "Whoever reaches the target first wins. Reply <move>roll</move> or <move>hold</move>."
)


def text_of(state: vf.State, news: str = "") -> str:
    """Return what the player sees."""
    lines = [news] if news else []
    lines.append(f"Target {state['target']}. You {state['mine']}, rival {state['theirs']}. Turn total {state['turn']}.")
    return "\n".join(lines)


class PigEnv(vf.MultiTurnEnv):
    """A game of Pig; the rival holds at a number that depends on the row."""

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        info = state["info"]
        state.update(mine=0, theirs=0, turn=0, target=info["target"], winner=None, dice=random.Random(info["seed"]))
        news = self._rival(state)
        state["prompt"] = [*state["prompt"][:-1], vf.UserMessage(f"{info['name']}\n{text_of(state, news)}")]

    def _rival(self, state: vf.State) -> str:
        total, dice, hold_at = 0, state["dice"], state["info"]["hold_at"]
        while total < hold_at and state["theirs"] + total < state["target"]:
            die = dice.randint(1, 6)
            if die == 1:
                return "The rival rolled a 1."
            total += die
        state["theirs"] += total
        if state["theirs"] >= state["target"]:
            state["winner"] = "rival"
        return f"The rival holds {total}."

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str | None:
        move = (self.parser.parse_answer(messages) or "").strip().lower()
        news = ""
        if move == "roll":
            die = state["dice"].randint(1, 6)
            if die == 1:
                state["turn"] = 0
                news = f"You rolled a 1. {self._rival(state)}"
            else:
                state["turn"] += die
                news = f"You rolled a {die}."
                if state["mine"] + state["turn"] >= state["target"]:
                    state["mine"] += state["turn"]
                    state["winner"] = "player"
        elif move == "hold":
            state["mine"] += state["turn"]
            state["turn"] = 0
            news = self._rival(state)
        else:
            state["final_env_response"] = "That is not a move. The game is over."
            return None
        if state["winner"]:
            state["final_env_response"] = f"{text_of(state, news)}\nThe {state['winner']} wins."
            return None
        return text_of(state, news)


def outcome(state: vf.State) -> float:
    """Return 1 for a win, 0 for a loss, and half a point for a game without a winner."""
    return {"player": 1.0, "rival": 0.0}.get(state["winner"], 0.5)


def num_points(state: vf.State) -> float:
    return float(state["mine"])


def steady(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Hold at 18 points or more."""
    return "<move>hold</move>" if state["turn"] >= 18 else "<move>roll</move>"


def timid(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Hold after every roll."""
    return "<move>hold</move>" if state["turn"] else "<move>roll</move>"


def _rows(count: int, seed: str) -> list[dict[str, Any]]:
    rows = []
    for index in range(count):
        rng = random.Random(f"{seed}:{index}")
        info = {"seed": rng.getrandbits(32), "target": rng.randint(40, 60), "hold_at": rng.randint(10, 22)}
        info["name"] = f"Game {info['seed']} to {info['target']} points."
        rows.append({"question": info["name"], "info": info})
    return rows


def load_environment(num_examples: int = 400, seed: int = 0, max_turns: int = 100) -> vf.Environment:
    """Return an environment with games of Pig.

    Args:
        num_examples: Number of games in each dataset.
        seed: Random seed of the datasets.
        max_turns: Maximum rolls and holds of the player.
    """
    parser = vf.XMLParser(["move"], answer_field="move")
    rubric = vf.Rubric([outcome], parser=parser)
    rubric.add_metric(num_points)
    return PigEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train"),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval"),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=rubric,
        policies={"steady": steady, "timid": timid},
        max_turns=max_turns,
    )
