"""Anything with `reset` and `step` as an environment: Gymnasium's text games, and classes of your own."""

from __future__ import annotations

import asyncio
import functools
import importlib
import inspect
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from rove.core.config import check_positive
from rove.core.digest import derive_seed
from rove.core.errors import ConfigError
from rove.core.messages import Messages, UserMessage, text_of
from rove.core.state import State
from rove.envs.environment import cleanup, stop
from rove.envs.multi_turn import MultiTurnEnv
from rove.integrations import require_library
from rove.rubrics import Rubric
from rove.utils.functions import maybe_await
from rove.utils.threads import Threads, UnderWay

MAX_STEPS = 100
"""In an episode of what knows no limit of its own."""
MOST_STEPS = 32
"""Steps of environments, in threads, at once."""


class GymEnv(MultiTurnEnv):
    """The model plays something with `reset` and `step`: each of its turns is one action, each observation the reply.

    The siblings of a group play the same world: `reset` gets the seed of the row. An answer that names no action is told so
    and costs a turn, not a step. The reward is `episode_return` (the sum of the steps' rewards, brought from `reward_range`
    to 0…1) less `invalid_penalty` times the share of turns that named no action. Metrics: `raw_return`, `invalid_actions`
    (that share), `episode_steps`, `terminated`. In the state: `gym_env`, `gym_done`, `gym_rewards`, `gym_info`.

    Args:
        env_cls: an id of Gymnasium, such as "FrozenLake-v1", or what makes an object with `reset` and `step` when it is
            called: Gymnasium's (five values from `step`) or the older Gym's (four).
        env_kwargs: for Gymnasium, or for `env_cls`.
        actions: names of the actions, by number. Default: those of the text games rove knows; numbers where there are
            `action_space.n` of them.
        action_parser: text → action, raising ValueError (with what to say to the model) where there is none. Default: an
            action's name or number, by itself, in `<action>` tags, or the last one named.
        obs_to_text: observation → text. Default: what Gymnasium draws as text, else `str`.
        description: what the game is about, said first. Default: for the text games rove knows.
        reward_range: least and most return, brought to 0 and 1; returns beyond are cut. Default: that of the text games
            rove knows; else none, and the reward is the return.
        invalid_penalty: taken off the reward where every turn named no action.
        num_train_episodes, num_eval_episodes: rows of the datasets.
        max_episode_steps: most turns of the model. Default: the environment's own limit; 100 where it has none.
        seed: of the worlds.
        Everything else: see `MultiTurnEnv`.

    Raises:
        ConfigError: Gymnasium is needed and not installed, or an argument is out of range.
    """

    def __init__(
        self,
        env_cls: str | Callable[..., Any],
        env_kwargs: Mapping[str, Any] | None = None,
        *,
        actions: Sequence[str] | None = None,
        action_parser: Callable[[str], Any] | None = None,
        obs_to_text: Callable[[Any], str] | None = None,
        description: str | None = None,
        reward_range: tuple[float, float] | None = None,
        invalid_penalty: float = 0.1,
        num_train_episodes: int = 1000,
        num_eval_episodes: int = 20,
        max_episode_steps: int | None = None,
        seed: int = 0,
        **kwargs: Any,
    ):
        self.num_train_episodes, self.num_eval_episodes = num_train_episodes, num_eval_episodes
        self.max_episode_steps = max_episode_steps
        check_positive(self, "num_train_episodes", "num_eval_episodes", "max_episode_steps")
        if isinstance(env_cls, str):
            require_library("gymnasium", "gym", type(self).__name__)
        game = game_of(env_cls) if isinstance(env_cls, str) else None
        self.reward_range = reward_range or (game.reward_range if game else None)
        if self.reward_range is not None and not self.reward_range[0] < self.reward_range[1]:
            raise ConfigError(f"reward_range is {reward_range}; expected the least return, then the most")
        self.make = functools.partial(_make, env_cls, dict(env_kwargs or {}))
        self.actions = list(actions) if actions is not None else list(game.actions) if game else None
        self.action_parser, self.obs_to_text = action_parser, obs_to_text
        self.invalid_penalty = invalid_penalty
        self._threads = Threads(MOST_STEPS)
        if description is None:
            description = game.about if game else "Play this game."
        rubric = Rubric([self.episode_return])
        rubric.add_reward_func(self.invalid_actions, weight=-invalid_penalty)
        for metric in (raw_return, episode_steps, terminated):
            rubric.add_metric(metric)
        super().__init__(
            dataset=lambda: self._rows(description, num_train_episodes, f"{seed}:train"),
            eval_dataset=lambda: self._rows(description, num_eval_episodes, f"{seed}:eval"),
            max_turns=max_episode_steps or (game.max_steps if game else None) or _own_limit(env_cls) or MAX_STEPS,
            **{"rubric": rubric, "policies": {"random": self.random_policy}, **kwargs},
        )

    def _rows(self, description: str, count: int, seed: str) -> Iterator[dict[str, Any]]:
        for position in range(count):
            yield {"question": description, "info": {"seed": derive_seed(seed, position) % (1 << 31)}}

    async def setup_state(self, state: State, **kwargs: Any) -> None:
        """Make the environment, reset it with the row's seed, and show what there is to see."""
        state.update(gym_env=None, gym_done=False, gym_terminated=False, gym_rewards=[], gym_invalid=0, gym_calls=set())
        env = await self._beside(state, self.make)
        state["gym_env"] = env
        observation, info = await self._beside(state, functools.partial(_reset, env, state["info"]["seed"]))
        state["gym_info"] = info
        *before, question = state["prompt"]
        text = f"{text_of(question)}\n{self._told(env)}\n\n{self.show(env, observation)}"
        state["prompt"] = [*before, UserMessage(text)]

    async def env_response(self, messages: Messages, state: State, **kwargs: Any) -> Any:
        """Do what the model said, and show what came of it."""
        env = state["gym_env"]
        try:
            action = self.parse_action(env, text_of(messages[-1]))
        except ValueError as error:
            state["gym_invalid"] += 1
            return str(error)
        observation, reward, done, is_end, info = _stepped(await self._beside(state, lambda: env.step(action)))
        state["gym_rewards"].append(float(reward))
        state.update(gym_done=done, gym_terminated=is_end, gym_info=info)
        text = self.show(env, observation)
        if done:
            state["final_env_response"] = f"{text}\nThe game is over."
        return text

    def random_policy(self, messages: Messages, state: State, rng: random.Random) -> str:
        """Any action, by name."""
        return rng.choice(self._names(state["gym_env"]))

    def show(self, env: Any, observation: Any) -> str:
        """An observation as the model reads it."""
        return self.obs_to_text(observation) if self.obs_to_text else describe(env, observation)

    def parse_action(self, env: Any, text: str) -> Any:
        """The action that the model's answer names.

        Raises:
            ValueError: none; what to say to the model.
        """
        if self.action_parser is not None:
            return self.action_parser(text)
        names = self._names(env)
        action = read_action(text, names)
        if action is None:
            raise ValueError(f"That names no action. Answer with one of: {', '.join(names)}.")
        return action + int(getattr(env.action_space, "start", 0)) if hasattr(env, "action_space") else action

    @stop(priority=60)
    def is_done(self, state: State) -> bool:
        """The episode is over."""
        return state["gym_done"]

    @cleanup
    async def cleanup_env(self, state: State) -> None:
        """Close the environment, once no step is at work in it any more."""
        await asyncio.gather(*state.get("gym_calls", ()))
        if state.get("gym_env") is not None:
            _close(state["gym_env"])

    def episode_return(self, state: State) -> float:
        """The sum of the steps' rewards, on the scale of `reward_range`."""
        total = raw_return(state)
        if self.reward_range is None:
            return total
        low, high = self.reward_range
        return (min(max(total, low), high) - low) / (high - low)

    def invalid_actions(self, state: State) -> float:
        """Share of the turns that named no action."""
        return state["gym_invalid"] / max(1, len(state["trajectory"]))

    async def _beside(self, state: State, call: Callable[[], Any]) -> Any:
        under_way: UnderWay = state["gym_calls"]
        return await maybe_await(await self._threads.run(call, under_way))

    def _told(self, env: Any) -> str:
        return "" if self.action_parser else f"Answer with one action: {', '.join(self._names(env))}."

    def _names(self, env: Any) -> list[str]:
        if self.actions is not None:
            return self.actions
        space: Any = getattr(env, "action_space", None)
        if not hasattr(space, "n"):
            raise ConfigError("the actions are not numbered: pass actions= (their names) or action_parser=")
        start = int(getattr(space, "start", 0))
        return [str(number) for number in range(start, start + int(space.n))]


