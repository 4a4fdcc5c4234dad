"""What the APIs share where we are the one who is asked: the options, the questions, log-probabilities, errors."""

from __future__ import annotations

import random
import re
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Annotated, Any, TypeVar

import msgspec

from rove.core.errors import ConfigError
from rove.core.messages import text_of
from rove.core.protocols import Request, Response, SamplingParams, ToolChoice
from rove.core.records import Usage
from rove.wire.common import excerpt

MAX_CHOICES = 128
"""Most answers to one prompt in one HTTP request."""

IGNORED = frozenset(
    ("user", "metadata", "store", "service_tier", "parallel_tool_calls", "safety_identifier", "prompt_cache_key")
)
"""Fields that say nothing about the answer; everything else we do not know goes on to the client unchanged."""
HARMLESS: dict[str, Any] = {"modalities": ["text"], "functions": []}
"""Fields that with this value ask for nothing."""
ONLY_ENDPOINTS = frozenset(("reasoning_effort",))
"""Fields that mean something to some endpoints; a model folder's engine answers without them."""

AtLeastOne = Annotated[int, msgspec.Meta(ge=1)]
StopText = Annotated[str, msgspec.Meta(max_length=1000)]
"""Every character of it is looked for after every token."""


class StreamOptions(msgspec.Struct):
    """How to stream."""

    include_usage: bool = False


class Options(msgspec.Struct, kw_only=True):
    """The fields that chat completions and completions have in common."""

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


class Question(msgspec.Struct, frozen=True):
    """One answer that is wanted."""

    request: Request
    prompt_ids: list[int] | None = None
    """The prompt, where it came as token ids; the request then has neither messages nor a text."""


class Asked(msgspec.Struct, frozen=True):
    """What one HTTP request asks for."""

    model: str
    """As it was named; "" when it was not."""
    questions: list[Question]
    """One for each choice of the answer, in their order."""
    n: int = 1
    """Neighbouring choices that share a prompt."""
    stream: bool = False
    include_usage: bool = False
    """Whether a stream ends with token counts."""
    logprobs: int | None = None
    """None: no log-probabilities; else those of the sampled tokens, and of so many of the most likely ones."""
    echo: bool = False
    """Whether each choice begins with its prompt."""
    prompt_logprobs: bool = False
    """Whether the log-probabilities of the prompt's tokens are returned."""
    return_token_ids: bool = False
    """Whether the ids of the prompt's and the sampled tokens are returned."""
    by_token: bool = False
    """Whether the pieces of a stream are single tokens, without their text."""
    fields: frozenset[str] = frozenset()
    """That its API knows."""
    api: str = ""
    """"responses" or "anthropic", whose streams are of named events and whose errors have shapes of their own; "" = another."""


class Head(msgspec.Struct, frozen=True):
    """What every piece of one answer repeats."""

    id: str
    model: str
    created: int


class TokenLogprob(msgspec.Struct, frozen=True):
    """A sampled token as text, its log-probability, and the likeliest tokens in its place, if they were asked for."""

    token: str
    logprob: float | None
    """None for a prompt's first token."""
    top: Sequence[TokenLogprob] = ()
    id: int = -1
    offset: int = 0
    """Characters of the answer's tokens before it."""


T = TypeVar("T", bound=msgspec.Struct)


def new_head(prefix: str, model: str) -> Head:
    """The head of a new answer; `prefix` is how ids of its API begin."""
    return Head(f"{prefix}-{uuid.uuid4().hex}", model, int(time.time()))


