"""Pig: roll a die as often as you dare. A one ends the turn without points; whoever first has enough points wins."""

from __future__ import annotations

import random
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "You play Pig. In your turn, you roll a die again and again. A one ends your turn, and you get nothing. "
    "If you hold, you get the sum of the rolls of this turn. Answer <choice>roll</choice> or <choice>hold</choice>."
)


def hold_at_eighteen(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Hold when the turn is worth 18 points or wins the game."""
    enough = state["turn_points"] >= 18 or state["points"] + state["turn_points"] >= state["info"]["target"]
    return f"<choice>{'hold' if enough else 'roll'}</choice>"


def cautious(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Hold after every roll."""
    return f"<choice>{'hold' if state['turn_points'] else 'roll'}</choice>"


class PigEnv(vf.MultiTurnEnv):
    """An environment in which both players share one die; the opponent decides at random whether to roll again."""

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state.update(points=0, opponent_points=state["info"]["head_start"], turn_points=0, throws=0, winner=None)

    def throw(self, state: vf.State) -> int:
        """Return the next throw of the die; it depends only on the row and on how many throws there were."""
        state["throws"] += 1
        return random.Random(f"{state['info']['seed']}:die:{state['throws']}").randint(1, 6)

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str | None:
        choice = (self.parser.parse_answer(messages) or "").strip()
        if choice == "roll":
            die = self.throw(state)
            if die > 1:
                state["turn_points"] += die
                return f"You rolled {die}. {self.scores(state)}"
            report = "You rolled 1 and get nothing."
        elif choice == "hold":
            state["points"] += state["turn_points"]
            report = f"You get {state['turn_points']}."
            if state["points"] >= state["info"]["target"]:
                return self.end(state, "model", f"{report} You win.")
        else:
            return self.end(state, "opponent", "That is not a choice. You lose.")
        state["turn_points"] = 0
        gained = self.opponent_turn(state)
        state["opponent_points"] += gained
        report += f" Your opponent gets {gained}."
        if state["opponent_points"] >= state["info"]["target"]:
            return self.end(state, "opponent", f"{report} You lose.")
        return f"{report} {self.scores(state)}"

    def opponent_turn(self, state: vf.State) -> int:
        """Return the points of the opponent's turn; after each throw, it rolls again with a probability of 60%."""
        coin = random.Random(f"{state['info']['seed']}:opponent:{state['throws']}")
        gained = 0
        while True:
            die = self.throw(state)
            if die == 1:
                return 0
            gained += die
            if state["opponent_points"] + gained >= state["info"]["target"] or coin.random() > 0.6:
                return gained

    def scores(self, state: vf.State) -> str:
        return f"You: {state['points']}. Opponent: {state['opponent_points']}. This turn: {state['turn_points']}."

    def end(self, state: vf.State, winner: str, message: str) -> None:
        state["winner"] = winner
        state["final_env_response"] = message


def won(state: vf.State) -> float:
    """Return 1 for a win."""
    return float(state["winner"] == "model")


def unfinished(state: vf.State) -> float:
    """Return 1 if there were not enough turns for a winner."""
    return float(state["winner"] is None)


def _rows(count: int, seed: str, remainder: int) -> list[dict[str, Any]]:
    rows = []
    for index in range(count):
        rng = random.Random(f"{seed}:{index}")
        info = {
            "target": rng.randrange(30, 61),
            "head_start": 2 * rng.randrange(0, 6) + remainder,
            "seed": rng.getrandbits(32),
        }
        question = (
            f"Whoever first has {info['target']} points wins. You: 0. Opponent: {info['head_start']}. This turn: 0."
        )
        rows.append({"question": question, "info": info})
    return rows


def load_environment(num_examples: int = 400, seed: int = 0, max_turns: int = 60) -> vf.Environment:
    """Return an environment with games of Pig; the opponent starts with a few points.

    Args:
        num_examples: Number of games for training (even head starts), and for evaluation (odd head starts).
        seed: Random seed of the games.
        max_turns: Maximum number of choices.
    """
    parser = vf.XMLParser(["choice"], answer_field="choice")
    rubric = vf.Rubric([won], parser=parser)
    rubric.add_metric(unfinished)
    return PigEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", 0),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", 1),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=rubric,
        policies={"hold_at_eighteen": hold_at_eighteen, "cautious": cautious},
        max_turns=max_turns,
    )
