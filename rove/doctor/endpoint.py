"""Checks of an endpoint: about ten short requests show what it supports."""

from __future__ import annotations

import math
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from rove.clients.endpoint import EndpointClient
from rove.clients.openai import CompletionsClient, OpenAIClient
from rove.core.errors import Error, InfraError, nearest
from rove.core.findings import MEDIUM, OK, SKIPPED, Finding
from rove.core.messages import UserMessage, text_of
from rove.core.plain import UNREADABLE, JsonMapping, JsonObject, is_mapping
from rove.core.protocols import Request, Response, SamplingParams
from rove.rendering.tool_calls import calls_of
from rove.utils.units import human_seconds

CHECKS = 10
"""Number of checks of a responding endpoint."""
HELLO = "Say OK."
STORY = "Tell a short story about a lighthouse."
FIRST_MAX_TOKENS = 32
"""Maximum tokens of the first response: few, so that a slow server responds in time."""
MAX_TOKENS = 256
"""Maximum tokens of each further response of a fast server: enough for models that think first."""
TOOL_TOKENS = 64
"""Maximum tokens of a tool call from a slow server."""
STORY_MAX_TOKENS = 16
FAST_RESPONSE_S = 5.0
"""A server is fast if its first response takes at most this many seconds."""
IMPOSSIBLE_TOKENS = 1 << 30
"""A number of tokens that exceeds every model's context."""
SLOW = ("see the server's log; rove eval waits 600 s for each response", "the server is slow or hangs")
UNSUPPORTED = ("see the server's settings", "the server does not support this request")
"""Remedy and cause to report if the server does not respond in time, or refuses a request."""
SLOW_RESPONSE_S = 30.0
"""Seconds for a response of a few tokens; if it takes longer, the latency check warns."""
CONTEXT_NAMES = (
    "max_model_len",  # vLLM, SGLang, rove
    "context_length",  # OpenRouter, LM Studio
    "context_window",  # Groq
    "max_context_length",  # Mistral
    "max_input_tokens",  # Anthropic
)
CONTEXT_IN_ERROR = re.compile(
    r"(?:context|maximum|at most|up to|limit)\D{0,40}?(\d{3,10})(?!\d)(?!\s*(?:completion|output)\b)", re.IGNORECASE
)
"""A context length in an error message; a limit of the completion alone is no context length."""
TOOL: JsonObject = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Return the current weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


