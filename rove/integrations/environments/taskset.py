"""Tasksets of verifiers v1, played and scored by verifiers in a process of its own."""

from __future__ import annotations

import asyncio
import itertools
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from rove.core.digest import digest_files
from rove.core.errors import AgentError, ConfigError, Error, LimitReachedError, RemoteError, WorkerError
from rove.core.messages import Message, Messages, as_messages
from rove.core.protocols import Request
from rove.core.records import Scores
from rove.core.state import State
from rove.envs.agent import AgentEnv, longest_conversation
from rove.envs.environment import Turn, teardown
from rove.remote.worker_pool import WorkerPool
from rove.rubrics import Rubric
from rove.rubrics.rubric import merge_scores
from rove.server.proxy import Access, ModelTurn
from rove.workers import Workers

WORKER = Path(__file__).with_name("taskset_worker.py")
CHUNK = 4096
"""Tasks that are asked for at a time."""
ROWS_SECONDS = 600.0
"""For telling so many."""
CANCEL_SECONDS = 15.0
NOT_THEIRS = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
"""Environment variables that say where this interpreter finds things."""


class TasksetEnv(AgentEnv):
    """A taskset of verifiers v1 (the API of its 0.4): its agents play, its tools answer, its rewards and metrics count.

    verifiers runs in a worker process, with an interpreter of its own if need be; what its agents ask of the model comes here
    and is recorded as the steps of the rollout, see `AgentEnv`. The siblings of a group play the same task. A rollout that ends
    by a limit or a stop condition of this environment is scored as it stands. The row's `info` has `task` (its data).

    Unlike in `vf-eval`, agents run on this machine ("subprocess") where nothing says otherwise, not in Prime's sandboxes, and
    get no shell: the harness is "null" (a conversation, with the taskset's tools) unless the taskset, or `env`, names one.

    Args:
        taskset: its id: the name of the module that exports it.
        config: settings of the taskset, what `--env.taskset.` sets in `vf-eval`.
        eval_config: settings that differ for evaluation, such as {"split": "test"}. Default: the training tasks are evaluated.
        env: the rest of v1's `[env]` table: `id` of an environment to play the taskset in, and settings of its agents, such as
            {"agent": {"harness": {"id": "bash"}, "runtime": {"type": "docker"}}}. Agents that it gives a `client` are asked for
            there, unrecorded.
        agent: which of several agents the model is. The others are asked of the same model and kept in the record's `roles`.
        num_examples: most tasks of each of the datasets.
        select: v1's selection of tasks: include, exclude, shuffle, seed, skip.
        python: interpreter of a virtual environment that has verifiers and the taskset. Default: this one.
        taskset_dir: folder in which the taskset is, where it is not installed.
        timeout_seconds: for an agent's part of a rollout; what there is then is scored.
        start_seconds: for loading the taskset.
        hang_seconds: a worker that gives no sign of life for so long is killed.
        grace_seconds: for ending and scoring a rollout that gets no further answers.
        Everything else: see `AgentEnv`.

    Raises:
        ConfigError: the taskset, or verifiers, cannot be loaded with these settings.
    """

    def __init__(
        self,
        taskset: str,
        config: Mapping[str, Any] | None = None,
        eval_config: Mapping[str, Any] | None = None,
        env: Mapping[str, Any] | None = None,
        agent: str | None = None,
        num_examples: int | None = None,
        select: Mapping[str, Any] | None = None,
        python: str | None = None,
        taskset_dir: str | Path | None = None,
        timeout_seconds: float | None = None,
        start_seconds: float = 120.0,
        hang_seconds: float = 120.0,
        grace_seconds: float = 120.0,
        **kwargs: Any,
    ):
        chosen = dict(select or {}) if num_examples is None else {**(select or {}), "limit": num_examples}
        self.settings = {
            "taskset": {**(config or {}), "id": taskset},
            "eval_taskset": None if eval_config is None else dict(eval_config),
            "env": dict(env or {}),
            "select": chosen,
            "agent": agent,
            "timeout_seconds": timeout_seconds,
        }
        folder = None if taskset_dir is None else str(Path(taskset_dir).resolve())
        self.workers = _workers(self.settings, taskset, python, folder, start_seconds)
        self.told = _told_by(self.workers, taskset)
        self._room = WorkerPool(self.workers, hang_seconds)
        self._numbers = itertools.count()
        evaluated = None if eval_config is None else (lambda: self._rows(train=False))
        super().__init__(
            dataset=lambda: self._rows(train=True),
            eval_dataset=evaluated,
            rubric=_TasksetRubric(self.told["names"]),
            grace_seconds=grace_seconds,
            **kwargs,
        )

    @property
    def identity(self) -> dict[str, Any]:
        """See `Environment.identity`; the taskset counts by its settings, its module and the version of verifiers."""
        module = Path(self.told["file"])
        files = module.parent.rglob("*.py") if module.name == "__init__.py" else [module]
        known = {"taskset": self.settings, "module": digest_files(files), "verifiers": self.told["version"]}
        return {**super().identity, **known}

    def _rows(self, train: bool) -> Iterator[dict[str, Any]]:
        for start in itertools.count(0, CHUNK):
            rows = self.workers.call_sync("rows", ROWS_SECONDS, train=train, start=start, stop=start + CHUNK)
            for row in rows:
                row["info"]["train"] = train
                yield row
            if len(rows) < CHUNK:
                return

    async def run(self, state: State, turn: Turn) -> None:
        """Play the rollout; its prompt is then what the agent was shown first, which may be more than the row's."""
        try:
            await super().run(state, turn)
        finally:
            if held := longest_conversation(state["trajectory"]):
                state["prompt"] = as_messages(held[0].prompt)

    async def run_agent(self, access: Access, state: State) -> Any:
        """Have the episode played and scored; the answer is what the agent said last.

        Raises:
            AgentError: it failed there.
            WorkerError: the worker died.
        """
        info, number = state["info"], next(self._numbers)
        worker = await self._room.shared_worker()
        state.update(episode=(worker, number), verifiers=None)
        task = {"train": info["train"], "place": info["place"], "key": info["key"]}
        try:
            told = await worker.request("play", number=number, base_url=f"{access.keyed_root}/v1", **task)
        except asyncio.CancelledError:
            with suppress(TimeoutError, RemoteError, WorkerError):
                await asyncio.wait_for(worker.request("cancel", number=number), CANCEL_SECONDS)
            raise
        except RemoteError as error:
            raise AgentError(f"{error.type}: {error.args[0]}") from error
        if told["error"] is not None:
            failed = RemoteError(**told["error"])
            raise AgentError(f"{failed.type}: {failed.args[0]}") from failed
        state["verifiers"] = told
        state["stop_condition"] = state["stop_condition"] or told["stop_condition"]
        state["is_truncated"] = state["is_truncated"] or told["is_truncated"]
        return told["reply"]

    def _limited(self, turn: Turn) -> ModelTurn:
        """The agent's turns are the rollout's; those of other agents belong to their roles."""
        own = super()._limited(turn)

        async def of_whom(state: State, messages: Messages, *, asked: Request | None = None) -> Message:
            if asked is not None and asked.model in self.told["model_roles"]:
                return await turn(state, messages, role=asked.model, asked=asked)
            try:
                return await own(state, messages, asked=asked)
            except LimitReachedError as reached:
                await _stop(state, str(reached))
                raise

        return of_whom

    async def _stops_hold(self, state: State) -> bool:
        holds = await super()._stops_hold(state)
        if holds:
            await _stop(state, str(state["stop_condition"]))
        return holds

    @teardown
    async def end_workers(self) -> None:
        """End the worker."""
        await self._room.tear_down()


