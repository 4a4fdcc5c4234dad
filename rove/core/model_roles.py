"""Model roles: other models that an environment queries, such as opponents, simulated users and judges."""

from __future__ import annotations

import time
from bisect import bisect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from rove.core.digest import derive_seed
from rove.core.errors import phase
from rove.core.messages import Message, as_messages
from rove.core.plain import MessageDict, ToolDefinition
from rove.core.protocols import Client, Request, Response, SamplingParams
from rove.core.records import TrajectoryStep
from rove.core.state import State, bookkeeping


class RoleClients(Protocol):
    """Clients by role that replace the environment's clients, for example a dict."""

    def get(self, role: str, client: Client, /) -> Client:
        """Return the client for a role; `client` is the environment's own client."""
        ...


async def query(
    state: State,
    messages: str | Mapping[str, object] | Iterable[Mapping[str, object] | str],
    client: Client,
    *,
    role: str,
    model: str = "",
    sampling_args: Mapping[str, object] | SamplingParams | None = None,
    tools: list[ToolDefinition] | None = None,
) -> Message:
    """Query another model from `setup_state`, `env_response` or a reward function.

    The step is recorded in `state["model_roles"][role]` and in the record's `model_roles`, in the order of the queries. It is not
    part of the trajectory: rove does not train on it and counts its tokens by role. The request's seed is derived
    from the rollout's seed, the role and the number of earlier queries. `--model-role` and rescoring replace `client`
    with another client.

    Example:
        >>> reply = await rove.query(state, "Is 7 prime? Answer yes or no.", judge, role="judge")
        >>> reply.content

    Args:
        state: The rollout's state.
        messages: The conversation from the perspective of this model, whose turns are assistant messages; a text is a user
            message.
        client: Client to use unless the role is replaced.
        role: Name of the role, such as "opponent", "user" or "judge".
        model: Name of the model, for endpoints that serve several models.
        sampling_args: Sampling parameters, or a dict with OpenAI's names.
        tools: Tools in OpenAI's form.

    Returns:
        The assistant message of the other model.

    Raises:
        ModelError, InfraError: The client failed; the error's phase is "role <name>".
        ConfigError: The messages or the sampling arguments are invalid.
    """
    with phase(f"role {role}"):
        conversation: list[MessageDict] = list(as_messages(messages))
        sampling = sampling_args
        if not isinstance(sampling, SamplingParams):
            sampling = SamplingParams.from_args(sampling)
        rollout = bookkeeping(state)
        earlier_steps = rollout.model_roles.get(role, [])
        number = _next_number(state, role)  # taken before the first await: concurrent queries get different seeds
        request = Request(
            messages=conversation,
            sampling_params=sampling,
            model=model,
            tools=tools,
            previous=earlier_steps[-1].tokens if earlier_steps else None,
            seed=derive_seed(rollout.seed, role, number),
            state=state,
        )
        started = time.perf_counter()
        role_clients: RoleClients = rollout.role_clients or {}
        response = await role_clients.get(role, client).respond(request)
        record_query(state, role, request, response, time.perf_counter() - started, number)
    return response.message


def record_query(
    state: State, role: str, request: Request, response: Response, seconds: float, number: int | None = None
) -> None:
    """Record a response of a model role in the rollout's state.

    Args:
        number: Position of the query among the role's queries, from 0. Default: the next position.
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
    answered = _numbers(state, role).answered
    if number is None:
        number = _next_number(state, role)
    position = bisect(answered, number)  # responses may arrive out of order
    answered.insert(position, number)
    bookkeeping(state).model_roles.setdefault(role, []).insert(position, step)


@dataclass(slots=True)
class _Numbers:
    """Number of queries to a role in a rollout, and the positions of the answered queries, in order."""

    count: int = 0
    answered: list[int] = field(default_factory=list[int])


def _numbers(state: State, role: str) -> _Numbers:
    return bookkeeping(state).role_numbers.setdefault(role, _Numbers())


def _next_number(state: State, role: str) -> int:
    numbers = _numbers(state, role)
    numbers.count += 1
    return numbers.count - 1
