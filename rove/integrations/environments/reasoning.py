"""Tasks of reasoning-gym, created and scored in worker processes."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from rove.core.checks import check_values
from rove.core.digest import derive_seed
from rove.core.errors import ConfigError, nearest
from rove.core.messages import Messages
from rove.core.plain import JsonMapping, JsonObject, Row
from rove.core.ranges import PositiveInt, Seconds
from rove.core.records import Scores
from rove.core.state import State
from rove.envs.environment import teardown
from rove.envs.multi_turn import SingleTurnEnv
from rove.integrations import require_library
from rove.integrations.known_defects import warn_of_known_defects
from rove.rubrics import Rubric
from rove.rubrics.parser import Parser, XMLParser
from rove.rubrics.rubric import merge_scores
from rove.workers import Workers

WORKER = Path(__file__).with_name("reasoning_worker.py")
SYSTEM_PROMPT = "Think step by step. Then write only your final answer between <answer> and </answer>."
MEMORY_BYTES = 2 << 30
"""Memory that a worker may allocate for an answer."""
EXACT_THRESHOLD = 0.99
"""Minimum score of a correct answer."""
CHUNK_SIZE, MAX_CHUNK_SIZE, CHUNK_S = 16, 4096, 0.5
"""Number of tasks created by a worker's first call, maximum number, and a time in seconds. Every call forks a process,
so each next call creates twice as many tasks, up to the maximum, while a call takes less than this time."""
TASK_TIMEOUT_S = 60.0
"""Time limit for creating a chunk."""


class Family(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A task family in a mixture."""

    name: str
    weight: float = 1.0
    """The family's share of the tasks, relative to the other weights."""
    config: JsonObject = {}
    """The family's settings, with reasoning-gym's names."""


def oracle(messages: Messages, state: State, rng: random.Random) -> str:
    """Answer with the row's reference answer (scripted policy)."""
    return f"<answer>{state['answer']}</answer>"