class _TasksetRubric(Rubric):
    """What verifiers said of the episode; functions added here score what is known here."""

    def __init__(self, names: list[str]):
        super().__init__()
        self.told = names

    @property
    def names(self) -> list[str]:
        """Those of the first task's rewards and metrics, then the own ones."""
        return [*self.told, *super().names]

    async def score_rollout(self, state: State) -> Scores:
        """The scores of the agent's trace; see `Rubric.score_rollout`.

        Raises:
            AgentError: verifiers has not scored it.
        """
        told = state.get("verifiers")
        if told is None:
            why = state["stop_condition"]
            raise AgentError(f"the rollout was cut off ({why}) before verifiers could score it; give it more time")
        taken = {*told["rewards"], "num_turns"}
        metrics = {f"{name} (v1)" if name in taken else name: value for name, value in told["metrics"].items()}
        reward = math.fsum(told["weights"][name] * value for name, value in told["rewards"].items())
        extras = {"info": told["info"]} if told["info"] else {}
        scores = Scores(reward, told["rewards"], told["weights"], metrics, extras)
        return merge_scores([scores, await super().score_rollout(state)])


def _workers(
    settings: Mapping[str, Any], taskset: str, python: str | None, folder: str | None, seconds: float
) -> Workers:
    env = {name: value for name, value in os.environ.items() if python is None or name not in NOT_THEIRS}
    if python is not None:
        env["PATH"] = os.pathsep.join([str(Path(python).absolute().parent), env.get("PATH", os.defpath)])
    if folder is not None:  # for the servers of tools, too
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, env.get("PYTHONPATH")]))
    for name in ("NO_PROXY", "no_proxy"):  # what is set for the way out must not be in the way in
        env[name] = ",".join(filter(None, (env.get(name), "127.0.0.1")))
    paths = None if python is None and folder is None else [folder] if folder is not None else []
    return Workers(
        WORKER, settings, python=python, paths=paths, env=env, start_seconds=seconds, name=f"taskset '{taskset}'"
    )


def _told_by(workers: Workers, taskset: str) -> dict[str, Any]:
    try:
        workers.start()
    except RemoteError as error:
        if error.type == "ModuleNotFoundError" and "verifiers" in str(error.args[0]):
            raise ConfigError(
                f"TasksetEnv needs verifiers 0.4 or newer, where the taskset is ({error.args[0]}): pip install 'verifiers>=0.4', "
                "and where that is not this Python's environment, give the other's with python="
            ) from error
        raise ConfigError(f"the taskset '{taskset}' did not load: {error.type}: {error.args[0]}") from error
    except Error as error:
        raise ConfigError(str(error)) from error
    return workers.setup_result


async def _stop(state: State, condition: str) -> None:
    """Have the episode end, and scored as it stands."""
    worker, number = state["episode"]
    with suppress(RemoteError, WorkerError):
        await worker.ask("stop", number=number, condition=condition)
