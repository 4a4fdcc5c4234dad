"""v0's environments based on other libraries, with v0's rows, prompts and rewards."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import aiohttp

from rove.compat.verifiers.data import make_table
from rove.compat.verifiers.decorators import cleanup, named_args, stop, teardown
from rove.compat.verifiers.messages import Messages, UserMessage, content_text
from rove.compat.verifiers.multiturn import MultiTurnEnv, SingleTurnEnv
from rove.compat.verifiers.parsers import Parser, XMLParser
from rove.compat.verifiers.release import outdated
from rove.compat.verifiers.rubrics import Rubric
from rove.compat.verifiers.types import State
from rove.integrations import require_library
from rove.integrations.environments.gym import close_env
from rove.integrations.environments.open_env import Session
from rove.integrations.environments.reasoning import ReasoningGymEnv as RoveReasoningGymEnv
from rove.integrations.known_defects import warn_of_known_defects, warn_of_seed_overlap
from rove.workers import Workers

TEXT_ARENA_WORKER = Path(__file__).with_name("text_arena_worker.py")
CALL_TIMEOUT_S = 30.0
CAPACITY_TIMEOUT_S = 600.0
CHUNK_SIZE = 64
"""Tasks created per call of a worker."""
_LIBRARY_DEFAULT: Any = object()


def _tables(rows: list[dict[str, Any]], num_train: int) -> tuple[Any, Any]:
    """Return the training rows, and the evaluation rows or None."""
    held_out = rows[num_train:]
    return make_table(rows[:num_train]), make_table(held_out) if held_out else None


class ReasoningGymEnv(SingleTurnEnv):
    """Tasks of reasoning-gym. Worker processes score the answers, since some families evaluate them as Python.

    Args:
        gym: a family, or several: names, or {"name": …, "weight": …, "config": {…}}.
        num_train_examples, num_eval_examples: numbers of rows; both come from one dataset, in this order.
        system_prompt: default: the library's.
        parser: extracts the answer. Default: `<answer>` tags.
        seed: seed of the dataset.
        num_samples, num_eval_samples: the numbers of rows under their names in 0.1.0.
    """

    def __init__(
        self,
        gym: str | list[str | dict[str, Any]],
        num_train_examples: int = 1000,
        num_eval_examples: int = 100,
        system_prompt: str | None = _LIBRARY_DEFAULT,
        parser: Parser | None = None,
        seed: int = 0,
        num_samples: int | None = None,
        num_eval_samples: int | None = None,
    ):
        if num_samples is not None or num_eval_samples is not None:
            outdated("ReasoningGymEnv(num_samples=…)", "call it num_train_examples, and num_eval_examples")
            num_train_examples = num_train_examples if num_samples is None else num_samples
            num_eval_examples = num_eval_examples if num_eval_samples is None else num_eval_samples
        warn_of_seed_overlap()
        self.gym, self.seed = gym, seed
        self.num_train_examples, self.num_eval_examples = num_train_examples, num_eval_examples
        family: dict[str, Any] = {"family": gym, "config": {}}
        if not isinstance(gym, str):
            specs = [spec if isinstance(spec, dict) else {"name": spec, "weight": 1.0, "config": {}} for spec in gym]
            family = {"family": "composite", "config": {"datasets": specs}}
            for spec in specs:
                warn_of_known_defects("reasoning-gym", spec["name"])
        self._tasks = RoveReasoningGymEnv(family["family"], config=family["config"])
        self._infos: list[dict[str, Any]] = []
        rows: list[dict[str, Any]] = []
        # As in v0, a row's answer is the position of its task: a family's score needs the whole task, not an answer.
        for position, task in enumerate(self._create_tasks(family)):
            self._infos.append({**family, "seed": seed, "task": task})
            info = {"source_dataset": task["metadata"]["source_dataset"]}
            rows.append({"question": task["question"], "answer": str(position), "info": info})
        dataset, eval_dataset = _tables(rows, num_train_examples)
        if system_prompt is _LIBRARY_DEFAULT:
            system_prompt = self._tasks.workers.setup_result["system_prompt"]
        parser = parser or XMLParser(fields=["answer"])
        rubric = Rubric(parser=parser)

        async def check_answer_reward_func(completion: Messages, answer: str, **kwargs: Any) -> float:
            text = str(parser.parse_answer(completion)).strip()
            score = await self._tasks.score_answer(self._infos[int(answer)], text)
            if score is None:
                raise ValueError("the family's scorer cannot read this answer")
            return score

        rubric.add_reward_func(check_answer_reward_func)
        rubric.add_reward_func(parser.get_format_reward_func(), weight=0.0)
        super().__init__(
            dataset=dataset,
            eval_dataset=eval_dataset,
            system_prompt=system_prompt,
            parser=parser,
            rubric=rubric,
        )
        self.rubric = rubric  # without the metric num_turns

    def _create_tasks(self, family: Mapping[str, Any]) -> list[Any]:
        total = self.num_train_examples + self.num_eval_examples
        tasks: list[Any] = []
        # As in v0, training and evaluation rows are parts of one dataset of this size.
        for start in range(0, total, CHUNK_SIZE):
            positions = list(range(start, min(start + CHUNK_SIZE, total)))
            spec = {**family, "seed": self.seed, "size": total, "positions": positions}
            tasks += self._tasks.workers.call_sync("tasks", 4 * CALL_TIMEOUT_S, **spec)
        return tasks

    @teardown
    async def end_workers(self) -> None:
        """End the worker processes."""
        await self._tasks.end_workers()


class TextArenaEnv(MultiTurnEnv):
    """A word game of TextArena for one player, in one process per rollout; the row's answer is the secret word.

    Args:
        game: id of the game.
        num_train_examples, num_eval_examples: rows, whose words are drawn by `seed`.
        parser: extracts the guess. Default: tags `<think>` and `<guess>`.
        feedback_fn: observation → text for the model.
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
        # v0 deep-copied one game for every rollout; here each has a process, since TextArena uses global random numbers.
        self.num_train_examples, self.num_eval_examples = num_train_examples, num_eval_examples
        self.workers = Workers(TEXT_ARENA_WORKER, {"game": game}, env=dict(os.environ), name=game)
        self.workers.start()
        rng = random.Random(seed)
        observation = self.workers.setup_result
        rows = [
            {"question": observation["question"], "answer": rng.choice(observation["words"])}
            for _ in range(num_train_examples + num_eval_examples)
        ]
        dataset, eval_dataset = _tables(rows, num_train_examples)
        super().__init__(
            dataset=dataset,
            eval_dataset=eval_dataset,
            system_prompt=system_prompt,
            parser=parser or XMLParser(fields=["think", "guess"], answer_field="guess"),
            rubric=rubric,
            **kwargs,
        )

    async def setup_state(self, state: State, **kwargs: Any) -> State:
        """Begin the game with the row's word."""
        state["ta_env"] = await self.workers.open()
        await state["ta_env"].call("begin", CALL_TIMEOUT_S, word=state["answer"])
        return state

    async def env_response(self, messages: Messages, state: State, **kwargs: Any) -> Messages:
        """Make the guess; return the observation, or why the game has ended."""
        guess = str(self.parser.parse_answer(messages))
        observation = await state["ta_env"].call("guess", CALL_TIMEOUT_S, guess=guess)
        text = observation["text"] if observation["done"] else str(self.feedback_fn(observation["text"]))
        reply = [UserMessage(content=text)]
        if observation["done"]:
            state["final_env_response"] = reply
        return reply

    @cleanup
    async def cleanup_ta_env(self, state: State) -> None:
        """End the game's process."""
        worker = state.pop("ta_env", None)
        if worker is not None:
            worker.close()

    @teardown
    async def end_workers(self) -> None:
        """End the fork server of the games' processes."""
        await self.workers.aclose()


