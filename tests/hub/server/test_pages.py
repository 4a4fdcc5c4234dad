"""The pages of a hub as HTML: content, privacy, and no active content from packages."""

from __future__ import annotations

from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hub_site import EVIL, HOSTILE, QUIET, README, made_hub, push, rollout
from hubs import hub
from hypothesis import given
from hypothesis import strategies as st
from tiers import first_quick
from yarl import URL

from rove.core.errors import RejectedError
from rove.hub.server import catalogue
from rove.hub.server.catalogue import Query
from rove.hub.server.pages.html import MAX_README_CHARS, POLICY, readme_html
from rove.hub.server.pages.run import Estimate, Summary, examples_html, read_summary, rows_of, scale_of, with_interval
from rove.hub.server.pages.site import PAGE_SIZE, Site
from rove.hub.server.store import Store

ALLOWED_TAGS = frozenset(
    [
        "p",
        "h1",
        "h2",
        "h3",
        "h4",
        "h5",
        "h6",
        "a",
        "code",
        "pre",
        "em",
        "strong",
        "s",
        "ul",
        "ol",
        "li",
        "blockquote",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "hr",
        "br",
    ]
)
ALLOWED_ATTRIBUTES = frozenset({"href", "rel", "title", "class", "start"})
"""The elements and attributes that a rendered README may contain."""


class Elements(HTMLParser):
    """The elements of a page, with their attributes, and its text."""

    def __init__(self, page: str | bytes):
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page if isinstance(page, str) else page.decode())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        """Return the attributes of each element with this tag."""
        return [attributes for name, attributes in self.found if name == tag]


def check_inert(html: str) -> Elements:
    """Parse a rendered README and check that it has no active content."""
    page = Elements(html)
    for tag, attributes in page.found:
        assert tag in ALLOWED_TAGS and attributes.keys() <= ALLOWED_ATTRIBUTES, (tag, attributes)
        assert (attributes.get("href") or "https://").lower().startswith(("https://", "http://"))
    return page


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    store = made_hub(tmp_path_factory.mktemp("pages") / "hub")
    yield store
    store.close()


@pytest.fixture(scope="module")
def site(store: Store) -> Site:
    return Site(store, "our hub")


# Untrusted text


def test_a_readme_is_rendered_as_markdown():
    page = check_inert(readme_html(README))
    assert [tag for tag, _ in page.found][:3] == ["h3", "p", "strong"]
    assert [one["href"] for one in page.all("a")] == ["https://example.org/paper?a=1&b=2"]
    assert page.all("a")[0]["rel"] == "nofollow noopener noreferrer"
    assert "the code" in page.text and "[a plot]" in page.text and len(page.all("td")) == 2


def test_a_hostile_readme_is_rendered_without_active_content():
    page = check_inert(readme_html(HOSTILE))
    assert [one["href"] for one in page.all("a")] == ["https://evil.example/%22onclick=%22window.pwned=7"]
    for shown in (
        "<script>window.pwned = 2</script>",
        "<style>body",
        "<iframe",
        "[x]",
        "<base href",
        "window.pwned=12",
    ):
        assert shown in page.text


MARKUP_PIECES = ["<script>", "](", "[", "![", ")", "javascript:", "data:text/html,", "<a/onclick=1>", '"', "'", "`"]
MARKUP_PIECES += ["&#106;avascript:", "|", "---|", "<", ">", "https://x", "//x", "\\", "[a]:", "&lt;", "#", "*", "~~"]
MARKUP_PIECES += ["\n", " ", "\t", "\x00", "\u202e", "    "]


@given(st.lists(st.sampled_from(MARKUP_PIECES), max_size=30).map("".join))
def test_a_random_readme_is_rendered_without_active_content(source: str):
    check_inert(readme_html(source))


@pytest.mark.parametrize("piece", first_quick(["[", "![", "*a_", "> ", "[a](", "|a"]))
def test_a_long_readme_is_truncated(piece: str):
    page = check_inert(readme_html(piece * MAX_README_CHARS))
    assert len(page.text) <= MAX_README_CHARS + 100
    readme_html.cache_clear()