def raw_return(state: State) -> float:
    """The sum of the steps' rewards."""
    return sum(state["gym_rewards"])


def episode_steps(state: State) -> float:
    """Steps taken."""
    return float(len(state["gym_rewards"]))


def terminated(state: State) -> float:
    """1 where the game came to its end, 0 where a limit of steps did."""
    return float(state["gym_terminated"])


def _make(env_cls: str | Callable[..., Any], kwargs: dict[str, Any]) -> Any:
    """The environment, one of Gymnasium such that it draws text if it can."""
    if not isinstance(env_cls, str):
        return env_cls(**kwargs)
    gymnasium = importlib.import_module("gymnasium")
    entry = gymnasium.spec(env_cls).entry_point
    creator = gymnasium.envs.registration.load_env_creator(entry) if isinstance(entry, str) else entry
    if "ansi" in getattr(creator, "metadata", {}).get("render_modes", ()):
        kwargs = {"render_mode": "ansi", **kwargs}
    return gymnasium.make(env_cls, disable_env_checker=True, **kwargs)


def _own_limit(env_cls: str | Callable[..., Any]) -> int | None:
    """The most steps that Gymnasium allows in an episode."""
    if not isinstance(env_cls, str):
        return None
    gymnasium = importlib.import_module("gymnasium")
    try:
        return gymnasium.spec(env_cls).max_episode_steps
    except gymnasium.error.Error as error:
        raise ConfigError(f"Gymnasium has no environment '{env_cls}': {error}") from error


