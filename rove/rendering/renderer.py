"""Messages (by the model's own chat template) or texts to tokens and back; no sampled token is ever tokenised again.

Tool calls are read from what the model wrote and rendered as it would write them: see `rove.rendering.tool_calls`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol, TypeVar

import msgspec

from rove.core.errors import ConfigError, OverlongPromptError
from rove.core.messages import AssistantMessage, Message, text_of
from rove.core.protocols import OnToken, Request, Token
from rove.core.records import StepTokens
from rove.rendering.tool_calls import Format, calls_of, format_of, read_calls, sure_of

T = TypeVar("T")
SAMPLED = "sampled_text"
"""The key of an assistant message with tool calls that holds them as the model wrote them."""
REMEMBERED = 1024
"""Conversations that a renderer remembers as text, and texts as ids and back: siblings, and games that go alike, ask again."""
SHORT = 4096
"""Bytes, characters or tokens; what is longer is not remembered."""


class Tokenizer(Protocol):
    """What the renderer needs of a tokenizer; a `transformers` fast tokenizer has it."""

    bos_token_id: int | None
    eos_token_id: int | None

    def apply_chat_template(self, conversation: Any, **kwargs: Any) -> Any:
        """Render a conversation as text."""
        ...

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Text to ids."""
        ...

    def decode(self, token_ids: Any, *, skip_special_tokens: bool, clean_up_tokenization_spaces: bool) -> Any:
        """Ids to text."""
        ...


