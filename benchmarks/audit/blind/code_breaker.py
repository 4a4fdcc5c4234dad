"""Code breaker: find a secret code of four colors from the number of colors in the right and in the wrong place."""

from __future__ import annotations

import random
from collections import Counter
from itertools import product
from typing import Any

import rove as vf

COLORS = "RGBYOP"
CODES = ["".join(code) for code in product(COLORS, repeat=4)]
NEAR_MISS = 0.3
"""What a game without a solution earns if three of four colors were in the right place."""
SYSTEM_PROMPT = (
    "Find the secret code: four letters out of R G B Y O P; a letter may occur more than once. After each guess, you learn "
    "how many letters are right and in the right place (black), and how many others are right but in the wrong place "
    "(white). You have eight guesses. A letter that you write in a guess must be one of the six. Answer <guess>R G B Y</guess>"
)


def feedback(guess: str, code: str) -> tuple[int, int]:
    """Return the number of black and white pegs."""
    black = sum(first == second for first, second in zip(guess, code))
    common = sum((Counter(guess) & Counter(code)).values())
    return black, common - black


def read(text: str | None) -> str | None:
    """Return the code in a reply: exactly four letters, with or without spaces."""
    letters = "".join((text or "").split())
    return letters if len(letters) == 4 and set(letters) <= set(COLORS) else None


def _answer(code: str) -> str:
    return f"<guess>{' '.join(code)}</guess>"


def logician(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Guess a code that fits all answers so far."""
    history = state["history"]
    possible = [code for code in CODES if all(feedback(guess, code) == pegs for guess, pegs in history)]
    return _answer(rng.choice(possible))


def blacks_only(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Guess a code that fits the last answer, without regard to the others."""
    if not state["history"]:
        return _answer(rng.choice(CODES))
    guess, (black, _) = state["history"][-1]
    return _answer(rng.choice([code for code in CODES if code != guess and feedback(guess, code)[0] == black] or CODES))


class CodeBreakerEnv(vf.MultiTurnEnv):
    """An environment that answers guesses with pegs."""

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state["history"] = []

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str | None:
        guess, code = read(self.parser.parse_answer(messages)), state["answer"]
        left = state["info"]["guesses"] - len(state["trajectory"])
        if guess is None:
            reply = "That is not a code."
        else:
            pegs = feedback(guess, code)
            state["history"].append((guess, pegs))
            reply = f"black {pegs[0]}, white {pegs[1]}"
        if guess == code or left == 0:
            state["final_env_response"] = reply
            return None
        return f"{reply}; {left} left"


def solved(state: vf.State) -> float:
    """Return 1 if the code was found."""
    return float(any(guess == state["answer"] for guess, _ in state["history"]))


def found(state: vf.State) -> float:
    """Return 1 for the code, and a small part of it if the last guess had three colors in the right place."""
    if solved(state):
        return 1.0
    return NEAR_MISS if state["history"] and state["history"][-1][1][0] == 3 else 0.0


def _rows(codes: list[str], count: int, guesses: int) -> list[dict[str, Any]]:
    question = f"Guess the code. You have {guesses} guesses."
    return [{"question": question, "answer": code, "info": {"guesses": guesses}} for code in codes[:count]]


def load_environment(num_examples: int = 600, seed: int = 0) -> vf.Environment:
    """Return an environment with secret codes; training and evaluation have different ones.

    Args:
        num_examples: Number of games for training, and for evaluation (at most 648 each).
        seed: Random seed of the split.
    """
    codes = random.Random(seed).sample(CODES, len(CODES))
    half = len(codes) // 2
    parser = vf.XMLParser(["guess"], answer_field="guess")
    rubric = vf.Rubric([found], parser=parser)
    rubric.add_metric(solved)
    return CodeBreakerEnv(
        dataset=lambda: _rows(codes[:half], num_examples, 8),
        eval_dataset=lambda: _rows(codes[half:], num_examples, 8),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=rubric,
        policies={"logician": logician, "blacks_only": blacks_only},
        max_turns=8,
    )
