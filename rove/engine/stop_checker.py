"""Where an answer ends, and which of its text counts. Plain Python: no model and no tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rove.core.errors import ModelError
from rove.core.protocols import SamplingParams
from rove.engine.constraints import Constraint

UNFINISHED = "\ufffd"
"""What decoders write for bytes that are no character, or not yet."""
DECODE_WINDOW = 32
"""Most tokens decoded together, unless their characters are unfinished."""


def end_token_ids(sampling: SamplingParams, stop_ids: frozenset[int]) -> frozenset[int]:
    """The tokens that end an answer: the model's own, unless they are to be ignored, and the request's."""
    own = frozenset() if sampling.ignore_eos else stop_ids
    return own | frozenset(sampling.stop_token_ids or ())


class StopChecker:
    """Watches one answer, token by token, for its end.

    It ends with the first of: a stop token; a stop text, which may begin and end inside tokens; the end of its grammar; the
    length limit. The first two count only after `min_tokens` tokens. All tokens pushed belong to the answer; its text stops
    short of a stop text and of a stop token.

    Of several stop texts the one that is complete first counts, and of these the longest, so that the cut does not
    depend on how the text is split into tokens.

    Args:
        sampling: its stop, stop_token_ids, min_tokens and ignore_eos count.
        max_tokens: the length limit.
        stop_ids: the model's own end tokens.
        decode: ids → text. Needed for stop texts and to stream, else None.
        constraint: of a structured output, advanced by whoever samples.
    """

    def __init__(
        self,
        sampling: SamplingParams,
        max_tokens: int,
        stop_ids: frozenset[int] = frozenset(),
        decode: Callable[[Sequence[int]], str] | None = None,
        constraint: Constraint | None = None,
    ):
        assert decode is not None or not sampling.stop, "stop texts need a decoder"
        self.reason: str | None = None
        """"stop" or "length" once it has ended."""
        self.stopped_by: str | int | None = None
        """The stop text or stop token."""
        self.text = ""
        """As far as it is known; "" without a decoder."""
        self._stops = sampling.stop or []
        self._ends = end_token_ids(sampling, stop_ids)
        self._min_tokens = sampling.min_tokens or 0
        self._max_tokens = max_tokens
        self._constraint = constraint
        self._reader = None if decode is None else _TokenDecoder(decode)
        self._count = 0
        self._taken = 0

    def push(self, token: int) -> str | None:
        """Take the next token.

        Returns:
            "stop" or "length" if it ends the answer, else None.

        Raises:
            ModelError: the grammar of a structured output could not go on.
        """
        assert self.reason is None, "the answer has ended"
        self._count += 1
        may_stop = self._count > self._min_tokens
        if self._constraint is not None and self._constraint.error:
            raise ModelError(f"the structured output broke off: {self._constraint.error}")
        if may_stop and token in self._ends:
            self.reason, self.stopped_by = "stop", token
            self._read(None, may_stop)
            return self.reason
        self._read(token, may_stop)
        if self.reason is None and self._constraint is not None and self._constraint.done:
            self.reason = "stop"
        elif self.reason is None and self._count >= self._max_tokens:
            self.reason = "length"
        if self.reason is not None and self.stopped_by is None:
            self._read(None, may_stop)
        return self.reason

    def take_text(self) -> str:
        """The text since the last call that no stop text can take back any more; at the end all of it."""
        held = 0 if self.reason else self._held()
        ready = self.text[self._taken : len(self.text) - held]
        self._taken += len(ready)
        return ready

    def _read(self, token: int | None, may_stop: bool) -> None:
        """Add a token's text, or (None) what is left of unfinished characters, as far as no stop text cuts it."""
        if self._reader is None:
            return
        new = self._reader.rest() if token is None else self._reader.read(token)
        old, self.text = len(self.text), self.text + new
        if not (new and may_stop):
            return
        found = []
        for stop in self._stops:
            start = self.text.find(stop, max(0, old - len(stop) + 1))
            if start >= 0:
                found.append((start + len(stop), start, stop))
        if found:
            _, start, stop = min(found)
            self.text = self.text[:start]
            self.reason, self.stopped_by = "stop", stop

    def _held(self) -> int:
        """Characters at the end of the text that may be the beginning of a stop text."""
        longest = max((len(stop) - 1 for stop in self._stops), default=0)
        for length in range(min(longest, len(self.text)), 0, -1):
            if any(stop.startswith(self.text[-length:]) for stop in self._stops):
                return length
        return 0


class _TokenDecoder:
    """Text of tokens that come one by one; a character split over tokens comes with its last one.

    Tokens are decoded behind some that came before, because some tokenizers write a token differently at the beginning.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]):
        self._decode = decode
        self._ids: list[int] = []
        self._text = ""
        self._told = 0  # characters of that text

    def read(self, token: int) -> str:
        """The text that is known now."""
        self._ids.append(token)
        self._text = self._decode(self._ids)
        known = self._text.rstrip(UNFINISHED)
        new, self._told = known[self._told :], max(self._told, len(known))
        if (
            known == self._text and len(self._ids) >= DECODE_WINDOW
        ):  # or every token would take longer than the one before
            self._ids = self._ids[-DECODE_WINDOW // 4 :]
            self._text = self._decode(self._ids)
            self._told = len(self._text)
        return new

    def rest(self) -> str:
        """The text of tokens whose last character was never finished."""
        new, self._told = self._text[self._told :], len(self._text)
        return new
