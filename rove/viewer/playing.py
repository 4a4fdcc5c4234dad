"""A game in the browser: a person sits at one side of an environment, or watches, and may keep what was played."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal

import msgspec
from aiohttp import web

from rove.errors import ConfigError
from rove.messages import AssistantMessage
from rove.protocols import Client, Request, Response
from rove.records import RolloutRecord
from rove.viewer.app import Refused, doorkeeper, file_answer, page_files
from rove.viewer.rollouts import shortened

Seat = Literal["opponent", "model", "none"]
"""Where the person sits: against the model, in its place, or beside it."""
MESSAGE = 20_000
"""Most characters shown of a text, and taken of a move."""
WAIT = 20.0
"""Seconds that a question for news is kept waiting."""


class Move(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the person does: `text` in answer to the state `number`."""

    number: int
    text: str


class Table:
    """Where a person and a model meet.

    Args:
        env_id: name of the environment; it may know how its views are drawn.
        model: who plays, "" for nobody.
        seat: the person's.
    """

    def __init__(self, env_id: str, model: str, seat: Seat):
        self.env_id = env_id
        self.model = model
        self.seat = seat
        self.number = 0
        """Counts the changes."""
        self.messages: list[dict[str, Any]] = []
        self.asked: tuple[str, list[str] | None] | None = None
        """What the person is asked: the view, and the legal moves where they are known."""
        self.record: RolloutRecord | None = None
        self.kept = ""
        self._answer: asyncio.Future[str] | None = None
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
            "seat": self.seat,
            "messages": shortened(self.messages, MESSAGE),
            "asked": None if self.asked is None else {"view": self.asked[0], "legal": self.asked[1]},
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

    def show(self, messages: Sequence[Mapping[str, Any]]) -> None:
        """What has been said so far."""
        self.messages = [dict(message) for message in messages]
        self._changed()

    async def ask(self, view: str, legal: list[str] | None) -> str:
        """What the person does: an `Opponent` of a two-player environment."""
        self._answer = asyncio.get_running_loop().create_future()
        self.asked = view, legal
        self._changed()
        try:
            return await self._answer
        finally:
            self.asked = self._answer = None
            self._changed()

    async def finish(self, record: RolloutRecord) -> None:
        """The game is over; returns when another one is wanted."""
        self.record = record
        self.show([*record.prompt, *record.completion])
        self._again.clear()
        await self._again.wait()
        self.record, self.kept, self.messages = None, "", []
        self._changed()

    # the person's side

    def move(self, move: Move) -> None:
        """Take a move.

        Raises:
            ConfigError: nobody has asked, or it is not a legal one.
        """
        if self.asked is None or self._answer is None or self._answer.done() or move.number != self.number:
            raise ConfigError("it is not your turn; look at the board again")
        legal = self.asked[1]
        if legal is not None and move.text not in legal:
            raise ConfigError(f"'{move.text[:40]}' is not one of {', '.join(legal)}")
        if not 0 < len(move.text) <= MESSAGE:
            raise ConfigError(f"an answer has 1 to {MESSAGE:,} characters")
        self._answer.set_result(move.text)

    def again(self) -> None:
        """Begin another game.

        Raises:
            ConfigError: this one is not over yet.
        """
        self._finished()
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


class AtTable:
    """A client whose conversation is shown at a table; without a client behind it the person answers.

    Args:
        table: where.
        client: who answers; None = whoever sits there.
    """

    def __init__(self, table: Table, client: Client | None):
        self.table = table
        self.client = client
        self.max_concurrent = 1

    async def respond(self, request: Request) -> Response:
        """Show the conversation, and the answer."""
        said = [*request.messages]
        self.table.show(said)
        if self.client is None:
            return Response(AssistantMessage(await self.table.ask("", None)))
        response = await self.client.respond(request)
        self.table.show([*said, response.message])
        return response

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
    if name == "again":
        table.again()
    elif name == "keep":
        table.keep(keep)
    else:
        try:
            table.move(msgspec.json.decode(body, type=Move))
        except msgspec.MsgspecError as error:
            raise ConfigError(f"not a move: {error}") from error


def _json(value: Any) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")