def read_body(body: Any, kind: type[T]) -> T:
    """A decoded body as its typed fields.

    Raises:
        ConfigError: a field is missing, out of range or of the wrong type; the message says which.
    """
    if not isinstance(body, dict):
        raise ConfigError(f"the body is {excerpt(body, 100)}; expected a JSON object")
    try:
        return msgspec.convert(body, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{error}; given: {_given(body, str(error))}") from error


def _given(body: Any, error: str) -> str:
    """What stands at the path that msgspec's error names, such as "… - at `$.messages[0]`"."""
    path = re.search(r"`\$([^`]*)`$", error)
    for name, index in re.findall(r"\.(\w+)|\[(\d+)\]", path[1] if path else ""):
        try:
            body = body[name] if name else body[int(index)]
        except (LookupError, TypeError):
            break
    return excerpt(msgspec.json.encode(body), 100)


def sampling_of(body: Mapping[str, Any], options: msgspec.Struct, **fields: Any) -> SamplingParams:
    """How to sample: the options' own fields, those of the body that no struct of ours names, and `fields`.

    Raises:
        ConfigError: one of them is out of range. `max_tokens` may be 0 where the options' type allows it.
    """
    known = {*options.__struct_fields__, *IGNORED}
    known |= {name for name, value in HARMLESS.items() if body.get(name) == value}
    further = {name: value for name, value in body.items() if name not in known}
    given = {name: getattr(options, name, None) for name in _SAMPLING}
    if given["max_tokens"] == 0 and given["max_completion_tokens"] is None:
        sampling = SamplingParams.from_args(further, {**given, "max_tokens": None}, fields)
        return msgspec.structs.replace(sampling, max_tokens=0, min_tokens=None)
    return SamplingParams.from_args(further, given, fields)


def prompt_logprobs_of(options: TokenOptions) -> int | None:
    """Return how many of the likeliest tokens are wanted for each token of the prompt; None = no log-probabilities.

    Raises:
        ConfigError: they are wanted in a stream.
    """
    if options.prompt_logprobs is not None and options.stream:
        raise ConfigError(
            f"prompt_logprobs is {options.prompt_logprobs} and stream is true; expected one of them: streams have no "
            "log-probabilities of the prompt"
        )
    return options.prompt_logprobs


def fields_of(options: msgspec.Struct) -> frozenset[str]:
    """The fields that an API with these options knows: its own, and those of sampling."""
    return frozenset((*options.__struct_fields__, *SamplingParams.__struct_fields__, *IGNORED)) - {"extra"}


def check_known(asked: Asked) -> Asked:
    """The same without what only some endpoints know.

    Raises:
        ConfigError: it has a field that its API does not know; the message names the nearest one.
    """
    questions = []
    for question in asked.questions:
        request = question.request
        extra = request.sampling_params.extra
        unknown = sorted(extra.keys() - ONLY_ENDPOINTS)
        if unknown:
            close = get_close_matches(unknown[0], sorted(asked.fields), n=1)
            mean = f"did you mean '{close[0]}'? Else leave it out" if close else "leave it out"
            raise ConfigError(f"no field '{excerpt(unknown[0], 100)}' here; {mean}. docs/serving.md lists all fields")
        if extra:
            sampling = msgspec.structs.replace(request.sampling_params, extra={})
            question = msgspec.structs.replace(
                question, request=msgspec.structs.replace(request, sampling_params=sampling)
            )
        questions.append(question)
    return msgspec.structs.replace(asked, questions=questions)


def questions_of(question: Question, n: int | None) -> list[Question]:
    """`n` questions that differ in their random stream only: seeds count up from the one given, else from any."""
    request = question.request
    given = request.sampling_params.seed
    start = random.getrandbits(62) if given is None else given
    made = []
    for i in range(n or 1):
        sampling = (
            request.sampling_params
            if given is None
            else msgspec.structs.replace(request.sampling_params, seed=given + i)
        )
        one = msgspec.structs.replace(request, sampling_params=sampling, seed=start + i)
        made.append(msgspec.structs.replace(question, request=one))
    return made


def usage_of(responses: Sequence[Response], n: int) -> Usage:
    """What an answer with these choices took: each prompt counts once, however many choices share it."""
    prompts = sum(response.usage.prompt_tokens for response in responses[::n])
    return Usage(prompts, sum(response.usage.completion_tokens for response in responses))


def usage_body(usage: Usage) -> dict[str, int]:
    """Token counts in OpenAI's words."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def logprobs_content(tokens: Iterable[TokenLogprob]) -> list[dict[str, Any]]:
    """Log-probabilities as chat completions and the Responses API list them."""

    def entry(one: TokenLogprob) -> dict[str, Any]:
        # A part of a character is no text, and which bytes it has is not known here.
        known = None if "\ufffd" in one.token else list(one.token.encode())
        return {"token": one.token, "logprob": one.logprob, "bytes": known}

    return [{**entry(token), "top_logprobs": [entry(other) for other in token.top]} for token in tokens]


def prompt_logprobs_body(tokens: Iterable[TokenLogprob]) -> list[dict[str, Any] | None]:
    """A prompt's log-probabilities in vLLM's shape: token id → log-probability; null for the first token.

    The rank of a token that is not among the requested likeliest ones is null.
    """
    body: list[dict[str, Any] | None] = []
    for token in tokens:
        if token.logprob is None:
            body.append(None)
            continue
        ranks = {one.id: rank for rank, one in enumerate(token.top, start=1)}
        entries = {one.id: one for one in (token, *token.top)}
        body.append(
            {
                str(id): {"logprob": one.logprob, "rank": ranks.get(id), "decoded_token": one.token}
                for id, one in entries.items()
            }
        )
    return body


def token_ids_of(responses: Sequence[Response]) -> tuple[list[list[int] | None], list[list[int] | None]]:
    """Return the token ids of each prompt and of each completion; None where the client has no tokens."""
    tokens = [response.tokens for response in responses]
    return (
        [None if one is None else list(one.prompt_ids) for one in tokens],
        [None if one is None else list(one.completion_ids) for one in tokens],
    )


def rest_of(response: Response, told: str) -> str:
    """The text of an answer after the beginning that was told before it ended; all that can be told truly."""
    text = text_of(response.message)
    return text[len(told) :] if text.startswith(told) else ""


def error_body(message: str, type: str = "invalid_request_error", code: str | None = None) -> dict[str, Any]:
    """An error in OpenAI's shape."""
    return {"error": {"message": message, "type": type, "param": None, "code": code}}


def tool_choice_of(
    given: Any, tools: Sequence[Mapping[str, Any]] | None, parallel: bool | None = None
) -> ToolChoice | None:
    """Return which tools must be called, according to OpenAI's `tool_choice`; None if none must.

    Args:
        given: None, "none", "auto", "required", or a named function as chat completions or the Responses API write it.
        tools: in chat form.
        parallel: whether several calls are allowed. Default: yes for "required", no for a named function.

    Raises:
        ConfigError: it is something else, or names a tool that is not given.
    """
    if given in (None, "none", "auto"):
        return None
    names = [tool["function"]["name"] for tool in tools or []]
    if given == "required":
        if not names:
            raise ConfigError('tool_choice is required without tools; expected tools next to it, or tool_choice "auto"')
        return ToolChoice(tuple(names), parallel is not False)
    name = None
    if isinstance(given, Mapping) and given.get("type") == "function":
        function = given.get("function", given)
        name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str):
        raise ConfigError(
            f'tool_choice is {excerpt(given)}; expected "none", "auto", "required", or '
            '{"type": "function", "function": {"name": …}}'
        )
    if name not in names:
        raise ConfigError(
            f"tool_choice names '{name}'; expected the name of a tool: {', '.join(names) or 'none given'}"
        )
    return ToolChoice((name,), False)


def refuse(body: Mapping[str, Any], fields: Iterable[str], why: str) -> None:
    """Refuse fields that ask for something, as all do but null, false and "".

    Raises:
        ConfigError: one of them does.
    """
    for name in fields:
        if body.get(name) not in (None, "") and body[name] is not False:
            raise ConfigError(f"{name} is {excerpt(body[name])}, but {why}; leave it out")