def _reset(env: Any, seed: int) -> tuple[Any, Mapping[str, Any]]:
    """The first observation and info; environments that know no seed are reset without one."""
    parameters = inspect.signature(env.reset).parameters.values()
    takes_seed = any(p.name == "seed" or p.kind is p.VAR_KEYWORD for p in parameters)
    given = env.reset(seed=seed) if takes_seed else env.reset()
    if isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], Mapping):
        return given
    return given, {}


def _stepped(given: Sequence[Any]) -> tuple[Any, float, bool, bool, Mapping[str, Any]]:
    """Observation, reward, whether it is over, whether by its own rules, and info: of either form of `step`."""
    if len(given) == 5:
        observation, reward, is_end, is_cut, info = given
        return observation, reward, bool(is_end or is_cut), bool(is_end), info
    observation, reward, done, info = given
    return observation, reward, bool(done), bool(done), info


def _close(env: Any) -> None:
    if hasattr(env, "close"):
        env.close()


COLOURED = re.compile(r"\x1b\[([\d;]+)m(.*?)\x1b\[0m", re.DOTALL)
LAST_MOVE = re.compile(r"^\s*\(\w+\)\s*$\n?", re.MULTILINE)
TAXI_PLACES = ("R", "G", "Y", "B", "the taxi")


class Game(msgspec.Struct, frozen=True):
    """How a game is told."""

    about: str
    actions: tuple[str, ...]
    """Their names, by number."""
    reward_range: tuple[float, float] | None = None
    """Least and most that an episode's rewards add up to, as far as it matters."""
    max_steps: int | None = None
    """For games that know no limit of their own."""


