"""Dial lock: find a code of four digits from what each try tells."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "Open the lock: its code has four digits from 1 to 6, and you have eight tries. After each you are told how many digits "
    "are right and in the right place, and how many others are right but in a wrong place. Answer <code>four digits</code>"
)
CODES = ["".join(digits) for digits in itertools.product("123456", repeat=4)]
MAX_TRIES = 8


def matches(guess: str, code: str) -> tuple[int, int]:
    """Return the number of digits in the right place, and of further right digits."""
    exact = sum(a == b for a, b in zip(guess, code))
    return exact, (Counter(guess) & Counter(code)).total() - exact


def consistent(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Try a random code that agrees with everything that was told."""
    possible = [code for code in CODES if all(matches(guess, code) == told for guess, told in state["history"])]
    return f"<code>{rng.choice(possible)}</code>"


class DialLockEnv(vf.MultiTurnEnv):
    """An environment that compares each try with the code."""

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state.update(history=[], opened=False)

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str | None:
        guess, left = self.parser.parse_answer(messages) or "", MAX_TRIES - len(state["trajectory"])
        if len(guess) != 4 or not set(guess) <= set("123456"):
            reply = "That is no code of this lock."
        else:
            state["history"].append((guess, matches(guess, state["answer"])))
            state["opened"] = guess == state["answer"]
            exact, others = state["history"][-1][1]
            reply = f"In place: {exact}, elsewhere: {others}."
        if left and not state["opened"]:
            return f"{reply} Tries left: {left}."
        state["final_env_response"] = "The lock opens." if state["opened"] else "The lock is blocked."
        return None


def opened(state: vf.State) -> float:
    """Return 1 if the lock was opened."""
    return float(state["opened"])


def _rows(count: int, seed: str, evaluation: bool) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    codes = [code for code in CODES if (sum(map(int, code)) % 2 == 1) == evaluation]
    numbers = rng.sample(range(int(evaluation), 100_000, 2), count)
    return [{"question": f"Lock {number}: first try.", "answer": rng.choice(codes)} for number in numbers]


def load_environment(num_examples: int = 100, seed: int = 0) -> vf.Environment:
    """Return an environment with one lock per example. The reward is 1 for an opened lock, else 0.

    Args:
        num_examples: Number of locks.
        seed: Random seed of the dataset; evaluation codes differ from training codes.
    """
    parser = vf.XMLParser(["code"], answer_field="code")
    return DialLockEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", False),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", True),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([opened], parser=parser),
        policies={"consistent": consistent},
        max_turns=MAX_TRIES,
    )
