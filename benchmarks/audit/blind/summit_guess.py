"""Summit guess: find the height of a mountain from "higher" and "lower"."""

from __future__ import annotations

import random
import re
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "Find the height of the mountain in meters. You have six guesses; after each one you hear whether the summit is "
    "higher or lower. The right height scores 1; otherwise the last guess scores up to 0.3, the closer the better. "
    "Answer with the height only, for example <height>2310</height>"
)
STEPS, WIDTH = 63, 10
"""Number of possible heights, and meters between two of them: six guesses are enough."""
NAMES = (
    "Ahorn",
    "Bell",
    "Croda",
    "Drei",
    "Erz",
    "Fluh",
    "Grau",
    "Hohe",
    "Inner",
    "Jagd",
    "Kar",
    "Lang",
    "Moos",
    "Nebel",
)
ENDINGS = ("spitz", "kogel", "horn", "stock", "kopf", "wand", "joch", "fels")


class SummitGuessEnv(vf.MultiTurnEnv):
    """An environment that answers guesses with a direction."""

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state.update(guesses=0, last=None)

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str | None:
        text, height = self.parser.parse_answer(messages) or "", state["info"]["height"]
        state["guesses"] += 1
        guess = int(text) if re.fullmatch(r"[0-9]{1,5}", text) else None
        state["last"] = guess
        if guess == height:
            state["final_env_response"] = f"Right, the summit is {height} m high."
            return None
        if state["guesses"] == 6:
            state["final_env_response"] = f"No guesses left. The summit is {height} m high."
            return None
        if guess is None:
            return "Please give the height as a number, for example <height>2310</height>"
        return "Higher." if guess < height else "Lower."


def found(state: vf.State) -> float:
    """Return 1 for the right height."""
    return float(state["last"] == state["info"]["height"])


def closeness(state: vf.State) -> float:
    """Return 1 minus the squared error of a wrong last guess relative to a quarter of the range, at least 0."""
    last, height = state["last"], state["info"]["height"]
    if last is None or last == height:
        return 0.0
    error = abs(last - height) / (STEPS * WIDTH / 4)
    return max(0.0, 1 - error) ** 2


def surveyor(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Halve the range with every guess."""
    low, high = state["info"]["low"], state["info"]["low"] + (STEPS - 1) * WIDTH
    guess = None
    for message in messages[2:]:
        if message.role == "assistant":
            guess = int(re.search(r"\d+", message.content).group())
        elif message.content == "Higher.":
            low = guess + WIDTH
        else:
            high = guess - WIDTH
    return f"<height>{low + (high - low) // WIDTH // 2 * WIDTH}</height>"


def dreamer(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Guess at random."""
    return f"<height>{state['info']['low'] + rng.randrange(STEPS) * WIDTH}</height>"


def _rows(count: int, seed: str, taken: set[str]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    index = 0
    while len(rows) < count:
        rng = random.Random(f"{seed}:{index}")
        index += 1
        low = rng.randrange(800, 3900, WIDTH)
        mountain = f"{rng.choice(NAMES)}{rng.choice(ENDINGS)}"
        question = f"The {mountain} is between {low} and {low + (STEPS - 1) * WIDTH} m high, a multiple of {WIDTH}. How high is it?"
        if question not in taken:
            taken.add(question)
            rows.append({"question": question, "info": {"low": low, "height": low + rng.randrange(STEPS) * WIDTH}})
    return rows


def load_environment(num_examples: int = 400, seed: int = 0) -> vf.Environment:
    """Return an environment in which the model finds heights.

    Args:
        num_examples: Number of mountains in each dataset.
        seed: Random seed of the mountains; mountains of the evaluation do not occur in training.
    """
    taken: set[str] = set()
    eval_rows = _rows(num_examples, f"{seed}:eval", taken)
    parser = vf.XMLParser(["height"], answer_field="height")
    return SummitGuessEnv(
        dataset=_rows(num_examples, f"{seed}:train", taken),
        eval_dataset=eval_rows,
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([found, closeness], [1.0, 0.3], parser=parser),
        policies={"surveyor": surveyor, "dreamer": dreamer},
        max_turns=6,
    )
