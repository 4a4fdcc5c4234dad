"""All pages of a hub, rendered from its store; private environments appear only for their owner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from rove.hub.package.archives import README
from rove.hub.package.manifest import read_manifest
from rove.hub.server import catalogue
from rove.hub.server.catalogue import Query
from rove.hub.server.pages.environment import EnvironmentPage, environment_page
from rove.hub.server.pages.html import PageLocation, entry_facts, frame, link, tag, text
from rove.hub.server.pages.leaderboard import Row, rows_of
from rove.hub.server.pages.run import run_page
from rove.hub.server.store import Store

PAGE_SIZE = 100
"""Environments per page when served; an export has a single page."""
MAX_TAGS = 24
"""Maximum number of tags shown below the search form, most frequent first."""


def front_page(
    hub: str,
    entries: Sequence[Mapping[str, Any]],
    total: int,
    facets: Mapping[str, Mapping[str, int]],
    place: PageLocation,
    query: Query | None = None,
) -> bytes:
    """Render the list of environments.

    Args:
        hub: Name of the hub.
        entries: Environments on this page, from `catalogue.search`.
        total: Number of environments found on all pages.
        facets: Tags, owners and APIs to filter by; see `catalogue.facets`.
        place: Location of the page.
        query: The search; None lists all environments.
    """
    query = query or Query()
    whole = len(entries) == total and query == Query(limit=query.limit)
    count = f"{total:,} environment{'s' * (total != 1)}" + ("" if whole else " found")
    body = [
        tag("h1", text(hub)),
        tag("p", "Environments for evaluating and training language models.", "note"),
        _search(query, facets, place),
        f'<p id="found" role="status" class="note">{count}</p>',
        f'<ul class="environments"{" data-whole" if whole else ""}>',
        *(_entry_item(entry, place) for entry in entries),
        "</ul>",
        "" if entries else tag("p", "No environments" + ("." if whole else " match this search."), "none"),
        _pagination(query, len(entries), total, place),
    ]
    return frame(f"{hub} · environments", hub, place, [], body)


def _search(query: Query, facets: Mapping[str, Mapping[str, int]], place: PageLocation) -> str:
    words = f'<input type="search" name="q" id="q" maxlength="500" autocomplete="off" value="{text(query.q)}">'
    fields = [f'<label for="q">Search</label>{words}']
    for name in ("tag", "owner", "compatibility"):
        chosen = getattr(query, name)
        options = ['<option value="">any</option>']
        counts = dict(facets[name])
        if chosen:
            counts.setdefault(chosen, 0)
        for value, count in counts.items():
            mark = " selected" if value == chosen else ""
            options.append(f'<option value="{text(value)}"{mark}>{text(value)} ({count:,})</option>')
        fields.append(
            f'<label for="{name}">{name}</label><select name="{name}" id="{name}">{"".join(options)}</select>'
        )
    inputs = "".join(tag("div", field) for field in fields)
    button = tag("div", '<button type="submit">Search</button>' + link(place.front(), "Show all"), "act")
    chips = [link(place.front(tag=name), text(name), "chip") for name in list(facets["tag"])[:MAX_TAGS]]
    tags = f'<p class="chips" aria-label="frequent tags" role="group">{" ".join(chips)}</p>' if chips else ""
    return f'<form role="search" method="get" action="{text(place.front())}">{inputs}{button}</form>{tags}'


def _entry_item(entry: Mapping[str, Any], place: PageLocation) -> str:
    name = f"{entry['owner']}/{entry['name']}"
    words = " ".join((entry["owner"], entry["name"], entry["description"], *entry["tags"])).casefold()
    data = {
        "words": words,
        "owner": entry["owner"],
        "compatibility": entry["compatibility"],
        "tags": " ".join(entry["tags"]),
    }
    attributes = "".join(f' data-{key}="{text(value)}"' for key, value in data.items())
    address = place.environment(entry["owner"], entry["name"])
    title = tag("h2", link(address, text(name)) + " " + tag("small", text(entry["version"])))
    facts = tag("p", "".join(entry_facts(entry, place)), "facts")
    return f"<li{attributes}>{title}{tag('p', text(entry['description']))}{facts}</li>"


def _pagination(query: Query, count: int, total: int, place: PageLocation) -> str:
    """Return links to the previous and next page."""
    filters = {"q": query.q, "tag": query.tag, "owner": query.owner, "compatibility": query.compatibility}
    ways = []
    if query.offset:
        ways.append(link(place.front(**filters, offset=max(0, query.offset - query.limit)), "Previous"))
    if query.offset + count < total:
        ways.append(link(place.front(**filters, offset=query.offset + count), "Next"))
    return f'<nav aria-label="more pages"><p>{" · ".join(ways)}</p></nav>' if ways else ""


MAX_EXAMPLE_ATTEMPTS = 5
"""Number of leaderboard rows searched for pushed rollouts to show."""


class Site:
    """Renders the pages of a hub; for `reader` see `catalogue`.

    Args:
        store: The hub's store.
        hub: Name of the hub.
        leaf: See `PageLocation`.
    """

    def __init__(self, store: Store, hub: str, leaf: str = ""):
        self.store, self.hub, self.leaf = store, hub, leaf

    def search_page(self, query: Query, reader: str | None = None) -> bytes:
        """Render one page of the environments that match a query."""
        query = replace(query, limit=PAGE_SIZE)
        result = catalogue.search(self.store, query, reader)
        facets = catalogue.facets(self.store, reader)
        return front_page(self.hub, result["environments"], result["total"], facets, PageLocation(0, self.leaf), query)

    def index_page(self) -> bytes:
        """Render the list of all public environments on one page."""
        entries = catalogue.listing(self.store, self.hub)["environments"]
        entries.sort(key=lambda entry: (-entry["downloads"], entry["owner"], entry["name"]))
        return front_page(self.hub, entries, len(entries), catalogue.facets(self.store), PageLocation(0, self.leaf))

    def environment(self, owner: str, name: str, reader: str | None = None) -> bytes:
        """Render an environment's page.

        Raises:
            RejectedError: The environment does not exist or is hidden from this reader.
        """
        listed = catalogue.entry(self.store, owner, name, reader)
        releases = catalogue.releases(self.store, owner, name, reader)
        folder = self.store.files / owner / name
        place, readme = folder / listed["version"], folder / listed["version"] / README
        rows = [row for release in reversed(releases) for row in self.rows(owner, name, release.version, reader)]
        entry = EnvironmentPage(
            listed,
            read_manifest((place / "manifest.json").read_bytes()),
            readme.read_text(encoding="utf-8", errors="replace") if readme.is_file() else "",
            releases,
            rows,
            next(
                (
                    (row, result)
                    for row in rows[:MAX_EXAMPLE_ATTEMPTS]
                    if (result := self._pushed(owner, name, row).get("examples"))
                ),
                (None, None),
            ),
        )
        return environment_page(self.hub, entry, self.leaf)

    def rows(self, owner: str, name: str, version: str, reader: str | None = None) -> list[Row]:
        """Return the leaderboard rows of a version.

        Raises:
            RejectedError: The version does not exist or is hidden from this reader.
        """
        return rows_of(version, catalogue.runs(self.store, owner, name, version, reader)["runs"])

    def run(self, owner: str, name: str, row: Row) -> bytes:
        """Render the page of a run; `row` comes from `rows`."""
        return run_page(self.hub, (owner, name), row, self._pushed(owner, name, row), self.leaf)

    def _pushed(self, owner: str, name: str, row: Row) -> dict[str, Any]:
        file = self.store.files / owner / name / row.version / "runs" / f"{row.id}.json"
        return msgspec.json.decode(file.read_bytes())
