"""All pages of a hub, rendered from its store; private environments appear only for their owner."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from rove.audit.card import Card, card_markdown
from rove.core.errors import RejectedError
from rove.core.plain import JsonMapping
from rove.hub.package.archives import README, card_of_wheel
from rove.hub.package.manifest import Manifest, read_manifest
from rove.hub.server import catalogue
from rove.hub.server.catalogue import ARCHIVES, Query, StoredRelease
from rove.hub.server.pages.html import (
    MAX_README_CHARS,
    PageLocation,
    block,
    collapsible,
    entry_facts,
    frame,
    link,
    readme_html,
    table,
    tag,
    text,
)
from rove.hub.server.pages.leaderboard import Row, Scale, interval_svg, leaderboard, rows_of, scale_of
from rove.hub.server.pages.run import run_page
from rove.hub.server.store import Store
from rove.statistics.format import shown
from rove.utils.units import counted

HUB = "HUB"
"""Placeholder for the hub's address; a script replaces it in the browser."""


class EnvironmentPage(NamedTuple):
    """The data shown on an environment's page."""

    listed: JsonMapping
    """The environment's entry in the list; `version` is the version shown."""
    manifest: Manifest
    readme: str
    releases: Sequence[StoredRelease]
    """All versions, the newest last."""
    rows: Sequence[Row]
    """Rows of the leaderboard, newest version first."""
    card: Card | None
    """The card that the package contains."""

    @property
    def release(self) -> StoredRelease:
        """The version shown."""
        return next(release for release in self.releases if release.version == self.listed["version"])


def environment_page(hub: str, page: EnvironmentPage, leaf: str) -> bytes:
    """Render the page of an environment; `leaf`: see `PageLocation`."""
    location, listed = PageLocation(2, leaf), page.listed
    owner, name = listed["owner"], listed["name"]
    title = link(location.front(owner=owner), text(owner)) + "/" + text(name)
    yanked = _yanked(page.release.yanked, "This version was yanked")
    main = [*_readme(page, location), *_card(page), *_results(page), *_versions(page, location)]
    install = tag("section", "\n".join(_install(owner, name)), "install")
    manifest = tag("section", "\n".join(_manifest(page.manifest)), "manifest")
    body = [
        tag("h1", f"{title} {tag('small', text(listed['version']))}"),
        tag("p", text(listed["description"])),
        tag("p", "".join(entry_facts(listed, location)), "facts"),
        tag("p", yanked) if yanked else "",
        tag("div", install + tag("div", "\n".join(main), "story") + manifest, "split"),
    ]
    reference = f"{owner}/{name}"
    return frame(f"{reference} · {hub}", hub, location, [(reference, "")], filter(None, body))


def _yanked(reason: str | None, state: str = "yanked") -> str:
    if reason is None:
        return ""
    return tag("span", text(f"{state}: {reason}" if reason else state), "bad")


def _readme(page: EnvironmentPage, location: PageLocation) -> Iterator[str]:
    if not page.readme.strip():
        return
    yield tag("h2", "README")
    yield tag("div", readme_html(page.readme), "readme")
    if len(page.readme) > MAX_README_CHARS:
        address = location.file(page.listed["owner"], page.listed["name"], page.listed["version"], "README.md")
        yield tag("p", "Truncated. " + link(address, "Read the whole README"), "note")


def _card(page: EnvironmentPage) -> Iterator[str]:
    if page.card is not None:
        yield tag("p", f"The package contains the following card, which {text(page.listed['owner'])} wrote.", "note")
        yield tag("div", readme_html(card_markdown(page.card)), "readme")


def _results(page: EnvironmentPage) -> Iterator[str]:
    policies, rows = page.manifest.policies, page.rows
    rewards = [*(page.manifest.reward_range or ()), *(policy.reward for policy in policies.values())]
    scale = scale_of((row.reward for row in rows), rewards)
    yield tag("h2", "Leaderboard")
    if rows:
        note = "Rewards are not comparable across versions or settings."
        yield tag("p", f"Pushed by {text(page.listed['owner'])}; each row links to its run. {note}", "note")
        yield leaderboard(rows, scale)
    else:
        yield tag("p", "No results have been pushed yet.")
    if policies:
        yield tag("h3", "Scripted policies")
        yield _policies(page.manifest, scale)


def _policies(manifest: Manifest, scale: Scale) -> str:
    rows = [
        (text(name), shown(policy.reward), interval_svg(name, {"mean": policy.reward}, scale), shown(policy.n))
        for name, policy in sorted(manifest.policies.items(), key=lambda item: -item[1].reward)
    ]
    seeds = ", ".join(map(str, manifest.seeds))
    measured = f"Measured when version {text(manifest.version)} was built" + (f", seed {seeds}." if seeds else ".")
    return tag("p", measured, "note") + table(("policy", "mean reward", scale.ends, "rollouts"), rows, "policies")


