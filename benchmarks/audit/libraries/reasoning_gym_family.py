"""A family of reasoning-gym as its users use it: rows of `create_dataset`, scores of `score_answer`, in this process.

`rove.ReasoningGymEnv` scores answers in processes of its own; an audit runs the environment in a worker anyway.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import rove as vf
from rove.integrations.environments.reasoning import SYSTEM_PROMPT
from rove.integrations.environments.reasoning_worker import decode, encode

EVALUATION_SHIFT = 1_000_003
"""Added to the seed of evaluation rows, so that they share rows with the training rows only if a family has few tasks."""


def load_environment(family: str = "chain_sum", num_examples: int = 100, seed: int = 0) -> vf.Environment:
    """Return the tasks of a family with its default settings.

    Args:
        family: name of the family.
        num_examples: training tasks, and evaluation tasks.
        seed: seed that `create_dataset` gets for the training tasks.
    """

    def rows(first: int) -> Iterator[dict[str, Any]]:
        for entry in _dataset(family, num_examples, first):
            answer = entry["answer"]
            text = answer if isinstance(answer, str) else ""
            yield {"question": entry["question"], "answer": text, "info": {"entry": encode(entry)}}

    parser = vf.XMLParser(["answer"])

    def score(completion: Any, info: dict[str, Any]) -> float:
        answer = parser.parse_answer(completion)
        return float(_dataset(family, num_examples, seed).score_answer(answer=answer, entry=decode(info["entry"])))

    return vf.SingleTurnEnv(
        dataset=lambda: rows(seed),
        eval_dataset=lambda: rows(seed + EVALUATION_SHIFT),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([score]),
    )


@functools.cache
def _dataset(family: str, size: int, seed: int) -> Any:
    import reasoning_gym  # an optional library

    config: dict[str, Any] = {}
    if family == "composite":
        from reasoning_gym.composite import DatasetSpec

        config["datasets"] = [DatasetSpec(name=name, weight=1, config={}) for name in ("chain_sum", "gcd")]
    return reasoning_gym.create_dataset(family, size=size, seed=seed, **config)
