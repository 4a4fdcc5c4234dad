"""Functions shared by the served APIs: read requests, write log-probabilities, usage and errors."""

from __future__ import annotations

import random
import re
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Annotated, Any, TypeVar

import msgspec

from rove.core.errors import ConfigError, excerpt
from rove.core.messages import text_of
from rove.core.plain import JsonMapping, JsonObject, JsonValue
from rove.core.protocols import Request, Response, SamplingParams, ToolChoice
from rove.core.records import Usage

MAX_CHOICES = 128
"""Maximum number of answers per HTTP request."""

IGNORED = frozenset(
    ("user", "metadata", "store", "service_tier", "parallel_tool_calls", "safety_identifier", "prompt_cache_key")
)
"""Fields that do not change the answer; other unknown fields are passed to the client unchanged."""
HARMLESS: JsonObject = {"modalities": ["text"], "functions": []}
"""Fields that have no effect if they have these values."""
ONLY_ENDPOINTS = frozenset(("reasoning_effort",))
"""Fields that some endpoints use but the embedded engine ignores."""

AtLeastOne = Annotated[int, msgspec.Meta(ge=1)]
StopText = Annotated[str, msgspec.Meta(max_length=1000)]
"""A stop text; its length is limited because it is searched for after every token."""


class StreamOptions(msgspec.Struct):
    """Options of a stream."""

    include_usage: bool = False


class Options(msgspec.Struct, kw_only=True):
    """Fields shared by chat completions and completions."""

    model: str = ""
    n: Annotated[int, msgspec.Meta(ge=1, le=MAX_CHOICES)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0)] | None = None
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    max_tokens: AtLeastOne | None = None
    max_completion_tokens: AtLeastOne | None = None
    seed: int | None = None
    stop: StopText | Annotated[list[StopText], msgspec.Meta(max_length=64)] | None = None


class TokenOptions(Options, kw_only=True):
    """Fields for token ids and the prompt's log-probabilities, under vLLM's names."""

    prompt_logprobs: Annotated[int, msgspec.Meta(ge=0, le=20)] | None = None
    return_token_ids: bool | None = None


_SAMPLING = ("temperature", "top_p", "max_tokens", "max_completion_tokens", "seed", "stop")


class ChoiceRequest(msgspec.Struct, frozen=True):
    """A request for one of the answers."""

    request: Request
    prompt_ids: list[int] | None = None
    """The prompt, if it was given as token ids; the request then has neither messages nor a text."""


class ServingRequest(msgspec.Struct, frozen=True):
    """A parsed HTTP request of any of the APIs."""

    model: str
    """Name of the model; "" if the request does not name one."""
    choices: list[ChoiceRequest]
    """One request for each choice of the answer, in order."""
    n: int = 1
    """Number of consecutive choices that share a prompt."""
    stream: bool = False
    include_usage: bool = False
    """Whether a stream ends with token counts."""
    logprobs: int | None = None
    """Number of likeliest tokens returned with the log-probability of each sampled token; None = no log-probabilities."""
    echo: bool = False
    """Whether each choice begins with its prompt."""
    prompt_logprobs: bool = False
    """Whether to return the log-probabilities of the prompt's tokens."""
    return_token_ids: bool = False
    """Whether to return the ids of the prompt's tokens and of the sampled tokens."""
    is_token_stream: bool = False
    """Whether the pieces of a stream are single tokens, without their text."""
    fields: frozenset[str] = frozenset()
    """Fields that the API supports."""
    api: str = ""
    """"responses" or "anthropic", which stream named events and have their own form of errors; "" for the other APIs."""

    @staticmethod
    def of(options: Options, choices: list[ChoiceRequest], logprobs: int | None, **fields: Any) -> ServingRequest:
        """Return the parsed request for options that the completions APIs share."""
        return ServingRequest(
            options.model,
            choices,
            options.n or 1,
            bool(options.stream),
            bool(options.stream_options and options.stream_options.include_usage),
            logprobs,
            fields=fields_of(options),
            **fields,
        )


class Head(msgspec.Struct, frozen=True):
    """Fields that every piece of one answer repeats."""

    id: str
    model: str
    created: int


class TokenLogprob(msgspec.Struct, frozen=True):
    """A sampled token as text, its log-probability, and the likeliest tokens at its position, if requested."""

    token: str
    logprob: float | None
    """Log-probability of the token; None for the first token of a prompt."""
    top: Sequence[TokenLogprob] = ()
    id: int = -1
    offset: int = 0
    """Number of characters in the answer's earlier tokens."""
    utf8: bytes = b""
    """Bytes of the token if it is only a part of a character (its text is then U+FFFD); else b""."""


