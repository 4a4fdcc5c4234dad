"""What an endpoint can do, found out by asking it: about ten short requests."""

from __future__ import annotations

import math
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from rove.clients.endpoint import EndpointClient
from rove.clients.openai import CompletionsClient, OpenAIClient
from rove.core.errors import EmptyModelResponseError, Error, InfraError, nearest
from rove.core.messages import UserMessage, text_of
from rove.core.protocols import Request, Response, SamplingParams
from rove.doctor.findings import FAIL, OK, SKIP, WARN, Finding, human_seconds
from rove.rendering.tool_calls import calls_of

CHECKS = 10
"""Findings of an endpoint that answers."""
HELLO = "Say OK."
STORY = "Tell a short story about a lighthouse."
ANSWER_TOKENS = 32
"""Tokens of the first answer: few, so that a slow server answers in time."""
MAX_TOKENS = 256
"""Room for models that think before they say OK; used where the server is fast enough."""
TOOL_TOKENS = 64
"""Tokens for a tool call of a slow server."""
STORY_TOKENS = 16
FAST_S = 5.0
"""Seconds in which a fast server gives the first answer."""
HUGE = 1 << 30
"""Tokens that no model has room for."""
SLOW_ADVICE = "the server is slow, or hangs: see its log; rove eval waits 600 s for each answer"
SLOW = 30.0
"""Seconds for a few words."""
CONTEXT_NAMES = (
    "max_model_len",  # vLLM, SGLang, rove
    "context_length",  # OpenRouter, LM Studio
    "context_window",  # Groq
    "max_context_length",  # Mistral
    "max_input_tokens",  # Anthropic
)
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


async def check_endpoint(
    client: EndpointClient, model: str, on_check: Callable[[str], None] = lambda name: None
) -> AsyncIterator[Finding]:
    """Findings about a model behind an endpoint, one by one; the rest is not asked where it gives no answer at all.

    A slow server is asked for few tokens. One that does not answer within the client's timeout gets a warning, no failure.

    Args:
        client: of the endpoint; not closed.
        model: what it is called there.
        on_check: called with the name of each check before it starts.
    """
    on_check("models")
    try:
        listed: list[dict[str, Any]] | Error = await list_models(client)
    except Error as error:
        listed = error
    if isinstance(listed, InfraError) and "HTTP" not in str(listed):
        yield Finding(FAIL, "reachable", _said(listed), f"is a server listening at {client.base_url}? check -b")
        return
    on_check("answer")
    asked, room = await _first_answer(client, model)
    yield check_key(listed, asked)
    yield check_models(listed, model)
    yield check_answer(asked, room)
    if _is_refusal(asked):
        yield Finding(SKIP, "the rest", "not asked", "run rove doctor again when it answers")
        return
    checks: dict[str, Callable[[EndpointClient, str], Awaitable[Finding]]] = {
        "tools": lambda client, model: check_tools(client, model, max(room, TOOL_TOKENS)),
        "log-probs": check_logprobs,
        "temperature 0": check_greedy,
        "seed": check_seed,
        "streaming": check_streaming,
        "latency": check_latency,
    }
    on_check("context")
    yield await check_context(client, model, listed)
    for name, check in checks.items():
        on_check(name)
        try:
            yield await check(client, model)
        except Error as error:
            if _timed_out(error):
                yield Finding(WARN, name, _said(error), SLOW_ADVICE)
                yield Finding(
                    SKIP, "the rest", "not asked of a server this slow", "run rove doctor again when it is faster"
                )
                return
            yield Finding(WARN, name, _said(error), "refused; do without it, or see the server's settings")


async def _first_answer(client: EndpointClient, model: str) -> tuple[Response | Error, int]:
    """Ask a short question; returns the answer, and how many tokens an answer may have.

    An answer that was cut is asked for again with more room, unless the server is slow.
    """
    started = time.perf_counter()
    asked = await _answered(client, _request(client, model, HELLO, max_tokens=ANSWER_TOKENS))
    if time.perf_counter() - started > FAST_S:
        return asked, ANSWER_TOKENS
    if isinstance(asked, Response) and asked.finish_reason == "length":
        asked = await _answered(client, _request(client, model, HELLO, max_tokens=MAX_TOKENS))
    return asked, MAX_TOKENS


