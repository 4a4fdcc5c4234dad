"""The task families of reasoning-gym, made and scored in worker processes."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from rove.core.config import check_positive
from rove.core.digest import derive_seed
from rove.core.errors import ConfigError, nearest
from rove.core.messages import Messages
from rove.core.records import Scores
from rove.core.state import State
from rove.envs.environment import teardown
from rove.envs.multi_turn import SingleTurnEnv
from rove.integrations.environments.libraries import require_library
from rove.parsers.parser import Parser, XMLParser
from rove.rubrics import Rubric
from rove.rubrics.rubric import merge_scores
from rove.workers import Workers

WORKER = Path(__file__).with_name("reasoning_worker.py")
SYSTEM_PROMPT = "Think step by step, then give your final answer, and nothing else, between <answer> and </answer>."
MEMORY = 2 << 30
"""Bytes that a worker may take for an answer."""
EXACT = 0.99
"""A score from which on an answer counts as right."""
CHUNK = 16
"""Tasks that are made at a time."""
TASK_SECONDS = 60.0
"""For making so many."""


class Family(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A family of tasks in a mixture."""

    name: str
    weight: float = 1.0
    """Its share of the tasks, relative to the others'."""
    config: dict[str, Any] = {}
    """Its settings, under reasoning-gym's names."""


def oracle(messages: Messages, state: State, rng: random.Random) -> str:
    """A scripted policy that gives the row's own answer."""
    return f"<answer>{state['answer']}</answer>"


class ReasoningGymEnv(SingleTurnEnv):
    """Tasks of reasoning-gym: one family, or a mixture of several.

    The library runs in worker processes: some families evaluate answers as Python, which must not happen here. A worker
    that has scored an answer of such a family is not used again; one that takes too long, or dies, fails its rollout with a
    `WorkerError`. The reward `score` is the family's, cut to 0…1; an answer that its scorer cannot read (it raises) gets 0.
    Metrics: `raw_score`, `exact` (a score of 0.99 or more), `unreadable`.

    Args:
        gym: the name of a family, or several: names or `Family` tables like {"name": "countdown", "weight": 2, "config": {…}}.
        num_train_examples: training tasks.
        num_eval_examples: evaluation tasks, others than those.
        seed: of the tasks.
        config: settings of the family, where `gym` is one name.
        system_prompt: asks for `<answer>` tags by default.
        parser: finds the answer. Default: the last `<answer>…</answer>`.
        partial_credit: whether scores between 0 and 1 count; many families give some to nonsense.
        score_seconds: wall time of scoring one answer.
        max_workers: answers scored at a time. Default: 8, or as many as there are cores if fewer.
        python: interpreter of another virtual environment, which has reasoning-gym; this one needs not have it then.
        Everything else: see `Environment`.

    Raises:
        ConfigError: reasoning-gym is not installed, or an argument is out of range; from the dataset, as it is read: there is
            no such family, or its settings are refused.
    """

    def __init__(
        self,
        gym: str | Sequence[str | Mapping[str, Any]],
        num_train_examples: int = 1000,
        num_eval_examples: int = 100,
        seed: int = 0,
        config: Mapping[str, Any] | None = None,
        system_prompt: str | None = SYSTEM_PROMPT,
        parser: Parser | None = None,
        partial_credit: bool = True,
        score_seconds: float = 5.0,
        max_workers: int | None = None,
        python: str | None = None,
        **kwargs: Any,
    ):
        self.num_train_examples, self.num_eval_examples = num_train_examples, num_eval_examples
        self.score_seconds, self.max_workers = score_seconds, max_workers
        check_positive(self, "num_train_examples", "num_eval_examples", "score_seconds", "max_workers")
        if python is None:
            require_library("reasoning_gym", "reasoning-gym", type(self).__name__)
        self.families = _families(gym, config)
        self.partial_credit = partial_credit
        self.workers = Workers(
            WORKER, python=python, max_workers=max_workers, memory_bytes=MEMORY, name="reasoning-gym"
        )
        super().__init__(
            dataset=lambda: self._rows(num_train_examples, derive_seed(seed, "train") % (1 << 31)),
            eval_dataset=lambda: self._rows(num_eval_examples, derive_seed(seed, "eval") % (1 << 31)),
            system_prompt=system_prompt,
            parser=parser or XMLParser(["answer"]),
            **{"rubric": _FamilyRubric(self), "policies": {"oracle": oracle}, **kwargs},
        )

    def _rows(self, count: int, seed: int) -> Iterator[dict[str, Any]]:
        """Rows as they are asked for; which family one is of depends on the seed and its position alone."""
        self.workers.start()
        for family in self.families:
            if family.name not in self.workers.setup_result["families"]:
                known = nearest(family.name, self.workers.setup_result["families"])
                raise ConfigError(f"reasoning-gym has no family '{family.name}'; {known}")
        weights = [family.weight for family in self.families]
        for start in range(0, count, CHUNK):
            positions = range(start, min(start + CHUNK, count))
            chosen = {i: random.Random(f"{seed}:{i}").choices(self.families, weights)[0] for i in positions}
            made: dict[int, Any] = {}
            for family in self.families:
                mine = [position for position in positions if chosen[position] is family]
                if mine:
                    spec = {"family": family.name, "config": family.config, "seed": seed}
                    tasks = self.workers.call_sync("tasks", TASK_SECONDS, **spec, size=count, positions=mine)
                    made.update(zip(mine, tasks, strict=True))
            for position in positions:
                yield _row(chosen[position], seed, made[position])

    async def score_answer(self, info: Mapping[str, Any], answer: str) -> float | None:
        """What the task's family says of an answer; None where its scorer cannot read it.

        Args:
            info: of the task's row.

        Raises:
            WorkerError: scoring did not end in time, or killed its worker.
            RemoteError: the library cannot be loaded.
        """
        async with self.workers.acquire() as worker:
            family = {name: info[name] for name in ("family", "config", "seed")}
            await worker.call("prepare", TASK_SECONDS, **family)  # what the family loads is not the answer's time
            score, _ = await worker.call("score", self.score_seconds, **info, answer=answer)
            if info["family"] in self.workers.setup_result["running"]:
                worker.close()
        return score

    @teardown
    async def end_workers(self) -> None:
        """End the worker processes."""
        await self.workers.aclose()


