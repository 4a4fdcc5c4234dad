"""The mutable state of a rollout: the author's keys and, separately, rove's own bookkeeping (docs/decisions/state.md)."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, fields
from typing import Any

from rove.core.plain import Row, ToolDefinition
from rove.core.records import ErrorInfo, TrajectoryStep
from rove.core.renderings import Rendering

INPUT_FIELDS = frozenset({"prompt", "answer", "info", "example_id", "task"})


@dataclass(slots=True)  # a misspelled field raises an error instead of getting lost
class Bookkeeping:
    """rove's own records of a running rollout; `bookkeeping(state)` returns them.

    They are not in the author's mapping, so no key that an author sets can change them. rove reads only these fields.
    Reading a key of the mapping returns the field of this name if the author has not set the key.
    """

    input: Row | None = None
    """The dataset row."""
    prompt: Any = None
    """The prompt with which the rollout began: messages, or a text in completion mode; None before the rollout begins."""
    completion: Any = None
    """Messages after the prompt, or a text in completion mode; None if nothing has set it."""
    trajectory: list[TrajectoryStep] = field(default_factory=list[TrajectoryStep])
    model_roles: dict[str, list[TrajectoryStep]] = field(default_factory=dict[str, list[TrajectoryStep]])
    tools: list[ToolDefinition] | None = None
    """Tools that the model was offered."""
    reads_tools: bool = False
    """Whether `state["tools"]` must be a list of tool definitions, as in a `ToolEnv`."""
    seed: int = 0
    env_seed: int = 0
    stop_condition: str | None = None
    is_truncated: bool = False
    error: ErrorInfo | None = None
    renderings: dict[int, Rendering] = field(default_factory=dict[int, Rendering])
    env_id: str = ""
    """Path of the member of a group of environments."""
    env_depth: int = 0
    """Position in the path `env_id`."""
    seconds: float = 0.0
    scoring_seconds: float = 0.0
    turn_numbers: Any = None
    """Counts model turns, see `rove.rollouts.runner`."""
    role_numbers: dict[str, Any] = field(default_factory=dict[str, Any])
    role_clients: Any = None
    """Clients by role that replace the environment's clients, see `rove.query`."""
    conversations: list[list[TrajectoryStep]] | None = None
    """Steps of all conversations of the rollout if there are several conversations; else None."""
    conversation: int = 0
    """Number of this conversation in a worker."""
    remote: Any = None
    """The rollout's counterpart in a worker, see `rove.remote`."""
    rlm: Any = None
    sandbox: Any = None
    mcp_servers: Any = None
    sync_calls: Any = None
    agent_threads: Any = None
    initial_fields: frozenset[str] = frozenset()
    """Names of the fields with which the state was created; the mapping reads these fields even if they are empty."""

    def __deepcopy__(self, memo: dict[int, object]) -> Bookkeeping:
        """Return a copy with its own containers. Steps, clients and processes are shared; the latter two cannot be copied."""
        copied = copy.copy(self)
        for item in fields(self):
            value = getattr(self, item.name)
            if type(value) in (list, dict):
                # A step that the copy appends must not appear in the original.
                setattr(copied, item.name, value.copy())
        return copied


_FIELDS = frozenset(item.name for item in fields(Bookkeeping)) - {"initial_fields"}
_OWN_FIELDS = _FIELDS - {"prompt", "tools"}
"""Fields that `State(…)` puts into the bookkeeping; it puts `prompt` and `tools`, which authors may set, into the mapping."""
READABLE = frozenset(
    {
        *("input", "prompt", "completion", "trajectory", "model_roles", "tools", "seed", "env_seed", "stop_condition"),
        *("is_truncated", "error", "renderings", "env_id", "rlm", "sandbox"),
    }
)
"""Fields of the bookkeeping that the mapping reads."""
_ABSENT = object()