async def list_models(client: EndpointClient) -> list[dict[str, Any]]:
    """The models that the API lists.

    Raises:
        ModelError, InfraError: it gives no list.
    """
    path = "v1/models" if client.translate(_request(client, "", HELLO))[0].startswith("v1/") else "models"
    async with client.opened(path) as reply:
        try:
            told = msgspec.json.decode(await reply.read())
        except msgspec.DecodeError:
            return []
    data = told.get("data") if isinstance(told, dict) else None
    return [one for one in data or [] if isinstance(one, dict) and "id" in one]


def check_key(listed: Sequence[Any] | Error, asked: Response | Error) -> Finding:
    """Whether the key is accepted: some servers list their models to anybody."""
    for said in (asked, listed):
        if isinstance(said, Error) and re.search(r"HTTP 40[13]\b", str(said)):
            return Finding(
                FAIL, "key", _said(said), "set the variable of -k to a key of this server; see its account page"
            )
    if _is_refusal(asked):
        return Finding(SKIP, "key", "cannot be told without an answer")
    return Finding(OK, "key", "accepted, or none is needed")


def check_models(listed: Sequence[Mapping[str, Any]] | Error, model: str) -> Finding:
    """Whether the model is in the list."""
    if isinstance(listed, Error):
        return Finding(SKIP, "models", f"no list: {_said(listed)}", "many servers have none; the answer below counts")
    names = [str(one["id"]) for one in listed]
    if not names:
        return Finding(SKIP, "models", "the list is empty", "many servers have none; the answer below counts")
    if model in names:
        return Finding(OK, "models", f"'{model}' is one of {len(names)}")
    return Finding(WARN, "models", f"'{model}' is not among {len(names)}", _short(nearest(model, names)))


def check_answer(asked: Response | Error, room: int = MAX_TOKENS) -> Finding:
    """Whether a short question is answered within `room` tokens."""
    if isinstance(asked, Error) and _timed_out(asked):
        return Finding(WARN, "answer", _said(asked), SLOW_ADVICE)
    if isinstance(asked, EmptyModelResponseError):
        return Finding(
            WARN, "answer", "nothing at all", "says nothing now and then: check its chat template, or train it"
        )
    if isinstance(asked, Error):
        return Finding(
            FAIL, "answer", _said(asked), "the name of the model, the base URL (…/v1) and the server's own log"
        )
    text = text_of(asked.message).strip()
    seen = f"'{_short(text, 40)}' ({asked.usage.completion_tokens} tokens, {asked.finish_reason})"
    if asked.finish_reason == "length":
        if room < MAX_TOKENS:
            return Finding(OK, "answer", seen, f"cut at {room} tokens, because the server is slow")
        return Finding(
            WARN, "answer", seen, f"does not end within {room} tokens: give a larger -t, or check its template"
        )
    if not text:
        return Finding(WARN, "answer", seen, "thinks without saying anything: give it a larger -t")
    return Finding(OK, "answer", seen)