def _versions(page: EnvironmentPage, location: PageLocation) -> Iterator[str]:
    owner, name = page.listed["owner"], page.listed["name"]
    rows = []
    for release in reversed(page.releases):
        version_path = (owner, name, release.version)
        files = [
            link(location.file(*version_path, file.filename), text(file.filename))
            + f" {tag('small', _size(file.size))}"
            for file in release.files
            if file.kind in ARCHIVES
        ]
        links = [link(location.file(*version_path, "manifest.json"), "manifest")]
        if any(file.kind == "signature" for file in release.files):
            links.append(link(location.file(*version_path, "manifest.sig"), "signature"))
        state = _yanked(release.yanked) or "available"
        published = text(release.uploaded[:10])
        rows.append((text(release.version), published, state, "<br>".join([*files, " · ".join(links)])))
    yield tag("h2", "Versions")
    yield table(("version", "published", "state", "files"), rows, "versions")


def _size(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.1f} kB"


def _install(owner: str, name: str) -> Iterator[str]:
    yield tag("h2", "Install")
    commands = {
        "with rove": f"rove install {owner}/{name} --hub {HUB}",
        "with pip": f"pip install --index-url {HUB}/{owner}/simple/ {name}",
        "with uv": f"uv pip install --index-url {HUB}/{owner}/simple/ {name}",
    }
    for tool, command in commands.items():
        marked = text(command).replace(HUB, f'<span class="hub">{HUB}</span>', 1)
        yield tag("p", tool, "how") + f'<pre class="command">{marked}</pre>'
    yield tag("p", f"{HUB} is the address of this hub.", "note hub-note")


def _manifest(manifest: Manifest) -> Iterator[str]:
    source = manifest.source
    reward_range = "not declared"
    if manifest.reward_range is not None:
        reward_range = " to ".join(map(shown, manifest.reward_range))
    builders = [source.builder, f"rove {manifest.rove}" if manifest.rove else ""]
    lines: dict[str, str] = {
        "reward range": text(reward_range),
        "metrics": text(", ".join(manifest.metrics)),
        "tools": text(", ".join(manifest.tools)),
        "requires": text(manifest.needs.description),
        "data sources": text(", ".join(manifest.data_sources)),
        "API": text(manifest.compatibility),
        "license": text(manifest.licence or "not declared"),
        "authors": text(", ".join(manifest.authors)),
        "Python": text(manifest.requires_python),
        "module": tag("code", text(manifest.module)),
        "source": link(source.repository, text(source.repository)) if source.repository else "",
        "commit": tag("code", text(source.commit)) if source.commit else "",
        "built by": text(", ".join(filter(None, builders))),
        "content": tag("code", text(manifest.content)),
    }
    yield tag("h2", "Manifest")
    rows = [tag("dt", key) + tag("dd", value) for key, value in lines.items() if value]
    yield tag("dl", "".join(rows))
    if manifest.arguments:
        arguments = []
        for argument in manifest.arguments:
            default = "required" if argument.default is None else tag("code", text(argument.default))
            arguments.append((tag("code", text(argument.name)), text(argument.type), default))
        yield tag("h3", "Arguments") + table(("name", "type", "default"), arguments, "arguments")
    if manifest.dependencies:
        yield collapsible(f"Dependencies ({len(manifest.dependencies)})", block("\n".join(manifest.dependencies)))


PAGE_SIZE = 100
"""Maximum number of environments per page of a served hub; an export has a single page."""
MAX_TAGS = 24
"""Maximum number of tags shown below the search form, most frequent first."""


def front_page(
    hub: str,
    entries: Sequence[Mapping[str, object]],
    total: int,
    facets: Mapping[str, Mapping[str, int]],
    location: PageLocation,
    query: Query | None = None,
) -> bytes:
    """Render a page of the list of environments.

    `entries` are the environments on this page, out of `total` matching environments; `facets` are the filters to offer; a
    `query` of None lists all environments.
    """
    query = query or Query()
    whole = len(entries) == total and query == Query(limit=query.limit)
    count = counted(total, "environment") + ("" if whole else " found")
    empty = "No environments." if whole else "No environments match this search."
    body = [
        tag("h1", text(hub)),
        tag("p", "Environments for evaluating and training language models.", "note"),
        _search(query, facets, location),
        f'<p id="found" role="status" class="note">{count}</p>',
        f'<ul class="environments"{" data-whole" if whole else ""}>',
        *(_entry_item(entry, location) for entry in entries),
        "</ul>",
        "" if entries else tag("p", empty, "none"),
        _pagination(query, len(entries), total, location),
    ]
    return frame(f"{hub} · environments", hub, location, [], body)