class OpenEnvEnv(MultiTurnEnv):
    """An environment of a running OpenEnv server (v0 started one per rollout in a vendor's sandbox).

    Args:
        openenv_project: URL of the server.
        num_train_examples, num_eval_examples: rows, with consecutive seeds from `seed`.
        prompt_renderer: observation → messages; may also take context, action_schema, contract and seed by name.
        max_turns, rubric: see `MultiTurnEnv`. Default rubric: the sum of the steps' rewards.
        Everything else: see `Environment`; arguments about sandboxes are ignored.

    Raises:
        ValueError: there is no renderer, or `openenv_project` is not a URL.
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
        # v0's text; `setup_state` replaces it by the first observation.
        prompt = [{"role": "user", "content": "OpenEnv rollout is initializing."}]
        seeds = range(seed, seed + num_train_examples + num_eval_examples)
        rows = [{"prompt": prompt, "info": {"seed": row_seed}} for row_seed in seeds]
        dataset, eval_dataset = _tables(rows, num_train_examples)
        kwargs = {name: value for name, value in kwargs.items() if name not in _SANDBOX_ARGUMENTS}
        super().__init__(
            dataset=dataset,
            eval_dataset=eval_dataset,
            rubric=rubric or EpisodicSumRubric(),
            max_turns=max_turns,
            **kwargs,
        )

    async def setup_state(self, state: State, **kwargs: Any) -> State:
        """Begin an episode in a new session."""
        http = state["openenv_http"] = aiohttp.ClientSession()
        async with http.get(f"{self.openenv_project}/schema") as answer:
            answer.raise_for_status()
            schema = (await answer.json()).get("action", {})
        if {"tool_name", "arguments"} <= schema.get("properties", {}).keys():
            raise ValueError(
                "this server's actions are MCP tool calls, which OpenEnvEnv does not support; use vf.MCPEnv"
            )
        session = state["openenv_client"] = Session(http, self.openenv_project)
        state["openenv_action_schema"], seed = schema, int(state["info"].get("seed", 0))
        observation = await session.reset(CALL_TIMEOUT_S, CAPACITY_TIMEOUT_S, seed=seed)
        state["openenv_done"] = bool(observation.get("done"))
        state["prompt"] = self._render(observation, schema, "reset", seed)
        return state

    async def env_response(self, messages: Messages, state: State, **kwargs: Any) -> Messages:
        """Execute the model's action and return the observation."""
        schema = state["openenv_action_schema"]
        action = _parse_action(content_text(messages[-1].get("content")).strip(), schema)
        observation = await state["openenv_client"].step(action, CALL_TIMEOUT_S)
        state["trajectory"][-1]["reward"] = observation.get("reward")
        state["openenv_done"] = bool(observation.get("done"))
        return self._render(observation, schema, "step", None)

    def _render(self, observation: Mapping[str, Any], schema: Any, context: str, seed: int | None) -> Messages:
        arguments = {"context": context, "action_schema": schema, "contract": "gym", "seed": seed}
        arguments = named_args(self.prompt_renderer, arguments)
        messages = self.prompt_renderer(observation.get("observation") or {}, **arguments)
        if not isinstance(messages, list) or not messages:
            raise RuntimeError(f"prompt_renderer returned {messages!r} for {context}; expected a list of messages")
        return messages

    @stop
    async def openenv_done(self, state: State) -> bool:
        """Stop when the episode has ended."""
        return bool(state.get("openenv_done"))

    @cleanup
    async def cleanup_openenv(self, state: State) -> None:
        """End the session."""
        session = state.pop("openenv_client", None)
        http = state.pop("openenv_http", None)
        if session is not None:
            await session.close()
        if http is not None:
            await http.close()