Tokens = Sequence[TokenLogprob]
Logprobs = list[TokenLogprob] | None
"""Tokens of one choice; None if no log-probabilities were requested."""
ChoiceLogprobs = Sequence[list[TokenLogprob]] | None
"""Tokens of each choice; None if no log-probabilities were requested."""

T = TypeVar("T", bound=msgspec.Struct)


def new_head(prefix: str, model: str) -> Head:
    """Return the head of a new answer; ids of its API begin with `prefix`."""
    return Head(f"{prefix}-{uuid.uuid4().hex}", model, int(time.time()))


def completion_object(head: Head, kind: str, choices: list[JsonObject]) -> JsonObject:
    """Return the JSON object of a completion, or of one chunk of its stream."""
    return {"id": head.id, "object": kind, "created": head.created, "model": head.model, "choices": choices}


def read_body(body: object, kind: type[T]) -> T:
    """Convert a decoded body to a struct."""
    if not isinstance(body, dict):
        raise ConfigError(f"the body is {excerpt(body, 100)}; expected a JSON object")
    try:
        return msgspec.convert(body, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{error}; given: {_invalid_value(body, str(error))}") from error


def _invalid_value(body: JsonValue, error: str) -> str:
    """Return an excerpt of the value at the path that msgspec's error names, such as "… - at `$.messages[0]`"."""
    path = re.search(r"`\$([^`]*)`$", error)
    steps = re.findall(r"\.(\w+)|\[(\d+)\]", path[1]) if path else []
    for name, index in steps:
        try:
            body = body[name] if name else body[int(index)]
        except (LookupError, TypeError):
            break
    return excerpt(msgspec.json.encode(body), 100)


def sampling_of(body: JsonMapping, options: msgspec.Struct, **fields: Any) -> SamplingParams:
    """Return the sampling parameters of a request: its options, unknown fields of the body (as `extra`), and `fields`."""
    read_names = {*options.__struct_fields__, *IGNORED}
    read_names |= {name for name, value in HARMLESS.items() if body.get(name) == value}
    extra = {name: value for name, value in body.items() if name not in read_names}
    arguments = {name: getattr(options, name, None) for name in _SAMPLING}
    # Only these APIs may ask for no tokens, to score a prompt; everywhere else 0 is refused as a mistake.
    if arguments["max_tokens"] == 0 and arguments["max_completion_tokens"] is None:
        sampling = SamplingParams.from_args(extra, {**arguments, "max_tokens": None}, fields)
        return msgspec.structs.replace(sampling, max_tokens=0, min_tokens=None)
    return SamplingParams.from_args(extra, arguments, fields)


def prompt_logprobs_of(options: TokenOptions) -> int | None:
    """Return the number of likeliest tokens to report for each token of the prompt; None = no log-probabilities."""
    if options.prompt_logprobs is not None and options.stream:
        raise ConfigError(
            f"prompt_logprobs is {options.prompt_logprobs} and stream is true; expected one of them: streams have no "
            "log-probabilities of the prompt"
        )
    return options.prompt_logprobs


def fields_of(options: msgspec.Struct) -> frozenset[str]:
    """Return the fields that an API with these options supports, including sampling parameters."""
    return frozenset((*options.__struct_fields__, *SamplingParams.__struct_fields__, *IGNORED)) - {"extra"}


def check_known(parsed: ServingRequest) -> ServingRequest:
    """Return the request without fields that only some endpoints use."""
    choices = []
    for choice in parsed.choices:
        request = choice.request
        extra = request.sampling_params.extra
        unknown = sorted(extra.keys() - ONLY_ENDPOINTS)
        if unknown:
            close = get_close_matches(unknown[0], sorted(parsed.fields), n=1)
            advice = f"did you mean '{close[0]}'? Else leave it out" if close else "leave it out"
            raise ConfigError(f"no field '{excerpt(unknown[0], 100)}' here; {advice}. docs/serving.md lists all fields")
        if extra:
            sampling = msgspec.structs.replace(request.sampling_params, extra={})
            request = msgspec.structs.replace(request, sampling_params=sampling)
            choice = msgspec.structs.replace(choice, request=request)
        choices.append(choice)
    return msgspec.structs.replace(parsed, choices=choices)


def expand_choices(choice: ChoiceRequest, n: int | None) -> list[ChoiceRequest]:
    """Return `n` requests with consecutive seeds, starting at the requested seed or at a random seed."""
    request = choice.request
    sampling = request.sampling_params
    # Consecutive, so that the answers of one request differ and are the same when it is repeated.
    start = random.getrandbits(62) if sampling.seed is None else sampling.seed
    choices = []
    for seed in range(start, start + (n or 1)):
        seeded = sampling if sampling.seed is None else msgspec.structs.replace(sampling, seed=seed)
        seeded_request = msgspec.structs.replace(request, sampling_params=seeded, seed=seed)
        choices.append(msgspec.structs.replace(choice, request=seeded_request))
    return choices


def usage_of(responses: Sequence[Response], n: int) -> Usage:
    """Return the token counts of all choices; a prompt that `n` choices share counts once."""
    prompts = sum(response.usage.prompt_tokens for response in responses[::n])
    return Usage(prompts, sum(response.usage.completion_tokens for response in responses))


def usage_body(usage: Usage) -> dict[str, int]:
    """Return token counts in OpenAI's form."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def logprobs_content(tokens: Iterable[TokenLogprob]) -> list[JsonObject]:
    """Return log-probabilities in the form of chat completions and the Responses API.

    Joined, the bytes of all tokens are the UTF-8 text, even if a character consists of several tokens.
    """

    def entry(token: TokenLogprob) -> JsonObject:
        return {"token": token.token, "logprob": token.logprob, "bytes": list(token.utf8 or token.token.encode())}

    return [{**entry(token), "top_logprobs": list(map(entry, token.top))} for token in tokens]


def prompt_logprobs_body(tokens: Iterable[TokenLogprob]) -> list[JsonObject | None]:
    """Return a prompt's log-probabilities in vLLM's form: token id → log-probability; null for the first token.

    The rank is null for a token that is not among the requested likeliest tokens.
    """
    body: list[JsonObject | None] = []
    for token in tokens:
        if token.logprob is None:
            body.append(None)
            continue
        ranks = {likely.id: rank for rank, likely in enumerate(token.top, start=1)}
        entries: JsonObject = {}
        for entry in (token, *token.top):
            fields = {"logprob": entry.logprob, "rank": ranks.get(entry.id), "decoded_token": entry.token}
            entries[str(entry.id)] = fields
        body.append(entries)
    return body


def token_ids_of(responses: Sequence[Response]) -> tuple[list[list[int] | None], list[list[int] | None]]:
    """Return the token ids of each prompt and of each completion; None if the client has no tokens."""
    prompts: list[list[int] | None] = []
    completions: list[list[int] | None] = []
    for response in responses:
        tokens = response.tokens
        prompts.append(None if tokens is None else list(tokens.prompt_ids))
        completions.append(None if tokens is None else list(tokens.completion_ids))
    return prompts, completions


def unsent_text(response: Response, sent: str) -> str:
    """Return the text of an answer after the prefix that was streamed; "" if the text does not start with this prefix."""
    text = text_of(response.message)
    return text[len(sent) :] if text.startswith(sent) else ""


def error_body(message: str, type: str = "invalid_request_error", code: str | None = None) -> JsonObject:
    """Return an error in OpenAI's form."""
    return {"error": {"message": message, "type": type, "param": None, "code": code}}


def tool_choice_of(
    choice: JsonValue, tools: Sequence[JsonMapping] | None, parallel: bool | None = None
) -> ToolChoice | None:
    """Return which tools must be called, according to OpenAI's `tool_choice`; None if no call is required.

    Args:
        choice: None, "none", "auto", "required", or a named function in the form of chat completions or the Responses
            API.
        parallel: Whether several calls are allowed. Default: yes for "required", no for a named function.
    """
    if choice in (None, "none", "auto"):
        return None
    names = [tool["function"]["name"] for tool in tools or []]
    if choice == "required":
        if not names:
            raise ConfigError('tool_choice is required without tools; expected tools next to it, or tool_choice "auto"')
        return ToolChoice(tuple(names), parallel is not False)
    name = None
    if isinstance(choice, Mapping) and choice.get("type") == "function":
        # Chat completions puts the name one level deeper than the Responses API.
        function = choice.get("function", choice)
        name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str):
        raise ConfigError(
            f'tool_choice is {excerpt(choice)}; expected "none", "auto", "required", or '
            '{"type": "function", "function": {"name": …}}'
        )
    if name not in names:
        raise ConfigError(
            f"tool_choice names '{name}'; expected the name of a tool: {', '.join(names) or 'none given'}"
        )
    return ToolChoice((name,), False)


def joined_content(content: object, read_part: Callable[[JsonValue], JsonObject]) -> object:
    """Return the content of a message in chat form: text parts joined, or parts converted by `read_part`."""
    if not isinstance(content, list):
        return content
    parts = [read_part(part) for part in content]
    if all("text" in part for part in parts):
        return "".join(part["text"] for part in parts)
    return parts


def refuse(body: JsonMapping, fields: Iterable[str], why: str) -> None:
    """Refuse fields with a value other than null, false and ""."""
    for name in fields:  # client libraries send fields with such values, which request nothing
        if body.get(name) not in (None, "") and body[name] is not False:
            raise ConfigError(f"{name} is {excerpt(body[name])}, but {why}; leave it out")
