"""Check the stop conditions of a completion, and cut its text. This module uses no model and no tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rove.core.errors import StructuredOutputError
from rove.core.protocols import SamplingParams
from rove.engine.constraints import Constraint

UNFINISHED = "\ufffd"
"""The character that decoders write for bytes that form no character, or only the beginning of a character."""
DECODE_WINDOW = 32
"""Maximum number of tokens decoded together, unless the last character is unfinished."""


def end_token_ids(sampling: SamplingParams, stop_ids: frozenset[int]) -> frozenset[int]:
    """Return the tokens that end a completion: the request's stop tokens and, unless `ignore_eos` is set, the model's."""
    model_ids = frozenset() if sampling.ignore_eos else stop_ids
    return model_ids | frozenset(sampling.stop_token_ids or ())


class StopChecker:
    r"""Checks one completion for its end, token by token.

    A completion ends at the first of these events: a stop token; a stop string, which may begin and end within tokens; the end
    of its grammar; the length limit. Stop tokens and strings count only after `min_tokens` tokens. All pushed tokens belong to
    the completion; its text excludes the stop string and the stop token.

    If several stop strings match, the text is cut at the string that is complete first and, if several are, at the longest. So
    the cut does not depend on how text is split into tokens.

    Args:
        sampling: Only its stop, stop_token_ids, min_tokens and ignore_eos are used.
        decode: Token ids → text; needed for stop strings and streaming, else None.
        constraint: Grammar state of a structured output, advanced by the sampler.

    Example:
        checker = StopChecker(SamplingParams(stop=["\\n"]), max_tokens=64, decode=renderer.decode)
        reason = checker.push(token)  # None until the completion ends
    """

    def __init__(
        self,
        sampling: SamplingParams,
        max_tokens: int,
        stop_ids: frozenset[int] = frozenset(),
        decode: Callable[[Sequence[int]], str] | None = None,
        constraint: Constraint | None = None,
    ):
        assert decode is not None or not sampling.stop, "stop strings need a decoder"
        self.reason: str | None = None
        """Reason of the end, "stop" or "length"; None before the end."""
        self.stopped_by: str | int | None = None
        """The stop string or stop token that ended the completion; None if there is none."""
        self.text = ""
        """Decoded text; "" without `decode`."""
        self._stop_strings = sampling.stop or []
        self._end_ids = end_token_ids(sampling, stop_ids)
        self._min_tokens = sampling.min_tokens or 0
        self._max_tokens = max_tokens
        self._constraint = constraint
        self._reader = None if decode is None else _TokenDecoder(decode)
        self._count = 0
        self._taken = 0

    def push(self, token: int) -> str | None:
        """Add a token.

        Returns:
            "stop" or "length" if it ends the completion, else None.
        """
        assert self.reason is None, "the answer has ended"
        self._count += 1
        may_stop = self._count > self._min_tokens
        if self._constraint is not None and self._constraint.error:
            raise StructuredOutputError(f"the structured output broke off: {self._constraint.error}")
        if may_stop and token in self._end_ids:
            self.reason, self.stopped_by = "stop", token
            self._read(None, may_stop)
            return self.reason
        self._read(token, may_stop)
        if self.reason is None and self._constraint is not None and self._constraint.done:
            self.reason = "stop"
        elif self.reason is None and self._count >= self._max_tokens:
            self.reason = "length"
        # The unfinished bytes at the end may complete a stop string, too.
        if self.reason is not None and self.stopped_by is None:
            self._read(None, may_stop)
        return self.reason

    def take_text(self) -> str:
        """Return the new text that no stop string can still remove; after the end, all remaining text."""
        held = 0 if self.reason else self._held()
        ready = self.text[self._taken : len(self.text) - held]
        self._taken += len(ready)
        return ready

    def _read(self, token: int | None, may_stop: bool) -> None:
        """Append the text of a token (None: the text of unfinished characters), and cut it at a stop string."""
        if self._reader is None:
            return
        new_text = self._reader.rest() if token is None else self._reader.read(token)
        old_length = len(self.text)
        self.text += new_text
        if not new_text or not may_stop:
            return
        matches = []
        for stop in self._stop_strings:
            # A stop string may begin in the old text; it would have been found if it ended there.
            start = self.text.find(stop, max(0, old_length - len(stop) + 1))
            if start >= 0:
                matches.append((start + len(stop), start, stop))
        if matches:
            _, start, stop = min(matches)
            self.text = self.text[:start]
            self.reason, self.stopped_by = "stop", stop

    def _held(self) -> int:
        """Return the number of characters at the end that may begin a stop string."""
        longest = max((len(stop) - 1 for stop in self._stop_strings), default=0)
        for length in range(min(longest, len(self.text)), 0, -1):
            end = self.text[-length:]
            if any(stop.startswith(end) for stop in self._stop_strings):
                return length
        return 0


class _TokenDecoder:
    """Incremental detokenizer; a character that is split over several tokens is returned with the last of them.

    Tokens are decoded together with some earlier tokens, because some tokenizers decode a token differently at the start of a
    text.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]):
        self._decode = decode
        self._ids: list[int] = []
        self._text = ""
        self._returned = 0
        """Number of characters of `_text` that were returned."""

    def read(self, token: int) -> str:
        """Return the text that is now complete."""
        self._ids.append(token)
        self._text = self._decode(self._ids)
        complete = self._text.rstrip(UNFINISHED)
        new_text = complete[self._returned :]
        # A later token can turn complete characters into unfinished ones; what was returned cannot be taken back.
        self._returned = max(self._returned, len(complete))
        if complete == self._text and len(self._ids) >= DECODE_WINDOW:  # bound the cost of decoding
            self._ids = self._ids[-DECODE_WINDOW // 4 :]
            self._text = self._decode(self._ids)
            self._returned = len(self._text)
        return new_text

    def rest(self) -> str:
        """Return the text of tokens whose last character was never finished."""
        new_text = self._text[self._returned :]
        self._returned = len(self._text)
        return new_text
