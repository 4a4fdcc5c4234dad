"""Environments with `reset` and `step`: Gymnasium's text games, and your own classes.

docs/decisions/workers.md explains why they run in threads of this process, unlike TextArena's games.
"""

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

from rove.core.checks import check_values
from rove.core.digest import derive_seed
from rove.core.errors import ConfigError
from rove.core.messages import Messages, UserMessage, text_of
from rove.core.plain import Arguments, JsonMapping, Row
from rove.core.ranges import FiniteFloat, PositiveInt
from rove.core.state import State, bookkeeping
from rove.envs.environment import cleanup, stop
from rove.envs.multi_turn import MultiTurnEnv
from rove.envs.tool import CLEANUP_GRACE_S
from rove.integrations import require_library
from rove.rubrics import Rubric
from rove.rubrics.parser import visible_response
from rove.utils.functions import maybe_await
from rove.utils.threads import PendingCalls, Threads

MAX_STEPS = 100
"""Maximum steps of an episode whose environment sets no limit."""
MAX_CONCURRENT_STEPS = 32
"""Maximum number of environments' steps that run concurrently, in threads."""


class GymEnv(MultiTurnEnv):
    """A Gymnasium environment: each model turn is an action, and the observation is the environment's response.

    All rollouts of a group use the same seed: `reset` gets the row's. An answer without a valid action gets an error message and
    costs a turn, but no step. The reward is `episode_return` (the sum of the steps' rewards, scaled from `reward_range` to 0…1)
    minus `invalid_penalty` × the share of turns without a valid action. If the range begins below 0, `episode_return` is 0
    until the episode has ended. Metrics: `raw_return`, `invalid_actions` (that share), `episode_steps`, `terminated`. State
    keys: `gym_env`, `gym_done`, `gym_rewards`, `gym_info`.

        env = rove.GymEnv("FrozenLake-v1", {"is_slippery": False}, max_episode_steps=20)

    Args:
        env_cls: an id of Gymnasium, such as "FrozenLake-v1", or a callable that returns an object with `reset` and `step`, in
            Gymnasium's form (`step` returns five values) or that of the older Gym (four).
        env_kwargs: arguments for Gymnasium, or for the callable `env_cls`.
        actions: names of the actions, in order of their numbers. Default: for known text games their names, else the numbers
            of `action_space.n`.
        action_parser: text → action, raising ValueError (with a message for the model) if the text has no action.
            Default: the name or number of an action if it is the whole text or in `<action>` tags, else the last name
            in the text.
        obs_to_text: observation → text. Default: Gymnasium's text rendering, else `str`.
        description: first text of the prompt. Default: for known text games a description of the game.
        reward_range: least and greatest return, scaled to 0 and 1; returns outside are clipped. Default: for known text games
            their range; else the reward is the return.
        invalid_penalty: subtracted from the reward if no turn had a valid action.
        num_train_episodes, num_eval_episodes: rows of the datasets.
        max_episode_steps: maximum turns of the model. Default: the environment's own limit; 100 if it has none.
        seed: seed of the rows.
        Everything else: see `MultiTurnEnv`.

    Raises:
        ConfigError: Gymnasium is needed and not installed, or an argument is out of range.
    """

    def __init__(
        self,
        env_cls: str | Callable[..., Any],
        env_kwargs: Mapping[str, object] | None = None,
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
        self.max_episode_steps, self.invalid_penalty = max_episode_steps, invalid_penalty
        check_values(self, num_train_episodes=PositiveInt, num_eval_episodes=PositiveInt)
        check_values(self, max_episode_steps=PositiveInt | None, invalid_penalty=FiniteFloat)
        if isinstance(env_cls, str):
            require_library("gymnasium", "gym", type(self).__name__)
        game = game_of(env_cls) if isinstance(env_cls, str) else None
        self._is_text_game = game is not None
        self.reward_range = reward_range or (game.reward_range if game else None)
        if self.reward_range is not None and not self.reward_range[0] < self.reward_range[1]:
            raise ConfigError(f"reward_range is {reward_range}; expected the least return, then the most")
        self.make = functools.partial(_make, env_cls, dict(env_kwargs or {}))
        if actions is None and game is not None:
            actions = game.actions
        self.actions = None if actions is None else list(actions)
        self.action_parser, self.obs_to_text = action_parser, obs_to_text
        # A `step` of a custom class may block; in the event loop it would stop all other rollouts.
        self._threads = Threads(MAX_CONCURRENT_STEPS)
        if description is None:
            description = game.description if game else "Play this game."
        rubric = Rubric([self.episode_return])
        rubric.add_reward_func(self.invalid_actions, weight=-invalid_penalty)
        for metric in (raw_return, episode_steps, terminated):
            rubric.add_metric(metric)
        super().__init__(
            dataset=lambda: self._rows(description, num_train_episodes, f"{seed}:train"),
            eval_dataset=lambda: self._rows(description, num_eval_episodes, f"{seed}:eval"),
            max_turns=max_episode_steps or _default_max_steps(env_cls, game),
            **{"rubric": rubric, "policies": {"random": self.random_policy}, **kwargs},
        )

    def _rows(self, description: str, count: int, seed: str) -> Iterator[Row]:
        for position in range(count):
            yield {"question": description, "info": {"seed": derive_seed(seed, position) % (1 << 31)}}

    async def setup_state(self, state: State, **kwargs: Any) -> None:
        """Create the environment, reset it with the row's seed, and add the first observation to the prompt."""
        state.update(gym_env=None, gym_done=False, gym_terminated=False, gym_rewards=[], gym_invalid=0, gym_calls=set())
        env = await self._run_in_thread(state, self.make)
        state["gym_env"] = env
        observation, info = await self._run_in_thread(state, functools.partial(_reset, env, state["info"]["seed"]))
        state["gym_info"] = info
        *leading, question = state["prompt"]
        text = f"{text_of(question)}\n{self._action_prompt(env)}\n\n{self.show(env, observation)}"
        state["prompt"] = [*leading, UserMessage(text)]

    async def env_response(self, messages: Messages, state: State, **kwargs: Any) -> Any:
        """Execute the model's action and return the observation."""
        env = state["gym_env"]
        try:
            action = self.parse_action(env, text_of(messages[-1]))
        except ValueError as error:
            state["gym_invalid"] += 1
            return str(error)
        result = await self._run_in_thread(state, lambda: env.step(action))
        observation, reward, done, is_terminated, info = _unpack_step(result)
        state["gym_rewards"].append(float(reward))
        state.update(gym_done=done, gym_terminated=is_terminated, gym_info=info)
        text = self.show(env, observation)
        if done:
            state["final_env_response"] = f"{text}\nThe game is over."
        return text

    def random_policy(self, messages: Messages, state: State, rng: random.Random) -> str:
        """Choose a random action."""
        return rng.choice(self._action_names(state["gym_env"]))

    def show(self, env: object, observation: object) -> str:
        """Return an observation as text."""
        return self.obs_to_text(observation) if self.obs_to_text else describe(env, observation)

    def parse_action(self, env: object, text: str) -> Any:
        """Return the action in the model's answer.

        Raises:
            ValueError: The answer has no action; the message is for the model.
        """
        if self.action_parser is not None:
            return self.action_parser(text)
        names = self._action_names(env)
        action = read_action(text, names)
        if action is None:
            raise ValueError(f"Your answer does not name an action. Answer with one of: {', '.join(names)}.")
        # Gymnasium's Discrete spaces may begin at another number than 0.
        return action + int(getattr(getattr(env, "action_space", None), "start", 0))

    @stop(priority=60)
    def is_done(self, state: State) -> bool:
        """Stop when the episode has ended."""
        return state["gym_done"]

    @cleanup
    async def cleanup_env(self, state: State) -> None:
        """Close the environment once a running step has ended; a step that hangs is waited for in the background."""
        running, env = state.get("gym_calls", ()), state.get("gym_env")
        if running:
            await asyncio.wait(running, timeout=CLEANUP_GRACE_S)
        if env is None:
            return
        for call in running:  # a rollout runs one at a time
            call.add_done_callback(lambda _: close_env(env))
        if not running:
            close_env(env)

    def episode_return(self, state: State) -> float:
        """Sum of the steps' rewards, scaled to `reward_range`; 0 if rewards can be negative and the episode has not ended."""
        total = raw_return(state)
        if self.reward_range is None:
            return total
        low, high = self.reward_range
        # A return of 0 is above `low`: without steps, answers without an action would earn 0.9 in CliffWalking.
        if low < 0 and not self._has_ended(state):
            return 0.0
        return (min(max(total, low), high) - low) / (high - low)

    def _has_ended(self, state: State) -> bool:
        # The text games end by their rules. A limit of steps can be the regular end of another environment, such as Pendulum.
        if self._is_text_game:
            return state["gym_terminated"]
        return state["gym_done"] or len(state["gym_rewards"]) >= self.max_turns

    def invalid_actions(self, state: State) -> float:
        """Share of turns without a valid action."""
        return state["gym_invalid"] / max(1, len(bookkeeping(state).trajectory))

    async def _run_in_thread(self, state: State, call: Callable[[], object]) -> Any:
        running: PendingCalls = state["gym_calls"]
        return await maybe_await(await self._threads.run(call, running))

    def _action_prompt(self, env: object) -> str:
        return "" if self.action_parser else f"Answer with one action: {', '.join(self._action_names(env))}."

    def _action_names(self, env: object) -> list[str]:
        if self.actions is not None:
            return self.actions
        space: object = getattr(env, "action_space", None)
        count = getattr(space, "n", None)
        if count is None:
            raise ConfigError("the actions are not numbered: pass actions= (their names) or action_parser=")
        start = int(getattr(space, "start", 0))
        return [str(number) for number in range(start, start + int(count))]


def raw_return(state: State) -> float:
    """Sum of the steps' rewards."""
    return sum(state["gym_rewards"])


def episode_steps(state: State) -> float:
    """Number of steps."""
    return float(len(state["gym_rewards"]))


def terminated(state: State) -> float:
    """1 if the game ended by its rules, 0 if by a limit of steps."""
    return float(state["gym_terminated"])


def _make(env_cls: str | Callable[..., Any], kwargs: Arguments) -> object:
    """Create the environment, with text rendering if Gymnasium supports it."""
    if not isinstance(env_cls, str):
        return env_cls(**kwargs)
    gymnasium = importlib.import_module("gymnasium")
    entry = gymnasium.spec(env_cls).entry_point
    creator = gymnasium.envs.registration.load_env_creator(entry) if isinstance(entry, str) else entry
    if "ansi" in getattr(creator, "metadata", {}).get("render_modes", ()):
        kwargs = {"render_mode": "ansi", **kwargs}
    # The checker is for authors of environments: it warns of their faults.
    return gymnasium.make(env_cls, disable_env_checker=True, **kwargs)


def _default_max_steps(env_cls: str | Callable[..., Any], game: TextGame | None) -> int:
    """Return the limit of steps of a known text game, or else Gymnasium's limit, or else rove's."""
    if game is not None and game.max_steps:
        return game.max_steps
    if not isinstance(env_cls, str):
        return MAX_STEPS
    gymnasium = importlib.import_module("gymnasium")
    try:
        return gymnasium.spec(env_cls).max_episode_steps or MAX_STEPS
    except gymnasium.error.Error as error:
        raise ConfigError(f"Gymnasium has no environment '{env_cls}': {error}") from error


def _reset(env: Any, seed: int) -> tuple[Any, JsonMapping]:
    """Return the first observation and info; the seed is passed only if `reset` takes one."""
    parameters = inspect.signature(env.reset).parameters
    takes_seed = "seed" in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    result = env.reset(seed=seed) if takes_seed else env.reset()
    if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping):
        return result
    return result, {}


