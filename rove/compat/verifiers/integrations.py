"""v0's environments over other libraries: its rows, prompts and rewards, the libraries where rove has them."""

from __future__ import annotations

import inspect
import json
import os
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import aiohttp

from rove.compat.verifiers.data import make_table
from rove.compat.verifiers.decorators import cleanup, stop, teardown
from rove.compat.verifiers.gym import EpisodicSumRubric
from rove.compat.verifiers.messages import Messages, UserMessage, content_text
from rove.compat.verifiers.multiturn import MultiTurnEnv, SingleTurnEnv
from rove.compat.verifiers.parsers import Parser, XMLParser
from rove.compat.verifiers.rubrics import Rubric
from rove.compat.verifiers.types import State
from rove.integrations.environments.libraries import require_library
from rove.integrations.environments.open_env_wire import Session
from rove.integrations.environments.reasoning import ReasoningGymEnv as Tasks
from rove.workers import Workers

TEXT_ARENA = Path(__file__).with_name("text_arena_worker.py")
CALL_SECONDS = 30.0
ROOM_SECONDS = 600.0
CHUNK = 64
"""Tasks that are made at a time."""
_THEIRS: Any = object()


class ReasoningGymEnv(SingleTurnEnv):
    """Tasks of reasoning-gym; answers are scored in worker processes, since some families run them as Python.

    Args:
        gym: a family, or several: names, or {"name": …, "weight": …, "config": {…}}.
        num_train_examples, num_eval_examples: rows, in this order, of one dataset.
        system_prompt: the library's default unless given.
        parser: finds the answer. Default: `<answer>` tags.
        seed: of the dataset.
    """

    def __init__(
        self,
        gym: str | list[str | dict[str, Any]],
        num_train_examples: int = 1000,
        num_eval_examples: int = 100,
        system_prompt: str | None = _THEIRS,
        parser: Parser | None = None,
        seed: int = 0,
    ):
        self.gym, self.seed = gym, seed
        self.num_train_examples, self.num_eval_examples = num_train_examples, num_eval_examples
        if isinstance(gym, str):
            family: dict[str, Any] = {"family": gym, "config": {}}
        else:
            specs = [one if isinstance(one, dict) else {"name": one, "weight": 1.0, "config": {}} for one in gym]
            family = {"family": "composite", "config": {"datasets": specs}}
        self._tasks = Tasks(family["family"], config=family["config"])
        self._infos = [{**family, "seed": seed, "task": task} for task in self._made(family)]
        rows = [
            {
                "question": info["task"]["question"],
                "answer": str(place),
                "info": {"source_dataset": info["task"]["metadata"]["source_dataset"]},
            }
            for place, info in enumerate(self._infos)
        ]
        train, held_out = rows[:num_train_examples], rows[num_train_examples:]
        parser = parser or XMLParser(fields=["answer"])
        rubric = Rubric(parser=parser)

        async def check_answer_reward_func(completion: Messages, answer: str, **kwargs: Any) -> float:
            said = str(parser.parse_answer(completion)).strip()
            score = await self._tasks.score_answer(self._infos[int(answer)], said)
            if score is None:
                raise ValueError("the family's scorer cannot read this answer")
            return score

        rubric.add_reward_func(check_answer_reward_func)
        rubric.add_reward_func(parser.get_format_reward_func(), weight=0.0)
        super().__init__(
            dataset=make_table(train),
            eval_dataset=make_table(held_out) if held_out else None,
            system_prompt=self._tasks.workers.setup_result["system_prompt"]
            if system_prompt is _THEIRS
            else system_prompt,
            parser=parser,
            rubric=rubric,
        )
        self.rubric = rubric  # without the metric of turns

    def _made(self, family: Mapping[str, Any]) -> list[Any]:
        total = self.num_train_examples + self.num_eval_examples
        made: list[Any] = []
        for start in range(0, total, CHUNK):
            places = list(range(start, min(start + CHUNK, total)))
            spec = {**family, "seed": self.seed, "size": total, "positions": places}
            made += self._tasks.workers.call_sync("tasks", 4 * CALL_SECONDS, **spec)
        return made

    @teardown
    async def end_workers(self) -> None:
        """End the worker processes."""
        await self._tasks.end_workers()