def test_texts_of_manifests_and_runs_are_escaped(site: Site, store: Store):
    [row] = site.rows("zeta", "evil", "1.0")
    for page in (
        site.environment("zeta", "evil"),
        site.run("zeta", "evil", row),
        site.index_page(),
        site.search_page(Query()),
    ):
        elements = Elements(page)
        assert len(elements.all("script")) == 1 and not any(
            "id" in one and one["id"] == "pwned" for _, one in elements.found
        )
        assert not {name for _, attributes in elements.found for name in attributes if name.startswith("on")}
        assert not any(
            tag in ("b", "img", "iframe") and attributes
            for tag, attributes in elements.found
            if tag != "b" or attributes != {"class": "reward"}
        )
        assert QUIET in elements.text
    shown = Elements(site.run("zeta", "evil", row)).text
    assert shown.count(EVIL) >= 8


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["", "m", EVIL]),
    lambda one: (
        st.lists(one, max_size=4)
        | st.dictionaries(
            st.sampled_from(["mean", "half_width", "low", "high", "caveat", "weight", "role", "content", "type"]),
            one,
            max_size=4,
        )
    ),
    max_leaves=8,
)
SUMMARIES = st.dictionaries(
    st.sampled_from(["reward", "functions", "scored", "examples", "stops", "errors", "pass@k"]), JSON, max_size=6
)


@given(SUMMARIES)
def test_any_json_summary_becomes_a_row(told: dict[str, Any]):
    raw = msgspec.Raw(msgspec.json.encode(told))
    [row] = rows_of("1.0", [{"id": "1", "model": "m", "uploaded": "2026-11-22T00:00:00Z", "summary": raw}])
    scale = scale_of([row.summary.reward])
    assert scale.low < scale.high and scale.ends


@given(
    st.dictionaries(
        st.sampled_from(["prompt", "completion", "scores", "answer", "info", "stop_condition"]), JSON, max_size=6
    )
    | JSON
)
def test_any_json_example_is_displayed(told: Any):
    assert examples_html([told])[0].startswith('<details class="rollout">')


def test_deeply_nested_json_is_displayed():
    deep: Any = "x"
    for _ in range(900):
        deep = [deep]
    assert "details" in examples_html([deep])[0]
    assert "details" in examples_html([{**rollout(1.0, "x"), "info": {"deep": deep}}])[0]
    assert read_summary({"reward": deep}) == Summary()


def test_a_summary_without_an_interval_is_read():
    assert read_summary({"reward": {"mean": 1, "half_width": None}, "scored": 3}) == Summary(
        reward=Estimate(1.0), scored=3
    )


# Content of pages


def test_intervals_in_both_summary_formats_are_shown():
    assert with_interval(Estimate(0.5, low=0.25, high=0.625, caveat="few")) == "0.500 [0.250, 0.625]*"
    assert with_interval(Estimate(0.5, half_width=0.25)) == "0.500 [0.250, 0.750]"
    assert with_interval(Estimate(0.5)) == "0.500"
    assert Estimate(low=0.1).limits is Estimate(half_width=0.1).limits is None


def test_the_list_contains_only_public_environments(site: Site):
    page = Elements(site.index_page())
    assert [one["href"] for one in page.all("a") if (one["href"] or "").count("/") == 3] == [
        "./acme/my-sums/",
        "./zeta/chess/",
        "./zeta/evil/",
    ]
    assert "secret" not in page.text and "hidden" not in page.text and "3 environments" in page.text
    assert "data-whole" in page.all("ul")[-1]
    assert "secret" in Elements(site.search_page(Query(), "acme")).text


def test_the_list_is_searched_and_paginated(site: Site, monkeypatch: pytest.MonkeyPatch):
    page = Elements(site.search_page(Query(q="SUMS two", tag="math")))
    assert "1 environment found" in page.text and "acme/my-sums" in page.text and "zeta/chess" not in page.text
    assert page.all("input")[0]["value"] == "SUMS two"
    assert [one["value"] for one in page.all("option") if "selected" in one] == ["math"]
    assert "No environments" in Elements(site.search_page(Query(q="nobody"))).text
    monkeypatch.setattr("rove.hub.server.pages.site.PAGE_SIZE", 2)
    first = Elements(site.search_page(Query()))
    assert {"href": "./?offset=2"} in first.all("a") and "data-whole" not in first.all("ul")[-1]
    last = Elements(site.search_page(Query(offset=2)))
    assert "zeta/evil" in last.text and {"href": "./"} in last.all("a")


def test_search_queries_are_escaped(site: Site):
    page = Elements(site.search_page(Query(q=EVIL, owner=EVIL, tag='"><script>')))
    assert len(page.all("script")) == 1 and page.all("input")[0]["value"] == EVIL


