"""My task: guess a number. Describe your own game here."""

from __future__ import annotations

import random
from typing import Any

import rove as vf


def oracle(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """A scripted policy that halves the range in every turn: rove eval my_task -m scripted:oracle."""
    return f"<guess>{(state['low'] + state['high']) // 2}</guess>"


def guesser(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """A weak policy, which ignores the hints. `rove train` needs a good and a weak policy."""
    return f"<guess>{rng.randint(1, 100)}</guess>"


class GuessEnv(vf.MultiTurnEnv):
    """The model guesses a number; the environment answers "higher" or "lower"."""

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state.update(low=1, high=100, solved=False)

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str | None:
        guess = self.parser.parse_answer(messages) or ""
        if not guess.isdigit():
            return "Invalid guess. Write a whole number in <guess> tags, for example <guess>50</guess>."
        number, secret = int(guess), int(state["answer"])
        if number == secret:
            state["solved"] = True
            state["final_env_response"] = "Correct."
            return None
        if number < secret:
            state["low"] = number + 1
            return "Higher."
        state["high"] = number - 1
        return "Lower."


def solved(state: vf.State) -> float:
    """Return 1 if the model found the number."""
    return float(state["solved"])


# Training and evaluation numbers are disjoint.
NUMBERS = random.Random("split").sample(range(1, 101), k=100)
HELD_OUT, TRAINED = NUMBERS[:20], NUMBERS[20:]


def _rows(numbers: list[int], count: int, seed: int) -> list[dict[str, Any]]:
    chosen = random.Random(seed).sample(numbers, min(count, len(numbers)))
    return [{"question": "Guess my number. It is between 1 and 100.", "answer": str(number)} for number in chosen]


def load_environment(num_examples: int = 100, seed: int = 0, max_turns: int = 8) -> vf.Environment:
    """Return an environment with numbers to guess: at most 80 for training, and 20 others for evaluation.

    Args:
        num_examples: Number of games.
        seed: Random seed that chooses the numbers.
        max_turns: Maximum number of guesses.
    """
    parser = vf.XMLParser(["guess"], answer_field="guess")
    rubric = vf.Rubric([solved], [1.0], parser=parser)
    rubric.add_reward_func(parser.get_format_reward_func(), weight=0.2)
    return GuessEnv(
        dataset=lambda: _rows(TRAINED, num_examples, seed),
        eval_dataset=lambda: _rows(HELD_OUT, num_examples, seed),
        system_prompt="Guess the number. Write each guess in <guess> tags, for example <guess>50</guess>.",
        parser=parser,
        rubric=rubric,
        policies={"oracle": oracle, "guesser": guesser},
        max_turns=max_turns,
    )
