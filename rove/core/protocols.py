"""Interfaces of models: `Client` answers requests, `InferenceEngine` generates tokens."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Annotated, Any, Protocol, runtime_checkable

import msgspec
from msgspec import Meta

from rove.core.checks import Settings, check_fields, raise_explained
from rove.core.errors import ConfigError, OverlongPromptError, as_json
from rove.core.messages import Message, Messages
from rove.core.plain import JsonMapping, JsonObject, MessageDict, ToolDefinition
from rove.core.ranges import (
    MAX_INT,
    AnyInt,
    Fraction,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveFraction,
    PositiveInt,
    Seconds,
)
from rove.core.records import StepTokens, Usage
from rove.core.state import State

MAX_BIAS = 100
"""Largest absolute value of a `logit_bias`, as in OpenAI's API and vLLM."""
TopK = Annotated[int, Meta(ge=-1, le=MAX_INT)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Bias = Annotated[float, Meta(ge=-MAX_BIAS, le=MAX_BIAS)]
RENDERER_ARGUMENTS = frozenset(
    {
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "conversation",
        "max_length",
        "messages",
        "padding",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "tokenize",
        "tokenizer_kwargs",
        "tools",
        "truncation",
    }
)
"""Names that `chat_template_kwargs` must not have: arguments of the function that renders templates."""
REQUESTER: ContextVar[str] = ContextVar("requester", default="")
"""The sender of the request that is being answered: the address of a server's client, or "" in a program's own code."""


class SamplingParams(msgspec.Struct, frozen=True):
    """Sampling parameters of a request. None means the client's default.

    The names are OpenAI's or, for parameters that OpenAI does not have, vLLM's. `rove.engine.sampler` documents how the
    embedded engine applies them.

    Example:
        >>> SamplingParams.from_args({"temperature": 0.7, "stop": "###"}).stop
        ['###']
    """

    temperature: NonNegativeFloat | None = None
    """Sampling temperature; 0 = greedy."""
    max_tokens: NonNegativeInt | None = None
    """Maximum tokens per response. 0 only scores the prompt (`prompt_logprobs`), on engines that support it."""
    top_p: PositiveFraction | None = None
    """Sample from the most likely tokens with this cumulative probability. 1 = off."""
    seed: AnyInt | None = None
    """Seed sent to endpoints; the embedded engine uses `Request.seed` instead."""
    stop: list[str] | None = None
    """Texts that end the answer; they are not included in it."""
    top_k: TopK | None = None
    """Sample from this many of the most likely tokens. 0 or -1 = off."""
    min_p: Fraction | None = None
    """Sample from tokens whose probability is at least this fraction of the highest probability. 0 = off."""
    repetition_penalty: PositiveFloat | None = None
    """Divide positive logits of tokens in the prompt and the answer by this number, and multiply negative logits by it. 1 =
    off."""
    presence_penalty: Penalty | None = None
    """Number that is subtracted from the logits of tokens that the answer already contains. 0 = off."""
    frequency_penalty: Penalty | None = None
    """Number that is subtracted from the logits of the answer's tokens, once per occurrence. 0 = off."""
    logit_bias: dict[NonNegativeInt, Bias] | None = None
    """Token id → number that is added to the token's logit."""
    stop_token_ids: list[NonNegativeInt] | None = None
    """Additional token ids that end the answer."""
    min_tokens: NonNegativeInt | None = None
    """Minimum number of tokens; only a length limit ends the answer earlier."""
    ignore_eos: bool | None = None
    """Continue after the model's end-of-sequence tokens."""
    logprobs: NonNegativeInt | None = None
    """Return the log-probability of each sampled token and of this many of the most likely tokens at its position."""
    prompt_logprobs: NonNegativeInt | None = None
    """Return the same log-probabilities for the tokens of the prompt."""
    response_format: JsonObject | None = None
    """JSON output in OpenAI's form: {"type": "json_schema", "json_schema": {"name": …, "schema": {…}}}."""
    structured_outputs: JsonObject | None = None
    """Constrained output in vLLM's form: one of {"json": schema}, {"regex": …}, {"choice": [texts]}, {"grammar": Lark}."""
    extra: JsonObject = {}
    """Additional fields of an endpoint's request body, sent unchanged."""

    @staticmethod
    def from_args(*args: Mapping[str, object] | None) -> SamplingParams:
        """Build sampling parameters from dicts with OpenAI's and vLLM's names; later dicts take precedence.

        The other forms of OpenAI's API are accepted: `max_completion_tokens`, a single text as `stop`, `logit_bias` with text
        keys, `logprobs: true` with `top_logprobs`. None means that a parameter is not set; unknown names go to `extra`.

        Raises:
            ConfigError: a value has the wrong type or is out of range.
        """
        values: dict[str, object] = {}
        for mapping in args:
            # One by one, so that a later `max_tokens` replaces an earlier `max_completion_tokens`.
            values |= _normalized(mapping or {})
        extra: dict[str, object] = {}
        for name in ("extra", "extra_body"):
            fields = values.pop(name, {})
            if not isinstance(fields, Mapping):
                raise ConfigError(
                    f"{name} is {as_json(fields)}; expected a dict of further fields for an endpoint's request"
                )
            extra |= fields
        unknown = {key: values.pop(key) for key in list(values) if key not in SamplingParams.__struct_fields__}
        values["extra"] = {**unknown, **extra}
        try:
            sampling = msgspec.convert(values, SamplingParams)
        except msgspec.ValidationError as error:
            raise_explained(error, values, SamplingParams)
        _check_combinations(sampling)
        return sampling

    def __post_init__(self) -> None:
        check_fields(self)


def _normalized(mapping: JsonMapping) -> JsonObject:
    """Return the sampling arguments that are set, in the names and forms of `SamplingParams` instead of OpenAI's other ones."""
    args = {name: value for name, value in mapping.items() if value is not None}
    if "max_completion_tokens" in args:
        args["max_tokens"] = args.pop("max_completion_tokens")
    if isinstance(args.get("stop"), str):
        args["stop"] = [args["stop"]]
    # OpenAI's chat API has a bool and a number, its completions API and vLLM have only the number.
    top_logprobs = args.pop("top_logprobs", None)
    if args.get("logprobs") is True:
        args["logprobs"] = top_logprobs or 0
    elif args.get("logprobs") is False:
        args["logprobs"] = None
    elif top_logprobs is not None:
        args["logprobs"] = top_logprobs
    if isinstance(args.get("logit_bias"), Mapping):
        try:
            args["logit_bias"] = {int(token): bias for token, bias in args["logit_bias"].items()}
        except (TypeError, ValueError) as error:
            raise ConfigError(f"logit_bias is {as_json(args['logit_bias'])}; expected token ids as its keys") from error
    return args


def _check_combinations(sampling: SamplingParams) -> None:
    if sampling.max_tokens == 0:  # the type allows it for requests of rove itself that only score a prompt
        raise ConfigError("max_tokens is 0; expected an integer, 1 or more")
    if "" in (sampling.stop or []):
        raise ConfigError(f"stop is {sampling.stop}; expected texts that are not empty")
    if sampling.max_tokens is not None and (sampling.min_tokens or 0) > sampling.max_tokens:
        raise ConfigError(f"min_tokens is {sampling.min_tokens}; expected max_tokens ({sampling.max_tokens}) or less")
    if sampling.response_format is not None and not isinstance(sampling.response_format.get("type"), str):
        raise ConfigError(
            f"response_format is {as_json(sampling.response_format)}; expected "
            '{"type": "json_schema", "json_schema": {"name": …, "schema": {…}}} or {"type": "json_object"}'
        )


class Limits(Settings, frozen=True, kw_only=True):
    """Limits of one rollout, in addition to those of its environment. None = no limit.

    A rollout that reaches a limit ends with the limit's stop condition and is scored.

    Example:
        >>> Limits(max_turns=5, timeout_seconds=60)

    Raises:
        ConfigError: A limit is out of range.
    """

    max_turns: PositiveInt | None = None
    """Maximum number of model turns."""
    max_total_tokens: PositiveInt | None = None
    """Maximum sum of prompt and completion tokens over all turns; checked before each turn."""
    max_cost: PositiveFloat | None = None
    """Maximum cost of the prompt and completion tokens over all turns, in the currency of the price; checked before each turn."""
    timeout_seconds: Seconds | None = None
    """Maximum wall time in seconds."""


class ToolChoice(msgspec.Struct, frozen=True):
    """A requirement that the model calls a tool."""

    names: tuple[str, ...]
    """Names of the allowed tools; at least one name."""
    parallel: bool = True
    """Whether several calls are allowed."""


class Token(msgspec.Struct, frozen=True):
    """One sampled token, reported as soon as it is sampled."""

    id: int
    logprob: float
    """Log-probability under the sampling distribution."""
    top: list[tuple[int, float]] | None = None
    """The most likely ids at the token's position with their log-probabilities, if `SamplingParams.logprobs` requests them."""
    text: str | None = None
    """New text that can no longer be part of a stop text, if there are stop texts."""


OnToken = Callable[[Token], None]


class Request(msgspec.Struct, frozen=True):
    """One request to a model: the whole conversation (or raw text), and the exact tokens of the last turn.

    Example:
        >>> Request([{"role": "user", "content": "Hi"}], SamplingParams(max_tokens=16))
    """

    messages: list[MessageDict]
    sampling_params: SamplingParams = SamplingParams()
    model: str = ""
    tools: list[ToolDefinition] | None = None
    tool_choice: ToolChoice | None = None
    """Required tool call. None = tool calls are optional."""
    add_generation_prompt: bool = True
    """Whether the chat template ends the prompt with the beginning of the assistant's turn."""
    chat_template_kwargs: JsonObject | None = None
    """Additional variables of the model's chat template, such as `enable_thinking`."""
    previous: StepTokens | None = None
    """Tokens of the rollout's last turn; a token-aware client extends them instead of tokenizing the history again."""
    seed: int = 0
    """Random seed of this request, derived from the rollout's seed and the turn."""
    state: State | None = None
    """State of the rollout, for scripted policies; never sent over a network."""
    text: str | None = None
    """A raw text to continue without a chat template. `messages` then only mark the role of each part."""
    on_text: Callable[[str], None] | None = None
    """Called on the event loop with each new piece of the answer's text, by clients that stream. The pieces together are a
    prefix of the text."""
    on_token: OnToken | None = None
    """Called on the event loop with each sampled token, before `on_text`, by clients that have tokens."""


def checked_template_kwargs(variables: JsonObject | None) -> JsonObject | None:
    """Return the variables of a chat template; None if there are none."""
    reserved = sorted(RENDERER_ARGUMENTS & (variables or {}).keys())
    if reserved:
        raise ConfigError(
            f"chat_template_kwargs has '{reserved[0]}'; expected variables of the model's chat template: leave it out"
        )
    return variables or None


class Response(msgspec.Struct, frozen=True):
    """The answer to a `Request`."""

    message: Message
    usage: Usage = Usage()
    finish_reason: str = "stop"
    """"stop", "length" or "tool_calls"."""
    tokens: StepTokens | None = None
    """Exact tokens, if the client knows them."""
    attempts: list[str] = []
    """One line per failed attempt before this answer, oldest first."""
    top_logprobs: list[list[tuple[int, float]]] | None = None
    """For each sampled token, the most likely ids at its position, if `SamplingParams.logprobs` requests them."""
    prompt_logprobs: list[float] | None = None
    """Log-probability of each prompt token after the first, at temperature 1, if `SamplingParams.prompt_logprobs` requests it."""
    prompt_top_logprobs: list[list[tuple[int, float]]] | None = None
    """For each of the tokens in `prompt_logprobs`, the most likely ids at its position."""

    @staticmethod
    def of(
        message: Message, prompt_ids: list[int], generation: Generation, finish_reason: str | None = None
    ) -> Response:
        """Return the response for a generation of an engine; `finish_reason` overrides the generation's own."""
        return Response(
            message,
            Usage(len(prompt_ids), len(generation.ids)),
            finish_reason or generation.finish_reason,
            StepTokens(
                prompt_ids, generation.ids, generation.logprobs, generation.policy_version, generation.version_spans
            ),
            top_logprobs=generation.top_logprobs,
            prompt_logprobs=generation.prompt_logprobs,
            prompt_top_logprobs=generation.prompt_top_logprobs,
        )


@runtime_checkable
class Client(Protocol):
    """Answers model requests: an endpoint, a scripted policy or an engine in this process.

    Example:
        A client that repeats the last message::

            class Echo:
                max_concurrent = 8

                async def respond(self, request):
                    return Response(AssistantMessage(request.messages[-1]["content"]))

                async def close(self):
                    pass
    """

    @property
    def max_concurrent(self) -> int:
        """Recommended number of concurrent requests."""
        ...

    async def respond(self, request: Request) -> Response:
        """Answer one request.

        Raises:
            ModelError: The model returned no usable response.
            InfraError: The endpoint or the machine failed after all retries.
        """
        ...

    async def close(self) -> None:
        """Close connections and free memory."""
        ...


class OpenAISDKClient(Protocol):
    """An `openai.AsyncOpenAI` object, from which rove takes the address and the key."""

    @property
    def chat(self) -> object:
        """The chat API."""
        ...

    @property
    def base_url(self) -> object:
        """Address of the API."""
        ...

    @property
    def api_key(self) -> str:
        """Key of the API."""
        ...


AnyClient = Client | OpenAISDKClient
"""Objects that rove's functions accept as a client."""
Answer = str | JsonMapping
"""The result of a scripted policy: a text or an assistant message."""
ScriptedPolicy = Callable[[Messages, State, random.Random], Answer | Awaitable[Answer]]
"""A function that answers instead of a model; see `rove.ScriptedClient`."""


class Generation(msgspec.Struct, frozen=True):
    """Tokens sampled for one prompt."""

    ids: list[int]
    """Sampled ids, including the stop token or all tokens of a stop text."""
    logprobs: list[float]
    """Log-probability of each token under the sampling distribution (see `rove.engine.sampler`)."""
    finish_reason: str
    """"stop" or "length"."""
    policy_version: int
    """Version of the weights that sampled the first token."""
    top_logprobs: list[list[tuple[int, float]]] | None = None
    """For each token, the most likely ids at its position with their log-probabilities; None if not requested."""
    prompt_logprobs: list[float] | None = None
    """Log-probability of each prompt token after the first, at temperature 1; None if not requested."""
    prompt_top_logprobs: list[list[tuple[int, float]]] | None = None
    """For each of the tokens in `prompt_logprobs`, the most likely ids at its position."""
    text: str | None = None
    """Text of the ids, cut before the stop text that ended the generation; None if the request had no stop texts."""
    stopped_by: str | int | None = None
    """The stop text or the token id that ended the generation."""
    version_spans: list[tuple[int, int]] = []
    """If the weights changed during generation: each version, oldest first, and the number of tokens that it sampled."""


@runtime_checkable
class InferenceEngine(Protocol):
    """Generates token ids from token ids, with weights that can be replaced at any time."""

    @property
    def policy_version(self) -> int:
        """Version of the newest weights."""
        ...

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        seed: int = 0,
        on_token: OnToken | None = None,
        adapter: str | None = None,
    ) -> Generation:
        """Sample a continuation of `prompt_ids`.

        Args:
            prompt_ids: Tokens of the prompt.
            sampling: Sampling parameters.
            seed: Random seed of this request.
            on_token: Called with each token as it is sampled.
            adapter: Name of a loaded adapter. Default: the model without an adapter.
        """
        ...

    def score(self, ids: Sequence[int], temperature: float = 1.0) -> list[float]:
        """Return the log-probability of each of `ids[1:]` given the tokens before it."""
        ...

    def update_weights(self, version: int, weights: Mapping[str, Any] | None = None) -> None:
        """Load new weights (None: they were changed in place) and drop the caches of the old weights.

        Running requests either fail or finish with their current caches.
        """
        ...


def available_tokens(prompt_ids: Sequence[int], vocab: int, context: int, min_new_tokens: int = 1) -> int:
    """Return the number of tokens that may follow a prompt.

    Args:
        context: Maximum number of tokens of prompt and answer together.
        min_new_tokens: Number of tokens that must fit after the prompt; 0 if the prompt is only scored.
    """
    if len(prompt_ids) == 0:
        raise ConfigError("the prompt has no tokens; expected at least one")
    if min(prompt_ids) < 0 or max(prompt_ids) >= vocab:  # on a GPU, this would make the whole process unusable
        wrong = next(token for token in prompt_ids if not 0 <= token < vocab)
        raise ConfigError(f"the prompt has token {wrong}; expected ids from 0 to {vocab - 1}, the model's vocabulary")
    available = context - len(prompt_ids)
    if available < min_new_tokens:
        raise OverlongPromptError(
            f"the prompt has {len(prompt_ids)} tokens, the context is {context}; expected at most {context - min_new_tokens}: "
            "shorten the prompt"
        )
    return available