async def check_tools(client: EndpointClient, model: str, max_tokens: int = MAX_TOKENS) -> Finding:
    """Whether a tool is called when a question asks for it."""
    if isinstance(client, CompletionsClient):
        return Finding(SKIP, "tools", "text completions have none")
    question = "What is the weather in Oslo? Use the tool."
    advice = "vLLM: --enable-auto-tool-choice --tool-call-parser …; or a model whose template shows tools"
    try:
        response = await client.respond(_request(client, model, question, max_tokens=max_tokens, tools=[TOOL]))
    except Error as error:
        if _timed_out(error):
            raise
        return Finding(WARN, "tools", f"refused: {_said(error)}", advice)
    calls = calls_of(response.message)
    if not calls and response.finish_reason == "length" and max_tokens < MAX_TOKENS:
        return Finding(
            SKIP, "tools", f"no call within {max_tokens} tokens of a slow server", "try it: rove eval, with tools"
        )
    if not calls:
        return Finding(WARN, "tools", f"answered in words: '{_short(text_of(response.message), 40)}'", advice)
    name, arguments = calls[0].name, calls[0].arguments
    if name != "get_weather" or not isinstance(arguments, Mapping) or "city" not in arguments:
        return Finding(
            WARN, "tools", f"called {name}({_short(str(arguments), 40)})", "expected get_weather(city=…): " + advice
        )
    return Finding(OK, "tools", f"called get_weather(city={arguments['city']!r})")


async def check_logprobs(client: EndpointClient, model: str) -> Finding:
    """Whether log-probabilities of the sampled tokens come back, and are ones."""
    name = "log-probs"
    advice = "evaluation needs none; tokens without them cannot be trained"
    if not isinstance(client, OpenAIClient):
        return Finding(SKIP, name, "this API has none", advice)
    request = _request(client, model, STORY, max_tokens=16, temperature=1.0, logprobs=0)
    path, body = client.translate(request)
    if path == "completions":
        body["logprobs"] = 1  # 0 means none to some servers
    try:
        async with client.opened(path, body) as reply:
            answer = msgspec.json.decode(await reply.read())
    except (Error, msgspec.DecodeError) as error:
        if isinstance(error, Error) and _timed_out(error):
            raise
        return Finding(WARN, name, f"refused: {_said(error)}", advice)
    values = logprobs_in(answer)
    if not values:
        return Finding(WARN, name, "none returned", advice)
    if any(not isinstance(v, (int, float)) or not math.isfinite(v) or v > 1e-4 or v < -999 for v in values):
        return Finding(
            WARN, name, f"not log-probabilities: {_short(str(values), 40)}", "expected finite values up to 0"
        )
    total = math.fsum(values)
    return Finding(
        OK,
        name,
        f"{len(values)} tokens, finite, sum {total:.2f}",
        "vLLM: raw ones unless --logprobs-mode processed_logprobs",
    )


def logprobs_in(answer: Any) -> list[Any]:
    """The log-probabilities in a (chat) completion's JSON; [] where there are none."""
    try:
        told = answer["choices"][0].get("logprobs") or {}
        return told["token_logprobs"] if "token_logprobs" in told else [one["logprob"] for one in told["content"] or []]
    except (KeyError, IndexError, TypeError, AttributeError):
        return []


async def check_greedy(client: EndpointClient, model: str) -> Finding:
    """Whether temperature 0 says the same again."""
    same, first = await _twice(client, model, temperature=0.0)
    if same:
        return Finding(OK, "temperature 0", "the same words twice")
    advice = "runs are not repeatable: batched kernels round differently; use more rollouts instead"
    return Finding(WARN, "temperature 0", f"other words the second time: '{_short(first, 30)}'", advice)


async def check_seed(client: EndpointClient, model: str) -> Finding:
    """Whether a seed makes sampling repeatable."""
    same, first = await _twice(client, model, temperature=1.0, seed=7)
    if same:
        return Finding(OK, "seed", "the same words twice at temperature 1")
    advice = "the server ignores seeds: keep the rollouts (rove does), they cannot be sampled again"
    return Finding(WARN, "seed", f"other words the second time: '{_short(first, 30)}'", advice)


