"""A game in the browser: a person takes one role of an environment, or watches, and may save the game."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from typing import NamedTuple, TypeVar

import msgspec
from aiohttp import web

from rove.core.errors import ConfigError, nearest
from rove.core.messages import AssistantMessage, UserMessage, text_of
from rove.core.plain import UNREADABLE, JsonObject, MessageDict
from rove.core.protocols import Client, Request, Response
from rove.core.records import RolloutRecord, TrajectoryStep
from rove.core.renderings import Rendering
from rove.rollouts.replay_cases import OPPONENT
from rove.server.validation import json_response
from rove.viewer.app import access_middleware, file_response, json_body, page_files
from rove.viewer.rollouts import shortened, tool_results

T = TypeVar("T")

PERSON_ROLES = ("opponent", "model", "none")
"""Roles of the person: playing against the model, playing in its place, or watching. Any other role is a model role that the
environment queries (`rove.query`); it may be a pattern of names."""
MAX_TEXT_CHARS = 20_000
"""Maximum characters shown of a text, and accepted as a move."""
POLL_TIMEOUT_S = 20.0
"""Maximum seconds that a request for changes waits."""


class Move(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The person's move: `text`, for the state with this `number`."""

    number: int
    text: str


class NewGame(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request for another game, in another role if `role` is set."""

    role: str | None = None


class PlayerPrompt(NamedTuple):
    """A prompt for the person."""

    view: str
    legal: list[str] | None
    """The legal moves; None if they are unknown."""
    board: Rendering | None
    role: str = ""
    """The model role that the person plays; "" for the opponent or the model itself."""
    messages: list[MessageDict] = []  # never changed
    """The conversation of the role."""


class PlaySession:
    """A game between a person and a model, with the state that the page shows.

    Args:
        env_id: Name of the environment; for some environments, the page shows texts in a special way.
        model: Name of the model; "" if there is none.
        roles: Roles of the person; the first role is active. `add_roles` adds further roles.
        fields: Tags in an answer in the model's role; if there are none, the answer is free text.
    """

    def __init__(
        self, env_id: str, model: str, roles: Sequence[str], fields: Sequence[str] = (), answer_field: str = ""
    ):
        self.env_id = env_id
        self.model = model
        self.model_roles = list(roles)
        self.role = roles[0]
        self.fields = list(fields)
        self.answer_field = answer_field
        self.number = 0
        """Version of the state."""
        self.messages: list[MessageDict] = []
        self.renderings: Mapping[int, Rendering] = {}
        """Renderings of the environment, by the number of messages before them."""
        self.prompt: PlayerPrompt | None = None
        self.moves: list[tuple[str, str]] = []
        """The person's moves as the opponent, each with the view that preceded it."""
        self.record: RolloutRecord | None = None
        self.saved_as = ""
        self._reply: asyncio.Future[str] | None = None
        self._prompt_lock = asyncio.Lock()
        self._new_game = asyncio.Event()
        self._changed_event = asyncio.Event()

    def _notify(self) -> None:
        self.number += 1
        self._changed_event.set()
        self._changed_event = asyncio.Event()

    def state(self) -> JsonObject:
        """Return everything that the page shows."""
        record = self.record
        return {
            "number": self.number,
            "env": self.env_id,
            "model": self.model,
            "role": self.role,
            "model_roles": self.model_roles,
            "fields": self.fields,
            "answer_field": self.answer_field,
            "messages": shortened(self.messages, MAX_TEXT_CHARS),
            "renderings": {str(position): board for position, board in self.renderings.items()},
            "results": tool_results(self.messages),
            "prompt": None if self.prompt is None else shortened(self.prompt._asdict(), MAX_TEXT_CHARS),
            "over": record is not None,
            "scores": None if record is None else msgspec.to_builtins(record.scores),
            "error": shortened(msgspec.to_builtins(record.error), MAX_TEXT_CHARS) if record else None,
            "kept": self.saved_as,
            "status": self._status(),
            "role_words": self._role_words(self.role),
            "role_choices": [[role, self._role_words(role)] for role in self.model_roles],
        }

    def _role_words(self, role: str) -> str:
        """Return a text about the roles of the person and the model."""
        fields = {
            "opponent": f"you against {self.model}",
            "model": "you in the model's role",
            "none": f"{self.model}, you watch",
        }
        return fields.get(role, f"you as {role}, {self.model} as the model")

    def _status(self) -> str:
        """Return whose turn it is, or how the game ended, as a text."""
        record = self.record
        if record is not None:
            return f"The game failed: {record.error.type}" if record.error else self._ending(record)
        if self.prompt is not None:
            return f"Your turn as {self.prompt.role}" if self.prompt.role else "Your turn"
        return "Waiting for the environment" if self.role == "model" else f"{self.model} is responding"

    def _ending(self, record: RolloutRecord) -> str:
        """Return how the game ended, with the environment's last words if there are any."""
        reader, verb = ("you", "are") if self.role == "model" else ("the model", "is")
        words = self._last_words()
        ending = f"; {reader} {verb} told: {words}" if re.search("[A-Za-z]", words) else "."
        reward = "–" if record.reward is None else f"{record.reward:.4g}"
        return f"The game is over{ending} Reward of {reader}: {reward}"

    def _last_words(self) -> str:
        """Return the line in which the environment's last message says how the game ended; "" without such a message."""
        if not self.messages or self.messages[-1].get("role") == "assistant":
            return ""
        lines = text_of(self.messages[-1]).rstrip().split("\n")
        board = self.renderings.get(len(self.messages) - 1)
        if board is None:
            return lines[0]
        # The rows of the board come last, or are not part of the text; the words are in the line before them.
        rows = [" ".join(cell for cell, _ in row) for row in board.rows]
        if [" ".join(line.split()) for line in lines[-len(rows) :]] == rows:
            lines = lines[: -len(rows)] or [""]
        return lines[-1]

    async def state_after(self, number: str) -> dict[str, object]:
        """Return the state once its version differs from `number`, or after `POLL_TIMEOUT_S`."""
        if str(self.number) == number:
            changed_event = self._changed_event
            with suppress(TimeoutError):
                await asyncio.wait_for(changed_event.wait(), POLL_TIMEOUT_S)
        return self.state()

    # Methods that the running game calls.

    def show(self, messages: Sequence[Mapping[str, object]], boards: Mapping[int, Rendering]) -> None:
        """Show the conversation and its renderings."""
        self.messages = [dict(message) for message in messages]
        self.renderings = dict(boards)
        self._notify()

    async def ask(self, view: str, legal: list[str] | None, board: Rendering | None = None) -> str:
        """Return the person's move: an `Opponent` of a two-player environment."""
        answer = await self.answer(PlayerPrompt(view, legal, board))
        # Without legal moves, the person answers in the model's role, and the rollout itself contains the answer.
        if legal is not None:
            self.moves.append((view, answer))
        return answer

    async def answer(self, prompt: PlayerPrompt) -> str:
        """Return the person's answer to a prompt; concurrent prompts wait for each other."""
        async with self._prompt_lock:
            self._reply = asyncio.get_running_loop().create_future()
            self.prompt = prompt
            self._notify()
            try:
                return await self._reply
            finally:
                self.prompt = self._reply = None
                self._notify()

    def is_person_role(self, role: str) -> bool:
        """Return whether the person plays this model role."""
        return self.role not in ("model", "none") and fnmatchcase(role, self.role)

    def add_roles(self, roles: Iterable[str]) -> None:
        """Add roles for later games."""
        self.model_roles += [
            role for role in roles if not any(fnmatchcase(role, pattern) for pattern in self.model_roles)
        ]

    async def finish(self, record: RolloutRecord) -> None:
        """Show the finished game and wait until another game is requested."""
        self.record = with_opponent(record, self.moves)
        self.show([*record.prompt, *record.completion], record.renderings)
        self._new_game.clear()
        await self._new_game.wait()
        self.record, self.saved_as, self.moves = None, "", []
        self.show([], {})

    # Methods that the person's HTTP requests call.

    def move(self, move: Move) -> None:
        """Accept a move."""
        # A second click may arrive before the game has read the first move: the future is then done, and the prompt still set.
        if self.prompt is None or self._reply is None or self._reply.done() or move.number != self.number:
            raise ConfigError("it is not your turn; reload the current state")
        legal = self.prompt.legal
        if legal is not None and move.text not in legal:
            raise ConfigError(f"'{move.text[:40]}' is not a legal move; expected one of {', '.join(legal)}")
        if not 0 < len(move.text) <= MAX_TEXT_CHARS:
            raise ConfigError(f"the answer has {len(move.text):,} characters; expected 1 to {MAX_TEXT_CHARS:,}")
        self._reply.set_result(move.text)

    def new_game(self, request: NewGame = NewGame()) -> None:  # noqa: B008  frozen
        """Start another game."""
        self._finished()
        if request.role is not None:
            if request.role not in self.model_roles:
                raise ConfigError(
                    f"no role '{request.role[:40]}' in this game; {nearest(request.role[:40], self.model_roles)}"
                )
            self.role = request.role
        self._new_game.set()

    def save(self, write: Callable[[RolloutRecord], str]) -> None:
        """Save the finished game once; `write` stores it and returns the path."""
        record = self._finished()
        if not self.saved_as:
            self.saved_as = write(record)
            self._notify()

    def _finished(self) -> RolloutRecord:
        if self.record is None:
            raise ConfigError("this game has not ended; finish it first")
        return self.record


def with_opponent(record: RolloutRecord, moves: Sequence[tuple[str, str]]) -> RolloutRecord:
    """Return the record with the person's moves as a model role, each with its view."""
    steps = [TrajectoryStep([UserMessage(view)], [AssistantMessage(move)]) for view, move in moves]
    return msgspec.structs.replace(record, model_roles={**record.model_roles, OPPONENT: steps}) if steps else record


class PlayClient:
    """A client that shows its conversation in a game; the person answers if there is no other client.

    Args:
        client: Client that answers; None = the person plays the model.
        role: Model role that the environment queries; "" is the model itself. The conversation of another role is shown only
            in the person's prompts.
    """

    def __init__(self, session: PlaySession, client: Client | None, role: str = ""):
        self.session = session
        self.client = client
        self.role = role
        self.max_concurrent = 1

    def in_role(self, role: str) -> Client:
        """Return a client for another role."""
        return PlayClient(self.session, self.client, role)

    async def respond(self, request: Request) -> Response:
        """Show the conversation and return the response."""
        if self.role:
            return await self._respond_in_role(request)
        messages, boards = [*request.messages], (request.state or {}).get("renderings") or {}
        self.session.show(messages, boards)
        if self.client is None or self.session.role == "model":
            newest = boards.get(max(boards, default=0))
            return Response(AssistantMessage(await self.session.ask("", None, newest)))
        response = await self.client.respond(request)
        self.session.show([*messages, response.message], boards)
        return response

    async def _respond_in_role(self, request: Request) -> Response:
        if self.client is not None and self.session.role != "model":
            return await self.client.respond(request)
        messages = [dict(message) for message in request.messages]
        return Response(AssistantMessage(await self.session.answer(PlayerPrompt("", None, None, self.role, messages))))

    async def close(self) -> None:
        """Close the client."""
        if self.client is not None:
            await self.client.close()


def make_play_app(session: PlaySession, save: Callable[[RolloutRecord], str]) -> web.Application:
    """Return the application of one game on this machine; it accepts moves only from its own page."""
    app = web.Application(middlewares=[access_middleware("127.0.0.1", None)], client_max_size=1 << 18)
    files = page_files()

    async def page(request: web.Request) -> web.Response:
        return file_response(files, "play.html")

    async def static(request: web.Request) -> web.Response:
        return file_response(files, request.match_info["name"])

    async def game(request: web.Request) -> web.Response:
        return json_response(await session.state_after(request.query.get("after", "")))

    async def act(request: web.Request) -> web.Response:
        _act(session, request.match_info["name"], await json_body(request), save)
        return json_response(session.state())

    app.add_routes([web.get("/", page), web.get("/static/{name:.+}", static), web.get("/api/game", game)])
    app.add_routes([web.post("/api/{name:move|again|keep}", act)])
    return app


def _act(session: PlaySession, name: str, body: bytes, save: Callable[[RolloutRecord], str]) -> None:
    if name == "again":
        session.new_game(_decoded(body, NewGame, name))
    elif name == "keep":
        session.save(save)
    else:
        session.move(_decoded(body, Move, name))


def _decoded(body: bytes, kind: type[T], name: str) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except UNREADABLE as error:
        raise ConfigError(f"the body of '{name}' is invalid: {error}") from error
