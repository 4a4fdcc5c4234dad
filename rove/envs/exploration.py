"""What a recursive language model has: its context, what it is told of it, its answer so far, its sub-calls."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from rove.core.errors import ConfigError
from rove.core.messages import Message, Messages, UserMessage, as_messages
from rove.core.records import TrajectoryStep
from rove.core.state import State
from rove.envs.environment import Turn

ROLE = "sub_model"
"""The role of sub-models that are not trained."""
LOAD = {
    "context.txt": 'with open("context.txt", encoding="utf-8", newline="") as file: context = file.read()',
    "context.json": 'import json\nwith open("context.json", encoding="utf-8") as file: context = json.load(file)\ndel json',
}
"""How the context gets from its file into a variable."""
BEGIN = '\ndel file\nanswer = {"content": "", "ready": False}'
TOLD = """\
The question is about an input that may be too long to read at once. You do not see it: it is the variable `context` in a Python \
of yours. {how} Variables stay; you are told what is printed and the value of the last expression, the middle of what is long \
left out.

`llm(prompt)` in that Python asks a language model and returns its answer, a text. It sees nothing but the prompt, so put \
into it what it is to read. `llm_batch(prompts)` asks several at once and returns the list of their answers.{deeper} \
{most} calls in all.

When you know the answer: answer["content"] = "…"; answer["ready"] = True"""
HOW = {
    "tool": "The tool `python` runs code in it.",
    "fence": "What you write between ```python and ``` runs in it.",
}
DEEPER = """\
 With `llm(prompt, context=piece)` it has a Python of its own, with the piece as its `context`; so with \
`llm_batch(prompts, contexts)`."""


def answer_ready(state: State) -> float:
    """1 when the model has said that its answer is final."""
    return float(state["rlm"].ready)


def sub_calls(state: State) -> float:
    """Answers of sub-models."""
    return float(len(state["rlm"].calls.steps))


def sub_tokens(state: State) -> float:
    """Tokens that sub-models read and wrote."""
    return float(sum(step.usage.prompt_tokens + step.usage.completion_tokens for step in state["rlm"].calls.steps))


@dataclass(slots=True)
class Calls:
    """The sub-calls of a whole rollout, those of sub-models included."""

    turn: Turn
    parallel: asyncio.Semaphore
    model_roles: Mapping[str, list[TrajectoryStep]]
    """Of the rollout."""
    conversations: list[list[TrajectoryStep]]
    """What is trained: the trajectory of the rollout, and those of its sub-models."""
    made: int = 0

    @property
    def steps(self) -> list[TrajectoryStep]:
        """What sub-models have said so far."""
        return [*self.model_roles.get(ROLE, ()), *chain.from_iterable(self.conversations[1:])]


@dataclass(slots=True)
class Exploration:
    """One model and its Python, the rollout's own or a sub-model's: `state["rlm"]`."""

    calls: Calls
    depth: int = 0
    """0 = the rollout's own."""
    context: Any = None
    content: str = ""
    """The answer as it was last seen, final or not."""
    ready: bool = False
    branches: list[tuple[int, State]] = field(default_factory=list)
    """What it asked, in order: after so many turns of its own, which conversation."""

    async def keep(self, content: Any, ready: Any) -> None:
        """What `answer` is now; called by the code."""
        self.content, self.ready = str(content), bool(ready)


def steps_of(state: State) -> Iterator[TrajectoryStep]:
    """All steps of a conversation, after each of them those of the conversations that it began."""
    own: list[TrajectoryStep] = state["trajectory"]
    for number in range(len(own) + 1):
        yield from own[number - 1 : number] if number else ()
        for after, inner in state["rlm"].branches:
            if after == number:
                yield from steps_of(inner)


def with_preview(prompt: Sequence[Mapping[str, Any]], context: Any, count: int) -> Messages:
    """A prompt that ends with what the model is told of the context: its type, its length, and how it begins."""
    text = as_text(context)
    size = f"a text of {len(text):,} characters" if isinstance(context, str) else _size(context)
    told = f"`context` is {size}. It begins: {text[:count]!r}"
    *before, last = as_messages(prompt) or [UserMessage()]
    if last.role != "user":
        return [*before, last, UserMessage(told)]
    if isinstance(last.content, list):
        return [*before, Message({**last, "content": [*last.content, {"type": "text", "text": told}]})]
    return [*before, Message({**last, "content": f"{last.content}\n\n{told}".lstrip()})]


def _size(context: Any) -> str:
    kind = type(context).__name__
    return f"a {kind} of {len(context):,}" if isinstance(context, (list, dict)) else f"a value of type {kind}"


def as_text(context: Any) -> str:
    """A text as it is, anything else as JSON.

    Raises:
        ConfigError: JSON cannot say it.
    """
    if isinstance(context, str):
        return context
    try:
        return json.dumps(context, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"the context cannot be put into a sandbox: {error}; expected a text, or what JSON can say"
        ) from error


def context_file(context: Any) -> tuple[str, bytes]:
    """The file that the context is put into a sandbox as."""
    name = "context.txt" if isinstance(context, str) else "context.json"
    return name, as_text(context).encode(errors="replace")


def instructions(code_in: str, max_depth: int, max_sub_calls: int) -> str:
    """What the model is told of its Python and of sub-models."""
    return TOLD.format(how=HOW[code_in], deeper=DEEPER if max_depth > 1 else "", most=max_sub_calls)