async def check_context(client: EndpointClient, model: str, listed: Sequence[Mapping[str, Any]] | Error) -> Finding:
    """How many tokens fit: from the list of models, else from the refusal of a request for far too many."""
    known = [] if isinstance(listed, Error) else [one for one in listed if one["id"] == model]
    for name in CONTEXT_NAMES:
        if known and isinstance(known[0].get(name), int):
            return Finding(OK, "context", f"{known[0][name]:,} tokens (its {name})")
    # Few tokens are asked about and none are paid for, should it answer after all: the words are as few as before.
    asked = await _answered(client, _request(client, model, HELLO, max_tokens=HUGE))
    if isinstance(asked, Error):
        found = re.search(
            r"(?:context|maximum|at most|up to|limit)\D{0,40}?(\d{3,9})", str(asked).replace(",", ""), re.I
        )
        if found and int(found[1]) != HUGE:
            return Finding(OK, "context", f"{int(found[1]):,} tokens (from its refusal of more)")
    return Finding(SKIP, "context", "not told", "see the model's card; too long a prompt ends a rollout as truncated")


async def check_streaming(client: EndpointClient, model: str) -> Finding:
    """Whether an answer comes in pieces."""
    path, body = client.translate(_request(client, model, STORY, max_tokens=STORY_TOKENS))
    started, first, events = time.perf_counter(), None, 0
    async with client.opened(path, {**body, "stream": True}) as reply:
        async for line in reply.content:
            if line.startswith(b"data:"):
                first = first or time.perf_counter() - started
                events += 1
    advice = "rove waits for whole answers, so evaluation and training do not need it"
    if first is None:
        return Finding(WARN, "streaming", "one piece: stream was ignored", advice)
    return Finding(OK, "streaming", f"{events} events, the first after {human_seconds(first)}")


async def check_latency(client: EndpointClient, model: str) -> Finding:
    """How long a few words take: the median of three, one at a time."""
    taken, tokens = [], 0
    for _ in range(3):
        started = time.perf_counter()
        asked = await _answered(client, _request(client, model, STORY, max_tokens=STORY_TOKENS))
        taken.append(time.perf_counter() - started)
        if isinstance(asked, Response):
            tokens += asked.usage.completion_tokens
        elif _is_refusal(asked):
            raise asked
    middle = sorted(taken)[1]
    speed = f", {tokens / sum(taken):.0f} tokens/s" if tokens else ""
    seen = f"{human_seconds(middle)} for up to {STORY_TOKENS} tokens{speed}"
    if middle > SLOW:
        return Finding(
            WARN, "latency", seen, "slow: more at once (-c) helps if it has room, a nearer or larger server else"
        )
    return Finding(OK, "latency", seen, "one at a time; rove eval finds how many it takes at once")


def _request(client: EndpointClient, model: str, text: str, tools: Any = None, **sampling: Any) -> Request:
    raw = text if isinstance(client, CompletionsClient) else None
    return Request([UserMessage(text)], SamplingParams(**sampling), model, tools=tools, text=raw)


async def _answered(client: EndpointClient, request: Request) -> Response | Error:
    try:
        return await client.respond(request)
    except Error as error:
        return error


def _timed_out(error: Error) -> bool:
    """Whether the server accepted a connection and then gave no answer in time."""
    return isinstance(error, InfraError) and "no answer within" in str(error)


def _is_refusal(asked: Response | Error) -> bool:
    """Whether there was no answer; one that says nothing is one."""
    return isinstance(asked, Error) and not isinstance(asked, EmptyModelResponseError)


async def _twice(client: EndpointClient, model: str, **sampling: Any) -> tuple[bool, str]:
    request = _request(client, model, STORY, max_tokens=STORY_TOKENS, **sampling)
    first, second = [text_of((await client.respond(request)).message) for _ in range(2)]
    return first == second, first


def _short(text: str, most: int = 90) -> str:
    text = " ".join("".join(c if c.isprintable() or c.isspace() else "·" for c in text).split())
    return text if len(text) <= most else text[: most - 1] + "…"


def _said(error: Exception) -> str:
    """An error in a line or three, of a refusal the server's own words."""
    text, message = str(error), re.search(r'"message": ?"((?:[^"\\]|\\.)*)', str(error))
    status = re.search(r"HTTP \d{3}", text)
    return _short(f"{status[0]}: {message[1]}" if status and message else text, 200)