class TextArenaEnv(MultiTurnEnv):
    """A word game of TextArena for one player, each rollout's in a process of its own; the row's answer is its secret word.

    Args:
        game: its id.
        num_train_examples, num_eval_examples: rows, words drawn by `seed`.
        parser: finds the guess. Default: tags `<think>` and `<guess>`.
        feedback_fn: what the game shows → what the model reads.
        Everything else: see `MultiTurnEnv`.
    """

    def __init__(
        self,
        game: str = "Wordle-v0",
        num_train_examples: int = 1000,
        num_eval_examples: int = 0,
        system_prompt: str | None = None,
        parser: Parser | None = None,
        rubric: Rubric | None = None,
        feedback_fn: Callable[[str], str] = str,
        seed: int = 0,
        **kwargs: Any,
    ):
        for module in ("nltk", "textarena"):
            require_library(module, "textarena", type(self).__name__)
        self.game, self.feedback_fn, self.seed = game, feedback_fn, seed
        self.num_train_examples, self.num_eval_examples = num_train_examples, num_eval_examples
        self.workers = Workers(TEXT_ARENA, {"game": game}, env=dict(os.environ), name=game)
        self.workers.start()
        draw = random.Random(seed)
        told = self.workers.setup_result
        rows = [
            {"question": told["question"], "answer": draw.choice(told["words"])}
            for _ in range(num_train_examples + num_eval_examples)
        ]
        train, held_out = rows[:num_train_examples], rows[num_train_examples:]
        super().__init__(
            dataset=make_table(train),
            eval_dataset=make_table(held_out) if held_out else None,
            system_prompt=system_prompt,
            parser=parser or XMLParser(fields=["think", "guess"], answer_field="guess"),
            rubric=rubric,
            **kwargs,
        )

    async def setup_state(self, state: State, **kwargs: Any) -> State:
        """Begin the game with the row's word."""
        state["ta_env"] = await self.workers.open()
        await state["ta_env"].call("begin", CALL_SECONDS, word=state["answer"])
        return state

    async def env_response(self, messages: Messages, state: State, **kwargs: Any) -> Messages:
        """Make the guess; why the game has ended, or what it shows."""
        guess = str(self.parser.parse_answer(messages))
        told = await state["ta_env"].call("guess", CALL_SECONDS, guess=guess)
        said = [UserMessage(content=told["said"] if told["done"] else str(self.feedback_fn(told["said"])))]
        if told["done"]:
            state["final_env_response"] = said
        return said

    @cleanup
    async def cleanup_ta_env(self, state: State) -> None:
        """End the game's process."""
        worker = state.pop("ta_env", None)
        if worker is not None:
            worker.close()

    @teardown
    async def end_workers(self) -> None:
        """End the process that the games' processes come from."""
        await self.workers.aclose()


