"""An environment's page: how to install it, its README, what models came to in it, what its manifest says, its versions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rove.hub.package.manifest import Manifest
from rove.hub.server.catalogue import ARCHIVES, Released
from rove.hub.server.pages.frame import Place, frame, link
from rove.hub.server.pages.front import facts
from rove.hub.server.pages.html import block, fold, table, tag, text
from rove.hub.server.pages.leaderboard import Row, Scale, drawn, leaderboard, scale_of
from rove.hub.server.pages.readme import LONGEST, readme_html
from rove.hub.server.pages.run import examples_html
from rove.hub.server.pages.summaries import Estimate
from rove.viewer.html import shown

HUB = "HUB"
"""Stands for the hub's address, until a browser says what it is."""


class Card(NamedTuple):
    """What an environment's page tells."""

    listed: Mapping[str, Any]
    """As the list has it, with the version that is shown."""
    manifest: Manifest
    readme: str
    releases: Sequence[Released]
    """Newest last."""
    rows: Sequence[Row]
    """Of the leaderboard, newest version first."""
    examples: tuple[Row | None, Any]
    """A row and the rollouts that were pushed with it; None where there are none."""

    @property
    def release(self) -> Released:
        """The version that is shown."""
        return next(one for one in self.releases if one.version == self.listed["version"])


def card_page(hub: str, card: Card, leaf: str) -> bytes:
    """The page.

    Args:
        hub: the hub's name.
        card: what it tells.
        leaf: see `Place`.
    """
    place, listed = Place(2, leaf), card.listed
    owner, name = listed["owner"], listed["name"]
    title = link(place.front(owner=owner), text(owner)) + "/" + text(name)
    main = [*_readme(card, place), *_results(card), *_versions(card, place)]
    beside = [("install", _install(owner, name)), ("manifest", _manifest(card.manifest))]
    install, manifest = (tag("section", "\n".join(parts), kind) for kind, parts in beside)
    body = [
        tag("h1", f"{title} {tag('small', text(listed['version']))}"),
        tag("p", text(listed["description"])),
        tag("p", "".join(facts(listed, place)), "facts"),
        tag("p", _yanked(card.release.yanked, "This version was yanked")),
        tag("div", install + tag("div", "\n".join(main), "story") + manifest, "split"),
    ]
    trail = [(f"{owner}/{name}", "")]
    return frame(f"{owner}/{name} · {hub}", hub, place, trail, filter(None, body))


def _yanked(reason: str | None, what: str = "yanked") -> str:
    return "" if reason is None else tag("span", text(f"{what}: {reason}" if reason else what), "bad")


def _readme(card: Card, place: Place) -> Iterator[str]:
    if not card.readme.strip():
        return
    yield tag("h2", "README")
    yield tag("div", readme_html(card.readme), "readme")
    if len(card.readme) > LONGEST:
        address = place.file(card.listed["owner"], card.listed["name"], card.listed["version"], "README.md")
        yield tag("p", "It goes on: " + link(address, "the whole README"), "note")


def _results(card: Card) -> Iterator[str]:
    players, rows = card.manifest.policies, card.rows
    rewards = [*(card.manifest.reward_range or ()), *(player.reward for player in players.values())]
    scale = scale_of((row.summary.reward for row in rows), rewards)
    yield tag("h2", "Leaderboard")
    if rows:
        told = "rewards of other versions, or under other settings, are not of one kind"
        yield tag("p", f"As pushed by {text(card.listed['owner'])}, each with the run behind it; {told}.", "note")
        yield leaderboard(rows, scale)
    else:
        yield tag("p", "No results have been pushed yet.")
    if players:
        yield tag("h3", "Its scripted policies")
        yield _players(card.manifest, scale)
    best, pushed = card.examples
    examples = examples_html(pushed)
    if best and examples:
        yield tag("h2", "Rollouts")
        run = link(best.address, text(best.model))
        yield tag("p", f"Of {run} in version {text(best.version)}, from its lowest reward to its highest.", "note")
        yield "\n".join(examples)


def _players(manifest: Manifest, scale: Scale) -> str:
    rows = [
        (text(name), shown(player.reward), drawn(name, Estimate(player.reward), scale), shown(player.n))
        for name, player in sorted(manifest.policies.items(), key=lambda item: -item[1].reward)
    ]
    seeds = ", ".join(map(str, manifest.seeds))
    note = tag("p", f"When version {text(manifest.version)} was built" + (f", seed {seeds}." if seeds else "."), "note")
    return note + table(("player", "mean reward", scale.ends, "rollouts"), rows, "policies")


def _versions(card: Card, place: Place) -> Iterator[str]:
    owner, name = card.listed["owner"], card.listed["name"]
    rows = []
    for release in reversed(card.releases):
        where = (owner, name, release.version)
        files = [
            link(place.file(*where, file.filename), text(file.filename)) + f" {tag('small', _size(file.size))}"
            for file in release.files
            if file.kind in ARCHIVES
        ]
        about = [link(place.file(*where, "manifest.json"), "manifest")]
        if any(file.kind == "signature" for file in release.files):
            about.append(link(place.file(*where, "manifest.sig"), "signature"))
        told = _yanked(release.yanked) or "offered"
        rows.append(
            (text(release.version), text(release.uploaded[:10]), told, "<br>".join([*files, " · ".join(about)]))
        )
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
    for how, command in commands.items():
        marked = text(command).replace(HUB, f'<span class="hub">{HUB}</span>', 1)
        yield tag("p", how, "how") + f'<pre class="command">{marked}</pre>'
    yield tag("p", f"{HUB} is the address of this hub.", "note hub-note")


def _manifest(manifest: Manifest) -> Iterator[str]:
    needs, source = manifest.needs, manifest.source
    wanted = [*("the network",) * needs.network, *("a sandbox",) * needs.sandbox, *needs.secrets]
    lowest_highest = manifest.reward_range and f"{shown(manifest.reward_range[0])} to {shown(manifest.reward_range[1])}"
    lines: dict[str, str] = {
        "rewards": text(lowest_highest or "not told"),
        "scores": text(", ".join(manifest.metrics)),
        "tools": text(", ".join(manifest.tools)),
        "needs": text(", ".join(wanted) or "nothing besides"),
        "data": text(", ".join(manifest.data_sources)),
        "written for": text(manifest.compatibility),
        "licence": text(manifest.licence or "not told"),
        "authors": text(", ".join(manifest.authors)),
        "Python": text(manifest.requires_python),
        "module": tag("code", text(manifest.module)),
        "source": link(source.repository, text(source.repository)) if source.repository else "",
        "commit": tag("code", text(source.commit)) if source.commit else "",
        "built by": text(", ".join(filter(None, (source.builder, f"rove {manifest.rove}" * bool(manifest.rove))))),
        "content": tag("code", text(manifest.content)),
    }
    yield tag("h2", "Manifest")
    yield tag("dl", "".join(tag("dt", key) + tag("dd", value) for key, value in lines.items() if value))
    if manifest.arguments:
        arguments = [
            (
                tag("code", text(one.name)),
                text(one.type),
                "needed" if one.default is None else tag("code", text(one.default)),
            )
            for one in manifest.arguments
        ]
        yield tag("h3", "Arguments") + table(("name", "type", "default"), arguments, "arguments")
    if manifest.dependencies:
        yield fold(f"Dependencies ({len(manifest.dependencies)})", block("\n".join(manifest.dependencies)))