class _FamilyRubric(Rubric):
    """Scores an answer once for its reward and three metrics; more functions can be added."""

    def __init__(self, env: ReasoningGymEnv):
        super().__init__()
        self.env = env

    @property
    def names(self) -> list[str]:
        return ["score", "raw_score", "exact", "unreadable", *super().names]

    @property
    def identity(self) -> list[str]:
        """How it scores, beside the functions that were added."""
        return [f"reasoning-gym, partial_credit={self.env.partial_credit}", *super().identity]

    async def score_rollout(self, state: State) -> Scores:
        """Ask the family, unless there is no answer; see `Rubric.score_rollout`."""
        answer = str(self.parser.parse_answer(state["completion"]) or "")
        raw = await self.env.score_answer(state["info"], answer) if answer else 0.0
        score = min(max(raw or 0.0, 0.0), 1.0)
        exact = float(score >= EXACT)
        reward = score if self.env.partial_credit else exact
        metrics = {"raw_score": raw or 0.0, "exact": exact, "unreadable": float(raw is None)}
        own = Scores(reward, {"score": reward}, {"score": 1.0}, metrics)
        return merge_scores([own, await super().score_rollout(state)])


def _families(gym: str | Sequence[str | Mapping[str, Any]], config: Mapping[str, Any] | None) -> list[Family]:
    if isinstance(gym, str):
        return [Family(gym, config=dict(config or {}))]
    if config is not None:
        raise ConfigError("config goes with one family; give each of several its own: {'name': …, 'config': {…}}")
    if not gym:
        raise ConfigError("gym is empty; expected the name of a family, or several")
    try:
        return [Family(one) if isinstance(one, str) else msgspec.convert(one, Family) for one in gym]
    except msgspec.ValidationError as error:
        raise ConfigError(f"gym is {gym!r}: {error}; expected names, or {{'name', 'weight', 'config'}}") from error


def _row(family: Family, seed: int, task: dict[str, Any]) -> dict[str, Any]:
    info = {"family": family.name, "config": family.config, "seed": seed, "task": task}
    answer = task["answer"]
    return {"question": task["question"], "answer": answer if isinstance(answer, str) else "", "info": info}
