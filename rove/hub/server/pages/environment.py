"""The page of an environment: installation, README, leaderboard, manifest and versions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rove.hub.package.manifest import Manifest
from rove.hub.server.catalogue import ARCHIVES, StoredRelease
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
from rove.hub.server.pages.leaderboard import Row, Scale, interval_svg, leaderboard, scale_of
from rove.hub.server.pages.run import examples_html
from rove.hub.server.results import Estimate
from rove.viewer.html import shown

HUB = "HUB"
"""Placeholder for the hub's address; a script replaces it in the browser."""


class EnvironmentPage(NamedTuple):
    """The data shown on an environment's page."""

    listed: Mapping[str, Any]
    """The environment's entry in the list; `version` is the version shown."""
    manifest: Manifest
    readme: str
    releases: Sequence[StoredRelease]
    """Newest last."""
    rows: Sequence[Row]
    """Rows of the leaderboard, newest version first."""
    examples: tuple[Row | None, Any]
    """A row and the rollouts pushed with it; (None, None) without pushed rollouts."""

    @property
    def release(self) -> StoredRelease:
        """The version shown."""
        return next(one for one in self.releases if one.version == self.listed["version"])


def environment_page(hub: str, page: EnvironmentPage, leaf: str) -> bytes:
    """Render the page.

    Args:
        hub: Name of the hub.
        page: Data to show.
        leaf: See `PageLocation`.
    """
    place, listed = PageLocation(2, leaf), page.listed
    owner, name = listed["owner"], listed["name"]
    title = link(place.front(owner=owner), text(owner)) + "/" + text(name)
    main = [*_readme(page, place), *_results(page), *_versions(page, place)]
    sections = [("install", _install(owner, name)), ("manifest", _manifest(page.manifest))]
    install, manifest = (tag("section", "\n".join(parts), kind) for kind, parts in sections)
    body = [
        tag("h1", f"{title} {tag('small', text(listed['version']))}"),
        tag("p", text(listed["description"])),
        tag("p", "".join(entry_facts(listed, place)), "facts"),
        tag("p", _yanked(page.release.yanked, "This version was yanked")),
        tag("div", install + tag("div", "\n".join(main), "story") + manifest, "split"),
    ]
    trail = [(f"{owner}/{name}", "")]
    return frame(f"{owner}/{name} · {hub}", hub, place, trail, filter(None, body))


def _yanked(reason: str | None, what: str = "yanked") -> str:
    return "" if reason is None else tag("span", text(f"{what}: {reason}" if reason else what), "bad")


def _readme(page: EnvironmentPage, place: PageLocation) -> Iterator[str]:
    if not page.readme.strip():
        return
    yield tag("h2", "README")
    yield tag("div", readme_html(page.readme), "readme")
    if len(page.readme) > MAX_README_CHARS:
        address = place.file(page.listed["owner"], page.listed["name"], page.listed["version"], "README.md")
        yield tag("p", "Truncated. " + link(address, "Read the whole README"), "note")


def _results(page: EnvironmentPage) -> Iterator[str]:
    policies, rows = page.manifest.policies, page.rows
    rewards = [*(page.manifest.reward_range or ()), *(policy.reward for policy in policies.values())]
    scale = scale_of((row.summary.reward for row in rows), rewards)
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
    best, pushed = page.examples
    examples = examples_html(pushed)
    if best and examples:
        yield tag("h2", "Rollouts")
        run = link(best.address, text(best.model))
        yield tag("p", f"From {run} in version {text(best.version)}, lowest reward first.", "note")
        yield "\n".join(examples)


def _policies(manifest: Manifest, scale: Scale) -> str:
    rows = [
        (text(name), shown(policy.reward), interval_svg(name, Estimate(policy.reward), scale), shown(policy.n))
        for name, policy in sorted(manifest.policies.items(), key=lambda item: -item[1].reward)
    ]
    seeds = ", ".join(map(str, manifest.seeds))
    note = tag(
        "p",
        f"Measured when version {text(manifest.version)} was built" + (f", seed {seeds}." if seeds else "."),
        "note",
    )
    return note + table(("policy", "mean reward", scale.ends, "rollouts"), rows, "policies")


def _versions(page: EnvironmentPage, place: PageLocation) -> Iterator[str]:
    owner, name = page.listed["owner"], page.listed["name"]
    rows = []
    for release in reversed(page.releases):
        where = (owner, name, release.version)
        files = [
            link(place.file(*where, file.filename), text(file.filename)) + f" {tag('small', _size(file.size))}"
            for file in release.files
            if file.kind in ARCHIVES
        ]
        about = [link(place.file(*where, "manifest.json"), "manifest")]
        if any(file.kind == "signature" for file in release.files):
            about.append(link(place.file(*where, "manifest.sig"), "signature"))
        state = _yanked(release.yanked) or "available"
        rows.append(
            (text(release.version), text(release.uploaded[:10]), state, "<br>".join([*files, " · ".join(about)]))
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
    required = [*("network access",) * needs.network, *("a sandbox",) * needs.sandbox, *needs.secrets]
    reward_range = manifest.reward_range and f"{shown(manifest.reward_range[0])} to {shown(manifest.reward_range[1])}"
    lines: dict[str, str] = {
        "reward range": text(reward_range or "not declared"),
        "metrics": text(", ".join(manifest.metrics)),
        "tools": text(", ".join(manifest.tools)),
        "requires": text(", ".join(required) or "no network, sandbox or keys"),
        "data sources": text(", ".join(manifest.data_sources)),
        "API": text(manifest.compatibility),
        "license": text(manifest.licence or "not declared"),
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
                "required" if one.default is None else tag("code", text(one.default)),
            )
            for one in manifest.arguments
        ]
        yield tag("h3", "Arguments") + table(("name", "type", "default"), arguments, "arguments")
    if manifest.dependencies:
        yield collapsible(f"Dependencies ({len(manifest.dependencies)})", block("\n".join(manifest.dependencies)))
