"""Code breaker: find a secret code of four digits from the feedback on guesses."""

from __future__ import annotations

import itertools
import random
import re
from collections import Counter
from typing import Any

import rove as vf

DIGITS, LENGTH, MAX_GUESSES = "123456", 4, 8
SYSTEM_PROMPT = (
    f"Find a secret code of {LENGTH} digits, each from 1 to 6; digits may repeat. You have {MAX_GUESSES} guesses. After each guess "
    "you see how many digits are exact (right digit, right place) and how many are near (right digit, wrong place). Reply with "
    "<guess>1234</guess>. Finding the code scores 1. Otherwise your best guess scores 0.1 per exact digit."
)
CODES = ["".join(code) for code in itertools.product(DIGITS, repeat=LENGTH)]
GUESS = re.compile(f"[{DIGITS}]{{{LENGTH}}}")
FEEDBACK = re.compile(r"(\d) exact, (\d) near")


def feedback(guess: str, secret: str) -> tuple[int, int]:
    """Return the numbers of exact and near digits."""
    exact = sum(a == b for a, b in zip(guess, secret, strict=True))
    return exact, (Counter(guess) & Counter(secret)).total() - exact


class CodeEnv(vf.MultiTurnEnv):
    """An environment with one secret code per example."""

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state.update(best=0, tried=0)

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str | None:
        guess = (self.parser.parse_answer(messages) or "").strip()
        state["tried"] += 1
        left = MAX_GUESSES - state["tried"]
        if not GUESS.fullmatch(guess):
            text = "That is not a code."
        else:
            exact, near = feedback(guess, state["answer"])
            state["best"] = max(state["best"], exact)
            if exact == LENGTH:
                state["final_env_response"] = "You found the code."
                return None
            text = f"{guess}: {exact} exact, {near} near."
        if not left:
            state["final_env_response"] = f"{text} The code was {state['answer']}."
            return None
        return f"{text} Guesses left: {left}."


def broken(state: vf.State) -> float:
    """1 for the code, and otherwise 0.1 per exact digit of the best guess."""
    return 1.0 if state["best"] == LENGTH else 0.1 * state["best"]


def found(state: vf.State) -> float:
    return float(state["best"] == LENGTH)


def deducer(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Guesses any code that agrees with the feedback so far."""
    known = []
    for message in messages:
        match = FEEDBACK.search(message.content or "") if message.role == "user" else None
        if match and state["trajectory"]:
            known.append((message.content[:LENGTH], (int(match[1]), int(match[2]))))
    codes = [code for code in CODES if all(feedback(guess, code) == result for guess, result in known)]
    return f"<guess>{rng.choice(codes)}</guess>"


def gambler(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Guesses any code."""
    return f"<guess>{rng.choice(CODES)}</guess>"


def load_environment(num_examples: int = 400, num_eval_examples: int = 100, seed: int = 0) -> vf.Environment:
    """Return an environment with secret codes.

    Args:
        num_examples: Codes for training.
        num_eval_examples: Codes for evaluation.
        seed: Random seed of the choice of codes.
    """
    codes = random.Random(seed).sample(CODES, num_examples + num_eval_examples)
    rows = [
        {"question": f"Game {index + 1}: what is your first guess?", "answer": code} for index, code in enumerate(codes)
    ]
    parser = vf.XMLParser(["guess"], answer_field="guess")
    rubric = vf.Rubric([broken], parser=parser)
    rubric.add_metric(found)
    return CodeEnv(
        dataset=rows[:num_examples],
        eval_dataset=rows[num_examples:],
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=rubric,
        policies={"deducer": deducer, "gambler": gambler},
        max_turns=MAX_GUESSES,
    )
