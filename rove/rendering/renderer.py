"""Convert messages (with the model's chat template) or texts to tokens and back, without retokenizing sampled tokens.

`rove.rendering.tool_calls` parses tool calls from the model's text and writes them in its format.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from functools import cache, cached_property
from typing import Any, Protocol, TypeVar, cast

import msgspec

from rove.core.errors import ConfigError, OverlongPromptError
from rove.core.messages import AssistantMessage, Message, text_of
from rove.core.plain import JsonMapping, is_mapping
from rove.core.records import StepTokens
from rove.rendering.prompt_checks import (
    TextForm,
    check_first_prompt,
    check_text_parts,
    detect_text_form,
    with_text_part,
)
from rove.rendering.reasoning import (
    OPENED,
    ReasoningForm,
    after_empty_reasoning,
    detect_reasoning_form,
    in_form,
    sampled_after_opened,
)
from rove.rendering.template_settings import OWN_TEMPLATE, TemplateSettings, no_template
from rove.rendering.tool_calls import (
    NO_SCHEMAS,
    Format,
    Schemas,
    accepted_id,
    calls_of,
    read_calls,
    schemas_of,
)
from rove.rendering.tool_support import READ_FORMATS, ToolSupport, detect_tool_support
from rove.rendering.turn_ends import TurnEnds, detect_closing, opening_after

T = TypeVar("T")
SAMPLED = "sampled_text"
"""Key of an assistant message with tool calls; its value is the model's original text."""
CACHE_SIZE = 1024
"""Maximum number of entries per cache; a cache helps because group members repeat conversations."""
MAX_CACHED_LENGTH = 4096
"""Maximum length of a cached value in bytes, characters or tokens."""