class Renderer:
    """Renders conversations with a tokenizer's chat template, and raw texts without it.

    Args:
        tokenizer: with a chat template; for raw texts it need not have one.
        stop_ids: tokens that end the model's turn; the tokenizer's end-of-sequence token is always one of them.
    """

    def __init__(self, tokenizer: Tokenizer, stop_ids: Sequence[int] = ()):
        self.tokenizer = tokenizer
        eos = [tokenizer.eos_token_id] if tokenizer.eos_token_id is not None else []
        self.stop_ids = frozenset([*stop_ids, *eos])
        self._texts: dict[Hashable, str] = {}
        self._encoded: dict[Hashable, list[int]] = {}
        self._decoded: dict[Hashable, str] = {}

    @property
    def template(self) -> str:
        """The chat template, or all of them; "" when there is none."""
        template = getattr(self.tokenizer, "chat_template", None) or ""
        return "\n".join(template.values()) if isinstance(template, Mapping) else template

    @property
    def tool_format(self) -> Format | None:
        """How the model writes tool calls; None when its template does not show any."""
        return format_of(self.template)

    def text(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Any = None,
        generation_prompt: bool = True,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """The conversation as the template writes it.

        A message of role "developer" is the system's where the template does not know that role.

        Raises:
            ConfigError: there are tools, and the model's template shows none, or not in a way known here; a message has other
                parts than text; there is no template, or it refuses these messages.
        """
        if tools and self.tool_format is None:
            raise ConfigError(
                "tools are given, but the model's chat template shows no way to call them that is known here "
                "(Hermes/Qwen, Llama 3, LFM2, Mistral); use another model, or no tools"
            )
        if not self.template:
            raise ConfigError(
                "the model has no chat template, so that it cannot read messages; let it continue a text: "
                'message_type="completion", over HTTP /v1/completions'
            )
        variables = {**(template_kwargs or {}), "add_generation_prompt": generation_prompt}
        key = self._key(messages, tools, variables)
        return _remembered(self._texts, key, lambda: self._render(messages, tools, variables))

    def _key(self, messages: Sequence[Mapping[str, Any]], tools: Any, variables: Mapping[str, Any]) -> Hashable:
        """What decides the text; None when something else does, too, or it is long."""
        if "strftime_now" in self.template:
            return None
        try:
            told = msgspec.json.encode((messages, tools, variables))
        except (TypeError, ValueError):
            return None
        return (self.template, told) if len(told) <= SHORT else None

    def _render(self, messages: Sequence[Mapping[str, Any]], tools: Any, variables: Mapping[str, Any]) -> str:
        told = [self._as_rendered(message) for message in messages]
        try:
            return self.tokenizer.apply_chat_template(told, tools=tools or None, tokenize=False, **variables)
        except Exception as error:  # a template is a program, often with checks of its own
            roles = [message["role"] for message in messages]
            raise ConfigError(
                f"the model's chat template refuses messages of the roles {', '.join(roles)}: {type(error).__name__}: {error}; "
                "expected a conversation that it can write"
            ) from error

    @cached_property
    def longest_token(self) -> int:
        """Characters of the longest token; 0 where the tokenizer does not show its vocabulary."""
        vocabulary = getattr(self.tokenizer, "get_vocab", dict)()
        return max(map(len, vocabulary), default=0)

    def check_length(self, text: str, context: int | None) -> None:
        """Refuse a text that so many tokens cannot hold, before it is tokenised: of megabytes that takes seconds.

        Raises:
            OverlongPromptError: it has more characters than a context full of the longest token.
        """
        if context is None or len(text) <= context or not self.longest_token:
            return
        most = context * self.longest_token
        if len(text) > most:
            raise OverlongPromptError(
                f"the prompt has {len(text):,} characters, the model's context is {context:,} tokens of at most "
                f"{self.longest_token} characters; expected fewer than {most:,} characters: shorten the prompt"
            )

    def encode(self, text: str) -> list[int]:
        """Ids of a text in which special tokens are already written out."""
        key = text if len(text) <= SHORT else None
        return [*_remembered(self._encoded, key, lambda: self.tokenizer.encode(text, add_special_tokens=False))]

    def special_token(self, text: str) -> int | None:
        """Return the id of the special token with this text; None for any other text."""
        ids, added = self.encode(text), getattr(self.tokenizer, "added_tokens_decoder", {})
        return ids[0] if len(ids) == 1 and getattr(added.get(ids[0]), "special", False) else None

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, special tokens written out."""
        told = list(ids)
        return _remembered(
            self._decoded,
            tuple(told) if len(told) <= SHORT else None,
            lambda: self.tokenizer.decode(told, skip_special_tokens=False, clean_up_tokenization_spaces=False),
        )

    def prompt_ids(
        self,
        messages: Sequence[Mapping[str, Any]],
        previous: StepTokens | None = None,
        tools: Any = None,
        context: int | None = None,
        generation_prompt: bool = True,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Ids of the conversation up to where the model speaks.

        When the conversation continues `previous`, its ids are kept as they were sampled and only what follows them is
        tokenised. When it does not (the template rewrites history, or the environment edited it) everything is
        tokenised afresh, which starts a new branch.

        Raises:
            ConfigError: see `text`.
            OverlongPromptError: see `check_length`; only where `context`, the tokens that the model takes, is given.
        """
        text = self.text(messages, tools, generation_prompt, template_kwargs)
        self.check_length(text, context)
        if previous is not None:
            said = self.decode(previous.ids)
            if text.startswith(said):
                return previous.ids + self.encode(text[len(said) :])
        return self.encode(text)

    def read(
        self, completion_ids: Sequence[int], tools: Sequence[Mapping[str, Any]] | None = None, before: int = 0
    ) -> Message:
        """The assistant message that sampled ids say; the end-of-turn token is not part of it. Arguments: see `message`."""
        return self.message(self.decode(self._without_end(completion_ids)), tools, before)

    def message(self, text: str, tools: Sequence[Mapping[str, Any]] | None = None, before: int = 0) -> Message:
        """The assistant message that a sampled text is.

        Args:
            text: as the model wrote it.
            tools: that could be called, in chat form; without any nothing is taken for a call.
            before: tokens of the prompt; turns that say the same then still have calls with different ids.
        """
        if tools and self.tool_format is not None:
            names = [tool.get("function", {}).get("name") for tool in tools]
            beside, calls = read_calls(text, self.tool_format, names, before)
            if calls:
                return AssistantMessage(beside or None, tool_calls=calls, **{SAMPLED: text})
        return AssistantMessage(text)

    def text_ids(self, text: str, previous: StepTokens | None = None, context: int | None = None) -> list[int]:
        """Ids of a raw text up to where the model goes on, after a beginning-of-sequence token if the tokenizer wants one.

        When the text continues `previous`, its ids are kept as they were sampled, but for a sampled end, which is no part
        of the text: only if there was one does the next turn start a new branch.

        Raises:
            OverlongPromptError: see `check_length`; only where `context`, the tokens that the model takes, is given.
        """
        self.check_length(text, context)
        begin = self.tokenizer.encode("", add_special_tokens=True)[:1]
        begin = begin if begin == [self.tokenizer.bos_token_id] else []
        if previous is not None:
            ids = previous.prompt_ids + self._without_end(previous.completion_ids)
            said = self.decode(ids[len(begin) :])
            if text.startswith(said):
                return ids + self.encode(text[len(said) :])
        return begin + self.encode(text)

    def read_text(self, prompt_ids: Sequence[int], completion_ids: Sequence[int]) -> Message:
        """The text that sampled ids add to that of the prompt, said by the assistant."""
        # Together, because some tokenizers drop a space at the start of what they decode.
        before, ids = self.decode(prompt_ids), self._without_end(completion_ids)
        whole = self.decode([*prompt_ids, *ids])
        return AssistantMessage(whole[len(before) :] if whole.startswith(before) else self.decode(ids))

    def training_branches(
        self, messages: Sequence[Mapping[str, Any]], tools: Any = None, said_at: Collection[int] | None = None
    ) -> list[tuple[list[int], list[bool]]]:
        """A finished conversation as (ids, mask) pairs, the mask true on what the assistant said and its end of turn.

        Of the assistant's messages only those in the places `said_at` count as such, where these are given.

        The ids are those that sampling the conversation turn by turn would have produced. A turn whose prompt does not
        extend the turn before it starts another pair. What follows the last assistant message is left out.
        """
        branches: list[tuple[list[int], list[bool]]] = []
        said = ""
        for i, message in enumerate(messages):
            if message["role"] != "assistant" or (said_at is not None and i not in said_at):
                continue
            prompt = self.text(messages[:i], tools)
            answer = self._answer_text(prompt, messages[: i + 1], tools)
            if not branches or not prompt.startswith(said):
                branches.append(([], []))
                said = ""
            ids, mask = branches[-1]
            for text, trained in ((prompt[len(said) :], False), (answer, True)):
                new = self.encode(text)
                ids += new
                mask += [trained] * len(new)
            said = prompt + answer
        return branches

    def _as_rendered(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        """A message as the template has to see it so that its calls come out as the model writes them."""
        message = self._in_words(message)
        calls = calls_of(message)
        if not calls or message["role"] != "assistant":
            return message
        how, sampled = self.tool_format, message.get(SAMPLED)
        if how is not None and isinstance(sampled, str):
            beside, told = read_calls(sampled, how, [call.name for call in calls])
            if beside == text_of(message) and calls_of({"tool_calls": told}) == calls:
                return {"role": "assistant", "content": sampled}  # nobody has edited it since
        if how is not None and "tool_calls" not in self.template:
            return {"role": "assistant", "content": text_of(message) + how.write(calls)}
        given = [
            {**told, "function": {"name": call.name, "arguments": call.arguments}}  # templates want no JSON text
            for told, call in zip(message["tool_calls"], calls, strict=True)
        ]
        return {**message, "content": message.get("content") or "", "tool_calls": given}

    def _in_words(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        """A message with one text as its content, and a role that the template knows."""
        content = message.get("content")
        if isinstance(content, list):
            kinds = [part.get("type", "text") for part in content if not isinstance(part, str)]
            other = [kind for kind in kinds if kind != "text"]
            if other:
                raise ConfigError(
                    f"a message has a part of type '{other[0]}'; expected 'text': this model reads nothing else"
                )
            message = {**message, "content": text_of(message)}
        elif content is None:
            message = {**message, "content": ""}
        if message["role"] == "developer" and "developer" not in self.template:
            message = {**message, "role": "system"}
        return message

    def _without_end(self, completion_ids: Sequence[int]) -> list[int]:
        ended = len(completion_ids) > 0 and completion_ids[-1] in self.stop_ids
        return list(completion_ids[:-1] if ended else completion_ids)

    def _answer_text(self, prompt: str, messages: Sequence[Mapping[str, Any]], tools: Any) -> str:
        """What the model would have to sample to say the last message: its text and the end-of-turn token."""
        whole = self.text(messages, tools, generation_prompt=False)
        answer = whole[len(prompt) :] if whole.startswith(prompt) else str(messages[-1].get("content") or "")
        eos = self.tokenizer.eos_token_id
        ends = [self.decode([stop]) for stop in sorted(self.stop_ids, key=lambda stop: (stop != eos, stop))]
        cut = max(((answer.rfind(end), end) for end in ends if end in answer), default=None)
        if cut is not None:
            return answer[: cut[0]] + cut[1]
        return answer + (ends[0] if ends else "")


def _remembered(memory: dict[Hashable, T], key: Hashable, make: Callable[[], T]) -> T:
    """What is remembered under a key, or is made, and remembered in place of the oldest; without a key it is always made."""
    if key is None:
        return make()
    if key not in memory:
        memory[key] = make()
        if len(memory) > REMEMBERED:
            del memory[next(iter(memory))]
    return memory[key]


class IncrementalDetokenizer:
    """Tells the text of tokens that come one by one, each piece as soon as no further token can change it.

    The pieces together are the beginning of what `Renderer.read` (with `before`: `Renderer.read_text`) says of all of them;
    with stop texts, of the text that they cut.

    Args:
        renderer: of the model that speaks.
        tell: called with each piece.
        before: the prompt's ids, where its text goes on; some tokenizers begin a text otherwise than they continue it.
    """

    def __init__(self, renderer: Renderer, tell: Callable[[str], None], before: Sequence[int] = ()):
        self._renderer = renderer
        self._tell = tell
        self._ids = list(before[-8:])
        self._start = 0  # what is decoded begins here: a little before what is new, so that its cost does not grow
        self._told = len(self._ids)

    @staticmethod
    def of(renderer: Renderer, request: Request, before: Sequence[int] = ()) -> OnToken | None:
        """What to call with each token so that those who listen to a request are told; None if nobody does.

        Text that may turn out to be a tool call is not told.
        """
        on_token, on_text = request.on_token, request.on_text
        if on_text is None:
            return on_token
        if request.tools and renderer.tool_format is not None:
            on_text = _beside_calls(on_text, renderer.tool_format)
        speech = IncrementalDetokenizer(renderer, on_text, before)
        if on_token is None:
            return speech

        def both(token: Token) -> None:
            on_token(token)
            speech(token)

        return both

    def __call__(self, token: Token) -> None:
        """The next token."""
        if token.text is not None:  # whoever looks out for stop texts knows it already
            if token.text:
                self._tell(token.text)
            return
        self._ids.append(token.id)
        if token.id in self._renderer.stop_ids:  # no part of the text if it is the last
            return
        known = self._renderer.decode(self._ids[self._start : self._told])
        text = self._renderer.decode(self._ids[self._start :])
        if text.endswith("\ufffd") or not text.startswith(known):  # the rest of a character is still to come
            return
        self._start, self._told = self._told, len(self._ids)
        if len(text) > len(known):
            self._tell(text[len(known) :])


def _beside_calls(tell: Callable[[str], None], how: Format) -> Callable[[str], None]:
    """What to call with the pieces of an answer so that `tell` is told those that are no tool call for sure."""
    text, told = "", 0

    def hear(piece: str) -> None:
        nonlocal text, told
        text += piece
        sure = sure_of(text, how)
        if sure > told:
            tell(text[told:sure])
            told = sure

    return hear
