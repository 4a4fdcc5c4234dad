"""The pages of a hub, from what is in its store. What a reader may not see is not on them."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from rove.hub.package.folder import README
from rove.hub.package.manifest import read_manifest
from rove.hub.server import catalogue
from rove.hub.server.catalogue import Query
from rove.hub.server.pages.card import Card, card_page
from rove.hub.server.pages.frame import Place
from rove.hub.server.pages.front import PAGE, front_page
from rove.hub.server.pages.leaderboard import Row, rows_of
from rove.hub.server.pages.run import run_page
from rove.hub.server.store import Store

TRIED = 5
"""So many of the best rows are asked for rollouts to show."""


class Site:
    """The pages; `reader` is as in `catalogue`.

    Args:
        store: what they show.
        hub: the hub's name.
        leaf: see `Place`.
    """

    def __init__(self, store: Store, hub: str, leaf: str = ""):
        self.store, self.hub, self.leaf = store, hub, leaf

    def found(self, query: Query, reader: str | None = None) -> bytes:
        """The list of what a query finds, a page of it."""
        query = replace(query, limit=PAGE)
        told = catalogue.search(self.store, query, reader)
        facets = catalogue.facets(self.store, reader)
        return front_page(self.hub, told["environments"], told["total"], facets, Place(0, self.leaf), query)

    def everything(self) -> bytes:
        """The list of all that is public, on one page."""
        cards = catalogue.listing(self.store, self.hub)["environments"]
        cards.sort(key=lambda card: (-card["downloads"], card["owner"], card["name"]))
        return front_page(self.hub, cards, len(cards), catalogue.facets(self.store), Place(0, self.leaf))

    def environment(self, owner: str, name: str, reader: str | None = None) -> bytes:
        """An environment's page.

        Raises:
            Refused: there is none of this name, for this reader.
        """
        listed = catalogue.card(self.store, owner, name, reader)
        releases = catalogue.releases(self.store, owner, name, reader)
        folder = self.store.files / owner / name
        place, readme = folder / listed["version"], folder / listed["version"] / README
        rows = [row for release in reversed(releases) for row in self.rows(owner, name, release.version, reader)]
        card = Card(
            listed,
            read_manifest((place / "manifest.json").read_bytes()),
            readme.read_text(encoding="utf-8", errors="replace") if readme.is_file() else "",
            releases,
            rows,
            next(
                ((row, told) for row in rows[:TRIED] if (told := self._pushed(owner, name, row).get("examples"))),
                (None, None),
            ),
        )
        return card_page(self.hub, card, self.leaf)

    def rows(self, owner: str, name: str, version: str, reader: str | None = None) -> list[Row]:
        """A version's rows of the leaderboard.

        Raises:
            Refused: there is no such version, for this reader.
        """
        return rows_of(version, catalogue.runs(self.store, owner, name, version, reader)["runs"])

    def run(self, owner: str, name: str, row: Row) -> bytes:
        """The page of a run, of `rows`."""
        return run_page(self.hub, (owner, name), row, self._pushed(owner, name, row), self.leaf)

    def _pushed(self, owner: str, name: str, row: Row) -> dict[str, Any]:
        file = self.store.files / owner / name / row.version / "runs" / f"{row.id}.json"
        return msgspec.json.decode(file.read_bytes())
