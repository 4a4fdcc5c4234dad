"""Spoof pebbles: the model guesses how many pebbles the other player hides; every player has habits."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import rove as vf

MOST, ROUNDS = 4, 10
SYSTEM_PROMPT = (
    f"In each of {ROUNDS} rounds, the other player hides 0 to {MOST} pebbles in a fist, and you guess how many. The fist is "
    "opened after your guess. Players choose anew in every round but have habits, so watch what they like. "
    "Reply with <guess>2</guess>."
)
PLAYERS = "Oona Piet Rufus Sanna Tancred Ulrike Vito Wanda".split()


def hit_rate(state: vf.State) -> float:
    """Return the share of rounds in which the guess was right."""
    return state["hits"] / ROUNDS


def invalid_guesses(state: vf.State) -> float:
    return float(state["invalid"])


def watcher(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Guess the number that was hidden most often."""
    counts = Counter(state["shown"])
    best = counts.most_common(1)[0][0] if counts else rng.randint(0, MOST)
    return f"<guess>{best}</guess>"


def dreamer(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Guess any number."""
    return f"<guess>{rng.randint(0, MOST)}</guess>"


class SpoofEnv(vf.MultiTurnEnv):
    """A game of several rounds against a scripted player."""

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state.update(hits=0, invalid=0, shown=[])

    def hide(self, info: dict[str, Any]) -> int:
        """Return the number of pebbles in the fist."""
        rng = random.Random(info["seed"])
        return rng.choices(range(MOST + 1), weights=info["habits"])[0]

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str | None:
        guess = (self.parser.parse_answer(messages) or "").strip()
        hidden = self.hide(state["info"])
        state["shown"].append(hidden)
        if guess not in [str(number) for number in range(MOST + 1)]:
            state["invalid"] += 1
            comment = f"That is no guess from 0 to {MOST}."
        elif int(guess) == hidden:
            state["hits"] += 1
            comment = "Right!"
        else:
            comment = "Wrong."
        played = len(state["shown"])
        result = f"{comment} The fist held {hidden}. You have {state['hits']} of {played}."
        if played == ROUNDS:
            state["final_env_response"] = f"{result} The game is over."
            return None
        return f"{result} Round {played + 1}: what do you guess?"


def _rows(count: int, seed: str) -> list[dict[str, Any]]:
    rows = []
    for index in range(count):
        rng = random.Random(f"{seed}:{index}")
        habits = [1, 1, 1, 1, 1]
        first, second = rng.sample(range(MOST + 1), 2)
        habits[first] += rng.randrange(2, 6)
        habits[second] += rng.randrange(0, 3)
        game = rng.getrandbits(32)
        question = f"Game {game % 100_000}, against {rng.choice(PLAYERS)}. Round 1: what do you guess?"
        rows.append({"question": question, "answer": "", "info": {"seed": f"{seed}:{game}", "habits": habits}})
    return rows


def load_environment(num_examples: int = 200, seed: int = 0) -> vf.Environment:
    """Return an environment of guessing games.

    Args:
        num_examples: Number of games in each dataset.
        seed: Random seed of the games; evaluation games have other seeds than training games.
    """
    parser = vf.XMLParser(["guess"], answer_field="guess")
    rubric = vf.Rubric([hit_rate], parser=parser)
    rubric.add_metric(invalid_guesses)
    return SpoofEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train"),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval"),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=rubric,
        policies={"watcher": watcher, "dreamer": dreamer},
        max_turns=ROUNDS,
    )