class State(dict[str, Any]):
    """Mutable state of one rollout, written by `setup_state` and `env_response` and read by rubrics.

    `state["input"]` is the dataset row; reads of prompt, answer, info, example_id and task fall through to it. You can read:

    - `trajectory`: steps so far; their `reward` may be set
    - `model_roles`: steps of other models by role, see `rove.query`
    - `completion`: messages after the prompt; a text in completion mode
    - `tools`: tools offered to the model, in a `ToolEnv`
    - `seed`, `env_seed`: seeds of this rollout and of its group
    - `stop_condition`, `is_truncated`, `error`
    - `renderings`: see `MultiTurnEnv.render`

    Environments may add any other key. They may also use the names above for their own values; reading such a key then
    returns that value. rove keeps its values elsewhere, so the record, the scores and the run do not change. rove reads
    four keys that you set: `prompt` (at the end of `setup_state`), `tools` (tool definitions), `final_env_response`,
    and, if `run` is your own, `completion`.

    Example:
        >>> state["guesses"] = state.get("guesses", 0) + 1
        >>> state["answer"]  # of the dataset row
    """

    def __init__(self, *mappings: object, **values: Any):
        """Make a state: fields of `Bookkeeping` go into the bookkeeping, except for fields that authors set; all other keys go
        into the mapping."""
        recorded = {name: values.pop(name) for name in _OWN_FIELDS & values.keys()}
        super().__init__(*mappings, **values)
        source = mappings[0] if mappings else None
        if not isinstance(source, State):
            self._bookkeeping: Bookkeeping = Bookkeeping(**recorded, initial_fields=frozenset(recorded))
            return
        # `State(state)` copies: without rove's values the copy would have no seed and no trajectory.
        self._bookkeeping = copy.copy(source._bookkeeping)
        for name, value in recorded.items():
            setattr(self._bookkeeping, name, value)
        self._bookkeeping.initial_fields = self._bookkeeping.initial_fields.union(recorded)

    def __missing__(self, key: str) -> Any:
        value = self._inherited(key)
        if value is not _ABSENT:
            return value
        recorded = {name for name in READABLE if self._is_recorded(name)}
        raise KeyError(f"{key!r} is not in this rollout's state; it has {sorted({*self, *recorded}, key=str)}")

    def __contains__(self, key: object) -> bool:
        return super().__contains__(key) or self._inherited(key) is not _ABSENT

    def __bool__(self) -> bool:
        """Return whether this is the state of a rollout or has keys."""
        return len(self) > 0 or bool(self._bookkeeping.initial_fields)

    def _inherited(self, key: Any) -> Any:
        """Return the value that the mapping reads under a key that it does not have itself, or `_ABSENT`."""
        if self._is_recorded(key):
            value = getattr(self._bookkeeping, key)
            return [] if key == "completion" and value is None else value
        if key in INPUT_FIELDS:
            return (self._bookkeeping.input or {}).get(key, _ABSENT)
        return _ABSENT

    def _is_recorded(self, key: Any) -> bool:
        """Return whether the bookkeeping has a value that the mapping reads."""
        if key not in READABLE:
            return False
        # An empty field counts as missing, so that `"error" in state` is false until there is an error.
        return key in self._bookkeeping.initial_fields or bool(getattr(self._bookkeeping, key))

    def get(self, key: str, default: object = None) -> Any:
        """Return the value under `key`, falling through to rove's values and the dataset row, or `default`."""
        value = super().get(key, _ABSENT)  # dict's own `get` alone would not read the dataset row
        if value is _ABSENT:
            value = self._inherited(key)
        return default if value is _ABSENT else value

    def setdefault(self, key: str, default: object = None) -> Any:
        """Return the value under `key` as `get` does; set `default` if there is none."""
        if key not in self:
            self[key] = default
        return self[key]


def bookkeeping(state: State) -> Bookkeeping:
    """Return rove's own record of a rollout, which the author's keys cannot change."""
    return state._bookkeeping  # pyright: ignore[reportPrivateUsage]  the one place outside of the class


def prompt_of(state: State) -> Any:
    """Return the prompt with which a rollout began; before it begins, the author's prompt or the row's."""
    recorded = bookkeeping(state).prompt
    return state["prompt"] if recorded is None else recorded


def completion_of(state: State) -> Any:
    """Return the completion of a rollout; in an environment with its own `run`, the completion that `run` has set."""
    recorded = bookkeeping(state).completion
    return state["completion"] if recorded is None else recorded