def test_an_environment_page_shows_manifest_leaderboard_and_yanked_versions(site: Site):
    page = Elements(site.environment("acme", "my-sums"))
    for words in (
        "0 to 1.200",
        "SUMS_KEY",
        "network access",
        "num_examples",
        "required",
        "yanked: the answers were wrong",
    ):
        assert words in page.text
    assert (
        page.text.index("lab/large")
        < page.text.index("lab/small")
        < page.text.index("odd")
        < page.text.index("lab/old")
    )
    drawings = [one["aria-label"] for one in page.all("svg")]
    assert "reward 1.050, 95% interval 1.020 to 1.080, on a line from 0 to 1.200" in drawings
    assert "rove install acme/my-sums --hub HUB" in page.text
    assert "Let me see." in page.text and "This version was yanked" not in page.text
    assert "This version was yanked" in Elements(site.environment("zeta", "evil")).text


def test_a_run_page_shows_metrics_errors_and_settings(site: Site):
    row = site.rows("acme", "my-sums", "1.1")[0]
    page = Elements(site.run("acme", "my-sums", row))
    for words in (
        "lab/large",
        "400 / 402",
        "correct",
        "metric",
        "pass@1",
        "InfraError (2)",
        '"max_tokens": 64',
        "f" * 64,
    ):
        assert words in page.text
    assert {"href": "../../../../acme/my-sums/"} in page.all("a")


def test_private_environments_have_no_page_for_other_readers(site: Site):
    for reader in (None, "zeta"):
        with pytest.raises(RejectedError) as hidden:
            site.environment("acme", "secret", reader)
        with pytest.raises(RejectedError) as absent:
            site.environment("acme", "secreto", reader)
        assert str(absent.value) == str(hidden.value).replace("secret", "secreto") and hidden.value.status == 404
        with pytest.raises(RejectedError):
            site.rows("acme", "secret", "1.0", reader)
    assert "hidden-model" in site.environment("acme", "secret", "acme").decode()


def test_facets_count_environments_visible_to_the_reader(store: Store):
    assert catalogue.facets(store)["tag"] == {"game": 2, "math": 1, "tools": 1}
    assert "hidden" in catalogue.facets(store, "acme")["tag"]


def test_long_leaderboards_are_truncated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("rove.hub.server.pages.run.MAX_ROWS", 2)
    store = made_hub(tmp_path / "hub")
    try:
        for i in range(3):
            push(store, "1.0", f"model-{i}", {"reward": {"mean": i}}, "zeta", "chess")
        page = Elements(Site(store, "h").environment("zeta", "chess"))
        assert "1 runs with lower rewards are not shown" in page.text and "model-0" not in page.text
    finally:
        store.close()


# HTTP


async def test_pages_have_a_security_policy_and_private_ones_need_a_token(store: Store):
    async with hub(store.folder) as asking:
        for path in ("/", "/acme/my-sums/", "/?q=sums&tag=math&limit=5"):
            response = await asking.ask("GET", path)
            assert response.status == 200 and response.headers["Content-Type"] == "text/html; charset=utf-8"
            assert response.headers["Content-Security-Policy"] == POLICY and "unsafe" not in POLICY
            assert "style=" not in response.text and "<style" not in response.text
            for element in Elements(response.text).all("link") + Elements(response.text).all("script"):
                asset = await asking.ask("GET", f"{path.split('?')[0]}{element.get('href') or element['src']}")
                assert asset.status == 200 and asset.headers["X-Content-Type-Options"] == "nosniff"
        for path in (
            "/acme/secret/",
            "/acme/nothing/",
            "/static/site.py",
            "/acme/my-sums/1.1/runs/x.html",
            "/?offset=x",
        ):
            response = await asking.ask("GET", path)
            assert response.status in (400, 404) and response.error
            assert "sandbox" in response.headers["Content-Security-Policy"]
        response = await asking.ask("GET", "/acme/secret/", "acme")
        assert response.status == 200 and response.headers["Cache-Control"] == "private, no-cache"
        run = catalogue.runs(store, "acme", "my-sums", "1.1")["runs"][0]["id"]
        assert (await asking.ask("GET", f"/acme/my-sums/1.1/runs/{run}.html")).status == 200
        response = await asking.ask("GET", "/acme/my-sums")
        assert (response.status, response.headers["Location"]) == (301, "my-sums/")


async def test_redirects_stay_on_the_hub(tmp_path: Path):
    async with hub(tmp_path / "hub") as asking:
        for path in ("/acme/%2F%2Fevil.example", "/acme/simple/%2F%2Fevil.example", "/acme/a%0d%0ab"):
            response = await asking.ask("GET", URL(asking.url + path, encoded=True))
            assert response.status in (301, 400, 404)
            assert "//evil" not in response.headers.get("Location", "")


def test_the_page_size_is_within_the_search_limit():
    assert PAGE_SIZE <= catalogue.MAX_SEARCH_RESULTS