def _unpack_step(result: Sequence[Any]) -> tuple[Any, float, bool, bool, JsonMapping]:
    """Return observation, reward, whether the episode is done, whether it terminated, and info, from either form of `step`."""
    if len(result) == 5:
        observation, reward, is_terminated, is_truncated, info = result
        return observation, reward, bool(is_terminated or is_truncated), bool(is_terminated), info
    # The older Gym does not say whether the rules or a limit of steps ended the episode.
    observation, reward, done, info = result
    return observation, reward, bool(done), bool(done), info


def close_env(env: object) -> None:
    """Close an environment that has a method `close`."""
    close = getattr(env, "close", None)
    if close is not None:
        close()


COLORED = re.compile(r"\x1b\[([\d;]+)m(.*?)\x1b\[0m", re.DOTALL)
LAST_MOVE = re.compile(r"^\s*\(\w+\)\s*$\n?", re.MULTILINE)
TAXI_LOCATIONS = ("R", "G", "Y", "B")


class TextGame(msgspec.Struct, frozen=True):
    """A text game of Gymnasium in words."""

    description: str
    actions: tuple[str, ...]
    """Names of the actions, in order of their numbers."""
    reward_range: tuple[float, float] | None = None
    """Least and greatest sum of an episode's rewards."""
    max_steps: int | None = None
    """Maximum steps, for games without their own limit."""


