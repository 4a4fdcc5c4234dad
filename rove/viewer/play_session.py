"""A game in the browser: a person sits at one side of an environment, or watches, and may keep what was played."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import msgspec
from aiohttp import web

from rove.core.errors import ConfigError, nearest
from rove.core.messages import AssistantMessage, UserMessage
from rove.core.protocols import Client, Request, Response
from rove.core.records import RolloutRecord, TrajectoryStep
from rove.core.renderings import Rendering
from rove.games.replay_cases import OPPONENT
from rove.viewer.app import Refused, doorkeeper, file_answer, page_files
from rove.viewer.rollouts import shortened

OWN_ROLES = ("opponent", "model", "none")
"""Where a person may sit: against the model, in its place, or beside it. Any other role is one that the environment asks by name
(`rove.query`); it may be a pattern of names."""
MESSAGE = 20_000
"""Most characters shown of a text, and taken of a move."""
WAIT = 20.0
"""Seconds that a question for news is kept waiting."""


class Move(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the person does: `text` in answer to the state `number`."""

    number: int
    text: str


class Again(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Another game, in another role if it is given."""

    role: str | None = None


class Question(NamedTuple):
    """What the person is asked."""

    view: str
    legal: list[str] | None
    """The legal moves, where they are known."""
    board: Rendering | None
    role: str = ""
    """The name by which the environment asks the person; "" where it is no role of `rove.query`."""
    messages: list[dict[str, Any]] = []  # noqa: RUF012  never changed
    """The conversation as that role sees it."""


class Table:
    """Where a person and a model meet.

    Args:
        env_id: name of the environment; the viewer may know how its texts are drawn.
        model: who plays, "" for nobody.
        roles: where the person may sit; the first is taken. Further ones may be `offer`ed.
        fields: what an answer in the model's role consists of, tag by tag; none = it is a free text.
        answer_field: which of them is the move.
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
        """Counts the changes."""
        self.messages: list[dict[str, Any]] = []
        self.renderings: Mapping[int, Rendering] = {}
        """What the environment drew, by the message it was drawn after."""
        self.asked: Question | None = None
        self.moves: list[tuple[str, str]] = []
        """The person's in the opponent's role, each with the view it answered."""
        self.record: RolloutRecord | None = None
        self.kept = ""
        self._answer: asyncio.Future[str] | None = None
        self._turn = asyncio.Lock()
        self._again = asyncio.Event()
        self._news = asyncio.Event()

    def _changed(self) -> None:
        self.number += 1
        self._news.set()
        self._news = asyncio.Event()

    def state(self) -> dict[str, Any]:
        """Everything the page shows."""
        record = self.record
        return {
            "number": self.number,
            "env": self.env_id,
            "model": self.model,
            "role": self.role,
            "model_roles": self.model_roles,
            "fields": self.fields,
            "answer_field": self.answer_field,
            "messages": shortened(self.messages, MESSAGE),
            "renderings": {str(place): board for place, board in self.renderings.items()},
            "asked": None if self.asked is None else shortened(self.asked._asdict(), MESSAGE),
            "over": record is not None,
            "scores": None if record is None else msgspec.to_builtins(record.scores),
            "error": None
            if record is None or record.error is None
            else shortened(msgspec.to_builtins(record.error), MESSAGE),
            "kept": self.kept,
        }

    async def state_after(self, number: str) -> dict[str, Any]:
        """The state once its number is another one, or as it is after a while."""
        if str(self.number) == number:
            news = self._news
            with suppress(TimeoutError):
                await asyncio.wait_for(news.wait(), WAIT)
        return self.state()

    # the game's side

    def show(self, messages: Sequence[Mapping[str, Any]], boards: Mapping[int, Rendering]) -> None:
        """What has been said so far, and drawn after which message."""
        self.messages = [dict(message) for message in messages]
        self.renderings = dict(boards)
        self._changed()

    async def ask(self, view: str, legal: list[str] | None, board: Rendering | None = None) -> str:
        """What the person does: an `Opponent` of a two-player environment."""
        answer = await self.answer(Question(view, legal, board))
        if legal is not None:
            self.moves.append((view, answer))
        return answer

    async def answer(self, question: Question) -> str:
        """What the person says to a question; of several at once, one after the other."""
        async with self._turn:
            self._answer = asyncio.get_running_loop().create_future()
            self.asked = question
            self._changed()
            try:
                return await self._answer
            finally:
                self.asked = self._answer = None
                self._changed()

    def is_mine(self, role: str) -> bool:
        """Whether the person sits where the environment asks by this name."""
        return self.role not in ("model", "none") and fnmatchcase(role, self.role)

    def offer(self, roles: Iterable[str]) -> None:
        """Let the person sit in these, too, in the games that come."""
        self.model_roles += [role for role in roles if not any(fnmatchcase(role, one) for one in self.model_roles)]

    async def finish(self, record: RolloutRecord) -> None:
        """The game is over; returns when another one is wanted."""
        self.record = with_opponent(record, self.moves)
        self.show([*record.prompt, *record.completion], record.renderings)
        self._again.clear()
        await self._again.wait()
        self.record, self.kept, self.moves = None, "", []
        self.show([], {})

    # the person's side

    def move(self, move: Move) -> None:
        """Take a move.

        Raises:
            ConfigError: nobody has asked, or it is not a legal one.
        """
        if self.asked is None or self._answer is None or self._answer.done() or move.number != self.number:
            raise ConfigError("it is not your turn; look at the board again")
        legal = self.asked.legal
        if legal is not None and move.text not in legal:
            raise ConfigError(f"'{move.text[:40]}' is not one of {', '.join(legal)}")
        if not 0 < len(move.text) <= MESSAGE:
            raise ConfigError(f"an answer has 1 to {MESSAGE:,} characters")
        self._answer.set_result(move.text)

    def again(self, wanted: Again = Again()) -> None:  # noqa: B008  frozen
        """Begin another game.

        Raises:
            ConfigError: this one is not over yet, or there is no such role.
        """
        self._finished()
        role = next((role for role in self.model_roles if role == wanted.role), None)
        if wanted.role is not None and role is None:
            raise ConfigError(
                f"no role '{wanted.role[:40]}' at this table; {nearest(wanted.role[:40], self.model_roles)}"
            )
        self.role = role or self.role
        self._again.set()

    def keep(self, put: Callable[[RolloutRecord], str]) -> None:
        """Keep the game that is over, once; `put` puts it away and says where.

        Raises:
            ConfigError: it is not over yet.
        """
        record = self._finished()
        if not self.kept:
            self.kept = put(record)
            self._changed()

    def _finished(self) -> RolloutRecord:
        if self.record is None:
            raise ConfigError("this game is not over yet")
        return self.record


def with_opponent(record: RolloutRecord, moves: Sequence[tuple[str, str]]) -> RolloutRecord:
    """The record with what a person did in the opponent's role: views and moves, as those of any other role."""
    steps = [TrajectoryStep([UserMessage(view)], [AssistantMessage(move)]) for view, move in moves]
    return msgspec.structs.replace(record, model_roles={**record.model_roles, OPPONENT: steps}) if steps else record


class AtTable:
    """A client whose conversation is shown at a table; without a client behind it the person answers.

    Args:
        table: where.
        client: who answers where the person does not sit in the model's role; None = nobody else.
        role: the name by which the environment asks; "" is the model's role. Another role's conversation is shown only where
            the person is asked.
    """

    def __init__(self, table: Table, client: Client | None, role: str = ""):
        self.table = table
        self.client = client
        self.role = role
        self.max_concurrent = 1

    def in_role(self, role: str) -> Client:
        """The same, asked in another role."""
        return AtTable(self.table, self.client, role)

    async def respond(self, request: Request) -> Response:
        """Show the conversation, and the answer."""
        if self.role:
            return await self._respond_in_role(request)
        said, boards = [*request.messages], (request.state or {}).get("drawn_boards") or {}
        self.table.show(said, boards)
        if self.client is None or self.table.role == "model":
            newest = boards.get(max(boards, default=0))
            return Response(AssistantMessage(await self.table.ask("", None, newest)))
        response = await self.client.respond(request)
        self.table.show([*said, response.message], boards)
        return response

    async def _respond_in_role(self, request: Request) -> Response:
        if self.client is not None and self.table.role != "model":
            return await self.client.respond(request)
        said = [dict(message) for message in request.messages]
        return Response(AssistantMessage(await self.table.answer(Question("", None, None, self.role, said))))

    async def close(self) -> None:
        """Close the client behind."""
        if self.client is not None:
            await self.client.close()


def make_table(table: Table, keep: Callable[[RolloutRecord], str]) -> web.Application:
    """The application of one table on this machine: it answers what it is asked, and takes moves from its own page only.

    Args:
        table: the table.
        keep: puts a played game away and says where.
    """
    app = web.Application(middlewares=[doorkeeper("127.0.0.1", None)], client_max_size=1 << 18)
    files = page_files()

    async def page(request: web.Request) -> web.Response:
        return file_answer(files, "play.html")

    async def static(request: web.Request) -> web.Response:
        return file_answer(files, request.match_info["name"])

    async def game(request: web.Request) -> web.Response:
        return _json(await table.state_after(request.query.get("after", "")))

    async def act(request: web.Request) -> web.Response:
        if request.content_type != "application/json":  # what a form of another site cannot send
            raise Refused(415, "send JSON")
        _act(table, request.match_info["name"], await request.read(), keep)
        return _json(table.state())

    app.add_routes([web.get("/", page), web.get("/static/{name}", static), web.get("/api/game", game)])
    app.add_routes([web.post("/api/{name:move|again|keep}", act)])
    return app


def _act(table: Table, name: str, body: bytes, keep: Callable[[RolloutRecord], str]) -> None:
    try:
        if name == "again":
            table.again(msgspec.json.decode(body, type=Again))
        elif name == "keep":
            table.keep(keep)
        else:
            table.move(msgspec.json.decode(body, type=Move))
    except msgspec.MsgspecError as error:
        raise ConfigError(f"not what '{name}' takes: {error}") from error


def _json(value: Any) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")
