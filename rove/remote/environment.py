"""An environment that lives in a worker process."""

from __future__ import annotations

import functools
import os
import tempfile
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from rove.core.errors import ConfigError, RemoteError, WorkerError
from rove.core.messages import Message, Messages
from rove.core.records import Scores
from rove.core.state import State
from rove.envs.environment import Environment, ScriptedPolicy, Turn
from rove.envs.multi_turn import Opponent
from rove.remote.rollout import Rollout, score_together
from rove.remote.worker_pool import WorkerPool, WorkerPools
from rove.rollouts.runner import within
from rove.rubrics import Rubric
from rove.rubrics.rubric import merge_scores
from rove.workers import Workers

WORKER = Path(__file__).with_name("worker.py")
CHUNK = 16_384
"""Examples that are asked for at a time."""
ROWS_SECONDS = 600.0
"""For making so many."""
NOT_THEIRS = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
"""Environment variables that say where this interpreter finds things."""


class AwayEnv(Environment):
    """An environment in worker processes: these play and score, the model is asked from here.

    Args:
        told: what a worker says of it; see `rove.remote.worker.setup`.
        rooms: where its rollouts are played.
        env_args: how it was loaded.
    """

    def __init__(self, told: Mapping[str, Any], rooms: WorkerPools, env_args: Mapping[str, Any] | None = None):
        self.told, self.rooms = dict(told), rooms
        super().__init__(
            dataset=lambda: self.examples(train=True),
            rubric=_AwayRubric(self),
            sampling_args=told["sampling_args"],
            policies={name: self._player(name) for name in told["policies"]},
            env_id=told["env_id"],
            env_args=env_args,
        )
        self.message_type = told["message_type"]
        self.system_prompt = told["system_prompt"]
        self.source = told["source"]
        self.two_player: bool = told["two_player"]
        self.opponent: Opponent | None = None

    @abstractmethod
    def ask_now(self, name: str, /, **args: Any) -> Any:
        """A worker's answer to a call about the dataset, for code that is not async."""

    @abstractmethod
    def close(self) -> None:
        """End all workers."""

    def examples(self, n: int = -1, train: bool = False) -> Iterator[dict[str, Any]]:
        """The first `n` examples (all when n < 0), some at a time."""
        start = 0
        while n < 0 or start < n:
            stop = start + CHUNK if n < 0 else min(start + CHUNK, n)
            made = self.ask_now("examples", start=start, stop=stop, train=train)
            for example in made:
                if isinstance(example["prompt"], list):
                    example["prompt"] = [Message(message) for message in example["prompt"]]
                yield example
            start += len(made)
            if len(made) < CHUNK:
                return

    def count_examples(self, n: int = -1, train: bool = False) -> int | None:
        """How many `examples` would give; None when only reading them all would tell."""
        return self.ask_now("count_examples", n=n, train=train)

    @property
    def identity(self) -> dict[str, Any]:
        """That of the environment itself: a run may go on with or without isolation."""
        return self.told["identity"]

    async def run(self, state: State, turn: Turn) -> None:
        """Play the rollout in a worker, within the time that the environment gives it."""
        rollout = Rollout(self.rooms, state, turn, self.opponent if self.two_player else None)
        await within(await rollout.time_limit(), state, rollout.run)

    def admitted(self) -> AbstractAsyncContextManager[None]:
        """Where there is no room for one more rollout, waits until there is."""
        return self.rooms.place()

    async def clean_up(self, state: State) -> None:
        """Clean up in the worker, and take over what is to be known of the rollout."""
        if "isolated" in state:
            await state["isolated"].clean_up()

    async def tear_down(self) -> None:
        """Run the environment's own `@teardown` methods, then end the workers."""
        await self.rooms.tear_down()

    def _player(self, name: str) -> ScriptedPolicy:
        async def answer(messages: Messages, state: State, rng: Any) -> Any:
            return await state["isolated"].ask_player(name, messages, rng.getstate(), state.get("conversation", 0))

        return answer


