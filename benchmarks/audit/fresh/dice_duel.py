"""Dice duel: roll on or hold, and have the points that are needed before the opponent has them."""

from __future__ import annotations

import random
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "You play a game of dice. In your turn you roll a die as often as you like. What you roll is added to the turn's "
    "points, but a 1 loses them and ends the turn. If you hold, the turn's points are yours and the turn ends. Whoever has "
    "the points that are needed first wins. Answer <move>roll</move> or <move>hold</move>"
)


def points(number: int) -> str:
    return f"{number} point{'' if number == 1 else 's'}"


class DiceEnv(vf.MultiTurnEnv):
    """Rolls the dice of both players."""

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state.update(mine=0, theirs=state["info"]["lead"], turn=0, won=False, dice=random.Random(state["seed"]))

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str | None:
        move, target = (self.parser.parse_answer(messages) or "").lower(), state["info"]["target"]
        if move == "roll":
            rolled = state["dice"].randint(1, 6)
            if rolled > 1:
                state["turn"] += rolled
                return f"You rolled a {rolled}. {standing(state)}"
            result = "You rolled a 1 and lost the turn's points."
        elif move == "hold":
            state["mine"] += state["turn"]
            result = f"You hold with {points(state['turn'])}."
        else:
            result = "That is no move; your turn is over and its points are lost."
        state["turn"] = 0
        if state["mine"] >= target:
            state["won"] = True
            state["final_env_response"] = f"{result} You win."
            return None
        made = self._opponent(state)
        state["theirs"] += made
        if state["theirs"] >= target:
            state["final_env_response"] = f"{result} The opponent makes {points(made)} and wins."
            return None
        return f"{result} The opponent makes {points(made)}. {standing(state)}"

    def _opponent(self, state: vf.State) -> int:
        """Return the points of a turn of the opponent, who holds at a fixed number of them or with enough to win."""
        info, made = state["info"], 0
        while made < min(info["holds_at"], info["target"] - state["theirs"]):
            rolled = state["dice"].randint(1, 6)
            if rolled == 1:
                return 0
            made += rolled
        return made


def standing(state: vf.State) -> str:
    """Return the state of the game in words."""
    mine, theirs, turn, target = state["mine"], state["theirs"], state["turn"], state["info"]["target"]
    return f"You have {points(mine)}, the opponent {theirs}; this turn {turn}. Needed: {target}."


def won(state: vf.State) -> float:
    """Return 1 for a game won."""
    return float(state["won"])


def careful(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Hold at 20 points, or with enough to win."""
    enough = state["turn"] >= min(20, state["info"]["target"] - state["mine"])
    return f"<move>{'hold' if enough else 'roll'}</move>"


def reckless(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Roll on in four of five cases."""
    return f"<move>{'roll' if rng.random() < 0.8 else 'hold'}</move>"


def _rows(count: int, seed: str, targets: range) -> list[dict[str, Any]]:
    pool = [(target, holds, lead) for target in targets for holds in range(8, 25) for lead in range(6)]
    rows = []
    for target, holds_at, lead in random.Random(seed).sample(pool, min(count, len(pool))):
        question = (
            f"You have 0 points, the opponent {lead}; this turn 0. Needed: {target}. The opponent holds at {holds_at} or more. "
            "It is your turn."
        )
        rows.append({"question": question, "info": {"target": target, "holds_at": holds_at, "lead": lead}})
    return rows


def load_environment(num_examples: int = 100, seed: int = 0, max_turns: int = 100) -> vf.Environment:
    """Return an environment with games to 35 to 60 points; even numbers are for training, odd ones for evaluation."""
    parser = vf.XMLParser(["move"], answer_field="move")
    return DiceEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", range(36, 61, 2)),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", range(35, 60, 2)),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([won], parser=parser),
        policies={"careful": careful, "reckless": reckless},
        max_turns=max_turns,
    )
