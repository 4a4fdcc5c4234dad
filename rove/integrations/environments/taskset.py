"""Tasksets of verifiers v1, run and scored by verifiers in a worker process.

Requests of a taskset's agents are sent to the recording proxy; see docs/decisions/agents.md.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from rove.core.digest import digest_files
from rove.core.errors import AgentError, ConfigError, Error, LimitReachedError, RemoteError, WorkerError
from rove.core.messages import Message, Messages, as_messages
from rove.core.plain import Identity, JsonMapping, JsonObject, Row
from rove.core.protocols import Request
from rove.core.records import Scores
from rove.core.state import State, bookkeeping
from rove.envs.agent import AgentEnv, longest_conversation
from rove.envs.environment import Turn, teardown
from rove.remote.worker_pool import WorkerPool
from rove.rubrics import Rubric
from rove.rubrics.rubric import merge_scores
from rove.server.proxy import Access, ModelTurn
from rove.workers import Workers

WORKER = Path(__file__).with_name("taskset_worker.py")
CHUNK_SIZE = 4096
"""Tasks requested per call of the worker."""
ROWS_TIMEOUT_S = 600.0
"""Time limit for sending a chunk of tasks."""
CANCEL_TIMEOUT_S = 15.0
INTERPRETER_VARIABLES = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
"""Environment variables with package locations of this interpreter; another interpreter must not inherit them."""


class TasksetEnv(AgentEnv):
    """A taskset written for verifiers v1 (the API of version 0.4), with its agents, tools, rewards, and metrics.

    verifiers runs in a worker process, optionally with its own interpreter; the model requests of its agents are sent here
    and recorded as the steps of the rollout, see `AgentEnv`. All rollouts of a group have the same task. A rollout that ends
    by a limit or a stop condition of this environment is scored as it is. The row's `info` has `task` (its data).

    Unlike in `vf-eval`, agents run on this machine ("subprocess") by default, not in Prime's sandboxes, and get no shell: the
    harness is "null" (a conversation, with the taskset's tools) unless the taskset, or `env`, names one.

        env = rove.TasksetEnv("reversal", num_examples=100, python="verifiers-venv/bin/python")

    Args:
        taskset: id of the taskset: the name of the module that exports it.
        config: settings of the taskset; `--env.taskset.` sets them in `vf-eval`.
        eval_config: settings that differ for evaluation, such as {"split": "test"}. Default: evaluation uses the training tasks.
        env: the rest of v1's `[env]` table: `id` of an environment for the taskset, and settings of its agents, such as
            {"agent": {"harness": {"id": "bash"}, "runtime": {"type": "docker"}}}. Requests of agents with their own `client` are
            sent there and not recorded.
        agent: the agent that is the model, if there are several. The others use the same model; their calls are in the
            record's `model_roles`.
        num_examples: maximum tasks of each dataset.
        select: v1's selection of tasks: include, exclude, shuffle, seed, skip.
        python: interpreter of a virtual environment with verifiers and the taskset. Default: this one.
        taskset_dir: folder of the taskset, if it is not installed.
        timeout_seconds: time limit of an agent's part of a rollout, which is then scored as it is.
        start_seconds: time limit for loading the taskset.
        hang_seconds: a worker that does not respond for this long is killed.
        grace_seconds: time limit for ending and scoring a rollout that gets no further responses.
        Everything else: see `AgentEnv`.

    Raises:
        ConfigError: the taskset, or verifiers, cannot be loaded with these settings.
    """

    def __init__(
        self,
        taskset: str,
        config: JsonMapping | None = None,
        eval_config: JsonMapping | None = None,
        env: JsonMapping | None = None,
        agent: str | None = None,
        num_examples: int | None = None,
        select: JsonMapping | None = None,
        python: str | None = None,
        taskset_dir: str | Path | None = None,
        timeout_seconds: float | None = None,
        start_seconds: float = 120.0,
        hang_seconds: float = 120.0,
        grace_seconds: float = 120.0,
        **kwargs: Any,
    ):
        selection = dict(select or {})
        if num_examples is not None:
            selection["limit"] = num_examples
        self.settings = {
            "taskset": {**(config or {}), "id": taskset},
            "eval_taskset": None if eval_config is None else dict(eval_config),
            "env": dict(env or {}),
            "select": selection,
            "agent": agent,
            "timeout_seconds": timeout_seconds,
        }
        folder = None if taskset_dir is None else str(Path(taskset_dir).resolve())
        self.workers = _workers(self.settings, taskset, python, folder, start_seconds)
        self.description = _load(self.workers, taskset)
        self._pool = WorkerPool(self.workers, hang_seconds)
        self._numbers = itertools.count()
        super().__init__(
            dataset=lambda: self._rows(train=True),
            eval_dataset=None if eval_config is None else lambda: self._rows(train=False),
            rubric=_TasksetRubric(self.description["names"]),
            grace_seconds=grace_seconds,
            **kwargs,
        )

    @property
    def identity(self) -> Identity:
        """See `Environment.identity`; depends on the taskset's settings, its module and the version of verifiers."""
        module = Path(self.description["file"])
        files = module.parent.rglob("*.py") if module.name == "__init__.py" else [module]
        identity = {"taskset": self.settings, "module": digest_files(files), "verifiers": self.description["version"]}
        return {**super().identity, **identity}

    def _rows(self, train: bool) -> Iterator[Row]:
        for start in itertools.count(0, CHUNK_SIZE):
            rows = self.workers.call_sync("rows", ROWS_TIMEOUT_S, train=train, start=start, stop=start + CHUNK_SIZE)
            for row in rows:
                row["info"]["train"] = train
                yield row
            if len(rows) < CHUNK_SIZE:
                return

    async def run(self, state: State, turn: Turn) -> None:
        """Run the rollout. Its prompt becomes the agent's first prompt, which may be longer than the row's."""
        try:
            await super().run(state, turn)
        finally:
            # The record must show what the model was shown, and a harness adds its own system prompt.
            if steps := longest_conversation(bookkeeping(state).trajectory):
                bookkeeping(state).prompt = as_messages(steps[0].prompt)

    async def run_agent(self, access: Access, state: State) -> Any:
        """Have the worker run and score the episode; return the agent's last message.

        Raises:
            AgentError: the episode failed.
            WorkerError: the worker died.
        """
        info, number = state["info"], next(self._numbers)
        worker = await self._pool.shared_worker()
        state.update(episode=(worker, number), verifiers=None)  # `_stop` ends the episode by its worker and number
        task = {"train": info["train"], "position": info["place"], "key": info["key"]}
        try:
            result = await worker.request("run_episode", number=number, base_url=f"{access.keyed_root}/v1", **task)
        # The worker runs other episodes too, so it must not be killed; it releases what this one holds.
        except asyncio.CancelledError:
            with suppress(TimeoutError, RemoteError, WorkerError):
                await asyncio.wait_for(worker.request("cancel", number=number), CANCEL_TIMEOUT_S)
            raise
        except RemoteError as error:
            raise AgentError(f"{error.type}: {error.args[0]}") from error
        if result["error"] is not None:
            failed = RemoteError(**result["error"])
            raise AgentError(f"{failed.type}: {failed.args[0]}") from failed
        state["verifiers"] = result
        record = bookkeeping(state)
        record.stop_condition = record.stop_condition or result["stop_condition"]
        record.is_truncated = record.is_truncated or bool(result["is_truncated"])
        return result["reply"]

    def _limited(self, turn: Turn) -> ModelTurn:
        """Record the agent's turns as the rollout's turns, and the turns of other agents under model roles."""
        limited_turn = super()._limited(turn)

        async def route(state: State, messages: Messages, *, agent_request: Request | None = None) -> Message:
            # The worker gives every other agent its role as the name of its model.
            if agent_request is not None and agent_request.model in self.description["model_roles"]:
                return await turn(state, messages, role=agent_request.model, agent_request=agent_request)
            try:
                return await limited_turn(state, messages, agent_request=agent_request)
            except LimitReachedError as reached:
                await _stop(state, str(reached))
                raise

        return route

    async def _stops_hold(self, state: State) -> bool:
        holds = await super()._stops_hold(state)
        if holds:
            await _stop(state, str(bookkeeping(state).stop_condition))
        return holds

    @teardown
    async def end_workers(self) -> None:
        """End the worker."""
        await self._pool.tear_down()


class _TasksetRubric(Rubric):
    """The scores of verifiers; added functions score the rollout in this process."""

    def __init__(self, names: list[str]):
        super().__init__()
        self.verifiers_names = names

    @property
    def names(self) -> list[str]:
        """Names of the first task's rewards and metrics, then of the added functions."""
        return [*self.verifiers_names, *super().names]

    async def score_rollout(self, state: State) -> Scores:
        """Return the scores of the agent's trace; see `Rubric.score_rollout`."""
        result = state.get("verifiers")
        if result is None:
            reason = bookkeeping(state).stop_condition
            raise AgentError(f"the rollout was ended ({reason}) before verifiers could score it; raise its time limits")
        # A record's rewards and metrics share their names, which in v1 they need not; `num_turns` is rove's own.
        used_names = {*result["rewards"], "num_turns"}
        metrics: dict[str, float] = {}
        for name, value in result["metrics"].items():
            metrics[f"{name} (v1)" if name in used_names else name] = value
        reward = math.fsum(result["weights"][name] * value for name, value in result["rewards"].items())
        extras = {"info": result["info"]} if result["info"] else {}
        scores = Scores(reward, result["rewards"], result["weights"], metrics, extras)
        return merge_scores([scores, await super().score_rollout(state)])


def _workers(settings: JsonMapping, taskset: str, python: str | None, folder: str | None, seconds: float) -> Workers:
    env = dict(os.environ)
    if python is not None:
        for name in INTERPRETER_VARIABLES:
            env.pop(name, None)
        # Tool servers and harnesses are started by name, and must be those of the same virtual environment.
        programs = str(Path(python).absolute().parent)
        env["PATH"] = os.pathsep.join([programs, env.get("PATH", os.defpath)])
    if folder is not None:  # also for tool servers
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, env.get("PYTHONPATH")]))
    for name in ("NO_PROXY", "no_proxy"):  # the worker connects to this machine, not through a proxy
        env[name] = ",".join(filter(None, (env.get(name), "127.0.0.1")))
    # None means this process's import paths, which another interpreter must not get.
    paths = None if python is None else []
    if folder is not None:
        paths = [folder]
    return Workers(
        WORKER, settings, python=python, paths=paths, env=env, start_seconds=seconds, name=f"taskset '{taskset}'"
    )


def _load(workers: Workers, taskset: str) -> JsonObject:
    """Start the worker; return its description of the taskset."""
    try:
        workers.start()
    except RemoteError as error:
        if error.type == "ModuleNotFoundError" and "verifiers" in str(error.args[0]):
            raise ConfigError(
                f"TasksetEnv needs verifiers 0.4 or newer ({error.args[0]}): pip install 'verifiers>=0.4',  "
                "or pass the interpreter of another virtual environment with python="
            ) from error
        raise ConfigError(f"the taskset '{taskset}' did not load: {error.type}: {error.args[0]}") from error
    except Error as error:
        raise ConfigError(str(error)) from error
    return workers.setup_result


async def _stop(state: State, condition: str) -> None:
    """End the episode, which is then scored as it is."""
    worker, number = state["episode"]
    with suppress(RemoteError, WorkerError):
        await worker.request("stop", number=number, condition=condition)
