"""Asking others than the model that plays: opponents, simulated users, judges. Their tokens are counted apart, by role."""

from __future__ import annotations

import time
from bisect import bisect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from rove.core.digest import derive_seed
from rove.core.errors import phase
from rove.core.messages import Message, as_messages
from rove.core.protocols import Client, Request, Response, SamplingParams
from rove.core.records import TrajectoryStep
from rove.core.state import State


class RoleClients(Protocol):
    """Who answers in other roles than the model's instead of whom the environment asks. A dict of clients by role is one."""

    def get(self, role: str, client: Client, /) -> Client:
        """Who answers in a role in which the environment asks `client`."""
        ...


async def query(
    state: State,
    messages: str | Mapping[str, Any] | Iterable[Mapping[str, Any] | str],
    client: Client,
    *,
    role: str,
    model: str = "",
    sampling_args: Mapping[str, Any] | SamplingParams | None = None,
    tools: list[dict[str, Any]] | None = None,
) -> Message:
    """What another player says, inside `setup_state`, `env_response` or a reward function.

    The step is kept in `state["model_roles"][role]` and in the record's `roles`: never in the trajectory, so that it is neither
    trained on nor counted as the model's. Steps lie in the order in which they were asked for, also where several are under
    way at once. Its random stream comes from the rollout's seed, the role and how often it was asked before.
    `state["role_clients"]`, if there is any, has who answers instead, by role: while a rollout is played again to be rescored,
    or where somebody else has taken the role (see `RoleClients`).

    Args:
        messages: the conversation as this player sees it: a text is said by the user, and its own turns are the assistant's.
        client: who answers.
        role: "opponent", "user", "judge", …: what tokens are counted by, and part of the error's phase ("role opponent").
        model: name of the model, for endpoints that serve several.
        sampling_args: under OpenAI's names, or read already.
        tools: in OpenAI's form.

    Raises:
        ModelError, InfraError: the client's, in the phase "role <name>".
        ConfigError: these are no messages, or no sampling arguments.
    """
    with phase(f"role {role}"):
        conversation: list[dict[str, Any]] = list(as_messages(messages))
        sampling = (
            sampling_args if isinstance(sampling_args, SamplingParams) else SamplingParams.from_args(sampling_args)
        )
        before = state.setdefault("model_roles", {}).get(role, [])
        number = _next_number(state, role)
        request = Request(
            messages=conversation,
            sampling_params=sampling,
            model=model,
            tools=tools,
            previous=before[-1].tokens if before else None,
            seed=derive_seed(state.get("seed", 0), role, number),
            state=state,
        )
        started = time.perf_counter()
        seated: RoleClients = state.get("role_clients") or {}
        response = await seated.get(role, client).respond(request)
        record_query(state, role, request, response, time.perf_counter() - started, number)
    return response.message


def record_query(
    state: State, role: str, request: Request, response: Response, seconds: float, number: int | None = None
) -> None:
    """Keep an answer of another role in the rollout's state.

    Args:
        number: how often the role was asked before. Default: it was asked last.
    """
    step = TrajectoryStep(
        prompt=request.messages,
        completion=[response.message],
        finish_reason=response.finish_reason,
        usage=response.usage,
        seconds=seconds,
        tokens=response.tokens,
        attempts=response.attempts,
    )
    kept = _numbers(state, role).kept
    number = _next_number(state, role) if number is None else number
    place = bisect(kept, number)  # an answer to an earlier question may come later
    kept.insert(place, number)
    state.setdefault("model_roles", {}).setdefault(role, []).insert(place, step)


@dataclass(slots=True)
class _Numbers:
    """How often a role was asked in a rollout, and which of the times it has answered, in order."""

    asked: int = 0
    kept: list[int] = field(default_factory=list)


def _numbers(state: State, role: str) -> _Numbers:
    return state.setdefault("role_numbers", {}).setdefault(role, _Numbers())


def _next_number(state: State, role: str) -> int:
    numbers = _numbers(state, role)
    numbers.asked += 1
    return numbers.asked - 1
