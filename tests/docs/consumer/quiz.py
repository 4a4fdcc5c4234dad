"""An environment as a typed package of a user; type checkers read it, and the test runs it."""

from collections.abc import Mapping
from typing import Any

import rich

import rove


def correct(completion: rove.Messages, answer: str) -> float:
    """Return 1 if a reply is the answer."""
    return float(any(message.content == answer for message in completion))


class Countdown(rove.MultiTurnEnv):
    """An environment in which the model guesses a number."""

    async def setup_state(self, state: rove.State, **kwargs: Any) -> Mapping[str, Any]:
        """Count the replies."""
        return {"replies": 0}

    @rove.stop
    async def has_replied(self, state: rove.State) -> bool:
        """Stop after the first reply."""
        return bool(state["replies"] > 0)

    async def env_response(self, messages: rove.Messages, state: rove.State, **kwargs: Any) -> rove.Messages:
        """Request another number."""
        state["replies"] += 1
        return [rove.UserMessage("Again.")]


def solve(messages: rove.Messages, state: rove.State, rng: object) -> str:
    """Reply with the answer."""
    return str(state["answer"])


def load_environment(num_examples: int = 10) -> rove.Environment:
    """Return an environment with sums."""
    rows = [{"question": f"{n} + {n}?", "answer": str(2 * n)} for n in range(num_examples)]
    return Countdown(dataset=rows, rubric=rove.Rubric([correct]), policies={"solver": solve}, max_turns=2)


def report(result: rove.EvaluationResult) -> list[tuple[str, float, str | None]]:
    """Return name, mean and caveat of every function."""
    rich.print(result.table)
    return [(name, function.mean, function.caveat) for name, function in result.functions.items()]


def changes(first_records: list[rove.RolloutRecord], second_records: list[rove.RolloutRecord]) -> str:
    """Return the verdict of a comparison."""
    return rove.compare(first_records, second_records).verdict


async def main(folder: str) -> float:
    """Evaluate, generate, score again, compare, and make a dataset."""
    env = load_environment()
    client = rove.ScriptedClient(env.policies["solver"])
    streamed: list[rove.RolloutRecord] = []
    records = await rove.generate(env, client, num_examples=4, seed=1, on_record=streamed.append)
    result = await env.evaluate(client, num_examples=4, limits=rove.Limits(max_turns=2), run=folder + "/run")
    rescored = await rove.rescore(env, rove.Run(folder + "/run"), into=folder + "/again")
    rows = env.make_dataset(records, min_reward=0.5)
    assert result.run is not None
    print(changes(records, streamed), len(rows), report(rescored), [record.reward for record in result.run.rollouts()])
    return result.reward.mean
