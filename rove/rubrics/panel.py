"""Who judges, and how they are asked: each equal question once."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from rove.core.digest import derive_seed
from rove.core.errors import ConfigError, InfraError
from rove.core.messages import UserMessage
from rove.core.protocols import Client, Request, Response, SamplingParams

REMEMBERED = 50_000
"""Judgments kept, the latest ones: a run of RL asks for new ones without end."""


class Judge(NamedTuple):
    """One judge."""

    name: str
    client: Client
    model: str

    @property
    def identity(self) -> dict[str, Any]:
        """What tells its judgments from those of another."""
        return {"model": self.model, **getattr(self.client, "identity", {})}


class Reply(NamedTuple):
    """What a judge said."""

    request: Request
    response: Response
    seconds: float
    shared: bool
    """Another rollout asked the same and paid for it."""


def make_judges(client: Any, model: str | Sequence[str]) -> tuple[list[Judge], list[Client]]:
    """The judges that clients and models pair up to (one of either goes with all of the other), and the clients made here.

    Args:
        client: a rove client, an `openai.AsyncOpenAI`, or a list of these. None: a model is looked up in endpoints.toml, and
            asked at `OPENAI_BASE_URL` when it has no such name.
        model: its name there, or a list of names.

    Raises:
        ConfigError: there are no judges, the lists are not equally long, or something is no client.
        MissingKeyError: a client must be made and there is no key.
    """
    from rove.clients.openai import as_client  # here, as aiohttp takes time to import

    models = [model] if isinstance(model, str) else list(model)
    given = list(client) if isinstance(client, (list, tuple)) else [client]
    size = max(len(models), len(given)) if models and given else 0
    if not size or len(models) not in (1, size) or len(given) not in (1, size):
        raise ConfigError(
            f"{len(given)} judge clients for {len(models)} judge models; expected one per model, or one of either"
        )
    judges: list[Judge] = []
    made: list[Client] = []
    for one, name in zip(given * (size // len(given)), models * (size // len(models)), strict=True):
        if one is None:
            made.append(_client_for(name))
        asked = made[-1] if one is None else as_client(one)
        shown = str(getattr(asked, "name", "") or name)
        same = sum(judge.name.partition("#")[0] == shown for judge in judges)
        judges.append(Judge(f"{shown}#{same + 1}" if same else shown, asked, name))
    return judges, made


def _client_for(model: str) -> Client:
    from rove.clients.endpoints import known_endpoints
    from rove.clients.openai import OpenAIClient

    endpoint = known_endpoints().get(model)
    return endpoint.client() if endpoint is not None else OpenAIClient()


class JudgeCache:
    """Asks judges, and remembers: equal questions to the same judge share one call, also while it is under way.

    What fails is not remembered; whoever waited for the same call fails with it. How many calls are under way is the
    clients' own affair.

    Args:
        timeout_seconds: wall time of one call, retries included; None = what the client allows.
        remembers: False = every question is asked anew.
    """

    def __init__(self, timeout_seconds: float | None = None, remembers: bool = True):
        self.timeout_seconds = timeout_seconds
        self.remembers = remembers
        self._asked: dict[bytes, asyncio.Task[tuple[Request, Response, float]]] = {}

    async def ask(self, judge: Judge, text: str, sampling: SamplingParams) -> Reply:
        """What a judge says to a text.

        Raises:
            InfraError: no answer within `timeout_seconds`.
            Error: what the client raises.
        """
        if not self.remembers:
            return Reply(*await self._call(judge, text, sampling), False)
        key = _digest(judge.name, text, sampling)
        task = self._asked.get(key)
        shared = task is not None and (task.done() or task.get_loop() is asyncio.get_running_loop())
        if task is None or not shared:
            task = self._asked[key] = asyncio.create_task(self._call(judge, text, sampling))
            task.add_done_callback(lambda done: self._forget(key, done))
            if len(self._asked) > REMEMBERED:
                del self._asked[next(iter(self._asked))]
        return Reply(*(task.result() if task.done() else await asyncio.shield(task)), shared)

    def clear(self) -> None:
        """Forget everything, and stop what is still under way."""
        tasks, self._asked = list(self._asked.values()), {}
        for task in tasks:
            if not task.done() and not task.get_loop().is_closed():
                task.cancel()

    def _forget(self, key: bytes, done: asyncio.Task[Any]) -> None:
        if (done.cancelled() or done.exception() is not None) and self._asked.get(key) is done:
            del self._asked[key]

    async def _call(self, judge: Judge, text: str, sampling: SamplingParams) -> tuple[Request, Response, float]:
        # By the question, so that a judge that samples says the same in every run, whoever asks first.
        request = Request([UserMessage(text)], sampling, judge.model, seed=derive_seed(judge.name, text))
        started = time.perf_counter()
        limit = asyncio.timeout(self.timeout_seconds)
        try:
            async with limit:
                response = await judge.client.respond(request)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise InfraError(f"judge '{judge.name}' did not answer within {self.timeout_seconds:g} s") from error
        return request, response, time.perf_counter() - started


def _digest(name: str, text: str, sampling: SamplingParams) -> bytes:
    content = msgspec.json.encode([name, text, sampling], order="sorted")
    return hashlib.blake2b(content, digest_size=16).digest()


def own_form(sampling: SamplingParams) -> bool:
    """Whether the sampling arguments ask for a form of the answer already."""
    return sampling.response_format is not None or sampling.structured_outputs is not None


def as_sampling(args: Mapping[str, Any] | None) -> SamplingParams:
    """The judge's sampling, `n` left out: one answer is what is read."""
    return SamplingParams.from_args({name: value for name, value in (args or {}).items() if name != "n"})