def _search(query: Query, facets: Mapping[str, Mapping[str, int]], location: PageLocation) -> str:
    words = f'<input type="search" name="q" id="q" maxlength="500" autocomplete="off" value="{text(query.q)}">'
    fields = [f'<label for="q">Search</label>{words}']
    for name in ("tag", "owner", "compatibility"):
        fields.append(_select(name, getattr(query, name), facets[name]))
    inputs = "".join(tag("div", field) for field in fields)
    button = tag("div", '<button type="submit">Search</button>' + link(location.front(), "Show all"), "act")
    chips = [link(location.front(tag=name), text(name), "chip") for name in list(facets["tag"])[:MAX_TAGS]]
    tags = f'<p class="chips" aria-label="frequent tags" role="group">{" ".join(chips)}</p>' if chips else ""
    return f'<form role="search" method="get" action="{text(location.front())}">{inputs}{button}</form>{tags}'


def _select(name: str, chosen: str, facet: Mapping[str, int]) -> str:
    """Return a filter with its label; the chosen value is an option even if no environment has it."""
    counts = dict(facet)
    if chosen:
        counts.setdefault(chosen, 0)
    options = '<option value="">any</option>'
    for value, count in counts.items():
        mark = " selected" if value == chosen else ""
        options += f'<option value="{text(value)}"{mark}>{text(value)} ({count:,})</option>'
    return f'<label for="{name}">{name}</label><select name="{name}" id="{name}">{options}</select>'


def _entry_item(entry: JsonMapping, location: PageLocation) -> str:
    name = f"{entry['owner']}/{entry['name']}"
    words = " ".join((entry["owner"], entry["name"], entry["description"], *entry["tags"])).casefold()
    data = {
        "words": words,
        "owner": entry["owner"],
        "compatibility": entry["compatibility"],
        "tags": " ".join(entry["tags"]),
    }
    attributes = "".join(f' data-{key}="{text(value)}"' for key, value in data.items())
    address = location.environment(entry["owner"], entry["name"])
    title = tag("h2", f"{link(address, text(name))} {tag('small', text(entry['version']))}")
    description = tag("p", text(entry["description"]))
    facts = tag("p", "".join(entry_facts(entry, location)), "facts")
    return f"<li{attributes}>{title}{description}{facts}</li>"


def _pagination(query: Query, count: int, total: int, location: PageLocation) -> str:
    """Return links to the previous and next page."""
    filters = {"q": query.q, "tag": query.tag, "owner": query.owner, "compatibility": query.compatibility}
    ways = []
    if query.offset:
        ways.append(link(location.front(**filters, offset=max(0, query.offset - query.limit)), "Previous"))
    if query.offset + count < total:
        ways.append(link(location.front(**filters, offset=query.offset + count), "Next"))
    return f'<nav aria-label="more pages"><p>{" · ".join(ways)}</p></nav>' if ways else ""


class Site:
    """Renders the pages of a hub named `hub`; `reader` is explained in `catalogue`, `leaf` in `PageLocation`."""

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
        """Render an environment's page."""
        listed = catalogue.entry(self.store, owner, name, reader)
        releases = catalogue.releases(self.store, owner, name, reader)
        folder = self.store.files / owner / name
        version_folder = folder / listed["version"]
        readme = version_folder / README
        release_manifest = read_manifest((version_folder / "manifest.json").read_bytes())
        rows: list[Row] = []
        for release in reversed(releases):
            rows += self.rows(owner, name, release.version, reader)
        entry = EnvironmentPage(
            listed,
            release_manifest,
            readme.read_text(encoding="utf-8", errors="replace") if readme.is_file() else "",
            releases,
            rows,
            card_of_wheel(version_folder / release_manifest.wheel.filename),
        )
        return environment_page(self.hub, entry, self.leaf)

    def rows(self, owner: str, name: str, version: str, reader: str | None = None) -> list[Row]:
        """Return the leaderboard rows of a version."""
        return rows_of(version, catalogue.runs(self.store, owner, name, version, reader)["runs"])

    def run_page(self, owner: str, name: str, version: str, id: str, reader: str | None = None) -> bytes:
        """Render the page of a run."""
        for row in self.rows(owner, name, version, reader):
            if row.id == id:
                return self.run(owner, name, row)
        raise RejectedError(404, "this hub has no such results")

    def run(self, owner: str, name: str, row: Row) -> bytes:
        """Render the page of a run; `row` comes from `rows`."""
        file = self.store.files / owner / name / row.version / "runs" / f"{row.id}.json"
        pushed = msgspec.json.decode(file.read_bytes())
        return run_page(self.hub, (owner, name), row, pushed, self.leaf)
