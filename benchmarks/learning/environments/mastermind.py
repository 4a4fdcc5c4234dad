"""Mastermind: find a code of three pegs in four colors from the number of matches of each guess."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "Find the secret code of three colors out of red, green, blue, white. Each guess is answered with the number of pegs of the "
    "right color in the right place, and of further pegs of a right color in a wrong place. Answer <guess>three colors</guess>"
)
COLORS = ("red", "green", "blue", "white")
CODES = list(itertools.product(COLORS, repeat=3))
MAX_GUESSES = 6

Code = tuple[str, ...]


def matches(guess: Code, code: Code) -> tuple[int, int]:
    """Return the number of pegs in the right place, and of further pegs of a right color."""
    exact = sum(a == b for a, b in zip(guess, code))
    return exact, (Counter(guess) & Counter(code)).total() - exact


def _guess(code: Code) -> str:
    return f"<guess>{' '.join(code)}</guess>"


def consistent(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Guess a random code that agrees with all answers so far."""
    return _guess(rng.choice([code for code in CODES if all(matches(g, code) == m for g, m in state["history"])]))


def random_code(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Guess a random code."""
    return _guess(rng.choice(CODES))


class MastermindEnv(vf.MultiTurnEnv):
    """An environment that answers each guess with its matches."""

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state.update(history=[], invalid=False)

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str | None:
        guess, code = tuple((self.parser.parse_answer(messages) or "").split()), tuple(state["answer"].split())
        left = MAX_GUESSES - len(state["trajectory"])
        if len(guess) != len(code) or not set(guess) <= set(COLORS):
            state["invalid"] = True
            reply = "Invalid guess."
        else:
            state["history"].append((guess, matches(guess, code)))
            exact, near = state["history"][-1][1]
            reply = f"right place {exact}, wrong place {near}."
        if guess != code and left:
            return reply
        state["final_env_response"] = "Found." if guess == code else "Not found."
        return None


def solved(state: vf.State) -> float:
    """Return 1 if the code was found."""
    return float(bool(state["history"]) and state["history"][-1][0] == tuple(state["answer"].split()))


def early(state: vf.State) -> float:
    """Return the fraction of guesses left when the code was found, else 0."""
    return solved(state) * (1 - len(state["trajectory"]) / MAX_GUESSES)


def invalid_guess(state: vf.State) -> float:
    """Return 1 if any guess was not three colors."""
    return float(state["invalid"])


def _rows(count: int, seed: str) -> list[dict[str, Any]]:
    return [
        {"question": "First guess.", "answer": " ".join(random.Random(f"{seed}:{index}").choice(CODES))}
        for index in range(count)
    ]


def load_environment(num_examples: int = 2000, seed: int = 0) -> vf.Environment:
    """Return an environment with one secret code per example.

    Args:
        num_examples: Number of games.
        seed: Random seed of the dataset.
    """
    parser = vf.XMLParser(["guess"], answer_field="guess")
    rubric = vf.Rubric(parser=parser)
    rubric.add_reward_func(solved, weight=1.0)
    rubric.add_reward_func(early, weight=0.5)
    rubric.add_reward_func(parser.get_format_reward_func(), weight=0.1, name="format")
    rubric.add_reward_func(invalid_guess, weight=-0.1)
    return MastermindEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train"),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval"),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=rubric,
        policies={"consistent": consistent, "random_code": random_code},
        max_turns=MAX_GUESSES,
    )