LAKE = Game(
    "You walk on a frozen lake, from S to G over frozen squares F. A hole H ends the game. [ ] marks where you are.",
    ("left", "down", "right", "up"),
    (0.0, 1.0),
)
CLIFF = Game(
    "You (x) walk on a grid, from the lower left corner to T in the lower right. Every step costs 1; stepping on the cliff C "
    "costs 100 and puts you back at the start.",
    ("up", "right", "down", "left"),
    (-100.0, -13.0),
    100,
)
TAXI = Game(
    "You drive a taxi on a grid of 5 by 5 squares, row 0 at the top, column 0 on the left; walls | cannot be crossed. Fetch "
    "the passenger, bring them to their destination, drop them there. R is at row 0, column 0; G at 0, 4; Y at 4, 0; B at 4, 3.",
    ("south", "north", "east", "west", "pickup", "dropoff"),
    (-200.0, 20.0),
)
BLACKJACK = Game(
    "You play blackjack against the dealer: get closer to 21 than the dealer without going over.",
    ("stick", "hit"),
    (-1.0, 1.0),
)
GAMES = {
    "FrozenLake": LAKE,
    "FrozenLake8x8": LAKE,
    "CliffWalking": CLIFF,
    "CliffWalkingSlippery": CLIFF,
    "Taxi": TAXI,
    "Blackjack": BLACKJACK,
}
"""By the id in Gymnasium, without its version."""


def game_of(env_id: str) -> Game | None:
    """How a game of Gymnasium is told; None for games that nobody has described here."""
    return GAMES.get(env_id.rpartition("/")[2].rpartition("-v")[0])


def describe(env: Any, observation: Any) -> str:
    """An observation as text: what the game draws, where it draws text, else the observation itself."""
    game = str(getattr(getattr(env, "spec", None), "id", "") or "")
    if game.startswith("Taxi"):
        return _taxi(env, observation)
    if game.startswith("Blackjack"):
        total, dealer, ace = observation
        return f"Your cards count {total}{', with a usable ace' if ace else ''}. The dealer shows {dealer}."
    if getattr(env, "render_mode", None) == "ansi":
        return plain(env.render())
    return observation if isinstance(observation, str) else str(observation)


def plain(drawing: str) -> str:
    """A drawing without colours; what stood on a coloured ground is in brackets."""

    def marked(found: re.Match[str]) -> str:
        on_ground = any(40 <= int(code) <= 47 for code in found[1].split(";") if code)
        return f"[{found[2]}]" if on_ground else found[2]

    return LAST_MOVE.sub("", COLOURED.sub(marked, drawing)).strip("\n")


def _taxi(env: Any, observation: int) -> str:
    row, column, passenger, goal = env.unwrapped.decode(int(observation))
    grid = LAST_MOVE.sub("", COLOURED.sub(lambda found: found[2], env.render())).strip("\n")
    where = f"at {TAXI_PLACES[passenger]}" if passenger < 4 else "in the taxi"
    return f"{grid}\nTaxi: row {row}, column {column}. Passenger: {where}. Destination: {TAXI_PLACES[goal]}."


def read_action(text: str, names: Sequence[str]) -> int | None:
    """The number of the action that a text names: by itself, by name or number, else the last name in it.

    Only what follows the last `</think>` counts, and of that what stands in `<action>` tags, if anything does.
    """
    text = text.rpartition("</think>")[2]
    tagged = re.findall(r"<action>(.*?)</action>", text, flags=re.DOTALL)
    said = (tagged[-1] if tagged else text).strip().strip(".!\"'`*").lower()
    lowered = [name.lower() for name in names]
    if said in lowered:
        return lowered.index(said)
    if re.fullmatch(r"\d+", said):
        return int(said) if int(said) < len(names) else None
    found = re.findall(rf"\b({'|'.join(map(re.escape, lowered))})\b", said) if lowered else []
    return lowered.index(found[-1]) if found else None