class OpenEnvEnv(MultiTurnEnv):
    """An environment of an OpenEnv server that runs (v0 started one for each rollout in a vendor's sandbox).

    Args:
        openenv_project: the server's URL.
        num_train_examples, num_eval_examples: rows, with a seed each from `seed` on.
        prompt_renderer: (observation, and by name context, action_schema, contract, seed, as far as it takes them) → messages.
        max_turns, rubric: see `MultiTurnEnv`; the sum of the steps' rewards unless given.
        Everything else: see `Environment`; what is about sandboxes is ignored.

    Raises:
        ValueError: there is no renderer, or a folder is given, or no URL.
    """

    def __init__(
        self,
        openenv_project: str | Path | None = None,
        num_train_examples: int = 100,
        num_eval_examples: int = 50,
        seed: int = 0,
        prompt_renderer: Callable[..., Messages] | None = None,
        max_turns: int = -1,
        rubric: Rubric | None = None,
        **kwargs: Any,
    ):
        if prompt_renderer is None:
            raise ValueError("OpenEnvEnv needs prompt_renderer=, a function of observations that returns messages")
        url = str(openenv_project or "")
        if not url.startswith(("http://", "https://")):
            raise ValueError(
                f"openenv_project is {openenv_project!r}; v0 ran such projects in a vendor's sandboxes. Start its server "
                "(uvicorn server.app:app in that folder) and give its URL: OpenEnvEnv('http://127.0.0.1:8000', …)"
            )
        self.openenv_project, self.seed, self.prompt_renderer = url.rstrip("/"), seed, prompt_renderer
        self.num_train_examples, self.num_eval_examples = num_train_examples, num_eval_examples
        asked = [{"role": "user", "content": "OpenEnv rollout is initializing."}]
        rows = [{"prompt": asked, "info": {"seed": seed + i}} for i in range(num_train_examples + num_eval_examples)]
        train, held_out = rows[:num_train_examples], rows[num_train_examples:]
        for name in [name for name in kwargs if name in _OF_SANDBOXES]:
            del kwargs[name]
        super().__init__(
            dataset=make_table(train),
            eval_dataset=make_table(held_out) if held_out else None,
            rubric=rubric or EpisodicSumRubric(),
            max_turns=max_turns,
            **kwargs,
        )

    async def setup_state(self, state: State, **kwargs: Any) -> State:
        """Begin an episode in a session of its own."""
        http = state["openenv_http"] = aiohttp.ClientSession()
        async with http.get(f"{self.openenv_project}/schema") as answer:
            answer.raise_for_status()
            schema = (await answer.json()).get("action", {})
        if {"tool_name", "arguments"} <= schema.get("properties", {}).keys():
            raise ValueError(
                "this server's actions are calls of tools (MCP), which are not understood here; use vf.MCPEnv"
            )
        session = state["openenv_client"] = Session(http, self.openenv_project)
        state["openenv_action_schema"], seed = schema, int(state["info"].get("seed", 0))
        told = await session.reset(CALL_SECONDS, ROOM_SECONDS, seed=seed)
        state["openenv_done"] = bool(told.get("done"))
        state["prompt"] = self._shown(told, schema, "reset", seed)
        return state

    async def env_response(self, messages: Messages, state: State, **kwargs: Any) -> Messages:
        """Do what the model said, and show what came of it."""
        schema = state["openenv_action_schema"]
        action = _action(content_text(messages[-1].get("content")).strip(), schema)
        told = await state["openenv_client"].step(action, CALL_SECONDS)
        state["trajectory"][-1]["reward"] = told.get("reward")
        state["openenv_done"] = bool(told.get("done"))
        return self._shown(told, schema, "step", None)

    def _shown(self, told: Mapping[str, Any], schema: Any, context: str, seed: int | None) -> Messages:
        known = {"context": context, "action_schema": schema, "contract": "gym", "seed": seed}
        names = inspect.signature(self.prompt_renderer).parameters
        takes_all = any(one.kind is one.VAR_KEYWORD for one in names.values())
        given = {name: value for name, value in known.items() if takes_all or name in names}
        messages = self.prompt_renderer(told.get("observation") or {}, **given)
        if not isinstance(messages, list) or not messages:
            raise RuntimeError(f"prompt_renderer returned {messages!r} for {context}; expected a list of messages")
        return messages

    @stop
    async def openenv_done(self, state: State) -> bool:
        """The episode has ended."""
        return bool(state.get("openenv_done"))

    @cleanup
    async def cleanup_openenv(self, state: State) -> None:
        """End the session."""
        session, http = state.pop("openenv_client", None), state.pop("openenv_http", None)
        if session is not None:
            await session.close()
        if http is not None:
            await http.close()


_OF_SANDBOXES = {
    "startup_timeout_seconds",
    "startup_poll_interval_seconds",
    "health_request_timeout_seconds",
    "schema_request_timeout_seconds",
    "wait_for_creation_max_attempts",
    "max_retries",
    "base_delay",
    "backoff_factor",
    "max_backoff_seconds",
    "jitter",
}


def _action(text: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """The action that an answer is: a JSON object, or the one text that an action consists of."""
    if text.startswith("```") and text.endswith("```"):
        text = "\n".join(text.split("\n")[1:-1]).strip()
    try:
        action = json.loads(text)
    except json.JSONDecodeError:
        action = None
    if isinstance(action, dict):
        return action
    fields = schema.get("properties", {})
    for names in (schema.get("required", []), list(fields)):
        if len(names) == 1 and fields.get(names[0], {}).get("type") == "string":
            return {names[0]: text}
    raise ValueError("Failed to parse action JSON. Provide a JSON object matching the action schema.")
