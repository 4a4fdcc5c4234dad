"""Decode sampled tokens as they arrive. This module uses no model and no chat template."""

from __future__ import annotations

from collections.abc import Callable, Sequence

UNFINISHED = "\ufffd"
"""The character that decoders write for bytes that form no character, or only the beginning of a character."""
PROMPT_TOKENS = 8
"""Number of prompt tokens that are decoded together with the first sampled tokens."""
DECODE_WINDOW = 32
"""Maximum number of tokens decoded together, unless the last character is unfinished."""


class TokenDecoder:
    """Incremental detokenizer; a character that is split over several tokens is returned with the last of them.

    Tokens are decoded together with some earlier tokens, because some tokenizers decode a token differently at the start of a
    text: SentencePiece tokenizers drop the space of the first word.

    Args:
        decode: Token ids → text.
        prompt_ids: Ids of the prompt, if its text is continued.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], prompt_ids: Sequence[int] = ()):
        self._decode = decode
        self._ids = list(prompt_ids[-PROMPT_TOKENS:])
        self._text = decode(self._ids)
        if self._text.endswith(UNFINISHED):  # as in `Renderer.read_text`, the character may change with the next token
            self._ids, self._text = [], ""
        self._returned = len(self._text)
        """Number of characters of `_text` that were returned, or belong to the prompt."""

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

    def unfinished(self) -> str:
        """Return the text of tokens whose last character was never finished."""
        new_text = self._text[self._returned :]
        self._returned = len(self._text)
        return new_text
