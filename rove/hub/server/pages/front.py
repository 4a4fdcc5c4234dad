"""The list of environments, to look through and to search."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rove.hub.server.catalogue import Query
from rove.hub.server.pages.frame import Place, frame, link
from rove.hub.server.pages.html import tag, text

PAGE = 100
"""Environments on a page that is served; an export has them all on one."""
TAGS = 24
"""Tags that are offered beside the search, the most frequent ones."""


def front_page(
    hub: str,
    cards: Sequence[Mapping[str, Any]],
    total: int,
    facets: Mapping[str, Mapping[str, int]],
    place: Place,
    query: Query | None = None,
) -> bytes:
    """The list as a page.

    Args:
        hub: the hub's name.
        cards: the environments on this page, as `catalogue.search` tells them.
        total: how many there are besides, these included.
        facets: tags, owners and kinds to choose from, see `catalogue.facets`.
        place: where the page is.
        query: what these were chosen by; None = all.
    """
    query = query or Query()
    whole = len(cards) == total and query == Query(limit=query.limit)
    found = f"{total:,} environment{'s' * (total != 1)}" + ("" if whole else " found")
    body = [
        tag("h1", text(hub)),
        tag("p", "Environments to evaluate and train language models in.", "note"),
        _search(query, facets, place),
        f'<p id="found" role="status" class="note">{found}</p>',
        f'<ul class="environments"{" data-whole" if whole else ""}>',
        *(_environment(card, place) for card in cards),
        "</ul>",
        "" if cards else tag("p", "Nothing here" + ("." if whole else " that has all of this."), "none"),
        _turn(query, len(cards), total, place),
    ]
    return frame(f"{hub} · environments", hub, place, [], body)


def _search(query: Query, facets: Mapping[str, Mapping[str, int]], place: Place) -> str:
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
    asked = "".join(tag("div", field) for field in fields)
    button = tag("div", '<button type="submit">Search</button>' + link(place.front(), "Show all"), "act")
    chips = [link(place.front(tag=name), text(name), "chip") for name in list(facets["tag"])[:TAGS]]
    tags = f'<p class="chips" aria-label="frequent tags" role="group">{" ".join(chips)}</p>' if chips else ""
    return f'<form role="search" method="get" action="{text(place.front())}">{asked}{button}</form>{tags}'


def _environment(card: Mapping[str, Any], place: Place) -> str:
    name = f"{card['owner']}/{card['name']}"
    words = " ".join((card["owner"], card["name"], card["description"], *card["tags"])).casefold()
    data = {
        "words": words,
        "owner": card["owner"],
        "compatibility": card["compatibility"],
        "tags": " ".join(card["tags"]),
    }
    told = "".join(f' data-{key}="{text(value)}"' for key, value in data.items())
    address = place.environment(card["owner"], card["name"])
    title = tag("h2", link(address, text(name)) + " " + tag("small", text(card["version"])))
    return (
        f"<li{told}>{title}{tag('p', text(card['description']))}{tag('p', ''.join(facts(card, place)), 'facts')}</li>"
    )


def facts(card: Mapping[str, Any], place: Place) -> Iterator[str]:
    """An environment's tags, then what else there is to say in a word."""
    for name in card["tags"]:
        yield link(place.front(tag=name), text(name), "chip") + " "
    count = card["downloads"]
    said = (
        f"for {card['compatibility']}",
        card["licence"],
        f"updated {card['updated'][:10]}",
        f"{count:,} download{'s' * (count != 1)}",
    )
    yield tag("span", text(" · ".join(filter(None, said))))


def _turn(query: Query, count: int, total: int, place: Place) -> str:
    """The ways to the pages before and after this one."""
    asked = {"q": query.q, "tag": query.tag, "owner": query.owner, "compatibility": query.compatibility}
    ways = []
    if query.offset:
        ways.append(link(place.front(**asked, offset=max(0, query.offset - query.limit)), "Previous"))
    if query.offset + count < total:
        ways.append(link(place.front(**asked, offset=query.offset + count), "Next"))
    return f'<nav aria-label="more pages"><p>{" · ".join(ways)}</p></nav>' if ways else ""
