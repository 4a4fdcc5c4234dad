"""Report the text of a response while its tokens are sampled."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from rove.core.protocols import OnToken, Request, Token
from rove.rendering.renderer import Renderer
from rove.rendering.token_decoder import TokenDecoder
from rove.rendering.tool_calls import Format, settled_characters


class IncrementalDetokenizer:
    """A streaming detokenizer: reports each piece of text as soon as no further token can change it.

    The pieces together are a prefix of the text that `Renderer.read` (with `prompt_ids`: `Renderer.read_text`) returns.

    Args:
        prompt_ids: Ids of the prompt, if its text is continued; some tokenizers decode the start of a text differently.
        stop_token_ids: Further tokens at which sampling stops.
    """

    def __init__(
        self,
        renderer: Renderer,
        on_text: Callable[[str], None],
        prompt_ids: Sequence[int] = (),
        stop_token_ids: Collection[int] = (),
    ):
        self._renderer = renderer
        self._on_text = on_text
        self._decoder = TokenDecoder(renderer.decode, prompt_ids)
        self._end_ids = renderer.end_ids.union(stop_token_ids)
        self._end: list[int] = []
        """The tokens sampled last, if they are not part of the text in case the turn ends with them."""
        self._first_ids: list[int] | None = None if prompt_ids else []
        """Ids before the first text of the stop checker; None after it, or if the prompt's text is continued."""

    @staticmethod
    def of(renderer: Renderer, request: Request, prompt_ids: Sequence[int] = ()) -> OnToken | None:
        """Return a token callback that calls the callbacks of a request; None if the request has none.

        It does not report text that may be part of a tool call.
        """
        on_token, on_text = request.on_token, request.on_text
        if on_text is None:
            return on_token
        if request.tools and renderer.tool_format is not None:
            on_text = _skip_calls(on_text, renderer.tool_format)
        stop_token_ids = request.sampling_params.stop_token_ids or ()
        detokenizer = IncrementalDetokenizer(renderer, on_text, prompt_ids, stop_token_ids)
        if on_token is None:
            return detokenizer

        def call_both(token: Token) -> None:
            on_token(token)
            detokenizer(token)

        return call_both

    def __call__(self, token: Token) -> None:
        """Process the next token."""
        text = self._decoded(token.id) if token.text is None else self._checked(token.id, token.text)
        if text:
            self._on_text(text)

    def _decoded(self, id: int) -> str:
        self._end.append(id)
        if id in self._end_ids:
            return ""
        text = "".join(map(self._decoder.read, self._end))
        self._end = []
        return text

    def _checked(self, id: int, text: str) -> str:
        """Return the text of the stop checker, which decodes a completion after its prompt."""
        if self._first_ids is None:
            return text
        self._first_ids.append(id)
        if text:
            text = self._renderer.without_first_space(text, self._first_ids)
            self._first_ids = None
        return text


def _skip_calls(on_text: Callable[[str], None], tool_format: Format) -> Callable[[str], None]:
    """Return a callback for the pieces of a response that passes only text outside tool calls to `on_text`."""
    text, num_sent = "", 0

    def receive(piece: str) -> None:
        nonlocal text, num_sent
        text += piece
        num_settled = settled_characters(text, tool_format)
        if num_settled > num_sent:
            on_text(text[num_sent:num_settled])
            num_sent = num_settled

    return receive