class ReasoningGymEnv(SingleTurnEnv):
    """Tasks of reasoning-gym: one family, or a mixture of several.

    The library runs in worker processes, since some families evaluate answers as Python. After scoring an answer of
    such a family, the worker is replaced. If scoring takes too long or the worker dies, the rollout fails with a
    `WorkerError`. The reward `score` is the family's score, clipped to 0…1; an answer for which its scorer raises gets
    0. Metrics: `raw_score`, `exact` (a score of 0.99 or more), `unreadable`.

        env = rove.ReasoningGymEnv([{"name": "countdown", "weight": 2}, "chain_sum"], num_train_examples=500)

    Args:
        gym: the name of a family, or several: names or `Family` tables like {"name": "countdown", "weight": 2, "config": {…}}.
        num_train_examples: training tasks.
        num_eval_examples: evaluation tasks, which differ from the training tasks.
        seed: seed of the tasks.
        config: settings of the family, if `gym` is one name.
        system_prompt: default: asks for `<answer>` tags.
        parser: extracts the answer. Default: the last `<answer>…</answer>`.
        partial_credit: whether scores between 0 and 1 count; many families give some for wrong answers.
        score_seconds: time limit for scoring one answer.
        max_workers: maximum answers scored at a time. Default: the number of cores, at most 8.
        python: interpreter of another virtual environment with reasoning-gym; this environment then does not need the
            library.
        Everything else: see `Environment`.

    Raises:
        ConfigError: reasoning-gym is not installed, or an argument is out of range; when the dataset is read: a family does not
            exist, or its settings are invalid.
    """

    def __init__(
        self,
        gym: str | Sequence[str | JsonMapping],
        num_train_examples: int = 1000,
        num_eval_examples: int = 100,
        seed: int = 0,
        config: JsonMapping | None = None,
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
        check_values(self, num_train_examples=PositiveInt, num_eval_examples=PositiveInt)
        check_values(self, score_seconds=Seconds, max_workers=PositiveInt | None)
        if python is None:
            require_library("reasoning_gym", "reasoning-gym", type(self).__name__)
        self.families = _families(gym, config)
        for family in self.families:
            warn_of_known_defects("reasoning-gym", family.name)
        self.partial_credit = partial_credit
        self.workers = Workers(
            WORKER, python=python, max_workers=max_workers, memory_bytes=MEMORY_BYTES, name="reasoning-gym"
        )
        super().__init__(
            dataset=lambda: self._rows(num_train_examples, derive_seed(seed, "train") % (1 << 31)),
            eval_dataset=lambda: self._rows(num_eval_examples, derive_seed(seed, "eval") % (1 << 31)),
            system_prompt=system_prompt,
            parser=parser or XMLParser(["answer"]),
            **{"rubric": _FamilyRubric(self), "policies": {"oracle": oracle}, **kwargs},
        )

    def _rows(self, count: int, seed: int) -> Iterator[Row]:
        """Yield rows. The family of a row depends only on the seed and its position."""
        self.workers.start()
        available = self.workers.setup_result["families"]
        for family in self.families:
            if family.name not in available:
                raise ConfigError(f"reasoning-gym has no family '{family.name}'; {nearest(family.name, available)}")
        weights = [family.weight for family in self.families]
        start, size = 0, CHUNK_SIZE
        while start < count:
            started_at = time.monotonic()
            positions = range(start, min(start + size, count))
            family_of: dict[int, Family] = {}
            for position in positions:
                # A generator per row: with one for all, a row's family would depend on the chunks before it.
                [family_of[position]] = random.Random(f"{seed}:{position}").choices(self.families, weights)
            task_of: dict[int, Any] = {}
            for family in self.families:
                of_family = [position for position in positions if family_of[position] is family]
                if of_family:
                    spec = {"family": family.name, "config": family.config, "seed": seed}
                    tasks = self.workers.call_sync("tasks", TASK_TIMEOUT_S, **spec, size=count, positions=of_family)
                    task_of.update(zip(of_family, tasks, strict=True))
            start += len(positions)
            # Each call forks a process: with chunks of one size, 40,000 tasks took 240 s instead of 7 s.
            if time.monotonic() - started_at < CHUNK_S:
                size = min(2 * size, MAX_CHUNK_SIZE)
            for position in positions:
                yield _row(family_of[position], seed, task_of[position])

    async def score_answer(self, info: Mapping[str, Any], answer: str) -> float | None:
        """Return the family's score of an answer; None if its scorer raises.

        Args:
            info: info of the task's row.

        Raises:
            WorkerError: scoring timed out, or its worker died.
            RemoteError: the library cannot be loaded.
        """
        async with self.workers.acquire() as worker:
            family = {name: info[name] for name in ("family", "config", "seed")}
            # Loading does not count toward the answer's time limit.
            await worker.call("prepare", TASK_TIMEOUT_S, **family)
            score, _ = await worker.call("score", self.score_seconds, **info, answer=answer)
            # An answer that has run as Python could have changed the scorer for the next answer.
            if info["family"] in self.workers.setup_result["running"]:
                worker.close()
        return score

    @teardown
    async def end_workers(self) -> None:
        """End the worker processes."""
        await self.workers.aclose()


class _FamilyRubric(Rubric):
    """Scores an answer once for the reward and three metrics; more functions can be added."""

    def __init__(self, env: ReasoningGymEnv):
        super().__init__()
        self.env = env

    @property
    def names(self) -> list[str]:
        return ["score", "raw_score", "exact", "unreadable", *super().names]

    @property
    def identity(self) -> list[str]:
        """Settings of the score, and the functions that were added."""
        return [f"reasoning-gym, partial_credit={self.env.partial_credit}", *super().identity]

    async def score_rollout(self, state: State) -> Scores:
        """Score the answer, if there is one; see `Rubric.score_rollout`."""
        answer = str(self.parser.parse_answer(state["completion"]) or "")
        # Some families' scorers give credit for an empty answer; it is always wrong.
        raw = await self.env.score_answer(state["info"], answer) if answer else 0.0
        # None (unreadable) is wrong: left out of the group, it would reward not answering (docs/decisions/workers.md).
        score = min(max(raw or 0.0, 0.0), 1.0)
        exact = float(score >= EXACT_THRESHOLD)
        reward = score if self.env.partial_credit else exact
        metrics = {"raw_score": raw or 0.0, "exact": exact, "unreadable": float(raw is None)}
        family_scores = Scores(reward, {"score": reward}, {"score": 1.0}, metrics)
        return merge_scores([family_scores, await super().score_rollout(state)])


def _families(gym: str | Sequence[str | JsonMapping], config: JsonMapping | None) -> list[Family]:
    if isinstance(gym, str):
        return [Family(gym, config=dict(config or {}))]
    if config is not None:
        raise ConfigError("config is for one family; with several set it for each: {'name': …, 'config': {…}}")
    if not gym:
        raise ConfigError("gym is empty; expected the name of a family, or several")
    try:
        return [Family(spec) if isinstance(spec, str) else msgspec.convert(spec, Family) for spec in gym]
    except msgspec.ValidationError as error:
        raise ConfigError(f"gym is {gym!r}: {error}; expected names, or {{'name', 'weight', 'config'}}") from error


def _row(family: Family, seed: int, task: JsonObject) -> Row:
    info = {"family": family.name, "config": family.config, "seed": seed, "task": task}
    answer = task["answer"]
    return {"question": task["question"], "answer": answer if isinstance(answer, str) else "", "info": info}
