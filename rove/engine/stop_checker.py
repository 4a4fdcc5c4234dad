"""Check the stop conditions of a completion, and cut its text. This module uses no model and no tensors."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from rove.core.errors import StructuredOutputError
from rove.core.protocols import SamplingParams
from rove.engine.constraints import Constraint
from rove.rendering.token_decoder import TokenDecoder


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
        prompt_ids: Ids of the prompt, whose text the completion continues.
        closing_ids: Tokens that are not part of the message if the turn ends with them; `take_text` then withholds their text.

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
        prompt_ids: Sequence[int] = (),
        closing_ids: Collection[int] = (),
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
        self._decoder = None if decode is None else TokenDecoder(decode, prompt_ids)
        self._closing_ids = closing_ids
        self._closing_start: int | None = None
        """Position in the text of the closing tokens that were pushed last; None after any other token."""
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
        text_length = len(self.text)
        self._read(token, may_stop)
        if token not in self._closing_ids:
            self._closing_start = None
        elif self._closing_start is None:
            self._closing_start = text_length
        if self.reason is None and self._constraint is not None and self._constraint.done:
            self.reason = "stop"
        elif self.reason is None and self._count >= self._max_tokens:
            self.reason = "length"
        # The unfinished bytes at the end may complete a stop string, too.
        if self.reason is not None and self.stopped_by is None:
            self._read(None, may_stop)
        return self.reason

    def take_text(self) -> str:
        """Return the new text that no stop string or end of the turn can still remove; after the end, all remaining text."""
        end = len(self.text) if self.reason else len(self.text) - self._held()
        if self._closing_start is not None:
            end = min(end, self._closing_start)
        ready = self.text[self._taken : end]
        self._taken += len(ready)
        return ready

    def _read(self, token: int | None, may_stop: bool) -> None:
        """Append the text of a token (None: the text of unfinished characters), and cut it at a stop string."""
        if self._decoder is None:
            return
        new_text = self._decoder.unfinished() if token is None else self._decoder.read(token)
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
