"""Find the tokens that end the model's turns: what a chat template writes after a finished message.

A tokenizer's end-of-sequence token need not end turns: for Phi-3 it is <|endoftext|>, but turns end with <|end|>. See
docs/decisions/turn_ends.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

from rove.core.plain import JsonMapping

_REPLY = "reply of the probe"
_USER = {"role": "user", "content": "question of the probe"}
_TURN: list[JsonMapping] = [_USER, {"role": "assistant", "content": _REPLY}]


class TurnEnds(NamedTuple):
    """The tokens that end the model's turns."""

    closing: list[int]
    """Tokens with which the chat template closes each message of the model."""
    stop_ids: frozenset[int]
    """Tokens at which sampling stops."""
    end_ids: frozenset[int]
    """The `closing` and `stop_ids` tokens together: at the end of a message, these tokens do not belong to its text."""

    @property
    def sampled_closing(self) -> list[int]:
        """The closing tokens that the model samples: up to the first one at which sampling stops."""
        before_stop = list(takewhile(lambda id: id not in self.stop_ids, self.closing))
        return self.closing[: len(before_stop) + 1]


def detect_closing(
    render: Callable[[Sequence[JsonMapping], JsonMapping], str],
    encode: Callable[[str], list[int]],
    added_tokens: Mapping[int, object],
) -> list[int]:
    """Return the added tokens with which a chat template closes each message of the model, the end of the turn last.

    Args:
        render: Renders messages with variables of the template.
        added_tokens: Tokens that the tokenizer adds to the vocabulary of its texts, by id.

    Returns:
        [<|end|>] for Phi-3, [<|END_RESPONSE|>, <|END_OF_TURN_TOKEN|>] for Cohere 2, [] if the template writes no such token
        (GLM) or a different token after the last message (gpt-oss).
    """
    # Gemma's line breaks are added tokens, too, but sampling must not stop after a line.
    marks = {id for id, token in added_tokens.items() if str(token).strip()}
    closings: list[list[int]] = []
    for messages in (_TURN, [*_TURN, _USER]):
        try:
            _, reply, after_reply = render(messages, {"add_generation_prompt": False}).rpartition(_REPLY)
        except Exception:  # templates can raise any error
            return []
        closing: list[int] = []
        if reply:
            closing = list(takewhile(lambda token: token in marks, encode(after_reply.lstrip())))
        closings.append(closing)
    last, inner = closings
    # After the last message, Phi-3 goes on with the end of the text, and after an inner one with the next message. The tokens
    # that both have in common close a message.
    num_common = 0
    while num_common < min(len(last), len(inner)) and last[num_common] == inner[num_common]:
        num_common += 1
    return last[:num_common]


def opening_after(render: Callable[[Sequence[JsonMapping]], str], whole: str, messages: Sequence[JsonMapping]) -> str:
    """Return the text that a template writes after a finished conversation if another message follows; "" if it also changes
    earlier text.

    GLM's turns end with the token that opens the next message: <|observation|> after a call, else <|user|>.
    """
    calls: Any = messages[-1].get("tool_calls") or ()
    following: list[JsonMapping] = [{"role": "tool", "tool_call_id": call.get("id"), "content": "x"} for call in calls]
    try:
        longer = render([*messages, *(following or [{"role": "user", "content": "x"}])])
    except Exception:  # templates can raise any error
        return ""
    return longer[len(whole) :] if longer.startswith(whole) else ""
