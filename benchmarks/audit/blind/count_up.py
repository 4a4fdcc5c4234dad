"""Count up: two players add to a common sum in turn; whoever reaches the target wins."""

from __future__ import annotations

import random
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "You and your opponent take turns. In a turn, a player adds 1, 2, 3 or 4 to the sum. Whoever makes the sum equal to the "
    "target wins; the sum must not exceed the target. Reply <add>number</add>"
)
STEPS = (1, 2, 3, 4)


def good_step(total: int, target: int, rng: random.Random) -> int:
    """Return the step after which the distance to the target is a multiple of five, or any step."""
    rest = (target - total) % 5
    return rest or rng.choice([step for step in STEPS if total + step <= target])


def opponent_step(total: int, target: int, seed: str, luck: float) -> int:
    """Return a random step with the probability `luck`, else a good one."""
    rng = random.Random(f"{seed}:{total}")
    if rng.random() < luck:
        return rng.choice([step for step in STEPS if total + step <= target])
    return good_step(total, target, rng)


def counter(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Always take the good step."""
    return f"<add>{good_step(state['total'], state['info']['target'], rng)}</add>"


def stepper(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Add a random number, and win if that is possible at once."""
    rest = state["info"]["target"] - state["total"]
    return f"<add>{rest if rest in STEPS else rng.choice(STEPS)}</add>"


class CountEnv(vf.MultiTurnEnv):
    """An environment with a scripted opponent."""

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state.update(total=state["info"]["start"], winner=None)

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str | None:
        info, step = state["info"], self.parser.parse_answer(messages)
        if step not in ("1", "2", "3", "4") or state["total"] + int(step) > info["target"]:
            return self._end(state, "opponent", "This step is not allowed. You lose.")
        state["total"] += int(step)
        if state["total"] == info["target"]:
            return self._end(state, "model", "You win.")
        step = opponent_step(state["total"], info["target"], info["seed"], info["luck"])
        state["total"] += step
        if state["total"] == info["target"]:
            return self._end(state, "opponent", f"I add {step}. You lose.")
        return f"I add {step}. The sum is {state['total']}, the target is {info['target']}."

    def _end(self, state: vf.State, winner: str, text: str) -> None:
        state["winner"] = winner
        state["final_env_response"] = text


def won(state: vf.State) -> float:
    """Return 1 for a win."""
    return float(state["winner"] == "model")


def _rows(count: int, seed: str, part: int) -> list[dict[str, Any]]:
    games = [(start, target) for target in range(17, 48) for start in range(10) if (target - start) % 5]
    random.Random("games").shuffle(games)
    games = games[:60] if part else games[60:]
    rows = []
    for index, (start, target) in enumerate(random.Random(seed).sample(games, min(count, len(games)))):
        info = {
            "start": start,
            "target": target,
            "seed": f"{seed}:{index}",
            "luck": random.Random(f"{seed}/{index}").random(),
        }
        rows.append({"question": f"The sum is {start}, the target is {target}. You begin.", "info": info})
    return rows


def load_environment(num_examples: int = 180, seed: int = 0) -> vf.Environment:
    """Return an environment with games that the model can always win.

    Args:
        num_examples: Number of games, at most 188 for training and 60 for evaluation.
        seed: Random seed of the selection and of the opponent.
    """
    parser = vf.XMLParser(["add"], answer_field="add")
    rubric = vf.Rubric([won], [1.0], parser=parser)
    rubric.add_reward_func(parser.get_format_reward_func(), weight=0.1, name="format")
    return CountEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", 0),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", 1),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=rubric,
        policies={"counter": counter, "stepper": stepper},
        max_turns=48,
    )