async def check_endpoint(
    client: EndpointClient, model: str, on_check: Callable[[str], None] = lambda name: None
) -> AsyncIterator[Finding]:
    """Yield findings about a model behind an endpoint; stop if it does not respond at all.

    For slow servers, requests ask for fewer tokens. A response that exceeds the client's timeout is a warning, not a failure.

    Args:
        client: Client of the endpoint; not closed.
    """
    on_check("models")
    try:
        listed: list[JsonObject] | Error = await list_models(client)
    except Error as error:
        listed = error
    if isinstance(listed, InfraError) and "HTTP" not in str(listed):
        yield Finding("reachable", f"{client.base_url}: {_error_text(listed)}")
        return
    on_check("response")
    first, max_tokens = await _first_response(client, model)
    yield check_key(listed, first)
    yield check_models(listed, model)
    yield check_response(first, max_tokens)
    if isinstance(first, Error):
        yield Finding("other_checks", "not run: the server does not respond", SKIPPED)
        return
    checks: dict[str, Callable[[EndpointClient, str], Awaitable[Finding]]] = {
        "tools": lambda client, model: check_tools(client, model, max(max_tokens, TOOL_TOKENS)),
        "logprobs": check_logprobs,
        "temperature_0": check_greedy,
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
                yield Finding(name, _error_text(error), MEDIUM, *SLOW)
                yield Finding("other_checks", "not run: the server is too slow", SKIPPED)
                return
            yield Finding(name, _error_text(error), MEDIUM, *UNSUPPORTED)


async def _first_response(client: EndpointClient, model: str) -> tuple[Response | Error, int]:
    """Send a short prompt; return the response, and the maximum tokens of further responses.

    A truncated response is requested again with more tokens, unless the server is slow.
    """
    started = time.perf_counter()
    first = await _respond(client, _request(client, model, HELLO, max_tokens=FIRST_MAX_TOKENS))
    if time.perf_counter() - started > FAST_RESPONSE_S:
        return first, FIRST_MAX_TOKENS
    if isinstance(first, Response) and first.finish_reason == "length":
        first = await _respond(client, _request(client, model, HELLO, max_tokens=MAX_TOKENS))
    return first, MAX_TOKENS


async def list_models(client: EndpointClient) -> list[JsonObject]:
    """Return the models that the API lists."""
    # The path of a request shows whether the base URL includes "v1".
    request_path, _ = client.translate(_request(client, "", HELLO))
    path = "v1/models" if request_path.startswith("v1/") else "models"
    async with client.open_stream(path) as reply:
        try:
            content = msgspec.json.decode(await reply.read())
        except UNREADABLE:
            return []
    entries = content.get("data") if isinstance(content, dict) else None
    if not isinstance(entries, list):
        return []
    return [dict(entry) for entry in entries if is_mapping(entry) and "id" in entry]


def check_key(listed: Sequence[Any] | Error, response: Response | Error) -> Finding:
    """Check whether the server accepts the API key. Some servers list their models even without a key."""
    for result in (response, listed):
        if isinstance(result, Error) and re.search(r"HTTP 40[13]\b", str(result)):
            return Finding("key", _error_text(result))
    if isinstance(response, Error):
        return Finding("key", "unknown without a response", SKIPPED)
    return Finding("key", "accepted, or not needed", OK)


def check_models(listed: Sequence[JsonMapping] | Error, model: str) -> Finding:
    """Check whether the model is in the list."""
    if isinstance(listed, Error):
        return Finding("models", f"no list, as on many servers: {_error_text(listed)}", SKIPPED)
    names = [str(entry["id"]) for entry in listed]
    if not names:
        return Finding("models", "the list is empty, as on many servers", SKIPPED)
    if model in names:
        return Finding("models", f"'{model}' is one of {len(names)}", OK)
    return Finding("models", f"'{model}' is not among {len(names)}", MEDIUM, _short(nearest(model, names)))


def check_response(response: Response | Error, max_tokens: int = MAX_TOKENS) -> Finding:
    """Check whether a short prompt gets a complete response within `max_tokens`."""
    if isinstance(response, Error) and _timed_out(response):
        return Finding("response", _error_text(response), MEDIUM, *SLOW)
    if isinstance(response, Error):
        return Finding("response", _error_text(response))
    text = text_of(response.message).strip()
    num_tokens = response.usage.completion_tokens
    description = f"'{_short(text, 40)}' ({num_tokens} tokens, {response.finish_reason})"
    if response.finish_reason == "length":
        if max_tokens < MAX_TOKENS:
            return Finding("response", description, OK, f"truncated at {max_tokens} tokens, because the server is slow")
        description += f", which does not end within {max_tokens} tokens"
        return Finding("response", description, MEDIUM, "raise -t, or check the chat template")
    if not text and response.message.get("reasoning_content"):
        return Finding("response", description, MEDIUM, "only reasoning, no text: raise -t")
    if not text:
        return Finding("response", "empty", MEDIUM, "check the model's chat template, or train it")
    return Finding("response", description, OK)


async def check_tools(client: EndpointClient, model: str, max_tokens: int = MAX_TOKENS) -> Finding:
    """Check whether the model calls a tool when it should."""
    if isinstance(client, CompletionsClient):
        return Finding("tools", "not part of text completions", SKIPPED)
    question = "What is the weather in Oslo? Use the tool."
    try:
        response = await client.respond(_request(client, model, question, max_tokens=max_tokens, tools=[TOOL]))
    except Error as error:
        if _timed_out(error):
            raise
        return Finding("tools", f"refused: {_error_text(error)}")
    calls = calls_of(response.message)
    if not calls and response.finish_reason == "length" and max_tokens < MAX_TOKENS:
        return Finding("tools", f"no call within {max_tokens} tokens (slow server)", SKIPPED)
    if not calls:
        return Finding("tools", f"answered without a call: '{_short(text_of(response.message), 40)}'")
    name, arguments = calls[0].name, calls[0].arguments
    if name != "get_weather" or not isinstance(arguments, Mapping) or "city" not in arguments:
        return Finding("tools", f"called {name}({_short(str(arguments), 40)}), expected get_weather(city=…)")
    return Finding("tools", f"called get_weather(city={arguments['city']!r})", OK)


async def check_logprobs(client: EndpointClient, model: str) -> Finding:
    """Check whether the API returns valid log-probabilities of the sampled tokens."""
    if not isinstance(client, OpenAIClient):
        return Finding("logprobs", "this API has none", SKIPPED)
    request = _request(client, model, STORY, max_tokens=16, temperature=1.0, logprobs=0)
    path, body = client.translate(request)
    if path == "completions":
        body["logprobs"] = 1  # some servers treat 0 as none
    try:
        async with client.open_stream(path, body) as reply:
            answer = msgspec.json.decode(await reply.read())
    except (Error, *UNREADABLE) as error:
        if isinstance(error, Error) and _timed_out(error):
            raise
        return Finding("logprobs", f"refused: {_error_text(error)}")
    values = logprobs_in(answer)
    if not values:
        return Finding("logprobs", "none returned")
    if not all(map(_is_logprob, values)):
        text = f"not log-probabilities: {_short(str(values), 40)}; expected finite values up to 0"
        return Finding("logprobs", text)
    total = math.fsum(values)
    return Finding("logprobs", f"{len(values)} tokens, finite, sum {total:.2f}", OK)


def _is_logprob(value: object) -> bool:
    # Rounding can make the log-probability of a certain token slightly positive; vLLM writes -9999 for minus infinity.
    return isinstance(value, (int, float)) and math.isfinite(value) and -999 <= value <= 1e-4


def logprobs_in(answer: Any) -> list[Any]:
    """Return the log-probabilities in the JSON of a (chat) completion; [] if there are none."""
    try:
        logprobs = answer["choices"][0].get("logprobs") or {}
        if "token_logprobs" in logprobs:
            return list(logprobs["token_logprobs"])
        return [token["logprob"] for token in logprobs["content"] or []]
    except (KeyError, IndexError, TypeError, AttributeError):
        return []


async def check_greedy(client: EndpointClient, model: str) -> Finding:
    """Check whether temperature 0 gives the same response twice."""
    first, second = await _twice(client, model, temperature=0.0)
    if first == second:
        return Finding("temperature_0", "the same response twice", OK)
    return Finding("temperature_0", f"a different second response: '{_short(second, 30)}'")


async def check_seed(client: EndpointClient, model: str) -> Finding:
    """Check whether a seed makes sampling repeatable."""
    first, second = await _twice(client, model, temperature=1.0, seed=7)
    if first == second:
        return Finding("seed", "the same response twice at temperature 1", OK)
    return Finding("seed", f"a different second response: '{_short(second, 30)}'")


async def check_context(client: EndpointClient, model: str, listed: Sequence[JsonMapping] | Error) -> Finding:
    """Find the context length: from the list of models, else from the error of an impossible request."""
    entry: JsonMapping = {}
    if not isinstance(listed, Error):
        entry = next((entry for entry in listed if entry["id"] == model), {})
    for name in CONTEXT_NAMES:
        if isinstance(entry.get(name), int):
            return Finding("context", f"{entry[name]:,} tokens (its {name})", OK)
    # The prompt is as short as before, so this costs little even if the server responds.
    response = await _respond(client, _request(client, model, HELLO, max_tokens=IMPOSSIBLE_TOKENS))
    if isinstance(response, Error):
        message = str(response).replace(",", "")
        lengths = [int(match[1]) for match in CONTEXT_IN_ERROR.finditer(message)]
        # The message may only repeat the request.
        lengths = [length for length in lengths if length != IMPOSSIBLE_TOKENS]
        if lengths:
            return Finding("context", f"{lengths[0]:,} tokens (from an error message)", OK)
    return Finding("context", "unknown: see the model's card", SKIPPED)


async def check_streaming(client: EndpointClient, model: str) -> Finding:
    """Check whether responses are streamed."""
    path, body = client.translate(_request(client, model, STORY, max_tokens=STORY_MAX_TOKENS))
    first, events = None, 0
    started = time.perf_counter()
    async with client.open_stream(path, {**body, "stream": True}) as reply:
        async for line in reply.content:
            if line.startswith(b"data:"):
                first = first or time.perf_counter() - started
                events += 1
    if first is None:
        return Finding("streaming", "not streamed")
    return Finding("streaming", f"{events} events, the first after {human_seconds(first)}", OK)


async def check_latency(client: EndpointClient, model: str) -> Finding:
    """Measure the latency of a short response: the median of three requests, sent one after another."""
    taken, tokens = [], 0
    for _ in range(3):
        started = time.perf_counter()
        response = await client.respond(_request(client, model, STORY, max_tokens=STORY_MAX_TOKENS))
        taken.append(time.perf_counter() - started)
        tokens += response.usage.completion_tokens
    median = sorted(taken)[1]
    speed = f", {tokens / sum(taken):.0f} tokens/s" if tokens else ""
    description = f"{human_seconds(median)} for up to {STORY_MAX_TOKENS} tokens{speed}"
    if median > SLOW_RESPONSE_S:
        return Finding("latency", description)
    return Finding("latency", f"{description}, one request at a time", OK)


def _request(client: EndpointClient, model: str, text: str, tools: Any = None, **sampling: Any) -> Request:
    raw = text if isinstance(client, CompletionsClient) else None
    return Request([UserMessage(text)], SamplingParams(**sampling), model, tools=tools, text=raw)


async def _respond(client: EndpointClient, request: Request) -> Response | Error:
    try:
        return await client.respond(request)
    except Error as error:
        return error


def _timed_out(error: Error) -> bool:
    """Return whether the server accepted a connection but did not respond in time."""
    return isinstance(error, InfraError) and "no answer within" in str(error)


async def _twice(client: EndpointClient, model: str, **sampling: Any) -> tuple[str, str]:
    """Send the same request twice; return the texts of both responses."""
    request = _request(client, model, STORY, max_tokens=STORY_MAX_TOKENS, **sampling)
    first = text_of((await client.respond(request)).message)
    second = text_of((await client.respond(request)).message)
    return first, second


def _short(text: str, max_chars: int = 90) -> str:
    # A message of a broken server can contain control characters, which would change the terminal.
    characters = [char if char.isprintable() or char.isspace() else "·" for char in text]
    text = " ".join("".join(characters).split())
    return text if len(text) <= max_chars else text[: max_chars - 1] + "…"


def _error_text(error: Exception) -> str:
    """Return an error in at most 200 characters; for an HTTP error, its status and the server's message."""
    text = str(error)
    message = re.search(r'"message": ?"((?:[^"\\]|\\.)*)', text)
    status = re.search(r"HTTP \d{3}", text)
    if status and message:
        text = f"{status[0]}: {message[1]}"
    return _short(text, 200)