# fmt: off
_SANDBOX_ARGUMENTS = {
    "startup_timeout_seconds", "startup_poll_interval_seconds", "health_request_timeout_seconds",
    "schema_request_timeout_seconds", "wait_for_creation_max_attempts", "max_retries", "base_delay", "backoff_factor",
    "max_backoff_seconds", "jitter",
}
# fmt: on


def _parse_action(text: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the action in a response: a JSON object, or the value of the only string field of an action."""
    if text.startswith("```") and text.endswith("```"):
        text = "\n".join(text.split("\n")[1:-1]).strip()
    try:
        action = json.loads(text)
    except json.JSONDecodeError:
        action = None
    if isinstance(action, dict):
        return action
    # A schema lists no required fields if all have defaults; with a single field, the text can only be its value.
    fields = schema.get("properties", {})
    for names in (schema.get("required", []), list(fields)):
        if len(names) == 1 and fields.get(names[0], {}).get("type") == "string":
            return {names[0]: text}
    raise ValueError("Failed to parse action JSON. Provide a JSON object matching the action schema.")


def sum_step_rewards(state: State) -> float:
    """Sum of the rewards of all turns."""
    return float(sum(float(step.get("reward") or 0.0) for step in state["trajectory"]))


class EpisodicSumRubric(Rubric):
    """Rewards the sum of the turns' rewards."""

    def __init__(self, weight: float = 1.0, **kwargs: Any):
        super().__init__(funcs=[sum_step_rewards], weights=[weight], **kwargs)


class GymEnv(MultiTurnEnv):
    """Runs a class with `reset(seed=…)` and `step(action)`; the question is the first observation.

    Args:
        env_cls, env_kwargs: the class and its constructor arguments.
        action_parser: text → action; if it raises, the episode ends with reward 0.
        obs_to_text: observation → text.
        num_train_episodes, num_eval_episodes: rows, with consecutive seeds from `seed`.
        max_episode_steps: maximum turns. Default: 1000.
        Everything else: see `Environment`.
    """

    def __init__(
        self,
        env_cls: type,
        env_kwargs: dict[str, Any] | None = None,
        action_parser: Callable[[str], Any] | None = None,
        obs_to_text: Callable[[Any], str] | None = None,
        num_train_episodes: int = 1000,
        num_eval_episodes: int = 20,
        max_episode_steps: int | None = None,
        seed: int = 0,
        system_prompt: str | None = None,
        few_shot: Any = None,
        parser: Parser | None = None,
        rubric: Rubric | None = None,
        message_type: str = "chat",
        **kwargs: Any,
    ):
        self.env_cls = env_cls
        self.env_kwargs = dict(env_kwargs or {})
        self.action_parser = action_parser or (lambda text: text)
        self.obs_to_text_fn = obs_to_text
        self.num_train_episodes = num_train_episodes
        self.num_eval_episodes = num_eval_episodes
        self.seed = seed
        dataset, eval_dataset = self.gym_to_hf()
        super().__init__(
            dataset=dataset,
            eval_dataset=eval_dataset,
            rubric=rubric or EpisodicSumRubric(),
            message_type=message_type,
            max_turns=max_episode_steps or 1000,
            system_prompt=system_prompt,
            few_shot=few_shot,
            parser=parser,
            **kwargs,
        )

    def gym_to_hf(self) -> tuple[Any, Any]:
        """Return the training and the evaluation rows, each with a first observation and a seed."""
        env = self.env_cls(**self.env_kwargs)
        num_rows = self.num_train_episodes + self.num_eval_episodes
        try:
            rows = [self._row(env, seed) for seed in range(self.seed, self.seed + num_rows)]
        finally:
            close_env(env)
        return _tables(rows, self.num_train_episodes)

    def _row(self, env: Any, seed: int) -> dict[str, str]:
        result = env.reset(seed=seed)
        obs = result[0] if isinstance(result, tuple) and len(result) == 2 else result
        return {"question": self.obs_to_text(obs), "answer": str(seed)}

    def obs_to_text(self, obs: Any) -> str:
        """Return an observation as text."""
        return self.obs_to_text_fn(obs) if self.obs_to_text_fn else str(obs)

    def wrap_response(self, text: str) -> Messages:
        """Return a text for the model as messages."""
        return [UserMessage(content=text)]

    async def env_response(self, messages: Messages, state: State, **kwargs: Any) -> Messages:
        """Execute the action of the model's turn."""
        if "gym_env" not in state:
            state["gym_env"] = self.env_cls(**self.env_kwargs)
            state["gym_env"].reset(seed=int(state["answer"]))
            state["gym_done"] = False
        step = state["trajectory"][-1]
        text = self.parser.parse_answer(messages)
        if text is None:
            text = content_text(step["completion"][-1].get("content"))
        try:
            action = self.action_parser(text)
        except Exception as error:
            state["gym_done"] = True
            step["reward"] = 0.0
            return self.wrap_response(f"Action Parsing Error: {error}")  # v0's text
        result = state["gym_env"].step(action)
        if not isinstance(result, (tuple, list)) or len(result) not in (4, 5):
            raise TypeError(f"step() of {self.env_cls.__name__} returned {result!r}; expected a tuple of 4 or 5 values")
        # Gymnasium returns terminated and truncated, the older Gym only done.
        observation, reward, *flags, info = result
        step["reward"] = float(reward)
        step["extras"]["gym_info"] = info
        state["gym_done"] = any(flags)
        ended = "\nEpisode already ended." if state["gym_done"] else ""  # v0's text
        return self.wrap_response(f"{self.obs_to_text(observation)}{ended}")

    @stop
    async def is_done(self, state: State) -> bool:
        """Stop when the episode has ended."""
        return state.get("gym_done", False)

    @cleanup
    async def cleanup_env(self, state: State) -> None:
        """Close the episode's environment."""
        close_env(state.pop("gym_env", None))
