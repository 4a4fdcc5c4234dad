"""Asking others than the model that plays: opponents, simulated users, judges. Their tokens are counted apart, by seat."""

from __future__ import annotations

import time
from bisect import bisect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from rove.core.digest import derive_seed
from rove.core.errors import phase
from rove.core.messages import Message, as_messages
from rove.core.protocols import Client, Request, Response, Sampling
from rove.core.records import TrajectoryStep
from rove.core.state import State


class SeatClients(Protocol):
    """Who answers in other seats than the model's instead of whom the environment asks. A dict of clients by seat is one."""

    def get(self, seat: str, client: Client, /) -> Client:
        """Who answers in a seat in which the environment asks `client`."""
        ...


async def ask(
    state: State,
    messages: str | Mapping[str, Any] | Iterable[Mapping[str, Any] | str],
    client: Client,
    *,
    seat: str,
    model: str = "",
    sampling_args: Mapping[str, Any] | Sampling | None = None,
    tools: list[dict[str, Any]] | None = None,
) -> Message:
    """What another player says, inside `setup_state`, `env_response` or a reward function.

    The step is kept in `state["seats"][seat]` and in the record's `seats`: never in the trajectory, so that it is neither
    trained on nor counted as the model's. Steps lie in the order in which they were asked for, also where several are under
    way at once. Its random stream comes from the rollout's seed, the seat and how often it was asked before.
    `state["seat_clients"]`, if there is any, has who answers instead, by seat: while a rollout is played again to be rescored,
    or where somebody else has taken the seat (see `SeatClients`).

    Args:
        messages: the conversation as this player sees it: a text is said by the user, and its own turns are the assistant's.
        client: who answers.
        seat: "opponent", "user", "judge", …: what tokens are counted by, and part of the error's phase ("seat opponent").
        model: name of the model, for endpoints that serve several.
        sampling_args: under OpenAI's names, or read already.
        tools: in OpenAI's form.

    Raises:
        ModelError, InfraError: the client's, in the phase "seat <name>".
        ConfigError: these are no messages, or no sampling arguments.
    """
    with phase(f"seat {seat}"):
        conversation: list[dict[str, Any]] = list(as_messages(messages))
        sampling = sampling_args if isinstance(sampling_args, Sampling) else Sampling.from_args(sampling_args)
        before = state.setdefault("seats", {}).get(seat, [])
        number = _next_number(state, seat)
        request = Request(
            messages=conversation,
            sampling=sampling,
            model=model,
            tools=tools,
            previous=before[-1].tokens if before else None,
            seed=derive_seed(state.get("seed", 0), seat, number),
            state=state,
        )
        started = time.perf_counter()
        seated: SeatClients = state.get("seat_clients") or {}
        response = await seated.get(seat, client).respond(request)
        record_answer(state, seat, request, response, time.perf_counter() - started, number)
    return response.message


def record_answer(
    state: State, seat: str, request: Request, response: Response, seconds: float, number: int | None = None
) -> None:
    """Keep an answer of another seat in the rollout's state.

    Args:
        number: how often the seat was asked before. Default: it was asked last.
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
    kept = _numbers(state, seat).kept
    number = _next_number(state, seat) if number is None else number
    place = bisect(kept, number)  # an answer to an earlier question may come later
    kept.insert(place, number)
    state.setdefault("seats", {}).setdefault(seat, []).insert(place, step)


@dataclass(slots=True)
class _Numbers:
    """How often a seat was asked in a rollout, and which of the times it has answered, in order."""

    asked: int = 0
    kept: list[int] = field(default_factory=list)


def _numbers(state: State, seat: str) -> _Numbers:
    return state.setdefault("seat_numbers", {}).setdefault(seat, _Numbers())


def _next_number(state: State, seat: str) -> int:
    numbers = _numbers(state, seat)
    numbers.asked += 1
    return numbers.asked - 1