class Tokenizer(Protocol):
    """Tokenizer methods that the renderer uses, as in a `transformers` fast tokenizer."""

    bos_token_id: int | None
    eos_token_id: int | None

    def apply_chat_template(self, conversation: object, **kwargs: Any) -> Any:
        """Render a conversation as text."""
        ...

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Convert text to ids."""
        ...

    def decode(self, token_ids: object, *, skip_special_tokens: bool, clean_up_tokenization_spaces: bool) -> Any:
        """Convert ids to text."""
        ...

    def convert_ids_to_tokens(self, ids: object, /) -> Any:
        """Return the name of an id in the vocabulary."""
        ...


class Renderer:
    """Renders conversations with a tokenizer's chat template, and raw texts without it.

    Example:
        >>> renderer = Renderer(tokenizer)
        >>> ids = renderer.prompt_ids([{"role": "user", "content": "Hi"}])

    Args:
        tokenizer: Tokenizer; raw texts need no chat template.
        stop_ids: Tokens that end the model's turn in addition to the tokenizer's end-of-sequence token.
        settings: Variables of the template. The tokenizer already has the template of the settings.
    """

    def __init__(self, tokenizer: Tokenizer, stop_ids: Sequence[int] = (), settings: TemplateSettings = OWN_TEMPLATE):
        self.tokenizer = tokenizer
        self.settings = settings
        eos = [tokenizer.eos_token_id] if tokenizer.eos_token_id is not None else []
        self._given_stop_ids = frozenset([*stop_ids, *eos])
        self._texts: dict[Hashable, str] = {}
        self._encoded: dict[Hashable, list[int]] = {}
        self._decoded: dict[Hashable, str] = {}
        self._tool_support: dict[str, ToolSupport] = {}
        self._reasoning_forms: dict[str, ReasoningForm] = {}
        self._ends_by_template: dict[str, TurnEnds] = {}
        self._text_forms: dict[str, TextForm] = {}

    @property
    def stop_ids(self) -> frozenset[int]:
        """Tokens that end the model's turn, always including the token that the chat template writes there."""
        return self._turn_ends.stop_ids

    @property
    def end_ids(self) -> frozenset[int]:
        """The `stop_ids`, and the tokens that may precede them at the end of a turn."""
        return self._turn_ends.end_ids

    @property
    def _turn_ends(self) -> TurnEnds:
        template = self.template
        if template not in self._ends_by_template:
            self._ends_by_template[template] = self._detect_turn_ends(template)
        return self._ends_by_template[template]

    def _detect_turn_ends(self, template: str) -> TurnEnds:
        if not template:
            return TurnEnds([], self._given_stop_ids, self._given_stop_ids)
        closing = detect_closing(self._render_probe, self.encode, getattr(self.tokenizer, "added_tokens_decoder", {}))
        stop_ids = self._given_stop_ids
        if stop_ids.isdisjoint(closing):
            stop_ids = stop_ids.union(closing[-1:])
        return TurnEnds(closing, stop_ids, stop_ids.union(closing))

    @property
    def template(self) -> str:
        """The chat template, or all templates joined; "" if there is none."""
        template = getattr(self.tokenizer, "chat_template", None) or ""
        return "\n".join(template.values()) if isinstance(template, Mapping) else template

    @property
    def tool_format(self) -> Format | None:
        """Tool-call format of the model; None if its template has no known format."""
        return self.tool_support.format

    @property
    def tool_support(self) -> ToolSupport:
        """What the chat template does with tools, determined once by rendering a call."""
        template = self.template
        if template not in self._tool_support:
            support = ToolSupport(None, "there is none")
            if template:
                support = detect_tool_support(self._render_probe, template)
            self._tool_support[template] = support
        return self._tool_support[template]

    @property
    def _reasoning_form(self) -> ReasoningForm:
        template = self.template
        if template not in self._reasoning_forms:
            self._reasoning_forms[template] = (
                detect_reasoning_form(self._render_probe) if "think" in template else "text"
            )
        return self._reasoning_forms[template]

    def _render_probe(self, messages: Sequence[JsonMapping], variables: JsonMapping) -> str:
        return self._apply_template(messages, {**self.settings.args, **variables})

    def _apply_template(self, messages: Sequence[JsonMapping], variables: JsonMapping) -> str:
        if self._text_form == "parts":
            messages = [with_text_part(message) for message in messages]
        return self.tokenizer.apply_chat_template(list(messages), tokenize=False, **variables)

    @property
    def _text_form(self) -> TextForm:
        template = self.template
        if template not in self._text_forms:
            self._text_forms[template] = detect_text_form(
                lambda messages: self.tokenizer.apply_chat_template(messages, tokenize=False, **self.settings.args)
            )
        return self._text_forms[template]

    def check_tools(self, tools: object) -> None:
        """Raise a `ConfigError` with the reason if there are tools and the chat template cannot use them."""
        if tools and self.tool_format is None:
            raise ConfigError(
                "tools are given, but the model's chat template has no known tool-call format: "
                f"{self.tool_support.problem}; expected one of {READ_FORMATS}: use another model, name a template with tools "
                "(chat_template), or remove the tools"
            )

    def check_environment(self, env: Any, train: bool = False) -> None:
        """Raise a `ConfigError` if this model cannot read the messages, the tools or the first prompt of an environment, or of a
        group's member.

        Otherwise, every rollout would fail; see docs/decisions/images.md.
        """
        members = getattr(env, "members", None)
        if is_mapping(members):
            for name, member in members.items():
                try:
                    self.check_environment(member, train)
                except ConfigError as error:
                    raise ConfigError(f"environment {name} of the group: {error}") from error
            return
        if not self.template and getattr(env, "message_type", "chat") == "chat":
            raise no_template()
        tools = getattr(env, "tool_defs", None)
        self.check_tools(tools)
        prompt = check_first_prompt(env, train)
        # A prompt without a question gets it from `setup_state`, and agents send their own messages.
        has_question = any(message["role"] == "user" for message in prompt)
        if has_question and getattr(env, "sends_prompt", True):
            self.text(prompt, tools)

    def text(
        self,
        messages: Sequence[Mapping[str, object]],
        tools: object = None,
        generation_prompt: bool = True,
        template_kwargs: Mapping[str, object] | None = None,
    ) -> str:
        """Render a conversation as text with the chat template.

        The role "developer" becomes "system" if the template does not know it.
        """
        self.check_tools(tools)
        if not self.template:
            raise no_template()
        variables = {**self.settings.args, **(template_kwargs or {}), "add_generation_prompt": generation_prompt}
        key = self._key(messages, tools, variables)
        return _cached(self._texts, key, lambda: self._render(messages, tools, variables))

    def _key(
        self, messages: Sequence[Mapping[str, object]], tools: object, variables: Mapping[str, object]
    ) -> Hashable:
        """Return the cache key of a conversation; None if it is long or the template uses the current time."""
        if "strftime_now" in self.template:
            return None
        try:
            content = msgspec.json.encode((messages, tools, variables))
        except (TypeError, ValueError):
            return None
        return (self.template, content) if len(content) <= MAX_CACHED_LENGTH else None

    def _render(self, messages: Sequence[JsonMapping], tools: Any, variables: JsonMapping) -> str:
        if self._text_form == "none":
            raise ConfigError(
                "the model's chat template leaves out the text of messages, so the model would see empty ones; use another "
                "template (chat_template)"
            )
        schemas = schemas_of(tools) if tools else NO_SCHEMAS
        prepared: list[JsonMapping] = []
        for message in messages:
            message = self._as_rendered(message, schemas)
            if message["role"] == "assistant":
                message = in_form(message, self._reasoning_form)
            prepared.append(message)
        tool_variable = {self.tool_support.variable: tools} if tools else {"tools": None}
        try:
            return self._apply_template(prepared, {**tool_variable, **variables})
        except Exception as error:  # templates can raise any error
            roles = [message["role"] for message in messages]
            raise ConfigError(
                f"the model's chat template rejects messages with the roles {', '.join(roles)}: {type(error).__name__}: "
                f"{error}; change the roles or their order to a conversation that the template supports, or use another "
                "template (chat_template)"
            ) from error

    @cached_property
    def longest_token(self) -> int:
        """Characters of the longest token; 0 if the tokenizer does not expose its vocabulary."""
        vocabulary = getattr(self.tokenizer, "get_vocab", dict)()
        return max(map(len, vocabulary), default=0)

    def check_length(self, text: str, context: int | None) -> None:
        """Reject a text that cannot fit the context, before the slow tokenization of a large text."""
        if context is None or len(text) <= context or not self.longest_token:
            return
        max_chars = context * self.longest_token
        if len(text) > max_chars:
            raise OverlongPromptError(
                f"the prompt has {len(text):,} characters, but the model's context is {context:,} tokens of at most "
                f"{self.longest_token} characters; shorten the prompt to {max_chars:,} characters or fewer"
            )

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text that already contains its special tokens."""
        # Of the 1,908 prompts of a training step, 269 are distinct: caching texts and ids cut sampling by 12 to 20%.
        key = text if len(text) <= MAX_CACHED_LENGTH else None
        ids = _cached(self._encoded, key, lambda: self.tokenizer.encode(text, add_special_tokens=False))
        return list(ids)  # a copy: callers extend it

    def continuation_ids(self, prompt: str, text: str) -> list[int]:
        """Return the ids of a text that continues a prompt.

        SentencePiece tokenizers put a space before a separate text, so they tokenize "Hello" differently at the start of a text
        and after a line break.
        """
        if self._adds_space:
            # The text may continue a word of the prompt, whose tokens then change; after a line break, a new word begins.
            for context in (prompt, "\n"):
                context_ids, ids = self.encode(context), self.encode(context + text)
                if ids[: len(context_ids)] == context_ids:
                    return ids[len(context_ids) :]
        return self.encode(text)

    @cached_property
    def _adds_space(self) -> bool:
        """Whether the tokenizer puts a space before a separate text."""
        return self.encode("\na")[len(self.encode("\n")) :] != self.encode("a")

    def special_token(self, text: str) -> int | None:
        """Return the id of the special token with this text; None for any other text."""
        ids = self.encode(text)
        if len(ids) != 1:
            return None
        added_token = getattr(self.tokenizer, "added_tokens_decoder", {}).get(ids[0])
        return ids[0] if getattr(added_token, "special", False) else None

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, including special tokens."""
        listed = list(ids)
        key = tuple(listed) if len(listed) <= MAX_CACHED_LENGTH else None
        return _cached(
            self._decoded,
            key,
            lambda: self.tokenizer.decode(listed, skip_special_tokens=False, clean_up_tokenization_spaces=False),
        )

    def token_bytes(self, id: int) -> bytes:
        """Return the bytes of a token. A token may be only a part of a character, so that it has no text.

        Byte-level tokenizers write each byte of a token as one character; tokenizers with byte fallback write a byte as "<0x0A>".
        """
        text = self.decode([id])
        if "\ufffd" not in text:
            return text.encode()
        piece = self.tokenizer.convert_ids_to_tokens(id)
        fallback = re.fullmatch(r"<0x([0-9A-Fa-f]{2})>", piece)
        if fallback:
            return bytes.fromhex(fallback[1])
        byte_of = _byte_level_alphabet()
        if all(character in byte_of for character in piece):
            return bytes(byte_of[character] for character in piece)
        return text.encode()

    def prompt_ids(
        self,
        messages: Sequence[Mapping[str, object]],
        previous: StepTokens | None = None,
        tools: object = None,
        context: int | None = None,
        generation_prompt: bool = True,
        template_kwargs: Mapping[str, object] | None = None,
    ) -> list[int]:
        """Return the ids of a conversation up to the model's turn.

        If the conversation continues `previous`, reuse its sampled ids and tokenize only the rest. Otherwise (the template
        rewrites history, or the environment edited it), tokenize everything, which starts a new branch.
        """
        text = self.text(messages, tools, generation_prompt, template_kwargs)
        self.check_length(text, context)
        # A sampled text can have several tokenizations; training needs the one that was sampled, with its log-probabilities.
        if previous is not None:
            added_ids = self._added_ids(text, previous)
            if added_ids is not None:
                return previous.ids + added_ids
        return self.encode(text)

    def _added_ids(self, text: str, previous: StepTokens) -> list[int] | None:
        """Return the ids that a conversation adds to the prompt and response of the previous turn; None if it does not continue
        them.
        """
        previous_text = self.decode(previous.ids)
        if text.startswith(previous_text):
            return self.continuation_ids(previous_text, text[len(previous_text) :])
        # Phi-3's tokens swallow the line break after them, so the text of its ids is never the rendered one.
        ids = self.encode(text)
        start = len(previous.prompt_ids)
        if ids[:start] != previous.prompt_ids:
            return None
        stop_ids, sampled = self.stop_ids, previous.completion_ids
        sampled_end = [id for id in sampled[-1:] if id in stop_ids]
        sampled_text = sampled[: len(sampled) - len(sampled_end)]
        end = start
        while end < len(ids) and ids[end] not in stop_ids:
            end += 1
        next_message = end + len(sampled_end)
        if ids[end:next_message] != sampled_end or self.decode(ids[start:end]) != self.decode(sampled_text):
            return None
        return ids[next_message:]

    def read(
        self,
        completion_ids: Sequence[int],
        tools: Sequence[Mapping[str, object]] | None = None,
        prompt_length: int = 0,
        is_cut: bool = False,
        stop_token_ids: Collection[int] = (),
    ) -> Message:
        """Return sampled ids as an assistant message without the end-of-turn token; see `message` for the arguments.

        Args:
            stop_token_ids: Further tokens at which sampling stopped.
        """
        text_ids = self._without_end(completion_ids, stop_token_ids)
        return self.message(self.decode(text_ids), tools, prompt_length, is_cut)

    def message(
        self, text: str, tools: Sequence[JsonMapping] | None = None, prompt_length: int = 0, is_cut: bool = False
    ) -> Message:
        """Return a sampled text as an assistant message with its tool calls.

        Args:
            tools: Available tools in chat form. Without tools, calls are not parsed.
            prompt_length: Number of prompt tokens, so that equal calls of different turns get different ids.
            is_cut: Whether the text was cut at its length limit. Its complete calls are then kept although the last call is cut
                off.
        """
        if tools and self.tool_format is not None:
            names = [tool.get("function", {}).get("name") for tool in tools]
            content, calls = read_calls(text, self.tool_format, names, prompt_length, is_cut, schemas_of(tools))
            if calls:
                return AssistantMessage(content or None, tool_calls=calls, **{SAMPLED: text})
        return AssistantMessage(text)

    def text_ids(self, text: str, previous: StepTokens | None = None, context: int | None = None) -> list[int]:
        """Return the ids of a raw text, after a beginning-of-sequence token if the tokenizer adds one.

        If the text continues `previous`, reuse its sampled ids, except for a sampled end token: it is not part of the text, so
        the next turn starts a new branch.
        """
        self.check_length(text, context)
        bos = self.tokenizer.encode("", add_special_tokens=True)[:1]
        if bos != [self.tokenizer.bos_token_id]:  # the tokenizer adds nothing, or another token at the end
            bos = []
        if previous is not None:
            ids = previous.prompt_ids + self._without_end(previous.completion_ids)
            previous_text = self.decode(ids[len(bos) :])
            if text.startswith(previous_text):
                return ids + self.continuation_ids(previous_text, text[len(previous_text) :])
        return bos + self.encode(text)

    def read_text(
        self, prompt_ids: Sequence[int], completion_ids: Sequence[int], stop_token_ids: Collection[int] = ()
    ) -> Message:
        """Return the text that sampled ids add to the prompt as an assistant message; `stop_token_ids`: see `read`."""
        # Decoded with the prompt, because some tokenizers drop a leading space.
        prompt, ids = self.decode(prompt_ids), self._without_end(completion_ids, stop_token_ids)
        whole = self.decode([*prompt_ids, *ids])
        return AssistantMessage(whole[len(prompt) :] if whole.startswith(prompt) else self.decode(ids))

    def without_first_space(self, text: str, ids: Sequence[int]) -> str:
        """Return a text that was decoded after a prompt as `read` decodes its ids, without the prompt: SentencePiece tokenizers
        then drop the space of the first word.
        """
        return text[1:] if text.startswith(" ") and not self.decode(ids).startswith(" ") else text

    def training_branches(
        self,
        messages: Sequence[Mapping[str, object]],
        tools: object = None,
        sampled_messages: Collection[int] | None = None,
        template_kwargs: Mapping[str, object] | None = None,
    ) -> list[tuple[list[int], list[bool]]]:
        """Return a finished conversation as (ids, mask) pairs; the mask is true on assistant messages and their end tokens.

        The ids equal those of sampling the conversation turn by turn. A turn whose prompt does not extend the previous turn
        starts a new pair. Messages after the last assistant message are omitted.

        Args:
            sampled_messages: Positions of the assistant messages to train on. Default: all.
        """
        branches: list[tuple[list[int], list[bool]]] = []
        branch_text = ""
        for i, message in enumerate(messages):
            if message["role"] != "assistant" or (sampled_messages is not None and i not in sampled_messages):
                continue
            prompt = self.text(messages[:i], tools, template_kwargs=template_kwargs)
            answer = self._answer_text(prompt, messages[: i + 1], tools, template_kwargs)
            if not branches or not prompt.startswith(branch_text):
                branches.append(([], []))
                branch_text = ""
            ids, mask = branches[-1]
            prompt_ids = self._added_to_branch(prompt, branch_text, ids, mask)
            answer_ids = self.continuation_ids(prompt, answer)
            ids += [*prompt_ids, *answer_ids]
            mask += [False] * len(prompt_ids) + [True] * len(answer_ids)
            branch_text = prompt + answer
        return branches

    def _added_to_branch(self, prompt: str, branch_text: str, ids: list[int], mask: list[bool]) -> list[int]:
        """Return the ids that the prompt of a turn adds to a branch that it continues."""
        if ids and self._strips_spaces:
            answer_start = len(ids)
            while answer_start and mask[answer_start - 1]:
                answer_start -= 1
            added_ids = self._added_ids(prompt, StepTokens(ids[:answer_start], ids[answer_start:], []))
            if added_ids is not None:
                return added_ids
        return self.continuation_ids(branch_text, prompt[len(branch_text) :])

    @cached_property
    def _strips_spaces(self) -> bool:
        """Whether some added tokens swallow the spaces after them, so that decoding a text's ids does not return the text."""
        return any(token.rstrip for token in getattr(self.tokenizer, "added_tokens_decoder", {}).values())

    def _as_rendered(self, message: Mapping[str, object], schemas: Schemas) -> JsonMapping:
        """Return a message in the form that makes the template render its calls as the model writes them."""
        message = self._normalized(message)
        if self.tool_support.short_ids and "tool_call_id" in message:
            message = {**message, "tool_call_id": accepted_id(message["tool_call_id"])}
        calls = calls_of(message)
        if not calls or message["role"] != "assistant":
            return message
        tool_format, sampled = self.tool_format, message.get(SAMPLED)
        if tool_format is not None and isinstance(sampled, str) and self.tool_support.keeps_text:
            content, written = read_calls(sampled, tool_format, [call.name for call in calls], schemas=schemas)
            if content == text_of(message) and calls_of({"tool_calls": written}) == calls:
                return {"role": "assistant", "content": sampled}  # unedited
        if tool_format is not None and "tool_calls" not in self.template:
            return {"role": "assistant", "content": text_of(message) + tool_format.write(calls)}
        chat_calls = cast("Sequence[Mapping[str, object]]", message["tool_calls"])
        template_calls: list[JsonMapping] = []
        for chat_call, call in zip(chat_calls, calls, strict=True):
            function = {"name": call.name, "arguments": call.arguments}  # a mapping, not its JSON: templates write it
            if self.tool_support.short_ids:
                chat_call = {**chat_call, "id": accepted_id(chat_call.get("id"))}
            template_calls.append({**chat_call, "function": function})
        message = {**message, "content": message.get("content") or "", "tool_calls": template_calls}
        takes_field = not self.tool_support.keeps_text and "reasoning_content" in self.template
        return in_form(message, "field") if takes_field else message

    def _normalized(self, message: Mapping[str, object]) -> JsonMapping:
        """Return a message with a single text as its content and a role that the template supports."""
        # Templates test `'tool_calls' in message`, and servers write null or an empty list for a message without calls.
        message = {name: value for name, value in message.items() if value is not None}
        if not message.get("tool_calls"):
            message.pop("tool_calls", None)
        content = message.get("content")
        if isinstance(content, list):
            check_text_parts(content)
            message = {**message, "content": text_of(message)}
        elif content is None:
            message = {**message, "content": ""}
        if message["role"] == "developer" and "developer" not in self.template:
            message = {**message, "role": "system"}
        return message

    def _without_end(self, completion_ids: Sequence[int], stop_token_ids: Collection[int] = ()) -> list[int]:
        """Return the ids of a completion's text: without the stop token and the closing tokens before it."""
        has_end = len(completion_ids) > 0 and completion_ids[-1] in self.stop_ids.union(stop_token_ids)
        if not has_end:
            return list(completion_ids)
        # Cohere 2 closes a reply with two tokens; the template would write the first one twice.
        closing = self._turn_ends.closing
        is_closed = len(closing) > 1 and list(completion_ids[-len(closing) :]) == closing
        return list(completion_ids[: -len(closing) if is_closed else -1])

    def _answer_text(
        self,
        prompt: str,
        messages: Sequence[Mapping[str, object]],
        tools: object,
        template_kwargs: Mapping[str, object] | None,
    ) -> str:
        """Return the text that the model would sample for the last message, with the end-of-turn token."""
        whole = self.text(messages, tools, generation_prompt=False, template_kwargs=template_kwargs)
        answer = whole[len(prompt) :] if whole.startswith(prompt) else self._unrendered(prompt, whole, messages[-1])
        eos = self.tokenizer.eos_token_id
        stop_ids = sorted(self.stop_ids, key=lambda stop: (stop != eos, stop))
        ends = [self.decode([stop]) for stop in stop_ids]
        last_ends = [(answer.rfind(end), end) for end in ends if end in answer]
        if not last_ends:

            def render(longer: Sequence[JsonMapping]) -> str:
                return self.text(longer, tools, generation_prompt=False, template_kwargs=template_kwargs)

            opening = opening_after(render, whole, messages)
            opened = [end for end in ends if opening.startswith(end)]
            # A base model's end-of-sequence token ends texts; the turns of its template may have another end.
            closing = [self.decode(self._turn_ends.sampled_closing)] if self._turn_ends.closing else []
            candidates = [*opened, *closing, *ends]
            return answer + candidates[0] if candidates else answer
        position, end = max(last_ends)
        turn = answer[:position].rstrip()
        # Phi-3 writes its end of text after the end of the last turn; sampling ends before.
        return turn if turn.endswith(tuple(ends)) else answer[:position] + end

    def _unrendered(self, prompt: str, whole: str, message: Mapping[str, object]) -> str:
        """Return the text of a message whose rendering does not continue the prompt.

        Without reasoning, Nemotron 3's template writes <think></think> and DeepSeek-R1's writes nothing, although their prompts
        open a reasoning block. DeepSeek-R1's also leaves out the reasoning of finished messages.
        """
        opened = OPENED.search(prompt)
        if opened is not None and whole.startswith(prompt[: opened.start()]):
            closed = after_empty_reasoning(whole[opened.start() :])
            if closed is not None:
                return closed
        text = text_of(message)
        calls = calls_of(message)
        if calls and self.tool_format is not None:
            text += self.tool_format.write(calls)
        return text if opened is None else sampled_after_opened(text, message.get("reasoning_content"))


@cache
def _byte_level_alphabet() -> dict[str, int]:
    """Return the byte that each character of a byte-level token stands for, as GPT-2 defined it.

    Visible characters of Latin-1 stand for themselves; the other bytes are numbered from U+0100 on.
    """
    alphabet: dict[str, int] = {}
    for first, last in (("!", "~"), ("¡", "¬"), ("®", "ÿ")):
        alphabet |= {chr(byte): byte for byte in range(ord(first), ord(last) + 1)}
    visible = set(alphabet.values())
    invisible = [byte for byte in range(256) if byte not in visible]
    return alphabet | {chr(256 + number): byte for number, byte in enumerate(invisible)}


def _cached(cached: dict[Hashable, T], key: Hashable, compute: Callable[[], T]) -> T:
    """Return the cached value of a key, or compute and cache it, evicting the oldest; without a key, always compute it."""
    if key is None:
        return compute()
    if key not in cached:
        cached[key] = compute()
        if len(cached) > CACHE_SIZE:
            del cached[next(iter(cached))]
    return cached[key]
