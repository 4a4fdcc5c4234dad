"""Number hunt: find a number by what each guess tells."""

from __future__ import annotations

import random
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "Find the number, which is between 1 and 12. After each guess you are told whether it is higher or lower. "
    "Answer <guess>number</guess>"
)
LARGEST = 12
MAX_GUESSES = 12


def bisector(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Guess the middle of what is possible."""
    return f"<guess>{(state['low'] + state['high']) // 2}</guess>"


def gambler(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Guess any number that is still possible."""
    return f"<guess>{rng.randint(state['low'], state['high'])}</guess>"


class NumberHuntEnv(vf.MultiTurnEnv):
    """An environment that compares each guess with the number."""

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state.update(low=1, high=LARGEST, found=False)

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str | None:
        text, number = self.parser.parse_answer(messages) or "", int(state["answer"])
        if text not in map(str, range(1, LARGEST + 1)):
            reply = f"A guess is a number between 1 and {LARGEST}."
        elif int(text) == number:
            state["found"], state["final_env_response"] = True, "You found it."
            return None
        elif int(text) < number:
            state["low"], reply = max(state["low"], int(text) + 1), "It is higher."
        else:
            state["high"], reply = min(state["high"], int(text) - 1), "It is lower."
        if len(state["trajectory"]) < MAX_GUESSES:
            return reply
        state["final_env_response"] = f"{reply} No guesses are left."
        return None


def found(state: vf.State) -> float:
    """Return 1 if the number was found."""
    return float(state["found"])


def guesses(state: vf.State) -> float:
    """Return the number of guesses."""
    return float(len(state["trajectory"]))


def _rows(count: int, seed: str, evaluation: bool) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    names = rng.sample(range(10_000 + evaluation, 99_999, 2), count)
    return [{"question": f"Game {name}: first guess.", "answer": str(rng.randint(1, LARGEST))} for name in names]


def load_environment(num_examples: int = 100, seed: int = 0) -> vf.Environment:
    """Return an environment with one game per example. The reward is 1 if the number was found, else 0.

    Args:
        num_examples: Number of games.
        seed: Random seed of the dataset; evaluation games differ from training games.
    """
    parser = vf.XMLParser(["guess"], answer_field="guess")
    rubric = vf.Rubric([found], parser=parser)
    rubric.add_metric(guesses)
    return NumberHuntEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", False),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", True),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=rubric,
        policies={"bisector": bisector, "gambler": gambler},
        max_turns=MAX_GUESSES,
    )
