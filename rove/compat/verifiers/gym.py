"""v0's `GymEnv`: any class with `reset` and `step`, played in words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rove.compat.verifiers.data import make_table
from rove.compat.verifiers.decorators import cleanup, stop
from rove.compat.verifiers.messages import Messages, UserMessage, content_text
from rove.compat.verifiers.multiturn import MultiTurnEnv
from rove.compat.verifiers.parsers import Parser
from rove.compat.verifiers.rubrics import Rubric
from rove.compat.verifiers.types import State


def sum_step_rewards(state: State) -> float:
    """What all turns earned."""
    return float(sum(float(step.get("reward") or 0.0) for step in state["trajectory"]))


class EpisodicSumRubric(Rubric):
    """The sum of the turns' rewards."""

    def __init__(self, weight: float = 1.0, **kwargs: Any):
        super().__init__(funcs=[sum_step_rewards], weights=[weight], **kwargs)


class GymEnv(MultiTurnEnv):
    """Runs a class with `reset(seed=…)` and `step(action)`; the question is its first observation.

    Args:
        env_cls, env_kwargs: the class and what it is made with.
        action_parser: the action that a text means; what it raises ends the episode with a reward of 0.
        obs_to_text: an observation in words.
        num_train_episodes, num_eval_episodes: rows; each has a seed of its own, from `seed` on.
        max_episode_steps: most turns. Default: 1000.
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
        """The training and the evaluation rows: a first observation and a seed each."""
        env = self.env_cls(**self.env_kwargs)
        try:
            rows = [self._row(env, self.seed + i) for i in range(self.num_train_episodes + self.num_eval_episodes)]
        finally:
            _close(env)
        train, held_out = rows[: self.num_train_episodes], rows[self.num_train_episodes :]
        return make_table(train), make_table(held_out) if held_out else None

    def _row(self, env: Any, seed: int) -> dict[str, str]:
        first = env.reset(seed=seed)
        obs = first[0] if isinstance(first, tuple) and len(first) == 2 else first
        return {"question": self.obs_to_text(obs), "answer": str(seed)}

    def obs_to_text(self, obs: Any) -> str:
        """An observation in words."""
        return self.obs_to_text_fn(obs) if self.obs_to_text_fn else str(obs)

    def wrap_response(self, text: str) -> Messages:
        """What the model is told, as messages."""
        return [UserMessage(content=text)]

    async def env_response(self, messages: Messages, state: State, **kwargs: Any) -> Messages:
        """Take the step that the model's turn means."""
        if "gym_env" not in state:
            state["gym_env"] = self.env_cls(**self.env_kwargs)
            state["gym_env"].reset(seed=int(state["answer"]))
            state["gym_done"] = False
        step = state["trajectory"][-1]
        said = self.parser.parse_answer(messages)
        if said is None:
            said = content_text(step["completion"][-1].get("content"))
        try:
            action = self.action_parser(said)
        except Exception as error:
            state["gym_done"], step["reward"] = True, 0.0
            return self.wrap_response(f"Action Parsing Error: {error}")
        out = state["gym_env"].step(action)
        if not isinstance(out, (tuple, list)) or len(out) not in (4, 5):
            raise TypeError(f"step() of {self.env_cls.__name__} returned {out!r}; expected a tuple of 4 or 5 values")
        obs, step["reward"], step["extras"]["gym_info"] = out[0], float(out[1]), out[-1]
        state["gym_done"] = any(out[2:-1])
        ended = "\nEpisode already ended." if state["gym_done"] else ""
        return self.wrap_response(f"{self.obs_to_text(obs)}{ended}")

    @stop
    async def is_done(self, state: State) -> bool:
        """The episode has ended."""
        return state.get("gym_done", False)

    @cleanup
    async def cleanup_env(self, state: State) -> None:
        """Close the episode's environment."""
        _close(state.pop("gym_env", None))


def _close(env: Any) -> None:
    close = getattr(env, "close", None)
    if close is not None:
        close()