LAKE = TextGame(
    "Cross a frozen lake from the start S to the goal G. The squares F are frozen. Stepping into a hole H ends the game. "
    "Your position is marked with [ ].",
    ("left", "down", "right", "up"),
    (0.0, 1.0),
)
CLIFF = TextGame(
    "Walk across the grid from the lower left corner to the target T in the lower right corner. Your position is marked "
    "with x. Each step costs 1. Stepping on the cliff C costs 100 and moves you back to the start.",
    ("up", "right", "down", "left"),
    (-100.0, -13.0),
    100,
)
TAXI = TextGame(
    "Drive a taxi on a grid of 5 by 5 squares. Row 0 is at the top, and column 0 is on the left. You cannot cross the walls |. "
    "Pick up the passenger, drive to the destination, and drop the passenger off there. There are four locations: R at row "
    "0, column 0; G at row 0, column 4; Y at row 4, column 0; and B at row 4, column 3.",
    ("south", "north", "east", "west", "pickup", "dropoff"),
    (-200.0, 20.0),
)
BLACKJACK = TextGame(
    "Play blackjack against the dealer. Get closer to 21 than the dealer without going over 21.",
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
"""Text games by their ids in Gymnasium, without versions."""


def game_of(env_id: str) -> TextGame | None:
    """Return the description of a game of Gymnasium; None for games without one."""
    return GAMES.get(env_id.rpartition("/")[2].rpartition("-v")[0])


def describe(env: Any, observation: Any) -> str:
    """Return an observation as text: the rendering if it is text, else the observation itself."""
    game = str(getattr(getattr(env, "spec", None), "id", "") or "")
    if game.startswith("Taxi"):
        return _taxi(env, observation)
    if game.startswith("Blackjack"):
        total, dealer_card, has_usable_ace = observation
        ace = ", with a usable ace" if has_usable_ace else ""
        return f"Your cards add up to {total}{ace}. The dealer shows {dealer_card}."
    if getattr(env, "render_mode", None) == "ansi":
        return plain(env.render())
    return observation if isinstance(observation, str) else str(observation)


def plain(drawing: str) -> str:
    """Remove the colors of a rendering; text on a colored background is put in brackets."""

    def replace(match: re.Match[str]) -> str:
        has_background = any(40 <= int(code) <= 47 for code in match[1].split(";") if code)
        return f"[{match[2]}]" if has_background else match[2]

    return LAST_MOVE.sub("", COLORED.sub(replace, drawing)).strip("\n")


def _taxi(env: Any, observation: int) -> str:
    row, column, passenger, destination = env.unwrapped.decode(int(observation))
    # Its colors show the passenger and the destination, which the text names; brackets around them would be ambiguous.
    grid = LAST_MOVE.sub("", COLORED.sub(r"\2", env.render())).strip("\n")
    is_waiting = passenger < len(TAXI_LOCATIONS)
    position = f"at {TAXI_LOCATIONS[passenger]}" if is_waiting else "in the taxi"
    taxi = f"Taxi: row {row}, column {column}."
    return f"{grid}\n{taxi} Passenger: {position}. Destination: {TAXI_LOCATIONS[destination]}."


def read_action(text: str, names: Sequence[str]) -> int | None:
    """Return the number of the action in a text: the whole text as name or number, else the last name in it.

    Only the response after the reasoning counts (see `rove.rubrics.parser.visible_response`), and within it the content of
    the last `<action>` tags, if there are any.
    """
    # Reasoning names actions that the model considers and rejects; see docs/decisions/answers.md.
    text = visible_response(text)
    tagged = re.findall(r"<action>(.*?)</action>", text, flags=re.DOTALL)
    answer = (tagged[-1] if tagged else text).strip().strip(".!\"'`*").lower()
    lowered = [name.lower() for name in names]
    if answer in lowered:
        return lowered.index(answer)
    if re.fullmatch(r"\d+", answer):
        # Numbers as names are those of a space that may begin at another number than 0.
        are_numbers = all(re.fullmatch(r"-?\d+", name) for name in names)
        numbers = [int(name) for name in names] if are_numbers else list(range(len(names)))
        return numbers.index(int(answer)) if int(answer) in numbers else None
    # The longest first: a name may be a part of another, as in "turn" and "turn left".
    alternatives = "|".join(map(re.escape, sorted(lowered, key=len, reverse=True)))
    mentions = re.findall(rf"\b({alternatives})\b", answer) if alternatives else []
    return lowered.index(mentions[-1]) if mentions else None