class IsolatedEnv(AwayEnv):
    """An environment package in a worker process: it plays and scores there, the model is asked from here.

    What the package does to its process (crash, exit(), a hang, prints, global seeds, imports that clash) stays there.
    When the worker dies, or does nothing for `hang_seconds`, the rollouts that were under way are played again, each alone in
    a worker of its own and with the answers it had already; the one that does it again fails with a `WorkerError`. Prompts,
    answers, scores, seeds and the run's identity are those of the environment loaded here.

    A worker is a fork of the process that has loaded the package: what needs threads or connections belongs into
    `setup_state`. It sees the environment variables, API keys included: this protects a run from mistakes, not from malice.

    Args:
        env_id, env_args, env_dir: as for `load_environment`.
        python: interpreter of the package's own virtual environment; rove's code is ours, what it imports
            (aiohttp, click, msgspec, rich, simpleeval, tomli-w) must be there. Default: this one.
        start_seconds: for loading the package.
        hang_seconds: most time that the worker may take over one thing without looking up.
        environ: all its environment variables. Default: those of this process.
        rows_seconds: for making some of the dataset's rows.
        prepare: a function, "module:name", that the worker calls before it loads the package.
        variables: environment variables beside these.

    Raises:
        ConfigError: the package cannot be loaded.
    """

    def __init__(
        self,
        env_id: str,
        env_args: Mapping[str, Any] | None = None,
        env_dir: str | Path | None = None,
        python: str | None = None,
        start_seconds: float = 60.0,
        hang_seconds: float = 120.0,
        environ: Mapping[str, str] | None = None,
        rows_seconds: float = ROWS_SECONDS,
        prepare: str = "",
        variables: Mapping[str, str] | None = None,
    ):
        args = {
            "env_id": env_id,
            "env_dir": None if env_dir is None else str(env_dir),
            "env_args": dict(env_args or {}),
            "prepare": prepare,
        }
        given = os.environ if environ is None else environ
        inherited = {name: value for name, value in given.items() if python is None or name not in NOT_THEIRS}
        self.workers = Workers(
            WORKER,
            args,
            python=python,
            paths=None if python is None else [rove_alone().name],
            env={**inherited, **(variables or {})},
            start_seconds=start_seconds,
            name=f"environment '{env_id}'",
        )
        self.rows_seconds = rows_seconds
        try:
            self.workers.start()
        except RemoteError as error:
            said = error.args[0] if error.type == "ConfigError" else f"environment '{env_id}' did not load: {error}"
            raise ConfigError(said) from error
        except WorkerError as error:
            raise ConfigError(str(error)) from error
        self.room = WorkerPool(self.workers, hang_seconds)
        super().__init__(self.workers.setup_result, self.room, env_args)

    def ask_now(self, name: str, /, **args: Any) -> Any:
        """A worker's answer to a call about the dataset, for code that is not async."""
        return self.workers.call_sync(name, self.rows_seconds, **args)

    def close(self) -> None:
        """End all workers."""
        self.workers.close()


class _AwayRubric(Rubric):
    """The environment's rubric, in the worker; functions added here score what is known here."""

    def __init__(self, env: AwayEnv):
        super().__init__()
        self.env = env

    @property
    def names(self) -> list[str]:
        """Those of the environment's rubric, then the own ones."""
        return [*self.env.told["names"], *super().names]

    @property
    def extras_names(self) -> list[str]:
        """Those of the environment's rubric."""
        return self.env.told["extras_names"]

    @property
    def identity(self) -> Any:
        """That of the environment's rubric."""
        return self.env.told["identity"]["rubric"]

    @property
    def has_group_rewards(self) -> bool:
        """Whether it, or a function added here, needs whole groups."""
        return self.env.told["has_group_rewards"] or super().has_group_rewards

    async def score_rollout(self, state: State) -> Scores:
        """What the environment's rubric says; see `Rubric.score_rollout`."""
        rollout: Rollout = state["isolated"]
        try:
            scores = await rollout.score()
        except BaseException:
            rollout.leave()
            raise
        if not self.env.told["has_group_rewards"]:
            rollout.leave()
        own = await super().score_rollout(state)
        # Merged only with something: an environment of v0 adds rewards up in its own way, which can differ in the last bit.
        return merge_scores([scores, own]) if own.rewards or own.metrics or own.extras else scores

    async def score_group(self, states: Sequence[State], scores: Sequence[Scores] | None = None) -> list[Scores]:
        """The scores of siblings, brought together in one worker if they are not; see `Rubric.score_group`."""
        given = [await self.score_rollout(state) for state in states] if scores is None else list(scores)
        if states and self.env.told["has_group_rewards"]:
            rollouts: list[Rollout] = [state["isolated"] for state in states]
            try:
                given = await score_together(rollouts, given)
            finally:
                for rollout in rollouts:
                    rollout.leave()
        return await super().score_group(states, given)


@functools.cache
def rove_alone() -> tempfile.TemporaryDirectory[str]:
    """A folder that holds rove and nothing else of where it is installed, for another interpreter's path."""
    folder = tempfile.TemporaryDirectory(prefix="rove-alone-")
    (Path(folder.name) / "rove").symlink_to(Path(__file__).resolve().parents[1])
    return folder
